"""One member's part of an agreement, driven message by message: the test plays all other members, over real sockets.

Members die, are silent or come late at each stage: before the view, between the view and the hub, between proposal and its end,
the coordinator itself, two at once, and with messages of an epoch that is over.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ccl_lab.engine import wire
from ccl_lab.engine.acceptor import Acceptor
from ccl_lab.engine.council import PROBE, Council, Elsewhere, LeftOut, Outcome, View

SECRET = b"s" * 32
HERE = ("127.0.0.1", 0)
LONG_S = 60.0  # patience where nothing may depend on it


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


class Other:
    """A member played by the test: answers probes as told, takes who dials, dials itself."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.said: dict[str, Any] | None = {"t": "here", "epoch": 0, "members": [0, 1, 2, 3]}
        self.probes: list[wire.Hello] = []
        self.dialled: list[socket.socket] = []
        self._open: list[socket.socket] = []
        self._acceptor: Acceptor | None = Acceptor([HERE], SECRET, self._admit)
        self.address = self._acceptor.addresses[0]

    def _admit(self, _: int, hello: wire.Hello, sock: socket.socket) -> None:
        self._open.append(sock)
        if hello.purpose == PROBE:
            if self.said is not None:
                wire.send(sock, self.said)
            self.probes.append(hello)
        else:
            self.dialled.append(sock)

    def dial(self, council: Council, epoch: int, view: View | None = None, card: bool = True) -> socket.socket:
        sock = wire.dial(council.address, "", wire.Hello(self.number, 0, 0, epoch, wire.CONTROL), SECRET, LONG_S)
        self._open.append(sock)
        if card:
            told = view.to_wire(self.number) if view else None
            wire.send(sock, {"t": "card", "standby": self.address, "done": 0, "view": told})
        sock.settimeout(LONG_S)
        return sock

    def probe(self, council: Council, epoch: int) -> dict[str, Any]:
        with wire.dial(council.address, "", wire.Hello(self.number, 0, 0, epoch, PROBE), SECRET, LONG_S) as sock:
            return wire.receive(sock)[0]

    def die(self) -> None:
        if self._acceptor:
            self._acceptor.close()
        self._acceptor = None
        for sock in self._open:
            sock.close()


class Table:
    """Four members in epoch 0; member `me` is a Council, the others are the test's."""

    def __init__(self, me: int, patience_s: float = LONG_S) -> None:
        self.changes: list[int] = []
        self.council = Council(me, SECRET, HERE, patience_s, lambda member: member, self.changes.append)
        self.others = {number: Other(number) for number in range(4) if number != me}
        standby = {number: other.address for number, other in self.others.items()} | {me: self.council.address}
        self.view = View(0, (0, 1, 2, 3), standby, 0, 4, SECRET)
        self.council.install(self.view)
        self.outcome: Outcome | BaseException | None = None

    def agree(self) -> None:
        def run() -> None:
            try:
                self.outcome = self.council.agree(1, 0)
            except (LeftOut, Exception) as error:
                self.outcome = error

        threading.Thread(target=run, daemon=True).start()

    def agreed(self) -> View:
        wait_for(lambda: self.outcome is not None)
        assert isinstance(self.outcome, Outcome), self.outcome
        return self.outcome.view

    def arrive(self, *numbers: int, epoch: int = 1, view: View | None = None) -> list[socket.socket]:
        socks = [self.others[number].dial(self.council, epoch, view) for number in numbers]
        wait_for(lambda: self.outcome is not None or set(numbers) <= self.council._arrived.keys())
        return socks

    def close(self) -> None:
        self.council.close()
        for other in self.others.values():
            other.die()
        if isinstance(self.outcome, Outcome):
            for sock in [*self.outcome.sockets.values(), *([self.outcome.sock] if self.outcome.sock else [])]:
                sock.close()


@pytest.fixture
def table() -> Iterator[Callable[..., Table]]:
    made: list[Table] = []

    def make(me: int, patience_s: float = LONG_S) -> Table:
        made.append(Table(me, patience_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


def told(sock: socket.socket) -> dict[str, Any]:
    return wire.receive(sock)[0]


# -- before the view


def test_the_lowest_tells_the_view_when_all_have_come(table: Callable[..., Table]) -> None:
    t = table(0)
    t.agree()
    socks = t.arrive(1, 2) + [t.others[3].dial(t.council, 1)]
    assert t.agreed().members == (0, 1, 2, 3)
    assert [told(sock)["you"] for sock in socks] == [1, 2, 3]


def test_who_is_dead_is_left_out_at_once(table: Callable[..., Table]) -> None:
    t = table(0)
    t.others[2].die()
    t.arrive(1, 3)
    t.agree()
    assert t.agreed().members == (0, 1, 3)


def test_who_came_and_died_before_the_view_is_not_in_it(table: Callable[..., Table]) -> None:
    t = table(0)
    t.arrive(1, 2)
    t.others[2].die()
    t.agree()
    t.arrive(3)
    assert t.agreed().members == (0, 1, 3)


def test_two_die_at_once_one_that_came_and_one_that_did_not(table: Callable[..., Table]) -> None:
    t = table(0)
    t.arrive(1)
    t.others[1].die()
    t.others[3].die()
    t.agree()
    t.arrive(2)
    assert t.agreed().members == (0, 2)


def test_who_dials_again_counts_by_what_it_said_last(table: Callable[..., Table]) -> None:
    t = table(0)
    [first] = t.arrive(1)
    second = t.others[1].dial(t.council, 2)
    wait_for(lambda: t.council._arrived.get(1, (None, 0))[1] == 2)  # between the two nobody has arrived
    assert first.recv(1) == b""  # its old socket is not kept
    t.agree()
    t.arrive(2)
    t.others[3].dial(t.council, 1)
    assert t.agreed().epoch == 2 and told(second)["epoch"] == 2


# -- messages of an epoch that is over


def test_a_card_that_comes_after_the_epoch_began_without_its_member_is_refused(table: Callable[..., Table]) -> None:
    t = table(0)
    late = t.others[3].dial(t.council, 1, card=False)
    without = View(1, (0, 1, 2), t.view.standby, 0, 4, SECRET)
    t.council.install(without)
    wire.send(late, {"t": "card", "standby": t.others[3].address, "done": 0, "view": None})
    assert told(late)["t"] == "refused" and 3 not in t.council._arrived


def test_an_older_dial_that_is_read_later_changes_nothing(table: Callable[..., Table]) -> None:
    t = table(0)
    old = t.others[1].dial(t.council, 1, card=False)
    t.arrive(1, epoch=2)
    changes = list(t.changes)
    wire.send(old, {"t": "card", "standby": t.others[1].address, "done": 0, "view": None})
    assert old.recv(1) == b"" and t.council._arrived[1][1] == 2 and t.changes == changes


def test_what_an_older_agreement_finds_out_does_not_count(table: Callable[..., Table]) -> None:
    t = table(0)
    asked, answer = threading.Event(), threading.Event()
    ask = t.council._ask

    def slow(standby: Any, target: int) -> Any:
        if standby == t.others[3].address and not asked.is_set():
            asked.set()
            answer.wait(60)
            return {"t": "here", "epoch": 1, "members": [1, 2, 3]}, False  # as from another time: it would be left out
        return ask(standby, target)

    t.council._ask = slow  # type: ignore[method-assign]
    t.agree()
    assert asked.wait(60)
    t.arrive(1, 2)
    t.others[3].dial(t.council, 1)
    view = t.agreed()
    t.council.install(view)
    t.outcome = None
    t.agree()
    wait_for(lambda: len(t.others[1].probes) > 0)  # the second agreement is under way
    answer.set()
    t.arrive(1, 2, epoch=2)
    t.others[3].dial(t.council, 2)
    assert t.agreed().members == (0, 1, 2, 3)


def test_a_probe_answered_in_the_epoch_it_led_to_ends_nothing(table: Callable[..., Table]) -> None:
    t = table(0)
    before = set(threading.enumerate())
    asked, answer = threading.Event(), threading.Event()
    targets: list[int] = []

    def slow(standby: Any, target: int) -> Any:
        targets.append(target)
        asked.set()
        answer.wait(60)
        return {"t": "here", "epoch": 1, "members": [0, 1, 2, 3]}, False

    t.council._ask = slow  # type: ignore[method-assign]
    t.agree()
    assert asked.wait(60)
    t.arrive(1, 2)
    t.others[3].dial(t.council, 1)
    t.council.install(t.agreed())
    answer.set()
    wait_for(lambda: not any(thread.name == "ccl_lab-probe" for thread in set(threading.enumerate()) - before))
    assert set(targets) == {1}  # nobody was told to leave epoch 1


# -- the coordinator


def test_the_coordinator_dies_before_the_view(table: Callable[..., Table]) -> None:
    t = table(1)
    t.agree()
    wait_for(lambda: t.others[0].dialled)
    t.others[0].die()
    wait_for(lambda: t.others[2].probes)  # this one coordinates now
    t.arrive(2)
    t.others[3].dial(t.council, 1)
    assert t.agreed().members == (1, 2, 3)


def test_who_dialled_one_that_follows_another_is_sent_there(table: Callable[..., Table]) -> None:
    t = table(1)
    [early] = t.arrive(3)
    t.agree()
    wait_for(lambda: t.others[0].dialled)
    assert told(early) == {"t": "moved", "address": list(t.others[0].address)}
    late = t.others[2].dial(t.council, 1)
    assert told(late) == {"t": "moved", "address": list(t.others[0].address)}
    standby = t.view.standby
    wire.send(t.others[0].dialled[0], View(1, (0, 1, 2, 3), standby, 0, 4, SECRET).to_wire(1))
    assert t.agreed().epoch == 1


def test_who_is_sent_elsewhere_begins_again_from_the_lowest(table: Callable[..., Table]) -> None:
    t = table(2)
    t.others[0].die()
    t.agree()
    wait_for(lambda: t.others[1].dialled)
    wire.send(t.others[1].dialled[0], {"t": "moved", "address": t.others[0].address})
    wait_for(lambda: len(t.others[1].dialled) == 2)
    wire.send(t.others[1].dialled[1], View(1, (1, 2, 3), t.view.standby, 0, 4, SECRET).to_wire(2))
    assert t.agreed().members == (1, 2, 3)


def test_two_who_send_each_other_round_do_not_hold_a_third_for_ever(table: Callable[..., Table]) -> None:
    t = table(3)
    t.agree()
    for n in range(2 * 4 + 6):
        wait_for(lambda n=n: len(t.others[0].dialled) > n)  # type: ignore[misc]
        wire.send(t.others[0].dialled[n], {"t": "moved", "address": t.others[1].address})
    wait_for(lambda: t.outcome is not None)
    assert isinstance(t.outcome, LeftOut) and "found none that coordinates" in str(t.outcome)


def test_a_lower_one_that_was_thought_silent_probes_and_is_followed(table: Callable[..., Table]) -> None:
    t = table(1)
    dial, slow = wire.dial, [True]

    def silent_once(address: Any, *arguments: Any, **options: Any) -> socket.socket:
        if slow[0] and tuple(address) == tuple(t.others[0].address):
            slow[0] = False
            raise wire.ConnectError("no answer in time")
        return dial(address, *arguments, **options)

    wire.dial, kept = silent_once, dial
    try:
        t.agree()
        wait_for(lambda: t.others[2].probes)  # it coordinates
        t.others[0].probe(t.council, 1)
        wait_for(lambda: t.others[0].dialled)
    finally:
        wire.dial = kept
    wire.send(t.others[0].dialled[0], View(1, (0, 1), t.view.standby, 0, 4, SECRET).to_wire(1))
    assert t.agreed().members == (0, 1)


# -- between the view and the hub


def test_a_later_view_that_was_told_to_others_is_the_one_to_leave(table: Callable[..., Table]) -> None:
    """Member 0 told epoch 1, with the new member 4, to 2 and 4 only, and died: 1 does not know of it."""
    t = table(1)
    t.others[0].die()
    new = t.others[4] = Other(4)
    later = View(1, (0, 1, 2, 4), t.view.standby | {4: new.address}, 7, 5, SECRET)
    t.agree()
    t.arrive(3)
    t.others[2].dial(t.council, 2, later)
    t.others[4].dial(t.council, 2, later)
    view = t.agreed()
    assert view.epoch == 2 and view.members == (1, 2, 4) and view.next_member == 5 and view.done == 7


def test_a_new_member_that_knows_a_later_view_is_heard_first(table: Callable[..., Table]) -> None:
    t = table(1)
    t.others[0].die()
    new = t.others[4] = Other(4)
    later = View(1, (0, 1, 2, 4), t.view.standby | {4: new.address}, 0, 5, SECRET)
    t.others[4].dial(t.council, 2, later)
    wait_for(lambda: 4 in t.council._arrived and t.changes)
    assert t.changes == [2]
    t.others[2].dial(t.council, 2, later)
    t.arrive(3)
    t.agree()
    assert t.agreed().members == (1, 2, 4)


def test_an_epoch_that_others_missed_ends_for_who_is_in_it(table: Callable[..., Table]) -> None:
    t = table(1)
    t.others[0].die()
    t.others[2].said = {"t": "here", "epoch": 1, "members": [0, 1, 2, 3]}
    t.agree()
    wait_for(lambda: len(t.others[2].probes) == 2)
    assert [probe.epoch for probe in t.others[2].probes] == [1, 2]
    t.arrive(3)
    t.others[2].dial(t.council, 2)
    view = t.agreed()
    assert view.members == (1, 2, 3) and view.epoch == 2


def test_one_that_others_left_out_finds_out(table: Callable[..., Table]) -> None:
    t = table(0)
    t.others[2].said = {"t": "here", "epoch": 1, "members": [1, 2, 3]}
    t.agree()
    wait_for(lambda: t.outcome is not None)
    assert isinstance(t.outcome, LeftOut) and "went on without member 0" in str(t.outcome)


# -- silence


def test_one_that_lives_gets_twice_the_time_of_one_that_is_silent(table: Callable[..., Table]) -> None:
    t = table(0)
    t.others[2].said = None  # takes the probe, and says nothing
    waits: list[float] = []
    wait_until = t.council._changed.wait_for

    def patient(over: Callable[[], bool], seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 1:  # the first patience is over when 3 has answered its probe
            wait_until(lambda: 3 in t.council._round.here, seconds)
            return False
        return wait_until(lambda: 3 in t.council._arrived, seconds)

    t.arrive(1)
    t.council._changed.wait_for = patient  # type: ignore[method-assign]
    t.agree()
    wait_for(lambda: len(waits) == 2)
    t.others[3].dial(t.council, 1)
    assert t.agreed().members == (0, 1, 3) and waits == [LONG_S, LONG_S]


def test_a_minority_does_not_go_on(table: Callable[..., Table]) -> None:
    t = table(0, patience_s=0.2)
    for other in t.others.values():
        other.said = None
    t.agree()
    wait_for(lambda: t.outcome is not None)
    assert isinstance(t.outcome, LeftOut) and "are not the majority" in str(t.outcome)


def test_a_new_process_is_told_where_the_coordinator_is(table: Callable[..., Table]) -> None:
    t = table(1)
    joiner = Council(-1, SECRET, HERE, LONG_S, lambda member: member, lambda epoch: None)
    try:
        sock = wire.dial(t.council.address, "", wire.Hello(-1, 0, 0, 0, wire.CONTROL), SECRET, LONG_S)
        with pytest.raises(Elsewhere) as caught:
            joiner.enter(sock, LONG_S)
        assert caught.value.address == tuple(t.others[0].address)
    finally:
        joiner.close()
