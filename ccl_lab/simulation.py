"""`simulate`: one collective on modelled links, whatever its size.

    simulate(schedule, topology)                                   a Trace, a span for every op
    simulate("all_reduce", topology, "64MiB", algorithm="ring")    plans it first
    simulate("all_reduce", "h100:nodes=16384", "1GiB")             131,072 ranks: a Summary, exact all the same
    simulate("all_to_all", "llama3_24k:nodes=64", tier="shared")   links between switches shared by all transfers

Is: the composition of planner and simulator; the user never says which form of a schedule is used. Is not: another model (tiers:
docs/simulator.md). Invariant: a Summary's times are those that the Trace would have, to the picosecond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Union

import numpy as np

from .arguments import instance, listed, named, number, shown
from .errors import Inapplicable, UnsupportedError, UsageError, suggest
from .ir import Outline, Schedule
from .ir.collectives import check_names
from .planner import estimate, outline, plan
from .simulator import Job, Summary, simulate_shared, summarize
from .simulator import simulate as simulate_schedule
from .simulator.changes import Changes
from .simulator.exact import Times, exact_times, late_times_ps, picoseconds
from .simulator.loads import nic_bytes
from .simulator.op_rows import nic_rows, rank_rows, step_rows
from .simulator.patience import patient
from .topo import Topology, topology_from_text
from .trace import Trace
from .trace.statistics import bandwidths
from .units import Duration, Size

__all__ = ["changes_of", "degrade", "simulate"]

# Up to so many ops a Trace is made, and a schedule is unrolled where nothing else works: 2 s and 2 GB.
MOST_SPANS, MOST_ROWS = 500_000, 4_000_000

ROWS, MOST_LISTED = ("ranks", "nodes", "nics", "steps"), 20
# Rows of ops: "steps", and those of one rank or NIC. All of them are listed.
_OF_OPS = re.compile(r"steps|rank:(\d+)|nic:(\d+):(\d+)")
TIERS = ("exact", "shared", "estimate")

Result = Union[Trace, Summary]


@patient
def simulate(what: Schedule | Outline | str, topology: Topology | str, nbytes: Size | None = None, dtype: str | None = None,
             counts: Any = None, late: Any = None, compute_ps: Any = None, alpha: Duration = 0, interference: float = 1.0, *,
             faults: Sequence[str] = (), result: str = "auto", tier: str = "exact", jobs: Sequence[Job] = (),
             rows: Sequence[str] = (), patience: float | None = None, **options: Any) -> Result:  # fmt: skip
    """The times of a collective on the modelled links of `topology`.

    what: a Schedule, or the name of a collective, which is planned with `options` (those of `plan`: algorithm, redop, in_place, root,
    peer, channels, mapped). topology: a Topology, or its text ("h100:nodes=4"). nbytes, dtype, counts, late, compute_ps, alpha,
    interference: as `ccl_lab.simulator.simulate`. faults: texts as `degrade` and, at a time, `changes_of` take them. result: "trace",
    "summary", or "auto": a Trace up to 500,000 ops, a Summary (the end of every rank, bandwidths) above. tier: "exact"; "shared": links
    carry all their transfers at one time, fairly, those of other `jobs` (simulator.Job) too; "estimate": the planner's closed form.
    rows: of "ranks", "nodes" (those that end last), "nics" (those that are busy longest), "steps", "rank:7" (its ops) and "nic:7:2" (what
    NIC 2 of node 7 carried), in `meta["rows"]` of a Summary; the last three, of the exact tier, unroll the schedule: up to 4,000,000 ops.
    patience: how many times the usual work, which is some minutes, the exact tier may do before it refuses (1).

    Raises UsageError for an unknown name, option, fault or size, ShapeError where schedule and topology differ in ranks, UnsupportedError
    for a schedule that can only be timed op by op and has too many. Cost: milliseconds for a few ranks; a second for 131,072.

        >>> simulate("all_reduce", "h100:nodes=2", "64MiB", algorithm="ring").meta["n_ranks"]
        16
    """
    where = instance(topology_from_text(topology) if isinstance(topology, str) else topology, "topology", Topology,
                     "a Topology, or text such as 'h100:nodes=4'")  # fmt: skip
    named(result, "result", ("auto", "trace", "summary"))
    jobs, faults, rows = listed(jobs, "jobs", Job, "a Job, or several"), _texts(faults), listed(rows, "rows", str, "names of rows")
    if dtype is not None:
        check_names("barrier", dtype)
    if named(tier, "tier", TIERS) != "shared" and jobs:
        raise UsageError(f"jobs with tier={tier!r}: only 'shared' takes jobs.")
    where, fault_late = degrade(where, faults)
    changes = changes_of(where, faults)
    late = _both(late, fault_late, where.n_ranks)
    if rows:
        others, of_ops = _sorted_rows(rows, result, tier)
        summary = simulate(what, where, nbytes, dtype, counts, late, compute_ps, alpha, interference, tier=tier, jobs=jobs,
                           faults=[text for text in faults if "at=" in text], result="summary", **options)  # fmt: skip
        if isinstance(what, str):
            options["algorithm"] = summary.meta["algorithm"]
        found = _with_rows(summary, others, what, where, options)
        if of_ops:
            schedule = _schedule(what, where, nbytes, dtype, counts, options, "rows of steps and of a rank or NIC are of ops:")
            sizes = (None, None, None) if isinstance(what, str) else (nbytes, dtype, counts)
            times = exact_times(schedule, where, *sizes, late, compute_ps, alpha, interference, changes)
            found.meta["rows"].update(_rows_of_ops(of_ops, schedule, where, times))
        return found
    if tier == "estimate":
        return _estimated(what, where, nbytes, dtype, late, changes, result, options)
    if tier == "shared":
        if changes:
            raise UsageError("faults with at= need the exact tier; where links are shared, faults last the whole run.")
        schedule = _schedule(what, where, nbytes, dtype, counts, options)
        if isinstance(what, str):
            nbytes = dtype = counts = None
        trace = simulate_shared(schedule, where, nbytes, dtype, counts, late, compute_ps, alpha, interference, jobs=jobs)
        return _summary_of(trace) if result == "summary" or (result == "auto" and len(schedule.ops) > MOST_SPANS) else trace
    if isinstance(what, Schedule):
        _no_options(options)
        trace = simulate_schedule(what, where, nbytes, dtype, counts, late, compute_ps, alpha, interference, changes)
        return _summary_of(trace) if result == "summary" else trace
    if compute_ps is not None or number(interference, "interference", "a factor from 1 (none) to 100") != 1.0:
        raise UsageError("compute_ps and interference belong to schedules with computation: give the schedule itself.")
    if isinstance(what, Outline):
        _no_options(options)
        return _outlined(what, where, nbytes, dtype, late, alpha, result, changes)
    if not isinstance(what, str):
        raise UsageError(f"simulate({shown(what)}): expected a Schedule, or the name of a collective.")
    check_names(what, dtype or "float32")
    _known_options(options)
    options = {**options, "nbytes": "1MiB" if nbytes is None else nbytes, "dtype": dtype or "float32"}
    if where.n_ranks == 1 or counts is not None or what == "all_to_allv":
        trace = simulate_schedule(plan(what, where, counts=counts, **options), where, late=late, alpha=alpha,
                                  changes=changes)  # fmt: skip
        return _summary_of(trace) if result == "summary" else trace
    return _chosen(what, where, options, late, alpha, result, changes)


def _sorted_rows(rows: Sequence[str], result: str, tier: str) -> tuple[list[str], list[str]]:
    """Names of rows about ranks, nodes and NICs, and of those about ops; UsageError for what is neither, or cannot be had."""
    names = list(rows)
    if result == "trace" or any(name not in ROWS and not _OF_OPS.fullmatch(name) for name in names):
        raise UsageError(f"rows {names!r}: expected some of {', '.join(ROWS)}, rank:R, nic:NODE:NIC, of a Summary (a Trace has all its "
                         "own).")  # fmt: skip
    of_ops = [name for name in names if _OF_OPS.fullmatch(name)]
    if of_ops and tier != "exact":
        raise UsageError(f"rows {of_ops!r} belong to the exact tier; take the Trace of tier {tier!r}.")
    return [name for name in names if name not in of_ops], of_ops


def _with_rows(found: Result, rows: Sequence[str], what: Any, topology: Topology, options: Mapping[str, Any]) -> Summary:
    """The Summary with MOST_LISTED rows of each kind, the worst first."""
    assert isinstance(found, Summary)
    listed: dict[str, list[dict[str, Any]]] = {}
    if "ranks" in rows:
        listed["ranks"] = found.slowest_ranks(MOST_LISTED)
    if "nodes" in rows:
        finish = np.zeros(topology.n_nodes, np.int64)
        np.maximum.at(finish, topology.node_of, found.finish_ps)
        order = np.lexsort((np.arange(len(finish)), -finish))[:MOST_LISTED]
        listed["nodes"] = [{"node": int(node), "finish_us": float(finish[node]) / 1e6} for node in order]
    if "nics" in rows:
        listed["nics"] = _busiest_nics(found, what, topology, options)
    return Summary({**found.meta, "rows": listed})


def _rows_of_ops(names: Sequence[str], schedule: Schedule, topology: Topology, times: Times) -> dict[str, list[dict[str, Any]]]:
    listed = {}
    for name in names:
        kind, *numbers = name.split(":")
        which = [int(number) for number in numbers]
        listed[name] = (step_rows(schedule, times) if kind == "steps" else rank_rows(schedule, topology, times, *which) if kind == "rank"
                        else nic_rows(schedule, topology, times, *which))  # fmt: skip
    return listed


def _busiest_nics(found: Summary, what: Any, topology: Topology, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    if found.meta["collective"] == "all_to_allv":
        raise UsageError("rows of nics: all_to_allv has a size for each pair; take its Trace, whose stats() have the NICs.")
    nbytes, dtype = found.meta["nbytes"], found.meta["dtype"]
    if isinstance(what, str):
        what = (plan if topology.n_ranks == 1 else outline)(what, topology, **{**options, "nbytes": nbytes, "dtype": dtype})
    moved = nic_bytes(what, topology, nbytes, dtype)
    rate = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1)
    busy_us = 1e6 * moved / np.maximum(rate, 1) if rate.size else np.zeros(moved.shape)
    order = np.argsort(-busy_us, axis=None, kind="stable")[:MOST_LISTED]
    return [{"node": int(node), "nic": int(nic), "direction": ("tx", "rx")[side], "bytes": int(moved[side, node, nic]),
             "busy_us": float(busy_us[side, node, nic]), "share": float(busy_us[side, node, nic] / max(found.time_us, 1e-12))}
            for side, node, nic in zip(*np.unravel_index(order, moved.shape), strict=True)]  # fmt: skip


def _estimated(what: Any, topology: Topology, nbytes: Size | None, dtype: str | None, late: Any, changes: Changes, result: str,
               options: Mapping[str, Any]) -> Summary:  # fmt: skip
    """What the planner's closed form says, as a Summary whose ranks all end at once."""
    if not isinstance(what, str):
        raise UsageError("an estimate is made of the name of a collective and an algorithm, not of a schedule.")
    if late or changes or result == "trace":
        raise UsageError("an estimate knows neither late ranks nor faults at times, and has no trace: take tier='exact'.")
    check_names(what, dtype or "float32")
    _known_options(options)
    planned = {**options, "dtype": dtype or "float32"}
    size = "1MiB" if nbytes is None else nbytes
    chosen = outline(what, topology, size, **planned)
    seconds = estimate(what, topology, size, **{**planned, "algorithm": chosen.algorithm}).seconds
    time_ps, message = round(seconds * 1e12), chosen.nbytes
    algbw, busbw = bandwidths(what, topology.n_ranks, message, seconds * 1e6)
    return Summary({
        "source": "simulated", "collective": what, "algorithm": chosen.algorithm, "n_ranks": topology.n_ranks, "nbytes": message,
        "dtype": chosen.dtype, "redop": chosen.redop, "time_ps": time_ps, "time_us": seconds * 1e6,
        "finish_ps": np.full(topology.n_ranks, time_ps, np.int64), "algbw_gbytes_per_s": algbw, "busbw_gbytes_per_s": busbw,
        "n_ops": chosen.ops_about, "topology": topology.name, "late_ranks": 0, "tier": "estimate", "evaluated": {"as": "closed form"},
        "reasons": list(chosen.reasons), "drops": 0,
    })  # fmt: skip


def _schedule(what: Any, topology: Topology, nbytes: Size | None, dtype: str | None, counts: Any, options: Mapping[str, Any],
              why: str = "where links are shared") -> Schedule:  # fmt: skip
    """The ops of what is simulated, for a tier that needs all of them."""
    if isinstance(what, Schedule):
        _no_options(options)
        return what
    if isinstance(what, str):
        check_names(what, dtype or "float32")
        _known_options(options)
        planned = {**options, "nbytes": "1MiB" if nbytes is None else nbytes, "dtype": dtype or "float32"}
        if topology.n_ranks == 1 or counts is not None or what == "all_to_allv":
            return plan(what, topology, counts=counts, **planned)
        what = outline(what, topology, **planned)
    else:
        _no_options(options)
    if not isinstance(what, Outline):
        raise UsageError(f"simulate({shown(what)}): expected a Schedule, or the name of a collective.")
    if what.ops_about > MOST_ROWS:
        raise UnsupportedError(f"a schedule of about {what.ops_about:,} ops: {why} at most {MOST_ROWS:,} are unrolled. "
                               "Take fewer nodes or another algorithm, or simulate outline(...).unroll(), where memory allows.")
    return what.unroll()


def _outlined(what: Outline, topology: Topology, nbytes: Size | None, dtype: str | None, late: Any, alpha: Duration, result: str,
              changes: Changes) -> Result:  # fmt: skip
    small = what.ops_about <= (MOST_SPANS if result == "auto" else MOST_ROWS)
    if result == "trace" and not small:
        raise UnsupportedError(f"a trace of about {what.ops_about:,} ops: at most {MOST_ROWS:,} are unrolled here. Take "
                               "result='summary', or simulate what outline(...).unroll() gives, where memory allows.")
    if result == "trace" or (result == "auto" and small):
        return simulate_schedule(what.unroll(), topology, nbytes, dtype, late=late, alpha=alpha, changes=changes)
    try:
        return summarize(what, topology, nbytes, dtype, late, alpha, changes)
    except Inapplicable:
        if what.ops_about > MOST_ROWS:
            raise
        return _summary_of(simulate_schedule(what.unroll(), topology, nbytes, dtype, late=late, alpha=alpha, changes=changes))


def _chosen(what: str, topology: Topology, options: Mapping[str, Any], late: Any, alpha: Duration, result: str,
            changes: Changes) -> Result:  # fmt: skip
    """The algorithm that was asked for; of "auto" the cheapest that can be timed. Inapplicable says why each cannot."""
    passed_over: dict[str, str] = {}
    while True:
        planned = outline(what, topology, **options, passed_over=passed_over)
        try:
            return _outlined(planned, topology, None, None, late, alpha, result, changes)
        except Inapplicable as why:
            if options.get("algorithm", "auto") != "auto":
                raise
            passed_over[planned.algorithm] = why.why


def _summary_of(trace: Trace) -> Summary:
    """The Summary of a whole trace."""
    meta = {name: value for name, value in trace.meta.items() if name not in ("topology", "schedule_digest", "n_levels")}
    return Summary({**meta, "finish_ps": np.asarray(meta["finish_ps"], np.int64), "topology": trace.meta["topology"]["name"],
                    "tier": meta.get("tier", "exact"), "evaluated": {"as": "ops", "ops": trace.meta["n_ops"]}, "late_ranks": 0,
                    "reasons": []})


def _no_options(options: Mapping[str, Any]) -> None:
    if options:
        raise UsageError(f"{', '.join(options)}: a schedule that is given is already planned; these go with the name of a collective.")


def _known_options(options: Mapping[str, Any]) -> None:
    known = ("algorithm", "redop", "in_place", "root", "peer", "channels", "mapped")
    for name in options:
        if name not in known:
            raise UsageError(f"simulate has no argument {name!r}.{suggest(name, known)}")


# -- faults: of a whole run, and in the middle of one


def _texts(faults: Sequence[str] | str) -> tuple[str, ...]:
    return listed(faults, "faults", str, "texts such as 'nic:node=7,nic=2', or () for none")


_FAULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nic": (("node", "nic"), ("factor", "at", "until")),
    "rank": (("rank",), ("factor", "late")),
}


def degrade(topology: Topology, faults: Sequence[str]) -> tuple[Topology, dict[int, str]]:
    """(the topology with `faults`, who is late): what is wrong from the first byte to the last.

    Each fault is one of "nic:node=7,nic=2" (gone), "nic:node=7,nic=2,factor=4" (4 times slower), "rank:rank=3,factor=2" (its memory and
    fabric 2 times slower), "rank:rank=3,late=1ms". Those with at= are left to `changes_of`. Raises UsageError naming the fault, with a
    suggestion for a misspelt word.

        >>> degrade(Topology.cluster(nodes=2, nics_per_node=4), ["nic:node=1,nic=2"])[0].nic_bytes_per_s[6]
        np.int64(0)
    """
    gone, late = [], {}
    for text in _texts(faults):
        kind, values = _fault(text)
        try:
            if "at" in values or "until" in values:
                topology._nic_row((_whole(values["node"]), _whole(values["nic"])))
            elif kind == "nic" and "factor" not in values:
                gone.append((_whole(values["node"]), _whole(values["nic"])))
                topology._nic_row(gone[-1])
            elif kind == "nic":
                topology = topology.slow(float(values["factor"]), nic=(_whole(values["node"]), _whole(values["nic"])))
            else:
                rank = _whole(values["rank"])
                if "factor" in values:
                    topology = topology.slow(float(values["factor"]), rank=rank)
                if "late" in values:
                    late[rank] = values["late"]
                    late_times_ps({rank: values["late"]}, topology.n_ranks)
        except (UsageError, ValueError) as error:
            raise UsageError(f"fault {text!r}: {error}") from None
    return (topology.without(*gone) if gone else topology), late


def changes_of(topology: Topology, faults: Sequence[str]) -> Changes:
    """What `faults` with at= (and until=) do to the rates of NICs, as `simulate` takes it.

    "nic:node=7,nic=2,factor=4,at=1ms,until=3ms": 4 times slower in between. "nic:node=7,nic=2,at=1ms": gone from then on (or until=): the
    schedule stays, and what the NIC carried goes over those that the node has left, so all of them serve their share of what is left
    together. Detection takes no time. Raises UsageError naming the fault.
    """
    slower: dict[tuple[int, int], list[tuple[int, int, Fraction]]] = {}
    gone: dict[int, list[tuple[int, int, int]]] = {}
    for text in _texts(faults):
        kind, values = _fault(text)
        if kind != "nic" or not {"at", "until"} & set(values):
            continue
        try:
            node, nic = _whole(values["node"]), _whole(values["nic"])
            begin, end = (picoseconds(name, values[name]) if name in values else None for name in ("at", "until"))
            if not begin or (end is not None and end <= begin):
                raise UsageError("expected at= above 0, and until= after it; without at= a fault lasts from the first byte to the last.")
            stretch = (begin, _NEVER if end is None else end)
            if "factor" not in values:
                gone.setdefault(node, []).append((*stretch, nic))
                continue
            if not float(values["factor"]) >= 1:
                raise UsageError(f"factor={values['factor']}: expected 1 or more.")
            slower.setdefault((node, nic), []).append((*stretch, Fraction(values["factor"])))
        except (UsageError, ValueError) as error:
            raise UsageError(f"fault {text!r}: {error}") from None
    return _rates(topology, slower, gone)


_NEVER = 2**62


def _rates(topology: Topology, slower: Mapping[tuple[int, int], list[tuple[int, int, Fraction]]],
           gone: Mapping[int, list[tuple[int, int, int]]]) -> Changes:  # fmt: skip
    """The rates of all NICs of the nodes concerned, from each time on at which one of them changes."""
    m, n, found = topology.nics_per_node, topology.n_ranks, {}
    for node in sorted({*gone, *(node for node, _ in slower)}):
        base = [int(rate) for rate in topology.nic_bytes_per_s[node * m : (node + 1) * m]]
        mine = [each for (at, _), some in slower.items() if at == node for each in some]
        times = sorted({time for each in (*mine, *gone.get(node, ())) for time in each[:2] if time < _NEVER})
        for nic in (nic for nic in range(m) if base[nic]):
            rows = [(at, _rate_at(at, nic, base, slower.get((node, nic), ()), gone.get(node, ()))) for at in times]
            if rows[-1][1] == 0:
                raise UsageError(f"node {node} has no NIC left after {rows[-1][0] / 1e6:g} us: leave it one, or say until=.")
            for side in (node, topology.n_nodes + node):
                found[3 * n + side * m + nic] = rows
    return Changes.of(found)


def _rate_at(at: int, nic: int, base: Sequence[int], slower: Sequence[tuple[int, int, Fraction]],
             gone: Sequence[tuple[int, int, int]]) -> int:  # fmt: skip
    """Bytes/s of a NIC at a time: its share of what is left of its node, over all factors."""
    lost = sum(base[other] for other in {other for begin, end, other in gone if begin <= at < end})
    rate = Fraction(base[nic]) * (sum(base) - lost) / sum(base)
    for begin, end, factor in slower:
        rate = rate / factor if begin <= at < end else rate
    return max(int(rate), 1) if rate else 0


def _fault(text: str) -> tuple[str, dict[str, str]]:
    kind, _, rest = text.partition(":")
    if kind not in _FAULTS:
        raise UsageError(f"fault {text!r}: {kind!r} is no kind of fault.{suggest(kind, _FAULTS)}")
    needed, more = _FAULTS[kind]
    values = {}
    for item in filter(None, rest.split(",")):
        name, equals, value = item.partition("=")
        if name not in needed + more:
            raise UsageError(f"fault {text!r}: {kind} has no {name!r}.{suggest(name, needed + more)}")
        if not equals or not value:
            raise UsageError(f"fault {text!r}: {item!r} is not name=value.")
        values[name] = value
    for name in needed:
        if name not in values:
            raise UsageError(f"fault {text!r}: {name}= is missing; expected {kind}:{','.join(f'{each}=…' for each in needed)}.")
    if kind == "rank" and len(values) == 1:
        raise UsageError(f"fault {text!r}: expected factor= or late=.")
    return kind, values


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number.") from None


def _both(late: Any, more: Mapping[int, str], n_ranks: int) -> Any:
    """Lateness that was given, and that of faults; the later of both."""
    if not more:
        return late
    times = np.maximum(late_times_ps(late, n_ranks), late_times_ps(more, n_ranks))
    return {rank: f"{int(times[rank]) / 1e3}ns" for rank in np.flatnonzero(times).tolist()}
