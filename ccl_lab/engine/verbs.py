"""Whether the NICs of a job are driven by RDMA verbs, and how: one decision, the same on every rank.

Is: the settings of CCL_LAB_RDMA, what each rank says of its NICs, and the choice that follows from all of them. Is not: a device
(native transport `verbs`) and not a list of devices (ccl_lab.rdma). Invariant: the same cards and the same transport give the
same decision everywhere; where it is sockets though verbs were possible for some, the reason names the first rank and NIC.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from .. import _core, rdma, units
from ..errors import CclError, ConfigError, UnsupportedError, UsageError
from ..topo import Topology
from .reach import CLASSES, Reach, reaches_of

MODES = ("dqplb", "spray")
REGISTRATIONS = ("off", "lazy", "async", "eager")
ALL_TO_ALL = "all_to_all"
REACHES = (*CLASSES, ALL_TO_ALL)
OF_A_SPREAD = ("qps", "segment", "inflight", "mode")
OF_THE_JOB = ("reach", "register", "gpu", "gid", "timeout", "retries")
FROM_GPUS = ("direct", "pinned")
MAX_QPS, MAX_INFLIGHT = 64, 1024


class Spread(NamedTuple):
    """How puts are spread over the queue pairs of two NICs."""

    qps: int
    segment_bytes: int
    inflight: int
    mode: str

    def __str__(self) -> str:
        size = f"segments of {self.segment_bytes} bytes" if self.segment_bytes else "puts split evenly"
        return f"{self.qps} queue pairs for each pair of NICs, {size}, {self.inflight} in flight on each, {self.mode}"


class Settings(NamedTuple):
    """What CCL_LAB_RDMA says, and the defaults of what it does not."""

    spreads: tuple[Spread, ...]  # by REACHES: of what lies between two nodes, and of all_to_all whatever lies between
    reach: str = ""  # taken for every two nodes; "": what the topology says
    register: str = "lazy"
    gid: int = -1  # index; -1: the one that has the NIC's address
    timeout: int = 16
    retries: int = 6
    gpu: str = "direct"  # what NICs do with arrays on a GPU

    def spread(self, reach: str) -> Spread:
        """Of one of REACHES."""
        return self.spreads[REACHES.index(reach)]

    def reaches(self, topology: Topology, rank: int) -> list[Reach]:
        """By rank: what lies between its node and that of `rank`, as it is said here or known."""
        if self.reach:
            return [Reach(self.reach, "CCL_LAB_RDMA says so of all")] * topology.n_ranks
        return reaches_of(topology, rank)


class Decision(NamedTuple):
    """What carries bytes between nodes: `nics` (device, port, GID index) of this node for verbs, None for sockets.

    overlaps: whether a rank adds while bytes move; False where on some node the core that adds is what moves them.
    """

    nics: list[tuple[str, int, int]] | None
    why: str
    overlaps: bool = True


def settings_of(text: str) -> Settings:
    """CCL_LAB_RDMA, such as "qps=4,cross_zone.segment=2MiB,all_to_all.qps=2": a word of one class, or of all_to_all, beats
    the same word said of all, and that the table; `reach` takes one class for every two nodes.

    Raises ConfigError for an unknown word or a value out of range.
    """
    words: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        reach, dot, word = name.rpartition(".")
        if not equals or not (reach in REACHES and word in OF_A_SPREAD if dot else name in OF_A_SPREAD + OF_THE_JOB):
            raise ConfigError(
                f"CCL_LAB_RDMA: {part!r} is no setting; expected {', '.join(OF_THE_JOB)}, or one of {', '.join(OF_A_SPREAD)}, alone or of "
                f"{', '.join(REACHES)}, as in 'qps=4,all_to_all.segment=1MiB'."
            )
        words[name] = value
    return Settings(
        spreads=tuple(_spread(words, reach) for reach in REACHES),
        reach=_one_of(words, "reach", "", REACHES),
        register=_one_of(words, "register", "lazy", REGISTRATIONS),
        gpu=_one_of(words, "gpu", "direct", FROM_GPUS),
        gid=_number(words, "gid", -1, 0, 255),
        timeout=_number(words, "timeout", 16, 1, 31),
        retries=_number(words, "retries", 6, 0, 7),
    )


def _spread(words: dict[str, str], reach: str) -> Spread:
    row = _core.rdma_spread(reach)
    name = {word: f"{reach}.{word}" if f"{reach}.{word}" in words else word for word in OF_A_SPREAD}
    try:
        segment = units.parse_size(words[name["segment"]]) if name["segment"] in words else row["segment_bytes"]
    except UsageError as error:
        raise ConfigError(f"CCL_LAB_RDMA: {name['segment']}: {error}") from None
    return Spread(
        qps=_number(words, name["qps"], row["qps"], 1, MAX_QPS),
        segment_bytes=segment,
        inflight=_number(words, name["inflight"], row["inflight"], 2, MAX_INFLIGHT),
        mode=_one_of(words, name["mode"], row["mode"], MODES),
    )


def _one_of(words: dict[str, str], name: str, default: str, known: tuple[str, ...]) -> str:
    if name not in words:
        return default
    value = words[name]
    if value not in known:
        raise ConfigError(f"CCL_LAB_RDMA: {name} is {value!r}, expected {', '.join(known)}.")
    return value


def _number(words: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    if name not in words:
        return default
    if not words[name].isdigit() or not least <= int(words[name]) <= most:
        raise ConfigError(f"CCL_LAB_RDMA: {name} is {words[name]!r}, expected {least} to {most}.")
    return int(words[name])


def card(transport: str, addresses: list[str], settings: Settings) -> list[Any] | str:
    """What this rank tells the others: [device, port, GID index] of each of its NICs, or why there is not one for each."""
    if transport not in ("auto", "verbs"):
        return f"transport is {transport!r}"
    try:
        found = [list(nic) for nic in _core.rdma_nics_of(addresses)]
        _core.rdma_library()
    except CclError as error:
        return str(error)
    if settings.gid >= 0:
        found = [[device, port, settings.gid] for device, port, _ in found]
    return found


def decide(transport: str, cards: list[list[Any] | str], rank: int) -> Decision:
    """From what all ranks said. UnsupportedError where verbs are asked for and some rank has none."""
    for at, each in enumerate(cards):
        if not isinstance(each, str):
            continue
        if transport == "verbs":
            raise UnsupportedError(
                f"transport 'verbs': rank {at}: {each} Choose the NICs that have RDMA with CCL_LAB_NICS, or use transport='auto'.",
                rank=at,
            )
        return Decision(None, f"rank {at}: {each}")
    own = [(str(device), int(port), int(gid)) for device, port, gid in cards[rank]]
    return Decision(own, f"every NIC of all {len(cards)} ranks is an RDMA device; here {', '.join(nic[0] for nic in own)}")


def one_core(found: list[Any] | str) -> bool:
    """Whether the only core that this process may use moves the bytes of its NICs, too: soft RoCE. found: its `card`."""
    if isinstance(found, str) or len(os.sched_getaffinity(0)) > 1:
        return False
    soft = {device.name for device in rdma.devices() if not device.pci}
    return bool(found) and all(device in soft for device, *_ in found)


def refuses_dma_bufs(device: str) -> str:
    """Why memory of GPUs cannot be registered with an RDMA device; empty where it can."""
    try:
        _core.rdma_takes_dma_bufs(device)
    except CclError as error:
        return str(error)
    return ""


def direct_card(found: list[Any] | str, settings: Settings) -> str:
    """What this rank tells the others: why its NICs cannot read and write memory of GPUs; empty where they can. found: its `card`."""
    if isinstance(found, str):
        return ""  # no verbs, which says it all
    if settings.gpu == "pinned":
        return "CCL_LAB_RDMA says gpu=pinned"
    for nic, (device, *_) in enumerate(found):
        if why := refuses_dma_bufs(str(device)):
            return f"NIC {nic}: {why}"
    return ""


def decide_direct(decision: Decision, cards: list[str], node_of: list[int]) -> str:
    """Why NICs do not read and write arrays on a GPU in this job, from what all ranks said; empty where they may. The same everywhere."""
    if decision.nics is None:
        return "what goes between nodes goes over sockets"
    for rank, why in enumerate(cards):
        if why:
            return f"rank {rank}: {why}"
    for rank, node in enumerate(node_of):
        if (first := node_of.index(node)) != rank:
            return f"ranks {first} and {rank} share a node, within which the host copies"
    return ""


def explain(options: Any, decision: Decision, topology: Topology, rank: int) -> str:
    """Which transport carries what, and why, a line each; over verbs, how, by class of the other nodes. options: of the member."""
    inside = "tcp, as asked for" if options.transport == "tcp" else "shared memory"
    if decision.nics is None:
        return f"inside a node: {inside}\nbetween nodes: tcp ({decision.why})"
    lines = [f"inside a node: {inside}", f"between nodes: verbs ({decision.why}), registration {options.rdma.register}"]
    nodes, first = np.unique(topology.node_of, return_index=True)
    reaches = options.rdma.reaches(topology, rank)
    others = Counter(reaches[at] for node, at in zip(nodes, first, strict=True) if node != topology.node_of[rank])
    for reach, n in sorted(others.items(), key=lambda item: REACHES.index(item[0].name)):
        to = "1 node" if n == 1 else f"{n} nodes"
        lines.append(f"  {reach.name}, {to} from here ({reach.why}): {options.rdma.spread(reach.name)}")
    if any(reach.name != ALL_TO_ALL for reach in others):
        lines.append(f"  all_to_all, to any (many send to one at a time): {options.rdma.spread(ALL_TO_ALL)}")
    if not decision.overlaps:
        lines.append("  a core that adds is all that moves bytes (soft RoCE on one core): rings send and add whole pieces")
    return "\n".join(lines)
