"""Exchanges whose counts are read when they start, as every rank of a job runs them: what test_exchange.py launches.

Is: one function a property, run by all ranks with the same seeds, judged bit by bit by moe_reference. Is not: a launcher.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab.engine import moe_reference as reference
from ccl_lab.trace.columns import Track

SENTINEL = 77


def routing(rng: np.random.Generator, n: int, kind: str, n_splits: int = 0) -> dict[str, list[Any]]:
    """What all ranks send: lengths, ids and blocks by rank. Lengths have zeros, ids come twice or never, blocks may be empty."""
    n_splits = n_splits or int(rng.integers(1, 9))
    found: dict[str, list[Any]] = {"lengths": [], "ids": [], "blocks": []}
    for _ in range(n):
        lengths = rng.integers(0, 5, n_splits)
        blocks = rng.integers(0, 4, n)
        if kind == "nothing":
            lengths[:] = 0
        if kind == "nobody":
            blocks[:] = 0
        if kind == "one":
            blocks[:], blocks[n - 1] = 0, 6
        if kind == "runs":
            lengths += 40
        found["lengths"].append(lengths)
        found["ids"].append(rng.integers(0, n_splits, int(blocks.sum())))
        found["blocks"].append(blocks)
    return found


def sizes(route: dict[str, list[Any]]) -> int:
    """Rows that the largest pair needs."""
    most = 1
    for lengths, ids, blocks in zip(route["lengths"], route["ids"], route["blocks"], strict=True):
        ends = np.cumsum(blocks)
        most = max([most, *(int(lengths[ids[end - block : end]].sum()) for end, block in zip(ends, blocks, strict=True))])
    return most


def expect(got: Any, want: Any) -> None:
    """The same bits, padding and all."""
    for name, a, b in zip(("buffers", "lengths", "rows"), got, want, strict=True):
        assert a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes(), (name, a, b)


def random_routings(comm: Any, seeds: int = 40) -> None:
    """Any routing, small and large rows, every kind of memory: buffers, padding and lengths are what the reference says."""
    kinds = ("any", "nothing", "nobody", "one", "runs")
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        route = routing(rng, comm.size, kinds[seed % len(kinds)])
        width, dtype = int(rng.choice([1, 3, 700])), rng.choice(["float32", "int8", "float64"])
        xs = [rng.integers(-99, 99, (int(lengths.sum()) + int(rng.integers(0, 3)), width)).astype(dtype) for lengths in route["lengths"]]
        capacity = sizes(route) + int(rng.integers(0, 4))
        shape = (comm.size, capacity, width)
        outs = [np.full(shape, SENTINEL, dtype) for _ in xs]
        want = reference.all_to_allv_dynamic(xs, **route, outs=outs)[comm.rank]
        mine = {name: values[comm.rank] for name, values in route.items()}
        x, out = xs[comm.rank], outs[comm.rank]
        if seed % 2:
            x, out = comm.empty(x.shape, str(dtype)), comm.empty(shape, str(dtype))
            x[:], out[:] = xs[comm.rank], SENTINEL
        if seed % 3 == 0:
            mine = {name: np.asarray(value, np.int32) for name, value in mine.items()}
        got = comm.all_to_allv_dynamic(x, **mine, out=out, async_op=seed % 5 == 0)
        expect(got.wait() if seed % 5 == 0 else got, want)
        assert (got.wait() if seed % 5 == 0 else got).buffers is out


def long_pieces(comm: Any) -> None:
    """Splits longer than a segment, from memory that peers cannot see, in an order that must be gathered."""
    rows, n = 64, comm.size
    x = np.random.default_rng(comm.rank).integers(0, 255, (rows, 30_000), np.uint8)
    lengths = np.full(rows, 1)
    ids = np.concatenate([np.arange(rows)[:: 2 if d % 2 else -1] for d in range(n)])
    blocks = [32 if d % 2 else 64 for d in range(n)]
    got = comm.all_to_allv_dynamic(x, lengths, ids, blocks, capacity=rows)
    for s in range(n):
        sent = np.random.default_rng(s).integers(0, 255, (rows, 30_000), np.uint8)
        order = np.arange(rows)[:: 2 if comm.rank % 2 else -1]
        assert got.rows[s] == len(order) and (got.buffers[s, : len(order)] == sent[order]).all()


def read_when_it_starts(comm: Any) -> None:
    """Counts that a collective posted before it brings: they are not there yet when the exchange is posted."""
    n = comm.size
    lengths, x = comm.empty(n, "int64"), comm.empty((n * n, 2))
    x[:], lengths[:] = comm.rank, 0
    comm.broadcast(lengths, root=0)
    comm.all_to_allv_dynamic(x, lengths, np.arange(n), np.ones(n, np.int64))  # what has to be connected is now
    truth = np.arange(1, n + 1)
    if comm.rank == 0:
        time.sleep(0.3)
        lengths[:] = truth
    first = comm.broadcast(lengths, root=0, async_op=True)
    second = comm.all_to_allv_dynamic(x, lengths, np.arange(n), np.ones(n, np.int64), async_op=True)
    if comm.rank:
        assert not lengths.any() and not second.done(), "it was posted before its counts were known"
    first.wait()
    got = second.wait()
    assert (got.lengths == truth).all() and (got.rows == truth[comm.rank]).all()
    for s in range(n):
        assert (got.buffers[s, : got.rows[s]] == s).all()


def two_posted(comm: Any) -> None:
    """Two that are under way at once do not share what they receive into."""
    n = comm.size
    x = comm.empty((2 * n, 1), "int32")
    x[:] = np.arange(2 * n)[:, None] + 100 * comm.rank
    works = [
        comm.all_to_allv_dynamic(x, np.full(n, each), np.arange(n), np.ones(n, np.int64), async_op=True) for each in (1, 2)
    ]
    for each, work in zip((1, 2), works, strict=True):
        got = work.wait()
        assert (got.lengths == each).all() and (got.rows == each).all()
        for s in range(n):
            assert (got.buffers[s, :each, 0] == 100 * s + each * comm.rank + np.arange(each)).all()


def persistent(comm: Any, rounds: int = 60) -> None:
    """Counts that change from exec to exec, small and large, with ranks that are late in turn; then again after a reset."""
    n, rows, width = comm.size, 48, 300
    comm.all_to_allv_init((rows, width), "float32", 6, capacity=200).free()
    before = comm.memory()["arena_used_bytes"]
    made = comm.all_to_allv_init((rows, width), "float32", 6, capacity=200)
    for again in range(2):
        for round_ in range(rounds):
            rng = np.random.default_rng([again, round_])
            route = routing(rng, n, "any", 6)
            xs = [rng.random((rows, width), np.float32) for _ in range(n)]
            if round_ % n == comm.rank and round_ % 7 == 0:
                time.sleep(0.01)
            x = None if round_ % 3 else xs[comm.rank]
            made.send[:] = xs[comm.rank] if x is None else SENTINEL
            got = made.exec(x, **{name: values[comm.rank] for name, values in route.items()})
            want = reference.all_to_allv_dynamic(xs, **route, outs=[np.zeros((n, 200, width), np.float32)] * n)[comm.rank]
            assert (got.lengths == want[1]).all() and (got.rows == want[2]).all()
            for s in range(n):
                assert (got.buffers[s, : got.rows[s]] == want[0][s, : got.rows[s]]).all(), (round_, s)
        if not again:
            comm.reset()
    del got
    made.free()
    made.free()
    del made
    assert comm.memory()["arena_used_bytes"] == before


def groups(comm: Any) -> None:
    """Halves of the job exchange by themselves, in an order of their own."""
    half = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    with comm.all_to_allv_init((len(half), 1), "int32", len(half), capacity=1, group=half) as made:
        for turn in range(5):
            made.send[:, 0] = [1000 * turn + 10 * comm.rank + other for other in half]
            got = made.exec(lengths=np.ones(len(half), np.int64), ids=np.arange(len(half)), blocks=np.ones(len(half), np.int64))
            assert got.buffers[:, 0, 0].tolist() == [1000 * turn + 10 * other + comm.rank for other in half]


def fails(comm: Any, error: type, words: str, call: Any) -> None:
    """`call` raises `error` with `words` on this rank; then all begin anew, and go on."""
    comm._member.spoke.gather(f"all-are-here-{comm._epoch}", True, 20.0)  # an abort must not meet who still ends what was before
    begin = time.monotonic()
    try:
        call()
        comm.barrier()
    except ccl.CclError as caught:
        assert type(caught) is error and words in str(caught), repr(caught)
    else:
        raise AssertionError(f"{error.__name__} was not raised")
    assert time.monotonic() - begin < 15
    comm.reset()


def bad_counts(comm: Any) -> None:
    """One rank's counts are wrong: all ranks get the same named error, at once, nothing is lost, and a reset mends it."""
    n, x = comm.size, comm.empty((6, 2))
    good = {"lengths": [1, 2, 3], "ids": [0] * n, "blocks": [1] * n}
    wrong = [
        (ccl.ShapeError, "split 1 has length 9", {"lengths": [1, 9, 3]}),
        (ccl.ShapeError, "has length -1", {"lengths": [1, -1, 3]}),
        (ccl.ShapeError, "room for", {"ids": [2, 2, 2] + [0] * (n - 1), "blocks": [3] + [1] * (n - 1)}),
        (ccl.UsageError, "split id 3", {"ids": [0] * (n - 1) + [3]}),
        (ccl.UsageError, "split id -1", {"ids": [-1] * n}),
        (ccl.ShapeError, "split ids, and", {"blocks": [n + 1] * n}),
        (ccl.ShapeError, "block lengths, expected one", {"blocks": [1] * (n + 1)}),
    ]
    made = comm.all_to_allv_init(x.shape, "float32", 3)
    for error, words, change in wrong:
        counts = good | (change if comm.rank == n - 1 else {})
        before = comm.memory()
        fails(comm, error, words, lambda counts=counts: comm.all_to_allv_dynamic(x, **counts))
        fails(comm, error, words, lambda counts=counts: made.exec(**counts))
        assert (comm.all_to_allv_dynamic(x, **good).rows == 1).all() and (made.exec(**good).rows == 1).all()
        del counts
        after = comm.memory()
        assert after["registered_bytes"] == before["registered_bytes"] and after["programs"] <= before["programs"] + 1, (before, after)
    made.free()


def bad_calls(comm: Any) -> None:
    """What is wrong before anything began is refused on the spot, on every rank, and disturbs nothing."""
    n, x = comm.size, comm.empty((6, 2))
    made = comm.all_to_allv_init(x.shape, "float32", 3)
    good = {"lengths": [1, 2, 3], "ids": [0] * n, "blocks": [1] * n}
    whole = comm.empty((max(n, 2), 6, 2))
    refused = [
        (ccl.DtypeError, "int32 or int64", lambda: comm.all_to_allv_dynamic(x, **good | {"lengths": np.ones(3)})),
        (ccl.DtypeError, "dtype", lambda: comm.all_to_allv_dynamic(np.ones((2, 2), complex), **good)),
        (ccl.ShapeError, "contiguous", lambda: comm.all_to_allv_dynamic(x[:, :1], **good)),
        (ccl.ShapeError, "out of all_to_allv_dynamic", lambda: comm.all_to_allv_dynamic(x, **good, out=np.empty((n, 4, 3), np.float32))),
        (ccl.ShapeError, "overlap", lambda: comm.all_to_allv_dynamic(whole[0], **good, out=whole[:n])),
        (ccl.ShapeError, "as at init", lambda: made.exec(x[:3], **good)),
        (ccl.DtypeError, "as at init", lambda: made.exec(x.astype(np.float64), **good)),
        (ccl.ShapeError, "split lengths, expected 3", lambda: made.exec(**good | {"lengths": [1, 2]})),
        (ccl.ShapeError, "at least one split", lambda: comm.all_to_allv_init((3, 2), "float32", 0)),
        (ccl.UsageError, "expected this rank", lambda: comm.all_to_allv_init((3, 2), "float32", 1, group=[comm.rank + 1])),
    ]  # fmt: skip

    for error, words, call in refused:
        try:
            call()
            raise AssertionError(f"{words} was not raised")
        except ccl.CclError as caught:
            assert type(caught) is error and words in str(caught), repr(caught)
            if words == "split lengths, expected 3":
                comm.reset()  # found where the counts are read
    assert (made.exec(**good).rows == 1).all()
    made.free()
    for call in (lambda: made.exec(**good), lambda: made.exec(x, **good)):
        try:
            call()
            raise AssertionError("an exchange that was freed ran")
        except ccl.UsageError as caught:
            assert "freed" in str(caught)
    comm.barrier()


def ranks_differ(comm: Any) -> None:
    """Ranks that mean different exchanges hear of it: at init, and at the first call."""
    n = comm.size
    try:
        comm.all_to_allv_init((4, 2 + (comm.rank == 1)), "float32", 3)
        raise AssertionError("nothing was raised")
    except ccl.ShapeError as caught:
        assert "differ in row" in str(caught)
    x = comm.empty((6, 2))
    counts = {"lengths": [1, 2, 3], "ids": [0] * n, "blocks": [1] * n}
    fails(comm, ccl.ShapeError, "same shape", lambda: comm.all_to_allv_dynamic(x, **counts, capacity=6 + (comm.rank == 1)))
    one, two = (comm.all_to_allv_init(x.shape, "float32", 3) for _ in range(2))
    for made in (one, two, one, two):
        made.exec(**counts)
    fails(comm, ccl.UsageError, "ranks disagree", lambda: (two if comm.rank == 1 else one).exec(**counts))
    assert (one.exec(**counts).rows == 1).all() and (two.exec(**counts).rows == 1).all()
    other = comm.empty((6, 2), "int32")
    fails(comm, ccl.DtypeError, "element type", lambda: comm.all_to_allv_dynamic(other if comm.rank == 1 else x, **counts, capacity=6))


def experts_of(rng: np.random.Generator, n: int, experts: int, k: int, tokens: int, kind: str) -> tuple[list[Any], list[Any]]:
    """Who wants which experts, and weights; by rank."""
    counts = rng.integers(0, tokens + 1, n)
    chosen = [rng.integers(-1, experts, (count, k)) for count in counts]
    if kind == "distinct":
        chosen = [np.array([rng.permutation(experts)[:k] for _ in range(count)], np.int64).reshape(count, k) for count in counts]
    if kind == "one":
        chosen = [np.full((count, k), experts - 1) for count in counts]
    if kind == "none":
        chosen = [np.full((count, k), -1) for count in counts]
    return chosen, [rng.random((len(each), k), np.float32) for each in chosen]


def moe_routings(comm: Any, seeds: int = 8) -> None:
    """Dispatch and combine for random routings, with dedup and without: bit by bit what the reference says."""
    n, where = comm.size, [False] if comm.topology.n_nodes == 1 else [True, False]
    for dtype in ("float32", "bfloat16", "float64"):
        for dedup in where:
            k, hidden, tokens = 3, 5, 9
            experts = 2 * n + 1
            with comm.moe(experts=experts, top_k=k, hidden=hidden, tokens=tokens, dtype=dtype, dedup=dedup) as moe:
                assert moe.dedup == dedup
                for seed in range(seeds):
                    rng = np.random.default_rng(seed)
                    chosen, weights = experts_of(rng, n, experts, k, tokens, ("any", "distinct", "one", "none")[seed % 4])
                    xs = [rng.standard_normal((len(each), hidden)).astype(moe.dtype) for each in chosen]
                    want = reference.dispatch(xs, chosen, weights, moe.placement, dedup)
                    got = moe.dispatch(xs[comm.rank], chosen[comm.rank], weights[comm.rank])
                    for a, b in zip(got, want[comm.rank], strict=True):
                        assert a.shape == b.shape and np.ascontiguousarray(a).tobytes() == b.astype(a.dtype).tobytes(), (seed, a, b)
                    ys = [rng.standard_normal(each.tokens.shape).astype(moe.dtype) for each in want]
                    total = moe.combine(ys[comm.rank])
                    wanted = reference.combine(ys, want, [len(x) for x in xs], moe.placement, dedup)[comm.rank]
                    assert total.dtype == wanted.dtype and total.tobytes() == wanted.tobytes(), (seed, total, wanted)


def like_dense(comm: Any) -> None:
    """Forward and combine with top-k weights are the dense layer, in float64, whichever way tokens went."""
    n, hidden, tokens, k = comm.size, 16, 24, 2
    experts = 3 * n
    matrices = np.random.default_rng(5).standard_normal((experts, hidden, hidden))
    rng = np.random.default_rng(100 + comm.rank)
    x = rng.standard_normal((tokens, hidden))
    scores = rng.standard_normal((tokens, experts))
    chosen = np.argsort(-scores, axis=1)[:, :k]
    top = np.take_along_axis(scores, chosen, 1)
    weights = (np.exp(top) / np.exp(top).sum(1, keepdims=True)).astype(np.float32)
    for dedup in (None, False):
        with comm.moe(experts=experts, top_k=k, hidden=hidden, tokens=tokens, dtype="float64", dedup=dedup) as moe:
            came = moe.dispatch(x, chosen, weights)
            y = np.zeros(came.tokens.shape)
            for row, (token, mine, factors) in enumerate(zip(came.tokens, came.experts, came.weights, strict=True)):
                for e, factor in zip(mine, factors, strict=True):
                    if e >= 0:
                        y[row] += np.float64(factor) * (matrices[e] @ token)
            total = moe.combine(y)
        want = reference.dense(x, chosen, weights, lambda e, token: matrices[e] @ token)
        assert np.abs(total - want).max() <= 1e-12 * np.abs(want).max()


def bad_moe(comm: Any) -> None:
    """What a caller can get wrong is named on the spot."""
    moe = comm.moe(experts=4, top_k=2, hidden=3, tokens=5)
    x, chosen, weights = np.ones((5, 3), np.float32), np.zeros((5, 2), np.int64), np.ones((5, 2), np.float32)
    refused = [
        (ccl.UsageError, "no dispatch", lambda: moe.combine(x)),
        (ccl.DtypeError, "tokens of float32", lambda: moe.dispatch(x.astype(np.float64), chosen, weights)),
        (ccl.DtypeError, "experts of integers", lambda: moe.dispatch(x, chosen.astype(float), weights)),
        (ccl.ShapeError, "n up to 5", lambda: moe.dispatch(np.ones((6, 3), np.float32), np.zeros((6, 2), int), np.ones((6, 2)))),
        (ccl.ShapeError, "of shape (n, 2)", lambda: moe.dispatch(x, chosen[:, :1], weights)),
        (ccl.UsageError, "expected -1 (none) to 3", lambda: moe.dispatch(x, chosen + 4, weights)),
        (ccl.UsageError, "1 or more", lambda: comm.moe(experts=0, top_k=1, hidden=1, tokens=1)),
        (ccl.UsageError, "one of float16", lambda: comm.moe(experts=1, top_k=1, hidden=1, tokens=1, dtype="int8")),
    ]
    for error, words, call in refused:
        try:
            call()
            raise AssertionError(f"{words} was not raised")
        except ccl.CclError as caught:
            assert type(caught) is error and words in str(caught), repr(caught)
    came = moe.dispatch(x, chosen, weights)
    try:
        moe.combine(np.ones((len(came.tokens) + 1, 3), np.float32))
        raise AssertionError("y of another size was taken")
    except ccl.ShapeError as caught:
        assert "y of moe.combine" in str(caught)
    moe.combine(np.ascontiguousarray(came.tokens))
    moe.free()


def rails(comm: Any) -> None:
    """The NICs carry what the bitmaps predict, to the byte: rows, and a header for each rank that is written to."""
    n, k, hidden, tokens, experts = comm.size, 4, 32, 200, 4 * comm.size
    rng = np.random.default_rng(9)
    chosen = [rng.integers(0, experts, (tokens, k)) for _ in range(n)]
    carried = {}
    for dedup in (True, False):
        with comm.moe(experts=experts, top_k=k, hidden=hidden, tokens=tokens, dedup=dedup) as moe:
            weights = np.ones((tokens, k), np.float32)
            comm.barrier()
            comm.trace()
            came = moe.dispatch(np.ones((tokens, hidden), np.float32), chosen[comm.rank], weights)
            moe.combine(np.ascontiguousarray(came.tokens))
            spans = comm.trace()
            sent = np.array([int(spans["nbytes"][spans["track"] == Track.nic_tx].sum())])
            carried[dedup] = int(comm.all_gather(sent).sum())
            rows = reference.rows_over_rails(chosen, moe.placement, dedup)
            group = moe.placement.n_nodes if dedup else n
            pairs = n * (moe.placement.n_nodes - 1) if dedup else n * (n - n // moe.placement.n_nodes)
            header = 8 * (group + 2)  # tag, lengths of its splits, and the rows that follow; these messages are too large for one put
            predicted = int(rows.sum()) * (moe.row_nbytes() + 4 * hidden) + 2 * pairs * header
            assert carried[dedup] == predicted, (dedup, carried[dedup], predicted)
    assert carried[True] < carried[False]


def late_rank(comm: Any) -> None:
    """Who does not come is named when time is up, whether READY is awaited or not; a reset mends it."""
    n, x = comm.size, comm.empty((n_rows := 4, 2))
    counts = {"lengths": [1] * n_rows, "ids": list(range(n)), "blocks": [1] * n}
    made = comm.all_to_allv_init(x.shape, "float32", n_rows)
    for call in (lambda: comm.all_to_allv_dynamic(x, **counts, timeout="1s"), lambda: made.exec(**counts, timeout="1s")):
        comm._member.spoke.gather(f"before-{comm._epoch}", True, 20.0)
        if comm.rank != 1:
            try:
                call()
                raise AssertionError("nothing was raised")
            except ccl.OpTimeout as caught:
                assert caught.rank == 1 and "rank 1" in str(caught), repr(caught)
        comm.reset()
        assert (made.exec(**counts).rows == 1).all()
    made.free()


def lost_nic(comm: Any) -> None:
    """A NIC of node 0 goes down in the middle: rows are exact all the same, in both forms, and some went over another NIC."""
    n, rows, width = comm.size, 64, 4096
    made = comm.all_to_allv_init((rows, width), "uint8", n, capacity=rows)
    for round_ in range(30):
        xs = [np.random.default_rng([round_, rank]).integers(0, 255, (rows, width), np.uint8) for rank in range(n)]
        counts = [np.random.default_rng([round_, rank, 1]).multinomial(rows, [1 / n] * n) for rank in range(n)]
        if comm.rank == 0 and round_ in (10, 20):
            comm._member.engine.set_nic(1, 0, round_ == 20)
        mine = {"lengths": counts[comm.rank], "ids": np.arange(n), "blocks": np.ones(n, np.int64)}
        x = xs[comm.rank]
        got = made.exec(x, **mine) if round_ % 2 else comm.all_to_allv_dynamic(x, **mine)
        for s in range(n):
            begin = int(counts[s][: comm.rank].sum())
            assert (got.buffers[s, : got.rows[s]] == xs[s][begin : begin + got.rows[s]]).all(), (round_, s)
    made.free()
    lost = np.array([comm._member.engine.rails()["lost"]])
    assert comm.all_reduce(lost)[0] > 0, "no path was lost: the test did nothing"
