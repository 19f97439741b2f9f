"""Arguments several commands share; the text form of a topology is that of topo/text.py.

Is not: a second set of defaults; what is left out is what the Python function takes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError, UsageError
from ..topo.text import topology_from_text

DEFAULT_TOPOLOGY = "cluster:nodes=2,gpus_per_node=4,nics_per_node=4,nic_gbits_per_s=8"


def add_collective_arguments(parser: argparse.ArgumentParser) -> None:
    """What `plan`, `simulate` and `run` have in common."""
    parser.add_argument(
        "collective", metavar="COLLECTIVE", help="all_reduce, all_gather, reduce_scatter, all_to_all, ..."
    )
    parser.add_argument(
        "--bytes", default="1MiB", metavar="SIZE", help="message size, such as 64MiB (default: %(default)s)"
    )
    parser.add_argument(
        "--topology",
        default=DEFAULT_TOPOLOGY,
        metavar="TEXT",
        help="cluster:..., a preset, machine, or a .json file (default: %(default)s)",
    )
    parser.add_argument("--algorithm", default="auto", help="name of the algorithm (default: the cheapest)")
    parser.add_argument("--dtype", default="float32", help="element type (default: %(default)s)")
    parser.add_argument(
        "--redop", default="sum", help="sum, prod, min, max, avg, band, bor, bxor (default: %(default)s)"
    )
    parser.add_argument("--in-place", action="store_true", help="input and output share memory")
    parser.add_argument(
        "--root", type=int, default=0, help="root of broadcast, reduce, gather, scatter (default: 0)"
    )
    parser.add_argument("--peer", type=int, help="receiver of send_recv")
    parser.add_argument("--schedule", metavar="FILE", help="take this saved schedule instead of planning one")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object")


def add_fault_arguments(parser: argparse.ArgumentParser) -> None:
    """What goes wrong in the timed iterations of `run`."""
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="SPEC",
        help='a fault in every timed run, such as "nic_down node=1 nic=2 after=2ms" (repeatable; see docs/faults.md)',
    )
    parser.add_argument("--fault-script", metavar="FILE", help="faults of a saved script, text or JSON, in every timed run")


def script_from(arguments: argparse.Namespace) -> Any:
    """The FaultScript of --fault-script and --fault, in this order, with everything undone after each run; None without any.

    Raises UsageError or DecodeError naming the option, the line and what was expected.
    """
    from ..faults import FaultScript, FaultSpec

    script = FaultScript()
    if arguments.fault_script:
        if not Path(arguments.fault_script).exists():
            raise UsageError(f"fault script {arguments.fault_script!r} does not exist.")
        script = FaultScript.load(arguments.fault_script)
    for text in arguments.fault:
        try:
            script += FaultScript(FaultSpec.parse(text))
        except UsageError as error:
            raise UsageError(f"--fault {text!r}: {error}") from None
    return script.final_heal() if len(script) else None


def plan_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options of `plan` among the common arguments."""
    options: dict[str, Any] = {"in_place": arguments.in_place, "root": arguments.root}
    options["mapped"] = getattr(arguments, "transport", None) != "tcp"
    if arguments.peer is not None:
        options["peer"] = arguments.peer
    return options


def schedule_from(arguments: argparse.Namespace, topology: Any) -> Any:
    """The saved schedule of --schedule, proved; UsageError where it is for another number of ranks."""
    from ..ir import Schedule
    from ..verifier import verify

    schedule = Schedule.load(arguments.schedule)
    if schedule.n_ranks != topology.n_ranks:
        raise UsageError(f"the schedule is for {schedule.n_ranks} ranks, the topology has {topology.n_ranks}.")
    verify(schedule)
    return schedule


def plan_from(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """(topology, proved schedule) of the common arguments."""
    from ..planner import plan
    from ..verifier import verify

    topology = topology_from_text(arguments.topology)
    if arguments.schedule:
        return topology, schedule_from(arguments, topology)
    schedule = plan(arguments.collective, topology, nbytes=arguments.bytes, algorithm=arguments.algorithm, dtype=arguments.dtype,
                    redop=arguments.redop, **plan_options(arguments))
    verify(schedule)
    return topology, schedule


def result(schedule: Any, topology: Any, trace: Any, source: str) -> dict[str, Any]:
    """The object that `simulate --json` and `run --json` print."""
    stats = trace.stats()
    return {
        "op": schedule.collective,
        "algorithm": schedule.algorithm,
        "ranks": schedule.n_ranks,
        "nodes": topology.n_nodes,
        "bytes": int(trace.meta.get("nbytes", schedule.nbytes or 0)),
        "dtype": schedule.dtype,
        "redop": schedule.redop,
        "in_place": bool(schedule.in_place),
        "time_us": stats.time_us,
        "algbw_gbytes_per_s": stats.algbw_gbytes_per_s,
        "busbw_gbytes_per_s": stats.busbw_gbytes_per_s,
        "source": source,
        "ops": len(schedule.ops),
        "schedule": schedule.digest,
    }


def print_result(values: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or `name  value` lines."""
    if as_json:
        print(json.dumps(values, allow_nan=False))
        return
    width = max(len(name) for name in values)
    for name, value in values.items():
        print(f"{name:<{width}}  {value:.6g}" if isinstance(value, float) else f"{name:<{width}}  {value}")


def need(found: bool, what: str, how: str) -> None:
    """Raises UnsupportedError naming `what` and how to get it."""
    if not found:
        raise UnsupportedError(f"{what} is not installed: {how}.")
