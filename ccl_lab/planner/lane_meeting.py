"""Members of a level, who lost less, and the outsiders they meet: rounds in which every NIC sends one chunk and receives one.

    reduce-scatter   members among themselves, on lanes that outsiders do not have (or on the lane of the slice): section p ends at p
    block u, round   h0 ─► h1 ─► d ─► h2 ─► h3 ─► h0     outsider d stands before another member in each round:
                     raw(u) of that member's section goes to it, and it adds; the result (u-1) of the member before comes to d;
                     on all other edges the finished sections (u-1) go round the members
    through          the outsider adds instead: partial(u) comes, the sum (u-1) goes back, sections (u-2) go round

Is: the ops of resilient, recursive and OptCC all_reduce among nodes. Is not: the plain ring (lane_teams), nor shares. Invariants: a
round is a permutation of the nodes, so no NIC waits for another; all of a lane runs on one channel in the order of rounds; a unit is one
wave's part of a slice, cut in as many sections as there are members.
Sources: R2CCL, arXiv 2512.25059 (stage 2); OptCC, arXiv 2606.01680 (sections, stages S1 to S4, second order on odd channels).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..ir import Buffer, Ref
from ..ir.builder import Ints
from .degraded import I64
from .lane_teams import Frame, Role, cut, mean_length


class Round(NamedTuple):
    """before[o]: member that outsider o stands before, or -1; item[p]: how far back the section is that p passes on, or -1."""

    before: tuple[int, ...]
    item: npt.NDArray[np.int32]


def _rounds(members: int, outsiders: int) -> Iterator[Round]:
    sent, got, turn = np.zeros(members, np.int64), np.zeros(members, np.int64), 0
    meets = members * -(-outsiders // members)
    while turn < meets or (sent < members - 1).any():
        before = tuple((turn + o) % members if turn // members == o // members else -1 for o in range(outsiders))
        passes = (sent < members - 1) & (sent <= got)
        passes[[(place - 1) % members for place in before if place >= 0]] = False
        yield Round(before, np.where(passes, sent, -1).astype(np.int32))
        sent += passes
        got += np.roll(passes, 1)
        turn += 1


@lru_cache(maxsize=64)
def rounds(members: int, outsiders: int) -> tuple[Round, ...]:
    """The rounds of a block: every outsider stands before every member once, and every section goes round.

    Outsiders stand at different places; of more outsiders than members some wait. An edge with an outsider on it carries nothing else.
    """
    return tuple(_rounds(members, outsiders))


@lru_cache(maxsize=64)
def number_of_rounds(members: int, outsiders: int) -> int:
    """How many `rounds` there are, without the rounds: among thousands of members they would fill memory."""
    if outsiders == 1:  # stands in each member's way once, just when that one would be ahead of what it got: the others need no more turns
        return members
    return sum(1 for _ in _rounds(members, outsiders))


@lru_cache(maxsize=4096)
def is_first(members: int, outsiders: int, o: int, place: int) -> bool:
    """Whether outsider `o` is the first of a block that stands before member `place`."""
    for now in rounds(members, outsiders):
        if place in now.before:
            return now.before.index(place) == o
    return False


class Meeting:
    """Regions [lo, hi), one per slice, that `members` reduce with `outsiders` in `waves` units, each chunk in `depth` pieces.

    meet: the lane of each slice, columns members, then outsiders. apart: lanes of members only, for the reduce-scatter; apart_of
    i64[S, waves]: which of them a unit takes, -1 for the slice's own. through: bool[S], slices in which the outsider adds.
    early: unit whose reduce-scatter goes with the rounds of block 0, in which members have nothing to pass on; -1 for none.
    """

    def __init__(self, frame: Frame, members: int, meet: Role, apart: Role, apart_of: I64, lo: I64, hi: I64, waves: int, depth: int,
                 through: np.ndarray, early: int = -1) -> None:
        self.frame, self.members, self.meet, self.waves, self.depth, self.through = frame, members, meet, waves, depth, through
        self.early, self.tick, self.begin = early, 0, 0
        self.outsiders = meet.rank.shape[1] - members
        self.starts = cut(lo, hi, waves * members * depth)
        self.section_parts = mean_length(self.starts, depth)
        size, lanes = len(lo), len(apart.channel) + 1
        every = np.arange(size)[:, None]
        own = (apart_of < 0) | (np.arange(waves) == early)
        channels = np.append(apart.channel, -1)
        self.rs_channel = np.where(own, meet.channel[:, None], channels[apart_of])
        ranks = np.concatenate([apart.rank, np.zeros((1, members), np.int64)])
        self.rs_rank = np.where(own[:, :, None], meet.rank[:, None, :members], ranks[apart_of])
        # Numbers per slice and lane: signals of different lanes to one wait would come in any order.
        taken = every * lanes + np.where(own, lanes - 1, apart_of)
        self.to_meet = frame.numbers(size * lanes)[taken]
        self.ready = frame.numbers(size * lanes)[taken] if frame.group > 1 else taken * 0
        self.outsider_ready = frame.numbers(size) if frame.group > 1 else every[:, 0] * 0
        self.rounds = rounds(members, self.outsiders)
        # Whether reduce-scatters come between blocks.
        self.mixed = bool(((self.rs_channel == meet.channel[:, None]) & (np.arange(waves) != early)).any())

    # -- times

    def timed(self, tick: int, begin: int) -> None:
        """Steps are a timetable: a piece takes `tick`; lanes of all nodes are free from `begin` on, and block 0 waits for its sums."""
        turns = [turn for turn, (waves, _) in enumerate(self._passes(range(self.waves), True)) if (waves == 0).any()]
        ends = [self._hop_at(0, turn + 1, 0, 0, tick) for turn in turns]
        self.tick, self.begin = tick, max([begin, *ends])

    def needed(self) -> I64:
        """Ticks from which on each unit's sums inside nodes are waited for, i64[waves]: when its reduce-scatter begins, on the slice's own
        lane the first block; no later than those of the units after it, since signals of one number come in the order of units."""
        found = np.full(self.waves, self._round_at(0, 0, 0))
        for turn, (waves, _) in reversed(list(enumerate(self._passes(range(self.waves), True)))):
            found[waves] = self._hop_at(0, turn, 0, 0)
        return np.minimum.accumulate(found[::-1])[::-1]

    def _hop_at(self, begin: int, turn: int, hop: int, i: int, tick: int | None = None) -> int:
        """When piece i leaves for a hop of pass `turn` of those that begin at `begin`; it has come when the next one leaves."""
        tick = self.tick if tick is None else tick
        return begin + ((turn * (self.members - 1) + hop) * self.depth + i) * tick if tick else hop

    def _round_at(self, block: int, turn: int, i: int) -> int:
        """When piece i of a round leaves; round -1 of a block where there are reduce-scatters between blocks: when those begin."""
        between = (self.members - 1) * self.mixed
        every = block * (len(self.rounds) + between) + 2 * between
        return self.begin + ((every + turn) * self.depth + i) * self.tick

    # -- places

    def _unit(self, at: I64, wave: int) -> tuple[I64, I64]:
        per = self.members * self.depth
        return self.starts[at, wave * per], self.starts[at, (wave + 1) * per]

    def _section(self, at: I64, wave: int, position: I64) -> tuple[I64, I64]:
        index = (wave * self.members + position % self.members) * self.depth
        return self.starts[at, index], self.starts[at, index + self.depth]

    def _piece(self, at: I64, wave: int, position: I64, i: int) -> tuple[I64, I64]:
        index = (wave * self.members + position % self.members) * self.depth + i
        return self.starts[at, index], self.starts[at, index + 1]

    # -- inside nodes

    def _contributors(self, wave: int) -> tuple[I64, I64, I64, I64]:
        """(rank, lo, hi, number to raise): members with the rank of the reduce-scatter, outsiders with the one that meets."""
        rank = np.concatenate([self.rs_rank[:, wave], self.meet.rank[:, self.members :]], axis=1)
        ready = np.concatenate([np.repeat(self.ready[:, wave : wave + 1], self.members, axis=1),
                                np.repeat(self.outsider_ready[:, None], self.outsiders, axis=1)], axis=1)
        at = np.repeat(np.arange(len(self.starts)), rank.shape[1])
        return rank.ravel(), *self._unit(at, wave), ready.ravel()

    def scatter(self, wave: int) -> None:
        """Parts of this unit go to the ranks that cross."""
        rank, lo, hi, _ = self._contributors(wave)
        self.frame.scatter(rank, lo, hi)

    def add(self, wave: int) -> None:
        """Ranks that cross add them."""
        self.frame.add(*self._contributors(wave))

    # -- reduce-scatter among members

    def _passes(self, waves: range, apart: bool, only: int = -1) -> list[tuple[I64, I64]]:
        """(wave, slice) of the units on lanes of their own, or on the slice's: in pass k each channel has its k-th one. only: a channel."""
        found: list[list[tuple[int, int]]] = []
        seen: dict[int, int] = {}
        for wave in waves:
            channel = self.rs_channel[:, wave]
            there = ((channel != self.meet.channel) == apart) & ((only < 0) | (channel == only))
            for row in np.flatnonzero(there).tolist() if wave != self.early else []:
                turn = seen[int(channel[row])] = seen.get(int(channel[row]), -1) + 1
                found += [[] for _ in range(turn + 1 - len(found))]
                found[turn].append((wave, row))
        table = [np.array(each, np.int64) for each in found]
        return [(each[:, 0], each[:, 1]) for each in table]

    def hops(self, waves: range, apart: bool, begin: int = 0, channel: int = -1) -> Iterator[float]:
        """The section of position p ends at p, and goes to the rank that meets; a pass begins while the one before it ends. Hop by hop:
        about how many parts a lane carried in each. channel: of one lane alone."""
        passes, hops, b = self._passes(waves, apart, channel), self.members - 1, self.frame.b
        for i in range(self.depth if passes else 0):
            b.step = self._hop_at(begin, 0, 0, i)
            self._first_hop(*passes[0], i)
        for turn, (wave, slices) in enumerate(passes):
            (at, p), unit = self._flat(slices), np.repeat(wave, self.members)
            for hop in range(hops):
                for i in range(self.depth):
                    b.step = self._hop_at(begin, turn, hop, i + 1)
                    self._add(at, unit, p, hop, i)
                    b.step = self._hop_at(begin, turn, hop + 1, i)
                    if hop < hops - 1:
                        self._pass_on(at, unit, p, hop + 1, i)
                    elif turn + 1 < len(passes):
                        self._first_hop(*passes[turn + 1], i)
                yield self.section_parts
            if not hops and turn + 1 < len(passes):
                self._first_hop(*passes[turn + 1], 0)
            lo, hi = self._section(at, unit, p)
            rank = self.rs_rank[at, unit, p]
            src = b.output[lo:hi] if hops else self.frame.own(rank, lo, hi)
            self.frame.hand_over(rank, self.meet.rank[at, p], src, lo, hi, self.rs_channel[at, unit], self.meet.channel[at],
                                 self.to_meet[at, unit])

    def _flat(self, slices: I64) -> tuple[I64, I64]:
        """(slice, member) of rows slice by member."""
        return np.repeat(slices, self.members), np.tile(np.arange(self.members), len(slices))

    def _first_hop(self, wave: I64, slices: I64, i: int) -> None:
        (at, p), wave = self._flat(slices), np.repeat(wave, self.members)
        if i == 0:
            self.frame.wait_own(self.rs_rank[at, wave, p], self.rs_channel[at, wave], self.ready[at, wave])
        if self.members > 1:
            self._pass_on(at, wave, p, 0, i)

    def _pass_on(self, at: I64, wave: I64, p: I64, hop: Ints, i: int) -> None:
        """Members p put piece i of the section that is at its hop number `hop`: their own part, or the sum of those before."""
        lo, hi = self._piece(at, wave, p - 1 - hop, i)
        rank, own = self.rs_rank[at, wave, p], self.frame.own(self.rs_rank[at, wave, p], lo, hi)
        self.frame.b.put(rank=rank, peer=self.rs_rank[at, wave, (p + 1) % self.members], channel=self.rs_channel[at, wave],
                         src=own._replace(buf=np.where(hop == 0, own.buf, int(Buffer.output))), dst=self.frame.landing(lo, hi))

    def _add(self, at: I64, wave: I64, p: I64, hop: Ints, i: int) -> None:
        """Members p add to that of the member before them what is their own."""
        frame, b = self.frame, self.frame.b
        rank, channel = self.rs_rank[at, wave, p], self.rs_channel[at, wave]
        lo, hi = self._piece(at, wave, p - 2 - hop, i)
        b.wait(rank=rank, peer=self.rs_rank[at, wave, (p - 1) % self.members], channel=channel)
        b.reduce(rank=rank, dst=b.output[lo:hi], srcs=[frame.landing(lo, hi), frame.own(rank, lo, hi)], channel=channel)

    def _partial(self, at: I64, p: I64, wave: int, lo: I64, hi: I64) -> Ref:
        """The partial sum at the owner that meets: in OUTPUT, unless nobody has touched what is its own."""
        own = self.frame.own(self.meet.rank[at, p], lo, hi)
        moved = (self.rs_rank[at, wave, p] != self.meet.rank[at, p]) | (self.members > 1)
        return own._replace(buf=np.where(moved, int(Buffer.output), own.buf))

    # -- blocks of rounds

    def blocks(self) -> Iterator[float]:
        """All blocks, round by round: about how many parts a lane carried in each. A reduce-scatter on the slice's own lane comes between
        blocks, two of them ahead."""
        kinds = [slices for slices in (np.flatnonzero(~self.through), np.flatnonzero(self.through)) if len(slices)]
        turns, last = len(self.rounds), self.waves + (2 if self.through.any() else 1)
        yield from self.hops(range(min(2, self.waves)), apart=False, begin=self.begin)
        for block in range(last):
            # The first round is on its way before the last one is through, unless a reduce-scatter has its place between them.
            for i in range(self.depth if self.mixed or block == 0 else 0):
                for slices in kinds:
                    self._put(slices, block, 0, i)
            for turn in range(turns):
                for i in range(self.depth):
                    for slices in kinds:
                        self._receive(slices, block, turn, i)
                        if turn + 1 < turns:
                            self._put(slices, block, turn + 1, i)
                        elif not self.mixed:
                            self._put(slices, block + 1, 0, i)
                yield self.section_parts
            if self.mixed:
                yield from self.hops(range(block + 2, min(block + 3, self.waves)), apart=False, begin=self._round_at(block, turns, 0))
            self._finish(block)

    def _stages(self, slices: I64, block: int) -> tuple[int, int, int]:
        """Units that come in, go back and go round in a block; -1 for none."""
        round_lag = 2 if self.through[slices[0]] else 1
        units = (block, block - 1, block - round_lag)
        return tuple(unit if 0 <= unit < self.waves else -1 for unit in units)  # type: ignore[return-value]

    def _meets(self, slices: I64, now: Round) -> list[tuple[I64, int, I64, I64]]:
        """(rank of the outsider, its index, member after it, member before it) for outsiders that stand somewhere."""
        found = []
        for o, j in enumerate(now.before):
            if j >= 0:
                full = np.full(len(slices), j)
                found.append((self.meet.rank[slices, self.members + o], o, full, (full - 1) % self.members))
        return found

    def _put(self, slices: I64, block: int, turn: int, i: int) -> None:
        frame, b, channel, now = self.frame, self.frame.b, self.meet.channel[slices], self.rounds[turn]
        new, back, going = self._stages(slices, block)
        through = bool(self.through[slices[0]])
        b.step = self._round_at(block, turn, i)
        for outsider, o, after, before in self._meets(slices, now):
            owner, source = self.meet.rank[slices, after], self.meet.rank[slices, before]
            if new >= 0 and through:
                lo, hi = self._piece(slices, new, before, i)
                if i == 0:
                    self._wait_partial(slices, new, before)
                partial = self._partial(slices, before, new, lo, hi)
                b.put(rank=source, peer=outsider, src=partial, dst=frame.landing(lo, hi, 1), channel=channel)
            elif new >= 0:
                lo, hi = self._piece(slices, new, after, i)
                if i == 0 and (now.before[o] == o % self.members):
                    frame.wait_own(outsider, channel, self.outsider_ready[slices])
                b.put(rank=outsider, peer=owner, src=frame.own(outsider, lo, hi), dst=frame.landing(lo, hi, 1 + o), channel=channel)
            if back >= 0:
                lo, hi = self._piece(slices, back, after if through else before, i)
                done, ends = b.output[lo:hi], (outsider, owner) if through else (source, outsider)
                b.put(rank=ends[0], peer=ends[1], src=done, dst=done, channel=channel)
        if going >= 0:
            at, p, item = self._going(slices, now)
            if len(at):
                lo, hi = self._piece(at, going, p - item, i)
                done = b.output[lo:hi]
                b.put(rank=self.meet.rank[at, p], peer=self.meet.rank[at, (p + 1) % self.members], src=done, dst=done,
                      channel=self.meet.channel[at])
        if block == 0 and self.early >= 0:
            self._put_early(slices, turn, i)

    def _put_early(self, slices: I64, turn: int, i: int) -> None:
        """Sections of the early unit take the edges on which finished ones go in later blocks."""
        if turn == i == 0:  # whoever sends later may be sent something now, which it adds to its own
            at, p = self._flat(slices)
            self.frame.wait_own(self.meet.rank[at, p], self.meet.channel[at], self.ready[at, self.early])
        at, p, item = self._going(slices, self.rounds[turn])
        if len(at):
            self._pass_on(at, np.full(len(at), self.early), p, item, i)

    def _receive(self, slices: I64, block: int, turn: int, i: int) -> None:
        frame, b, channel, now = self.frame, self.frame.b, self.meet.channel[slices], self.rounds[turn]
        new, back, going = self._stages(slices, block)
        through = bool(self.through[slices[0]])
        b.step = self._round_at(block, turn, i + 1)
        for outsider, o, after, before in self._meets(slices, now):
            owner, source = self.meet.rank[slices, after], self.meet.rank[slices, before]
            if new >= 0 and through:
                lo, hi = self._piece(slices, new, before, i)
                b.wait(rank=outsider, peer=source, channel=channel)
                if i == 0 and now.before[o] == 0:
                    frame.wait_own(outsider, channel, self.outsider_ready[slices])
                b.reduce(rank=outsider, dst=b.output[lo:hi], srcs=[frame.landing(lo, hi, 1), frame.own(outsider, lo, hi)], channel=channel)
            elif new >= 0:
                lo, hi = self._piece(slices, new, after, i)
                b.wait(rank=owner, peer=outsider, channel=channel)
                first = is_first(self.members, self.outsiders, o, now.before[o])
                if i == 0 and first:
                    self._wait_partial(slices, new, after)
                partial = self._partial(slices, after, new, lo, hi) if first else b.output[lo:hi]
                b.reduce(rank=owner, dst=b.output[lo:hi], srcs=[partial, frame.landing(lo, hi, 1 + o)], channel=channel)
            if back >= 0:
                ends = (outsider, owner) if through else (source, outsider)
                b.wait(rank=ends[1], peer=ends[0], channel=channel)
        if going >= 0:
            at, p, _ = self._going(slices, now)
            if len(at):
                b.wait(rank=self.meet.rank[at, (p + 1) % self.members], peer=self.meet.rank[at, p], channel=self.meet.channel[at])
        if block == 0 and self.early >= 0:
            at, p, item = self._going(slices, now)
            if len(at):
                self._add(at, np.full(len(at), self.early), (p + 1) % self.members, item, i)

    def _going(self, slices: I64, now: Round) -> tuple[I64, I64, I64]:
        """(slice, member, item) of every edge that carries a finished section."""
        p = np.flatnonzero(now.item >= 0)
        return np.repeat(slices, len(p)), np.tile(p, len(slices)), np.tile(now.item[p], len(slices))

    def _wait_partial(self, slices: I64, wave: int, position: I64) -> None:
        """The lane waits for the partial sum of the unit's section."""
        rank, source = self.meet.rank[slices, position], self.rs_rank[slices, wave, position]
        channel = self.meet.channel[slices]
        elsewhere = np.flatnonzero((rank != source) | (channel != self.rs_channel[slices, wave]))
        if len(elsewhere):
            self.frame.b.wait(rank=rank[elsewhere], peer=source[elsewhere], channel=channel[elsewhere],
                              sig_channel=self.to_meet[slices, wave][elsewhere])

    def _finish(self, block: int) -> None:
        """What is complete goes round the nodes."""
        for slices in (np.flatnonzero(~self.through), np.flatnonzero(self.through)):
            if not len(slices):
                continue
            _, back, going = self._stages(slices, block)
            outside = going if self.through[slices[0]] else back
            for unit, first, count in ((going, 0, self.members), (outside, self.members, self.outsiders)):
                if unit >= 0:
                    rank = self.meet.rank[slices, first : first + count]
                    at = np.repeat(slices, count)
                    self.frame.hand_round(rank.ravel(), *self._unit(at, unit), self.meet.channel[at])
