"""Counts what collectives cost: instructions of the small-message path (callgrind) and bytes its kernels move.

    python tools/callgrind_costs.py PROGRAM              a table beside the limits of tests/golden/costs.toml
    python tools/callgrind_costs.py PROGRAM --json       the same as one JSON object

PROGRAM is ccl_lab_bench_costs, built with -DCCL_LAB_BENCH=ON. Is not: a measurement of time; the counts are the same on an
idle and on a busy machine. Invariant: instructions are the difference of two runs of unequal length, so what a program
does once, such as loading, does not count.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

LIMITS = Path(__file__).resolve().parents[1] / "tests/golden/costs.toml"
SHORT, LONG = 500, 2500


def _collected(program: str, case: str, iterations: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, "instructions", case]
    found = subprocess.run([*command, str(iterations)], capture_output=True, text=True, timeout=300)
    match = re.search(r"Collected\s*:\s*(\d+)", found.stderr)
    if found.returncode or not match:
        raise SystemExit(f"callgrind_costs: {' '.join(command)} {iterations} failed:\n{found.stderr[-2000:]}")
    return int(match[1])


def instructions(program: str, cases: list[str], short: int = SHORT, long: int = LONG) -> dict[str, float]:
    """Instructions of one iteration of PROGRAM: of one collective, all its ranks together. short, long: iterations of the two runs."""
    return {case: (_collected(program, case, long) - _collected(program, case, short)) / (long - short) for case in cases}


def moved_bytes(program: str) -> list[dict[str, object]]:
    """What the kernels of all ranks read and wrote: rows {collective, ranks, memory, bytes, read, written}."""
    out = subprocess.run([program, "bytes"], capture_output=True, text=True, timeout=300, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def limits() -> dict[str, dict]:
    return tomllib.loads(LIMITS.read_text())


def bytes_limit(row: dict[str, object], what: str) -> int:
    """The limit of `what` ("read", "written") for a row of moved_bytes: messages = a * ranks + b."""
    a, b = limits()["bytes"][row["memory"]][row["collective"]][what]
    return (a * row["ranks"] + b) * row["bytes"]


def measure(program: str) -> dict[str, object]:
    found: dict[str, object] = {"bytes": moved_bytes(program)}
    if shutil.which("valgrind"):
        found["instructions"] = instructions(program, list(limits()["instructions"]))
    return found


def _print(found: dict) -> None:
    for case, limit in limits()["instructions"].items():
        count = found.get("instructions", {}).get(case)
        shown = "valgrind is missing" if count is None else f"{count:8.1f} instructions, limit {limit}"
        print(f"{case:24} {shown}")
    for row in found["bytes"]:
        parts = [
            f"{what} {row[what] / row['bytes']:5.2f} messages, limit {bytes_limit(row, what) / row['bytes']:5.2f}"
            for what in ("read", "written")
        ]
        print(f"{row['collective']:16} {row['ranks']} ranks, {row['memory']:10} {'; '.join(parts)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(str(Path(arguments.program).resolve()))
    if arguments.json:
        print(json.dumps(found))
    else:
        _print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
