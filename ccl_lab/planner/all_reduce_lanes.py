"""All_reduce over lanes: shares of the message to a ring over all nodes, and to meetings of members and outsiders.

    lane of all nodes        ring passes on the first share, then the blocks of rounds in which outsiders meet (lane_meeting)
    lane of members only     the reduce-scatters for those meetings, from the beginning on

Steps are a timetable (decision 17) where both ends are tight, and where there is the ring alone, whose lanes are in step then.

Is: from shares to lanes, regions, waves and ops, and the load of every NIC, which is what the estimate is made of. Is not: the choice
of shares (all_reduce_resilient, all_reduce_recursive, all_reduce_optcc). Invariant: load is bytes over a NIC per byte of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import merge
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from ..ir import Builder, RingLoops, Schedule
from ..topo import Topology
from .cost import CHUNK_SECONDS, OP_SECONDS, Cost, best_rounds, machine
from .degraded import CHANNELS, I64, Lanes, finish, lanes, no_load, node_order
from .kept import kept_by_topology
from .lane_meeting import Meeting, number_of_rounds
from .lane_teams import Frame, Ring, Role
from .problem import Problem

MOST_WAVES = 64  # twice as many where both ends are tight
# What the simulator, whose links serve in a fixed order, adds to the estimate where outsiders add, or levels share lanes.
SLACK_THROUGH, SLACK_LEVELS = 1.2, 1.65
MOST_ROWS = 2_000_000  # ops of a plan, about
PARTS_PER_CHUNK = 16  # so that chunks are as long as shares say to within 1/32, or exactly where slices are equal
PIECE = 16  # ticks of a timetable that a piece of a meeting takes: shares of it tell chunks of other lengths apart
AHEAD = 8 * PIECE  # ticks between what ranks of a node do with a wave and its next use: to put it to one another, to add, to pass it on
# Blocks between the end of the reduce-scatters and that of the meetings: the last unit is met, then goes round, and its last sections
# came half a block later than its first.
BLOCKS_AFTER = 2.5


class Level(NamedTuple):
    """A share of the message that `members` reduce among themselves before they meet the `outsiders`."""

    members: tuple[int, ...]
    outsiders: tuple[int, ...]
    share: float


class Shares(NamedTuple):
    """What goes over the ring of all nodes and what to each level.

    through: outsiders add on every other lane; tight: both end together, so that the meetings are cut finer.
    """

    ring: float
    levels: tuple[Level, ...] = ()
    through: bool = False
    tight: bool = False


class Allocation(NamedTuple):
    """Lanes of all nodes, lanes of the members of each level (None: no NIC is free), share of the units that take those.

    Seconds per byte of the message: `common` on the lanes of all, of which `meeting` with outsiders; `apart` on those of members.
    """

    ring: Lanes
    apart: tuple[Lanes | None, ...]
    fraction: tuple[float, ...]
    common: float
    meeting: float
    apart_seconds: float
    load: np.ndarray
    local: int


@kept_by_topology(512)
def allocate(topology: Topology, shares: Shares) -> Allocation:
    """Lanes for `shares`: those of all nodes by what every node moves on them, then those of members on NICs that are left."""
    order = node_order(topology)
    n = len(order)
    meets = np.zeros(topology.n_nodes)
    for level in shares.levels:
        m, o = len(level.members), len(level.outsiders)
        meets[list(level.members)] += level.share * (o / m + (m - 1) / m)
        meets[list(level.outsiders)] += level.share
    amount = 2 * (n - 1) / n * shares.ring + meets
    ring = lanes(topology, order, amount[np.array(order)], few=True)
    common, meeting = finish(topology, ring.load), _alone(topology, ring, meets)
    used = np.zeros((topology.n_nodes, topology.nics_per_node), bool)
    used[np.array(ring.nodes)[None, :], ring.nic] = True
    free, taken, load = no_load(topology), frozenset(ring.channel.tolist()), ring.load
    apart: list[Lanes | None] = []
    fraction: list[float] = []
    for level in shares.levels:
        m = len(level.members)
        found = _members_only(topology, level, free, taken, used) if m > 1 else None
        scatters = np.zeros(topology.n_nodes)
        scatters[list(level.members)] = level.share * (m - 1) / m
        here = _alone(topology, ring, scatters)
        part = 0.0 if found is None else min(1.0, (common + here) / (finish(topology, found.load) + here))
        if found is not None:
            free, taken = free + (found.load - free) * part, taken | set(found.channel.tolist())
        common += (1 - part) * here
        apart.append(found)
        fraction.append(part)
    load = load + free
    local = next(c for c in range(CHANNELS + 1) if c not in taken)
    return Allocation(ring, tuple(apart), tuple(fraction), common, meeting, finish(topology, free), load, local)


def _members_only(topology: Topology, level: Level, load: np.ndarray, taken: frozenset[int], used: np.ndarray) -> Lanes | None:
    """Lanes on NICs that no lane of all nodes uses, where every member has one."""
    up = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1) > 0
    if not (up & ~used)[list(level.members)].any(axis=1).all() or len(taken) >= CHANNELS // 2:
        return None
    m = len(level.members)
    return lanes(topology, level.members, np.full(m, level.share * (m - 1) / m), load, taken, avoid=used)


def _alone(topology: Topology, ring: Lanes, amount: np.ndarray) -> float:
    """Seconds per byte that the lanes need for amount[node]."""
    load = no_load(topology)
    nodes = np.array(ring.nodes)
    np.add.at(load, (nodes[None, :], ring.nic), (ring.weight / ring.units)[:, None] * amount[nodes])
    return finish(topology, load)


class Depth(NamedTuple):
    """Passes of the ring and chunks a step of it; units of the meetings and pieces of a chunk of them."""

    passes: int
    ring_depth: int
    waves: int
    pieces: int


def depth_of(problem: Problem, shares: Shares, most_waves: int = MOST_WAVES) -> Depth:
    """Units K = sqrt(seconds of the meetings / latency of a block); passes of the ring by what they hide inside a node."""
    if _adds_on_the_way(problem, shares):
        return _alone_depth(problem, shares)[0]
    topology, found, at = problem.topology, allocate(problem.topology, shares), machine(problem.topology)
    hop = OP_SECONDS + at.alpha_nic
    lane = max(1, len(found.ring.channel))
    members = max([len(level.members) for level in shares.levels], default=1)
    waves, pieces = 1, 1
    if shares.levels:
        finer, most_waves = (6, 2 * most_waves) if shares.tight else (1, most_waves)
        waves = _power_of_two(finer * np.sqrt(problem.nbytes * found.meeting / (members * (hop / 4 + CHUNK_SECONDS))), most_waves)
        while waves > 1 and len(shares.levels) * waves * members * topology.n_nodes * lane * 16 > MOST_ROWS:
            waves //= 2
        share = problem.nbytes * sum(level.share for level in shares.levels) / lane / members
        # A chunk in two pieces hides the way of one behind the other; where both ends are tight, so that nothing else hides it,
        # there are no more units than leave room for two.
        while shares.tight and waves > 1 and share / waves / at.one_nic <= 2 * hop:
            waves //= 2
        pieces = 2 if share / waves / at.one_nic > 2 * hop else 1
    chunk = problem.nbytes * shares.ring / topology.n_nodes / lane
    depth = _power_of_two(np.sqrt((at.add(chunk) + chunk / at.one_nic / 4) / CHUNK_SECONDS), 4)
    passes = 1
    if at.group > 1:
        node = 2 * (at.group - 1) / at.group * problem.nbytes / at.fabric + at.add(problem.nbytes / at.group, at.group)
        passes = _power_of_two(np.sqrt(node / ((2 * topology.n_nodes - 2) * hop + at.group * CHUNK_SECONDS)), 16)
        # One chunk a step leaves the NIC idle while the chunk is under way and is added; two fill each other's gaps.
        # The other chunk costs a wait, an addition and a put more.
        piece = chunk / passes / 2
        depth = 2 if min(piece / at.one_nic, hop + at.add(piece)) > 3 * OP_SECONDS else min(depth, 2)
    if shares.levels and shares.ring:
        # Chunks of the ring and of the meetings of one size, so that lanes of all nodes and of members advance in step.
        piece = max(level.share / len(level.members) for level in shares.levels) / waves / pieces
        most = max(1, MOST_ROWS // (6 * topology.n_nodes**2 * lane * passes))
        depth = max(min(depth, most), min(most, round((1.2 if shares.tight else 1) * shares.ring / topology.n_nodes / passes / piece)))
    return Depth(passes, depth, waves, pieces)


def _adds_on_the_way(problem: Problem, shares: Shares) -> bool:
    """Whether rings alone carry what nodes of several ranks have."""
    return not shares.levels and problem.topology.gpus_per_node > 1


def _alone_depth(problem: Problem, shares: Shares) -> tuple[Depth, float]:
    """Of rings alone, with work inside nodes before and after; and the seconds that they take."""
    at, found = machine(problem.topology), allocate(problem.topology, shares)
    wire = problem.nbytes * found.common / (2 * problem.topology.n_nodes - 2)
    piece = problem.nbytes / len(found.ring.channel) / problem.topology.n_nodes
    rounds = best_rounds(at, problem.nbytes, piece, wire, as_slices=False)
    return Depth(rounds.number, rounds.abreast, 1, 1), rounds.seconds


def rows(problem: Problem, shares: Shares) -> int:
    """Ops of the schedule, within a small factor."""
    found, depth, n = allocate(problem.topology, shares), depth_of(problem, shares), problem.topology.n_nodes
    ring = 6 * (n - 1) * depth.passes * depth.ring_depth if shares.ring else 0
    meetings = sum(depth.waves * depth.pieces * len(level.members) * 8 for level in shares.levels)
    inside = 4 * problem.topology.gpus_per_node * (depth.passes + depth.waves)
    return n * len(found.ring.channel) * (ring + meetings + inside)


def _power_of_two(value: float, most: int) -> int:
    return 1 << min(max(round(float(np.log2(value))) if value > 0 else 0, 0), most.bit_length() - 1)


def estimate(problem: Problem, shares: Shares, most_waves: int = MOST_WAVES) -> Cost:
    """T = max(lanes of all + a tail of 1/K of the meetings, lanes of members + a block) + what nodes do inside + latency."""
    found, group = allocate(problem.topology, shares), problem.topology.gpus_per_node
    if _adds_on_the_way(problem, shares):
        depth, seconds = _alone_depth(problem, shares)
        steps = depth.passes * (2 * problem.topology.n_nodes - 2)
    else:
        seconds, steps = _summed_before(problem, shares, found, depth_of(problem, shares, most_waves))
    crossed = float((found.load * problem.nbytes).max())
    return Cost(seconds, steps + (2 if group > 1 else 0), float(found.load.sum(axis=1).max()) * problem.nbytes, crossed)


def _summed_before(problem: Problem, shares: Shares, found: Allocation, depth: Depth) -> tuple[float, int]:
    """Seconds and steps where nodes add up what they have before lanes begin."""
    at = machine(problem.topology)
    size, n, hop = problem.nbytes, problem.topology.n_nodes, OP_SECONDS + at.alpha_nic
    wire = size * _wire(found, shares, depth)
    lane = len(found.ring.channel)
    pieces = max(1, depth.ring_depth)
    steps = depth.passes * (2 * n - 2) if shares.ring else 0
    chunk = size * shares.ring / n / lane / depth.passes / pieces
    slow = steps * max(0.0, hop + at.add(chunk) - (pieces - 1) * chunk / at.one_nic) + hop
    for level in shares.levels:
        turns = number_of_rounds(len(level.members), len(level.outsiders))
        piece = size * level.share / lane / depth.waves / len(level.members) / depth.pieces
        gap = hop + at.add(piece) - (depth.pieces - 1) * piece / at.one_nic
        # Ops of a round that are started while its pieces are under way cost nothing more.
        ops = 2 * depth.pieces * OP_SECONDS - (depth.pieces * piece / at.one_nic if shares.tight else 0.0)
        slow += (depth.waves + 1) * turns * max(ops, gap, 0.0)
        steps += (depth.waves + 1) * turns
    group = at.group
    inside = 2 * (group - 1) / group * size / at.fabric + at.add(size / group, group) if group > 1 else 0.0
    adds = at.add(size) * (n - 1) / n
    seconds = max(wire + slow, inside, adds) + inside / max(depth.passes, 1)
    return seconds * (SLACK_THROUGH if shares.through else SLACK_LEVELS if len(shares.levels) > 1 else 1.0), steps


def _wire(found: Allocation, shares: Shares, depth: Depth) -> float:
    """Seconds per byte of the message until the lanes of all have ended, and those of members with what waits for them."""
    block, unit = found.meeting / depth.waves, found.apart_seconds / depth.waves
    if not shares.tight:
        return max(found.common + block, found.apart_seconds + 2 * block if shares.levels else 0.0)
    # The first unit is summed up while the ring has the lanes of all; another one, on these, in the first block.
    head = max(0.0, unit - (found.common - found.meeting))
    return max(head + found.common + block, found.apart_seconds - unit * (early_unit(depth) >= 0) + BLOCKS_AFTER * block)


def early_unit(depth: Depth) -> int:
    """Which unit's reduce-scatter goes with the first block: the third, so that its sums are there when they are met; -1 for none."""
    return min(2, depth.waves - 1) if depth.waves > 1 else -1


def _regions(shares: list[np.ndarray], least: list[int]) -> tuple[list[tuple[I64, I64]], int]:
    """(lo, hi) parts of the slices of each job, and the number of parts; a slice has `least` of its job's parts at least."""
    flat = np.concatenate(shares)
    floor = np.concatenate([np.full(len(share), count) for share, count in zip(shares, least, strict=True)])
    most = max(int(np.max(floor / np.maximum(flat, 1e-12) * (flat > 0.02))), int(floor.sum()))
    total = most * (1 if _even(flat, floor) else PARTS_PER_CHUNK)
    size = np.maximum(np.round(flat / flat.sum() * total).astype(np.int64), floor)
    size = np.maximum((size + floor // 2) // floor, 1) * floor  # equal chunks, so that no round waits for a longer one
    end = np.cumsum(size)
    cuts = np.cumsum([len(share) for share in shares])[:-1]
    return list(zip(np.split(end - size, cuts), np.split(end, cuts), strict=True)), int(end[-1])


def _in_shares(weight: I64, least: int) -> tuple[list[tuple[I64, I64]], int]:
    """What `_regions` returns for one job: slices exactly as their weights, all chunks of one as many parts."""
    size = weight // np.gcd.reduce(weight) * least
    end = np.cumsum(size)
    return [(end - size, end)], int(end[-1])


def regions_of(topology: Topology, shares: Shares, depth: Depth) -> tuple[list[tuple[I64, I64]], int]:
    """(lo, hi) parts of each slice: of the ring, where there is one, then of each level; and the number of parts."""
    found = allocate(topology, shares)
    weight = found.ring.weight / found.ring.units
    sizes = [weight * level.share for level in shares.levels]
    least = [depth.waves * depth.pieces * len(level.members) for level in shares.levels]
    if shares.ring > 0:
        sizes.insert(0, weight * shares.ring)
        least.insert(0, depth.passes * depth.ring_depth * topology.n_nodes)
    return _regions(sizes, least) if len(sizes) > 1 else _in_shares(found.ring.weight, least[0])


def _even(flat: np.ndarray, floor: np.ndarray) -> bool:
    """Whether all slices are equal, so that a part is a chunk."""
    return bool(np.allclose(flat, flat[0]) and (floor == floor[0]).all())


def build(problem: Problem, name: str, shares: Shares, most_waves: int = MOST_WAVES) -> Builder:
    """The ops of `shares`."""
    topology = problem.topology
    found, depth = allocate(topology, shares), depth_of(problem, shares, most_waves)
    order = node_order(topology)
    regions, parts = regions_of(topology, shares, depth)
    outside = max([len(level.outsiders) for level in shares.levels], default=0)
    channels = channels_of(topology, found, shares)
    # Where nothing is cut, steps in the order of hops serve every NIC as well, and are told without an op per message.
    timed, alone = shares.tight and bool(shares.levels) and max(depth) > 1, not shares.levels
    frame = Frame(problem.builder(name, channels=channels, parts=parts, scratch_blocks=topology.gpus_per_node + outside,
                                  timetable=timed or alone), topology, found.local, ids=iter(range(channels)))
    every = np.arange(len(found.ring.weight))
    ring = None
    if shares.ring > 0:
        ring = Ring(frame, Role.of(found.ring, every, order), *regions.pop(0), depth.passes, depth.ring_depth, summed=not alone)
    meetings = [_meeting(frame, found, i, level, region, depth, shares)
                for i, (level, region) in enumerate(zip(shares.levels, regions, strict=True))]
    if ring is not None and alone:
        ring.tick = 1.0
    if timed:
        _timetable(frame, ring, meetings[0], depth)
    _inside(frame, ring, meetings, depth)
    for role, times in ([(ring.role, depth.passes)] if ring else []) + [(meeting.meet, depth.waves) for meeting in meetings]:
        frame.expect(role.rank.ravel(), times)
    if frame.b.early_waits:
        frame.arrive()
        _end_unused(frame, ring, meetings)
    around = [ring.hops(index) for index in range(depth.passes)] if ring else []
    blocks = [meeting.blocks() for meeting in meetings]
    if len(meetings) > 1 or max(depth) > 1:  # as they happen: what is far apart would be kept until what comes between is told
        for _ in merge(*(accumulate(_with_its_step(frame.b, hops))
                         for hops in (chain(*around, *blocks, _arrive(frame)), *_apart(frame, meetings, found)))):  # fmt: skip
            pass
    else:
        for _ in chain(*around, *(meeting.hops(range(1), apart=True) for meeting in meetings), *blocks, _arrive(frame)):
            pass
    return frame.b


def _arrive(frame: Frame) -> Iterator[float]:
    """The end of the lanes, where it is not told before."""
    if not frame.b.early_waits:
        frame.arrive()
    yield from ()


def _apart(frame: Frame, meetings: list[Meeting], found: Allocation) -> list[Iterator[float]]:
    """Reduce-scatters on lanes of members, hop by hop, each lane's: about how many parts their NIC carried in each."""
    lanes = [place for each in found.apart if each for place in zip(each.channel.tolist(), each.nic[:, 0].tolist(), strict=True)]

    def hops(channel: int, sharing: int) -> Iterator[float]:
        for meeting in meetings:
            yield from (sharing * parts for parts in meeting.hops(range(meeting.waves), apart=True, channel=channel))
        ranks = [meeting.rs_rank[meeting.rs_channel == channel].ravel() for meeting in meetings]
        frame.b.ends(np.concatenate(ranks), channel)

    return [hops(channel, sum(other == nic for _, other in lanes)) for channel, nic in lanes]


def _with_its_step(b: Builder, hops: Iterator[float]) -> Iterator[float]:
    """`hops`, told with others in between."""
    step = b.step
    while True:
        b.step = step
        parts = next(hops, None)
        step = b.step
        if parts is None:
            return
        yield parts


def _end_unused(frame: Frame, ring: Ring | None, meetings: list[Meeting]) -> None:
    """Channels of ranks on which nothing crosses: most of them only number signals."""
    used = np.zeros((frame.topology.n_ranks, frame.b.channels), bool)
    for role in ([ring.role] if ring else []) + [meeting.meet for meeting in meetings]:
        used[role.rank, role.channel[:, None]] = True
    for meeting in meetings:
        used[meeting.rs_rank, meeting.rs_channel[..., None]] = True
    frame.b.ends(*np.nonzero(~used))


def _timetable(frame: Frame, ring: Ring | None, meeting: Meeting, depth: Depth) -> None:
    """Steps are ticks, PIECE of them as long as a piece of the meeting takes: its blocks come after the ring."""
    if ring is not None:
        length = [float(np.diff(job.starts[:, :2]).mean()) for job in (ring, meeting)]
        ring.tick = PIECE * length[0] / length[1]
    meeting.timed(PIECE, ring.at(depth.passes) if ring is not None else 0)


def channels_of(topology: Topology, found: Allocation, shares: Shares) -> int:
    """Channels of lanes, of work inside nodes, and numbers that Frame, Ring and Meeting take for signals in it."""
    slices, inside = len(found.ring.channel), topology.gpus_per_node > 1
    numbers = inside * (2 + slices * (shares.ring > 0))
    for lane in found.apart:
        lanes = 1 + (0 if lane is None else len(lane.channel))
        numbers += slices * (lanes * (1 + inside) + inside)
    used = [int(lane.channel.max()) for lane in (found.ring, *found.apart) if lane is not None]
    return max(numbers, found.local + 1, *(channel + 1 for channel in used))


def _meeting(frame: Frame, found: Allocation, i: int, level: Level, region: tuple[I64, I64], depth: Depth, shares: Shares) -> Meeting:
    every, apart = np.arange(len(found.ring.channel)), found.apart[i]
    meet = Role.of(found.ring, every, (*level.members, *level.outsiders))
    members = len(level.members)
    alternate = every % 2 == (0 if shares.through and len(level.outsiders) == 1 else 2)
    early = early_unit(depth) if shares.tight and members > 1 else -1
    if apart is None:
        away, lane_of = Role(np.zeros(0, np.int64), np.zeros((0, members), np.int64)), np.full((len(every), depth.waves), -1)
    else:
        away = Role.of(apart, np.arange(len(apart.channel)), level.members)
        lane_of = lanes_of_units(apart, found.fraction[i], len(every), depth.waves)
    return Meeting(frame, members, meet, away, lane_of, *region, depth.waves, depth.pieces, alternate, early)


def lanes_of_units(apart: Lanes, fraction: float, slices: int, waves: int) -> I64:
    """Lane of members for each unit, i64[slices, waves], -1 for the slice's own: units one after the other, by weight."""
    weight = np.append(apart.weight / apart.units * fraction, 1 - fraction)
    credit, chosen = np.zeros(len(weight)), []
    for _ in range(slices * waves):
        credit += weight
        lane = int(np.argmax(np.round(credit, 9)))
        credit[lane] -= 1
        chosen.append(lane if lane < len(apart.channel) else -1)
    return np.array(chosen).reshape(waves, slices).T


def _inside(frame: Frame, ring: Ring | None, meetings: list[Meeting], depth: Depth) -> None:
    """What is put to owners inside the nodes, and sums there, wave by wave in the order in which they are needed; of a timetable, a wave is
    on its way while the one before is added."""
    if frame.group == 1:
        return
    timed = frame.b.timetable and bool(meetings)
    jobs = [(float(ring.at(wave) if timed else wave / depth.passes), 0, ring, wave) for wave in range(depth.passes)] if ring else []
    for i, meeting in enumerate(meetings):
        when = meeting.needed() if timed else (np.arange(depth.waves) + 0.5) / depth.waves
        jobs += [(float(when[wave]), 1 + i, meeting, wave) for wave in range(depth.waves)]
    jobs.sort(key=lambda job: job[:2])
    if not timed:  # all puts in one batch, else those of ranks that wait less go first, and fabrics wait for the others'
        for _, _, job, wave in jobs:
            job.scatter(wave)
        for _, _, job, wave in jobs:
            job.add(wave)
        return
    for i in range(len(jobs) + 1):
        add = max(0, round(jobs[i - 1][0]) - AHEAD) if i else 0
        if i < len(jobs):
            frame.b.step = max(frame.b.step, min(round(jobs[i][0]) - 2 * AHEAD, add))
            jobs[i][2].scatter(jobs[i][3])
        if i > 0:
            frame.b.step = max(frame.b.step, add)
            jobs[i - 1][2].add(jobs[i - 1][3])


def loops(problem: Problem, shares: Shares) -> RingLoops | None:
    """What the lanes repeat; None where there is more than their ring, or nodes are not of one size."""
    if not _rings_alone(problem, shares):
        return None
    ring, depth = allocate(problem.topology, shares).ring, depth_of(problem, shares)
    n, passes, twos = len(ring.nodes), depth.passes, depth.ring_depth
    [(lo, hi)], parts = _in_shares(ring.weight, n * passes * twos)
    span = (hi - lo) // (n * passes * twos)
    return RingLoops(orders=ring.rank, channel=ring.channel, parts=parts, depth=twos, steps=2 * n - 2, reducing=n - 1,
                     own=problem.topology.gpus_per_node, first=lo[:, None] + n * twos * span[:, None] * np.arange(passes),
                     stride=twos * span, span=span,
                     slice_of=np.tile(np.arange(passes), (len(lo), 1)), in_node=problem.topology.gpus_per_node > 1,
                     timetable=True)


def node_phase(problem: Problem, shares: Shares) -> Callable[[I64], Schedule] | None:
    """What the ranks of each node do among themselves before those rings begin: a schedule of one node, by the ranks that cross there."""
    topology = problem.topology
    if not _rings_alone(problem, shares) or topology.gpus_per_node == 1:
        return None
    found = allocate(topology, shares)
    inside = (topology.gpus_per_node, tuple(found.ring.channel.tolist()), tuple(found.ring.weight.tolist()), found.local,
              channels_of(topology, found, shares), depth_of(problem, shares), problem.in_place, problem.nbytes, problem.dtype,
              problem.redop)
    return lambda owners: _one_node(tuple(owners.tolist()), *inside)


@lru_cache(maxsize=64)
def _one_node(owners: tuple[int, ...], group: int, channel: tuple[int, ...], weight: tuple[int, ...], local: int, channels: int,
              depth: Depth, in_place: bool, nbytes: int, dtype: str, redop: str) -> Schedule:
    """What is done inside a node before the lanes `channel` begin at the ranks `owners`."""
    [(lo, hi)], parts = _in_shares(np.array(weight), depth.passes)
    b = Builder("all_reduce", group, algorithm="balance", in_place=in_place, channels=channels, parts=parts, scratch_blocks=group)
    frame = Frame(b, Topology.cluster(nodes=1, gpus_per_node=group, nics_per_node=0), local, ids=iter(range(channels)))
    _inside(frame, Ring(frame, Role(np.array(channel), np.array(owners)[:, None]), lo, hi, depth.passes, 1, summed=False), [], depth)
    return b.build(nbytes=nbytes, dtype=dtype, redop=redop)


def _rings_alone(problem: Problem, shares: Shares) -> bool:
    """Whether the lanes of all nodes are all there is, between nodes of one size."""
    return not shares.levels and problem.grid is not None
