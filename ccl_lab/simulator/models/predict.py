"""predict: how long a collective takes by NCCL or CTran on a known machine, labelled as a model.

Is: the choice among pipelines (the model's own minimum, size by size) and the value that comes out. Is not: the pipelines (nccl,
ctran) nor their numbers (platforms).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from ...arguments import as_array, named, several
from ...errors import UsageError
from ...topo import Topology
from ...units import Size, format_size, format_time, parse_size
from . import ctran, nccl
from .platforms import CTRAN_PLATFORMS, CtranPlatform, Platform, find, find_ctran, nodes_of

F64 = npt.NDArray[np.float64]
LIBRARIES = ("nccl", "ctran")
SizeOrSizes = Union[Size, npt.ArrayLike]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What a model says; scalars where one size was given, arrays of shape [sizes] for several.

    op, library, platform, nodes, ranks; nbytes: bytes of the larger buffer of a rank; time_us, busbw_gbytes_per_s, algbw_gbytes_per_s;
    algorithm, protocol: chosen or asked for; parts: {"launch", "latency", "bandwidth", …: us}, which add up to time_us; candidates:
    {(algorithm, protocol): us}; sources: where each number of the platform is from; label: always "model".
    """

    op: str
    library: str
    platform: str
    nodes: int
    ranks: int
    nbytes: Any
    time_us: Any
    busbw_gbytes_per_s: Any
    algbw_gbytes_per_s: Any
    algorithm: Any
    protocol: Any
    parts: dict[str, Any]
    candidates: dict[tuple[str, str], Any]
    sources: Mapping[str, str]
    label: str = "model"

    def __repr__(self) -> str:
        """One line a size."""
        head = f"{self.op} on {self.ranks} GPUs of {self.platform}, {self.nodes} nodes, {self.library} ({self.label})"
        columns = [np.atleast_1d(x) for x in (self.nbytes, self.time_us, self.busbw_gbytes_per_s, self.algorithm, self.protocol)]
        lines = [f"{format_size(int(size)):>10} {format_time(time / 1e6):>10} {busbw:8.2f} GB/s busbw  {algorithm} {protocol}"
                 for size, time, busbw, algorithm, protocol in zip(*columns, strict=True)]  # fmt: skip
        return "\n".join([head, *lines])


def _sizes(nbytes: SizeOrSizes) -> tuple[F64, bool]:
    """Sizes as f64[k], and whether there was one alone."""
    if isinstance(nbytes, str) or (as_array(nbytes).ndim == 0 and not isinstance(nbytes, Sequence)):
        values, one = [nbytes], True
    else:
        values, one = list(several(nbytes, "nbytes", "a size, or several")), False
    sizes = [parse_size(each) if isinstance(each, str) else each for each in values]
    for each in sizes:
        if isinstance(each, (bool, np.bool_)) or not isinstance(each, (int, float, np.integer, np.floating)) or not 1 <= each < 2**62:
            raise UsageError(f"nbytes {each!r}: expected a size of 1 or more bytes, like 65536 or \"64MiB\".")
    if not sizes:
        raise UsageError("nbytes: expected a size, or several; found none.")
    return np.array(sizes, np.float64), one


def _nccl(
    op: str,
    platform: Union[str, Topology, Platform],
    sizes: F64,
    algorithm: str | None,
    protocol: str | None,
    nodes: int | None,
    gpus: int | None,
) -> tuple[Platform, int, int, dict[tuple[str, str], dict[str, F64]], dict[tuple[str, str], npt.NDArray[np.bool_]]]:
    found, of_topology = find(platform)
    if of_topology is not None and (nodes, gpus) != (None, None):
        raise UsageError("nodes and gpus are those of the topology; give one or the other.")
    nodes, ranks = nodes_of(found, nodes if of_topology is None else of_topology, gpus)
    if nodes > 1 and not found.nics_per_node:
        raise UsageError(f"{nodes} nodes of {found.name}: it has no NICs.")
    at = nccl.Shape(found, nodes, ranks)
    if ranks == 1:
        nccl.candidates(op, nccl.Shape(found, 1, 2), None, None)  # so that a wrong op is an error here too
        return found, nodes, ranks, {("none", "none"): {"launch": np.full_like(sizes, found.launch_us)}}, {}
    pipelines = nccl.candidates(op, at, algorithm, protocol)
    launch = {"launch": np.full_like(sizes, found.launch_us)}
    rings = [name for name in pipelines if name[0] == "ring"]
    taken = {}
    if nodes == 1 and len(rings) > 1:
        chosen = nccl.protocol_of_ring(op, at, [each for _, each in rings], sizes)
        taken = {name: chosen == i for i, name in enumerate(rings)}
    return found, nodes, ranks, {name: launch | pipeline.parts(sizes) for name, pipeline in pipelines.items()}, taken


def _ctran(
    op: str,
    platform: Union[str, Topology, Platform, CtranPlatform],
    sizes: F64,
    algorithm: str | None,
    protocol: str | None,
    nodes: int | None,
    gpus: int | None,
) -> tuple[CtranPlatform, int, int, dict[tuple[str, str], dict[str, F64]], dict[tuple[str, str], npt.NDArray[np.bool_]]]:
    if protocol not in (None, "zero_copy"):
        raise UsageError(f"protocol {protocol!r}: CTran's puts are zero_copy.")
    found, default = find_ctran(platform)
    ranks = gpus if gpus is not None else default
    if isinstance(ranks, bool) or not isinstance(ranks, (int, np.integer)) or ranks < 2:
        raise UsageError(f"gpus {ranks!r}: expected how many ranks, 2 or more; all their traffic is over NICs.")
    return found, int(ranks), int(ranks), ctran.candidates(op, found, int(ranks), sizes, algorithm), {}


def predict(
    op: str,
    platform: Union[str, Topology, Platform, CtranPlatform],
    nbytes: SizeOrSizes,
    algorithm: str | None = None,
    protocol: str | None = None,
    library: str | None = None,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
) -> Prediction:
    """How long `op` takes on `platform`: a model's answer, not a simulation of a schedule.

    op: as in torch ("all_reduce", "all_gather", …). platform: a name of PLATFORMS ("h100", "h100_efa", "b200", …) or CTRAN_PLATFORMS
    ("gb200_ctran"), a Topology (its preset's parameters with its own rates), or a parameter set. nbytes: of the larger buffer of a
    rank, as nccl-tests count; one size or an array. algorithm, protocol: None lets the model's minimum choose, size by size.
    library: "nccl" or "ctran" (default: that of the platform; CTran on others has gb200_ctran's costs and their NICs). nodes, gpus: how
    many (default: the platform's; CTran: gpus alone, as all traffic is over NICs).

    Returns a Prediction. Raises UsageError, with the nearest name, for an unknown op, platform, algorithm, protocol or library, for
    sizes below 1 byte, and for what cannot run there. Cost: some us a size. Source: modules nccl and ctran.

        >>> predict("all_reduce", "h100", "1GiB", nodes=8).algorithm
        'nvls_tree'
    """
    if library is None:
        library = "ctran" if isinstance(platform, CtranPlatform) or str(platform).lower().replace("-", "_") in CTRAN_PLATFORMS else "nccl"
    named(library, "library", LIBRARIES)
    sizes, one = _sizes(nbytes)
    build = _nccl if library == "nccl" else _ctran
    found, nodes, ranks, parts, taken = build(op, platform, sizes, algorithm, protocol, nodes, gpus)  # type: ignore[operator, arg-type]
    names = list(parts)
    times = np.array([sum(each.values()) for each in parts.values()])
    # The least, but for what the library's own table does not take.
    ranked = np.array([np.where(taken.get(name, True), each, np.inf) for name, each in zip(names, times, strict=True)])
    best = ranked.argmin(axis=0)
    every = dict.fromkeys(part for each in parts.values() for part in each)
    split = {part: np.array([parts[names[i]].get(part, 0 * sizes)[k] for k, i in enumerate(best)]) for part in every}
    time = ranked.min(axis=0)
    algbw = sizes / time / 1e3

    def shaped(values: Any) -> Any:
        return values[0].item() if one else values

    return Prediction(
        op, library, found.name, nodes, ranks, shaped(sizes.astype(np.int64)), shaped(time), shaped(algbw * nccl.FACTORS[op](ranks)),
        shaped(algbw), shaped(np.array([names[i][0] for i in best])), shaped(np.array([names[i][1] for i in best])),
        {part: shaped(values) for part, values in split.items()}, {name: shaped(times[i]) for i, name in enumerate(names)}, found.sources,
    )  # fmt: skip
