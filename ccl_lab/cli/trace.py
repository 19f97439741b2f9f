"""`trace info|stats|convert`: look at a trace file, or write it in another format.

Is not: a viewer; `ccl-lab trace convert x.arrow x.pftrace` feeds the viewers people have.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from .arguments import add_json, print_result


def add_commands(commands: Any) -> None:
    trace = commands.add_parser(
        "trace", help="info, stats, convert: look at a trace file or write another format"
    )
    actions = trace.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser("info", help="what the trace is")
    stats = actions.add_parser("stats", help="bandwidth and percentiles, per rank and NIC")
    for parser, run in ((info, run_info), (stats, run_stats)):
        parser.add_argument("file", metavar="FILE", help="a .arrow, .parquet, .json or .json.gz trace")
        add_json(parser)
        parser.set_defaults(run=run)
    convert = actions.add_parser("convert", help="write a trace in another format, by suffix")
    convert.add_argument("file", metavar="FILE", help="a .arrow, .parquet, .json or .json.gz trace")
    convert.add_argument(
        "target", metavar="TARGET", help="a .pftrace, .json, .json.gz, .arrow or .parquet file"
    )
    convert.set_defaults(run=run_convert)


def _load(arguments: argparse.Namespace) -> Any:
    from ..trace import Trace

    return Trace.load(arguments.file)


def run_info(arguments: argparse.Namespace) -> int:
    trace = _load(arguments)
    meta = {name: value for name, value in trace.meta.items() if not isinstance(value, (dict, list))}
    span = {"spans": len(trace), "ranks": trace.n_ranks, "begin_ns": trace.begin_ns, "end_ns": trace.end_ns}
    print_result(span | meta, arguments.json)
    return 0


def run_stats(arguments: argparse.Namespace) -> int:
    stats = _load(arguments).stats()
    if arguments.json:
        print_result(plain_stats(stats), True)
    else:
        print(stats)
    return 0


def plain_stats(stats: Any) -> dict[str, Any]:
    """The statistics as JSON can hold them."""
    if hasattr(stats, "to_dict"):
        return stats.to_dict()
    return dataclasses.asdict(stats)


def run_convert(arguments: argparse.Namespace) -> int:
    path = _load(arguments).save(arguments.target)
    print(path)
    return 0
