"""What NICs are made of in a World, and what can be done to them.

Is: the seam between the injector (faults) and what carries a fault out: words in shared memory that every rank of an emulated
node obeys. Is not: which faults there are, or when. Invariant: a fabric does what it is told or raises; it says how often
what was asked really did something, and never guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import UnsupportedError
from ..faults import FaultSpec
from ..topo import Topology
from .netns import Namespaces


class NicState(NamedTuple):
    """All that holds for a NIC at a time. bytes_per_s 0: unshaped."""

    bytes_per_s: int = 0
    up: bool = True
    silent_tx: bool = False
    silent_rx: bool = False
    unplugged: bool = False
    delay_ns: int = 0
    jitter_ns: int = 0


class Fabric:
    """NICs that cannot be hurt: those of real hardware. Base of those that can."""

    def check(self, spec: FaultSpec) -> None:
        """Raises UnsupportedError if this fabric cannot do it."""
        if spec.what.target == "nic":
            raise UnsupportedError(
                f"{spec.text()}: the NICs of this topology are real, and faults of a NIC are done to emulated ones. Use "
                "Topology.cluster(...), whose NICs are emulated; or take the interface itself down (ip link set DEV down, as root)."
            )

    def by_words(self, spec: FaultSpec) -> bool:
        """Whether a rank can do it to a NIC of its node, by words of shared memory alone."""
        return True

    def set(self, node: int, nic: int, wanted: NicState, before: NicState) -> None:
        """Makes it so, at once; `before` is what this fabric was told last."""
        raise NotImplementedError

    def count(self, node: int, nic: int, kind: str, value: int) -> None:
        """So many frames are to be damaged, or connections severed; 0: no more."""
        raise NotImplementedError

    def left(self, node: int, nic: int, kind: str) -> int:
        """How many of `count` are still to come."""
        raise NotImplementedError

    def hits(self, node: int, nic: int) -> dict[str, int]:
        """How often each fault did something to this NIC, since the ranks started."""
        raise NotImplementedError

    def carried(self, node: int) -> list[int]:
        """Bytes that each NIC of a node sent and received, since the ranks started."""
        raise NotImplementedError


class SharedFabric(Fabric):
    """NICs of emulated nodes: those of a node lie in the segment of its lowest rank. What it is told is in shared memory at once."""

    def __init__(self, segments: Sequence[Any], topology: Topology) -> None:
        self._segments = segments
        self._leaders = [int(np.flatnonzero(topology.node_of == node)[0]) for node in range(topology.n_nodes)]
        self._emulated = topology.emulated

    def check(self, spec: FaultSpec) -> None:
        """As of Fabric: nothing is done to NICs that are not emulated."""
        if not self._emulated:
            super().check(spec)

    def _segment(self, node: int) -> Any:
        return self._segments[self._leaders[node]]

    def set(self, node: int, nic: int, wanted: NicState, before: NicState) -> None:
        """As of Fabric. What makes a NIC worse comes first, what makes it better last: never better in between."""
        segment = self._segment(node)
        changes = [
            (name, int(getattr(wanted, name)), int(getattr(before, name)))
            for name in ("silent_tx", "silent_rx", "unplugged", "delay_ns", "jitter_ns")
        ]
        for name, value, was in changes:
            if value > was:
                segment.set_fault(nic, name, value)
        segment.set_nic(nic, wanted.bytes_per_s, wanted.up)
        for name, value, was in changes:
            if value < was:
                segment.set_fault(nic, name, value)

    def count(self, node: int, nic: int, kind: str, value: int) -> None:
        """As of Fabric."""
        self._segment(node).set_fault(nic, kind, value)

    def left(self, node: int, nic: int, kind: str) -> int:
        """As of Fabric."""
        return int(self._segment(node).faults()[nic]["values"][kind])

    def hits(self, node: int, nic: int) -> dict[str, int]:
        """As of Fabric."""
        return dict(self._segment(node).faults()[nic]["hits"])

    def carried(self, node: int) -> list[int]:
        """As of Fabric."""
        return [int(sent + received) for sent, received in self._segment(node).nic_counters()]


class NetnsFabric(SharedFabric):
    """NICs that are interfaces of network namespaces: down and cable are done to the interface, and nobody tells the engine.

    Rates, delays, silence, damage and severed connections are words of shared memory, as in SharedFabric. A hit of down or
    cable is an interface that the kernel says is down, or without carrier.
    """

    def __init__(self, segments: Sequence[Any], topology: Topology, nodes: Namespaces) -> None:
        super().__init__(segments, topology)
        self._nodes = nodes
        self._seen: dict[tuple[int, int], dict[str, int]] = {}

    def by_words(self, spec: FaultSpec) -> bool:
        """As of Fabric."""
        return spec.kind not in ("nic_down", "flap", "cable")

    def set(self, node: int, nic: int, wanted: NicState, before: NicState) -> None:
        """As of Fabric."""
        words = {"up": True, "unplugged": False}
        super().set(node, nic, wanted._replace(**words), before._replace(**words))
        if wanted.unplugged != before.unplugged:
            self._nodes.set_port(node, nic, not wanted.unplugged)
        if wanted.up != before.up:
            self._nodes.set_link(node, nic, wanted.up)
        flags = self._nodes.flags(node, nic)
        seen = self._seen.setdefault((node, nic), {"down": 0, "unplugged": 0})
        seen["down"] += before.up and not wanted.up and "UP" not in flags
        # An interface that is down has no carrier to lose.
        lost = "NO-CARRIER" in flags or "UP" not in flags
        seen["unplugged"] += wanted.unplugged and not before.unplugged and lost

    def hits(self, node: int, nic: int) -> dict[str, int]:
        """As of Fabric."""
        return super().hits(node, nic) | self._seen.get((node, nic), {"down": 0, "unplugged": 0})


def make_fabric(segments: Sequence[Any], topology: Topology, nodes: Namespaces | None) -> Fabric:
    """What the NICs of a World are."""
    return NetnsFabric(segments, topology, nodes) if nodes else SharedFabric(segments, topology)
