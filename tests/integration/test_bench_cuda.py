"""What measures on a GPU, tried over a mock of the driver: it runs to its end, checks what it computes, and says what it could not.

Is not: a measurement: times of the mock mean nothing.
"""

from __future__ import annotations

import subprocess

import pytest

from bench import cuda
from ccl_lab import _core

from .. import native_build

needs_kernels = pytest.mark.skipif(not _core.device_kernels(), reason="the module was built without nvcc: no reduction kernels for GPUs")


@needs_kernels
def test_collectives_and_kernels_are_measured_and_checked(monkeypatch):
    library = str(native_build.build("mock_libcuda") / "tests/libmock_libcuda.so")
    monkeypatch.setattr(cuda, "LIBRARY", library)
    found = cuda.run(message_bytes=1 << 12, large_bytes=1 << 12, ranks=(2,), kernel_bytes=1 << 12)
    assert [row["ranks"] for row in found["rows"]] == [2]
    kinds = {(row["dtype"], row["sources"]) for row in found["kernels"]}
    assert kinds == {(dtype, n) for dtype in ("float32", "float16", "bfloat16", "int32") for n in range(2, 9)}
    assert all(row["checked_elements"] > 0 and row["of_bandwidth"] > 0 for row in found["kernels"])
    assert "kernels of 2 to 8 sources: all right" in found["summary"]


def test_without_a_gpu_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(cuda, "LIBRARY", "libcuda_that_is_not_there.so")
    found = cuda.run()
    assert found["rows"] == [] and "does not load" in found["skipped"]


def sanitize(*variables: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "sanitize-gpu", *variables]
    return subprocess.run(command, cwd=native_build.ROOT, capture_output=True, text=True, timeout=60)


def test_the_sanitizer_runs_the_tests_of_gpus_with_each_tool(tmp_path):
    """Over a stand-in that says how it was called."""
    stub, python = tmp_path / "sanitizer", tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    for path, text in ((stub, '#!/bin/sh\necho "$@"\n'), (python, "#!/bin/sh\nexit 1\n")):
        path.write_text(text)
        path.chmod(0o755)
    made = sanitize(f"COMPUTE_SANITIZER={stub}", f"VENV={tmp_path}/venv")
    assert made.returncode == 0, made.stderr
    for tool in ("memcheck", "racecheck", "synccheck"):
        assert f"--tool {tool} --target-processes all --error-exitcode 9 {python} -m pytest -q tests/gpu" in made.stdout


def test_the_sanitizer_is_named_where_it_is_missing():
    made = sanitize("COMPUTE_SANITIZER=compute-sanitizer-of-nowhere")
    assert made.returncode != 0 and "compute-sanitizer-of-nowhere is not in PATH" in made.stdout + made.stderr
