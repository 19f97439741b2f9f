"""One rank of a job: its native engine, its connections and its compiled programs.

Is: what a World's rank process and a Communicator share. Is not: control flow of a job (rank_main, communicator) and not
a planner. Invariants: connections are made lazily, by the lower rank of a pair; a program is compiled once per
(schedule, sizes, dtype, reduction); after `reset` no connection and no counter of the old epoch is left.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _core, config, units
from ..arguments import named
from ..errors import CclError, ConfigError, ConnectError, OpTimeout, ShapeError, UsageError
from ..ir import Schedule
from ..ir.layout import Layout
from ..topo import Topology
from ..trace import Trace
from . import clock, verbs, wire
from .acceptor import Acceptor
from .hub import Spoke
from .lower import Mask, fusible, links_needed, lower, plan_hash
from .repair import Repair, with_backups
from .status import code_of

log = logging.getLogger("ccl_lab.engine")
MAX_PROGRAMS = 256
MAX_CONNECTIONS = 64
DIAL_AGAIN_S = 2.0
DIAL_S = 5.0  # for one of several ways to a peer
LOOK_S = 0.02
DEVICE_SIGNALS = 16  # signal channels of schedules on GPUs, a stream each


class Options(NamedTuple):
    """How the ranks of a job run; the same on every rank."""

    transport: str = "auto"
    trace_spans: int = 65536
    spin_us: int = 20
    timeout_s: float = 30.0
    start_timeout_s: float = 60.0
    arena_bytes: int = 1 << 36
    connections: int = 1
    register_buffers: bool = True
    failover: bool = True
    rdma: verbs.Settings = verbs.settings_of("")


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
    named(chosen, "transport", ("auto", "shm", "tcp", "verbs"))
    return Options(
        transport=chosen,
        trace_spans=config.get("trace_spans", trace_spans),
        spin_us=config.get("spin_us"),
        timeout_s=config.get("timeout", timeout),
        start_timeout_s=config.get("start_timeout", start_timeout),
        connections=_connections(config.get("connections")),
        register_buffers=_registers(config.get("register")),
        failover=_fails_over(config.get("failover")),
        rdma=verbs.settings_of(config.get("rdma")),
    )


def check_transport(topology: Topology, transport: str) -> None:
    """UsageError where `transport` cannot join the ranks of `topology`."""
    if transport == "shm" and topology.n_nodes > 1:
        raise UsageError(
            f"transport 'shm' on {topology.n_nodes} nodes: shared memory reaches one node; use 'auto'."
        )
    if transport == "tcp" and topology.nics_per_node == 0:
        raise UsageError("transport 'tcp' on nodes without NICs: give nics_per_node=1 or more.")


def _registers(wanted: str) -> bool:
    if wanted not in ("explicit", "auto"):
        raise ConfigError(f"CCL_LAB_REGISTER is {wanted!r}: expected 'explicit' or 'auto'.")
    return wanted == "auto"


def _fails_over(wanted: str) -> bool:
    if wanted not in ("on", "off"):
        raise ConfigError(f"CCL_LAB_FAILOVER is {wanted!r}: expected 'on' or 'off'.")
    return wanted == "on"


def _connections(wanted: int) -> int:
    if not 1 <= wanted <= MAX_CONNECTIONS:
        raise ConfigError(f"CCL_LAB_CONNECTIONS is {wanted}: expected 1 to {MAX_CONNECTIONS} for each pair of NICs.")
    return wanted


class Member:
    """Rank `rank` of the job on `topology`; joins through `spoke` and returns when every rank has joined.

    `addresses`: where its NICs listen, one per NIC of the node. Raises ConnectError or OpTimeout if joining fails, UsageError for a
    transport that cannot join these ranks.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        spoke: Spoke,
        secret: bytes,
        options: Options,
        addresses: list[str],
        generation: int | None = None,
    ) -> None:
        check_transport(topology, options.transport)
        self.rank, self.topology, self.spoke, self.options = rank, topology, spoke, options
        self._secret, self._addresses, self.epoch = secret, addresses, 0
        # Of an elastic job: its epoch. A member is of one generation; who dials from another one is refused.
        self._generation = generation
        self._accepted = threading.Condition()
        self._stopped: CclError | None = None
        # What to raise where a connection cannot be made; the job tells the other ranks, which may wait for this one.
        self.on_unreached: Callable[[CclError], CclError] = lambda error: error
        self._dialling: dict[int, socket.socket] = {}  # by thread
        self._early: list[tuple[int, wire.Hello, socket.socket]] = []
        self._clock = clock.HubClock(spoke)
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
            register_buffers=options.register_buffers,
            transport="auto" if options.transport == "verbs" else options.transport,
            ranks_on_host=same_host,
        )
        self.device_page = _core.DevicePage(rank, topology.n_ranks, DEVICE_SIGNALS) if topology.n_nodes == 1 else None
        self._repair: Repair | None = None
        self._acceptor = (
            Acceptor([(address, 0) for address in addresses], secret, self._admit) if addresses else None
        )
        try:
            spoke.tell_aborts(self.abort)
            self.cards = self._join()
        except BaseException:
            self.close()
            raise

    def trace(self, meta: dict[str, Any]) -> Trace:
        """The spans since the last call, on the hub's clock; `meta`: what else is to be said."""
        records, offset = self.engine.drain_spans(), self._clock.offset()
        said = {
            "source": "measured",
            "n_ranks": self.topology.n_ranks,
            "topology": self.topology.to_dict(),
            "labels": {"rank": self.rank},
            **clock.note(offset, self.rank),
            **meta,
        }
        node = int(self.topology.node_of[self.rank])
        return Trace.from_records(clock.moved(records, offset), self.rank, node, said)

    def _join(self) -> list[dict[str, Any]]:
        card = {
            "pid": os.getpid(),
            "segment_fd": self.engine.segment_fd,
            "device_fd": self.device_page.fd if self.device_page else -1,
            "listen": self._acceptor.addresses if self._acceptor else [],
            "rdma": self._rdma_card(),
        }
        card["one_core"] = verbs.one_core(card["rdma"])
        card["gpu_direct"] = verbs.direct_card(card["rdma"], self.options.rdma)
        turn, seconds = self._generation, self.options.start_timeout_s
        suffix = "" if turn is None else f"-{turn}"
        cards = self.spoke.gather(f"join{suffix}", card, seconds, turn=turn)
        node_of = self.topology.node_of
        for peer in np.flatnonzero(node_of == node_of[self.rank]):
            if peer != self.rank:
                self.engine.attach_peer(int(peer), cards[peer]["pid"], cards[peer]["segment_fd"])
        self._shape_nics()
        self.between_nodes = self._choose_rails([card["rdma"] for card in cards])
        if self.between_nodes.nics is not None and any(card["one_core"] for card in cards):
            self.between_nodes = self.between_nodes._replace(overlaps=False)
        self.not_direct = verbs.decide_direct(self.between_nodes, [card["gpu_direct"] for card in cards], node_of.tolist())
        self._repair = self._open_repair() if self._addresses and self.options.failover else None
        messages = self._repair.card if self._repair else []
        messages = self.spoke.gather(f"attached{suffix}", messages, seconds, turn=turn)
        if self._repair:
            self._repair.start(messages)
        return cards

    def _rdma_card(self) -> list[Any] | str:
        if self.topology.n_nodes == 1 and self.options.transport != "verbs":
            return "all ranks are on one node"
        if self.topology.emulated and self.options.transport != "verbs":
            return "the NICs of this topology are emulated"
        return verbs.card(self.options.transport, self._addresses, self.options.rdma)

    def _choose_rails(self, cards: list[list[Any] | str]) -> verbs.Decision:
        """Verbs where every NIC of the job has them, else sockets."""
        chosen = verbs.decide(self.options.transport, cards, self.rank)
        if chosen.nics is not None:
            how = self.options.rdma
            class_of = [verbs.REACHES.index(reach.name) for reach in how.reaches(self.topology, self.rank)]
            self.engine.use_rdma(
                chosen.nics, classes=list(how.spreads), class_of=class_of,
                all_to_all=how.spread(verbs.ALL_TO_ALL), registration=how.register, timeout=how.timeout, retries=how.retries,
            )
        return chosen

    @property
    def _n_connections(self) -> int:
        """For each pair of NICs: verbs need one, beside their queue pairs."""
        return self.options.connections if self.between_nodes.nics is None else 1

    def _open_repair(self) -> Repair:
        """Lost paths are repaired: messages go past the NICs, over the address of the control socket."""
        key = hashlib.sha256(b"messages" + self._secret).digest()[:16]
        return Repair(self.engine, key, self.spoke.address, self._addresses, self.topology.node_of.tolist(), self._dial_again, self._tell)

    def _tell(self, events: list[dict[str, Any]]) -> None:
        self.spoke.send({"t": "rails", "rank": self.rank, "events": events})

    def _shape_nics(self) -> None:
        """On an emulated topology the node's lowest rank sets the rate of its NICs; real NICs are not shaped."""
        node = int(self.topology.node_of[self.rank])
        if not self.topology.emulated or self.rank != int(np.flatnonzero(self.topology.node_of == node)[0]):
            return
        first = node * self.topology.nics_per_node
        for nic in range(self.topology.nics_per_node):
            rate = int(self.topology.nic_bytes_per_s[first + nic])
            self.engine.set_nic(nic, rate, up=rate > 0)

    @property
    def _here(self) -> int:
        """What a greeting says of when it is: the generation, and the resets within it."""
        return ((self._generation or 0) << 16) + self.epoch

    def _admit(self, nic: int, hello: wire.Hello, sock: socket.socket) -> None:
        with self._accepted:
            if hello.epoch != self._here:
                if hello.epoch != self._here + 1:
                    raise ConnectError(
                        f"rank {hello.rank} dials in epoch {hello.epoch}, this rank is in epoch {self._here}.",
                        rank=hello.rank,
                    )
                self._early.append((nic, hello, sock))  # the peer has reset already, we are about to
                return
            self._take(nic, hello, sock)
            self._accepted.notify_all()

    def _take(self, nic: int, hello: wire.Hello, sock: socket.socket) -> None:
        try:
            self.engine.add_connection(hello.rank, nic, hello.nic, hello.index, sock.detach(), hello.generation)
        except ConnectError as error:
            if not self._repair:
                raise
            log.info("a connection came too late, or too early: %s", error)  # its path failed meanwhile; both ends try again

    def program(
        self, schedule: Schedule, layout: Layout, redop: str, fused: bool | None = None, without: Mask = (), keeps: bool = True
    ) -> Any:
        """The compiled program of this rank, with every connection it needs. fused: the node layer runs it as one
        collective; the same on all ranks; None: where it may. without: lost NICs, for which it was planned. keeps: see `lower`."""
        compiled, links = self._compiled(schedule, layout, redop, fused, without, keeps)
        self._connect(links)
        return compiled

    def started_program(self, schedule: Schedule, layout: Layout, redop: str, fused: bool) -> Any:
        """`program` of an op that was started: its peers may have ended theirs, and have left."""
        return self._compiled(schedule, layout, redop, fused)[0]

    def _compiled(
        self, schedule: Schedule, layout: Layout, redop: str, fused: bool | None, without: Mask = (), keeps: bool = True
    ) -> tuple[Any, list[tuple[int, int, int]]]:
        """A program, and the (peer, NIC here, NIC there) that it goes over."""
        topology = self.topology.without(*without) if without else self.topology
        if fused is None:
            fused = fusible(schedule, self.topology)
        fused = fused and self.engine.node_complete
        key = (plan_hash(schedule, layout, redop, without), layout.dtype, fused, keeps)
        found = self._programs.get(key)
        if found is None:
            if schedule.n_ranks != self.topology.n_ranks:
                raise ShapeError(
                    f"schedule for {schedule.n_ranks} ranks on {self.topology.n_ranks}: plan it for this topology."
                )
            arrays = lower(schedule, layout, self.rank, topology, redop, fused, without, keeps)
            found = (
                self.engine.compile(arrays),
                [] if fused else self._links(schedule, topology),
            )
            self._programs[key] = found
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return found

    def connect(self, links: list[tuple[int, int, int]]) -> None:
        """Every (peer, NIC here, NIC there) that is missing, with what could stand in for it; the peers do the same."""
        self._connect(with_backups(links, self.topology) if self._repair else links)

    def _links(self, schedule: Schedule, topology: Topology) -> list[tuple[int, int, int]]:
        links = links_needed(schedule, self.rank, topology, self.options.transport)
        return with_backups(links, topology) if self._repair else links

    def _connect(self, links: list[tuple[int, int, int]]) -> None:
        missing = [link for link in links if not self.engine.connected(*link)]
        if not missing:
            return
        deadline = time.monotonic() + self.options.start_timeout_s
        try:
            for link in missing:
                if self.rank < link[0]:
                    self._reach(link, deadline)
            for link in missing:
                if self.rank > link[0]:
                    self._await(link, deadline)
        except CclError as error:
            first = self.on_unreached(error)
            if first is error:
                raise
            raise first from error

    def _reach(self, link: tuple[int, int, int], deadline: float) -> None:
        """Dials a peer over a pair of NICs. With repair, one that cannot be reached is left to it."""
        if not self._repair:
            return self._dial(*link, deadline)
        try:
            self._dial(*link, min(deadline, time.monotonic() + DIAL_S))
        except ConnectError as error:
            if self._stopped:
                raise
            self.engine.path_missing(*link, str(error))

    def _await(self, link: tuple[int, int, int], deadline: float) -> None:
        """Until the peer has dialled over a pair of NICs, or has said that it could not."""
        while not self.engine.connected(*link):
            with self._accepted:
                if self._stopped:
                    raise self._stopped
                self._accepted.wait(LOOK_S)
            if time.monotonic() > deadline:
                raise OpTimeout(
                    f"rank {self.rank}, NIC {link[1]}: rank {link[0]} did not connect from its NIC {link[2]} within "
                    f"{self.options.start_timeout_s:g} s. Did it call the same collective?",
                    rank=link[0],
                    nic=link[2],
                )

    def _dial_again(self, peer: int, nic: int, peer_nic: int, generation: int) -> None:
        self._dial(peer, nic, peer_nic, time.monotonic() + DIAL_AGAIN_S, generation)

    def _dial(self, peer: int, nic: int, peer_nic: int, deadline: float, generation: int = 0) -> None:
        """All connections of a pair of NICs. The peer may use the first before the others are there."""
        address = tuple(self.cards[peer]["listen"][peer_nic])
        for index in range(self._n_connections):
            hello = wire.Hello(self.rank, nic, peer_nic, self._here, wire.DATA, index, generation)
            left_s = max(deadline - time.monotonic(), 0.1)
            try:
                sock = wire.dial(address, self._addresses[nic], hello, self._secret, left_s, self._hold)  # type: ignore[arg-type]
            except ConnectError as error:
                raise self._stopped or error from None
            finally:
                self._dialling.pop(threading.get_ident(), None)
            self.engine.add_connection(peer, nic, peer_nic, index, sock.detach(), generation)

    def _hold(self, sock: socket.socket) -> None:
        """A socket whose greeting may wait for a peer that does not answer: an abort ends the wait."""
        with self._accepted:
            self._dialling[threading.get_ident()] = sock
            if self._stopped:
                sock.shutdown(socket.SHUT_RDWR)

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
        self.engine.abort(code_of(error), str(error), error.rank, error.nic)
        with self._accepted:
            self._stopped = self._stopped or error
            for sock in list(self._dialling.values()):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._accepted.notify_all()

    def empty(self, nbytes: int) -> tuple[int, np.ndarray]:
        """(arena offset, u8 view) of registered memory."""
        return self.engine.empty(nbytes)

    def reset(self, epoch: int) -> None:
        """After an abort: drops connections and counters, and goes on in `epoch`. All ranks must do it."""
        with self._accepted:
            self.engine.reset(epoch)
            if self.device_page:
                self.device_page.clear()
            self.epoch, self._stopped = epoch, None
            early, self._early = self._early, []
            for nic, hello, sock in early:
                self._take(nic, hello, sock)
        self.spoke.clear_abort()

    def close(self) -> None:
        """Ends the engine and closes every socket; idempotent."""
        if self._acceptor:
            self._acceptor.close()
        if self._repair:
            self._repair.close()
        self._programs.clear()
        self.engine.close()
