"""One line of what `doctor` found. Is not: a check (doctor.py, doctor_rdma.py)."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the report."""

    name: str
    ok: bool
    found: str
    needed_for: str
    get: str = ""  # how to get it, where it is missing
    essential: bool = False
