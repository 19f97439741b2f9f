"""The control plane without native code: frames, challenge, acceptor, hub."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from ccl_lab.engine import acceptor, hub, wire
from ccl_lab.errors import AbortedError, ConnectError, OpTimeout, PeerLostError

SECRET = b"s" * 32


@pytest.fixture
def door():
    """An acceptor and what it let in."""
    admitted = []
    arrived = threading.Event()

    def admit(nic, hello, sock):
        admitted.append((nic, hello, sock))
        arrived.set()

    gate = acceptor.Acceptor([("127.0.0.1", 0)], SECRET, admit)
    yield gate, admitted, arrived
    gate.close()
    for _, _, sock in admitted:
        sock.close()


def hello(rank=3):
    return wire.Hello(rank, 1, 0, 0, wire.DATA)


def test_frames_round_trip_and_are_bounded():
    a, b = socket.socketpair()
    wire.send(a, {"t": "x", "n": [1, 2]}, b"blob")
    assert wire.receive(b) == ({"t": "x", "n": [1, 2]}, b"blob")
    a.sendall(wire.FRAME.pack(2**31, 0))
    with pytest.raises(ConnectError, match="at most"):
        wire.receive(b)
    a.close()
    with pytest.raises(ConnectError, match="closed"):
        wire.receive(b)


def test_who_knows_the_secret_is_let_in(door):
    gate, admitted, arrived = door
    sock = wire.dial(gate.addresses[0], "127.0.0.1", hello(), SECRET, 5)
    assert arrived.wait(5) and admitted[0][:2] == (0, hello())
    admitted[0][2].sendall(b"hi")
    assert sock.recv(2) == b"hi"


def test_wrong_secret_is_refused_with_both_ends_named(door):
    gate, admitted, _ = door
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:\d+ but was not let in"):
        wire.dial(gate.addresses[0], "", hello(), b"wrong" * 6, 5)
    assert not admitted and gate.refused == 1


def test_strangers_change_nothing_and_are_logged_once(door, monkeypatch):
    gate, admitted, arrived = door
    said = []
    monkeypatch.setattr(acceptor.log, "warning", lambda text, *values: said.append(text % values))
    for i in range(20):
        with socket.create_connection(gate.addresses[0]) as stranger:
            stranger.sendall(os.urandom(wire.REPLY if i % 2 else 7))
    half_open = socket.create_connection(gate.addresses[0])
    deadline = time.monotonic() + 5
    while gate.refused < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gate.refused == 20 and not admitted
    assert len(said) == 1 and "refused a connection on NIC 0" in said[0] and "silently" in said[0]
    wire.dial(gate.addresses[0], "", hello(), SECRET, 5).close()
    assert arrived.wait(5)
    half_open.close()


def test_half_open_connection_expires(door, monkeypatch):
    gate, _, _ = door
    monkeypatch.setattr(acceptor, "HANDSHAKE_S", 0.05)
    with socket.create_connection(gate.addresses[0]) as idle:
        idle.settimeout(5)
        idle.recv(wire.NONCE)
        assert idle.recv(1) == b""


def test_taken_port_names_address_and_remedy(door):
    with pytest.raises(ConnectError, match=r"cannot listen on 127\.0\.0\.1:\d+.*port taken"):
        acceptor.Acceptor([door[0].addresses[0]], SECRET, lambda *_: None)


class Star:
    """A hub of `n` ranks and the spokes of the first `here` of them (all, unless told) in one process."""

    def __init__(self, n, here=None):
        self.aborts = [[] for _ in range(n)]
        self.hub = hub.Hub(n)
        self.spokes, self.sockets = [], []
        for _ in range(n if here is None else here):
            self.join()

    def join(self):
        rank = len(self.spokes)
        ours, theirs = socket.socketpair()
        self.hub.add(rank, ours)
        spoke = hub.Spoke(theirs, on_lost=lambda: None)
        spoke.tell_aborts(self.aborts[rank].append)
        spoke.start()
        self.spokes.append(spoke)
        self.sockets.append(theirs)

    def close(self):
        for spoke in self.spokes:
            spoke.close()
        self.hub.close()


@pytest.fixture
def star():
    stars = []

    def make(n, here=None):
        stars.append(Star(n, here))
        return stars[-1]

    yield make
    for made in stars:
        made.close()


def wait_for(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_gather_gives_everybody_everything(star):
    s, out = star(4), [None] * 4
    threads = [threading.Thread(target=lambda r=r: out.__setitem__(r, s.spokes[r].gather("x", r * r, 5))) for r in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert out == [[0, 1, 4, 9]] * 4


def test_gather_that_lacks_a_rank_times_out(star):
    with pytest.raises(OpTimeout, match="not all ranks took part"):
        star(2).spokes[0].gather("x", 1, 0.05)


def test_who_comes_after_an_abort_hears_of_it_at_once(star):
    s, late = star(2), []
    s.spokes[1].abort(AbortedError("first", rank=1))
    wait_for(lambda: s.aborts[0])
    s.spokes[0].tell_aborts(late.append)
    assert [str(e) for e in late] == ["first"]


def test_a_rank_added_after_an_abort_hears_of_it(star):
    s = star(3, here=2)
    s.sockets[1].shutdown(socket.SHUT_RDWR)
    wait_for(lambda: s.aborts[0])
    s.join()
    wait_for(lambda: s.aborts[2])
    assert isinstance(s.aborts[2][0], PeerLostError) and s.aborts[2][0].rank == 1


def test_a_rank_added_in_the_next_epoch_hears_of_no_old_abort(star):
    s = star(3, here=2)
    s.spokes[1].abort(AbortedError("first", rank=1))
    wait_for(lambda: s.aborts[0])
    s.hub.new_epoch()
    s.join()
    assert s.hub.send(2, {"t": "abort", "error": AbortedError("second", rank=0).to_wire()})
    wait_for(lambda: s.aborts[2])
    assert [str(e) for e in s.aborts[2]] == ["second"]


def test_first_abort_reason_wins_everywhere(star):
    s = star(3)
    s.spokes[1].abort(AbortedError("first", rank=1))
    wait_for(lambda: all(s.aborts))
    s.spokes[2].abort(AbortedError("second", rank=2))
    time.sleep(0.05)
    assert [[str(e) for e in seen] for seen in s.aborts] == [["first"]] * 3


def test_lost_rank_is_named_to_the_others(star):
    s = star(3)
    s.sockets[1].shutdown(socket.SHUT_RDWR)
    wait_for(lambda: s.aborts[0] and s.aborts[2])
    assert isinstance(s.aborts[0][0], PeerLostError) and s.aborts[0][0].rank == 1


def test_goodbye_is_no_death(star):
    s = star(2)
    s.spokes[1].close()
    wait_for(lambda: 1 in s.hub.lost)
    time.sleep(0.02)
    assert not s.aborts[0] and not s.hub.wait_left(0)
    s.spokes[0].close()
    assert s.hub.wait_left(5)


def test_who_gives_up_an_exchange_hears_who_is_missing_and_all_who_wait_in_it_do(star):
    s, said = star(4), {}

    def give(rank, seconds):
        try:
            s.spokes[rank].gather("x", rank, seconds)
        except OpTimeout as error:
            said[rank] = error

    threads = [threading.Thread(target=give, args=(rank, 60 if rank else 0.2)) for rank in (0, 1)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert said[0].rank == said[1].rank == 2
    assert "rank 2 came and was not heard of since, rank 3 came" in str(said[1]) and "within 0.2 s" in str(said[1])


def test_a_rank_that_never_came_is_told_apart():
    wide = hub.Hub(2)
    ours, theirs = socket.socketpair()
    wide.add(0, ours)
    spoke = hub.Spoke(theirs, on_lost=lambda: None)
    spoke.start()
    assert wide.admitted == {0} and wide.missing("x") == [0, 1]
    with pytest.raises(OpTimeout, match="rank 1 never came") as caught:
        spoke.gather("x", 0, 0.05)
    assert caught.value.rank == 1
    spoke.close()
    wide.close()


@pytest.fixture
def silent_hub(monkeypatch):
    """A spoke of a hub that does not answer, as one whose process is stopped."""
    monkeypatch.setattr(hub, "ANSWER_S", 0.05)
    ours, theirs = socket.socketpair()
    spoke = hub.Spoke(theirs, on_lost=lambda: None, holder=0)
    spoke.start()
    yield spoke
    spoke.close()
    ours.close()


def test_a_hub_that_does_not_answer_is_named(silent_hub):
    with pytest.raises(OpTimeout, match="rank 0, which holds the job together, does not answer") as caught:
        silent_hub.gather("x", 0, 0.05)
    assert caught.value.rank == 0
    first = silent_hub.judged(ConnectError("rank 2 did not connect", rank=2), 0.05)
    assert isinstance(first, ConnectError) and first.rank == 0 and "rank 2 did not connect" in str(first)
    own = AbortedError("cancelled", rank=1)
    assert silent_hub.judged(own, 0.05) is own


@pytest.mark.parametrize("waited", [OpTimeout, ConnectError])
def test_of_those_who_wait_for_each_other_the_silent_one_is_named(waited, monkeypatch):
    monkeypatch.setattr(hub, "ROLL_CALL_S", 0.5)
    wide = hub.Hub(3)
    wide.asks = True
    spokes, ends = [], []
    for rank in range(3):
        ours, theirs = socket.socketpair()
        wide.add(rank, ours)
        ends.append(theirs)
        if rank != 1:  # nobody reads what rank 1 is told
            spokes.append(hub.Spoke(theirs, on_lost=lambda: None, holder=0))
            spokes[-1].start()
    first = spokes[1].judged(waited("rank 0 did not connect", rank=0), 60)
    assert type(first) is waited and first.rank == 1 and "rank 1 does not answer" in str(first)
    assert spokes[0].first_reason(60).rank == 1
    for spoke in spokes:
        spoke.close()
    ends[1].close()
    wide.close()


def test_an_exchange_of_an_epoch_that_is_over_gives_nothing() -> None:
    """Where only members of the next epoch are left, the hub takes their late messages for all."""
    centre = hub.Hub(1)
    ours, theirs = socket.socketpair()
    spoke = hub.Spoke(theirs, on_lost=lambda: None)
    spoke.start()
    centre.add(0, ours)
    try:
        spoke.send({"t": "gather", "name": "join-1", "value": 7})
        deadline = time.monotonic() + 20
        while "join-1" not in spoke._gathered and time.monotonic() < deadline:
            time.sleep(0.01)
        spoke._turn = 2
        with pytest.raises(AbortedError, match="epoch 2 began"):
            spoke.gather("join-1", 7, 5, turn=1)
    finally:
        spoke.close()
        centre.close()
