"""The injector of a World: does faults to its NICs and ranks, at their moment, and takes them back.

Is: `world.faults`: what holds now, what is armed, what was done, and what the ranks said of it. Is not: the script (the value,
`ccl_lab.faults`), nor what faults make of a NIC (fault_effects). Invariants: moments are kept by a thread of its own, which
runs only while there is something to wait for; it does not hold the World; nothing it stopped stays stopped when the World is
closed.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ..errors import CclError, UsageError
from ..faults import FaultScript, FaultSpec
from . import fault_points
from .fault import PENDING, Fault
from .fault_calls import FaultCalls
from .fault_effects import Effects, Key
from .fault_records import events_of, history, script_of

if TYPE_CHECKING:
    from ..trace import Trace
    from .run import Run
    from .world import World

MAX_EVENTS, MAX_LOG = 4_000, 1_000
BUSY_S, IDLE_S = 0.0005, 0.05  # how often bytes, ops and counts are looked at, in a run and outside
Script = Union[FaultScript, FaultSpec, str, Iterable[Union[FaultSpec, str]]]


class Faults(FaultCalls):
    """`world.faults`. `log`: the faults that were injected, oldest first (the last 1,000); `armed`: those that wait for their
    moment."""

    def __init__(self, world: World) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._world = weakref.ref(world, lambda _: self._stop())
        self._numbers, self._order = itertools.count(1), itertools.count()
        self._pending: list[Fault] = []
        self.log: list[Fault] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._feed: Any = None
        self._run: Run | None = None
        self._begin_ns = self._since_ns = 0  # of the run, and of its first attempt
        self._told_ns = 0  # when its ranks were told
        self._carried: dict[Key, int] = {}  # by each NIC, when the run began
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._silent: dict[int, int] = {}  # rank: since when
        self._effects = Effects(world)

    # -- what people ask and call

    @property
    def armed(self) -> list[Fault]:
        """Faults that wait for their moment, or for their run to begin."""
        with self._lock:
            return list(self._pending)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the ranks said of their paths, oldest first: dicts of time_ns, time (s since the begin of the run), rank, node, nic,
        peer, peer_node, peer_nic, path, kind (lost, resumed, verdict, back, peer_lost, silent, answers), verdict, segments,
        generation, text. The last 4,000. silent and answers are what this process saw of `rank`.
        """
        return sorted(self._events, key=lambda event: int(event["time_ns"]))

    @property
    def script(self) -> FaultScript:
        """What was injected since the begin of the run, the current one or the last, as it can be played again; what held then
        comes first. Times count from that begin."""
        with self._lock:
            return script_of(self.log, self._since_ns)

    def state(self) -> dict[Key, str]:
        """{(node, nic): "down" | "unplugged" | "silent" | "flapping" | "capped" | "delayed" | "severed" | "damaged"} of all NICs that
        are not whole; where several hold, the worst."""
        with self._lock:
            return self._effects.nic_words()

    def ranks(self) -> dict[int, str]:
        """{rank: "paused" | "killed"} of ranks that were."""
        with self._lock:
            return self._effects.rank_words()

    @property
    def silent(self) -> dict[int, float]:
        """{rank: seconds since it was last heard} of ranks that said nothing for 1 s or more while a run waited for them, and have
        not answered since. A suspicion: nothing is stopped for it; the run's deadline decides."""
        now = time.monotonic_ns()
        with self._lock:
            return {rank: (now - since_ns) / 1e9 for rank, since_ns in sorted(self._silent.items())}

    def inject(self, spec: FaultSpec | str) -> Fault:
        """See FaultCalls."""
        spec = FaultSpec.parse(spec) if isinstance(spec, str) else spec
        with self._lock:
            if spec.kind == "heal" and not spec.moment:
                for other in [fault for fault in self._pending if not fault.bound]:
                    self._undo(other)
            return self._play([spec])[0]

    def play(self, script: Script) -> list[Fault]:
        """Arms a script now: its times count from this call. Returns its faults, in its order."""
        with self._lock:
            return self._play(FaultScript.of(script).entries)

    def _play(self, specs: Sequence[FaultSpec]) -> list[Fault]:
        self._check(specs)
        self._look_for_points()
        found, now = [self._new(spec) for spec in specs], time.monotonic_ns()
        for fault in found:
            self._arm(fault, now)
        for fault in found:
            if fault.error:
                raise fault.error
        return found

    def prepare(self, script: Script) -> list[Fault]:
        """The faults of a script that waits for its run to begin (`begin`)."""
        script = FaultScript.of(script)
        with self._lock:
            self._check(script.entries)
            return [self._new(spec, bound=True) for spec in script]

    def undo(self, fault: Fault | int) -> None:
        """Takes back a fault, given as such or by its number; calls off one that is armed. Nothing if it is over.

        Raises UsageError for a number that is not there, and for a kill, which nothing takes back.
        """
        with self._lock:
            if not isinstance(fault, Fault):
                found = [each for each in (*self.log, *self._pending) if each.number == fault]
                if not found:
                    raise UsageError(f"there is no fault {fault}: expected the number of one in world.faults.log or .armed.")
                fault = found[0]
            self._undo(fault)

    def fired(self, fault: Fault) -> int:
        """See Fault.fired."""
        with self._lock:
            return fault.counted + (self._effects.measure(fault) if fault.state == "active" else 0)

    def shape(self, node: int, nic: int, bytes_per_s: int, up: bool) -> None:
        """Sets what a NIC is without faults; what faults make of it still holds. `node` is one of now."""
        with self._lock:
            self._look_for_points()
            self._effects.shape(node, nic, bytes_per_s, up)

    def status(self) -> dict[str, Any]:
        """For World.status: NICs that are not whole, and the last 50 events, as plain data."""
        nics = [{"node": node, "nic": nic, "state": word} for (node, nic), word in self.state().items()]
        return {"faults": nics, "events": self.events[-50:]}

    # -- making, arming, firing (from here on under the lock)

    def _check(self, specs: Sequence[FaultSpec]) -> None:
        world = self._world()
        if world is None or self._closed:
            raise UsageError("the world of these faults is closed; make a new World.")
        if any(spec.kind != "heal" for spec in specs):
            world._check_open()
        for spec in specs:
            self._effects.check(spec)

    def _new(self, spec: FaultSpec, *, bound: bool = False) -> Fault:
        fault = Fault(self, next(self._numbers), spec, bound=bound)
        fault.key = self._effects.key(spec)
        if spec.what.target == "rank":
            fault.member = fault.seen_by = self._effects.ids[spec["rank"]]
        elif spec.seen_by >= 0:
            fault.seen_by = self._effects.ids[spec.seen_by]
        self._pending.append(fault)
        return fault

    def _arm(self, fault: Fault, zero_ns: int) -> None:
        fault.state = "armed"
        moment = fault.spec.moment
        if moment == "":
            self._fire(fault)
        elif moment == "after":
            self._at(zero_ns + fault.spec.after_ns, lambda: self._fire(fault))
        elif moment == "at_bytes":
            fault.bytes_from = self._effects.carried_by(fault)
            begin = sum(self._carried.get(key, 0) for key in self._effects.waits_for(fault))
            fault.bytes_before = max(fault.bytes_from - begin, 0) if self._run else 0
        elif moment == "at_op" and self._feed is None and (world := self._world()):
            self._feed = world.feed
        elif moment == "at_point":
            try:
                self._effects.wait_for_point(fault)
            except CclError as error:
                self._pending.remove(fault)
                fault.error, fault.state = error, "failed"
        self._wake()

    def _fire(self, fault: Fault) -> None:
        if fault.state != "armed":
            return
        self._pending.remove(fault)
        # Taken before it acts: ranks see it at once, while this thread may wait for its turn, and what follows would seem to come first.
        fault.state, begun_ns = "active", time.monotonic_ns()
        try:
            if fault.kind == "heal":
                self._heal()
                fault.state = "ended"
            else:
                self._effects.start(fault)
        except (CclError, OSError) as error:
            fault.error = error if isinstance(error, CclError) else UsageError(f"{fault.spec.text()} could not be done: {error}.")
            fault.state = "failed"
            return
        fault.time_ns = fault.passed.get("time_ns") or begun_ns
        self.log.append(fault)
        del self.log[:-MAX_LOG]
        if fault.kind == "flap":
            self._next_edge(fault, fault.time_ns)
        if fault.spec.for_ns is not None:
            self._at(fault.time_ns + fault.spec.for_ns, lambda: self._undo(fault))
        self._wake()

    def _next_edge(self, fault: Fault, at_ns: int) -> None:
        """Of a flap: from one edge to the next; edges do not drift."""
        share = fault.spec["duty"] if fault.down_now else 1 - fault.spec["duty"]
        next_ns = at_ns + max(round(fault.spec["period"] * share), 1)

        def turn() -> None:
            if fault.state == "active":
                self._effects.turn(fault)
                self._next_edge(fault, next_ns)

        self._at(next_ns, turn)

    def _undo(self, fault: Fault) -> None:
        if fault.state == "armed" and self._effects.leave_point(fault):
            self._fire(fault)
        if fault.state in PENDING:
            self._pending.remove(fault)
            fault.state = "cancelled"
        elif fault.state == "active":
            begun_ns = time.monotonic_ns()
            self._effects.stop(fault)
            fault.state, fault.undone_ns = "undone", begun_ns

    def _heal(self) -> None:
        for fault in reversed(self._effects.active[:]):
            if fault.spec.what.undo:
                self._undo(fault)
                fault.by_heal = True

    # -- the World's hooks

    def begin(self, run: Run, at_ns: int) -> None:
        """The ranks are about to be told to begin at `at_ns`: what the run was given is armed from then; what is due at once is
        done before they begin."""
        with self._lock:
            if self._run is not run:  # an elastic world may begin a run again
                self._since_ns, self._told_ns = at_ns, time.monotonic_ns()
            self._run, self._begin_ns = run, at_ns
            self._carried = self._effects.carried()
            for fault in run.faults:
                if fault.state == "waiting":
                    fault.bound_ns = at_ns
                    self._arm(fault, at_ns)
            self._wake()

    def ended(self, run: Run, trace: Trace | None = None) -> None:
        """A run has ended, well or not: what it was given and did not happen is missed; then what waits for the end happens.

        Its trace keeps what was done and heard meanwhile, in meta["faults"].
        """
        with self._lock:
            was_running = self._run is run
            self._look_for_points()
            for fault in [each for each in self._pending if each.bound and each in run.faults and each.spec.moment != "at"]:
                if fault.state == "armed" and self._effects.leave_point(fault):
                    self._fire(fault)
                    continue
                self._pending.remove(fault)
                fault.state = "missed"
            for fault in [each for each in self._pending if each.spec.moment == "at"]:
                if fault in run.faults if fault.bound else was_running:
                    fault.state = "armed"
                    self._fire(fault)
            if was_running and trace is not None and (found := history(self.log, self._events, self._since_ns, self._told_ns)):
                trace.meta["faults"] = found
            if was_running:
                self._run = None
            self._drop_feed()

    def regrouped(self) -> None:
        """An elastic world has other members on other memory."""
        with self._lock:
            self._silent.clear()
            self._look_for_points()
            at_points = [fault for fault in self._pending if fault.spec.moment == "at_point" and fault.state == "armed"]
            for fault in [each for each in at_points if self._effects.leave_point(each)]:
                at_points.remove(fault)
                self._fire(fault)
            waiting = [fault for fault in self._pending if fault.spec.moment == "at_bytes" and fault.state == "armed"]
            passed = [self._effects.carried_by(fault) - fault.bytes_from for fault in waiting]
            self._effects.regroup()
            for fault, nbytes in zip(waiting, passed, strict=True):
                fault.bytes_from = self._effects.carried_by(fault) - nbytes
            for fault in at_points:
                self._arm(fault, 0)

    def heard(self, rank: int, events: list[dict[str, Any]]) -> None:
        """What a rank tells of its paths; on the hub's thread."""
        self._events.extend(events_of(rank, events, self._effects.topology.node_of.tolist(), self._begin_ns))

    def suspects(self, rank: int, seconds: float, doing: str) -> None:
        """Of a rank nothing was heard for `seconds`; 0: it answers again; below: what became of it is known (engine.suspicion)."""
        now = time.monotonic_ns()
        with self._lock:
            if seconds > 0:
                self._silent[rank] = now - round(seconds * 1e9)
            else:
                self._silent.pop(rank, None)
        said = f"has said nothing for {seconds:g} s{doing}" if seconds > 0 else "answers again"
        if seconds >= 0:
            self.heard(rank, [{"kind": "silent" if seconds > 0 else "answers", "at_ns": now, "text": f"rank {rank} {said}"}])

    def history(self, since_ns: int) -> list[dict[str, Any]]:
        """Events, and faults as they were done and undone, from `since_ns` on, in order of time: plain data for a trace. What was
        done before and still holds is told too."""
        with self._lock:
            return history(self.log, self._events, since_ns)

    # -- the thread

    def _at(self, due_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (due_ns, next(self._order), act))
        self._wake()

    def _wake(self) -> None:
        if self._thread is None and not self._closed and (self._timers or self._watching()):
            self._thread = threading.Thread(target=self._serve, name="ccl_lab-faults", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _watching(self) -> bool:
        looked = any(fault.state == "armed" and fault.spec.moment in ("at_bytes", "at_op", "at_point") for fault in self._pending)
        return looked or self._effects.counting

    def _serve(self) -> None:
        with self._lock:
            while not self._closed and (self._timers or self._watching()):
                left_s = self._turn()
                if left_s > 0:
                    self._changed.wait(left_s)
            self._thread = None

    def _turn(self) -> float:
        """Does what is due; returns for how long nothing is."""
        while self._timers and self._timers[0][0] <= time.monotonic_ns():
            heapq.heappop(self._timers)[2]()
        armed = [fault for fault in self._pending if fault.state == "armed"]
        for fault in [each for each in armed if each.spec.moment == "at_bytes"]:
            if self._effects.carried_by(fault) - fault.bytes_from >= fault.spec.at:
                self._fire(fault)
        self._look_for_ops([each for each in armed if each.spec.moment == "at_op"])
        self._look_for_points()
        self._effects.settle()
        left = [max(self._timers[0][0] - time.monotonic_ns(), 0) / 1e9] if self._timers else []
        if self._watching():
            left.append(BUSY_S if self._run else IDLE_S)
        return min(left, default=0.0)

    def _look_for_ops(self, wanted: list[Fault]) -> None:
        world = self._world() if wanted and self._feed is not None else None
        if world is None:
            return
        world._collector.drain()
        spans, _ = self._feed.poll()
        for fault in wanted:
            found = spans["op_id"] == fault.spec.at
            if fault.spec.seen_by >= 0:
                found &= spans["rank"] == fault.spec.seen_by
            if np.any(found):
                self._fire(fault)

    def _look_for_points(self) -> None:
        for fault in [each for each in self._pending if each.state == "armed" and each.triggers]:
            if fault_points.passed(fault):
                self._fire(fault)

    def _drop_feed(self) -> None:
        if self._feed is not None and not any(fault.spec.moment == "at_op" for fault in self._pending):
            if world := self._world():
                world.unfeed(self._feed)
            self._feed = None

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            self._timers.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread; what was stopped goes on, and what was counted is kept. Idempotent."""
        with self._lock:
            thread = self._thread
            if not self._closed:
                self._look_for_points()
                for fault in self._pending:
                    self._effects.leave_point(fault)
                self._effects.close()
                self._pending.clear()
                self._drop_feed()
                self._stop()
        if thread and thread is not threading.current_thread():
            thread.join(timeout=5)
