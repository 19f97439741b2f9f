"""`trace info|stats|convert`: look at trace files, our own or a job's, or write them in another format.

Is not: a viewer; `ccl-lab trace convert x.arrow x.pftrace` feeds the viewers people have.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .arguments import add_json, print_result

_FILES = "a trace: ours, Kineto, flight recorder, Chakra; one file a rank, a tar of them, or a folder"
_COLLECTIVES = 12


def add_commands(commands: Any) -> None:
    trace = commands.add_parser(
        "trace", help="info, stats, convert: look at a trace file or write another format"
    )
    actions = trace.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser("info", help="what the trace is")
    stats = actions.add_parser(
        "stats", help="what the time went to, per rank; overlap; who is late; bandwidth"
    )
    for parser, run in ((info, run_info), (stats, run_stats)):
        parser.add_argument("file", metavar="FILE", nargs="+", help=_FILES)
        _add_options(parser)
        add_json(parser)
        parser.set_defaults(run=run)
    convert = actions.add_parser("convert", help="write a trace in another format, by suffix")
    convert.add_argument("file", metavar="FILE", nargs="+", help=_FILES)
    convert.add_argument(
        "target",
        metavar="TARGET",
        help="a .pftrace, .json, .json.gz, .arrow or .parquet file; .kineto (folder), .et, .flight.json: a file a rank",
    )
    _add_options(convert)
    convert.set_defaults(run=run_convert)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="table of what kernels are, before the built-in one (see docs/traces.md)",
    )
    parser.add_argument("--recover", action="store_true", help="read what is whole of a file that is cut off")
    parser.add_argument("--no-align", action="store_true", help="leave each rank's clock as it was recorded")


def _load(arguments: argparse.Namespace) -> Any:
    from ..trace import Trace

    return Trace.load(
        *arguments.file, classes=arguments.classes, align=not arguments.no_align, recover=arguments.recover
    )


def run_info(arguments: argparse.Namespace) -> int:
    trace = _load(arguments)
    meta = {name: value for name, value in trace.meta.items() if not isinstance(value, (dict, list))}
    span = {"spans": len(trace), "ranks": trace.n_ranks, "begin_ns": trace.begin_ns, "end_ns": trace.end_ns}
    print_result(span | meta, arguments.json)
    return 0


def run_stats(arguments: argparse.Namespace) -> int:
    trace = _load(arguments)
    exposure, late = trace.exposure(), trace.stragglers()
    if arguments.json:
        found = {"ranks": exposure.partition(), "collectives": late.rows(), "late_rank": late.late_rank}
        print(json.dumps(found, allow_nan=False))
        return 0
    for note in trace.meta.get("notes") or ():
        print(f"note: {note}", file=sys.stderr)
    print(exposure)
    print(f"\n{late.words()}")
    if len(late.ranks) > 1:
        print(late.ranks.text())
    if len(late.collectives):
        print(f"\nCollectives ({len(late.collectives)})\n{late.collectives.text(_COLLECTIVES)}")
    if trace.meta.get("source") == "imported":
        _print_import(trace)
    else:
        print(f"\n{trace.stats()}")
        _print_clock(trace.meta.get("clock"))
    return 0


def _print_clock(clock: dict[str, Any] | None) -> None:
    if not clock:
        return
    moved = ", ".join(f"rank {rank} {offset:+.3g}" for rank, offset in list(clock["offset_us"].items())[:16])
    left, off_by = clock.get("residual_us"), clock.get("off_by_us")
    known = f"; left over: median {left['median']:.3g}, at most {left['max']:.3g}" if left else ""
    known += f"; off by at most {max(off_by.values()):.3g}" if off_by else ""
    print(f"\nClocks, by the {clock['method']} (µs): {moved}{known}")


def _print_import(trace: Any) -> None:
    _print_clock(trace.meta.get("clock"))
    print("\nClassified as (class, library, names, spans, time in µs, for example):")
    for row in trace.meta.get("classified") or ():
        counts = f"{row['names']:>5}  {row['spans']:>8}  {row['time_us']:>12.1f}"
        print(f"  {row['class']:<13}  {row['library'] or '-':<17}  {counts}  {row['examples'][0][:60]}")


def run_convert(arguments: argparse.Namespace) -> int:
    path = _load(arguments).save(arguments.target)
    print(path)
    return 0
