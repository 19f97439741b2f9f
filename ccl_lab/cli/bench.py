"""`bench`: our paths beside every installed peer.

Is: the way to the bench of the clone, which is not in the installed package: its programs are compiled for each peer.
Is not: a benchmark; every further argument goes to `python -m bench.peers` as it is.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from .arguments import need

ROOT = Path(__file__).resolve().parents[2]


def add_commands(commands: Any) -> None:
    bench = commands.add_parser(
        "bench", help="our collectives beside every installed peer (bench --help)", add_help=False
    )
    bench.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    need(
        (ROOT / "bench/peers/__main__.py").exists(),
        "the bench",
        "clone the project and run `ccl-lab bench` there",
    )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return int(importlib.import_module("bench.peers.__main__").main(arguments.further))
