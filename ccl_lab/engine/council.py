"""How the processes of an elastic job agree on who takes part in the next epoch, without a process that must not die.

Is: the view of an epoch, and how it comes about. Is not: what a member does in an epoch (elastic_job). Every member listens at a
standby address all its life. To leave an epoch, each dials the lowest member that answers; who finds nobody lower coordinates.

    member      dial(hello{member, epoch}) ──►  coordinator      lowest that answers
                card{standby, done}        ──►  waits for all that are not known dead, at most `patience`
                ◄──  view{epoch, members, standby, done, secret}  |  refused{why}
    coordinator probe(hello{member, epoch}) ──►  who has not dialled: refused: dead; else it learns of the change
                ◄── here{epoch, members}

Invariants: members of a view are the majority of those before that are not known dead, or half of them with the lowest; so
there is one next view, and a process that was stopped or cut off finds itself refused. Every wait has a bound.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import CclError, ConnectError
from . import wire
from .acceptor import Acceptor

log = logging.getLogger("ccl_lab.engine")
Address = tuple[str, int]
PROBE = 2  # purpose of a hello, beside wire.CONTROL and wire.DATA
JOINER = -1  # rank in the hello of who is not a member yet


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
        self._later: dict[int, int] = {}  # epochs that probes found
        self._dead: set[int] = set()
        self._silent: set[int] = set()
        self._left_out = ""
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
                wire.send(sock, {"t": "here", "epoch": view.epoch if view else -1, "members": view.members if view else []})
                sock.close()
            elif view and hello.rank not in (*view.members, JOINER):
                wire.send(sock, {"t": "refused", "why": f"member {hello.rank} is not in epoch {view.epoch}"})
                sock.close()
                return
            elif view and hello.rank == JOINER and view.members[0] != self.me:
                wire.send(sock, {"t": "moved", "address": view.standby[view.members[0]]})
                sock.close()
                return
            else:
                card, _ = wire.receive(sock)
                sock.settimeout(None)
                with self._changed:
                    if hello.rank == JOINER:
                        self._joiners.append((sock, card))
                    else:
                        self._arrived[hello.rank] = sock, hello.epoch, card
                    self._changed.notify_all()
        except (CclError, OSError):
            sock.close()
            return
        if view and hello.rank in view.members and (hello.purpose != PROBE or hello.epoch > view.epoch):
            self._on_change(max(hello.epoch, view.epoch + 1))

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
        """Who has dialled waits for its view; ConnectError if the coordinator goes, LeftOut if it refuses."""
        try:
            wire.send(sock, {"t": "card", "standby": self.address, "done": self.done})
            sock.settimeout(epoch_wait_s)
            message, _ = wire.receive(sock)
        except OSError as error:
            sock.close()
            raise ConnectError(f"no view came from the coordinator: {error}.") from None
        if message["t"] == "refused":
            sock.close()
            raise LeftOut(f"the job goes on without this process: {message['why']}. End it, or join as a new member.")
        if message["t"] != "view":
            sock.close()
            raise ConnectError(f"the coordinator sent {message['t']!r}, expected a view.")
        sock.settimeout(None)
        self.me = int(message["you"])
        return Outcome(View.from_wire(message), sock, {})

    # -- the next epoch

    def agree(self, target: int, admit: int) -> Outcome:
        """The view of epoch `target` or later. admit: new members to take, if this process coordinates.

        Raises LeftOut if the others went on without this process, or may have; ConnectError if a coordinator was lost on
        the way: then call again.
        """
        assert self.view
        self._dead, self._silent, self._later, self._left_out = set(), set(), {}, ""
        for member in self.view.members:
            if member == self.me:
                return self._coordinate(target, admit)
            try:
                hello = wire.Hello(self.me, 0, 0, target, wire.CONTROL)
                sock = wire.dial(self.view.standby[member], "", hello, self._secret, self._patience_s)
            except ConnectError as error:
                (self._dead if _refused(error) else self._silent).add(member)
                continue
            try:
                return self.enter(sock, 3 * self._patience_s)
            except ConnectError:
                continue  # it died: the next one
        raise LeftOut(f"member {self.me} is not a member of epoch {self.view.epoch}.")

    def _coordinate(self, target: int, admit: int) -> Outcome:
        assert self.view
        before = self.view
        others = set(before.members) - {self.me} - self._dead
        for member in others - self._arrived.keys() - self._silent:
            threading.Thread(target=self._probe, args=(member, target), name="ccl_lab-probe", daemon=True).start()
        with self._changed:
            self._changed.wait_for(
                lambda: others <= self._arrived.keys() | self._dead | self._silent or self._left_out, self._patience_s
            )
            if self._left_out:
                raise LeftOut(self._left_out)
            arrived = {m for m in others if m in self._arrived}
            target = max([target, *(self._arrived[m][1] for m in arrived), *(epoch + 1 for epoch in self._later.values())])
            living = _quorum(before.members, arrived | {self.me}, self._dead)
            torn = {self._team_of(m) for m in before.members if m not in living}
            kept = tuple(m for m in before.members if m in living and self._team_of(m) not in torn)
            for member in living - set(kept):
                self._refuse(member, f"its group lost a member in epoch {target}")
        if self.me not in kept:
            raise LeftOut(f"member {self.me} leaves with its group, which lost a member in epoch {target}.")
        return self._propose(target, kept, before.next_member, admit)

    def _probe(self, member: int, target: int) -> None:
        """Whether a member that has not dialled is dead, or in a later epoch; and it learns that this one ends."""
        assert self.view
        found: dict[str, Any] | None = None
        dead = False
        try:
            hello = wire.Hello(self.me, 0, 0, target, PROBE)
            with wire.dial(self.view.standby[member], "", hello, self._secret, self._patience_s) as sock:
                sock.settimeout(self._patience_s)
                found, _ = wire.receive(sock)
        except (CclError, OSError) as error:
            dead = _refused(error)
        with self._changed:
            if dead:
                self._dead.add(member)
            elif found is None:
                self._silent.add(member)
            elif found["epoch"] >= target and self.me in found["members"]:
                self._later[member] = int(found["epoch"])
            elif found["epoch"] >= target:
                self._left_out = (
                    f"the job went on without member {self.me}: member {member} is in epoch {found['epoch']} of members "
                    f"{found['members']}. End this process, or join as a new member."
                )
            self._changed.notify_all()

    def _refuse(self, member: int, why: str) -> None:
        held = self._arrived.pop(member, None)
        if held:
            try:
                wire.send(held[0], {"t": "refused", "why": f"member {member} is not in it: {why}"})
            except OSError:
                pass
            held[0].close()

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
            for member in [m for m in self._arrived if m not in view.members]:
                self._refuse(member, f"epoch {view.epoch} began without it")

    def close(self) -> None:
        """Stops listening; who dials now finds this process dead."""
        self._acceptor.close()
        with self._changed:
            for sock in [held[0] for held in (*self._arrived.values(), *self._joiners)]:
                sock.close()


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
