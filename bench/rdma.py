"""RDMA writes in the rig: perftest's ib_write_bw beside whoever is compared with it, per message size, on one NIC and on four.

Is: two machines of tests/rig, and the sides of rdma_sides.py in turns, a boot per round. Is not: a figure of a real NIC: soft RoCE moves
bytes with the processor, one core a machine, so what counts is the ratio. Invariants: all sides move the same bytes over the same NICs
in the same boot, timed from the first write to the last completion; a ratio is the median over rounds of ratios within a round, to the
faster of two: perftest as it comes, and perftest whose empty polls give the core up, since those of the first keep soft RoCE from running
(both say their times by perftest_clock.c: starts of programs take longer than the transfers, and vary by as much).

And a NIC that is pulled in the middle of an all_reduce (rdma_failover.py): times from the cut to sending again, and whether sums are exact.

    python -m bench rdma
    python -m bench.rdma FILE SECONDS     measures the next cases for about so long, keeps them in FILE, and writes the record with the last
    python -m bench.rdma sums FILE SECONDS   the same of all_reduce alone, anew in the record that is there
    python -m bench.rdma failover         only the pulled NIC, likewise
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers import programs
from bench.record import commit, percentiles, save
from ccl_lab import rdma
from ccl_lab.errors import UnsupportedError
from tests import rig

ROOT = Path(__file__).resolve().parent.parent
SOURCE, CLOCK = ROOT / "bench/perftest_clock.c", ROOT / "build/bench/perftest_clock.so"
PEERS = ("ib_write_bw", "ib_write_bw_yielding")  # sides that the others are compared with
# Sides that send and receive at once, and what a machine can do of that.
LIMITS = dict.fromkeys(("all_reduce", "all_reduce_in_place"), "ib_write_bw_both_ways")
# And what the one core of a machine does of the same bytes and sums, written by hand: the core limit.
CORE_LIMITS = {"all_reduce": "by_hand", "all_reduce_in_place": "by_hand_in_place"}
SUMS = ("ib_write_bw_both_ways", *CORE_LIMITS, *CORE_LIMITS.values())
BOOTS, DRAWS, MOVED_BYTES, TIMEOUT_S = 3, 2, 64 << 20, 1800  # a boot of a case times every side so often
NICS = (1, 4)
SIZES = (64 << 10, 1 << 20, 8 << 20)
FAULTS = {"link": "the interface is switched off", "qp": "a queue pair goes to the error state"}
PULLED_NICS, PULLED_ROUNDS, PULLED_BYTES, PULLED_BOOTS = 4, 5, 64 << 20, 2


def build() -> str | None:
    """Compiles the library that perftest is run with; None, or why it cannot be."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return "no C compiler: set CC"
    CLOCK.parent.mkdir(parents=True, exist_ok=True)
    found = subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(CLOCK), "-ldl"], capture_output=True, text=True)
    return None if found.returncode == 0 else found.stderr.strip()[-300:]


def missing() -> str | None:
    """Why it cannot run here."""
    try:
        rdma.pyverbs()
    except UnsupportedError as error:
        return str(error)
    if not shutil.which(PEERS[0]):
        return "perftest is not installed"
    ours = ("ccl_lab_bench_verbs", "ccl_lab_bench_sums_by_hand")
    return rig.obstacle() or build() or next(filter(None, map(programs.build_ours, ours)), None)


def rows_of(printed: str) -> list[dict[str, Any]]:
    """One row per case, from what machine 1 printed: GB/s of each side, all NICs together, its ratio to the best peer's or to both ways,
    and that to the core limit: medians over rounds of ratios within a round, and their range (to the core limit, where it has one)."""
    cases: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for line in printed.splitlines():
        row = json.loads(line)
        cases.setdefault((row["nics"], row["bytes"]), []).append(row)
    found = []
    for (nics, nbytes), rounds in cases.items():
        seconds = {side: [row["sides"][side]["s_per_transfer"] for row in rounds] for side in rounds[0]["sides"]}
        best = [min(pair) for pair in zip(*(seconds[peer] for peer in PEERS if peer in seconds), strict=True)]
        to_peer, to_core = {}, {}
        for side, own in seconds.items():
            peer = seconds.get(LIMITS[side]) if side in LIMITS else best
            core = seconds.get(CORE_LIMITS.get(side, ""))
            to_peer |= {side: [most / each for most, each in zip(peer, own, strict=True)]} if peer else {}
            to_core |= {side: [most / each for most, each in zip(core, own, strict=True)]} if core else {}
        found.append({
            "nics": nics, "bytes": nbytes,
            "gbytes_per_s": {side: nics * nbytes / statistics.median(own) / 1e9 for side, own in seconds.items()},
            "of_peer": {side: statistics.median(ratios) for side, ratios in to_peer.items()},
            "of_core_limit": {side: statistics.median(ratios) for side, ratios in to_core.items()},
            "ranges": {side: [min(ratios), max(ratios)] for side, ratios in (to_peer | to_core).items()}, "rounds": rounds,
        })  # fmt: skip
    return found


def _measure(known: dict[str, Any], seconds: float = float("inf"), sides: Sequence[str] = ()) -> bool:
    """Adds to known["printed"] for so many seconds, a boot for each case in turn; whether all are there. sides: none means all."""
    until = time.monotonic() + seconds
    for boot in range(BOOTS):
        for nics, nbytes in ((nics, nbytes) for nics in NICS for nbytes in SIZES):
            name = f"{boot} {nics}:{nbytes}"
            if name in known["printed"]:
                continue
            if time.monotonic() > until:
                return False
            began = time.monotonic()
            draws = [f"{boot * DRAWS + draw}:{nics}:{nbytes}" for draw in range(DRAWS)]
            command = [sys.executable, "-m", "bench.rdma_sides", str(MOVED_BYTES), *draws, *sides]
            outcomes = rig.run(command, machines=2, nics=max(NICS), timeout_s=TIMEOUT_S)
            if rig.status_of(outcomes):
                raise RuntimeError("\n".join(map(str, outcomes)))
            known["printed"][name] = outcomes[1].stdout
            known["took_s"] += time.monotonic() - began
    return True


def _facts(known: dict[str, Any]) -> dict[str, Any]:
    rows = rows_of("".join(known["printed"].values()))
    for row in rows:
        said = ", ".join(f"{side} {rate:.3f} GB/s ({row['of_peer'][side]:.0%})" for side, rate in row["gbytes_per_s"].items())
        said += "".join(f", {side} {ratio:.0%} of {CORE_LIMITS[side]}" for side, ratio in row["of_core_limit"].items())
        print(f"rdma: {row['nics']} NIC(s), {row['bytes'] >> 10} KiB: {said}", flush=True)
    large = {nics: next(row for row in rows if (row["nics"], row["bytes"]) == (nics, 1 << 20)) for nics in NICS}
    words = "; ".join(
        f"{nics} NIC(s): perftest {max(row['gbytes_per_s'][peer] for peer in PEERS):.3f} GB/s, "
        + ", ".join(f"{side} {ratio:.0%} of {LIMITS.get(side, 'it')}" for side, ratio in row["of_peer"].items() if side not in PEERS)
        + "".join(f", {side} {ratio:.0%} of {CORE_LIMITS[side]}" for side, ratio in row["of_core_limit"].items())
        for nics, row in large.items()
    )
    return {
        "summary": f"writes of 1 MiB on soft RoCE, {words}", "peers": PEERS, "limits": LIMITS, "core_limits": CORE_LIMITS,
        "moved_bytes_per_nic": MOVED_BYTES, "took_s": known["took_s"], "load": os.getloadavg(), "cases": rows,
    }  # fmt: skip


def pulled_of(lines: list[str]) -> dict[str, Any]:
    """What the lines of rdma_failover.py say, by fault: times of the rounds that were hit in mid-transfer, in ms."""
    rows = [json.loads(line) for line in lines]
    faults = {}
    for fault in dict.fromkeys(row["fault"] for row in rows):
        runs = [row for row in rows if row["fault"] == fault]
        again: dict[tuple[int, int], int] = {}
        for row in runs:
            key = row["boot"], row["round"]
            again[key] = again.get(key, 0) + row["sent_again"]
        hit = [row for row in runs if again[row["boot"], row["round"]] > 0]
        times = {
            what: percentiles([row[what] for row in hit if what in row])
            for what in ("cut_to_lost_ms", "cut_to_resumed_ms")
            if any(what in row for row in hit)
        }
        faults[fault] = {
            "what": FAULTS[fault], "rounds": len(again), "in_mid_transfer": sum(n > 0 for n in again.values()),
            "exact": all(row["exact"] for row in runs), "back": all(row["back"] for row in runs), **times, "runs": runs,
        }  # fmt: skip
    return faults


def failover() -> dict[str, Any]:
    """The part of a record about a pulled NIC."""
    lines: list[str] = []
    for boot in range(PULLED_BOOTS):
        command = [sys.executable, "-m", "bench.rdma_failover", str(PULLED_ROUNDS), str(PULLED_BYTES), *FAULTS]
        outcomes = rig.run(command, machines=2, nics=PULLED_NICS, timeout_s=TIMEOUT_S)
        if rig.status_of(outcomes):
            raise RuntimeError("\n".join(map(str, outcomes)))
        lines += [json.dumps(json.loads(line) | {"boot": boot}) for each in outcomes for line in each.stdout.splitlines()]
    faults = pulled_of(lines)
    words = []
    for found in faults.values():
        times, sums = found.get("cut_to_resumed_ms"), "exact" if found["exact"] else "WRONG"
        when = f"sending again {times['p50']:.0f} ms after the cut, at most {times['max']:.0f}" if times else "never hit in mid-transfer"
        words.append(f"{found['what']}: {when}, {found['in_mid_transfer']} of {found['rounds']} in mid-transfer, sums {sums}")
    said = "; ".join(words)
    print(f"rdma: a NIC of {PULLED_NICS} pulled: {said}", flush=True)
    return {
        "summary": said, "nics": PULLED_NICS, "bytes": PULLED_BYTES, "commit": commit(), "load": os.getloadavg(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "faults": faults,
    }  # fmt: skip


def run() -> dict[str, Any]:
    """The facts of a record."""
    if why := missing():
        return {"summary": f"skipped: {why}", "cases": []}
    known: dict[str, Any] = {"printed": {}, "took_s": 0.0}
    _measure(known)
    return _facts(known) | {"failover": failover()}


def _failover_again() -> None:
    """Only that part of the record, with a commit and a time of its own."""
    if why := rig.obstacle():
        raise SystemExit(why)
    path = ROOT / "bench/records/rdma.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"failover": failover()}, indent=1) + "\n")
    print(path)


def _sums(known: dict[str, Any]) -> dict[str, Any]:
    """The part of a record about all_reduce alone: its own rows, commit and time."""
    rows = rows_of("".join(known["printed"].values()))
    for row in rows:
        said = ", ".join(f"{side} {ratio:.0%} of {CORE_LIMITS[side]}" for side, ratio in row["of_core_limit"].items())
        print(f"rdma: {row['nics']} NIC(s), {row['bytes'] >> 10} KiB: {said}", flush=True)
    return {
        "commit": commit(), "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "limits": LIMITS, "core_limits": CORE_LIMITS,
        "moved_bytes_per_nic": MOVED_BYTES, "took_s": known["took_s"], "load": os.getloadavg(), "cases": rows,
    }  # fmt: skip


def _part(path: Path, seconds: float, sums: bool = False) -> None:
    if why := missing():
        raise SystemExit(why)
    known = json.loads(path.read_text()) if path.exists() else {"printed": {}, "took_s": 0.0}
    whole = _measure(known, seconds, SUMS if sums else ())
    path.write_text(json.dumps(known))
    print(f"{len(known['printed'])} of {BOOTS * len(NICS) * len(SIZES)} cases and boots")
    if whole and sums:
        record = ROOT / "bench/records/rdma.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"sums": _sums(known)}, indent=1) + "\n")
        print(record)
    elif whole:
        print(save("rdma", _facts(known) | {"failover": failover()}, ROOT / "bench/records"))


if __name__ == "__main__":
    if sys.argv[1:] == ["failover"]:
        _failover_again()
    elif sys.argv[1] == "sums":
        _part(Path(sys.argv[2]), float(sys.argv[3]), sums=True)
    else:
        _part(Path(sys.argv[1]), float(sys.argv[2]))
