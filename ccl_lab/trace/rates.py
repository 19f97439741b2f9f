"""Bytes per NIC over time: what the heatmap draws and the peak rate is taken from.

Is: `rate_bins`, which spreads the bytes of each span evenly over its duration. Is not: a guess at what the
wire did within a span (segments are short enough for that).
Invariants: the sum of all bins equals the sum of the bytes of the spans (to float64 rounding) when the
bins cover them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CclError, UsageError
from ..topo.files import from_dict as topo_from_dict
from .columns import Track

if TYPE_CHECKING:
    from .model import Trace

MAX_BINS = 2**24


@dataclass(frozen=True)
class RateBins:
    """Bytes per NIC and bin.

    node, index, track: i64[n_nics], which NIC and direction; nbytes: f64[n_nics, n_bins]; bin k covers
    [begin_ns + k*bin_ns, begin_ns + (k+1)*bin_ns).
    """

    begin_ns: int
    bin_ns: int
    node: np.ndarray
    index: np.ndarray
    track: np.ndarray
    nbytes: np.ndarray

    @property
    def gbits_per_s(self) -> np.ndarray:
        """Rate per NIC and bin in 1e9 bits/s, f64[n_nics, n_bins]."""
        return self.nbytes * (8.0 / self.bin_ns)

    @property
    def edges_ns(self) -> np.ndarray:
        """Begin of each bin and the end of the last, i64[n_bins + 1]."""
        return self.begin_ns + self.bin_ns * np.arange(self.nbytes.shape[1] + 1)

    @property
    def labels(self) -> list[str]:
        """ "node 1 nic 2 tx" per row."""
        rows = zip(self.node.tolist(), self.index.tolist(), self.track.tolist(), strict=True)
        return [
            f"node {node} nic {index} {'tx' if track == Track.nic_tx else 'rx'}"
            for node, index, track in rows
        ]

    def __repr__(self) -> str:
        return f"<RateBins {self.nbytes.shape[0]} NICs x {self.nbytes.shape[1]} bins of {self.bin_ns} ns>"


def rate_bins(
    trace: Trace,
    bin_ns: int,
    begin_ns: int | None = None,
    end_ns: int | None = None,
    tracks: tuple[Track, ...] = (Track.nic_tx, Track.nic_rx),
) -> RateBins:
    """Bytes per bin of `bin_ns` for every NIC (node, index, direction) that has spans, in that order.

    begin_ns, end_ns: the time to cut into bins (default: that of the NIC spans; the last bin may reach
    beyond).
    Cost: one pass over the NIC spans plus n_nics * n_bins. Raises UsageError for bin_ns < 1 or too many bins.
    """
    if bin_ns < 1:
        raise UsageError(f"bin_ns is {bin_ns}: expected at least 1 ns.")
    spans = trace.where(track=tracks)
    begin = spans.begin_ns if begin_ns is None else int(begin_ns)
    # an instant at the very end needs a bin of its own
    last = max(spans.end_ns, int(spans["begin_ns"].max()) + 1) if len(spans) else begin
    end = last if end_ns is None else int(end_ns)
    n_bins = max(1, -(-(end - begin) // int(bin_ns))) if len(spans) or end > begin else 0
    keys = np.stack([spans["node"], spans["index"], spans["track"]], axis=1).astype(np.int64)
    nics, row = np.unique(keys, axis=0, return_inverse=True)
    if n_bins * max(1, len(nics)) > MAX_BINS:
        raise UsageError(
            f"{n_bins} bins for {len(nics)} NICs: expected at most {MAX_BINS} in all; widen bin_ns."
        )
    first = (spans["begin_ns"] - begin) / bin_ns
    last = (np.maximum(spans["end_ns"], spans["begin_ns"]) - begin) / bin_ns
    nbytes = spread(row.reshape(-1), first, last, spans["nbytes"], len(nics), n_bins)
    return RateBins(begin, int(bin_ns), nics[:, 0], nics[:, 1], nics[:, 2], nbytes)


def spread(
    row: np.ndarray, first: np.ndarray, last: np.ndarray, nbytes: np.ndarray, n_rows: int, n_bins: int
) -> np.ndarray:
    """f64[n_rows, n_bins]: each weight spread evenly over [first, last) given in bins; outside parts are
    cut off.

    The bytes in a bin are the difference of a piecewise linear function at its edges, so a span needs two
    entries at its first bin and two at its last, and a cumulative sum makes the rest.
    """
    weight = nbytes.astype(np.float64)
    if not n_bins or not len(row):
        return np.zeros((n_rows, n_bins))
    inside = np.floor(first) == np.floor(np.nextafter(last, -np.inf))
    inside |= last <= first
    at = np.floor(first[inside]).astype(np.int64)
    seen = (at >= 0) & (at < n_bins)
    cells = row[inside][seen] * n_bins + at[seen]
    total = np.bincount(cells, weight[inside][seen], n_rows * n_bins).reshape(n_rows, n_bins)
    if inside.all():
        return total
    row, first, last, weight = (array[~inside] for array in (row, first, last, weight))
    slope = weight / (last - first)
    ramp = np.zeros(n_rows * (n_bins + 1))
    for at_bin, sign in ((first, 1.0), (last, -1.0)):
        clipped = np.clip(at_bin, 0.0, float(n_bins))
        whole = np.minimum(np.floor(clipped).astype(np.int64), n_bins - 1)
        part = clipped - whole
        cells = row * (n_bins + 1) + whole
        ramp += np.bincount(cells, sign * slope * (1.0 - part), len(ramp))
        ramp += np.bincount(cells + 1, sign * slope * part, len(ramp))
    spread_out = np.cumsum(ramp.reshape(n_rows, n_bins + 1), axis=1)[:, :n_bins]
    # rounding in the cumulative sum may leave a trace of bytes below zero after a span's end
    return total + np.maximum(spread_out, 0.0)


def line_rates(meta: Mapping[str, Any], nodes: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    """Line rate in 1e9 bits/s of each NIC (node, index), f64[n]; None where meta["topology"] does not say.

    The topology is that of `Topology.to_dict`, or a dict with `nic_gbits_per_s`: one number, a list per
    NIC of a node, or a list per (node, NIC) in node-major order with `nics_per_node`.
    """
    topology = meta.get("topology")
    if not isinstance(topology, Mapping):
        return None
    given, per_node = topology.get("nic_gbits_per_s"), topology.get("nics_per_node")
    if given is None:
        try:
            model = topo_from_dict(topology)
        except CclError:
            return None
        given, per_node = model.nic_gbits, model.nics_per_node
    try:
        rates = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return None
    if rates.ndim == 0:
        return np.full(len(nodes), float(rates))
    if rates.ndim != 1 or not rates.size:
        return None
    per_node = per_node if isinstance(per_node, int) and per_node > 0 else len(rates)
    if len(rates) == per_node:
        nodes = np.zeros_like(nodes)
    row = nodes * per_node + indices
    if ((nodes < 0) | (indices < 0) | (indices >= per_node) | (row >= len(rates))).any():
        return None
    return rates[row]
