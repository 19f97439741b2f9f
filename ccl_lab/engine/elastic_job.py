"""One process of an elastic job of a launcher: its engine and connections of this epoch, and the move to the next.

Is: what stands behind `ccl_lab.init(elastic=True)`. Is not: the agreement (council) or what becomes of a collective that was cut
off (elastic). Invariants: an epoch has an engine, memory, control star and secret of its own: what a process that was left
out still does lands in memory nobody reads; the move runs on a thread of its own, so a member that computes meanwhile takes
part; there is one move at a time.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

from .. import config
from ..errors import (
    AbortedError,
    CclError,
    ConnectError,
    OpTimeout,
    PeerLostError,
    TransportError,
    UsageError,
)
from . import hosts, wire
from .acceptor import Acceptor
from .council import JOINER, Council, Elsewhere, LeftOut, Outcome
from .hub import Hub, Spoke
from .join import Meeting
from .member import Member, Options
from .membership import Event

log = logging.getLogger("ccl_lab.engine")
LOST = (TransportError, OpTimeout, AbortedError)  # what the loss of a member may look like to another one


class Epoch:
    """What this process holds of one epoch. For its Communicator it is the job."""

    def __init__(self, job: ElasticJob, outcome: Outcome, me: int) -> None:
        self.view, self.me, self.ended = outcome.view, me, False
        self.hub: Hub | None = None
        sock = outcome.sock or self._lead(outcome)
        self.spoke = Spoke(sock, on_lost=lambda: job.leave(self.view.epoch))
        self.member: Member | None = None  # type: ignore[assignment]
        self.spoke.clear_abort(self.view.epoch)
        self.spoke.start()
        try:
            cards: list[dict[str, Any]] = self.spoke.gather(
                f"hosts-{self.view.epoch}", job.card, job.options.start_timeout_s, turn=self.view.epoch
            )
            topology, addresses = hosts.topology_of(cards, job.nics)
            rank = self.view.members.index(me)
            self.member: Member = Member(
                rank, topology, self.spoke, self.view.secret, job.options, addresses, self.view.epoch
            )
        except BaseException:
            self.end()
            raise

    def _lead(self, outcome: Outcome) -> socket.socket:
        """This process is the hub: of the others' sockets, and of its own."""
        self.hub = Hub(len(self.view.members))
        self.hub.members = self.view.members
        self.hub.open = True
        ours, theirs = socket.socketpair()
        for member, sock in (outcome.sockets | {self.me: ours}).items():
            self.hub.add(member, sock)
        return theirs

    def new_epoch(self) -> None:
        """Nothing: an epoch ends with its first abort."""

    def end(self, *, leave: bool = False) -> None:
        """Closes what it holds; idempotent."""
        self.ended = True
        if self.member:
            self.member.close()
        self.spoke.close(leave=leave)
        if self.hub:
            if leave:
                self.hub.wait_left(1.0)
            self.hub.close()


class ElasticJob:
    """This process's part in an elastic job.

    joins: as a new member of a job that runs; then it waits until the members call `grow`. Raises as Job does.
    """

    def __init__(self, options: Options, *, joins: bool, patience_s: float, group_size: int) -> None:
        launch = config.launch()
        if launch is None:
            raise UsageError(
                "ccl_lab.init() found no launcher: start the ranks with torchrun, mpirun or srun, or set CCL_LAB_RANK, "
                "CCL_LAB_WORLD_SIZE and CCL_LAB_RENDEZVOUS. In a notebook use ccl_lab.World(topology, elastic=True)."
            )
        self.options = options._replace(register_buffers=False)
        self.patience_s, self._launch, self._group_size = patience_s, launch, group_size
        self.using = threading.Lock()  # held by who runs on this epoch's engine
        self.admit = 0
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._moving = self._closing = False
        self._wanted = 0
        self.fatal: CclError | None = None
        self._meeting = Meeting(launch, config.get("secret"))
        self._front: Acceptor | None = None
        self.card, self.nics = hosts.card()
        self.council: Council | None = None  # type: ignore[assignment]
        deadline = time.monotonic() + options.start_timeout_s
        try:
            self.current = self._settle(self._begin(deadline, joins), deadline)
        except BaseException as error:
            if self.council:
                self.council.close()
            if isinstance(error, LeftOut):
                raise PeerLostError(str(error)) from None
            raise
        self._record((), self.current.view.members, 0.0)
        self._below(self._wanted)

    def _council(self, me: int, secret: bytes, address: tuple[str, int]) -> Council:
        return Council(me, secret, address, self.patience_s, lambda member: member // self._group_size, self._below)

    def _begin(self, deadline: float, joins: bool) -> Outcome:
        launch = self._launch
        if launch.rank == 0 and not joins:
            self.secret = self._meeting.secret()
            self.council: Council = self._council(0, self.secret, (launch.host or "127.0.0.1", launch.port))
            self._meeting.publish(self.council.address, self.secret)
            return self.council.found(launch.world_size, deadline)
        me, error = JOINER if joins else launch.rank, "nothing was published"
        moved: tuple[str, int] | None = None
        while time.monotonic() < deadline:
            try:
                address, self.secret = self._meeting.find(launch)
                sock = wire.dial(moved or address, "", wire.Hello(me, 0, 0, 0, wire.CONTROL), self.secret, 5.0)
                if not self.council:
                    self.council = self._council(me, self.secret, (sock.getsockname()[0], 0))
                return self.council.enter(sock, max(deadline - time.monotonic(), 0.1))
            except Elsewhere as caught:
                error, moved = str(caught), caught.address
            except (ConnectError, OSError, ValueError) as caught:
                error, moved = str(caught), None
                time.sleep(0.02)
        raise OpTimeout(
            f"rank {launch.rank} of {launch.world_size} ({launch.launcher}) did not get into the job in time: {error} Is rank 0 "
            "running? A new member needs the members to call grow(). Across hosts set CCL_LAB_SECRET and CCL_LAB_RENDEZVOUS.",
            rank=0,
        )

    def _settle(self, outcome: Outcome, deadline: float) -> Epoch:
        """The epoch of `outcome`; if somebody is lost while it comes together, a later one."""
        while True:
            self.council.install(outcome.view)
            try:
                epoch = Epoch(self, outcome, self.council.me)
                break
            except CclError as error:
                log.info("epoch %d did not come together: %s", outcome.view.epoch, error)
                if self._closing or time.monotonic() > deadline or not isinstance(error, LOST):
                    raise
            outcome = self.council.agree(max(outcome.view.epoch + 1, self._wanted), self.admit)
        if epoch.hub:
            self._publish()
        return epoch

    def _publish(self) -> None:
        """Where new members find the job, now that this process leads it."""
        self._meeting.publish(self.council.address, self.secret)
        if self._launch.port and self._front is None and self.council.address[1] != self._launch.port:
            address = (self._launch.host or "127.0.0.1", self._launch.port)
            try:
                self._front = Acceptor([address], self.secret, self.council.admit)
            except ConnectError as error:  # the address of another host, or not free yet
                log.info("new members must be told where to go: %s", error)

    def _record(self, before: tuple[int, ...], now: tuple[int, ...], took_s: float) -> None:
        epoch = self.current.view.epoch
        for member in sorted(set(before) - set(now)):
            self.events.append(Event("left", member, epoch, took_s=took_s))
        for member in sorted(set(now) - set(before)):
            self.events.append(Event("joined", member, epoch, took_s=took_s))

    # -- the next epoch

    def leave(self, epoch: int) -> None:
        """Begins to leave `epoch`, if it is the present one; returns at once. Any thread."""
        self._below(epoch + 1)

    def _below(self, target: int) -> None:
        with self._changed:
            self._wanted = max(self._wanted, target)
            if self._moving or self._closing or self.fatal or not hasattr(self, "current"):
                return
            if self.current.view.epoch >= self._wanted:
                return
            self._moving = True
        threading.Thread(target=self._move, name="ccl_lab-move", daemon=True).start()

    def after(self, epoch: int) -> Epoch:
        """What follows `epoch`, which is left; waits for it. Raises PeerLostError if this process is no member of it."""
        self.leave(epoch)
        with self._changed:
            self._changed.wait_for(lambda: self.fatal or self._closing or self.current.view.epoch > epoch)
        return self.checked()

    def checked(self) -> Epoch:
        """The present epoch; raises why there is none."""
        if self.fatal:
            raise type(self.fatal)(str(self.fatal), rank=self.fatal.rank)
        if self._closing:
            raise UsageError("this communicator is closed; call ccl_lab.init() again.")
        return self.current

    def _move(self) -> None:
        try:
            while self._step():
                pass
        except LeftOut as left:
            self._end(PeerLostError(str(left)))
        except CclError as error:
            self._end(error)
        except Exception as error:  # a bug of ours must end the wait of who waits
            log.exception("moving to the next epoch failed")
            self._end(CclError(f"moving to the next epoch failed inside ccl_lab: {error!r}"))

    def _step(self) -> bool:
        """Moves on by an epoch; True if that one has to be left too."""
        old, begin = self.current, time.monotonic()
        self._leave(old)
        outcome = self.council.agree(max(old.view.epoch + 1, self._wanted), self.admit)
        epoch = self._settle(outcome, begin + self.options.start_timeout_s)
        self.admit = 0
        with self._changed:
            self.current = epoch
            self._record(old.view.members, epoch.view.members, time.monotonic() - begin)
            self._moving = self._wanted > epoch.view.epoch and not self._closing
            self._changed.notify_all()
            return self._moving

    def _leave(self, old: Epoch) -> None:
        """Ends the old epoch, when the thread that runs a collective in it has noticed."""
        assert old.member
        old.member.abort(old.spoke.aborted or PeerLostError(f"epoch {old.view.epoch} is over: a member left, or failed."))
        with self.using:
            old.end()

    def _end(self, error: CclError) -> None:
        with self._changed:
            self.fatal, self._moving = error, False
            self._changed.notify_all()
        self.council.close()

    def close(self) -> None:
        """Leaves the job for good; idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
            at_rest = self._changed.wait_for(lambda: not self._moving, 5.0)
        last = self.current
        lead = last.hub is not None and not self.fatal
        if at_rest:
            with self.using:
                last.end(leave=True)
        if lead and last.view.members[0] == self.council.me:
            self._meeting.forget()
        if self._front:
            self._front.close()
        self.council.close()
