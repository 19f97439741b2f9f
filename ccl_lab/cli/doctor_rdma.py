"""What `doctor` says of RDMA: ports and what is wrong with each, the GID that would be taken, libraries, locked memory.

Is: checks as in doctor.py. Is not: verbs; a port is judged by what /sys says, so this runs without any library.
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from ..units import format_size
from .finding import Finding

if TYPE_CHECKING:
    from ..rdma import Port

ROCE_V2, LARGEST_PATH_MTU_BYTES = "RoCE v2", 4096
ENOUGH_LOCKED_BYTES = 1 << 30
CAP_IPC_LOCK = 14


def _problems(port: Port) -> list[str]:
    """What is to be done for a port to be used; none where it can be."""
    name = f"{port.device} port {port.number}"
    ethernet = port.link_layer == "Ethernet"
    if not port.active:
        if not ethernet:
            return [f"{name} is {port.state} ({port.physical_state}): plug the cable in, and see that a subnet manager runs (opensm)"]
        return [f"{name} is {port.state} ({port.physical_state}): ip link set {port.netdev or 'its interface'} up, and plug the cable in"]
    if port.gid is None:
        return [f"{name} has no GID: give {port.netdev or 'its interface'} an address (ip addr add)"]
    found = []
    if ethernet and port.gid.kind != ROCE_V2:
        found.append(f"{name} has no GID of RoCE v2, and RoCE v1 passes no router: give {port.netdev} an IP address")
    if ethernet and (port.path_mtu_bytes or LARGEST_PATH_MTU_BYTES) < LARGEST_PATH_MTU_BYTES:
        how = f"ip link set {port.netdev} mtu 9000, on switches and peers too, for {LARGEST_PATH_MTU_BYTES}"
        found.append(f"{name} has path MTU {port.path_mtu_bytes}: {how}")
    return found


def _words(port: Port, numa: int) -> str:
    words = [f"{port.device} port {port.number} {port.state}"]
    if port.gbits_per_s:
        words.append(f"{port.gbits_per_s:g} Gb/s")
    words.append(f"GID {port.gid.index} {port.gid.kind} {port.gid.ip}".replace("  ", " ") if port.gid else "no GID")
    if port.path_mtu_bytes:
        words.append(f"path MTU {port.path_mtu_bytes}")
    words += [f"on {port.netdev}"] if port.netdev else []
    words += [f"NUMA node {numa}"] if numa >= 0 else []
    return " ".join(words[:1]) + ": " + ", ".join(words[1:])


def _device_files(root: Path) -> str | None:
    """Why verbs of this process cannot reach the devices; None where they can."""
    files = sorted((root / "dev/infiniband").glob("uverbs*"))
    if not files:
        return "/dev/infiniband/uverbs* is not there: modprobe ib_uverbs, or docker run --device /dev/infiniband"
    closed = [file.name for file in files if not os.access(file, os.R_OK | os.W_OK)]
    return f"/dev/infiniband/{closed[0]} may not be opened by this user: join the group that owns it (rdma)" if closed else None


def check_rdma(root: str | os.PathLike[str] = "/") -> Finding:
    from ..rdma import devices

    held = [(port, device.numa) for device in devices(root) for port in device.ports]
    needed_for = "the verbs transport"
    if not held:
        how = "an RDMA NIC with its driver, or soft RoCE: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev NAME (root)"
        return Finding("RDMA", False, "no device", needed_for, how)
    found = "; ".join(_words(port, numa) for port, numa in held)
    usable = any(port.active and port.gid for port, _ in held)
    problems = [problem for port, _ in held for problem in _problems(port)]
    if closed := _device_files(Path(root)):
        usable, problems = False, [closed, *problems]
    if usable and problems:
        found += "; to do: " + "; ".join(problems)
    return Finding("RDMA", usable, found, needed_for, "; ".join(problems))


def check_libibverbs() -> Finding:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        how = "apt install libibverbs1 ibverbs-providers, or the NIC vendor's package"
        return Finding("libibverbs", False, "libibverbs.so.1 does not load", "the verbs transport", how)
    return Finding("libibverbs", True, "libibverbs.so.1 loads", "the verbs transport")


def _may_lock_anything(status: Path) -> bool:
    """True where this process has CAP_IPC_LOCK, which the limit does not bind."""
    try:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return bool(int(lines["CapEff"], 16) >> CAP_IPC_LOCK & 1)
    except (OSError, KeyError, ValueError):
        return False


def check_memlock(status: Path = Path("/proc/self/status")) -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    how = "ulimit -l unlimited (limits.conf: memlock; systemd: LimitMEMLOCK=infinity; docker run --ulimit memlock=-1)"
    if limit == resource.RLIM_INFINITY:
        return Finding("locked memory", True, "unlimited", "memory that RDMA NICs reach")
    free = _may_lock_anything(status)
    found = format_size(limit) + ("; this user may exceed it (CAP_IPC_LOCK)" if free else "")
    return Finding("locked memory", free or limit >= ENOUGH_LOCKED_BYTES, found, "memory that RDMA NICs reach", how)


def check_pyverbs() -> Finding:
    from ..rdma import pyverbs

    try:
        found = str(Path(pyverbs().__file__ or "").parent)
    except UnsupportedError as error:
        return Finding("pyverbs", False, "not installed", "verbs by hand (lab 14)", str(error))
    return Finding("pyverbs", True, found, "verbs by hand (lab 14)")
