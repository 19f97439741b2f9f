"""The closed form of the cost of algorithms on shared memory; symbols as in `formulas`, and k slices of a rank's share.

    S = M/n or B, a rank's share       R seconds of reading and reducing it       P seconds of putting it
    l seconds of a cache line from core to core, one a flag         T = alpha + max(R + P/k, P + R/k, R/k + flags l)

R is on the memory engine of the rank, P on its port into the node, as the simulator has them; slices let the two overlap. No share of
all_reduce moves less than a cache line. Ops cost no more than their flags, since the node layer carries these schedules out as a whole;
but for two_level, which it does not.

`memory_bytes` counts what a rank reads from and writes to memory when a slice stays in the caches while it is written to the peers: each
source once, each destination once. Source of that count: the data access volume of Peng et al., "Optimizing MPI collectives on shared
memory multi-cores", SC 2023; reads and writes weigh the same, as in McCalpin's STREAM.

Is: one function per algorithm. Is not: used for correctness. Invariant: `steps` and, for sizes that divide evenly, `rank_bytes` are those
of the schedule (what it puts and what it reads from peers).
"""

from __future__ import annotations

from .cost import LINE_BYTES, LINE_SECONDS, OP_SECONDS, Cost, groups, of, slice_depth
from .problem import Problem


def _overlapped(problem: Problem, share: float, reading: float, putting: float, ops: int) -> float:
    """T of a share in slices, with as many puts and flags each as `ops`."""
    depth = slice_depth(problem, share / problem.slices(1, share))
    first = reading / depth
    return of(problem).alpha + max(reading + putting / depth, putting + first, first + depth * ops * LINE_SECONDS)


def all_reduce_one_pass(problem: Problem) -> Cost:
    """R = add(M/n, n), P = (n-1)/n M/fabric; memory: M read, M written. Hashmi et al., IPDPS 2018."""
    at, n, share = of(problem), problem.n, problem.nbytes / problem.n
    lines = max(share, LINE_BYTES)
    seconds = _overlapped(problem, share, at.add(lines, n), (n - 1) * lines / at.fabric, n - 1)
    return Cost(seconds, 2, 2 * (n - 1) * share, memory_bytes=2 * n * share)


def all_reduce_flat(problem: Problem) -> Cost:
    """T = alpha + (n-1) l + add(M, n), in place add(M, 1) more; memory: nM read, M written. NCCLX 2.2, by reading."""
    at, n, size = of(problem), problem.n, problem.nbytes
    lines = max(size, LINE_BYTES)
    moved = at.add(lines, n) + (at.add(lines, 1) if problem.in_place else 0.0)
    return Cost(at.alpha + (n - 1) * LINE_SECONDS + moved, 1, (n - 1) * size,
                memory_bytes=(n + 1 + 2 * problem.in_place) * size)


def all_reduce_two_level(problem: Problem) -> Cost:
    """T = 3 alpha (2 if g = 1) + (2(k-1) + g) o + add(M/g, g) + add(M/n, k) + ((k-1) M/n + (g-1) M/g)/fabric. Hashmi et al., IPDPS 2018."""
    at, size = of(problem), problem.nbytes
    group, count = groups(problem.n)
    lent = int(problem.n > group * count)
    part, chunk = size / group, size / group / count
    putting = ((count - 1) * chunk + (group - 1 + lent) * part) / at.fabric
    # A group of one copies, in place nothing.
    sources = 0 if group == 1 and problem.in_place else group + lent
    adding = at.add(part, sources) + at.add(chunk, count)
    hops = 3 if group > 1 else 2
    seconds = hops * at.alpha + (2 * (count - 1) + group + lent) * OP_SECONDS + adding + putting
    crossing = 2 * ((count - 1) * chunk + (group - 1 + lent) * part)
    memory = sources * part + (part if sources else 0.0) + count * chunk + chunk + crossing / 2
    return Cost(seconds, 4 if group > 1 else 3, crossing, memory_bytes=memory)


def all_gather_one_pass(problem: Problem) -> Cost:
    """R = 0, P = max((n-1)B/fabric, add(B, 1)): puts and the own copy wait for nothing; memory: B read, nB written."""
    at, n, block = of(problem), problem.n, problem.block_bytes
    copying = 0.0 if problem.in_place else at.add(block, 1)
    seconds = _overlapped(problem, block, 0.0, max((n - 1) * block / at.fabric, copying), n - 1)
    return Cost(seconds, 1, (n - 1) * block, memory_bytes=(n + 1 - problem.in_place) * block)


def reduce_scatter_one_pass(problem: Problem) -> Cost:
    """T = alpha + max((n-1) l, add(B, n)); memory: nB read, B written. Hashmi et al., IPDPS 2018."""
    at, n, block = of(problem), problem.n, problem.block_bytes
    seconds = at.alpha + max((n - 1) * LINE_SECONDS, at.add(block, n))
    return Cost(seconds, 1, (n - 1) * block, memory_bytes=(n + 1) * block)


def broadcast_one_pass(problem: Problem) -> Cost:
    """R = add(M/n, 1), P = (n-1)/n M/fabric; memory: M/n read, M written (in place less at the root)."""
    at, n, share = of(problem), problem.n, problem.nbytes / problem.n
    puts = n - 2 if problem.in_place else n - 1  # of all but the root, which puts n-1 times
    seconds = _overlapped(problem, share, at.add(share, 1), (n - 1) * share / at.fabric, n)
    return Cost(seconds, 2 if puts else 1, max(1 + puts, n - 1) * share, memory_bytes=(n + 1 - problem.in_place) * share)


def reduce_one_pass(problem: Problem) -> Cost:
    """R = add(M/n, n), P = (n-1)/n M/fabric, the port of the root; memory: M read, M/n written. Hashmi et al., IPDPS 2018."""
    at, n, share = of(problem), problem.n, problem.nbytes / problem.n
    seconds = _overlapped(problem, share, at.add(share, n), (n - 1) * share / at.fabric, 2) + max(n - 2, 0) * LINE_SECONDS
    return Cost(seconds, 2, n * share, memory_bytes=(n + 1) * share)


def gather_one_pass(problem: Problem) -> Cost:
    """T = alpha + max((n-1) l, (n-1)B/fabric), the port of the root; memory: B read, B written."""
    at, n, block = of(problem), problem.n, problem.block_bytes
    seconds = at.alpha + max((n - 1) * LINE_SECONDS, (n - 1) * block / at.fabric)
    return Cost(seconds, 1, block, memory_bytes=2.0 * block)


def scatter_one_pass(problem: Problem) -> Cost:
    """T = alpha + max((n-1) l, add(B, 1)): n ranks read at once; memory: B read, B written."""
    at, block = of(problem), problem.block_bytes
    seconds = at.alpha + max((problem.n - 1) * LINE_SECONDS, at.add(block, 1))
    return Cost(seconds, 1, block, memory_bytes=2.0 * block)


def all_to_all_one_pass(problem: Problem) -> Cost:
    """T = alpha + max((n-1) l, add(nB, 1)); in place add((n-1)B, 1) and (n-1)B/2 over the port. Memory: nB read, nB written."""
    at, n, block = of(problem), problem.n, problem.block_bytes
    if not problem.in_place:
        seconds = at.alpha + max((n - 1) * LINE_SECONDS, at.add(n * block, 1))
        return Cost(seconds, 1, (n - 1) * block, memory_bytes=2 * n * block)
    moved = max(at.add((n - 1) * block, 1), (n - 1) * block / 2 / at.fabric) + block / 2 / at.fabric
    return Cost(at.alpha + max((n - 1) * LINE_SECONDS, moved), 1, (n - 1) * block, memory_bytes=2 * (n - 1) * block)


def send_recv_one_pass(problem: Problem) -> Cost:
    """T = alpha + max(M/2/fabric, add(M/2, 1)): sender and receiver take half each; memory: M/2 read and written by each."""
    at, half = of(problem), 0.0 if problem.root == problem.peer else problem.nbytes / 2
    return Cost(at.alpha + LINE_SECONDS + max(half / at.fabric, at.add(half, 1)), 1, half, memory_bytes=2 * half)


def barrier_flat(problem: Problem) -> Cost:
    """T = alpha + (n-1) l. Mellor-Crummey and Scott 1991 have it as one round of all pairs."""
    return Cost(of(problem).alpha + (problem.n - 1) * LINE_SECONDS, 1, 0.0)
