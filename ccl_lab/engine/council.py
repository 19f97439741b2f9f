"""How the processes of an elastic job agree on who takes part in the next epoch, without a process that must not die.

Is: the view of an epoch, and how it comes about. Is not: what a member does in an epoch (elastic_job). Every member listens at a
standby address all its life. To leave an epoch, each dials the lowest member that answers; who finds nobody lower coordinates.

    member      dial(hello{member, epoch}) ──►  coordinator      lowest that answers
                card{standby, done, view}  ──►  waits for all that are not known dead, at most `patience`, twice that for who lives
                ◄──  view{epoch, members, standby, done, secret}  |  refused{why}  |  moved{address}: another one coordinates
    coordinator probe(hello{member, epoch}) ──►  who has not dialled: refused: dead; else it learns of the change
                ◄── here{epoch, members}

Anybody may die, or be slow, between any two of these. Hence: what an older agreement still finds out does not count in the next
(`_Round`); who dialled and went away has not arrived; who learns that a lower one is there after all, or that a later view was told
before its coordinator died, begins again from there; who is found in an epoch that others missed is told that it ends.

Invariants: members of a view are the majority of those before that are not known dead, or half of them with the lowest; so
there is one next view, and a process that was stopped or cut off finds itself refused. Every wait has a bound.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import CclError, ConnectError
from . import wire
from .acceptor import Acceptor

log = logging.getLogger("ccl_lab.engine")
Address = tuple[str, int]
PROBE = 2  # purpose of a hello, beside wire.CONTROL and wire.DATA
JOINER = -1  # rank in the hello of who is not a member yet


class Elsewhere(Exception):
    """Another process coordinates, or a later view is known: begin again."""

    def __init__(self, why: str, address: Address | None = None) -> None:
        super().__init__(why)
        self.address = address


class LeftOut(Exception):
    """This process is no member any more: the others went on without it, or it cannot tell whether they did."""


@dataclass(frozen=True)
class View:
    """An epoch: its members by their stable numbers (rank r is members[r]), where they listen, how many collectives have been
    completed, the number the next new member gets, and the secret of its connections."""

    epoch: int
    members: tuple[int, ...]
    standby: dict[int, Address]
    done: int
    next_member: int
    secret: bytes

    def to_wire(self, you: int) -> dict[str, Any]:
        """Plain data, for member `you`."""
        return {
            "t": "view", "you": you, "epoch": self.epoch, "members": list(self.members), "done": self.done,
            "standby": {str(member): address for member, address in self.standby.items()},
            "next_member": self.next_member, "secret": self.secret.hex(),
        }  # fmt: skip

    @staticmethod
    def from_wire(data: dict[str, Any]) -> View:
        """What `to_wire` gave."""
        standby = {int(member): (str(host), int(port)) for member, (host, port) in data["standby"].items()}
        return View(
            int(data["epoch"]), tuple(data["members"]), standby, int(data["done"]), int(data["next_member"]),
            bytes.fromhex(data["secret"]),
        )  # fmt: skip


@dataclass
class _Round:
    """What one agreement has found out so far. What comes after it is over finds another one in its place."""

    standby: dict[int, Address] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    here: set[int] = field(default_factory=set)  # who answered a probe: lives, and is on its way
    later: dict[int, int] = field(default_factory=dict)  # epochs that probes found
    lower: set[int] = field(default_factory=set)  # who probes, and should coordinate instead
    left_out: str = ""


@dataclass
class Outcome:
    """A view, and this process's control socket in it (None where it coordinates: then `sockets` are the others')."""

    view: View
    sock: socket.socket | None
    sockets: dict[int, socket.socket]


class Council:
    """This process's part. `on_change(epoch)` is called, on a thread of the council, when somebody leaves epoch `epoch - 1`.

    `me`: its number, JOINER until a view gave one.
    """

    def __init__(
        self, me: int, secret: bytes, address: Address, patience_s: float, teams: Callable[[int], int],
        on_change: Callable[[int], None],
    ) -> None:
        self.me, self.done = me, 0
        self.view: View | None = None
        self._secret, self._patience_s, self._team_of, self._on_change = secret, patience_s, teams, on_change
        self._changed = threading.Condition()
        self._arrived: dict[int, tuple[socket.socket, int, dict[str, Any]]] = {}
        self._joiners: list[tuple[socket.socket, dict[str, Any]]] = []
        self._round = _Round()
        self._following: Address | None = None  # who coordinates, while its view is awaited
        self._acceptor = Acceptor([address], secret, self.admit)
        self.address: Address = self._acceptor.addresses[0]

    # -- who dials (acceptor thread)

    def admit(self, _: int, hello: wire.Hello, sock: socket.socket) -> None:
        """Takes in who proved the job's secret."""
        sock.settimeout(self._patience_s)
        threading.Thread(target=self._greet, args=(hello, sock), name="ccl_lab-greet", daemon=True).start()

    def _greet(self, hello: wire.Hello, sock: socket.socket) -> None:
        """What a dialler says after its hello may be slow to come: not on the acceptor's thread."""
        view = self.view
        try:
            if hello.purpose == PROBE:
                self._answer_probe(view, hello, sock)
            elif not self._arrives(hello, sock):
                return
        except (CclError, OSError):
            sock.close()
            return
        if view and _ends(view, hello):
            self._on_change(max(hello.epoch, view.epoch + 1))

    def _answer_probe(self, view: View | None, hello: wire.Hello, sock: socket.socket) -> None:
        wire.send(sock, {"t": "here", "epoch": view.epoch if view else -1, "members": view.members if view else []})
        sock.close()
        if view and hello.rank in view.members and self.me in view.members and hello.epoch > view.epoch:
            with self._changed:
                if view.members.index(hello.rank) < view.members.index(self.me):
                    self._round.lower.add(hello.rank)
                    self._changed.notify_all()

    def _arrives(self, hello: wire.Hello, sock: socket.socket) -> bool:
        """Takes what a dialler says, and keeps it until there is a view for it; False if it was sent away."""
        card, _ = wire.receive(sock)
        sock.settimeout(None)
        with self._changed:
            view = self.view  # as it is now: an epoch may have begun while the card was on its way
            if hello.rank == JOINER and view and view.members[0] != self.me:
                _tell_off(sock, {"t": "moved", "address": view.standby[view.members[0]]})
                return False
            if hello.rank == JOINER:
                self._joiners.append((sock, card))
            elif view and hello.rank not in view.members and hello.epoch <= view.epoch + 1:
                _tell_off(sock, {"t": "refused", "why": f"member {hello.rank} is not in epoch {view.epoch}"})
                return False
            elif self._following:
                _tell_off(sock, {"t": "moved", "address": self._following})
            elif self._outdated(hello, sock):
                sock.close()
                return False
            else:
                self._drop(hello.rank)
                self._arrived[hello.rank] = sock, hello.epoch, card
            self._changed.notify_all()
        return True

    def _outdated(self, hello: wire.Hello, sock: socket.socket) -> bool:
        """It gave up meanwhile, or has dialled again for a later epoch."""
        held = self._arrived.get(hello.rank)
        return _closed_by_peer(sock) or (held is not None and held[1] > hello.epoch and not _closed_by_peer(held[0]))

    def _drop(self, member: int) -> None:
        held = self._arrived.pop(member, None)
        if held:
            held[0].close()

    def _drop_gone(self) -> set[int]:
        """Who dialled and went away, or died, has not arrived."""
        gone = {member for member, held in self._arrived.items() if _closed_by_peer(held[0])}
        for member in gone:
            self._drop(member)
        return gone

    def _follow(self, coordinator: Address | None) -> None:
        """From now on who dials this process is sent to `coordinator`, whose view it awaits itself; and who has dialled before."""
        with self._changed:
            self._following = coordinator
            if coordinator:
                for member in list(self._arrived):
                    _tell_off(self._arrived.pop(member)[0], {"t": "moved", "address": coordinator})

    def waiting(self) -> int:
        """New processes that wait to be members; those that went away meanwhile do not count."""
        with self._changed:
            self._joiners = [held for held in self._joiners if not _closed_by_peer(held[0])]
            return len(self._joiners)

    def wait_for_joiners(self, n: int, timeout_s: float) -> int:
        """Waits until `n` processes wait to be members, at most `timeout_s`; how many do."""
        deadline = time.monotonic() + timeout_s
        while self.waiting() < n and time.monotonic() < deadline:
            with self._changed:
                self._changed.wait(min(0.05, max(deadline - time.monotonic(), 0)))
        return self.waiting()

    # -- the first epoch

    def found(self, n: int, deadline: float) -> Outcome:
        """On rank 0: the first epoch, of `n` processes; ConnectError naming who did not come."""
        wanted = set(range(1, n))
        with self._changed:
            self._changed.wait_for(lambda: wanted <= self._arrived.keys(), max(deadline - time.monotonic(), 0))
            missing = sorted(wanted - self._arrived.keys())
        if missing:
            raise ConnectError(f"ranks {missing[:8]} of {n} did not reach rank 0 in time. Are they running?", rank=missing[0])
        return self._propose(0, tuple(range(n)), n, 0)

    def enter(self, sock: socket.socket, epoch_wait_s: float) -> Outcome:
        """Who has dialled waits for its view; ConnectError if the coordinator goes, LeftOut if it refuses, Elsewhere if another
        one coordinates."""
        try:
            told = self.view.to_wire(self.me) | {"secret": ""} if self.view else None
            wire.send(sock, {"t": "card", "standby": self.address, "done": self.done, "view": told})
            sock.settimeout(epoch_wait_s)
            message, _ = wire.receive(sock)
        except (OSError, ConnectError) as error:
            sock.close()
            raise ConnectError(f"no view came from the coordinator: {error}.") from None
        if message["t"] != "view":
            sock.close()
        if message["t"] == "refused":
            raise LeftOut(f"the job goes on without this process: {message['why']}. End it, or join as a new member.")
        if message["t"] == "moved":
            host, port = message["address"]
            raise Elsewhere("who was dialled does not coordinate", (str(host), int(port)))
        if message["t"] != "view":
            raise ConnectError(f"the coordinator sent {message['t']!r}, expected a view.")
        sock.settimeout(None)
        self.me = int(message["you"])
        return Outcome(View.from_wire(message), sock, {})

    # -- the next epoch

    def agree(self, target: int, admit: int) -> Outcome:
        """The view of epoch `target` or later. admit: new members to take, if this process coordinates.

        Raises LeftOut if the others went on without this process, or may have.
        """
        assert self.view
        for _ in range(2 * len(self.view.members) + 6):
            try:
                return self._attempt(max(target, self.view.epoch + 1), admit)
            except Elsewhere as moved:
                log.info("member %d begins to agree again: %s", self.me, moved)
            finally:
                self._follow(None)
        raise LeftOut(f"member {self.me} was sent from one member to another and found none that coordinates.")

    def _attempt(self, target: int, admit: int) -> Outcome:
        view = self.view
        assert view
        with self._changed:
            now = self._round = _Round(dict(view.standby))
        for place, member in enumerate(view.members):
            if member == self.me:
                return self._coordinate(now, view, target, admit)
            try:
                hello = wire.Hello(self.me, 0, 0, target, wire.CONTROL)
                sock = wire.dial(view.standby[member], "", hello, self._secret, self._patience_s)
            except ConnectError as error:
                (now.dead if _refused(error) else now.silent).add(member)
                continue
            self._follow(view.standby[member])
            try:
                return self.enter(sock, (3 + place) * self._patience_s)  # it may find `place` silent ones before itself
            except ConnectError:
                self._follow(None)  # it died: the next one
        raise LeftOut(f"member {self.me} is not a member of epoch {view.epoch}.")

    def _coordinate(self, now: _Round, before: View, target: int, admit: int) -> Outcome:
        others = set(before.members) - {self.me}
        self._gather(now, others, target)
        with self._changed:
            if now.left_out:
                raise LeftOut(now.left_out)
            if now.lower - now.dead:
                raise Elsewhere(f"member {min(now.lower - now.dead)} is there, and coordinates")
            self._adopt_later(before)
            arrived = {m for m in others - now.dead if m in self._arrived}
            target = max([target, *(self._arrived[m][1] for m in arrived), *(epoch + 1 for epoch in now.later.values())])
            living = _quorum(before.members, arrived | {self.me}, now.dead)
            self._round = _Round()  # what a probe finds from now on may be the epoch that begins here
            torn = {self._team_of(m) for m in before.members if m not in living}
            kept = tuple(m for m in before.members if m in living and self._team_of(m) not in torn)
            for member in living - set(kept):
                self._refuse(member, f"its group lost a member in epoch {target}")
        if self.me not in kept:
            raise LeftOut(f"member {self.me} leaves with its group, which lost a member in epoch {target}.")
        return self._propose(target, kept, before.next_member, admit)

    def _gather(self, now: _Round, others: set[int], target: int) -> None:
        """Returns when all others have arrived that live, or time is up, or something else decides."""

        def over() -> bool:
            found = self._arrived.keys() | now.dead | now.silent
            return others <= found or bool(now.left_out or now.lower - now.dead)

        probed: set[int] = set()
        for _ in range(len(others) + 1):
            with self._changed:
                self._drop_gone()
                missing = others - self._arrived.keys() - now.dead - now.silent - probed
            for member in missing:
                threading.Thread(target=self._probe, args=(now, member, target), name="ccl_lab-probe", daemon=True).start()
            probed |= missing
            with self._changed:
                if not self._changed.wait_for(over, self._patience_s) and now.here & (others - self._arrived.keys()):
                    self._changed.wait_for(over, self._patience_s)
                gone = self._drop_gone()
                probed -= gone
            if not gone & others:
                return

    def _adopt_later(self, before: View) -> None:
        """A coordinator that died may have told its view to some who have come here: then that is the epoch to leave."""
        views = [View.from_wire(card["view"]) for _, _, card in self._arrived.values() if card.get("view")]
        newest = max(views, key=lambda view: view.epoch, default=before)
        if newest.epoch <= before.epoch:
            return
        if self.me not in newest.members:
            raise LeftOut(f"epoch {newest.epoch} of members {list(newest.members)} began without member {self.me}.")
        self.view, self.done = newest, max(self.done, newest.done)
        raise Elsewhere(f"epoch {newest.epoch} was told to others")

    def _probe(self, now: _Round, member: int, target: int) -> None:
        """Whether a member that has not dialled is dead, or in a later epoch; and it learns that this one ends."""
        found, dead = self._ask(now.standby[member], target)
        with self._changed:
            if self._round is not now:
                return  # of an agreement that is over
            late = found is not None and found["epoch"] >= target
            if dead:
                now.dead.add(member)
            elif found is None:
                now.silent.add(member)
            elif not late:
                now.here.add(member)
            elif self.me in found["members"]:
                now.later[member] = int(found["epoch"])
                now.here.add(member)
            else:
                now.left_out = (
                    f"the job went on without member {self.me}: member {member} is in epoch {found['epoch']} of members "
                    f"{found['members']}. End this process, or join as a new member."
                )
            again = now.later.get(member)
            self._changed.notify_all()
        if again is not None:
            self._ask(now.standby[member], again + 1)  # the view of that epoch did not reach all its members

    def _ask(self, standby: Address, target: int) -> tuple[dict[str, Any] | None, bool]:
        """(what a member says to a probe, None if nothing; whether it is dead)."""
        try:
            hello = wire.Hello(self.me, 0, 0, target, PROBE)
            with wire.dial(standby, "", hello, self._secret, self._patience_s) as sock:
                sock.settimeout(self._patience_s)
                return wire.receive(sock)[0], False
        except (CclError, OSError) as error:
            return None, _refused(error)

    def _refuse(self, member: int, why: str) -> None:
        held = self._arrived.pop(member, None)
        if held:
            _tell_off(held[0], {"t": "refused", "why": f"member {member} is not in it: {why}"})

    def _propose(self, epoch: int, kept: tuple[int, ...], next_member: int, admit: int) -> Outcome:
        """Tells everybody the view. Who dies while it is told is lost in the epoch that then begins."""
        self.waiting()
        with self._changed:
            joining = {next_member + i: held for i, held in enumerate(self._joiners[:admit])}
            self._joiners = self._joiners[admit:]
            arrived = {member: self._arrived.pop(member) for member in kept if member in self._arrived}
        cards = {member: card for member, (_, _, card) in arrived.items()} | {m: card for m, (_, card) in joining.items()}
        sockets = {member: sock for member, (sock, _, _) in arrived.items()} | {m: sock for m, (sock, _) in joining.items()}
        standby = {member: (str(card["standby"][0]), int(card["standby"][1])) for member, card in cards.items()}
        done = max([self.done, *(int(card["done"]) for card in cards.values())])
        view = View(
            epoch, (*kept, *joining), standby | {self.me: self.address}, done, next_member + len(joining), wire.new_secret()
        )
        for member, sock in sockets.items():
            try:
                sock.settimeout(None)
                wire.send(sock, view.to_wire(member))
            except OSError as error:
                log.info("member %d was lost while epoch %d began: %s", member, epoch, error)
        return Outcome(view, None, sockets)

    def install(self, view: View) -> None:
        """From now on this is the epoch; who dialled for an older one and is not in it is refused."""
        with self._changed:
            self.view, self.done = view, max(self.done, view.done)
            for member in [m for m, held in self._arrived.items() if m not in view.members and held[1] <= view.epoch + 1]:
                self._refuse(member, f"epoch {view.epoch} began without it")

    def close(self) -> None:
        """Stops listening; who dials now finds this process dead."""
        self._acceptor.close()
        with self._changed:
            for sock in [held[0] for held in (*self._arrived.values(), *self._joiners)]:
                sock.close()


def _ends(view: View, hello: wire.Hello) -> bool:
    """Whether who says this leaves the epoch of `view`, or knows a later one."""
    if hello.rank in view.members:
        return hello.purpose != PROBE or hello.epoch > view.epoch
    return hello.purpose != PROBE and hello.rank != JOINER and hello.epoch > view.epoch + 1


def _quorum(before: tuple[int, ...], living: set[int], dead: set[int]) -> set[int]:
    """`living`, if no others can form an epoch of their own; else LeftOut."""
    possible = set(before) - dead
    half = 2 * len(living) == len(possible) and min(possible) in living
    if 2 * len(living) > len(possible) or half:
        return living
    raise LeftOut(
        f"members {sorted(possible - living)} of {sorted(possible)} neither answer nor are known to be dead: members "
        f"{sorted(living)} are not the majority and cannot go on without them, for they may do the same."
    )


def _tell_off(sock: socket.socket, message: dict[str, Any]) -> None:
    try:
        wire.send(sock, message)
    except OSError:
        pass
    sock.close()


def _refused(error: BaseException) -> bool:
    """Nobody listens there any more: the process is gone."""
    return isinstance(error, ConnectionRefusedError) or isinstance(error.__context__, ConnectionRefusedError)


def _closed_by_peer(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
