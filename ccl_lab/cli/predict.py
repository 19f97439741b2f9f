"""`predict`: how long NCCL or CTran takes on a machine that nobody has here; a model's answer, with what was wrong elsewhere beside it.

Is not: a simulation of a schedule (`simulate`), nor the model (simulator/models).
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from ..errors import UsageError
from ..units import format_size, format_time
from .arguments import add_json, print_result, topology_from_text

_SIZES = "64KiB,1MiB,16MiB,256MiB,1GiB"


def add_commands(commands: Any) -> None:
    predict = commands.add_parser("predict", help="how long NCCL or CTran takes on a known machine, by a model")
    predict.add_argument("collective", metavar="COLLECTIVE", help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast")
    predict.add_argument("--platform", default="h100", metavar="NAME",
                         help="h100, h100_efa, h200, a100, b200, gb200_nvl72, gb200_ctran, words of a table (\"H100 EFA 4x8\"), or a "
                              "topology such as h100:nodes=16 (default: %(default)s)")  # fmt: skip
    predict.add_argument("--bytes", default=_SIZES, metavar="SIZES", help="sizes, with commas between them (default: %(default)s)")
    predict.add_argument("--nodes", type=int, metavar="N", help="nodes (default: the platform's)")
    predict.add_argument("--gpus", type=int, metavar="N", help="GPUs in all (default: all of the nodes)")
    predict.add_argument("--library", metavar="NAME", help="nccl or ctran (default: the platform's)")
    predict.add_argument("--algorithm", metavar="NAME", help="ring, tree, nvls, … (default: the model's minimum at each size)")
    predict.add_argument("--protocol", metavar="NAME", help="ll, ll128, simple (default: the model's minimum at each size)")
    add_json(predict)
    predict.set_defaults(run=run_predict)


def run_predict(arguments: argparse.Namespace) -> int:
    from ..simulator.models import predict
    from ..simulator.models.published import error_bar

    platform: Any = arguments.platform
    if ":" in platform or platform.endswith((".json", ".yaml", ".yml", ".txt")):
        platform = topology_from_text(platform)
    sizes = [word.strip() for word in arguments.bytes.split(",") if word.strip()]
    if not sizes:
        raise UsageError(f"--bytes {arguments.bytes!r}: expected a size such as 64MiB, or several with commas between them.")
    said = predict(arguments.collective, platform, sizes, arguments.algorithm, arguments.protocol, arguments.library,
                   nodes=arguments.nodes, gpus=arguments.gpus)  # fmt: skip
    rows = []
    for i, nbytes in enumerate(map(int, said.nbytes)):
        bar = error_bar(said.platform, nbytes)
        rows.append({"bytes": nbytes, "time_us": float(said.time_us[i]), "algbw_gbytes_per_s": float(said.algbw_gbytes_per_s[i]),
                     "busbw_gbytes_per_s": float(said.busbw_gbytes_per_s[i]), "algorithm": str(said.algorithm[i]),
                     "protocol": str(said.protocol[i]), "parts_us": {name: float(part[i]) for name, part in said.parts.items()},
                     "error": None if bar is None else dataclasses.asdict(bar)})  # fmt: skip
    if arguments.json:
        print_result({"op": said.op, "source": said.label, "library": said.library, "platform": said.platform, "nodes": said.nodes,
                      "ranks": said.ranks, "rows": rows, "sources": dict(said.sources)}, True)  # fmt: skip
        return 0
    print(f"{said.op} on {said.ranks} GPUs of {said.platform}, nodes: {said.nodes}, {said.library} ({said.label}, not a measurement)")
    for row in rows:
        print(f"{format_size(row['bytes']):>10} {format_time(row['time_us'] / 1e6):>10} {row['busbw_gbytes_per_s']:9.2f} GB/s busbw  "
              f"{row['algorithm'] + ' ' + row['protocol']:<18} {_error(row['error'])}")
    return 0


def _error(bar: dict[str, Any] | None) -> str:
    """What was wrong where rows were held out, in words."""
    if bar is None:
        return "error: no rows this small"
    where = "all platforms: no row of such a size is published on this one" if bar["platform"] == "all" else f"{bar['rows']} rows"
    return f"error: median {100 * bar['median']:.1f} %, largest {100 * bar['largest']:.1f} % ({where})"
