"""Builds what the parties run, and installs the peers themselves.

Is: compilers and package installers started, their failures turned into a reason per peer. Is not: a package manager;
`install` is called only where the user asked for it. Invariants: a program is rebuilt when a source or its command changed;
one that cannot be built costs its own peer only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from .catalogue import ROOT, SOURCES, Library, Party, cache, program

FLAGS = ("-O3", "-march=native", "-Wall")
# side environment: packages. torch from an index of CPU builds, where one is configured, is the same version.
ENVIRONMENTS = {
    "impi": ("impi-devel", "impi-rt"),
    "openmpi": ("openmpi>=5",),
    "mpich": ("mpich>=5",),
    "oneccl": ("oneccl-devel",),
    "mpi4py": ("mpi4py", "numpy"),
    "torch": ("torch==2.13.0", "numpy"),
}
DEBIAN = ("openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev")


def _run(words: list[str], env: dict[str, str] | None = None) -> str:
    """ "" or the end of what a failed command said."""
    try:
        found = subprocess.run(words, capture_output=True, text=True, env=env, timeout=1800)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        ""
        if found.returncode == 0
        else (found.stderr or found.stdout).strip()[-400:] or f"exit {found.returncode}"
    )


def _compile(words: list[str], sources: Iterable[Path], target: Path, env: dict[str, str]) -> str:
    """ "" or why it did not compile; nothing is done where target is of these sources and words already."""
    digest = hashlib.sha256(" ".join(words).encode())
    for source in sources:
        digest.update(source.read_bytes())
    stamp = target.with_suffix(target.suffix + ".stamp")
    if target.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return ""
    target.parent.mkdir(parents=True, exist_ok=True)
    error = _run(words, env)
    if not error:
        stamp.write_text(digest.hexdigest())
    return error


def build_floor() -> str:
    """The program that measures the floor; "" or why not."""
    source, target = SOURCES / "floor.c", cache() / "bin/floor"
    words = [shutil.which("gcc") or "cc", *FLAGS, "-std=gnu11", str(source), "-o", str(target), "-lpthread"]
    return _compile(words, [source, SOURCES / "cache_line.h"], target, dict(os.environ))


def _build_library(library: Library, target: Path) -> str:
    name = "oneccl_bench.cpp" if library.name == "oneccl" else "mpi_bench.c"
    source = SOURCES / name
    words = [*library.compiler[:1], *FLAGS, str(source), "-o", str(target), *library.compiler[1:]]
    env = {**os.environ, **dict(library.env)}
    return _compile(words, [source, SOURCES / "bench_core.h", SOURCES / "cache_line.h"], target, env)


def build_ours(name: str = "ccl_lab_bench") -> str:
    """A program of native/bench of this checkout by cmake, copied into the cache; "" or why not."""
    folder, target = cache() / "native", cache() / "bin" / name
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"}
    cmake = shutil.which("cmake", path=env["PATH"])
    if cmake is None:
        return "cmake is not installed"
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCCL_LAB_BENCH=ON",
        "-DCCL_LAB_BIND=OFF",
        "-DCCL_LAB_TESTS=OFF",
    ]
    if shutil.which("ninja", path=env["PATH"]):
        options += ["-G", "Ninja"]
    error = _run([cmake, "-S", str(ROOT / "native"), "-B", str(folder), *options], env)
    error = error or _run([cmake, "--build", str(folder), "--target", name, "-j", "2"], env)
    built = next(iter(sorted(folder.rglob(name))), None) if not error else None
    if built is None:
        return error or f"the build left no {name} under {folder}"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(built, target)
    return ""


def build(parties: list[Party], say: Callable[[str], None]) -> dict[str, str]:
    """Builds every program that is needed; {party: why it has none}."""
    done: dict[Path, str] = {}
    failed = {}
    for party in parties:
        target = program(party)
        if target not in done:
            if party.kind == "ours":
                say("building ccl_lab_bench")
                done[target] = build_ours()
            elif party.kind in ("mpi", "oneccl"):
                say(f"building {target.name}")
                done[target] = _build_library(party.library, target)
            else:
                done[target] = ""
        if done[target]:
            failed[party.name] = done[target]
    return failed


def install(say: Callable[[str], None], only: Iterable[str] = ()) -> dict[str, str]:
    """Installs the peers into environments of their own under the cache; {what: why it failed}.

    Debian's packages need root and apt-get. Two MPIs of Debian coexist: mpicc.openmpi and mpicc.mpich.
    """
    wanted, failed = set(only), {}
    for name, packages in ENVIRONMENTS.items():
        if wanted and name not in wanted:
            continue
        say(f"installing {', '.join(packages)}")
        folder = cache() / name
        error = "" if (folder / "bin/python").exists() else _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        error = error or _run([*pip, *packages])
        if error:
            failed[name] = error
    if (not wanted or "debian" in wanted) and hasattr(os, "geteuid"):
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            failed["debian"] = "ompi4 and mpich4 need apt-get and root"
        else:
            say(f"installing {', '.join(DEBIAN)}")
            env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            error = _run([apt, "update", "-qq"], env) or _run([apt, "install", "-y", "-qq", *DEBIAN], env)
            if error:
                failed["debian"] = error
    return failed
