"""What the faults that hold make of NICs and ranks, and how often they hit.

Is: the sum of faults per NIC, told to the fabric; stopped and killed processes; counters, read as hits of each fault. Is not:
moments, scripts or calls (faults). Invariants: a NIC is what its set rate and all faults that hold make of it together, so
they may end in any order; what is counted down is told to a NIC one fault after the other, so that each has hits of its own.
All calls under the lock of Faults.
"""

from __future__ import annotations

import signal
import weakref
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..faults import FaultSpec
from . import fault_points, processes
from .fabric import NicState, make_fabric
from .fault import Fault
from .fault_records import fired_names, word_of

if TYPE_CHECKING:
    from .world import World

Key = tuple[int, int]  # node of the whole topology, NIC
COUNTED = {"corrupt": ("damage", "frames"), "sever": ("sever", "connections")}
MESSAGES = {"loss": ("loss_ppm", 1e6), "double": ("double_ppm", 1e6), "late": ("late_ns", 1)}


class Effects:
    """The NICs and ranks of `world`, as faults leave them. `active`: faults that hold, oldest first."""

    def __init__(self, world: World) -> None:
        self._world = weakref.ref(world)
        self.active: list[Fault] = []
        self._base: dict[Key, tuple[int, bool]] = {}  # bytes/s, up: without faults
        self._told: dict[Key, NicState] = {}
        self._bind(world)

    def _bind(self, world: World) -> None:
        ranks, topology = world._ranks, world.topology
        self._segments, self.ids, self.topology = ranks.segments, ranks.ids, topology
        nodes = getattr(ranks, "nodes", None)  # of an elastic world: which nodes of the whole these are
        self.nodes = list(range(topology.n_nodes)) if nodes is None else [int(node) for node in nodes]
        self._fabric = make_fabric(self._segments, topology, getattr(ranks, "netns", None))
        self._told.clear()

    def close(self) -> None:
        """What was stopped goes on, and what was counted is kept, though the counters go."""
        for fault in self.active:
            fault.counted += self.measure(fault)
            if fault.kind == "pause":
                processes.send(fault.pidfd, signal.SIGCONT)
            fault.pidfd = processes.close(fault.pidfd)
            fault.state = "ended"
        self.active.clear()
        self._segments = []

    # -- places

    def key(self, spec: FaultSpec) -> Key:
        """The NIC a fault is of; (-1, -1): of none."""
        return (self.nodes[spec["node"]], spec["nic"]) if spec.what.target == "nic" else (-1, -1)

    def _node(self, key: Key) -> int | None:
        """The node of now; None if it has no rank any more."""
        return self.nodes.index(key[0]) if key[0] in self.nodes and self._segments else None

    def _segment(self, member: int) -> Any:
        """The segment of a rank; None if it takes no part any more."""
        return self._segments[self.ids.index(member)] if member in self.ids and self._segments else None

    def check(self, spec: FaultSpec) -> None:
        """Raises UsageError or UnsupportedError if it cannot be done here."""
        spec.check(self.topology)
        self._fabric.check(spec)
        fault_points.check(spec)
        if spec.kind == "cap" and spec.get("fraction") and not self._base_of(self.key(spec))[0]:
            raise UsageError(f"{spec.text()}: this NIC is not shaped, a fraction of its rate is unknown: give gbits=.")

    def shape(self, node: int, nic: int, bytes_per_s: int, up: bool) -> None:
        """Sets what a NIC is without faults; `node` is one of now."""
        key = self.nodes[node], nic
        self._base[key] = bytes_per_s, up
        self._apply(key)

    def _base_of(self, key: Key) -> tuple[int, bool]:
        if key not in self._base:
            at = self.nodes.index(key[0]) * self.topology.nics_per_node + key[1]
            rate = int(self.topology.nic_bytes_per_s[at])
            # NICs that are not emulated are not shaped; 0 in a topology says that the NIC is not there.
            self._base[key] = (rate, rate > 0) if self.topology.emulated else (0, True)
        return self._base[key]

    def nic_words(self) -> dict[Key, str]:
        """{(node of now, nic): word} of NICs that are not whole."""
        found = {}
        for node, base in enumerate(self.nodes):
            for nic in range(self.topology.nics_per_node):
                kinds = {fault.kind for fault in self.active if fault.key == (base, nic)}
                if word := word_of(kinds, self._base.get((base, nic), (0, True))[1]):
                    found[node, nic] = word
        return found

    def rank_words(self) -> dict[int, str]:
        """{rank of now: word} of ranks that were stopped or killed."""
        words = {fault.member: {"pause": "paused", "kill": "killed"}.get(fault.kind, "") for fault in self.active}
        return {self.ids.index(who): word for who, word in words.items() if word and who in self.ids}

    # -- begin and end of a fault

    def start(self, fault: Fault) -> None:
        """Makes it hold. Raises UsageError if it cannot; then it does not."""
        self.active.append(fault)
        try:
            self._start(fault)
        except BaseException:
            self.active.remove(fault)
            raise

    def _start(self, fault: Fault) -> None:
        if fault.kind in COUNTED:
            fault.asked_left = fault.spec[COUNTED[fault.kind][1]]
            if fault.passed.get("did"):  # the rank that passed its point has told the NIC
                fault.hits_from = {"asked": fault.asked_left}
            self._next_counted(fault.key, fault.kind)
        elif fault.spec.what.target == "nic":
            fault.hits_from = self._hits(fault)
            if fault.passed.get("did"):
                fault.hits_from |= fault.passed["hits"]
            self._apply(fault.key)
        elif fault.kind == "messages":
            fault.hits_from = self._hits(fault)
            self._apply_messages(fault.member)
        elif world := self._world():
            if fault.pidfd < 0:
                fault.pidfd = processes.open_rank(world._ranks, fault.member)
            processes.send(fault.pidfd, signal.SIGSTOP if fault.kind == "pause" else signal.SIGKILL)

    def stop(self, fault: Fault) -> None:
        """Takes back what holds. Raises UsageError for a kill."""
        if not fault.spec.what.undo:
            raise UsageError(
                f"{fault.spec.text()}: a killed process cannot be brought back; in a World(elastic=True), world.grow() starts another."
            )
        told = bool(fault.hits_from)
        if fault.kind not in COUNTED:
            fault.counted += self.measure(fault)
        self.active.remove(fault)
        if fault.kind in COUNTED:
            if told:
                # Taken back first, counted then: a hit in between belongs to this one.
                left = self._left(fault)
                self._count(fault, 0)
                fault.counted += fault.asked_left - left
            self._next_counted(fault.key, fault.kind)
        elif fault.kind == "pause":
            processes.send(fault.pidfd, signal.SIGCONT)
            fault.pidfd = processes.close(fault.pidfd)
        elif fault.kind == "messages":
            self._apply_messages(fault.member)
        else:
            self._apply(fault.key)

    def turn(self, fault: Fault) -> None:
        """The next edge of a NIC that flaps."""
        fault.down_now = not fault.down_now
        self._apply(fault.key)

    def _apply(self, key: Key) -> None:
        node = self._node(key)
        if node is None:
            return
        rate, up = self._base_of(key)
        wanted: dict[str, Any] = NicState(rate, up)._asdict()
        for fault in self.active:
            if fault.key == key:
                _fold(wanted, fault, rate)
        state = NicState(**wanted)
        self._fabric.set(node, key[1], state, self._told.get(key, NicState()))
        self._told[key] = state

    def _apply_messages(self, member: int) -> None:
        segment = self._segment(member)
        mine = [fault for fault in self.active if fault.kind == "messages" and fault.member == member]
        for name, (word, scale) in MESSAGES.items():
            if segment is not None:
                segment.set_message_fault(word, round(max((fault.spec[name] for fault in mine), default=0) * scale))

    # -- what is counted down

    @property
    def counting(self) -> bool:
        """Whether some fault is over once it is used up."""
        return any(fault.kind in COUNTED for fault in self.active)

    def _left(self, fault: Fault) -> int:
        node = self._node(fault.key)
        return fault.asked_left if node is None else self._fabric.left(node, fault.key[1], COUNTED[fault.kind][0])

    def _count(self, fault: Fault, value: int) -> None:
        node = self._node(fault.key)
        if node is not None:
            self._fabric.count(node, fault.key[1], COUNTED[fault.kind][0], value)

    def _next_counted(self, key: Key, kind: str) -> None:
        """Tells the NIC of the first that waits for its turn, if none has it."""
        waiting = [fault for fault in self.active if (fault.key, fault.kind) == (key, kind)]
        if waiting and not waiting[0].hits_from and self._node(key) is not None:
            waiting[0].hits_from = {"asked": waiting[0].asked_left}
            self._count(waiting[0], waiting[0].asked_left)

    def settle(self) -> None:
        """Ends what is used up."""
        for fault in [each for each in self.active if each.kind in COUNTED and each.hits_from]:
            if self._left(fault) == 0:
                fault.counted += fault.asked_left
                self.active.remove(fault)
                fault.state = "ended"
                self._next_counted(fault.key, fault.kind)

    # -- hits

    def _hits(self, fault: Fault) -> dict[str, int]:
        """Counters now, of what this fault may hit; empty where nobody counts any more."""
        if fault.kind == "messages":
            segment = self._segment(fault.member)
            return {} if segment is None else dict(segment.message_faults()["hits"])
        node = self._node(fault.key)
        if node is None:
            return {}
        return self._fabric.hits(node, fault.key[1]) | {"carried": self._fabric.carried(node)[fault.key[1]]}

    def measure(self, fault: Fault) -> int:
        """Hits of a fault that holds, beyond `fault.counted`."""
        if fault.kind in ("pause", "kill"):
            return int(processes.stopped(fault.pidfd) if fault.kind == "pause" else processes.ended(fault.pidfd))
        if fault.kind in COUNTED:
            return fault.asked_left - self._left(fault) if fault.hits_from else 0
        now = self._hits(fault)
        return sum(now[name] - fault.hits_from.get(name, 0) for name in fired_names(fault.spec)) if now else 0

    def carried(self) -> dict[Key, int]:
        """Bytes that each NIC sent and received so far."""
        found = {}
        for node, base in enumerate(self.nodes if self._segments and self.topology.nics_per_node else []):
            found |= {(base, nic): nbytes for nic, nbytes in enumerate(self._fabric.carried(node))}
        return found

    def carried_by(self, fault: Fault) -> int:
        """Bytes so far of the NICs that a fault waits for."""
        nodes = {node for key in self.waits_for(fault) if (node := self._node(key)) is not None}
        counts = {(self.nodes[node], nic): nbytes for node in nodes for nic, nbytes in enumerate(self._fabric.carried(node))}
        return sum(counts.get(key, 0) for key in self.waits_for(fault))

    def waits_for(self, fault: Fault) -> list[Key]:
        """The NICs whose bytes a fault waits for: its own, or all of its rank's node."""
        if fault.member < 0:
            return [fault.key]
        if fault.member not in self.ids:
            return []
        node = int(self.topology.node_of[self.ids.index(fault.member)])
        return [(self.nodes[node], nic) for nic in range(self.topology.nics_per_node)]

    # -- points of the protocol

    def wait_for_point(self, fault: Fault) -> None:
        """Has the ranks look out for its point. Raises UsageError if the rank has ended, or too many faults of a node wait."""
        spec, world = fault.spec, self._world()
        if not self._segments or world is None or (fault.seen_by >= 0 and fault.seen_by not in self.ids):
            return
        if fault.kind in ("pause", "kill"):  # the process may be gone when the injector sees what happened
            fault.pidfd = processes.open_rank(world._ranks, fault.member)
        node = self._node(fault.key)
        if spec.what.target == "nic" and node is None:
            return
        rank = self.ids.index(fault.seen_by) if fault.seen_by >= 0 else -1
        fault_points.arm(fault, self._segments, self.topology, node=node, rank=rank, by_rank=self._fabric.by_words(spec))

    def leave_point(self, fault: Fault) -> bool:
        """It waits for its point no longer. True if that was passed: then the fault happened."""
        if fault_points.leave(fault):
            return True
        fault.pidfd = processes.close(fault.pidfd)
        return False

    # -- other members

    def regroup(self) -> None:
        """An elastic world has other members on other memory: what holds is done to it again, and its counters begin anew."""
        for fault in self.active:
            if fault.kind not in ("pause", "kill"):
                measured = self.measure(fault)
                fault.counted += measured
                fault.asked_left -= measured if fault.kind in COUNTED else 0
        world = self._world()
        if world is None:
            return
        self._bind(world)
        for fault in self.active:
            fault.hits_from = {} if fault.kind in COUNTED else self._hits(fault)
        for key in {*self._base, *(fault.key for fault in self.active)}:
            self._apply(key)
        for fault in self.active:
            if fault.kind in COUNTED:
                self._next_counted(fault.key, fault.kind)
            elif fault.kind == "messages":
                self._apply_messages(fault.member)


def _fold(wanted: dict[str, Any], fault: Fault, rate: int) -> None:
    """What one fault makes of a NIC of `rate` bytes/s without faults."""
    spec = fault.spec
    if spec.kind == "nic_down" or (spec.kind == "flap" and fault.down_now):
        wanted["up"] = False
    elif spec.kind == "cable":
        wanted["unplugged"] = True
    elif spec.kind == "black_hole":
        wanted["silent_tx"] |= spec["direction"] in ("both", "tx")
        wanted["silent_rx"] |= spec["direction"] in ("both", "rx")
    elif spec.kind == "cap":
        limit = max(round(rate * spec.get("fraction", 0)) or round(spec.get("gbits", 0) * 1.25e8), 1)
        wanted["bytes_per_s"] = min(wanted["bytes_per_s"] or limit, limit)
    elif spec.kind == "delay":
        wanted["delay_ns"] += spec["latency"]
        wanted["jitter_ns"] += spec["jitter"]
