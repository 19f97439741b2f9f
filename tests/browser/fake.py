"""Stand-ins for the nouns, so that browser tests need neither engine nor simulator.

Is: a trace of a ring all_reduce with channels, NICs, copies and waits; a million spans; a topology; a schedule; a world
whose NICs can be pulled. Is not: a model of anything real.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np

from ccl_lab.ir.table import OP_COLUMNS
from ccl_lab.trace.columns import COLUMNS, SpanKind, Track


class FakeTrace:
    """The two attributes that the widgets read."""

    def __init__(self, columns: dict[str, np.ndarray], meta: dict | None = None) -> None:
        self.columns, self.meta = columns, meta or {}


def columns_of(rows: list[dict]) -> dict[str, np.ndarray]:
    """Trace columns of dicts; what is absent is -1 or 0."""
    missing = {"step": -1, "peer": -1, "op_id": -1}
    return {
        name: np.array([row.get(name, missing.get(name, 0)) for row in rows], dtype)
        for name, dtype in COLUMNS.items()
    }


def topology(nodes: int = 2, gpus: int = 4, gbits: float = 8.0) -> SimpleNamespace:
    """Nodes with one NIC per rank."""
    n = nodes * gpus
    return SimpleNamespace(name=f"cluster of {nodes} x {gpus}", n_nodes=nodes, n_ranks=n, node_of=np.arange(n) // gpus,
                           local_of=np.arange(n) % gpus, nics_per_node=gpus, nic_gbits=np.full(nodes * gpus, gbits),
                           emulated=True, rails=True, device="cpu")  # fmt: skip


class _Ring:
    """Writes the spans of one ring, step by step."""

    def __init__(self, n: int, gpus: int, channels: int, part: int, seed: int, slow_nic: int) -> None:
        self.n, self.gpus, self.channels, self.part, self.slow_nic = n, gpus, channels, part, slow_nic
        self.rng = np.random.default_rng(seed)
        self.rows: list[dict] = []

    def add(self, base: dict, track: Track, kind: SpanKind, begin: float, end: float, **more: int) -> None:
        self.rows.append({**base, "track": track, "kind": kind, "begin_ns": begin, "end_ns": end, **more})

    def wires(self, base: dict, peer: int, nic: int, begin: float, took: float) -> None:
        """Four segments on the sender's and the receiver's NIC."""
        at = {**base, "rank": peer, "node": peer // self.gpus, "peer": base["rank"]}
        for k in range(4):
            low, high = begin + took * k / 4, begin + took * (k + 1) / 4
            more = {"index": nic, "nbytes": self.part // 4}
            self.add({**base, "peer": peer}, Track.nic_tx, SpanKind.segment, low, high, **more)
            self.add(at, Track.nic_rx, SpanKind.segment, low + 20_000, high + 20_000, **more)

    def turn(self, r: int, c: int, step: int, before: np.ndarray) -> float:
        """What rank r does in a step on a channel; returns when it is done."""
        peer, left, node = (r + 1) % self.n, (r - 1) % self.n, r // self.gpus
        far, nic = peer // self.gpus != node, (r % self.gpus + c) % self.gpus
        rate = (1.0 if far else 4.0) * (0.35 if far and nic == self.slow_nic else 1.0)
        took = self.part / rate * (1 + 0.06 * self.rng.random())
        begin, end = before[r], before[r] + took
        op = (step * self.n + r) * self.channels * 3 + c * 3
        base = {"rank": r, "node": node, "op_id": op, "step": step, "coll_id": 1}
        self.add(base, Track.channel, SpanKind.put, begin, end, index=c, peer=peer, nbytes=self.part)
        if far:
            self.wires(base, peer, nic, begin, took)
        else:
            self.add(base, Track.fabric, SpanKind.segment, begin, end, peer=peer, nbytes=self.part)
        late = before[left] + self.part / (1.0 if left // self.gpus != node else 4.0) * 1.05
        waited = max(late, end)
        if waited > end:
            self.add({**base, "op_id": op + 1}, Track.channel, SpanKind.wait, end, waited, index=c, peer=left)
        if step >= self.n - 1:
            return waited
        done = waited + self.part / 9
        for track, index in ((Track.channel, c), (Track.copy, 0)):
            self.add(
                {**base, "op_id": op + 2}, track, SpanKind.reduce, waited, done, index=index, nbytes=self.part
            )
        return done


def ring(
    n: int = 8,
    gpus: int = 4,
    channels: int = 2,
    nbytes: int = 64 << 20,
    seed: int = 1,
    slow_nic: int = -1,
    source: str = "measured",
    origin: int = 1_000_000_000,
) -> FakeTrace:
    """A ring all_reduce: 2 (n - 1) steps on each channel; crossings between nodes use NICs, others the fabric."""
    made = _Ring(n, gpus, channels, nbytes // n // channels, seed, slow_nic)
    clock = np.full((n, channels), float(origin))
    for step in range(2 * (n - 1)):
        for c in range(channels):
            before = clock[:, c].copy()
            for r in range(n):
                clock[r, c] = made.turn(r, c, step, before)
    end = max(row["end_ns"] for row in made.rows)
    meta = {"source": source, "collective": "all_reduce", "algorithm": "ring", "n_ranks": n, "nbytes": nbytes, "dtype": "float32",
            "time_us": (end - origin) / 1e3, "drops": 0, "emulated": source == "measured"}  # fmt: skip
    return FakeTrace(columns_of(made.rows), meta)


def million(n: int = 1_000_000, lanes: int = 64, seed: int = 0) -> FakeTrace:
    """`n` spans on 64 lanes of 8 ranks: 4 channels, 2 NICs each way."""
    rng = np.random.default_rng(seed)
    per = n // lanes
    tracks = np.array([Track.channel] * 4 + [Track.nic_tx] * 2 + [Track.nic_rx] * 2)
    indices = np.array([0, 1, 2, 3, 0, 1, 0, 1])
    lane = np.repeat(np.arange(lanes), per)
    gaps, lengths = rng.integers(10, 4000, (lanes, per)), rng.integers(200, 8000, (lanes, per))
    begin = np.cumsum(gaps + lengths, axis=1) - lengths
    size = len(lane)
    kinds = rng.choice(
        [SpanKind.put, SpanKind.wait, SpanKind.reduce, SpanKind.copy], size, p=[0.5, 0.2, 0.2, 0.1]
    )
    track = tracks[lane % 8]
    values = {
        "rank": lane // 8, "node": lane // 32, "track": track, "index": indices[lane % 8],
        "kind": np.where(track == Track.channel, kinds, SpanKind.segment), "op_id": np.arange(size), "step": np.arange(size) % 14,
        "peer": (lane // 8 + 1) % 8, "nbytes": rng.integers(1, 1 << 20, size),
        "begin_ns": begin.ravel(), "end_ns": (begin + lengths).ravel(),
    }  # fmt: skip
    columns = {name: np.asarray(values.get(name, np.zeros(size)), dtype) for name, dtype in COLUMNS.items()}
    return FakeTrace(
        columns, {"source": "simulated", "collective": "all_reduce", "algorithm": "ring", "n_ranks": 8}
    )


def schedule(n: int = 8) -> SimpleNamespace:
    """Ring all_reduce as op columns."""
    names = tuple(OP_COLUMNS)
    rows: list[tuple] = []
    src: list[tuple] = []

    def op(
        rank: int,
        step: int,
        kind: int,
        peer: int = -1,
        sig: int = -1,
        value: int = 0,
        chunk: int = 0,
        sources: list | None = None,
    ) -> None:
        sources = sources or []
        dst = 2 if kind == SpanKind.put and step < n - 1 else 1
        rows.append((rank, 0, step, kind, peer, sig, value, dst, chunk, 1, len(src), len(sources), 0))
        src.extend(sources)

    for step in range(2 * (n - 1)):
        for r in range(n):
            send, take = (r - step) % n, (r - step - 1) % n
            op(r, step, SpanKind.put, (r + 1) % n, 0, 0, send, [(r, 0 if step == 0 else 1, send)])
            op(r, step, SpanKind.wait, (r - 1) % n, 0, step + 1)
            if step < n - 1:
                op(r, step, SpanKind.reduce, chunk=take, sources=[(r, 2, take), (r, 0, take)])
    columns = dict(zip(names, np.array(rows, np.int32).T, strict=False))
    for i, name in enumerate(("src_rank", "src_buf", "src_chunk")):
        columns[name] = np.array([row[i] for row in src], np.int32)
    return SimpleNamespace(
        ops=SimpleNamespace(**columns),
        collective="all_reduce",
        algorithm="ring",
        n_ranks=n,
        n_channels=1,
        parts=n,
        nbytes=64 << 20,
        dtype="float32",
        reasons=("ring: 2 (n - 1) / n of the bytes cross each link, the least there is",),
    )


class FakeFaults:
    """`world.faults`: what is done to it holds at once; the engine's events follow as if a NIC had been lost and replaced."""

    WORDS = {"nic_down": "down", "cable": "unplugged", "black_hole": "silent", "cap": "capped", "flap": "flapping"}
    VERDICTS = {"nic_down": "own_nic", "cable": "own_cable", "black_hole": "own_nic"}

    def __init__(self, gpus: int = 4, n: int = 8) -> None:
        self.gpus, self.n = gpus, n
        self.log: list[SimpleNamespace] = []
        self.calls: list[tuple[float, str]] = []  # time.time() and the Python of each call
        self.coming: list[dict] = []

    def __getattr__(self, kind: str):
        if kind not in (*self.WORDS, "pause", "kill"):
            raise AttributeError(kind)
        return lambda **where: self.do(kind, where)

    def do(self, kind: str, where: dict) -> SimpleNamespace:
        if kind == "flap":
            raise RuntimeError("this fabric cannot flap: use nic_down")
        said = ", ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in where.items())
        place = {"node": None, "nic": None, "rank": None, **{k: v for k, v in where.items() if k in ("node", "nic", "rank")}}
        made = SimpleNamespace(number=len(self.log) + 1, kind=kind, state="active", fired=4, time_ns=time.monotonic_ns(), undone_ns=0,
                               python=f"world.faults.{kind}({said})", **place)  # fmt: skip
        self.log.append(made)
        self.calls.append((time.time(), made.python))
        if kind in self.VERDICTS:
            self.react(made)
        return made

    def react(self, fault: SimpleNamespace) -> None:
        """Both ends of every path lose it, send again over others, and agree whose fault it is."""
        far = 1 - fault.node
        for k in range(2):
            own, peer = fault.node * self.gpus + k, far * self.gpus + k
            at = fault.time_ns + 1_200_000 + k * 200_000
            for rank, other, node in ((own, peer, fault.node), (peer, own, far)):
                base = {"rank": rank, "node": node, "nic": fault.nic, "peer": other, "peer_nic": fault.nic, "verdict": "none"}
                mine = node == fault.node
                verdict = self.VERDICTS[fault.kind] if mine else self.VERDICTS[fault.kind].replace("own", "peer")
                proof = f"probes {fault.node}-{far} lost, {fault.node}-third lost, third-{far} answered"
                self.coming += [
                    {**base, "time_ns": at, "kind": "lost", "text": "connection reset by peer"},
                    {**base, "time_ns": at + 5_000_000, "kind": "resumed", "text": f"3 segments sent again over NIC {(fault.nic + 1) % 4}"},
                    {**base, "time_ns": at + 11_000_000, "kind": "verdict", "text": proof, "verdict": verdict},
                ]  # fmt: skip

    @property
    def events(self) -> list[dict]:
        return [event for event in self.coming if event["time_ns"] <= time.monotonic_ns()]

    def history(self, since_ns: int) -> list[dict]:
        found = list(self.events)
        for fault in self.log:
            about = {"what": fault.kind, "python": fault.python, "text": "", "number": fault.number}
            about |= {k: getattr(fault, k) for k in ("node", "nic", "rank") if getattr(fault, k) is not None}
            found.append({"kind": "injected", "time_ns": fault.time_ns, **about})
            if fault.undone_ns:
                found.append({"kind": "undone", "time_ns": fault.undone_ns, **about})
        return sorted(found, key=lambda event: event["time_ns"])

    def undo(self, number: int) -> None:
        fault = self.log[number - 1]
        fault.state, fault.undone_ns = "undone", time.monotonic_ns()
        self.calls.append((time.time(), f"world.faults.undo({number})"))
        if fault.kind in self.VERDICTS:
            base = {"rank": fault.node * self.gpus, "node": fault.node, "nic": fault.nic, "peer": (1 - fault.node) * self.gpus}
            text = "5 probes in order answered"
            self.coming.append({**base, "peer_nic": fault.nic, "time_ns": fault.undone_ns + 120_000_000, "kind": "back", "text": text})

    def heal(self) -> None:
        for fault in self.log:
            if fault.state == "active" and fault.kind != "kill":
                self.undo(fault.number)

    def state(self) -> dict:
        return {(f.node, f.nic): self.WORDS[f.kind] for f in self.log if f.state == "active" and f.kind in self.WORDS}

    def ranks(self) -> dict:
        words = {"pause": "paused", "kill": "killed"}
        return {f.rank: words[f.kind] for f in self.log if f.state == "active" and f.kind in words}


class FaultyWorld:
    """A world that runs for ever: every NIC carries 70 % of its line rate; where one is dead, the others of its node its share."""

    STEP_NS = 4_000_000
    REPAIR_NS = 6_500_000

    def __init__(self, nodes: int = 2, gpus: int = 4) -> None:
        self.topology = topology(nodes, gpus)
        self.faults = FakeFaults(gpus, nodes * gpus)
        self.feed = SimpleNamespace(poll=self.poll)
        self.at = time.monotonic_ns()
        self.cancelled, self.step = 0, 0

    def dead(self, node: int, nic: int, at: int) -> int:
        """For how long a NIC has been dead at a time, in ns; -1: it is not."""
        for f in self.faults.log:
            held = (f.node, f.nic) == (node, nic) and f.kind in FakeFaults.VERDICTS
            if held and f.time_ns <= at and (not f.undone_ns or at < f.undone_ns + 120_000_000):
                return at - f.time_ns
        return -1

    def share(self, node: int, nic: int, at: int) -> float:
        """Of the line rate."""
        if self.dead(node, nic, at) >= 0:
            return 0.0
        capped = any((f.node, f.nic, f.kind, f.state) == (node, nic, "cap", "active") for f in self.faults.log)
        for other in range(self.topology.nics_per_node):
            if 0 <= self.dead(node, other, at) < self.REPAIR_NS and nic == other:
                return 0.0
            if self.dead(node, other, at) >= self.REPAIR_NS:
                return 0.5 if capped else 0.93
        return 0.5 if capped else 0.7

    def poll(self) -> tuple[np.ndarray, int]:
        rows, now = [], time.monotonic_ns()
        gpus, n = self.topology.nics_per_node, self.topology.n_ranks
        while self.at + self.STEP_NS <= now:
            begin, end = self.at, self.at + self.STEP_NS
            for rank in range(n):
                node, nic, peer = rank // gpus, rank % gpus, (rank + gpus) % n
                base = {"rank": rank, "node": node, "step": self.step % 14, "op_id": self.step * n + rank, "peer": peer, "coll_id": 1}
                rows.append({**base, "track": Track.channel, "kind": SpanKind.put, "begin_ns": begin, "end_ns": end - 300_000})
                share = min(self.share(node, nic, begin), self.share(1 - node, nic, begin))
                for track in (Track.nic_tx, Track.nic_rx):
                    if share:
                        rows.append({**base, "track": track, "kind": SpanKind.segment, "index": nic, "begin_ns": begin, "end_ns": end,
                                     "nbytes": int(share * self.STEP_NS)})  # fmt: skip
            self.at, self.step = end, self.step + 1
        columns = columns_of(rows)
        spans = np.zeros(len(rows), [(name, dtype) for name, dtype in COLUMNS.items()])
        for name in COLUMNS:
            spans[name] = columns[name]
        return spans, 0

    def status(self) -> dict:
        return {"state": "running", "collective": "all_reduce", "algorithm": "ring", "nbytes": 256 << 20}

    def cancel(self) -> None:
        self.cancelled += 1
