"""A World: real rank processes on this machine, owned by this process, that run schedules.

Is: the composition of topology, proof, rank processes, live traces and results. Is not: a job of a launcher (see
`ccl_lab.init`). Invariants: nothing runs unproved; runs go one after the other, in the order they were started; no
process, memory or socket outlives the World or this process; the first error of a run is the one `wait` raises.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import units, views
from ..arguments import arrays, flag, instance, named, several, whole
from ..errors import (
    AbortedError,
    CclError,
    LinkDownError,
    PeerLostError,
    ShapeError,
    UnsupportedError,
    UsageError,
    from_wire,
)
from ..ir import Buffer, Collective, Schedule, collectives
from ..ir.layout import Layout
from ..planner import plan
from ..topo import Topology
from ..topo.rates import GBIT, Rate, parse_rate
from ..trace import Trace
from ..verifier import verify
from . import compute as computation
from . import pattern
from .collector import Collector, Feed
from .faults import Faults, Script
from .hosts import nic_addresses
from .hub import cancelled
from .lost import LostNics
from .lower import Mask
from .member import check_transport, options_of
from .netns import Namespaces
from .ranks import Ranks, _weakly
from .results import trace_of
from .run import Run
from .shapes import check_inputs, overwrites_input

log = logging.getLogger("ccl_lab.engine")
START_AHEAD_NS = 3_000_000
HERE = "the notebook process"
Inputs = list[np.ndarray]


class World:
    """Starts one process per rank of `topology` and connects them.

    topology: a Topology, or a number of ranks on one node. transport: "auto" (shared memory inside a node, TCP rails
    between nodes), "shm" or "tcp" (everything over rails). timeout: deadline of one collective. Collectives are methods
    too: `world.all_reduce("64MiB", algorithm="ring")` plans, proves, runs and returns the trace.
    Raises ConnectError or OpTimeout if the ranks cannot start. Use as a context manager, or close().

    elastic: a lost rank does not end the world: the others agree on a new epoch and finish the run as the members that are left
    (`run.members`, `world.members`, `world.epoch`, `world.events`); `world.grow()` starts new ones on the free places.
    What the input held for a lost rank is dropped; an avg divides by the members that took part; a run whose root is lost
    fails. groups: ranks that leave together, as a number of equal groups or lists of ranks (default: each rank alone).
    patience: silence after which a rank counts as lost and is killed (default 5 s).

    fabric: "emulated", NICs of loopback; "netns" (as root), nodes are network namespaces, NICs real interfaces to take down.

        with World(Topology.cluster(nodes=2, gpus_per_node=4)) as world:
            trace = world.all_reduce("64MiB")
    """

    def __new__(cls, *arguments: Any, elastic: bool = False, **options: Any) -> World:
        if elastic and cls is World:
            from .elastic_world import ElasticWorld

            return object.__new__(ElasticWorld)
        return object.__new__(cls)

    def __init__(
        self,
        topology: Topology | int,
        *,
        transport: str | None = None,
        timeout: units.Duration | None = None,
        trace_spans: int | None = None,
        start_timeout: units.Duration | None = None,
        elastic: bool = False,
        groups: int | Sequence[Sequence[int]] | None = None,
        patience: units.Duration | None = None,
        fabric: str = "emulated",
    ) -> None:
        if not isinstance(topology, Topology):
            topology = Topology.cluster(nodes=1, gpus_per_node=whole(topology, "topology", 1), nics_per_node=1)
        self.topology, self.n_ranks = topology, topology.n_ranks
        self.options = options_of(
            transport=transport, timeout=timeout, trace_spans=trace_spans, start_timeout=start_timeout
        )
        check_transport(topology, self.options.transport)
        self._numbers, self._coll_id, self._closed = itertools.count(1), 1, False
        self._lock = threading.Lock()
        self._queue: deque[tuple[Run, Inputs | None, int, float]] = deque()
        self._working = False
        self._current: Run | None = None
        self._sent: set[str] = set()
        # The ranks outlive no World: they must not hold it, so they ask through a box.
        self._doing = [""]
        self._netns = _namespaces(topology, fabric, elastic)
        self._ranks = self._start_ranks(elastic, groups, patience)
        self._collector = Collector(self._ranks.segments, topology.node_of)
        self._faults = Faults(self)
        self._lost = LostNics(topology.node_of)
        self._ranks.on_rails = _telling(self._lost, self._faults)
        self._ranks.on_silence = _weakly(self._suspects)

    def _suspects(self, rank: int, seconds: float) -> None:
        self._faults.suspects(rank, seconds, self._doing[0])

    def _start_ranks(self, elastic: bool, groups: Any, patience: Any) -> Ranks:
        if groups is not None or patience is not None:
            raise UsageError("groups and patience are of an elastic world: give elastic=True.")
        doing = self._doing
        return Ranks(self.topology, self.options, lambda: doing[0], self._netns)

    # -- runs

    def start(
        self,
        schedule: Schedule,
        nbytes: units.Size | None = None,
        *,
        count: int | None = None,
        counts: np.ndarray | None = None,
        dtype: str | None = None,
        redop: str | None = None,
        inputs: Inputs | None = None,
        repeat: int = 1,
        timeout: units.Duration | None = None,
        faults: Script | None = None,
        without: Mask = (),
        compute: computation.Device | None = None,
    ) -> Run:
        """Starts `schedule` on all ranks and returns at once.

        nbytes or count (elements per block) or counts (all_to_allv): size, default the schedule's. inputs: one 1-D array per
        rank; default a pattern of small integers. repeat: times in a row. faults: a FaultScript, its text, or a list of faults,
        armed when the run begins (the first, of a repeat). without: NICs (node, index) that the schedule was planned to leave
        out, as in `plan(…, topology.without(*nics))`; others that are lost are repaired around.
        compute: who does the schedule's compute ops: Emulated(durations) or Matmul(rows, inner, columns).
        Raises ScheduleError if it cannot be proved, UsageError/ShapeError if arguments do not fit, PeerLostError if a rank is
        dead. Runs queue up in order.
        """
        self._check_open()
        instance(schedule, "schedule", Schedule, "a Schedule, as ccl_lab.plan() makes one")
        if schedule.n_ranks != self.n_ranks:
            raise ShapeError(
                f"schedule for {schedule.n_ranks} ranks on a world of {self.n_ranks}: plan it for world.topology."
            )
        repeat = whole(repeat, "repeat", 1)
        computation.check_device(schedule, compute)
        if inputs is not None:
            inputs = arrays(inputs, "inputs")
            dtype, count = self._sizes_of(schedule, inputs)
        layout = schedule.layout(count, nbytes=nbytes, dtype=dtype, counts=counts)
        redop = schedule.redop if redop is None else redop
        collectives.check_names(schedule.collective, layout.dtype, redop)
        if inputs is not None:
            check_inputs(layout, inputs, repeat)
        mask = tuple(self.topology.nic_at(nic) for nic in several(without, "without", "NICs as (node, index)"))
        proof = verify(schedule, topology=self.topology)
        if proof.peer_reads and self.options.transport == "tcp":
            rank, peer = min(proof.peer_reads)
            raise UnsupportedError(
                f"{schedule.collective} by {schedule.algorithm}: rank {rank} reads the memory of rank {peer}, which transport "
                "'tcp' does not reach; use transport='auto' or 'shm', or plan with mapped=False.",
                rank=rank,
            )
        run = Run(next(self._numbers), schedule, layout, redop, self._cancel, self._trace_so_far, repeat)
        seconds = self.options.timeout_s if timeout is None else units.parse_duration(timeout)
        if faults is not None:
            run.faults = self._faults.prepare(faults)
            run.add_done_callback(self._faults.ended)
        run.compute = compute
        run.without = mask
        self._enqueue((run, inputs, repeat, seconds))
        return run

    def run(self, schedule: Schedule, nbytes: units.Size | None = None, **options: Any) -> Trace:
        """`start` and wait: the trace of `schedule`. Ctrl-C cancels it."""
        run = self.start(schedule, nbytes, **options)
        try:
            return run.wait()
        except KeyboardInterrupt:
            run.cancel("interrupted from the keyboard")
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this world is closed: its ranks are gone; make a new World.")
        if self._ranks.dead:
            raise self._ranks.dead.with_traceback(None)  # it is raised again and again

    def _sizes_of(self, schedule: Schedule, inputs: Inputs) -> tuple[str, int]:
        """dtype and elements per block that the inputs say."""
        if len(inputs) != self.n_ranks:
            raise ShapeError(f"{len(inputs)} inputs for {self.n_ranks} ranks: expected one per rank.")
        shape = collectives.blocks(schedule.collective, self.n_ranks, schedule.root, schedule.peer)
        owner = int(np.argmax(shape[:, 0]))
        array = np.asarray(inputs[owner])
        return collectives.dtype_name(array.dtype), array.size // max(int(shape[owner, 0]), 1)

    def _enqueue(self, work: tuple[Run, Inputs | None, int, float]) -> None:
        with self._lock:
            self._queue.append(work)
            if self._working:
                return
            self._working = True
        threading.Thread(target=self._work, name="ccl_lab-runs", daemon=True).start()

    def _work(self) -> None:
        """Executes what is queued, then ends: an idle World has no thread that would keep it alive."""
        while True:
            with self._lock:
                if not self._queue:
                    self._working = False
                    return
                work = self._queue.popleft()
            if not work[0].done():
                self._execute(*work)

    def _execute(self, run: Run, inputs: Inputs | None, repeat: int, timeout_s: float) -> None:
        trace, error = self._attempt(run, inputs, repeat, timeout_s)
        self._faults.ended(run, trace)
        run.finish(trace, error)

    def _attempt(
        self, run: Run, inputs: Inputs | None, repeat: int, timeout_s: float
    ) -> tuple[Trace, CclError | None]:
        self._current, self._doing[0] = run, f" during {run.schedule.collective} (run {run.number})"
        error: CclError | None = None
        times: dict[int, list[list[int]]] = {}
        first, self._coll_id = self._coll_id, self._coll_id + repeat
        self._collector.begin(first, repeat, run.schedule.ops.step)
        try:
            self._check_open()
            self._prepare(run, inputs, timeout_s)
            run.state, run.begin_s = "running", time.monotonic()
            times = self._go(run, first, repeat, timeout_s)
        except CclError as caught:
            error = caught
        except Exception as caught:  # a bug of ours must end the run, not hang it
            log.exception("run %d failed", run.number)
            error = CclError(f"run {run.number} failed inside ccl_lab: {caught!r}")
        spans, drops = self._collector.end()
        trace = trace_of(run, self.topology, spans, drops, times, self.options.transport)
        if error and not self._ranks.dead and not self._closed:
            self._ranks.reset()
            self._lost.forget(self.topology.node_of)
        self._doing[0] = ""
        return trace, error

    def _prepare(self, run: Run, inputs: Inputs | None, timeout_s: float) -> None:
        """Every rank compiles, connects and takes memory; then inputs are where they belong."""
        digest, layout = run.schedule.digest, run.layout
        blob = b"" if digest in self._sent else run.schedule.encode()
        message = {
            "t": "prepare", "run": run.number, "digest": digest, "count": layout.count, "dtype": layout.dtype,
            "redop": run.redop, "counts": None if layout.counts is None else layout.counts.tolist(),
            "timeout_s": timeout_s, "pattern": inputs is None, "without": run.without,
            "compute": run.compute.to_dict() if run.compute else None,
        }  # fmt: skip
        self._ranks.ask(message, blob)
        self._sent.add(digest)
        limit_s = self.options.start_timeout_s + timeout_s
        replies = self._ranks.answers("prepared", run.number, limit_s, f"prepared run {run.number}")
        run.errors.update(
            {rank: from_wire(reply["error"]) for rank, reply in replies.items() if reply["error"]}
        )
        if run.errors:
            raise run.errors[min(run.errors)]
        run.device = replies[0]["device"]
        for rank in range(self.n_ranks):
            source, target = self._map(run.layout, rank, replies[rank])
            if inputs is not None:
                source[:] = inputs[rank]
            run.inputs.append(_before(run, rank, source, inputs, self._ranks.ids[rank]))
            run.outputs.append(target)

    def _map(self, layout: Layout, rank: int, place: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """INPUT and OUTPUT of a rank as views of its memory; in place, one is a part of the other."""
        dtype = collectives.numpy_dtype(layout.dtype)
        views_: dict[int, np.ndarray] = {}
        for buf, name in ((Buffer.input, "input"), (Buffer.output, "output")):
            if place[name] is not None:
                views_[buf] = self._ranks.segments[rank].view(*place[name]).view(dtype)
        for buf in (Buffer.input, Buffer.output):
            if buf not in views_:
                n = layout.elements(buf, rank)
                base, offset = layout.resolve(buf, rank, 0) if n else (1 - buf, 0)
                views_[buf] = views_[base][offset : offset + n]
        return views_[Buffer.input], views_[Buffer.output]

    def _go(self, run: Run, coll_id: int, repeat: int, timeout_s: float) -> dict[int, list[list[int]]]:
        at_ns = time.monotonic_ns() + START_AHEAD_NS + 20_000 * self.n_ranks
        self._faults.begin(run, at_ns)
        self._ranks.ask({"t": "go", "run": run.number, "at_ns": at_ns, "repeat": repeat, "coll_id": coll_id})
        limit_s = timeout_s * repeat + 10.0
        replies = self._ranks.answers("ended", run.number, limit_s, f"ended run {run.number}", of_living=True)
        run.errors.update(
            {rank: from_wire(reply["error"]) for rank, reply in replies.items() if reply["error"]}
        )
        if self._ranks.dead:
            raise self._ranks.dead
        if run.errors:
            first = min(run.errors, key=lambda rank: _hearsay(rank, run.errors[rank]))
            raise self._ranks.judged(run.errors[first], run.errors)
        return {rank: reply["times"] for rank, reply in replies.items()}

    def _cancel(self, run: Run, reason: str) -> None:
        if run is self._current:
            self._ranks.abort(cancelled(reason, HERE))
        else:
            run.finish(self._trace_so_far(run), cancelled(reason, HERE))

    def cancel(self, reason: str = "world.cancel()") -> None:
        """Cancels the run in progress, if any."""
        if self._current:
            self._current.cancel(reason)

    def _trace_so_far(self, run: Run) -> Trace:
        spans, drops = self._collector.so_far() if run is self._current else (np.zeros(0), 0)
        return trace_of(run, self.topology, spans, drops, {}, self.options.transport)

    # -- collectives by name

    def __getattr__(self, name: str) -> Any:
        if name not in Collective.__members__:
            raise AttributeError(f"World has no attribute {name!r}")

        def collective(nbytes: units.Size = "1MiB", **options: Any) -> Trace:
            """Plans (options as of `plan`), proves and runs this collective; run options: repeat, inputs, timeout, faults."""
            mine = {key: options.pop(key) for key in ("repeat", "inputs", "timeout", "faults") if key in options}
            options.setdefault("mapped", self.options.transport != "tcp")
            without = self.lost_nics
            topology = self.topology.without(*without) if without else self.topology
            return self.run(plan(name, topology, nbytes, **options), without=without, **mine)

        collective.__name__ = name
        return collective

    # -- watching and steering

    @property
    def lost_nics(self) -> tuple[tuple[int, int], ...]:
        """(node, NIC) that ranks found to be lost, by probes; a collective by name is planned without them. A node that lost all
        its NICs keeps them here: the error names it."""
        lost = self._lost.nics
        left = np.ones((self.topology.n_nodes, max(self.topology.nics_per_node, 1)), bool)
        left[tuple(np.array(lost, int).reshape(-1, 2).T)] = False
        return tuple(nic for nic in lost if left[nic[0]].any())

    @property
    def faults(self) -> Faults:
        """Injects faults, undoes them, and has what the ranks said of them: `world.faults.nic_down(node=1, nic=2, after="2ms")`."""
        return self._faults

    @property
    def feed(self) -> Feed:
        """A new feed of spans, for a live view."""
        return self._collector.feed()

    def unfeed(self, feed: Feed) -> None:
        """Stops a feed."""
        self._collector.unfeed(feed)

    def set_tracing(self, on: bool) -> None:
        """Switches the recording of spans on all ranks on or off, at once; results and times are not affected."""
        self._check_open()
        on = flag(on, "on")
        for segment in self._ranks.segments:
            segment.set_tracing(on)

    def set_nic(self, node: int, nic: int, gbits_per_s: Rate, *, up: bool = True) -> None:
        """Shapes a NIC of an emulated node, at once, also during a run; Gb/s or text ("500Mb/s"). 0 with up=True: unshaped."""
        node, nic = self.topology.nic_at((node, nic))
        bytes_per_s = parse_rate(gbits_per_s, GBIT, "gbits_per_s")
        self._check_open()
        self._faults.shape(node, nic, bytes_per_s, flag(up, "up"))

    def nic_bytes(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Bytes that every NIC has (sent, received) since the start, by (node, NIC); headers and what was sent again included."""
        self._check_open()
        leaders = [int(np.flatnonzero(self.topology.node_of == node)[0]) for node in range(self.topology.n_nodes)]
        counters = {node: self._ranks.segments[rank].nic_counters() for node, rank in enumerate(leaders)}
        return {
            (node, nic): (int(sent), int(received))
            for node, table in counters.items()
            for nic, (sent, received) in enumerate(table)
        }

    def status(self) -> dict[str, Any]:
        """What goes on, as plain data: run, state, progress (0 to 1, by ops that ended), seconds, ranks, error,
        faults (NICs that are not whole) and the last events."""
        run, dead = self._current, self._ranks.dead
        out = {
            "ranks": self.n_ranks, "closed": self._closed, "error": str(dead) if dead else None, "state": "idle",
            "run": None, "pids": self._ranks.pids, "emulated": self.topology.emulated, "transport": self.options.transport,
        } | self._faults.status()  # fmt: skip
        if run is None:
            return out
        n_ops = len(run.schedule) * run.repeat
        going = run.state == "running"
        return out | {
            "run": run.number, "state": run.state, "collective": run.schedule.collective,
            "algorithm": run.schedule.algorithm, "nbytes": run.layout.message_nbytes(),
            "progress": min(self._collector.ops_done / n_ops, 1.0) if going and n_ops else float(run.done()),
            "elapsed_s": time.monotonic() - run.begin_s if going else None,
            "error": out["error"] or (str(run.error) if run.error else None),
        }  # fmt: skip

    def panel(self, **options: Any) -> Any:
        """Topology, timeline, NIC heatmap and controls, live."""
        return views.draw("panel", self, **options)

    def close(self) -> None:
        """Ends the ranks and frees everything; idempotent. A run in progress ends in AbortedError."""
        if self._closed:
            return
        self._closed = True
        self._faults.close()
        run = self._current
        if run and not run.done():
            self._ranks.abort(cancelled("the world was closed", HERE))
            run.join(2.0)
        self._ranks.close()
        self._collector.close()
        self._current = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        dead = self._ranks.dead
        state = "closed" if self._closed else str(dead) if dead else self.status()["state"]
        where = f"{self.n_ranks} ranks on {self.topology.n_nodes} nodes"
        return f"<World of {where}, transport {self.options.transport}: {state}>"


def _namespaces(topology: Topology, fabric: str, elastic: bool) -> Namespaces | None:
    if named(fabric, "fabric", ("emulated", "netns")) == "netns" and elastic:
        raise UnsupportedError("fabric='netns' of an elastic world: members that join have no namespace yet; use fabric='emulated'.")
    return Namespaces(topology) if fabric == "netns" else None


def _telling(*listeners: LostNics | Faults) -> Callable[[int, list[dict[str, Any]]], None]:
    """Hands what a rank tells of its paths to all; the ranks that call it do not hold the World."""

    def heard(rank: int, events: list[dict[str, Any]]) -> None:
        for each in listeners:
            each.heard(rank, events)

    return heard


def _hearsay(rank: int, error: CclError) -> tuple[bool, bool, bool, int]:
    """Sorts what ranks say of a failed run: the least is what a rank saw itself, of a NIC of its own before the other end of one;
    it says more than that the rank was stopped, and more than that another one stopped."""
    of_peer = isinstance(error, LinkDownError) and error.rank != rank
    return isinstance(error, AbortedError), isinstance(error, PeerLostError), of_peer, error.rank


def _before(run: Run, rank: int, view: np.ndarray, inputs: Inputs | None, who: int) -> np.ndarray:
    """The rank's input as it was before the run, also where the view will be overwritten. `who`: whose pattern it has."""
    if not overwrites_input(run.schedule):
        return view
    return inputs[rank] if inputs is not None else pattern.make(len(view), run.layout.dtype, who)


__all__ = ["World", "nic_addresses"]
