"""`plan`, `simulate`, `run` and `demo`: one collective on the command line.

Is not: a benchmark harness (bench/ is): `run` times what a person asked for once.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from ..errors import UsageError
from .arguments import (
    add_collective_arguments,
    add_fault_arguments,
    plan_from,
    plan_options,
    print_result,
    result,
    schedule_from,
    script_from,
    topology_from_text,
)
from .memory import peak_rss_bytes


def add_commands(commands: Any) -> None:
    plan = commands.add_parser("plan", help="plan and prove a schedule; print it with the reasons")
    add_collective_arguments(plan)
    plan.add_argument("--out", metavar="FILE", help="save the schedule (.ccl binary, .txt text)")
    plan.add_argument("--text", action="store_true", help="print every op")
    plan.set_defaults(run=run_plan)

    simulate = commands.add_parser("simulate", help="time a schedule on modelled links")
    add_collective_arguments(simulate)
    simulate.add_argument("--out", metavar="FILE", help="save the trace (.pftrace .json .arrow .parquet)")
    simulate.add_argument("--fault", action="append", default=[], metavar="SPEC",
                          help="what is wrong: nic:node=7,nic=2 (gone), nic:node=7,nic=2,factor=4 (slower), both with at=1ms,until=3ms "
                               "too; rank:rank=3,factor=2, rank:rank=3,late=1ms (repeatable)")  # fmt: skip
    simulate.add_argument("--patience", type=float, metavar="FACTOR",
                          help="how many times the usual work, some minutes, may be done before an algorithm is refused (default: 1)")
    simulate.add_argument("--tier", default="exact", metavar="NAME",
                          help="exact; shared: transfers share links, those between switches too; estimate: the planner's closed form "
                               "(default: %(default)s)")  # fmt: skip
    simulate.add_argument("--rows", default="", metavar="NAMES",
                          help="list those that end last or are busy longest: ranks,nodes,nics; up to 4 million ops also steps, "
                               "rank:7 (its ops), nic:7:2 (what NIC 2 of node 7 carried)")  # fmt: skip
    simulate.add_argument("--channels", type=int, metavar="N", help="streams per rank (default: by NICs)")
    simulate.set_defaults(run=run_simulate)

    run = commands.add_parser("run", help="run a schedule among real rank processes of this machine")
    add_collective_arguments(run)
    run.add_argument("--out", metavar="FILE", help="save the trace of the last iteration")
    run.add_argument(
        "--iterations",
        type=int,
        default=1,
        metavar="N",
        help="timed runs; the median is reported (default: 1)",
    )
    run.add_argument("--warmup", type=int, default=1, metavar="N", help="runs before them (default: 1)")
    run.add_argument("--transport", help="auto, shm or tcp")
    run.add_argument("--fabric", help="emulated, or netns (as root): nodes are network namespaces, NICs real interfaces")
    run.add_argument("--no-check", action="store_true", help="do not compare the results with the reference")
    add_fault_arguments(run)
    run.set_defaults(run=run_run)

    demo = commands.add_parser(
        "demo", help="8 ranks on 2 nodes x 4 NICs: simulated beside measured, demo.html, demo.pftrace"
    )
    demo.add_argument("--out", default="out", metavar="DIR", help="where the files go (default: %(default)s)")
    demo.add_argument("--bytes", default="64MiB", metavar="SIZE", help="message size (default: %(default)s)")
    demo.add_argument("--json", action="store_true", help="print exactly one JSON object")
    demo.set_defaults(run=run_demo)


def run_plan(arguments: argparse.Namespace) -> int:
    topology, schedule = plan_from(arguments)
    if arguments.out:
        schedule.save(arguments.out)
    if arguments.json:
        facts = {
            "op": schedule.collective,
            "algorithm": schedule.algorithm,
            "ranks": schedule.n_ranks,
            "nodes": topology.n_nodes,
            "bytes": schedule.nbytes,
            "dtype": schedule.dtype,
            "channels": schedule.n_channels,
            "parts": schedule.parts,
            "ops": len(schedule.ops),
            "proved": True,
            "reasons": list(schedule.reasons),
            "schedule": schedule.digest,
        }
        print_result(facts, True)
        return 0
    print(schedule.text() if arguments.text else repr(schedule))
    for reason in schedule.reasons:
        print(f"  {reason}")
    return 0


def run_simulate(arguments: argparse.Namespace) -> int:
    import time

    from ..simulation import simulate
    from ..simulator import Summary

    begin = time.perf_counter()
    topology = topology_from_text(arguments.topology)
    rows = [word for word in arguments.rows.split(",") if word]
    if arguments.schedule:
        found = simulate(schedule_from(arguments, topology), topology, faults=arguments.fault, tier=arguments.tier, rows=rows,
                         patience=arguments.patience)
    else:
        options = plan_options(arguments) | ({} if arguments.channels is None else {"channels": arguments.channels})
        found = simulate(arguments.collective, topology, arguments.bytes, arguments.dtype, faults=arguments.fault, tier=arguments.tier,
                         rows=rows, result="trace" if arguments.out else "auto", algorithm=arguments.algorithm,
                         redop=arguments.redop, patience=arguments.patience, **options)  # fmt: skip
    wall_s = time.perf_counter() - begin
    if arguments.out:
        found.save(arguments.out)
    meta = found.meta
    values = {
        "op": meta["collective"], "algorithm": meta["algorithm"], "ranks": topology.n_ranks, "nodes": topology.n_nodes,
        "bytes": int(meta["nbytes"]), "dtype": meta["dtype"], "redop": meta["redop"], "in_place": bool(arguments.in_place),
        "time_us": float(meta["time_us"]), "algbw_gbytes_per_s": meta["algbw_gbytes_per_s"],
        "busbw_gbytes_per_s": meta["busbw_gbytes_per_s"], "source": "simulated", "tier": arguments.tier,
        "ops": int(meta["n_ops"]), "faults": len(arguments.fault),
        "result": "summary" if isinstance(found, Summary) else "trace", "wall_s": wall_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }  # fmt: skip
    if not isinstance(found, Summary):
        values["schedule"] = meta["schedule_digest"]
    listed = meta.get("rows", {})
    if arguments.json:
        values |= {"rows": listed} if listed else {}
    print_result(values, arguments.json)
    for name, each in listed.items() if not arguments.json else ():
        print(f"{name}:", *("  ".join(f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
                            for row in each), sep="\n  ")  # fmt: skip
    return 0


def run_run(arguments: argparse.Namespace) -> int:
    from ..engine import World

    if arguments.iterations < 1 or arguments.warmup < 0:
        raise UsageError("--iterations must be 1 or more, --warmup 0 or more.")
    topology, schedule = plan_from(arguments)
    script = script_from(arguments)
    options = {name: getattr(arguments, name) for name in ("transport", "fabric") if getattr(arguments, name)}
    found: dict[str, Any] = {}
    with World(topology, **options) as world:
        if not arguments.no_check:
            first = world.start(schedule)
            first.wait()
            first.check()
        for _ in range(arguments.warmup):
            world.run(schedule)
        if script is None:
            traces = [world.run(schedule) for _ in range(arguments.iterations)]
        else:
            traces, found = _run_with_faults(world, schedule, script, arguments)
    times = sorted(trace.time_us for trace in traces)
    median = min(traces, key=lambda trace: abs(trace.time_us - statistics.median_low(times)))
    values = result(schedule, topology, median, "measured")
    values |= {
        "time_us_min": times[0],
        "time_us_p99": times[min(len(times) - 1, int(0.99 * len(times)))],
        "iterations": len(times),
        "checked": not arguments.no_check,
        "drops": int(median.meta.get("drops", 0)),
    } | found
    if arguments.out:
        traces[-1].save(arguments.out)
    print_result(values, arguments.json)
    return 0


def _run_with_faults(world: Any, schedule: Any, script: Any, arguments: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """(traces, what is added to the result): every timed run has the script, and is checked after it."""
    traces, fired = [], [0] * len(script)
    for _ in range(arguments.iterations):
        run = world.start(schedule, faults=script)
        traces.append(run.wait())
        if not arguments.no_check:
            run.check()
        fired = [total + fault.fired for total, fault in zip(fired, run.faults, strict=True)]
    rows = [{"fault": each.text(), "fired": hits} for each, hits in zip(script, fired, strict=True) if each.kind != "heal"]
    if not arguments.json:
        return traces, {f"fired {row['fault']}": row["fired"] for row in rows}
    return traces, {"faults": rows, "rail_events": len(world.faults.events)}


def run_demo(arguments: argparse.Namespace) -> int:
    from .. import demo

    rows = demo.run(arguments.out, nbytes=arguments.bytes, quiet=arguments.json)
    if arguments.json:
        print_result({"rows": rows, "out": arguments.out}, True)
    return 0 if all(row["bitwise_equal"] for row in rows) else 1
