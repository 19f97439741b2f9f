"""Traces made by hand for tests: a ring all_gather of known times, and random spans."""

from __future__ import annotations

import numpy as np

from ccl_lab.trace import SpanKind, SpanStatus, Trace, Track

META = {
    "source": "simulated",
    "collective": "all_gather",
    "algorithm": "ring",
    "dtype": "float32",
    "redop": "sum",
    "drops": 0,
}


def ring_trace(n_ranks=4, ranks_per_node=2, channels=2, block=125_000, gbits_per_s=8, repeats=1, gap_ns=10_000):
    """A ring all_gather: step s of every rank takes block*8/gbits ns; ranks enter 100 ns apart.

    Every rank puts a block per step (channel and NIC spans), waits for the one before, copies its own at the start.
    """
    step_ns = block * 8 // gbits_per_s
    rows = []
    period = (n_ranks - 1) * step_ns + n_ranks * 100 + gap_ns
    for coll in range(repeats):
        for rank in range(n_ranks):
            t0 = coll * period + rank * 100
            node = rank // ranks_per_node
            after, before = (rank + 1) % n_ranks, (rank - 1) % n_ranks
            t_end = coll * period + n_ranks * 100 + (n_ranks - 1) * step_ns
            rows.append((rank, node, Track.control, 0, SpanKind.collective, -1, coll, -1, -1, 0, t0, t_end))
            for channel in range(channels):
                op = (rank * channels + channel) * 3 * n_ranks
                rows.append((rank, node, Track.copy, channel, SpanKind.copy, op, coll, 0, -1, block, t0, t0 + 50))
                for step in range(n_ranks - 1):
                    begin = coll * period + n_ranks * 100 + step * step_ns
                    end, put, wait = begin + step_ns, op + 1 + 2 * step, op + 2 + 2 * step
                    # a put reaches into the step after it, as non-blocking puts do
                    half = step_ns // 2
                    nic = (rank % ranks_per_node) * channels + channel
                    peer_nic = (after % ranks_per_node) * channels + channel
                    rows += [
                        (rank, node, Track.channel, channel, SpanKind.put, put, coll, step, after, block, begin, end + half),
                        (rank, node, Track.channel, channel, SpanKind.wait, wait, coll, step, before, 0, begin + 10, end),
                        (rank, node, Track.nic_tx, nic, SpanKind.segment, put, coll, step, after, block, begin, end),
                        (
                            after, after // ranks_per_node, Track.nic_rx, peer_nic, SpanKind.segment, put, coll, step, rank,
                            block, begin, end,
                        ),
                    ]  # fmt: skip
    names = ["rank", "node", "track", "index", "kind", "op_id", "coll_id", "step", "peer", "nbytes", "begin_ns", "end_ns"]
    columns = dict(zip(names, np.array(rows, np.int64).T, strict=True))
    topology = {"nic_gbits_per_s": gbits_per_s}
    meta = {"n_ranks": n_ranks, "nbytes": n_ranks * channels * block, "topology": topology}
    return Trace(columns, META | meta)


def random_trace(seed, n=200, ranks=5):
    """Spans at random: every track, kind and status, overlapping and empty ones, times far from 0."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 10_000, n) + 1_700_000_000_000_000_000
    columns = {
        "rank": rng.integers(0, ranks, n),
        "node": rng.integers(-1, 3, n),
        "track": rng.integers(0, len(Track), n),
        "index": rng.integers(0, 4, n),
        "kind": rng.integers(0, len(SpanKind), n),
        "status": rng.integers(0, len(SpanStatus), n),
        "op_id": rng.integers(-1, 50, n),
        "coll_id": rng.integers(0, 3, n),
        "step": rng.integers(-1, 9, n),
        "peer": rng.integers(-1, ranks, n),
        "epoch": rng.integers(0, 2, n),
        "nbytes": rng.integers(0, 2**40, n),
        "begin_ns": begin,
        "end_ns": begin + rng.integers(0, 3000, n) * rng.integers(0, 2, n),
    }
    return Trace(columns, {"source": "measured", "drops": 3, "labels": ["a", "ä \u2028 \"quoted\" </script>"]})
