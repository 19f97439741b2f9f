"""How long CTran takes (NCCLX's host-driven zero-copy transport): puts over NICs, step by step.

    T = control + sum over steps of (hop + bytes / rate); a reducing step adds reduce to its hop

Is: the step model of arXiv 2510.20171 with DQPLB's load of NICs. Is not: NVLink copies (all traffic is over NICs, as measured), nor
the queue pairs one by one. Structure that no parameter tunes: a put below one segment is one write on one QP, so it has one NIC of
the rank's; from one on it is dealt to all in turn. A long put of a ring is cut, and the next rank begins with what has
come: of the hop 1 / (1 + bytes / pipeline_bytes) is left. Rate: NICs, or the window QPs x segment x in flight over the round trip.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...arguments import named
from ...errors import UsageError
from .platforms import CtranPlatform

F64 = npt.NDArray[np.float64]


def put_us(platform: CtranPlatform, nbytes: F64) -> F64:
    """How long the bytes of a put are on the wire: over one NIC below a segment, over all of the rank's from one on."""
    rate = platform.gbytes_per_s
    one = min(rate, platform.nic_gbytes_per_s * platform.nic_share)
    return nbytes / np.where(nbytes < platform.segment_bytes, one, rate) / 1e3


def _ring(platform: CtranPlatform, n: int, nbytes: F64, reducing: bool) -> dict[str, F64]:
    steps = 2 * (n - 1) if reducing else n - 1
    chunk = nbytes / n
    hop = platform.hop_us + (platform.reduce_us / 2 if reducing else 0.0)
    wire = put_us(platform, chunk)
    waiting = steps * hop / (1 + chunk / platform.pipeline_bytes)
    rest = chunk / platform.reduce_gbytes_per_s / 1e3 if reducing else 0 * chunk
    return {"latency": waiting, "bandwidth": steps * wire, "reduce": rest}


def _all_reduce_ring(platform: CtranPlatform, n: int, nbytes: F64) -> dict[str, F64]:
    return _ring(platform, n, nbytes, reducing=True)


def _all_gather_ring(platform: CtranPlatform, n: int, nbytes: F64) -> dict[str, F64]:
    return _ring(platform, n, nbytes, reducing=False)


def _doubling(platform: CtranPlatform, n: int, nbytes: F64, reducing: bool = False) -> dict[str, F64]:
    """log2 n steps of 1, 2, 4 … blocks."""
    if n & (n - 1):
        raise UsageError(f"recursive doubling among {n} ranks: expected a power of two; use ring.")
    sizes = [nbytes / n * 2**i for i in range(n.bit_length() - 1)]
    hop = platform.hop_us + (platform.reduce_us if reducing else 0.0)
    return {"latency": np.full_like(nbytes, hop * len(sizes)), "bandwidth": sum((put_us(platform, size) for size in sizes), 0 * nbytes)}


def _reduce_scatter_ring(platform: CtranPlatform, n: int, nbytes: F64) -> dict[str, F64]:
    found = _ring(platform, n, nbytes, reducing=False)
    return {**found, "reduce": np.full_like(nbytes, (n - 1) * platform.reduce_us) + nbytes / n / platform.reduce_gbytes_per_s / 1e3}


def _reduce_scatter_halving(platform: CtranPlatform, n: int, nbytes: F64) -> dict[str, F64]:
    return {**_doubling(platform, n, nbytes, reducing=True), "reduce": nbytes / n / platform.reduce_gbytes_per_s / 1e3}


def _direct(platform: CtranPlatform, n: int, nbytes: F64) -> dict[str, F64]:
    """All puts at once: one hop, and (n-1)/n of the bytes over all NICs; a put for each peer is posted."""
    wire = nbytes * (n - 1) / n / platform.gbytes_per_s / 1e3
    return {"latency": np.full_like(nbytes, platform.hop_us + (n - 2) * POST_US), "bandwidth": wire}


POST_US = 0.3  # assumption: one put posted by the CPU thread

_FORMS: dict[tuple[str, str], Callable[[CtranPlatform, int, F64], dict[str, F64]]] = {
    ("all_reduce", "ring"): _all_reduce_ring,
    ("all_gather", "ring"): _all_gather_ring,
    ("all_gather", "recursive_doubling"): _doubling,
    ("all_gather", "direct"): _direct,
    ("reduce_scatter", "ring"): _reduce_scatter_ring,
    ("reduce_scatter", "recursive_halving"): _reduce_scatter_halving,
    ("all_to_all", "direct"): _direct,
}


def candidates(op: str, platform: CtranPlatform, n: int, nbytes: F64, algorithm: str | None) -> dict[tuple[str, str], dict[str, F64]]:
    """Parts of the time (us) of each algorithm for `op`, or of the one asked for; protocol is "zero_copy". Raises UsageError."""
    ops = sorted({each for each, _ in _FORMS})
    named(op, "op", ops, verdict="is not in the model of CTran")
    known = [name for each, name in _FORMS if each == op]
    if algorithm is not None:
        named(algorithm, f"algorithm of {op}", known, verdict="is not in the model of CTran")
    if n < 2:
        raise UsageError(f"CTran on {n} rank: expected 2 or more.")
    chosen = [algorithm] if algorithm else [name for name in known if name == "ring" or name == "direct" or not n & (n - 1)]
    control = {"launch": np.full_like(nbytes, platform.control_us)}
    return {(name, "zero_copy"): control | _FORMS[op, name](platform, n, nbytes) for name in chosen}
