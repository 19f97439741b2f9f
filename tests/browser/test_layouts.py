"""The record of a span has one layout in C++, numpy and TypeScript; the bundle is the one the sources give."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ccl_lab.trace.columns import SPAN_DTYPE, WIRE_DTYPE
from ccl_lab.widgets import wire

ROOT = Path(__file__).resolve().parents[2]
CPP_SIZE = {"std::int64_t": 8, "std::uint32_t": 4, "std::int32_t": 4, "std::uint16_t": 2, "std::uint8_t": 1}
GETTERS = {"getUint32": 4, "getInt32": 4, "getUint16": 2, "getUint8": 1}
BUNDLE = ROOT / "ccl_lab" / "widgets" / "static" / "ccl_lab.js"


def cpp_struct(name: str) -> tuple[list[tuple[str, int, int]], int]:
    """(field, offset, size) of a struct of the generated header, laid out as the compiler must, and the size it asserts."""
    text = (ROOT / "native/include/ccl_lab/schema.hpp").read_text()
    body = re.search(rf"struct {name} \{{(.*?)\}};\s*static_assert\(sizeof\({name}\) == (\d+)\)", text, re.S)
    assert body
    fields, at = [], 0
    for kind, field in re.findall(r"(std::u?int\d+_t) (\w+);", body[1]):
        size = CPP_SIZE[kind]
        at = -(-at // size) * size
        fields.append((field, at, size))
        at += size
    return fields, int(body[2])


def numpy_struct(dtype: np.dtype) -> list[tuple[str, int, int]]:
    return [(name, dtype.fields[name][1], dtype.fields[name][0].itemsize) for name in dtype.names]


def typescript_wire() -> tuple[list[tuple[str, int, int]], int]:
    text = (ROOT / "widgets/src/model/schema.ts").read_text()
    rows = re.findall(r"(\w+): view\.(get\w+)\(at \+ (\d+)(, true)?\)", text)
    assert all(little or GETTERS[getter] == 1 for _, getter, _, little in rows), "little-endian everywhere"
    return [(name, int(at), GETTERS[getter]) for name, getter, at, _ in rows], int(
        re.search(r"WireSpanBytes = (\d+)", text)[1]
    )


def test_the_wire_record_is_the_same_everywhere() -> None:
    cpp, cpp_size = cpp_struct("WireSpan")
    ts, ts_size = typescript_wire()
    assert cpp == numpy_struct(WIRE_DTYPE) == ts
    assert cpp_size == WIRE_DTYPE.itemsize == ts_size == 16


def test_the_native_record_is_the_same_in_cpp_and_numpy() -> None:
    cpp, size = cpp_struct("SpanRecord")
    assert cpp == numpy_struct(SPAN_DTYPE)
    assert size == SPAN_DTYPE.itemsize == 48


def test_the_detail_record_is_the_one_the_store_reads() -> None:
    text = (ROOT / "widgets/src/model/store.ts").read_text()
    assert f"DetailBytes = {wire.DETAIL_DTYPE.itemsize}" in text
    for name, reader in (("nbytes", r"getFloat64\(i \* DetailBytes, true\)"), ("peer", r"getInt32\(i \* DetailBytes \+ 8, true\)"),
                         ("step", r"getInt32\(i \* DetailBytes \+ 12, true\)")):  # fmt: skip
        assert re.search(rf"row\.{name}\[at\] = detail\.{reader}", text)
    assert [wire.DETAIL_DTYPE.fields[name][1] for name in ("nbytes", "peer", "step")] == [0, 8, 12]


def test_the_bundle_is_small_and_asks_for_nothing() -> None:
    text = BUNDLE.read_text(encoding="utf-8")
    assert len(text.encode()) < 200_000
    assert not re.search(r"https?://(?!www\.w3\.org)", text)


def test_the_bundle_is_built_from_the_sources(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("no node: the committed bundle cannot be rebuilt")
    if not (ROOT / "widgets/node_modules/esbuild").is_dir():
        pytest.skip("widgets/node_modules is not installed: run `npm ci` in widgets/ to compare the bundle")
    out = tmp_path / "bundle.js"
    subprocess.run(["node", "build.mjs", "--out", str(out)], cwd=ROOT / "widgets", check=True, timeout=120)
    assert out.read_bytes() == BUNDLE.read_bytes(), "stale bundle: run `npm run build` in widgets/"


def test_the_model_passes_its_own_tests_in_node() -> None:
    if shutil.which("node") is None:
        pytest.skip("no node: the model's own tests run in it")
    if not (ROOT / "widgets/node_modules/esbuild").is_dir():
        pytest.skip(
            "widgets/node_modules is not installed: run `npm ci` in widgets/ to test the model in node"
        )
    npm = shutil.which("npm") or "npm"
    done = subprocess.run([npm, "test"], cwd=ROOT / "widgets", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:]
    types = subprocess.run(
        [npm, "run", "check"], cwd=ROOT / "widgets", capture_output=True, text=True, timeout=120
    )
    assert types.returncode == 0, types.stdout[-3000:]


def test_the_lock_file_names_no_registry() -> None:
    text = (ROOT / "widgets/package-lock.json").read_text()
    assert "resolved" not in text
    assert "://" not in text
