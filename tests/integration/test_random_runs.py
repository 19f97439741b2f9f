"""Random cases executed by real processes, over shared memory and over TCP: bitwise what the interpreter says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ccl_lab as ccl

from ..property.cases import make_case

CASES_PER_WORLD = 40
SHM = [(1,), (2,), (3,), (5,), (8,)]
TCP = [(1, 1), (3,), (2, 2), (1, 1, 1), (3, 2)]


def run_cases(sizes, transport, seed, first):
    topology = ccl.Topology.cluster(
        nodes=len(sizes), gpus_per_node=list(sizes), nics_per_node=2, nic_gbits_per_s=100
    )
    n = sum(sizes)
    with ccl.World(topology, transport=transport) as world:
        for index in range(first, first + CASES_PER_WORLD):
            case = make_case(seed, index)
            case = dataclasses.replace(
                case, gpus_per_node=tuple(sizes), nics_per_node=2, root=case.root % n, peer=case.peer % n
            )
            schedule = case.schedule(seed)
            if transport == "tcp" and ccl.verify(schedule).peer_reads:
                with pytest.raises(ccl.UnsupportedError, match="reads the memory of rank"):
                    world.start(schedule, count=case.count, dtype=case.dtype, counts=case.counts(seed))
                continue
            layout = schedule.layout(case.count, dtype=case.dtype, counts=case.counts(seed))
            inputs = case.inputs(seed, layout)
            want = ccl.interpret(schedule, [x.copy() for x in inputs], redop=case.redop, counts=layout.counts)
            run = world.start(schedule, count=case.count, dtype=case.dtype, redop=case.redop, counts=layout.counts,
                              inputs=inputs)  # fmt: skip
            run.wait(30)
            for rank, (expected, found) in enumerate(zip(want, run.outputs, strict=True)):
                assert expected.tobytes() == np.ascontiguousarray(found).tobytes(), (
                    f"rank {rank} differs in {case}; replay with --seed {seed}")  # fmt: skip


@pytest.mark.parametrize("sizes", SHM, ids=str)
def test_shared_memory(sizes, pytestconfig):
    run_cases(sizes, "shm", pytestconfig.getoption("--seed"), 1000 * SHM.index(sizes))


@pytest.mark.parametrize("sizes", TCP, ids=str)
def test_tcp(sizes, pytestconfig):
    run_cases(sizes, "tcp", pytestconfig.getoption("--seed"), 100_000 + 1000 * TCP.index(sizes))
