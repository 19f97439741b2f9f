"""A topology as text, for a terminal or a cell.

Is: the picture that `repr` prints, in plain ASCII so that it survives logs. Is not: the interactive view (widgets).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..units import format_rate, format_time

if TYPE_CHECKING:
    from .model import Topology

MAX_NODES, MAX_BOXES = 4, 8


def _same(values: np.ndarray, text: Callable[[Any], str]) -> str:
    """One value, or the range of them."""
    if not len(values):
        return "none"
    low, high = values.min(), values.max()
    return text(low) if low == high else f"{text(low)} to {text(high)}"


def _latency(values: np.ndarray) -> str:
    return _same(values, lambda ps: format_time(float(ps) * 1e-12))


def _gbytes(values: np.ndarray) -> str:
    return _same(values, lambda rate: f"{rate / 1e9:.4g} GB/s")


def _cells(cells: list[str], width: int) -> str:
    shown = cells if len(cells) <= MAX_BOXES else cells[: MAX_BOXES - 1] + ["..."]
    return " ".join(cell.ljust(width) for cell in shown).rstrip()


def _usual_rate(topology: Topology) -> int:
    """The rate that most NICs have."""
    rates, counts = np.unique(topology.nic_bytes_per_s, return_counts=True)
    return int(rates[counts.argmax()]) if len(rates) else 0


def _node(topology: Topology, node: int, usual: int) -> list[str]:
    """Ranks above, NICs below; a NIC that differs from the usual rate says its own."""
    m = topology.nics_per_node
    rates = topology.nic_bytes_per_s[node * m : (node + 1) * m].tolist()
    ranks = [f"[r{rank}]" for rank in topology.ranks_of(node)]
    nics = [f"nic{i}" + ("" if rate == usual else " down" if not rate else f" {format_rate(rate)}")
            for i, rate in enumerate(rates)]
    width = max(len(cell) for cell in (ranks + nics if len(ranks) == m else ["[r000]"]))
    lines = [f"node {node:<4} | {_cells(ranks, width)}"]
    return lines + ([f"{'':9} | {_cells(nics, width)}"] if m else [])


def _switches(topology: Topology) -> list[str]:
    """One line: each tier with its groups and switches in a group, uplinks of a switch, and what it adds to the latency."""
    network, tiers = topology.network, []
    if network is None:
        return []
    for k, tier in enumerate(network.tiers):
        text = f"{tier.name}{' per rail' * tier.per_rail} {tier.groups} x {network.switches(k, topology.nics_per_node) // tier.groups}"
        text += f" ({tier.uplinks} up, {format_rate(tier.uplink_bytes_per_s)} each)" if tier.uplinks else ""
        tiers.append(text + (f" +{format_time(tier.latency_ps * 1e-12)}" if tier.latency_ps else ""))
    return [f"  switches {', '.join(tiers)}; {network.routing}"]


def picture(topology: Topology) -> str:
    """A line of sums, then the first nodes with their ranks and NICs."""
    sizes, m = topology.ranks_per_node, topology.nics_per_node
    up = topology.nic_bytes_per_s[topology.nic_bytes_per_s > 0]
    per_node = str(sizes.max()) if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    nics = (f"{m} per node, {_same(up, format_rate)}, {_latency(topology.nic_latency_ps)}"
            + (", one rail per NIC" if topology.rails else "")) if m else "none"
    bar = "  +" + "-" * 70
    lines = [
        f"Topology {topology.name!r}: {topology.n_ranks} ranks = {topology.n_nodes} node{'s' * (topology.n_nodes > 1)} x "
        f"{per_node} ({topology.device}{', emulated' if topology.emulated else ''})",
        f"  fabric  {_gbytes(topology.fabric_bytes_per_s)} per rank each way, {_latency(topology.fabric_latency_ps)}",
        f"  NICs    {nics}",
        f"  memory  {_gbytes(topology.local_bytes_per_s)} per rank",
        *_switches(topology),
        bar,
    ]
    usual = _usual_rate(topology)
    for node in range(min(topology.n_nodes, MAX_NODES)):
        lines += [f"  | {line}" for line in _node(topology, node, usual)]
        lines.append(bar)
    if topology.n_nodes > MAX_NODES:
        lines.append(f"    ... and {topology.n_nodes - MAX_NODES} more nodes")
    return "\n".join(lines)
