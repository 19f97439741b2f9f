"""The demonstration: every algorithm planned, proved, simulated, run by real ranks and compared.

Is: what `make demo` and `ccl-lab demo` run. Is not: a benchmark (bench/ is): a few runs a row, on whatever else
this machine does. Invariant: a row is printed only after its results were compared bitwise with the reference; inputs are
whole numbers, so that every order of summation gives the same bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .engine import Run, World
from .errors import ContributionError, UsageError
from .planner import plan
from .simulator import simulate
from .topo import Topology
from .trace import Trace
from .units import Size, format_size
from .verifier import verify

# Slow enough that two cores keep eight NICs busy: all NICs together carry 0.25 GB/s through loopback sockets. Memory
# rates are those of a rank that shares two cores with seven others.
NODES, GPUS_PER_NODE, NICS_PER_NODE, NIC_GBITS_PER_S = 2, 4, 4, 0.25
FABRIC_GBYTES_PER_S = LOCAL_GBYTES_PER_S = 2
RUNS = 3  # timed runs a case; the median is shown
CASES = (
    ("all_reduce", "ring", "float32"),
    ("all_reduce", "bidirectional_ring", "float32"),
    ("all_reduce", "halving_doubling", "float32"),
    ("all_reduce", "double_binary_tree", "float32"),
    ("all_reduce", "direct", "float32"),
    ("all_reduce", "hierarchical", "float32"),
    ("all_reduce", "hierarchical", "int32"),
    ("all_to_all", "direct", "float32"),
    ("all_to_all", "hierarchical", "int32"),
)
HEAD = f"{'collective':<12}{'algorithm':<20}{'dtype':<9}{'simulated':>12}{'measured':>12}{'ratio':>7}{'busbw':>12}{'NIC rate':>16}  bitwise"


def topology() -> Topology:
    """2 nodes, each 4 ranks and 4 NICs shaped to 0.25 Gb/s."""
    return Topology.cluster(
        nodes=NODES,
        gpus_per_node=GPUS_PER_NODE,
        nics_per_node=NICS_PER_NODE,
        nic_gbits_per_s=NIC_GBITS_PER_S,
        fabric_gbytes_per_s=FABRIC_GBYTES_PER_S,
        local_gbytes_per_s=LOCAL_GBYTES_PER_S,
    )


def nic_share(trace: Trace) -> tuple[float, float]:
    """(Gb/s, share of its line rate) of a sending NIC over the whole collective, as a mean over the NICs that sent; 0 where none did."""
    nics = trace.stats().nics
    sending = nics["direction"] == "tx"
    if not sending.any():
        return 0.0, 0.0
    return float(nics["mean_gbits_per_s"][sending].mean()), float(np.nan_to_num(nics["utilisation"])[sending].mean())


def is_right(run: Run) -> bool:
    """Whether every output equals the reference in every bit."""
    try:
        run.check()
    except ContributionError:
        return False
    return True


def run_case(
    world: World, shaped: Topology, case: tuple[str, str, str], nbytes: Size
) -> tuple[dict[str, Any], Trace, Trace]:
    """Plans, proves, simulates, runs and compares one case; returns its row, the simulated and the measured trace."""
    collective, algorithm, dtype = case
    schedule = plan(collective, shaped, nbytes=nbytes, algorithm=algorithm, dtype=dtype)
    verify(schedule)
    simulated = simulate(schedule, shaped)
    running = world.start(schedule)  # the first run also touches its memory for the first time
    running.wait()
    right = is_right(running)
    measured = sorted((world.run(schedule) for _ in range(RUNS)), key=lambda trace: trace.time_us)[RUNS // 2]
    gbits_per_s, share = nic_share(measured)
    row = {
        "op": collective,
        "algorithm": algorithm,
        "dtype": dtype,
        "ranks": shaped.n_ranks,
        "bytes": schedule.nbytes,
        "simulated_us": simulated.time_us,
        "time_us": measured.time_us,
        "ratio": measured.time_us / simulated.time_us,
        "algbw_gbytes_per_s": measured.algbw_gbytes_per_s,
        "busbw_gbytes_per_s": measured.busbw_gbytes_per_s,
        "nic_gbits_per_s": gbits_per_s,
        "nic_share": share,
        "bitwise_equal": right,
    }
    return row, simulated, measured


def format_row(row: dict[str, Any]) -> str:
    """One line of the table."""
    nic = f"{row['nic_gbits_per_s']:.2f} Gb/s {100 * row['nic_share']:3.0f} %"
    times = f"{row['simulated_us'] / 1e3:>9.1f} ms{row['time_us'] / 1e3:>9.1f} ms{row['ratio']:>7.2f}"
    bitwise = "equal" if row["bitwise_equal"] else "WRONG"
    name = f"{row['op']:<12}{row['algorithm']:<20}{row['dtype']:<9}"
    return f"{name}{times}{row['busbw_gbytes_per_s']:>7.3f} GB/s{nic:>16}  {bitwise}"


def pictures(shaped: Topology, shown: list[Trace]) -> list[Any]:
    """What demo.html shows: the topology, and per trace its timeline; the NICs of measured ones."""
    found: list[Any] = [shaped.show()]
    for trace in shown:
        found += [
            f"{trace.meta['algorithm']}, {trace.meta['source']}: {trace.time_us / 1e3:.1f} ms",
            trace.timeline(),
        ]
        if trace.meta["source"] == "measured":
            found.append(trace.heatmap())
    return found


def run(out: str | Path = "out", nbytes: Size = "64MiB", quiet: bool = False) -> list[dict[str, Any]]:
    """Runs every case on 8 ranks; writes demo.html and demo.pftrace into `out`; returns the rows of the table."""
    from .widgets import export_html

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {out} is a file: expected a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    shaped, rows, shown = topology(), [], []
    say = (lambda text: None) if quiet else (lambda text: print(text, flush=True))
    with World(shaped) as world:
        say(
            f"{shaped.n_ranks} ranks on {NODES} nodes, {NICS_PER_NODE} NICs each, shaped to {NIC_GBITS_PER_S} Gb/s"
        )
        say(HEAD)
        for case in CASES:
            row, simulated, measured = run_case(world, shaped, case, nbytes)
            rows.append(row)
            say(format_row(row))
            if (
                row["op"] == "all_reduce"
                and row["algorithm"] in ("ring", "hierarchical")
                and row["dtype"] == "float32"
            ):
                shown += [simulated, measured]
    shown[-1].save(folder / "demo.pftrace")
    export_html(
        folder / "demo.html", pictures(shaped, shown), title=f"all_reduce of {format_size(rows[0]['bytes'])}"
    )
    say(f"wrote {folder / 'demo.html'} and {folder / 'demo.pftrace'}")
    return rows
