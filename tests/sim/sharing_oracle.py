"""A naive simulator of shared links: every flow by itself, all rates anew at every event, whole numbers only.

Is: the meaning of time in ccl_lab/simulator/sharing.py, told as what happens. Channels, signals and waits are those of oracle.py; what
is its own are the routes, the rates and the flows. Is not: fast. Invariants, asserted at every event: no link above its rate; every
flow passes a link that is full but for rounding and on which no flow has a higher rate.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import Any

import numpy as np

from ccl_lab.ir import Kind

from .oracle import Oracle

UNITS = 1024  # of a byte per second


class JobOracle(Oracle):
    """One job: its channels and counters; `ranks` says which ranks of the topology its own are."""

    def __init__(
        self,
        world: SharedOracle,
        schedule: Any,
        ranks: list[int],
        layout: Any,
        late: list[int],
        compute: Any,
        alpha: int,
    ) -> None:
        self.world, self.ranks = world, ranks
        super().__init__(schedule, world.topology, layout, late, compute, alpha)

    def between(self, src: int, dst: int, channel: int) -> list[Any]:
        return super().between(self.ranks[src], self.ranks[dst], channel)

    def links(self, op: Any) -> list[Any]:
        return (
            super().links(op)
            if op.kind in (Kind.put, Kind.get, Kind.signal)
            else [("local", self.ranks[op.rank])]
        )

    def run(self) -> None:
        """Only sets up: the world runs all jobs."""
        self.prepare()
        self.queue: dict[Any, list[int]] = defaultdict(list)
        for rank, channel in self.channels:
            self.at(self.late[rank], self.next_op, (rank, channel))

    def at(self, time: int, what: Any, *args: Any) -> None:
        self.world.serial += 1
        heapq.heappush(self.world.heap, (time, self.world.serial, self.at_now, (time, what, args)))

    def at_now(self, time: int, what: Any, args: Any) -> None:
        self.now = time
        what(*args)

    def route(self, op: Any) -> list[Any]:
        """All links, those between switches too."""
        ends, network = list(dict.fromkeys(self.links(op))), self.topology.network
        if network is None or not ends[0][0].startswith("nic"):
            return ends
        (_, node, nic), (_, other, other_nic) = ends
        src, dst = (op.peer, op.rank) if op.kind == Kind.get else (op.rank, op.peer)
        uplink = network.uplink_of(self.ranks[src], self.ranks[dst], op.channel)
        up, down = [], []
        for k, tier in enumerate(network.tiers):
            if tier.group_of[node] == tier.group_of[other] and (nic == other_nic or not tier.per_rail):
                return [ends[0], *up, *reversed(down), ends[1]]
            for links, way, end, own in ((up, "up", node, nic), (down, "down", other, other_nic)):
                links.append((way, k, int(tier.group_of[end]), own if tier.per_rail else 0, int(uplink[k])))
        raise AssertionError("no switch above both")

    def rate(self, link: Any) -> int:
        if link[0] not in ("up", "down"):
            return super().rate(link)
        tier = self.topology.network.tiers[link[1]]
        return tier.uplink_bytes_per_s * (tier.uplinks if self.topology.network.routing == "spray" else 1)

    def issue(self, op: Any) -> None:
        connection = (op.rank, op.channel, op.peer)
        if op.kind == Kind.put and op.peer != op.rank:
            self.queue[connection].append(op.op_id)
            if len(self.queue[connection]) > 1:
                return
        self.begin_flow(op)

    def begin_flow(self, op: Any) -> None:
        self.start[op.op_id] = self.now
        work = self.op_bytes[op.op_id] * (len(op.sources) if op.kind == Kind.reduce else 1)
        links = self.route(op)
        held = self.alpha if work and links[0][0] != "local" else 0
        links = [link for link in links if self.rate(link) < 2**62]
        if not links or not work:
            self.at(self.now + held, self.left, op)
            return
        slowest = min(self.rate(link) for link in links)
        self.world.flows[self, op.op_id] = [links, work * 10**12 * UNITS + held * slowest * UNITS]

    def left(self, op: Any) -> None:
        connection = (op.rank, op.channel, op.peer)
        super().left(op)
        if op.kind == Kind.put and op.peer != op.rank:
            self.queue[connection].pop(0)
            if self.queue[connection]:
                self.begin_flow(self.ops[self.queue[connection][0]])


class SharedOracle:
    """Runs (schedule, ranks, layout, late, compute) jobs on one topology; `jobs` then hold what an Oracle holds."""

    def __init__(self, topology: Any, jobs: list[Any], alpha: int = 0) -> None:
        self.topology, self.heap, self.serial = topology, [], 0
        self.flows: dict[Any, list[Any]] = {}  # (job, op_id): [links, work left]
        self.carried: dict[Any, int] = defaultdict(int)
        self.jobs = [
            JobOracle(self, schedule, ranks, layout, late, compute, alpha)
            for schedule, ranks, layout, late, compute in jobs
        ]
        self.run()
        for job in self.jobs:
            assert len(job.end) == len(job.ops) and not any(job.sleeping.values())

    def run(self) -> None:
        now = 0
        while self.heap or self.flows:
            rates = self.rates()
            ends = [now - -left // rates[flow] for flow, (_, left) in self.flows.items()]
            time = min([*ends, *(event[0] for event in self.heap[:1])])
            for flow, entry in self.flows.items():
                entry[1] -= rates[flow] * (time - now)
            now = time
            for flow in [flow for flow, (_, left) in self.flows.items() if left <= 0]:
                del self.flows[flow]
                flow[0].at(now, flow[0].left, flow[0].ops[flow[1]])
            while self.heap and self.heap[0][0] == now:
                _, _, what, args = heapq.heappop(self.heap)
                what(*args)

    def rates(self) -> dict[Any, int]:
        """Units of each flow: the smallest share of any link to all flows of the links that have it, and again."""
        given: dict[Any, int] = {}
        users = defaultdict(list)
        for flow, (links, _) in self.flows.items():
            for link in links:
                users[link].append(flow)
        full = {link: self.jobs[0].rate(link) * UNITS for link in users}
        while len(given) < len(self.flows):
            shares = {}
            for link, flows in users.items():
                missing = [flow for flow in flows if flow not in given]
                if missing:
                    shares[link] = max(
                        1, (full[link] - sum(given.get(flow, 0) for flow in flows)) // len(missing)
                    )
            smallest = min(shares.values())
            given |= {
                flow: smallest
                for link, share in shares.items()
                if share == smallest
                for flow in users[link]
                if flow not in given
            }
        self.check(given, users, full)
        return given

    def check(self, given: dict[Any, int], users: dict[Any, list[Any]], full: dict[Any, int]) -> None:
        used = {link: sum(given[flow] for flow in flows) for link, flows in users.items()}
        assert all(used[link] <= full[link] or used[link] == len(users[link]) for link in users)
        for flow, (links, _) in self.flows.items():
            fair = [link for link in links if given[flow] == max(given[other] for other in users[link])]
            assert any(full[link] - used[link] < len(users[link]) for link in fair), "a flow could have more"


def random_jobs(
    rng: np.random.Generator, topology: Any, schedules: Any, most: int = 3
) -> list[tuple[Any, list[int], int]]:
    """(schedule, ranks, start) of a few jobs on any ranks, that overlap in time."""
    jobs = []
    for _ in range(int(rng.integers(1, most + 1))):
        n = int(rng.integers(1, topology.n_ranks + 1))
        jobs.append(
            (schedules(rng, n), rng.permutation(topology.n_ranks)[:n].tolist(), int(rng.integers(0, 10**9)))
        )
    return jobs
