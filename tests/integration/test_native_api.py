"""The C++ package as a stranger would use it: installed, found by CMake and pkg-config, an example built outside the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..native_build import ROOT, build, environment, generator, run

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PUBLIC_HEADERS = {"communicator.hpp", "export.hpp", "schema.hpp"}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed, moved once after that: it must not remember where it was."""
    folder = build("ccl_lab_static", "ccl_lab_shared")
    first = tmp_path_factory.mktemp("first") / "prefix"
    # Without a component all would be installed, and so all would have to be built.
    run("cmake", "--install", folder, "--prefix", first, "--component", "ccl_lab")
    moved = tmp_path_factory.mktemp("moved") / "prefix"
    shutil.move(first, moved)
    return moved


def _example(prefix: Path, into: Path, *options: str) -> Path:
    """The example, copied away from the tree and built there."""
    shutil.copytree(ROOT / "native/examples/all_reduce", into / "source")
    run(
        "cmake", "-S", into / "source", "-B", into / "build", *generator(), f"-DCMAKE_PREFIX_PATH={prefix}", *options
    )  # fmt: skip
    run("cmake", "--build", into / "build")
    return into / "build/all_reduce"


@pytest.fixture(scope="module")
def example(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _example(prefix, tmp_path_factory.mktemp("example"))


def test_only_public_headers_are_installed(prefix: Path) -> None:
    headers = {str(path.relative_to(prefix / "include/ccl_lab")) for path in (prefix / "include").rglob("*.*")}
    assert headers == PUBLIC_HEADERS
    libraries = {path.name for path in prefix.rglob("lib*") if path.is_file()}
    assert libraries == {"libccl_lab.a", "libccl_lab.so", "libccl_lab.so.0", f"libccl_lab.so.{VERSION}"}


def test_nothing_installed_names_the_build_machine(prefix: Path) -> None:
    texts = [path for path in prefix.rglob("*") if path.suffix in {".cmake", ".pc", ".hpp"}]
    assert len(texts) >= 6
    for path in texts:
        assert str(ROOT) not in path.read_text(), path


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_example_sums_exactly(example: Path, ranks: int) -> None:
    out = run(example, str(ranks), "3", timeout=60)
    found = re.search(r"all_reduce of 3 MiB among (\d+) ranks: ([\d.]+) us, busbw ([\d.]+) GB/s, 0 wrong", out)
    assert found and int(found[1]) == ranks and float(found[2]) > 0, out


def test_example_with_the_shared_library(prefix: Path, tmp_path: Path) -> None:
    program = _example(prefix, tmp_path, "-DBUILD_SHARED_LIBS=ON")
    assert "libccl_lab.so.0" in run("ldd", program)
    assert "0 wrong elements" in run(program, "2", "1", timeout=60)


def test_shared_library_shows_the_public_classes_only(prefix: Path) -> None:
    symbols = run("nm", "-DC", "--defined-only", next(prefix.rglob(f"libccl_lab.so.{VERSION}"))).splitlines()
    names = [line.split(maxsplit=2)[2] for line in symbols]
    shown = r"(typeinfo( name)? for |vtable for )?ccl_lab::(Communicator|Error)\b"
    assert any("all_reduce" in name for name in names)
    assert [name for name in names if not re.match(shown, name)] == []


def test_pkg_config_file_leads_to_a_program_that_runs(prefix: Path, tmp_path: Path) -> None:
    """Read as pkg-config reads it, so that the test needs none."""
    path = next(prefix.rglob("ccl_lab.pc"))
    variables = {"pcfiledir": str(path.parent)}
    fields = {}
    for line in path.read_text().splitlines():
        line = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], line)
        if match := re.match(r"(\w+)=(.*)", line):
            variables[match[1]] = match[2]
        elif match := re.match(r"([\w.]+): (.*)", line):
            fields[match[1]] = match[2]
    assert fields["Version"] == VERSION
    program = tmp_path / "all_reduce"
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    static = [word.replace("-lccl_lab", "-l:libccl_lab.a") for word in fields["Libs"].split()]
    run(
        compiler, "-std=c++20", "-O2", *fields["Cflags"].split(), ROOT / "native/examples/all_reduce/all_reduce.cpp",
        "-o", program, *static, *fields["Libs.private"].split(),
    )  # fmt: skip
    assert "0 wrong elements" in run(program, "3", "1", timeout=60)


def _join(example: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [example, "join", "1"],
        env=environment() | environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_ranks_started_one_by_one_join_by_the_environment(example: Path, tmp_path: Path) -> None:
    common = {"CCL_LAB_WORLD_SIZE": "3", "CCL_LAB_RENDEZVOUS": str(tmp_path / "meet.sock")}
    ranks = [_join(example, common | {"CCL_LAB_RANK": str(rank)}) for rank in (2, 0, 1)]
    outs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outs
    assert "among 3 ranks" in outs[1] and "0 wrong" in outs[1]
    assert list(tmp_path.iterdir()) == []


def test_ranks_of_a_launcher_meet_without_a_path(example: Path, tmp_path: Path) -> None:
    common = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "TMPDIR": str(tmp_path)}
    ranks = [_join(example, common | {"PMI_RANK": str(rank)}) for rank in range(2)]
    outs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outs


def test_a_program_without_a_launcher_is_told_how(example: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if not re.match(r"CCL_LAB|PMI|OMPI|SLURM|RANK", name)}
    found = subprocess.run([example, "join"], env=bare, text=True, capture_output=True, timeout=60)
    assert found.returncode == 1
    assert "usage: no launcher says which rank" in found.stderr and "CCL_LAB_RENDEZVOUS" in found.stderr


def test_public_header_needs_nothing_but_itself(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "alone.cpp"
    source.write_text("#include <ccl_lab/communicator.hpp>\nint main() { return sizeof(ccl_lab::Options) == 0; }\n")
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    run(compiler, "-std=c++20", *warnings, "-fsyntax-only", f"-I{prefix}/include", source)


def test_versions_agree() -> None:
    text = (ROOT / "native/CMakeLists.txt").read_text()
    assert f"project(ccl_lab VERSION {VERSION} " in text, sys.version
