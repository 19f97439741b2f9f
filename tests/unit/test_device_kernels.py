"""The reduction kernels of GPUs as nvcc compiles them, without a GPU: nothing spills, and memory is read 16 bytes at a time.

Is not: their arithmetic (native/tests/test_device_reduce.cpp runs the same body on the host).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "native/src/reduce/cuda/kernels.cu"
OPTIONS = ["-std=c++20", "-O3", "-fmad=false", f"-I{ROOT / 'native/src'}"]  # as native/src/reduce/CMakeLists.txt has them
ARCHITECTURES = (80, 90, 100)
N_KERNELS = 4 * 5 + 5 * 8  # floats: sum prod min max avg; integers: those and three of bits


def tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin:/opt/cuda/bin")


NVCC, NVDISASM = tool("nvcc"), tool("nvdisasm")
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def cubins(tmp_path_factory) -> dict[int, tuple[Path, str]]:
    """By architecture: the cubin, and what ptxas said."""
    made = {}
    for arch in ARCHITECTURES:
        out = tmp_path_factory.mktemp("kernels") / f"sm_{arch}.cubin"
        words = [NVCC, *OPTIONS, "-cubin", f"-arch=sm_{arch}", "-Xptxas", "-v", "-o", out, KERNELS]
        found = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
        assert found.returncode == 0, found.stderr[-4000:]
        made[arch] = out, found.stderr
    return made


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_kernel_spills(cubins, arch):
    said = cubins[arch][1]
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert len(spills) == N_KERNELS
    assert set(spills) == {("0", "0", "0")}, said[-4000:]
    assert not re.search(r"\b(warning|error)\b", said)


def functions(text: str, begin: str) -> dict[str, str]:
    """By name, what follows `begin`."""
    parts = re.split(begin, text)
    return {name: body for name, body in zip(parts[1::2], parts[2::2], strict=True) if name.startswith("ccl_lab_")}


@pytest.mark.slow
def test_ptx_loads_and_stores_vectors(tmp_path):
    out = tmp_path / "kernels.ptx"
    words = [NVCC, *OPTIONS, "-ptx", "-arch=compute_80", "-o", out, KERNELS]
    subprocess.run([str(word) for word in words], check=True, timeout=600)
    found = functions(out.read_text(), r"\.entry (\w+)\(")
    assert len(found) == N_KERNELS
    for name, body in found.items():
        assert re.search(r"ld\.global\.v[24]\.", body) and re.search(r"st\.global\.v[24]\.", body), name
        assert "fma." not in body, name


@pytest.mark.slow
@pytest.mark.skipif(NVDISASM is None, reason="nvdisasm is not installed")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_sass_loads_and_stores_sixteen_bytes(cubins, arch):
    text = subprocess.run([str(NVDISASM), "-c", str(cubins[arch][0])], check=True, capture_output=True, text=True, timeout=600).stdout
    found = functions(text, r"\.section\s+\.text\.(\w+)")
    assert len(found) == N_KERNELS
    for name, body in found.items():
        assert "LDG.E.128" in body and "STG.E.128" in body, name
        assert "LDL" not in body and "STL" not in body, name  # local memory, where spills go
