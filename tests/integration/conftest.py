"""Worlds shared by the tests of a module."""

from __future__ import annotations

import pytest

import ccl_lab as ccl


@pytest.fixture(scope="module")
def cluster() -> ccl.Topology:
    """2 nodes x 2 ranks x 2 NICs, fast enough not to wait for."""
    return ccl.Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=20)


@pytest.fixture(scope="module")
def world(cluster):
    with ccl.World(cluster, timeout="20s") as made:
        yield made
