"""Lets unit tests import the helpers that lie beside them (trace_cases.py)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
