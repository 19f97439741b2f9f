"""The User-Mode-Linux kernel of the rig: built once from Debian's source package, then kept in the user's cache folder.

Is: `obstacle()` (why this machine cannot have the rig), `cached()` and `build()` (`python -m tests.rig --build`).
Is not: an installer; it names the packages. Needs neither root nor a KVM device.
Invariants: the name of the file holds the version of the source and a digest of kernel.config and PATCHES, so a change of one builds
anew; a file of that name is whole, because it is moved there when done; of several processes that ask, one builds and the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .errors import RigError, RigUnavailable

SOURCE_PACKAGE = "linux-source-6.12"
SOURCE = Path(f"/usr/src/{SOURCE_PACKAGE}.tar.xz")
CONFIG = Path(__file__).with_name("kernel.config")
# (file, what stands there, what shall). The kernel keeps registers of its programs in as many bytes as AVX-512 needs, and gives the host as
# many back. A host whose CPU has more (with AMX 11,008) refuses that with EFAULT, and no program starts; of too many it takes its own.
PATCHES = (("arch/x86/um/user-offsets.c", "DEFINE_LONGS(HOST_FP_SIZE, 2696);", "DEFINE_LONGS(HOST_FP_SIZE, 12288);"),)
BUILD_BYTES = 3 << 30  # free space that a build needs
TOOLS = {"flex": "flex", "bison": "bison", "bc": "bc", "make": "make", "gcc": "gcc", "strip": "binutils", "xz": "xz-utils"}
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "rdma": "iproute2", "perl": "perl-base"}
ENOUGH = ("RDMA_RXE", "INFINIBAND_USER_ACCESS", "HOSTFS", "OVERLAY_FS", "UML_NET_VECTOR", "NET_SCH_NETEM", "VETH", "BRIDGE")


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _missing(programs: dict[str, str]) -> list[str]:
    """Debian packages of those programs that are not there."""
    return sorted({package for name, package in programs.items() if shutil.which(name, path=_search_path()) is None})


def _may_trace() -> bool:
    """True where a process may be traced, as the kernel traces its programs; some containers forbid it."""
    code = "import ctypes; raise SystemExit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)"  # PTRACE_TRACEME
    return subprocess.run([sys.executable, "-S", "-c", code]).returncode == 0


def obstacle() -> str | None:
    """Why this machine cannot have the rig, with what to install; None where it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the rig needs Linux on x86_64, this is {sys.platform} on {platform.machine()}"
    packages = _missing(PROGRAMS)
    if not os.environ.get("RIG_KERNEL"):
        if not SOURCE.exists():
            packages += [SOURCE_PACKAGE, *_missing(TOOLS)]
        elif (version := _version()) is None:
            return f"{SOURCE} is there, but dpkg does not know the package {SOURCE_PACKAGE}: install that"
        elif not _usable(_path_of(version)):
            packages += _missing(TOOLS)
    if packages:
        return f"the rig lacks Debian packages: apt-get install --no-install-recommends {' '.join(sorted(packages))}"
    if not _may_trace():
        return "the rig needs ptrace, which this container forbids (docker run --cap-add SYS_PTRACE)"
    return None


def _version() -> str | None:
    command = ["dpkg-query", "-W", "-f=${Version}", SOURCE_PACKAGE]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _path_of(version: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(CONFIG.read_bytes() + repr(PATCHES).encode()).hexdigest()[:12]
    return cache / "ccl_lab" / "rig" / f"linux-{version}-{digest}"


def _usable(kernel: Path) -> bool:
    return os.access(kernel, os.X_OK) and kernel.is_file()


def path() -> Path | None:
    """Where the kernel lies once it is built; RIG_KERNEL names another one. None where there is no source."""
    if chosen := os.environ.get("RIG_KERNEL"):
        return Path(chosen)
    version = _version()
    return _path_of(version) if version else None


def cached() -> Path | None:
    """The kernel, where it was built."""
    found = path()
    return found if found and _usable(found) else None


def build() -> Path:
    """The kernel, built now where it was not: minutes on two cores, 2 GB of disk meanwhile. Raises RigError with the end of the log."""
    if reason := obstacle():
        raise RigUnavailable(reason)
    if found := cached():
        return found
    target = path()
    if os.environ.get("RIG_KERNEL") or target is None:
        raise RigUnavailable(f"RIG_KERNEL={target} is not a program")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cached() or _build(target)


def _build(target: Path) -> Path:
    place = os.environ.get("TMPDIR") or "/var/tmp"
    free = shutil.disk_usage(place).free
    if free < BUILD_BYTES:
        raise RigUnavailable(f"{place} has {free >> 20} MiB free, a kernel build needs {BUILD_BYTES >> 20}: set TMPDIR to another folder")
    log = target.with_name(target.name + ".log")
    print(f"building {target}: some minutes, once (log: {log})", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="rig-kernel.", dir=place) as work, log.open("w") as out:
        tree = Path(work, SOURCE_PACKAGE)
        make = ["make", "-C", str(tree), "ARCH=um", f"-j{len(os.sched_getaffinity(0))}"]
        _step(["tar", "-C", work, "-xJf", str(SOURCE)], out)
        _patch(tree)
        _step([*make, f"KCONFIG_ALLCONFIG={CONFIG}", "allnoconfig"], out)
        chosen = Path(tree, ".config").read_text().splitlines()
        lost = [option for option in ENOUGH if f"CONFIG_{option}=y" not in chosen]
        if lost:
            raise RigError(f"{SOURCE_PACKAGE} does not take these options of {CONFIG.name}: {' '.join(lost)}")
        _step([*make, "linux"], out)
        partial = target.with_name(target.name + ".partial")
        _step(["strip", "-o", str(partial), str(tree / "linux")], out)
    partial.chmod(0o755)
    return partial.replace(target)


def _patch(tree: Path) -> None:
    for name, old, new in PATCHES:
        file = tree / name
        text = file.read_text()
        if old not in text:
            raise RigError(f"{SOURCE_PACKAGE}: {name} has no {old!r}: what PATCHES mends is written otherwise there")
        file.write_text(text.replace(old, new))


def _step(command: list[str], log: object) -> None:
    # A make that runs us would hand its job server down through the environment; the kernel's make is not part of it.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARCH")}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)  # type: ignore[call-overload]
    if done.returncode:
        end = "\n".join(Path(log.name).read_text(errors="replace").splitlines()[-20:])  # type: ignore[attr-defined]
        raise RigError(f"building the kernel failed at `{' '.join(command)}` (status {done.returncode}); the log ends:\n{end}")
