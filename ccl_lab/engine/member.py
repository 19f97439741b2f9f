"""One rank of a job: its native engine, its connections and its compiled programs.

Is: what a World's rank process and a Communicator share. Is not: control flow of a job (rank_main, communicator) and not
a planner. Invariants: connections are made lazily, by the lower rank of a pair; a program is compiled once per
(schedule, sizes, dtype, reduction); after `reset` no connection and no counter of the old epoch is left.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from .. import _core, config, units
from ..errors import CclError, ConnectError, OpTimeout, ShapeError, UsageError
from ..ir import Schedule
from ..ir.layout import Layout
from ..topo import Topology
from . import wire
from .acceptor import Acceptor
from .hub import Spoke
from .lower import links_needed, lower, plan_hash
from .status import code_of

MAX_PROGRAMS = 256


class Options(NamedTuple):
    """How the ranks of a job run; the same on every rank."""

    transport: str = "auto"
    trace_spans: int = 65536
    spin_us: int = 20
    timeout_s: float = 30.0
    start_timeout_s: float = 60.0
    arena_bytes: int = 1 << 36


def options_of(
    *,
    transport: str | None = None,
    timeout: units.Duration | None = None,
    trace_spans: int | None = None,
    start_timeout: units.Duration | None = None,
) -> Options:
    """Explicit arguments over the environment's; UsageError or ConfigError for what cannot be used."""
    config.check_environment()
    chosen = config.get("transport", transport)
    if chosen not in ("auto", "shm", "tcp"):
        raise UsageError(f"transport {chosen!r} is unknown: expected 'auto', 'shm' or 'tcp'.")
    return Options(
        transport=chosen,
        trace_spans=config.get("trace_spans", trace_spans),
        spin_us=config.get("spin_us"),
        timeout_s=config.get("timeout", timeout),
        start_timeout_s=config.get("start_timeout", start_timeout),
    )


class Member:
    """Rank `rank` of the job on `topology`; joins through `spoke` and returns when every rank has joined.

    `addresses`: where its NICs listen, one per NIC of the node. Raises ConnectError or OpTimeout if joining fails.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        spoke: Spoke,
        secret: bytes,
        options: Options,
        addresses: list[str],
    ) -> None:
        self.rank, self.topology, self.spoke, self.options = rank, topology, spoke, options
        self._secret, self._addresses, self.epoch = secret, addresses, 0
        self._accepted = threading.Condition()
        self._early: list[tuple[int, wire.Hello, socket.socket]] = []
        self._programs: OrderedDict[tuple[Any, ...], tuple[Any, list[tuple[int, int, int]]]] = OrderedDict()
        same_host = (
            topology.n_ranks if topology.emulated else int((topology.node_of == topology.node_of[rank]).sum())
        )
        self.engine = _core.Engine(
            rank,
            np.ascontiguousarray(topology.node_of, np.int32),
            n_nics=max(topology.nics_per_node, 1),
            arena_bytes=options.arena_bytes,
            trace_spans=options.trace_spans,
            spin_us=options.spin_us,
            transport=options.transport,
            ranks_on_host=same_host,
        )
        self._acceptor = (
            Acceptor([(address, 0) for address in addresses], secret, self._admit) if addresses else None
        )
        self.cards = self._join()

    def _join(self) -> list[dict[str, Any]]:
        card = {
            "pid": os.getpid(),
            "segment_fd": self.engine.segment_fd,
            "listen": self._acceptor.addresses if self._acceptor else [],
        }
        cards = self.spoke.gather("join", card, self.options.start_timeout_s)
        node_of = self.topology.node_of
        for peer in np.flatnonzero(node_of == node_of[self.rank]):
            if peer != self.rank:
                self.engine.attach_peer(int(peer), cards[peer]["pid"], cards[peer]["segment_fd"])
        self._shape_nics()
        self.spoke.gather("attached", True, self.options.start_timeout_s)
        return cards

    def _shape_nics(self) -> None:
        """On an emulated topology the node's lowest rank sets the rate of its NICs; real NICs are not shaped."""
        node = int(self.topology.node_of[self.rank])
        if not self.topology.emulated or self.rank != int(np.flatnonzero(self.topology.node_of == node)[0]):
            return
        first = node * self.topology.nics_per_node
        for nic in range(self.topology.nics_per_node):
            rate = int(self.topology.nic_bytes_per_s[first + nic])
            self.engine.set_nic(nic, rate, up=rate > 0)

    def _admit(self, nic: int, hello: wire.Hello, sock: socket.socket) -> None:
        with self._accepted:
            if hello.epoch != self.epoch:
                if hello.epoch != self.epoch + 1:
                    raise ConnectError(
                        f"rank {hello.rank} dials in epoch {hello.epoch}, this rank is in epoch {self.epoch}.",
                        rank=hello.rank,
                    )
                self._early.append((nic, hello, sock))  # the peer has reset already, we are about to
                return
            self._take(nic, hello, sock)
            self._accepted.notify_all()

    def _take(self, nic: int, hello: wire.Hello, sock: socket.socket) -> None:
        self.engine.add_connection(hello.rank, nic, hello.nic, 0, sock.detach())

    def program(self, schedule: Schedule, layout: Layout, redop: str) -> Any:
        """The compiled program of this rank, with every connection it needs."""
        key = (plan_hash(schedule, layout, redop), layout.dtype)
        found = self._programs.get(key)
        if found is None:
            if schedule.n_ranks != self.topology.n_ranks:
                raise ShapeError(
                    f"schedule for {schedule.n_ranks} ranks on {self.topology.n_ranks}: plan it for this topology."
                )
            arrays = lower(schedule, layout, self.rank, self.topology, redop)
            found = (
                self.engine.compile(arrays),
                links_needed(schedule, self.rank, self.topology, self.options.transport),
            )
            self._programs[key] = found
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        self._connect(found[1])
        return found[0]

    def _connect(self, links: list[tuple[int, int, int]]) -> None:
        missing = [link for link in links if not self.engine.connected(*link)]
        if not missing:
            return
        deadline = time.monotonic() + self.options.start_timeout_s
        for peer, nic, peer_nic in missing:
            if self.rank < peer:
                hello = wire.Hello(self.rank, nic, peer_nic, self.epoch, wire.DATA)
                address = tuple(self.cards[peer]["listen"][peer_nic])
                sock = wire.dial(
                    address, self._addresses[nic], hello, self._secret, max(deadline - time.monotonic(), 0.1)
                )  # type: ignore[arg-type]
                self.engine.add_connection(peer, nic, peer_nic, 0, sock.detach())
        with self._accepted:
            for link in missing:
                if self.rank > link[0] and not self._accepted.wait_for(
                    lambda link=link: self.engine.connected(*link), max(deadline - time.monotonic(), 0)
                ):
                    raise OpTimeout(
                        f"rank {self.rank}, NIC {link[1]}: rank {link[0]} did not connect from its NIC {link[2]} within "
                        f"{self.options.start_timeout_s:g} s. Did it call the same collective?",
                        rank=link[0],
                        nic=link[2],
                    )

    def start(
        self,
        program: Any,
        source: np.ndarray | None,
        target: np.ndarray | None,
        coll_id: int,
        timeout_s: float,
    ) -> Any:
        """Starts a compiled program on registered u8 views; returns the native Work."""
        return self.engine.start(program, source, target, coll_id=coll_id, timeout_s=timeout_s)

    def abort(self, error: CclError) -> None:
        """Stops what this rank runs with `error`, unless an earlier reason stopped it; safe from any thread."""
        self.engine.abort(code_of(error), str(error), error.rank)

    def empty(self, nbytes: int) -> tuple[int, np.ndarray]:
        """(arena offset, u8 view) of registered memory."""
        return self.engine.empty(nbytes)

    def reset(self, epoch: int) -> None:
        """After an abort: drops connections and counters, and goes on in `epoch`. All ranks must do it."""
        with self._accepted:
            self.engine.reset(epoch)
            self.epoch = epoch
            early, self._early = self._early, []
            for nic, hello, sock in early:
                self._take(nic, hello, sock)
        self.spoke.clear_abort()

    def close(self) -> None:
        """Ends the engine and closes every socket; idempotent."""
        if self._acceptor:
            self._acceptor.close()
        self._programs.clear()
        self.engine.close()
