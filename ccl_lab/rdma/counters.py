"""What the ports of RDMA devices have carried, by the counters of the hardware: of every process, not only of ours.

Is: `read()`, `rates()` and `record()`, whose Trace the NIC heatmap draws. Is not: a view, nor counters of our own.
Which counters there are depends on the driver, so every number says where it comes from:

    bytes     "port"    counters/port_{xmit,rcv}_data of the port, in words of 4 bytes: RDMA only
              "netdev"  statistics of the network interface: RDMA (soft RoCE is carried by it) and all else that it carries
    packets   "port"    counters/port_{xmit,rcv}_packets      "hw"  hw_counters/{sent,rcvd}_pkts of soft RoCE: RDMA only
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..topo import Topology
from ..topo.sysfs import names, number, text
from ..trace import Trace
from ..trace.columns import SpanKind, Track
from .devices import FOLDER, Port, Root, ports

WORD_BYTES = 4  # unit of port_xmit_data and port_rcv_data
ASSUMED_GBITS = 1.0  # line rate drawn for a port that does not say its own
_NONE = ("", -1, -1)


@dataclasses.dataclass(frozen=True)
class Counters:
    """Totals of a port at a moment (CLOCK_MONOTONIC); -1 where nobody counts. `others` are all files of hw_counters and counters."""

    device: str
    port: int
    at_ns: int
    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int
    bytes_of: str
    packets_of: str
    others: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Rate:
    """What a port carried per second between two moments; None where nobody counts. `counted` says what it is, in words."""

    device: str
    port: int
    seconds: float
    tx_gbits_per_s: float | None
    rx_gbits_per_s: float | None
    tx_packets_per_s: float | None
    rx_packets_per_s: float | None
    counted: str


def _pair(folder: Path, transmit: str, receive: str) -> tuple[int, int]:
    return number(folder / transmit, -1), number(folder / receive, -1)


def _first(*candidates: tuple[str, tuple[int, int]]) -> tuple[str, int, int]:
    """(where from, sent, received) of the first that counts."""
    return next(((name, *pair) for name, pair in candidates if min(pair) >= 0), _NONE)


def _read(root: Path, port: Port) -> Counters:
    where = root / FOLDER / port.device / "ports" / str(port.number)
    own, hardware, netdev = where / "counters", where / "hw_counters", root / "sys/class/net" / (port.netdev or "none") / "statistics"
    at_ns = time.monotonic_ns()
    words = _pair(own, "port_xmit_data", "port_rcv_data")
    bytes_of, tx_bytes, rx_bytes = _first(
        ("port", (words[0] * WORD_BYTES, words[1] * WORD_BYTES)), ("netdev", _pair(netdev, "tx_bytes", "rx_bytes"))
    )
    packets_of, tx_packets, rx_packets = _first(
        ("port", _pair(own, "port_xmit_packets", "port_rcv_packets")), ("hw", _pair(hardware, "sent_pkts", "rcvd_pkts"))
    )
    others = {name: value for folder in (own, hardware) for name in names(folder) if (value := number(folder / name, -1)) >= 0}
    return Counters(port.device, port.number, at_ns, tx_bytes, rx_bytes, tx_packets, rx_packets, bytes_of, packets_of, others)


def read(root: Root = "/", of: Sequence[Port] | None = None) -> tuple[Counters, ...]:
    """Totals of every port now, or of the ports `of`.

    The kernel reads what is below hw_counters (`packets_of` "hw") anew only when its last reading, whoever asked for it, is older than
    `others["lifespan"]` ms (soft RoCE: 10): what came since then is not in it. Cost: some 30 file reads a port; a GID table more where
    `of` is not given.
    """
    return tuple(_read(Path(root), port) for port in (ports(root) if of is None else of))


def counted(counters: Counters, port: Port) -> str:
    """What the numbers of a port are, in words."""
    whose = f"all bytes of {port.netdev}, RDMA and other"
    traffic = {"port": "RDMA bytes of the port", "netdev": whose}.get(counters.bytes_of, "no bytes")
    packets = {"port": "RDMA packets of the port", "hw": "RDMA packets of the device"}.get(counters.packets_of, "no packets")
    return f"{traffic}; {packets}"


def _checked_interval(seconds: float, name: str) -> float:
    if not seconds > 0:
        raise UsageError(f"{name}={seconds}: expected seconds above 0.")
    return float(seconds)


def _per_s(before: int, after: int, seconds: float) -> float | None:
    return None if min(before, after) < 0 else _moved(before, after) / seconds


def _moved(before: int, after: int) -> int:
    """What was counted between; a counter that went back was reset, or its device made anew: all it says came since."""
    return after - before if after >= before else after


def rates(interval_s: float = 1.0, root: Root = "/") -> tuple[Rate, ...]:
    """What every port carries per second, over `interval_s` from now. Raises UsageError for no time.

    Counts whoever uses the port. A port that goes away meanwhile has None. Blocks for `interval_s`.
    """
    interval_s = _checked_interval(interval_s, "interval_s")
    held = ports(root)
    before = read(root, held)
    time.sleep(interval_s)
    return tuple(_rate(port, *pair) for port, *pair in zip(held, before, read(root, held), strict=True))


def _rate(port: Port, before: Counters, after: Counters) -> Rate:
    seconds = (after.at_ns - before.at_ns) / 1e9
    names = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
    alike = (before.bytes_of == after.bytes_of,) * 2 + (before.packets_of == after.packets_of,) * 2
    tx, rx, *packets = (
        _per_s(getattr(before, name), getattr(after, name), seconds) if same else None for name, same in zip(names, alike, strict=True)
    )
    gbits = [None if rate is None else rate * 8e-9 for rate in (tx, rx)]
    return Rate(port.device, port.number, seconds, *gbits, *packets, counted(before, port))


def record(seconds: float, interval_s: float = 0.1, root: Root = "/") -> Trace:
    """What every port carries over `seconds`, as a Trace: a span per port, direction and interval. `.heatmap()` draws it.

    Ports that count bytes are the NICs of one node, in the order of `ports()`; meta["counted"] names them and says what is counted.
    A reading that misses a port's counters adds nothing: the span of the next one reaches back over it. Blocks for `seconds`.
    Raises UsageError where no port counts bytes, or for no time.
    """
    interval_s, seconds = _checked_interval(interval_s, "interval_s"), _checked_interval(seconds, "seconds")
    held = ports(root)
    kept = [(port, one) for port, one in zip(held, read(root, held), strict=True) if one.bytes_of]
    if not kept:
        raise UsageError("record: no RDMA port here counts bytes; ccl_lab.rdma.devices() lists the ports there are.")
    held, last = [port for port, _ in kept], [one for _, one in kept]
    said = {f"{port.device} port {port.number}": counted(one, port) for port, one in kept}
    rows: list[tuple[int, int, int, int, int]] = []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(interval_s, left))
        now = read(root, held)
        for index, (before, after) in enumerate(zip(last, now, strict=True)):
            rows += _spans(index, before, after)
        last = [after if before.bytes_of == after.bytes_of else before for before, after in zip(last, now, strict=True)]
    return _trace(rows, held, said, root)


def _spans(index: int, before: Counters, after: Counters) -> list[tuple[int, int, int, int, int]]:
    """(track, NIC, begin, end, bytes) per direction; none while the port, or the counter it was read from, is away."""
    if before.bytes_of != after.bytes_of:
        return []  # totals of two counters have no difference
    pairs = ((Track.nic_tx, before.tx_bytes, after.tx_bytes), (Track.nic_rx, before.rx_bytes, after.rx_bytes))
    return [
        (int(track), index, before.at_ns, after.at_ns, _moved(old, new)) for track, old, new in pairs if min(old, new) >= 0
    ]


def _trace(rows: list[tuple[int, int, int, int, int]], held: list[Port], said: dict[str, str], root: Root) -> Trace:
    table = np.array(rows, np.int64).reshape(len(rows), 5)
    origin = int(table[:, 2].min()) if len(rows) else 0
    gbits = [port.gbits_per_s or ASSUMED_GBITS for port in held]
    host = text(Path(root) / "proc/sys/kernel/hostname") or "this machine"
    topology = Topology.cluster(nodes=1, gpus_per_node=1, nics_per_node=len(held), emulated=False, name=host).replace(
        nic_bytes_per_s=[round(rate * 1.25e8) for rate in gbits], nic_names=tuple(f"{port.device}:{port.number}" for port in held)
    )
    zero = np.zeros(len(rows), np.int64)
    columns = {"rank": zero, "node": zero, "track": table[:, 0], "index": table[:, 1], "kind": zero + int(SpanKind.user),
               "begin_ns": table[:, 2] - origin, "end_ns": table[:, 3] - origin, "nbytes": table[:, 4]}  # fmt: skip
    meta = {"source": "measured", "n_ranks": 1, "topology": topology.to_dict(), "counted": said}
    return Trace(columns, meta)
