"""Every party of the bench: our paths and the peers, each at its best, with the environment and options that make it fast.

Is: values, and the words that start them. Is not: starting or timing anything (see `cells`). Invariants: a peer whose
library is not installed is listed with the reason and left out; variants of one library differ in environment and options
only, so that the best of them per cell is the library at its best.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "ping_pong", "barrier")

# glibc's malloc as a user of large messages would tune it: scratch is kept and huge, not mapped and faulted in anew each call.
TUNED_MALLOC = {
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_OPEN_MPI_ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def cache() -> Path:
    """Folder of installed peers and built programs (CCL_BENCH_PEERS overrides build/peers)."""
    return Path(os.environ.get("CCL_BENCH_PEERS", ROOT / "build" / "peers")).resolve()


@dataclass(frozen=True)
class Library:
    """One installed library.

    Attributes:
        name: key of its built program.
        compiler: words that compile for it; empty where nothing is compiled.
        launcher: words before `-n N program`; empty: its program starts its ranks.
        env: what every variant of it needs.
        shared: its libmpi, for mpi4py.
    """

    name: str
    compiler: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    shared: str = ""


@dataclass(frozen=True)
class Party:
    """A library with one set of options.

    Attributes:
        name: as printed in tables.
        kind: "mpi", "oneccl", "mpi4py", "gloo", "ours" or "ours-python": which program, and how it is started.
        env, options: added to the library's environment and launcher words.
        arguments: added to the program's.
        oversubscribed_only: makes a difference only where ranks outnumber cores, and is left out elsewhere.
        on_request: of another class than the rest (sockets, not memory); takes part where it is named in --peers.
    """

    name: str
    kind: str
    library: Library
    env: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    oversubscribed_only: bool = False
    on_request: bool = False

    @property
    def ours(self) -> bool:
        return self.kind.startswith("ours")

    @property
    def language(self) -> str:
        return "native" if self.kind in ("mpi", "oneccl", "ours") else "python"

    @property
    def buffers(self) -> str:
        return "registered" if "registered" in self.arguments else "plain"


def _pairs(values: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(values.items())


def _found(path: Path | str) -> tuple[str, ...]:
    """The path of an executable file in a tuple, () where there is none."""
    found = shutil.which(str(path))
    return (found,) if found else ()


def _impi(prefix: Path) -> Library:
    # Another library's mpiexec.hydra earlier in PATH would start these ranks as strangers to each other.
    env = {
        "I_MPI_ROOT": str(prefix),
        "PATH": f"{prefix}/bin:{os.environ.get('PATH', os.defpath)}",
        "I_MPI_FABRICS": "shm",
        "I_MPI_HYDRA_BOOTSTRAP": "fork",
    }
    found = _found(prefix / "bin/mpicc") if (prefix / "include/mpi.h").exists() else ()
    compiler = (*found, "-cc=gcc") if found else ()
    return Library("impi", compiler, (f"{prefix}/bin/mpirun",), _pairs(env), f"{prefix}/lib/libmpi.so.12")


def _oneccl(prefix: Path, impi: Library) -> Library:
    mpi = Path(dict(impi.env)["I_MPI_ROOT"])
    env = dict(impi.env) | {"CCL_ROOT": str(prefix), "CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error"}
    env["LD_LIBRARY_PATH"] = f"{prefix}/lib"  # libccl's own libraries do not know where they lie
    words = (
        *_found("g++"), "-std=c++17", f"-I{prefix}/include", f"-I{mpi}/include", f"-L{prefix}/lib", f"-L{mpi}/lib",
        f"-Wl,-rpath,{prefix}/lib:{mpi}/lib", "-Wl,--no-as-needed", "-lccl", "-lmpi",
    )  # fmt: skip
    return Library("oneccl", words, impi.launcher, _pairs(env))


def libraries() -> dict[str, Library]:
    """Those whose files are there, by name."""
    base = cache()
    ompi, mpich = base / "openmpi", base / "mpich"
    open_mpi = (str(ompi / "bin/mpirun"), "--oversubscribe")
    found = [
        _impi(base / "impi"),
        Library(
            "ompi5", _found(ompi / "bin/mpicc"), open_mpi, _pairs(_OPEN_MPI_ENV), f"{ompi}/lib/libmpi.so.40"
        ),
        Library(
            "ompi4", _found("mpicc.openmpi"), ("mpirun.openmpi", "--oversubscribe"), _pairs(_OPEN_MPI_ENV)
        ),
        Library(
            "mpich5",
            _found(mpich / "bin/mpicc"),
            (str(mpich / "bin/mpiexec"),),
            (),
            f"{mpich}/lib/libmpi.so.12",
        ),
        Library("mpich4", _found("mpicc.mpich"), ("mpiexec.mpich",)),
    ]
    known = {one.name: one for one in found if one.compiler}
    if (base / "oneccl/include/oneapi/ccl.hpp").exists() and "impi" in known:
        known["oneccl"] = _oneccl(base / "oneccl", known["impi"])
    if (base / "torch/bin/python").exists():
        # Its deprecation notices would be printed by every rank; nothing of ours can act on them.
        known["gloo"] = Library("gloo", launcher=(str(base / "torch/bin/python"), "-W", "ignore"))
    if (base / "mpi4py/bin/python").exists():
        known["mpi4py"] = Library("mpi4py", launcher=(str(base / "mpi4py/bin/python"),))
    return known


_RELEASE_GATHER = {
    f"MPIR_CVAR_{op}_POSIX_INTRA_ALGORITHM": "release_gather"
    for op in ("BCAST", "REDUCE", "ALLREDUCE", "BARRIER", "IBCAST", "IREDUCE", "IALLREDUCE")
}
_UCX = ("--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "opal_common_ucx_tls", "any",
        "--mca", "opal_common_ucx_devices", "any")  # fmt: skip
_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")
_HAN = ("--mca", "coll_han_priority", "100")
_MULTIPLE = {"BENCH_THREAD_MULTIPLE": "1"}

# name, library, environment, launcher options, only where ranks outnumber cores
_NATIVE: tuple[tuple[str, str, dict[str, str], tuple[str, ...], bool], ...] = (
    ("impi", "impi", {}, (), False),
    ("impi-nopin", "impi", {"I_MPI_PIN": "off"}, (), False),
    ("impi-tm", "impi", TUNED_MALLOC, (), False),
    ("impi-nopin-tm", "impi", {"I_MPI_PIN": "off", **TUNED_MALLOC}, (), False),
    ("ompi5", "ompi5", {}, (), False),
    ("ompi5-tm", "ompi5", TUNED_MALLOC, (), False),
    ("ompi5-ucx", "ompi5", {}, _UCX, False),
    ("ompi5-ucx-tm", "ompi5", TUNED_MALLOC, _UCX, False),
    ("ompi5-han", "ompi5", {}, _HAN, False),
    ("ompi5-han-tm", "ompi5", TUNED_MALLOC, _HAN, False),
    ("ompi4", "ompi4", {}, (), False),
    ("ompi4-tm", "ompi4", TUNED_MALLOC, (), False),
    ("mpich5", "mpich5", {}, (), False),
    ("mpich5-tm", "mpich5", TUNED_MALLOC, (), False),
    ("mpich5-rg", "mpich5", _RELEASE_GATHER, (), False),
    ("mpich5-mt", "mpich5", _MULTIPLE, (), True),
    ("mpich5-mt-tm", "mpich5", {**_MULTIPLE, **TUNED_MALLOC}, (), True),
    ("mpich5-mt-rg", "mpich5", {**_MULTIPLE, **_RELEASE_GATHER}, (), True),
    ("mpich4", "mpich4", {}, (), False),
    ("mpich4-mt", "mpich4", _MULTIPLE, (), True),
    ("oneccl", "oneccl", {}, (), False),
    ("oneccl-tm", "oneccl", TUNED_MALLOC, (), False),
)
_OURS = (
    Party("ccl_lab", "ours", Library("ccl_lab"), arguments=("--buffers", "registered")),
    Party("ccl_lab-plain", "ours", Library("ccl_lab"), arguments=("--buffers", "plain")),
    Party("ccl_lab-staged", "ours", Library("ccl_lab"), arguments=("--buffers", "staged")),
    Party("ccl_lab-python", "ours-python", Library("ccl_lab"), arguments=("--buffers", "registered")),
    Party("ccl_lab-python-plain", "ours-python", Library("ccl_lab"), arguments=("--buffers", "plain")),
)


def catalogue() -> tuple[list[Party], dict[str, str]]:
    """(parties that can run here, ours first; {library: why it cannot})."""
    known = libraries()
    parties = [
        Party(
            name,
            "oneccl" if library == "oneccl" else "mpi",
            known[library],
            _pairs(env),
            options,
            (),
            oversubscribed,
        )
        for name, library, env, options, oversubscribed in _NATIVE
        if library in known
    ]
    if "mpi4py" in known:
        for name in ("impi", "ompi5", "mpich5"):
            if name in known:
                env = {
                    "MPI4PY_LIBMPI": known[name].shared,
                    "LD_LIBRARY_PATH": str(Path(known[name].shared).parent),
                }
                parties.append(Party(f"mpi4py-{name}", "mpi4py", known[name], _pairs(env)))
    if "ompi5" in known:
        # What rails over sockets on this machine are to be held against.
        parties.append(Party("ompi5-tcp", "mpi", known["ompi5"], options=_TCP, on_request=True))
    if "gloo" in known:
        parties.append(Party("gloo", "gloo", known["gloo"]))
    wanted = dict.fromkeys([*(library for _, library, *_ in _NATIVE), "mpi4py", "gloo"])
    missing = {name: "not installed (see --install-peers)" for name in wanted if name not in known}
    return [*_OURS, *parties], missing


def environment(party: Party) -> dict[str, str]:
    """The whole environment of its processes.

    Installed packages have their bytecode; those of a checkout keep theirs from the first start on, unless that is forbidden.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **dict(party.library.env), **dict(party.env)}


def program(party: Party) -> Path:
    """What it runs: built into the cache, or a Python file."""
    built = {"mpi": "mpi_bench", "oneccl": "oneccl_bench"}
    if party.kind in built:
        return cache() / "bin" / f"{built[party.kind]}.{party.library.name}"
    if party.kind == "ours":
        return cache() / "bin" / "ccl_lab_bench"
    return (
        SOURCES
        / {"ours-python": "ccl_lab_bench.py", "gloo": "torch_bench.py", "mpi4py": "mpi4py_bench.py"}[
            party.kind
        ]
    )


def command(party: Party, ranks: int, cores: int, words: list[str]) -> list[str]:
    """The whole command line for this many ranks; `words` are the program's own."""
    run = [str(program(party)), *party.arguments, *words]
    if party.kind == "ours":
        return [*run, "--ranks", str(ranks)]
    if party.kind in ("ours-python", "gloo"):
        return [*(party.library.launcher or (sys.executable,)), *run, "--ranks", str(ranks)]
    if party.kind == "mpi4py":
        run = [str(cache() / "mpi4py/bin/python"), *run]
    start = [*party.library.launcher, *party.options]
    if party.library.name.startswith("ompi"):
        # A rank bound to one core with others on it starves them; yielding is what its manual asks for there.
        start += ["--bind-to", "core" if ranks <= cores else "none"]
        start += ["--mca", "mpi_yield_when_idle", "1" if ranks > cores else "0"]
    return [*start, "-n", str(ranks), *run]
