"""Runs benchmarks by name; see the package."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from pathlib import Path

from .record import save

BENCHMARKS = (
    "engine_overhead",
    "python_overhead",
    "tcp_rails",
    "trace_overhead",
    "start_up",
    "simulated_against_measured",
    "simulated_scale",
    "timeline_fps",
    "trace_import",
    "live_stream",
    "elastic",
    "failover",
    "failover_overhead",
    "degraded",
    "degraded_live",
    "steps",
    "torch_steps",
    "soak",
    "overlap_paper",
    "overlap_live",
    "gpt_steps",
    "rdma",
    "cuda",
    "cuda_overlap",
    "validation",
    "sharing",
    "moe",
)


def main() -> int:
    """Runs those named (default: all) and prints one line each."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Side-by-side benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "records", help="folder of the records"
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes, of benchmarks that have a quick form")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {sorted(unknown)[0]!r}; known: {', '.join(BENCHMARKS)}")
    for name in arguments.names or BENCHMARKS:
        run = importlib.import_module(f"bench.{name}").run
        facts = run(quick=True) if arguments.quick and "quick" in inspect.signature(run).parameters else run()
        path = save(name, facts, arguments.out)
        print(f"{name}: {facts['summary']}\n  -> {path}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
