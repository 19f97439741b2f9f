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
from typing import Any

import numpy as np

from .. import units, views
from ..errors import AbortedError, CclError, PeerLostError, ShapeError, UsageError, from_wire
from ..ir import Buffer, Collective, Schedule, collectives
from ..ir.layout import Layout
from ..planner import plan
from ..topo import Topology
from ..trace import Trace
from ..verifier import verify
from . import pattern
from .collector import Collector, Feed
from .hub import cancelled
from .member import options_of
from .ranks import Ranks, nic_addresses
from .results import trace_of
from .run import Run

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

        with World(Topology.cluster(nodes=2, gpus_per_node=4)) as world:
            trace = world.all_reduce("64MiB")
    """

    def __init__(
        self,
        topology: Topology | int,
        *,
        transport: str | None = None,
        timeout: units.Duration | None = None,
        trace_spans: int | None = None,
        start_timeout: units.Duration | None = None,
    ) -> None:
        if isinstance(topology, int):
            topology = Topology.cluster(nodes=1, gpus_per_node=topology, nics_per_node=1)
        self.topology, self.n_ranks = topology, topology.n_ranks
        self.options = options_of(
            transport=transport, timeout=timeout, trace_spans=trace_spans, start_timeout=start_timeout
        )
        _check_transport(topology, self.options.transport)
        self._numbers, self._coll_id, self._closed = itertools.count(1), 1, False
        self._lock = threading.Lock()
        self._queue: deque[tuple[Run, Inputs | None, int, float]] = deque()
        self._working = False
        self._current: Run | None = None
        self._sent: set[str] = set()
        # The ranks outlive no World: they must not hold it, so they ask through a box.
        self._doing = doing = [""]
        self._ranks = Ranks(topology, self.options, lambda: doing[0])
        self._collector = Collector(self._ranks.segments, topology.node_of)

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
    ) -> Run:
        """Starts `schedule` on all ranks and returns at once.

        nbytes or count (elements per block) or counts (all_to_allv): size, default the schedule's. inputs: one 1-D array per
        rank; default a pattern of small integers. repeat: times in a row. Raises ScheduleError if it cannot be proved,
        UsageError/ShapeError if arguments do not fit, PeerLostError if a rank is dead. Runs queue up in order.
        """
        self._check_open()
        if not isinstance(schedule, Schedule):
            raise UsageError(
                f"start takes a Schedule, found {type(schedule).__name__}; make one with ccl_lab.plan()."
            )
        if schedule.n_ranks != self.n_ranks:
            raise ShapeError(
                f"schedule for {schedule.n_ranks} ranks on a world of {self.n_ranks}: plan it for world.topology."
            )
        if repeat < 1:
            raise UsageError(f"repeat {repeat}: expected 1 or more.")
        if inputs is not None:
            dtype, count = self._sizes_of(schedule, inputs)
        layout = schedule.layout(count, nbytes=nbytes, dtype=dtype, counts=counts)
        redop = redop or schedule.redop
        collectives.check_names(schedule.collective, layout.dtype, redop)
        if inputs is not None:
            _check_inputs(layout, inputs, repeat)
        verify(schedule, topology=self.topology)
        run = Run(next(self._numbers), schedule, layout, redop, self._cancel, self._trace_so_far, repeat)
        seconds = self.options.timeout_s if timeout is None else units.parse_duration(timeout)
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
            raise self._ranks.dead

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
        self._doing[0] = ""
        run.finish(trace, error)

    def _prepare(self, run: Run, inputs: Inputs | None, timeout_s: float) -> None:
        """Every rank compiles, connects and takes memory; then inputs are where they belong."""
        digest, layout = run.schedule.digest, run.layout
        blob = b"" if digest in self._sent else run.schedule.encode()
        message = {
            "t": "prepare", "run": run.number, "digest": digest, "count": layout.count, "dtype": layout.dtype,
            "redop": run.redop, "counts": None if layout.counts is None else layout.counts.tolist(),
            "timeout_s": timeout_s, "pattern": inputs is None,
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
        for rank in range(self.n_ranks):
            source, target = self._map(run.layout, rank, replies[rank])
            if inputs is not None:
                source[:] = inputs[rank]
            run.inputs.append(_before(run, rank, source, inputs))
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
        self._ranks.ask({"t": "go", "run": run.number, "at_ns": at_ns, "repeat": repeat, "coll_id": coll_id})
        limit_s = timeout_s * repeat + 10.0
        replies = self._ranks.answers("ended", run.number, limit_s, f"ended run {run.number}", of_living=True)
        run.errors.update(
            {rank: from_wire(reply["error"]) for rank, reply in replies.items() if reply["error"]}
        )
        if self._ranks.dead:
            raise self._ranks.dead
        if run.errors:
            # What a rank saw itself says more than that it was stopped, and more than that another one stopped.
            raise min(
                run.errors.values(),
                key=lambda e: (isinstance(e, AbortedError), isinstance(e, PeerLostError), e.rank),
            )
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
            """Plans (options as of `plan`), proves and runs this collective; run options: repeat, inputs, timeout."""
            mine = {key: options.pop(key) for key in ("repeat", "inputs", "timeout") if key in options}
            return self.run(plan(name, self.topology, nbytes, **options), **mine)

        collective.__name__ = name
        return collective

    # -- watching and steering

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
        for segment in self._ranks.segments:
            segment.set_tracing(on)

    def set_nic(self, node: int, nic: int, gbits_per_s: float, *, up: bool = True) -> None:
        """Shapes a NIC of an emulated node, at once, also during a run. 0 with up=True: unshaped."""
        nodes, nics = self.topology.n_nodes, self.topology.nics_per_node
        if not (0 <= node < nodes and 0 <= nic < nics):
            raise UsageError(f"NIC {nic} of node {node}: expected NIC 0..{nics - 1} of node 0..{nodes - 1}.")
        self._check_open()
        leader = int(np.flatnonzero(self.topology.node_of == node)[0])
        self._ranks.segments[leader].set_nic(nic, int(gbits_per_s * 1e9 / 8), up)

    def status(self) -> dict[str, Any]:
        """What goes on, as plain data: run, state, progress (0 to 1, by ops that ended), seconds, ranks, error."""
        run, dead = self._current, self._ranks.dead
        out = {
            "ranks": self.n_ranks, "closed": self._closed, "error": str(dead) if dead else None, "state": "idle",
            "run": None, "pids": self._ranks.pids, "emulated": self.topology.emulated, "transport": self.options.transport,
        }  # fmt: skip
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


def _check_transport(topology: Topology, transport: str) -> None:
    if transport == "shm" and topology.n_nodes > 1:
        raise UsageError(
            f"transport 'shm' on {topology.n_nodes} nodes: shared memory reaches one node; use 'auto'."
        )
    if transport == "tcp" and topology.nics_per_node == 0:
        raise UsageError("transport 'tcp' on nodes without NICs: give nics_per_node=1 or more.")


def _check_inputs(layout: Layout, inputs: Inputs, repeat: int) -> None:
    if repeat > 1 and layout.schedule.in_place:
        raise UsageError(
            "repeat > 1 with inputs in place: the first run overwrites them; run again with fresh ones."
        )
    for rank, array in enumerate(inputs):
        want = layout.elements(Buffer.input, rank)
        fits = want == 0 or array.dtype == collectives.numpy_dtype(layout.dtype)
        if array.ndim != 1 or array.size != want or not fits:
            raise ShapeError(
                f"input of rank {rank}: expected {want} elements of {layout.dtype} in one dimension, "
                f"found {array.dtype} of shape {array.shape}.",
                rank=rank,
            )


def _before(run: Run, rank: int, view: np.ndarray, inputs: Inputs | None) -> np.ndarray:
    """The rank's input as it was before the run: in place, the view will be overwritten."""
    if not run.schedule.in_place:
        return view
    return inputs[rank] if inputs is not None else pattern.make(len(view), run.layout.dtype, rank)


__all__ = ["World", "nic_addresses"]
