"""A topology as people write it down: what `Topology.cluster` or a preset takes, and the levels of switches.

    format: ccl_lab.cluster          # JSON or YAML
    nodes: 64
    gpus_per_node: 8
    nics_per_node: 8
    nic_gbits_per_s: 400             # or preset: h100
    levels:
      - {name: leaf, nodes: 16, uplinks: 8, oversubscription: 2, per_rail: true}
      - {name: spine, latency: 1us}
    routing: ecmp
    seed: 7

Is: that form, checked. Is not: the file of every link (files.py). Invariant: an unknown key is refused with the nearest one.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from ..errors import DecodeError, UsageError, suggest
from .model import Topology
from .network import Level

FORMAT = "ccl_lab.cluster"
_NETWORK = ("levels", "routing", "seed")


def from_description(data: dict[str, Any]) -> Topology:
    """The topology that `data` describes. Raises DecodeError naming the key."""
    given = {key: value for key, value in data.items() if key != "format"}
    network = {key: given.pop(key) for key in _NETWORK if key in given}
    preset = given.pop("preset", None)
    known = ["nodes"] if preset is not None else [name for name in inspect.signature(Topology.cluster).parameters if name != "cls"]
    for key in given:
        if key not in known:
            raise DecodeError(f"unknown key {key!r}.{suggest(str(key), [*known, *_NETWORK, 'preset'])}")
    try:
        topology = Topology.cluster(**given) if preset is None else Topology.preset(preset, given.get("nodes"))
        return _with_levels(topology, network) if network else topology
    except (UsageError, TypeError) as error:
        raise DecodeError(str(error)) from None


def _with_levels(topology: Topology, network: dict[str, Any]) -> Topology:
    levels, known = network.get("levels"), [field.name for field in dataclasses.fields(Level)]
    if not isinstance(levels, list) or not all(isinstance(level, dict) for level in levels):
        raise DecodeError("levels: expected a list of objects, from the NICs up.")
    for i, level in enumerate(levels):
        for key in level:
            if key not in known:
                raise DecodeError(f"levels[{i}]: unknown key {key!r}.{suggest(str(key), known)}")
        if not isinstance(level.get("name"), str):
            raise DecodeError(f"levels[{i}]: name is {level.get('name')!r}: expected text.")
    options = {key: network[key] for key in ("routing", "seed") if key in network}
    return topology.with_network(*(Level(**level) for level in levels), **options)
