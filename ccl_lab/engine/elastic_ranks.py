"""The rank processes of an elastic World: members that may leave and join, epoch by epoch.

Is: the agreement on who takes part, with the notebook process as coordinator, off the data path. Is not: what becomes of a run
(elastic_world). Invariants: a member is in or out for all others alike, from an epoch on; who is out is dead, so nothing
of it comes back; an epoch has engines, memory, connections and a secret of its own, so nothing of an old one is heard.

    regroup(members)  ─ regroup{epoch, rank, topology, secret} ─►  every member: closes its engine, makes the next
                      ◄──────────── regrouped{epoch, pid, …} ────
    one of them dies meanwhile: again, epoch + 1, without it
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import _core
from ..errors import CclError, OpTimeout, PeerLostError, UsageError, from_wire
from ..topo import Topology
from . import wire
from .forkserver import how_it_ended
from .hosts import nic_addresses
from .member import Options
from .membership import Event
from .ranks import Ranks

PING_S = 0.25
EXIT_S = 0.05  # how long a closed socket waits for the news of how its process ended
LAST_EXIT_S = 2.0  # and the last of all, for whom nobody waits
REASON_S = 1.0  # how long an error of a member waits for the death that may have caused it


class ElasticRanks(Ranks):
    """Members on the places of `topology`; a place is free again when its member has left.

    groups: places that leave together. patience_s: silence after which a member is killed, while something is awaited.
    """

    def __init__(
        self, topology: Topology, options: Options, doing: Callable[[], str], groups: list[tuple[int, ...]], patience_s: float
    ) -> None:
        self.base, self.groups, self.patience_s = topology, groups, patience_s
        self.place_of = {place: place for place in range(topology.n_ranks)}  # by member
        self._team_of = {place: team for team, group in enumerate(groups) for place in group}  # by member
        self._teams = len(groups)
        self._gone: dict[int, str] = {}
        self._expelled: set[int] = set()
        self._heard: set[int] = set()
        self._came: set[int] = set()  # who was ever heard: others are starting, for which there is a deadline of its own
        self._present: set[int] = set()
        self.epoch, self.events = -1, list[Event]()
        self.on_regroup: Callable[[], Any] = lambda: None
        super().__init__(topology, options, doing)

    def _start(self) -> None:
        self._hub.open = True
        for member in range(self.n):
            self._launch(member)
        with self.watching():
            self.regroup()

    def _launch(self, member: int) -> None:
        ours, theirs = socket.socketpair()
        self._server.start(member, theirs)
        wire.send(ours, {"t": "welcome", "member": member, "options": self._options._asdict()})
        self._hub.add(member, ours)

    @property
    def pids(self) -> dict[int, int]:
        """Process of each member."""
        return {member: pid for member, pid in self._server.pids.items() if member in self.ids}

    # -- who is lost (hub and fork server threads)

    def _handle(self, rank: int, message: dict[str, Any], blob: bytes) -> None:
        with self._changed:
            self._came.add(rank)  # with its first word: it may be stopped before it was ever asked
            if message["t"] == "pong":
                self._heard.add(rank)
                self._present.add(rank)
                self._changed.notify_all()
        super()._handle(rank, message, blob)

    def _lost(self, rank: int) -> CclError:
        if not self._server.wait_exited({rank}, EXIT_S):
            self._server.kill(rank)
        return self._die(PeerLostError(f"member {rank} left: its control socket closed.", rank=rank))

    def _exited(self, rank: int, pid: int, status: int) -> None:
        self.suspicion.forget(rank)
        if self._closing:
            return
        where = f"pid {pid}, node {self.base.node_of[self.place_of[rank]]}"
        what = f"member {rank} ({where}) {how_it_ended(status)}{self._doing()}."
        if rank not in self._expelled:
            self._gone[rank] = what  # says more than that its socket closed
        self._die(PeerLostError(what, rank=rank))

    def _die(self, error: PeerLostError) -> PeerLostError:
        """Stops what the members do, if the lost one is one of them."""
        with self._changed:
            self._gone.setdefault(error.rank, str(error))
            if error.rank in self.ids:
                self.dead = self.dead or error
            self._changed.notify_all()
        if self.dead and not self._closing:
            self.abort(self.dead)
        return error

    def expel(self, member: int, why: str) -> None:
        """Counts a member as lost and ends its process: it cannot come back with what it holds of an old epoch."""
        with self._changed:
            self._gone.setdefault(member, why)
            self._expelled.add(member)
        self._server.kill(member)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While something is awaited of the members, one that is silent for `patience_s` is expelled."""
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stop,), name="ccl_lab-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=5)

    def _watch(self, stop: threading.Event) -> None:
        silent: dict[int, int] = {}
        while not stop.wait(PING_S):
            heard, self._heard = self._heard, set()
            # Rounds are counted, not seconds: a notebook process that stood still itself must not blame the members.
            silent = {member: 0 if member in heard else silent.get(member, 0) + 1 for member in self.ids}
            for member, rounds in silent.items():
                if member in self._came and rounds * PING_S > self.patience_s and member not in self._gone:
                    self.expel(member, f"member {member} was silent for {self.patience_s:g} s{self._doing()}.")
                self._hub.ping(member)

    def roll_call(self) -> None:
        """Returns when every member has answered, or the loss of one is known. For use while watching."""
        with self._changed:
            self._present = set()
        for member in self.ids:
            self._hub.ping(member)
        with self._changed:
            self._changed.wait_for(lambda: self.dead or set(self.ids) <= self._present, 2 * self.patience_s)

    # -- agreement

    def regroup(self, joining: Sequence[int] = ()) -> None:
        """Makes the next epoch of all members that live, and `joining`; with fewer where some are lost meanwhile.

        Raises PeerLostError if nobody is left, OpTimeout or a member's error if an epoch does not come together.
        """
        before, begin = self.ids if self.epoch >= 0 else (), time.monotonic()
        wanted = (*self.ids, *joining)
        while True:
            self._settle(wanted)
            try:
                self._make_epoch()
                break
            except PeerLostError:
                if not self.dead or self._closing or time.monotonic() > begin + self._options.start_timeout_s:
                    raise
        took_s = time.monotonic() - begin
        for member in sorted({*before, *joining} - {*self.ids}):
            self.events.append(Event("left", member, self.epoch, self._gone.get(member, ""), took_s))
        for member in sorted(set(self.ids) - set(before)):
            self.events.append(Event("joined", member, self.epoch, took_s=took_s))
        self.on_regroup()

    def _settle(self, wanted: Sequence[int]) -> None:
        """The members of the next epoch: those wanted that live, and whose whole group does."""
        with self._changed:
            lost_teams = {self._team_of[member]: member for member in wanted if member in self._gone}
            torn = [member for member in wanted if self._team_of[member] in lost_teams and member not in self._gone]
            living = [member for member in wanted if self._team_of[member] not in lost_teams]
            if living:
                self.epoch, self._epoch, self.dead = self.epoch + 1, 0, None
                self.ids = tuple(sorted(living, key=self.place_of.__getitem__))
        if not living:
            raise self._nobody()
        for member in torn:
            self.expel(member, f"member {member} left with member {lost_teams[self._team_of[member]]} of its group.")
        self.n = len(self.ids)
        self.topology = self.base.subset([self.place_of[member] for member in self.ids])

    def _nobody(self) -> PeerLostError:
        """The first loss, once it is known how that member ended: nobody is kept waiting by asking."""
        first = self.dead
        if first is None:
            return PeerLostError("no member is left; close this world and start a new one.")
        self._server.wait_exited({first.rank}, LAST_EXIT_S)
        return PeerLostError(self._gone[first.rank], rank=first.rank)

    def _make_epoch(self) -> None:
        shared = {"t": "regroup", "epoch": self.epoch, "topology": self.topology.to_dict(), "secret": wire.new_secret().hex()}
        messages = {
            member: shared | {"rank": rank, "addresses": nic_addresses(self.topology, int(self.topology.node_of[rank]))}
            for rank, member in enumerate(self.ids)
        }
        self._hub.regroup(self.ids, messages)
        ready = self.answers("regrouped", self.epoch, self._options.start_timeout_s, f"agreed on epoch {self.epoch}")
        with self._changed:
            self._replies.clear()  # what was said of the old epoch came before; a run that is done again has the same number
        errors = [from_wire(reply["error"]) for reply in ready.values() if reply["error"]]
        try:
            if errors:
                raise errors[0]
            segments = [_core.Segment.open(ready[r]["pid"], ready[r]["segment_fd"]) for r in range(self.n)]
        except CclError as error:
            self._wait_for_death()
            raise self.dead or error from None
        self.segments = segments
        if self.dead:
            raise self.dead

    def _wait_for_death(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.dead is not None, REASON_S)

    def reset(self) -> None:
        """After a failed run in which nobody was lost: an epoch of the same members."""
        try:
            self.regroup()
        except OpTimeout as error:
            self._die(PeerLostError(f"the world could not recover from a failed run: {error}", rank=error.rank))

    def grow(self, n: int) -> tuple[int, ...]:
        """New members on the places of `n` groups that have none; returns their numbers.

        Raises UsageError if fewer groups are free, PeerLostError if a new member is lost while it joins (the others go on).
        """
        taken = {self.place_of[member] for member in self.ids}
        free = [group for group in self.groups if not taken & set(group)]
        if not 1 <= n <= len(free):
            raise UsageError(
                f"grow({n}): expected 1 to {len(free)}, the groups of this world that have no member; all of its places are "
                f"{len(self.groups)} groups. For more, start a World on a larger topology."
            )
        joining: list[int] = []
        for group in free[:n]:
            for place in group:
                member = len(self.place_of)
                self.place_of[member], self._team_of[member] = place, self._teams
                joining.append(member)
            self._teams += 1
        for member in joining:
            self._launch(member)
        self.regroup(joining)
        missing = sorted(set(joining) - set(self.ids))
        if missing:
            why = self._gone.get(missing[0], "")
            raise PeerLostError(f"new member {missing[0]} was lost while it joined: {why} The others go on.", rank=missing[0])
        return tuple(joining)

    def close(self) -> None:
        """As of Ranks; an agreement in progress ends."""
        super().close()
        with self._changed:
            self.dead = self.dead or PeerLostError("the world was closed.")
            self._changed.notify_all()

    @property
    def nodes(self) -> np.ndarray:
        """Node of the whole topology that each node of this epoch is."""
        return np.unique(self.base.node_of[[self.place_of[member] for member in self.ids]])
