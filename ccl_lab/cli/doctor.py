"""`doctor`: what this machine has, what is missing, what it would be good for and how to get it.

Is: a list of checks, each a function that returns a Finding and never raises. Is not: an installer.
Invariants: nothing here imports torch or the widgets; the exit code is 1 only where the engine itself cannot run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .. import config
from ..errors import CclError
from ..units import format_size
from .arguments import add_json, print_result
from .doctor_gpu import check_gpu_direct, check_gpu_kernels, check_gpus
from .doctor_rdma import check_libibverbs, check_memlock, check_pyverbs, check_rdma
from .finding import Finding


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_python() -> Finding:
    ok = sys.version_info >= (3, 10)
    return Finding(
        "python", ok, platform.python_version(), "everything", "Python 3.10 or newer", essential=True
    )


def check_core() -> Finding:
    try:
        core = importlib.import_module("ccl_lab._core")
    except ImportError as error:
        return Finding("engine", False, str(error), "running schedules", "make build", essential=True)
    return Finding(
        "engine", True, str(getattr(core, "__file__", "built in")), "running schedules", essential=True
    )


def check_compiler() -> Finding:
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            try:
                text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
            except (OSError, subprocess.TimeoutExpired):
                continue
            return Finding("compiler", True, text.splitlines()[0] if text else path, "building the engine")
    return Finding("compiler", False, "none", "building the engine", "apt install g++ (10 or newer)")


def check_cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    more = "" if cores >= 2 else "; ranks take turns, measured times will be far above simulated ones"
    return Finding("cores", True, f"{cores}{more}", "measured times")


def check_shm() -> Finding:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return Finding(
            "shared memory",
            False,
            str(error),
            "ranks of one node",
            "mount -t tmpfs tmpfs /dev/shm",
            essential=True,
        )
    ok = free >= 256 << 20
    return Finding(
        "shared memory",
        ok,
        f"{format_size(free)} free in /dev/shm",
        "large messages",
        "docker run --shm-size=2g",
    )


def check_sockets() -> Finding:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()[:2], timeout=5),
        ):
            pass
    except OSError as error:
        return Finding(
            "sockets", False, str(error), "rails between nodes", "allow loopback connections", essential=True
        )
    return Finding("sockets", True, "loopback connects", "rails between nodes", essential=True)


def check_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding(
        "open files", soft >= 1024, f"{soft} (at most {hard})", "many ranks and NICs", "ulimit -n 65536"
    )


def check_nics() -> Finding:
    from ..topo import discover

    nics = [nic for nic in discover().nics if nic.name != "lo"]
    found = [
        f"{nic.name} {nic.state}" + (f" {nic.gbits_per_s:g} Gb/s" if nic.gbits_per_s else "") for nic in nics
    ]
    return Finding(
        "NICs",
        bool(found),
        ", ".join(found) or "none but loopback",
        "ranks on several hosts",
        "nothing needed on one host",
    )


def check_package(name: str, needed_for: str, get: str) -> Finding:
    version = _version(name)
    return Finding(name, version is not None, version or "not installed", needed_for, get)


def check_chromium() -> Finding:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return Finding(
        "chromium", path is not None, path or "not found", "browser tests, PNG export", "apt install chromium"
    )


def check_keys() -> Finding:
    try:
        config.check_environment()
    except CclError as error:
        return Finding(
            "environment", False, str(error), "everything", "correct or unset the key", essential=True
        )
    given = [key for key, value in config.environment().items() if key.startswith(config.PREFIX) and value]
    return Finding(
        "environment",
        True,
        ", ".join(sorted(given)) or "no CCL_LAB_ key is set",
        "everything",
        essential=True,
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_core,
    check_compiler,
    check_cores,
    check_shm,
    check_sockets,
    check_files,
    check_nics,
    check_rdma,
    check_libibverbs,
    check_memlock,
    check_pyverbs,
    check_gpus,
    check_gpu_kernels,
    check_gpu_direct,
    check_keys,
    lambda: check_package("numpy", "everything", "pip install numpy"),
    lambda: check_package("jupyterlab", "ccl-lab lab", "pip install 'ccl-lab[lab]'"),
    lambda: check_package("anywidget", "views in notebooks", "pip install anywidget"),
    lambda: check_package("perfetto", "reading .pftrace files back", "pip install perfetto"),
    lambda: check_package(
        "ipyparallel", "ranks on a cluster from a notebook", "pip install 'ccl-lab[cluster]'"
    ),
    lambda: check_package(
        "torch", "torch.distributed, compute ops", "pip install 'ccl-lab[torch]' (CPU or CUDA build)"
    ),
    check_chromium,
)


def examine() -> list[Finding]:
    """Every finding; a check that fails in an unforeseen way is itself a finding."""
    found = []
    for check in CHECKS:
        try:
            found.append(check())
        except (OSError, ValueError, CclError) as error:
            found.append(
                Finding(
                    getattr(check, "__name__", "check"), False, repr(error), "this report", "please report it"
                )
            )
    return found


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="what this machine has, what is missing and how to get it")
    add_json(parser)
    parser.set_defaults(run=run_doctor)


def run_doctor(arguments: argparse.Namespace) -> int:
    from .. import __version__

    findings = examine()
    healthy = all(finding.ok for finding in findings if finding.essential)
    if arguments.json:
        keys = (
            {key: str(value) for key, value in config.values().items() if value is not None}
            if healthy
            else {}
        )
        checks = [finding._asdict() for finding in findings]
        print_result({"version": __version__, "healthy": healthy, "checks": checks, "config": keys}, True)
        return 0 if healthy else 1
    for finding in findings:
        mark = "ok  " if finding.ok else "MISS" if finding.essential else "-   "
        print(f"{mark} {finding.name:<14} {finding.found}")
        if not finding.ok:
            print(f"     {'':<14} for {finding.needed_for}: {finding.get}")
    print("ready to run" if healthy else "not ready: see the lines marked MISS")
    return 0 if healthy else 1
