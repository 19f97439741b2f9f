"""What a rank process of a World does: joins, then runs what the notebook process asks, one thing at a time.

Is: the loop of a rank and its answers. Is not: a place for decisions; schedules come proved from the World.
Invariants: the process ends when the notebook process does (end of file on its socket), whatever it is doing; every
request is answered, with an error if need be.

    world → rank   welcome{rank, topology, options, secret, addresses}
                   prepare{run, digest, …}(schedule)   go{run, at_ns, repeat}   reset{epoch}   close{}
    rank → world   ready{pid, segment_fd}  failed{error}
                   prepared{run, input, output}   ended{run, times, error}   was_reset{epoch}

In an elastic world a process is a member, whose number stays; its rank, engine and connections are of one epoch:

    world → rank   welcome{member, options}   regroup{epoch, rank, topology, secret, addresses}   ping{}
    rank → world   regrouped{epoch, pid, segment_fd, error}   pong{}
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import time
from typing import Any

import numpy as np

from ..errors import AbortedError, CclError, TransportError
from ..ir import Buffer, Schedule, collectives
from ..ir.layout import Layout
from ..topo import Topology
from . import compute as computation
from . import pattern, wire
from .hub import Spoke
from .member import Member, Options
from .shapes import overwrites_input

log = logging.getLogger("ccl_lab.engine")


class _Job:
    """One prepared run: program, registered buffers and what fills them."""

    def __init__(self, message: dict[str, Any], layout: Layout, redop: str) -> None:
        self.run, self.layout, self.redop = int(message["run"]), layout, redop
        self.timeout_s, self.refill = float(message["timeout_s"]), bool(message["pattern"])
        device = message.get("compute")
        self.compute = computation.from_dict(device) if device else None
        self.device: str | None = None
        self.native: Any = None  # how the engine is told to compute
        self.function: computation.Function | None = None
        self.program: Any = None
        self.input: np.ndarray | None = None
        self.output: np.ndarray | None = None


    def use_device(self, rank: int) -> None:
        """Makes what computes ready."""
        if isinstance(self.compute, computation.Matmul):
            self.device, self.function = self.compute.function()
        elif self.compute is not None:
            self.device = self.compute.device
        if self.compute is not None:
            self.native = computation.native_computation(self.layout.schedule, self.compute, rank, carries=True)

    def go(self, member: Member, coll_id: int) -> tuple[int, int]:
        """Runs it once; (begin, end) in ns."""
        if self.function is None:
            return member.engine.run(
                self.program, self.input, self.output, coll_id=coll_id, timeout_s=self.timeout_s, compute=self.native
            )
        work = member.engine.start(
            self.program, self.input, self.output, coll_id=coll_id, timeout_s=self.timeout_s, compute=self.native
        )
        while (op_id := work.next_partition()) >= 0:
            self.function(int(self.layout.schedule.ops.arg[op_id]), None, ())
        return work.begin_ns, work.end_ns


class RankProcess:
    """The state of a rank process between requests."""

    def __init__(self, sock: socket.socket) -> None:
        welcome, _ = wire.receive(sock)
        self.rank = -1
        self._who = int(welcome.get("member", welcome.get("rank")))  # whose pattern this process fills in
        self._options = Options(**welcome["options"])
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
        self._member: Member | None = None
        self._spoke = Spoke(
            sock,
            on_lost=lambda: os._exit(0),
            handle=self._receive,
        )
        self._spoke.start()
        self._schedules: dict[str, Schedule] = {}
        self._buffers: dict[str, tuple[int, np.ndarray]] = {}
        self._jobs: dict[int, _Job] = {}
        if "member" not in welcome:
            self._join(welcome)
            self._spoke.send({"t": "ready", **self._card()})

    def _join(self, message: dict[str, Any]) -> None:
        self.rank = int(message["rank"])
        self._spoke.here = message.get("here", "")
        self._member = Member(
            self.rank,
            Topology.from_dict(message["topology"]),
            self._spoke,
            bytes.fromhex(message["secret"]),
            self._options,
            message["addresses"],
            message.get("epoch"),
        )

    def _card(self) -> dict[str, int]:
        assert self._member
        return {"pid": os.getpid(), "segment_fd": self._member.engine.segment_fd}

    def _receive(self, message: dict[str, Any], blob: bytes) -> None:
        """On the spoke's thread: what must not wait for the request in progress."""
        if message["t"] == "regroup":
            self._spoke.clear_abort(message["epoch"])
            member = self._member
            if member:  # who waits for the lost one need not
                member.abort(AbortedError(f"epoch {message['epoch']} begins."))
        self._requests.put((message, blob))

    def serve(self) -> None:
        """Answers requests until `close`."""
        handlers = {"prepare": self._prepare, "go": self._go, "reset": self._reset, "regroup": self._regroup}
        while True:
            message, blob = self._requests.get()
            if message["t"] == "close":
                if self._member:
                    self._member.close()
                self._spoke.close()
                return
            handlers[message["t"]](message, blob)

    def _prepare(self, message: dict[str, Any], blob: bytes) -> None:
        answer: dict[str, Any] = {
            "t": "prepared",
            "run": message["run"],
            "input": None,
            "output": None,
            "device": None,
            "error": None,
        }
        try:
            job = self._make_job(message, blob)
            self._jobs = {job.run: job}  # buffers are shared by runs, so only the newest one can be started
            answer["device"] = job.device
            for name in ("input", "output"):
                view = getattr(job, name)
                if view is not None:
                    answer[name] = [self._buffers[name][0], int(view.nbytes)]
        except CclError as error:
            answer["error"] = error.to_wire()
        self._spoke.send(answer)

    def _make_job(self, message: dict[str, Any], blob: bytes) -> _Job:
        assert self._member
        if blob:
            self._schedules[message["digest"]] = Schedule.decode(blob)
        schedule = self._schedules[message["digest"]]
        counts = np.array(message["counts"], np.int64) if message["counts"] is not None else None
        layout = Layout(schedule, int(message["count"]), message["dtype"], counts)
        job = _Job(message, layout, message["redop"])
        shared = (
            collectives.alias(schedule.collective, self.rank, schedule.root) if schedule.in_place else None
        )
        for buf, name in ((Buffer.input, "input"), (Buffer.output, "output")):
            if not (shared and shared[0] == buf):
                setattr(job, name, self._buffer(name, layout.nbytes(buf, self.rank)))
        if job.refill:
            self._fill(job)
        if job.output is not None and job.input is not None:
            job.output[:] = 0
        without = [(int(node), int(nic)) for node, nic in message.get("without", ())]
        job.program = self._member.program(schedule, layout, job.redop, without=without)
        job.use_device(self.rank)
        return job

    def _buffer(self, name: str, nbytes: int) -> np.ndarray:
        """Registered memory, kept from run to run while it is large enough and not four times too large."""
        assert self._member
        held = self._buffers.get(name)
        if held is None or not nbytes <= held[1].nbytes <= max(4 * nbytes, 1 << 20):
            self._buffers.pop(name, None)
            held = self._buffers[name] = self._member.empty(max(nbytes, 64))
        return held[1][:nbytes]

    def _fill(self, job: _Job) -> None:
        """The pattern into this rank's INPUT, wherever it lies."""
        count = job.layout.elements(Buffer.input, self.rank)
        base, offset = job.layout.resolve(Buffer.input, self.rank, 0) if count else (Buffer.input, 0)
        view = job.input if base == Buffer.input else job.output
        if count and view is not None:
            typed = view.view(collectives.numpy_dtype(job.layout.dtype))
            pattern.fill(typed[offset : offset + count], self._who)

    def _go(self, message: dict[str, Any], _: bytes) -> None:
        assert self._member
        job = self._jobs[int(message["run"])]
        times: list[list[int]] = []
        error: CclError | None = None
        _sleep_until(int(message["at_ns"]))
        for i in range(int(message["repeat"])):
            try:
                if i and job.refill and overwrites_input(job.layout.schedule):
                    self._fill(job)
                times.append(list(job.go(self._member, int(message["coll_id"]) + i)))
            except CclError as caught:
                error = caught
                if not isinstance(caught, AbortedError):
                    self._spoke.abort(caught)
                break
        self._spoke.send(
            {"t": "ended", "run": job.run, "times": times, "error": error.to_wire() if error else None}
        )

    def _reset(self, message: dict[str, Any], _: bytes) -> None:
        assert self._member
        self._member.reset(int(message["epoch"]))
        self._spoke.send({"t": "was_reset", "epoch": message["epoch"]})


    def _regroup(self, message: dict[str, Any], _: bytes) -> None:
        """Leaves the engine of the old epoch, whose memory lives as long as somebody looks at it, and joins the new one."""
        old, self._member = self._member, None
        self._jobs.clear()
        self._buffers.clear()
        if old:
            old.close()
        answer: dict[str, Any] = {"t": "regrouped", "epoch": message["epoch"], "error": None}
        try:
            self._join(message)
            answer |= self._card()
        except CclError as error:
            answer["error"] = error.to_wire()
        self._spoke.send(answer)


def _sleep_until(at_ns: int) -> None:
    """Starts together with the others: sleeps, then spins the last 50 µs."""
    while (left := at_ns - time.monotonic_ns()) > 0:
        if left > 200_000:
            time.sleep((left - 100_000) / 1e9)


def main(sock: socket.socket) -> None:
    """Runs a rank on `sock` until the World closes it; never returns by an exception."""
    # Ctrl-C belongs to the notebook process, which then closes us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        RankProcess(sock).serve()
    except TransportError as error:
        log.error("rank could not join: %s", error)
        try:
            wire.send(sock, {"t": "failed", "error": error.to_wire()})
        except OSError:
            pass
