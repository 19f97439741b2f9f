"""A World: real rank processes on this machine, owned by this process, that run schedules.

Is: the composition of topology, proof, rank processes, live traces and results. Is not: a job of a launcher (see
`ccl_lab.init`). Invariants: nothing runs unproved; no process, memory or socket outlives the World or this process;
everything that waits can end; the first error is the one all ranks report.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core, config, units, views
from ..errors import AbortedError, CclError, OpTimeout, PeerLostError, ShapeError, UsageError, from_wire
from ..ir import Buffer, Schedule, collectives
from ..ir.layout import Layout
from ..planner import plan
from ..topo import Topology
from ..trace import Trace
from ..verifier import verify
from . import pattern, wire
from .collector import Collector, Feed
from .forkserver import ForkServer
from .hub import Hub, cancelled
from .member import Options
from .results import trace_of
from .run import Run
from .status import code_of

log = logging.getLogger("ccl_lab.engine")
START_AHEAD_NS = 3_000_000


def nic_addresses(topology: Topology, node: int) -> list[str]:
    """Loopback addresses that stand for the NICs of an emulated node: 127.<64 + node>.<nic>.1 and on."""
    if node >= 128 * 190 or topology.nics_per_node > 250:
        raise UsageError(f"emulated node {node} with {topology.nics_per_node} NICs: at most 24,320 nodes of 250 NICs.")
    return [f"127.{64 + node // 190}.{1 + node % 190}.{1 + nic}" for nic in range(topology.nics_per_node)]


class World:
    """Starts one process per rank of `topology` and connects them.

    topology: a Topology, or a number of ranks on one node. transport: "auto" (shared memory inside a node, TCP rails
    between nodes), "shm" or "tcp" (everything over rails). timeout: deadline of one collective.
    Raises ConnectError or OpTimeout if the ranks cannot start. Use as a context manager, or close().

        with World(Topology.cluster(nodes=2, gpus_per_node=4)) as world:
            trace = world.all_reduce("64MiB")
    """

    def __init__(self, topology: Topology | int, *, transport: str | None = None, timeout: units.Duration | None = None,
                 trace_spans: int | None = None, start_timeout: units.Duration | None = None) -> None:  # fmt: skip
        config.check_environment()
        self.topology = Topology.cluster(nodes=1, gpus_per_node=topology, nics_per_node=1) if isinstance(topology, int) else topology
        self.options = self._options(transport, timeout, trace_spans, start_timeout)
        self.n_ranks = self.topology.n_ranks
        self._number, self._coll_id = itertools.count(1), 1
        self._epoch, self._closed, self._closing = 0, False, False
        self._dead: PeerLostError | None = None
        self._replies: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._current: Run | None = None
        self._sent: set[str] = set()
        self._finalizer: Any = None
        self.segments: list[_core.Segment] = []
        self._start_ranks()

    def _options(self, transport: str | None, timeout: Any, trace_spans: int | None, start_timeout: Any) -> Options:
        transport = config.get("transport", transport)
        if transport not in ("auto", "shm", "tcp"):
            raise UsageError(f"transport {transport!r} is unknown: expected 'auto', 'shm' or 'tcp'.")
        if transport == "shm" and self.topology.n_nodes > 1:
            raise UsageError(f"transport 'shm' on {self.topology.n_nodes} nodes: shared memory reaches one node; use 'auto'.")
        if transport == "tcp" and self.topology.nics_per_node == 0:
            raise UsageError("transport 'tcp' on nodes without NICs: give nics_per_node=1 or more.")
        return Options(transport=transport, trace_spans=config.get("trace_spans", trace_spans), spin_us=config.get("spin_us"),
                       timeout_s=config.get("timeout", timeout), start_timeout_s=config.get("start_timeout", start_timeout))  # fmt: skip

    def _start_ranks(self) -> None:
        # Weak: a world that nobody holds any more must end although its threads run.
        self._server = ForkServer(_weakly(self._rank_exited))
        self._hub = Hub(self.n_ranks, handle=_weakly(self._handle), on_lost=_weakly(self._rank_lost))
        self._finalizer = weakref.finalize(self, _shut, self._hub, self._server)
        secret, data = wire.new_secret().hex(), self.topology.to_dict()
        try:
            for rank in range(self.n_ranks):
                ours, theirs = socket.socketpair()
                self._server.start(rank, theirs)
                wire.send(ours, {"t": "welcome", "rank": rank, "topology": data, "options": self.options._asdict(), "secret": secret,
                                 "addresses": nic_addresses(self.topology, int(self.topology.node_of[rank]))})  # fmt: skip
                self._hub.add(rank, ours)
            self._open_segments()
        except BaseException:
            self.close()
            raise
        self._collector = Collector(self.segments, self.topology.node_of)

    def _open_segments(self) -> None:
        ready = self._collect("ready", 0, self.options.start_timeout_s, "started and connected")
        self.segments = [_core.Segment.open(ready[rank]["pid"], ready[rank]["segment_fd"]) for rank in range(self.n_ranks)]

    # -- what ranks say (hub thread)

    def _handle(self, rank: int, message: dict[str, Any], _: bytes) -> None:
        kind = message["t"]
        if kind == "failed":
            error = from_wire(message["error"])
            self._dead = self._dead or PeerLostError(f"rank {rank} could not start: {error}", rank=rank)
        number = int(message.get("run", message.get("epoch", 0)))
        with self._changed:
            self._replies.setdefault((kind, number), {})[rank] = message
            self._changed.notify_all()

    def _rank_lost(self, rank: int) -> CclError:
        """The rank's socket closed. How it ended is known a moment later, from the fork server."""
        self._server.wait_exited({rank}, 1.0)
        error = self._dead or PeerLostError(f"rank {rank} left: its control socket closed.", rank=rank)
        with self._changed:
            self._dead = error
            self._changed.notify_all()
        self._abort_segments(error)
        return error

    def _rank_exited(self, rank: int, pid: int, status: int) -> None:
        if self._closing:
            return
        how = f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else f"ended with status {os.WEXITSTATUS(status)}"
        run = self._current
        doing = f" during {run.schedule.collective} (run {run.number})" if run and not run.done() else ""
        with self._changed:
            self._dead = self._dead or PeerLostError(f"rank {rank} (pid {pid}, node {self.topology.node_of[rank]}) was {how}{doing}. "
                                                     "Close this world and start a new one.", rank=rank)  # fmt: skip
            self._changed.notify_all()
        self._abort_segments(self._dead)

    def _abort_segments(self, error: CclError) -> None:
        for segment in self.segments:
            segment.abort(code_of(error), str(error), error.rank)

    def _collect(self, kind: str, number: int, timeout_s: float, what: str, among: set[int] | None = None) -> dict[int, dict[str, Any]]:
        """Replies of all ranks (that are alive, where `among` is given); OpTimeout names who did not answer."""
        want = set(range(self.n_ranks)) if among is None else among
        def here() -> set[int]:
            return set(self._replies.get((kind, number), {})) | (self._hub.lost if among is not None else set())
        with self._changed:
            self._changed.wait_for(lambda: want <= here() or (among is None and self._dead is not None), timeout_s)
            if among is None and self._dead is not None and not want <= here():
                raise self._dead
            if not want <= here():
                missing = sorted(want - here())
                raise OpTimeout(f"ranks {missing[:8]}{'…' if len(missing) > 8 else ''} of {self.n_ranks} have not {what} within {timeout_s:g} s.",
                                rank=missing[0])  # fmt: skip
            return self._replies.pop((kind, number), {})

    # -- runs

    def start(self, schedule: Schedule, nbytes: units.Size | None = None, *, count: int | None = None, counts: np.ndarray | None = None,
              dtype: str | None = None, redop: str | None = None, inputs: list[np.ndarray] | None = None, repeat: int = 1,
              timeout: units.Duration | None = None) -> Run:  # fmt: skip
        """Starts `schedule` on all ranks and returns at once.

        nbytes or count (elements per block) or counts (all_to_allv): size, default the schedule's. inputs: one 1-D array per
        rank; default a pattern of small integers. repeat: times in a row. Raises ScheduleError if it cannot be proved,
        UsageError/ShapeError if arguments do not fit, PeerLostError if a rank is dead. Runs queue up in order.
        """
        self._check_open()
        self._check_fits(schedule)
        if repeat < 1:
            raise UsageError(f"repeat {repeat}: expected 1 or more.")
        redop = redop or schedule.redop
        if inputs is not None:
            dtype, count, counts = self._sizes_of(schedule, inputs, dtype, counts)
        layout = schedule.layout(count, nbytes=nbytes, dtype=dtype, counts=counts)
        collectives.check_names(schedule.collective, layout.dtype, redop)
        if inputs is not None:
            self._check_inputs(layout, inputs, repeat)
        verify(schedule)
        run = Run(next(self._number), schedule, layout, redop, self._cancel, self._trace_so_far)
        seconds = self.options.timeout_s if timeout is None else units.parse_duration(timeout)
        threading.Thread(target=self._execute, args=(run, inputs, repeat, seconds), name=f"ccl_lab-run-{run.number}", daemon=True).start()
        return run

    def run(self, schedule: Schedule, nbytes: units.Size | None = None, **options: Any) -> Trace:
        """`start` and wait: the trace of `schedule`."""
        run = self.start(schedule, nbytes, **options)
        try:
            return run.wait()
        except KeyboardInterrupt:
            run.cancel("interrupted from the keyboard")
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this world is closed: its ranks are gone; make a new World.")
        if self._dead:
            raise self._dead

    def _check_fits(self, schedule: Schedule) -> None:
        if not isinstance(schedule, Schedule):
            raise UsageError(f"start takes a Schedule, found {type(schedule).__name__}; make one with ccl_lab.plan().")
        if schedule.n_ranks != self.n_ranks:
            raise ShapeError(f"schedule for {schedule.n_ranks} ranks on a world of {self.n_ranks}: plan it for world.topology.")

    def _sizes_of(self, schedule: Schedule, inputs: list[np.ndarray], dtype: str | None, counts: Any) -> tuple[str, int, Any]:
        if len(inputs) != self.n_ranks:
            raise ShapeError(f"{len(inputs)} inputs for {self.n_ranks} ranks: expected one per rank.")
        arrays = [np.asarray(x) for x in inputs]
        shape = collectives.blocks(schedule.collective, self.n_ranks, schedule.root, schedule.peer)
        owner = int(np.argmax(shape[:, 0]))
        return collectives.dtype_name(arrays[owner].dtype), arrays[owner].size // max(int(shape[owner, 0]), 1), counts

    def _check_inputs(self, layout: Layout, inputs: list[np.ndarray], repeat: int) -> None:
        if repeat > 1 and layout.schedule.in_place:
            raise UsageError("repeat > 1 with inputs in place: the first run overwrites them; run again with fresh inputs.")
        for rank, array in enumerate(inputs):
            want = layout.elements(Buffer.input, rank)
            if array.ndim != 1 or array.size != want or (want and array.dtype != collectives.numpy_dtype(layout.dtype)):
                raise ShapeError(f"input of rank {rank}: expected {want} elements of {layout.dtype} in one dimension, found "
                                 f"{array.dtype} of shape {array.shape}.", rank=rank)  # fmt: skip

    def _execute(self, run: Run, inputs: list[np.ndarray] | None, repeat: int, timeout_s: float) -> None:
        with self._turn:
            if run.done():
                return
            self._current = run
            error: CclError | None = None
            times: dict[int, list[list[int]]] = {}
            coll_id = self._coll_id
            self._coll_id += repeat
            self._collector.begin(coll_id, repeat, run.schedule.ops.step)
            try:
                self._check_open()
                self._prepare(run, inputs, timeout_s)
                run.state = "running"
                times = self._go(run, coll_id, repeat, timeout_s)
            except CclError as caught:
                error = caught
            except Exception as caught:  # a bug of ours must end the run, not hang it
                log.exception("run %d failed", run.number)
                error = CclError(f"run {run.number} failed inside ccl_lab: {caught!r}")
            spans, drops = self._collector.end()
            trace = trace_of(run, self.topology, spans, drops, times, self.options.transport)
            if error and not self._dead and not self._closed:
                self._reset()
            run.finish(trace, error)

    def _prepare(self, run: Run, inputs: list[np.ndarray] | None, timeout_s: float) -> None:
        digest, layout = run.schedule.digest, run.layout
        blob = b"" if digest in self._sent else run.schedule.encode()
        self._sent.add(digest)
        message = {"t": "prepare", "run": run.number, "digest": digest, "count": layout.count, "dtype": layout.dtype, "redop": run.redop,
                   "counts": None if layout.counts is None else layout.counts.tolist(), "timeout_s": timeout_s,
                   "pattern": inputs is None}  # fmt: skip
        self._hub.broadcast(message, blob)
        replies = self._collect("prepared", run.number, self.options.start_timeout_s + timeout_s, f"prepared run {run.number}")
        failed = {rank: from_wire(reply["error"]) for rank, reply in replies.items() if reply["error"]}
        if failed:
            run.errors.update(failed)
            raise failed[min(failed)]
        self._map_buffers(run, replies, inputs)

    def _map_buffers(self, run: Run, replies: dict[int, dict[str, Any]], inputs: list[np.ndarray] | None) -> None:
        layout, dtype = run.layout, collectives.numpy_dtype(run.layout.dtype)
        ins, outs = [], []
        for rank in range(self.n_ranks):
            views_ = {}
            for buf, name in ((Buffer.input, "input"), (Buffer.output, "output")):
                place = replies[rank][name]
                if place is not None:
                    views_[buf] = self.segments[rank].view(place[0], place[1]).view(dtype)
            for buf in (Buffer.input, Buffer.output):
                if buf not in views_:
                    base, offset = layout.resolve(buf, rank, 0) if layout.elements(buf, rank) else (1 - buf, 0)
                    views_[buf] = views_[base][offset : offset + layout.elements(buf, rank)]
            if inputs is not None:
                views_[Buffer.input][:] = inputs[rank]
            ins.append(_before(run, rank, views_[Buffer.input], inputs))
            outs.append(views_[Buffer.output])
        run.inputs, run.outputs = ins, outs

    def _go(self, run: Run, coll_id: int, repeat: int, timeout_s: float) -> dict[int, list[list[int]]]:
        at_ns = time.monotonic_ns() + START_AHEAD_NS + 20_000 * self.n_ranks
        self._hub.broadcast({"t": "go", "run": run.number, "at_ns": at_ns, "repeat": repeat, "coll_id": coll_id})
        alive = set(range(self.n_ranks))
        replies = self._collect("ended", run.number, timeout_s * repeat + 10.0, f"ended run {run.number}", among=alive)
        run.errors.update({rank: from_wire(reply["error"]) for rank, reply in replies.items() if reply["error"]})
        if self._dead:
            raise self._dead
        if run.errors:
            first = [e for e in run.errors.values() if not isinstance(e, AbortedError)]
            raise min(first or run.errors.values(), key=lambda e: (isinstance(e, PeerLostError), e.rank))
        return {rank: reply["times"] for rank, reply in replies.items()}

    def _reset(self) -> None:
        """After a failed run: every rank drops connections and counters of the old epoch."""
        self._epoch += 1
        self._hub.broadcast({"t": "reset", "epoch": self._epoch})
        try:
            self._collect("was_reset", self._epoch, self.options.start_timeout_s, "reset after a failed run")
            self._hub.new_epoch()
        except CclError as error:
            self._dead = self._dead or PeerLostError(f"the world could not recover from a failed run: {error}", rank=error.rank)

    def _cancel(self, run: Run, reason: str) -> None:
        if run is self._current:
            self._abort_segments(cancelled(reason, "the notebook process"))
        else:
            run.finish(self._trace_so_far(run), cancelled(reason, "the notebook process"))

    def cancel(self, reason: str = "world.cancel()") -> None:
        """Cancels the run in progress, if any."""
        if self._current:
            self._current.cancel(reason)

    def _trace_so_far(self, run: Run) -> Trace:
        spans, drops = self._collector.so_far() if run is self._current else (np.zeros(0, object), 0)
        return trace_of(run, self.topology, spans, drops, {}, self.options.transport)

    # -- collectives by name

    def __getattr__(self, name: str) -> Any:
        from ..ir.ops import Collective

        if name not in Collective.__members__:
            raise AttributeError(f"World has no attribute {name!r}")

        def collective(nbytes: units.Size = "1MiB", *, algorithm: str = "auto", dtype: str = "float32", redop: str = "sum",
                       in_place: bool = False, root: int = 0, peer: int = 1, counts: np.ndarray | None = None, **options: Any) -> Trace:  # fmt: skip
            """Plans, proves and runs this collective on all ranks; returns the trace."""
            schedule = plan(name, self.topology, nbytes, algorithm=algorithm, dtype=dtype, redop=redop, in_place=in_place, root=root,
                            peer=peer, counts=counts)  # fmt: skip
            return self.run(schedule, **options)

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

    def set_nic(self, node: int, nic: int, gbits_per_s: float, *, up: bool = True) -> None:
        """Shapes a NIC of an emulated node, at once, also during a run. 0 with up=True: unshaped."""
        if not (0 <= node < self.topology.n_nodes and 0 <= nic < self.topology.nics_per_node):
            raise UsageError(f"NIC {nic} of node {node}: expected NIC 0..{self.topology.nics_per_node - 1} of node 0..{self.topology.n_nodes - 1}.")
        leader = int(np.flatnonzero(self.topology.node_of == node)[0])
        self.segments[leader].set_nic(nic, int(gbits_per_s * 1e9 / 8), up)

    def status(self) -> dict[str, Any]:
        """What goes on: run, state, ranks."""
        run = self._current
        return {
            "ranks": self.n_ranks, "closed": self._closed, "error": str(self._dead) if self._dead else None,
            "run": run.number if run else None, "state": run.state if run else "idle",
            "collective": run.schedule.collective if run else None, "pids": dict(self._server.pids),
            "emulated": self.topology.emulated, "transport": self.options.transport,
        }  # fmt: skip

    def panel(self, **options: Any) -> Any:
        """Topology, timeline, NIC heatmap and controls, live."""
        return views.draw("panel", self, **options)

    def close(self) -> None:
        """Ends the ranks and frees everything; idempotent. A run in progress ends in AbortedError."""
        if self._closed:
            return
        self._closed = self._closing = True
        if self._current and not self._current.done():
            self._abort_segments(cancelled("the world was closed", "the notebook process"))
            self._current._ended.wait(2.0)
        self._hub.broadcast({"t": "close"})
        self._server.wait_exited(set(self._server.pids), 2.0)
        if hasattr(self, "_collector"):
            self._collector.close()
        if self._finalizer:
            self._finalizer()
        self._current = None
        self.segments.clear()  # views that a run handed out keep their own mapping

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else str(self._dead) if self._dead else self.status()["state"]
        return f"<World of {self.n_ranks} ranks on {self.topology.n_nodes} nodes, transport {self.options.transport}: {state}>"


def _before(run: Run, rank: int, view: np.ndarray, inputs: list[np.ndarray] | None) -> np.ndarray:
    """The rank's input as it was before the run: in place, the view will be overwritten."""
    if not run.schedule.in_place:
        return view
    return inputs[rank] if inputs is not None else pattern.make(len(view), run.layout.dtype, rank)


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a bound method while its object lives; afterwards returns an error nobody will read."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = weak()
        return alive(*arguments) if alive is not None else PeerLostError("the world is gone.")

    return call


def _shut(hub: Hub, server: ForkServer) -> None:
    """What must happen even if nobody called close."""
    hub.close()
    server.close()


__all__ = ["World", "nic_addresses"]
