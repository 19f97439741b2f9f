"""RDMA seen from Python: what NICs there are, what they carry, and verbs by hand.

    from ccl_lab import rdma
    rdma.devices()              devices, ports, GIDs: from /sys, no library needed
    rdma.rates(1.0)             Gb/s and packets of every port, whoever sends
    rdma.record(10).heatmap()   the same over ten seconds, drawn
    rdma.attributes("mlx5_0")   limits of a device; this and what follows needs pyverbs
    rdma.to_error(qp)           the fault button of a queue pair

Is not: the transport `verbs` of the engine, which is native.
"""

from __future__ import annotations

from .counters import Counters, Rate, rates, read, record
from .devices import Device, Gid, Port, devices, port, ports
from .verbs import address, attributes, connect, open_device, pyverbs, register, status_name, to_error, wait

__all__ = [
    "Counters", "Device", "Gid", "Port", "Rate", "address", "attributes", "connect", "devices", "open_device", "port", "ports", "pyverbs",
    "rates", "read", "record", "register", "status_name", "to_error", "wait",
]  # fmt: skip
