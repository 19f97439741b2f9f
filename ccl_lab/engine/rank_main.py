"""What a rank process of a World does: joins, then runs what the notebook process asks, one thing at a time.

Is: the loop of a rank and its answers. Is not: a place for decisions; schedules come proved from the World.
Invariants: the process ends when the notebook process does (end of file on its socket), whatever it is doing; every
request is answered, with an error if need be.

    world → rank   welcome{rank, topology, options, secret, addresses}
                   prepare{run, digest, …}(schedule)   go{run, at_ns, repeat}   reset{epoch}   close{}
    rank → world   ready{pid, segment_fd}  failed{error}
                   prepared{run, input, output}   ended{run, times, error}   was_reset{epoch}
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
from . import pattern, wire
from .hub import Spoke
from .member import Member, Options

log = logging.getLogger("ccl_lab.engine")


class _Job:
    """One prepared run: program, registered buffers and what fills them."""

    def __init__(self, message: dict[str, Any], layout: Layout, redop: str) -> None:
        self.run, self.layout, self.redop = int(message["run"]), layout, redop
        self.timeout_s, self.refill = float(message["timeout_s"]), bool(message["pattern"])
        self.program: Any = None
        self.input: np.ndarray | None = None
        self.output: np.ndarray | None = None


class RankProcess:
    """The state of a rank process between requests."""

    def __init__(self, sock: socket.socket) -> None:
        welcome, _ = wire.receive(sock)
        self.rank = int(welcome["rank"])
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
        self._member: Member | None = None
        self._spoke = Spoke(
            sock,
            on_abort=self._abort,
            on_lost=lambda: os._exit(0),
            handle=lambda message, blob: self._requests.put((message, blob)),
        )
        self._spoke.start()
        self._schedules: dict[str, Schedule] = {}
        self._buffers: dict[str, tuple[int, np.ndarray]] = {}
        self._jobs: dict[int, _Job] = {}
        self._member = Member(
            self.rank,
            Topology.from_dict(welcome["topology"]),
            self._spoke,
            bytes.fromhex(welcome["secret"]),
            Options(**welcome["options"]),
            welcome["addresses"],
        )

        card = {"pid": os.getpid(), "segment_fd": self._member.engine.segment_fd}
        self._spoke.send({"t": "ready", **card})

    def _abort(self, error: CclError) -> None:
        if self._member:
            self._member.abort(error)

    def serve(self) -> None:
        """Answers requests until `close`."""
        assert self._member
        handlers = {"prepare": self._prepare, "go": self._go, "reset": self._reset}
        while True:
            message, blob = self._requests.get()
            if message["t"] == "close":
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
            "error": None,
        }
        try:
            job = self._make_job(message, blob)
            self._jobs = {job.run: job}  # buffers are shared by runs, so only the newest one can be started
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
        job.program = self._member.program(schedule, layout, job.redop)
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
            pattern.fill(typed[offset : offset + count], self.rank)

    def _go(self, message: dict[str, Any], _: bytes) -> None:
        assert self._member
        job = self._jobs[int(message["run"])]
        times: list[list[int]] = []
        error: CclError | None = None
        _sleep_until(int(message["at_ns"]))
        for i in range(int(message["repeat"])):
            try:
                if i and job.refill and job.layout.schedule.in_place:
                    self._fill(job)
                work = self._member.start(
                    job.program, job.input, job.output, int(message["coll_id"]) + i, job.timeout_s
                )
                work.wait()
                times.append([work.begin_ns, work.end_ns])
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
