"""Arguments several commands share, and the text form of a topology.

A topology is written as one of

    cluster:nodes=2,gpus_per_node=4,nics_per_node=4,nic_gbits_per_s=8     Topology.cluster(...)
    h100:nodes=4                                                         Topology.preset("h100", nodes=4)
    machine                                                              this machine, as discovered
    path/to/topology.json                                                a saved one

Is not: a second set of defaults; what is left out is what the Python function takes.
"""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError, UsageError, suggest

DEFAULT_TOPOLOGY = "cluster:nodes=2,gpus_per_node=4,nics_per_node=4,nic_gbits_per_s=8"


def _value(text: str) -> Any:
    """A number, true or false where the text reads as one; else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _options(text: str, whole: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(f"topology {whole!r}: {item!r} is not name=value.")
        found[name.strip()] = _value(value.strip())
    return found


def topology_from_text(text: str) -> Any:
    """The Topology that `text` describes (forms above).

    Raises UsageError for an unknown kind or option, with the nearest known one.

    >>> topology_from_text("cluster:nodes=1,gpus_per_node=2").n_ranks
    2
    """
    from ..topo import Topology

    if text.endswith(".json"):
        if not Path(text).exists():
            raise UsageError(f"topology file {text!r} does not exist.")
        return Topology.load(text)
    kind, _, rest = text.partition(":")
    options = _options(rest, text)
    if kind == "machine":
        return Topology.discover(**options)
    if kind != "cluster":
        return Topology.preset(kind, **options)
    known = inspect.signature(Topology.cluster).parameters
    for name in options:
        if name not in known:
            raise UsageError(f"topology {text!r}: cluster has no option {name!r}.{suggest(name, known)}")
    options = {"nodes": 1, "gpus_per_node": 1, "nics_per_node": 1} | options
    return Topology.cluster(**options)


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


def plan_from(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """(topology, proved schedule) of the common arguments."""
    from ..ir import Schedule
    from ..planner import plan
    from ..verifier import verify

    topology = topology_from_text(arguments.topology)
    if arguments.schedule:
        schedule = Schedule.load(arguments.schedule)
    else:
        options: dict[str, Any] = {"in_place": arguments.in_place, "root": arguments.root}
        options["mapped"] = getattr(arguments, "transport", None) != "tcp"
        if arguments.peer is not None:
            options["peer"] = arguments.peer
        schedule = plan(
            arguments.collective,
            topology,
            nbytes=arguments.bytes,
            algorithm=arguments.algorithm,
            dtype=arguments.dtype,
            redop=arguments.redop,
            **options,
        )
    if schedule.n_ranks != topology.n_ranks:
        raise UsageError(
            f"the schedule is for {schedule.n_ranks} ranks, the topology has {topology.n_ranks}."
        )
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
