"""The demonstration, small: every case equals the reference, both files are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccl_lab import demo
from ccl_lab.errors import UsageError


def test_demo_runs_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = demo.run(tmp_path, nbytes="256KiB")
    assert [(row["op"], row["algorithm"], row["dtype"]) for row in rows] == list(demo.CASES)
    assert all(row["bitwise_equal"] for row in rows)
    assert all(0 < row["nic_share"] <= 1.5 for row in rows), [row["nic_share"] for row in rows]
    assert {path.name for path in tmp_path.iterdir()} == {"demo.html", "demo.pftrace"}
    page = (tmp_path / "demo.html").read_text()
    assert "<html" in page and 'src="http' not in page
    assert "bidirectional_ring" in capsys.readouterr().out


def test_demo_refuses_a_file_as_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="expected a folder"):
        demo.run(file)
