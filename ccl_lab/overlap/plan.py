"""`overlap.plan`: a computation and its collective as one schedule, by name.

Is: the table of operators and schedules, and what a Builder needs for each. Is not: the schedules (gathering, scattering, slicing) nor
the choice (choose.py). Invariants: block s belongs to rank s; partitions are numbered by the chunk they cover; a collective that is
in place (all_gather, reduce_scatter by default) copies nothing.
"""

from __future__ import annotations

from ..arguments import named, whole
from ..errors import UsageError
from ..ir import Builder, Schedule
from ..units import Size, parse_size
from . import gathering, scattering, slicing
from .choose import Timing, choose
from .operators import ADDS, SCHEDULES, Operator, operator_of


def plan(
    operator: str,
    schedule: str,
    n_ranks: int,
    *,
    slices: int | None = None,
    sub_slices: int = 1,
    adds: str | None = None,
    dtype: str = "float32",
    nbytes: Size = 0,
    in_place: bool | None = None,
    timing: Timing | None = None,
) -> Schedule:
    """The schedule of `operator` among `n_ranks` ranks; every rank's block is computed in partitions that move as they are ready.

    operator: all_gather_matmul, matmul_reduce_scatter, matmul_all_to_all, all_to_all_matmul or attention_projection (attention by
    slices of queries and the output projection, a reduce_scatter). schedule: sequential, k_slice (`slices`, default 4), ring or direct
    (each block in `sub_slices`), or auto: what `choose` finds best for `timing`, a Timing(c, alpha, beta, …); its reasons are then
    the schedule's. adds, where results are summed: separate, early (direct only, its default) or fused. nbytes: of the larger buffer
    of a rank, all blocks. in_place: input and output share memory (default: for all_gather and reduce_scatter).

    Returns a Schedule with compute ops on channel 0 and communication on channel 1; `partitions` says what each computes.
    Raises UsageError for a name or number that does not exist or does not fit. Source: CommFuse, arXiv 2604.24013.

        >>> plan("matmul_reduce_scatter", "ring", 4).n_ranks
        4
    """
    what = operator_of(operator)
    if named(schedule, "overlap schedule", SCHEDULES) == "auto":
        if timing is None:
            raise UsageError("schedule 'auto' needs timing=Timing(c, alpha, beta): the time of a slice's computation and of a hop of it.")
        choice = choose(timing.c, timing.alpha, timing.beta, n_ranks, operator=operator, add=timing.add, slow_link=timing.slow_link,
                        launch=timing.launch)  # fmt: skip
        built = plan(operator, choice.schedule, n_ranks, slices=choice.k, sub_slices=choice.m, adds=choice.adds, dtype=dtype,
                     nbytes=nbytes, in_place=in_place)  # fmt: skip
        return built.replace(reasons=choice.reasons)
    parts = _parts(schedule, slices, sub_slices)
    in_place = what.collective != "all_to_all" if in_place is None else in_place
    if in_place and what.collective == "all_to_all":
        raise UsageError(f"{operator} in place: blocks arrive where others have not left; use separate buffers.")
    n_ranks = whole(n_ranks, "n_ranks", 1)
    decomposed = schedule in ("ring", "direct")
    b = Builder(
        what.collective, n_ranks, algorithm=f"{operator}_{schedule}", channels=2, parts=parts, in_place=in_place,
        scratch_blocks=n_ranks - 1 if what.adds else 0,
    )  # fmt: skip
    if decomposed:
        _decomposed(b, operator, what, schedule, parts, adds)
    else:
        if adds is not None:
            raise UsageError(f"adds={adds!r} with {schedule}: the collective adds there; leave it out.")
        _sliced(b, what, parts)
    return b.build(nbytes=parse_size(nbytes), dtype=dtype, reasons=(_said(operator, schedule, n_ranks, parts),))


def _parts(schedule: str, slices: int | None, sub_slices: int | None) -> int:
    parts = {"sequential": 1, "k_slice": 4 if slices is None else slices}.get(schedule, 1 if sub_slices is None else sub_slices)
    return whole(parts, "slices" if schedule == "k_slice" else "sub_slices", 1, 2**20)


def _decomposed(b: Builder, operator: str, what: Operator, by: str, m: int, adds: str | None) -> None:
    if by not in what.by:
        raise UsageError(f"{operator} by {by}: a block has one destination, a ring would take detours; use direct.")
    n = b.n_ranks
    if not what.adds:
        if adds is not None:
            raise UsageError(f"adds={adds!r} for {operator}: nothing is added there.")
        makers = {
            ("all_gather", "ring"): gathering.all_gather_ring,
            ("all_gather", "direct"): gathering.all_gather_direct,
            ("all_to_all", "direct"): gathering.all_to_all_direct if what.gathers else scattering.all_to_all_direct,
        }
        makers[what.collective, by](b, n, m)
        return
    adds = default_adds(by) if adds is None else adds
    if adds not in ADDS or (by, adds) == ("ring", "early"):
        raise UsageError(f"adds={adds!r} by {by}: expected separate, {'early, ' if by == 'direct' else ''}or fused.")
    (scattering.reduce_scatter_ring if by == "ring" else scattering.reduce_scatter_direct)(b, n, m, adds)


def default_adds(by: str) -> str:
    """Where adds go unless said otherwise."""
    return "early" if by == "direct" else "separate"


def _sliced(b: Builder, what: Operator, k: int) -> None:
    if what.collective == "all_gather":
        slicing.all_gather(b, b.n_ranks, k)
    elif what.collective == "reduce_scatter":
        slicing.reduce_scatter(b, b.n_ranks, k)
    elif what.gathers:
        slicing.all_to_all_before(b, b.n_ranks, k)
    else:
        slicing.all_to_all_after(b, b.n_ranks, k)


def _said(operator: str, schedule: str, n_ranks: int, parts: int) -> str:
    cut = {"sequential": "in one piece", "k_slice": f"in {parts} slices"}.get(schedule, f"in {n_ranks * parts} partitions")
    return f"{operator} computes {cut} ({schedule})"
