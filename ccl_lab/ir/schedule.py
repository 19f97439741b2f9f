"""The schedule: what should happen, as plain data.

Is: an op table and the few facts that give it meaning. Is not: proved (verifier), timed (simulator) or run (engine).
Invariants: immutable; one schedule serves every message size; `digest` changes with anything that changes the meaning,
and with nothing else (not with reasons or default sizes).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .. import units, views
from ..arguments import file_path
from ..errors import UsageError
from . import collectives
from .layout import Layout
from .ops import Kind
from .table import OpTable, describe


@dataclass(frozen=True, eq=False)
class Schedule:
    """Ops of `n_ranks` ranks that together perform `collective`.

    `nbytes`, `dtype`, `redop`, `counts` are defaults for a run; `reasons` says why the planner chose it. `timetable`: the simulator
    lets links serve ops in the order of their steps; otherwise it finds one (ccl_lab/simulator/exact.py). Nothing else depends on it.
    """

    collective: str
    algorithm: str
    n_ranks: int
    n_channels: int
    parts: int
    in_place: bool
    root: int
    peer: int
    scratch_blocks: int
    ops: OpTable
    scratch_pairs: np.ndarray | None = None
    counts: np.ndarray | None = None
    timetable: bool = False
    nbytes: int = 0
    dtype: str = "float32"
    redop: str = "sum"
    reasons: tuple[str, ...] = field(default=())

    def replace(self, **changes: Any) -> Schedule:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def count_of(self, nbytes: units.Size, dtype: str | None = None) -> int:
        """Elements per block for a message of `nbytes` (rounded down, as nccl-tests do)."""
        size = collectives.itemsize(self.dtype if dtype is None else dtype) * collectives.message_blocks(
            self.collective, self.n_ranks
        )
        return units.parse_size(nbytes) // size

    def layout(
        self,
        count: int | None = None,
        *,
        nbytes: units.Size | None = None,
        dtype: str | None = None,
        counts: np.ndarray | None = None,
    ) -> Layout:
        """Where every chunk lies, for `count` elements per block or a message of `nbytes` (default: `self.nbytes`)."""
        if count is not None and nbytes is not None:
            raise UsageError("count and nbytes both given: expected one of them.")
        counts = self.counts if counts is None and count is None and nbytes is None else counts
        if count is None:
            count = self.count_of(self.nbytes if nbytes is None else nbytes, dtype)
        return Layout(self, count, self.dtype if dtype is None else dtype, counts)

    @cached_property
    def digest(self) -> str:
        """Hex digest of everything that changes what the schedule does."""
        numbers = (
            self.n_ranks,
            self.n_channels,
            self.parts,
            self.in_place,
            self.root,
            self.peer,
            self.scratch_blocks,
            len(self.ops),
            len(self.ops.src_rank),
        )
        head = (self.collective, *map(int, numbers))
        sha = hashlib.sha256(repr(head).encode())
        for name, column in self.ops.columns().items():
            if name != "step":
                sha.update(column.tobytes())
        if self.scratch_pairs is not None:
            sha.update(np.ascontiguousarray(self.scratch_pairs, np.int64).tobytes())
        return sha.hexdigest()

    @property
    def n_steps(self) -> int:
        """Steps of the algorithm, or ticks of its timetable."""
        return int(self.ops.step.max()) + 1 if len(self.ops) else 0

    def __len__(self) -> int:
        return len(self.ops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]

    def describe(self, op_id: int) -> str:
        """One line about an op."""
        return describe(self.ops[op_id])

    def text(self) -> str:
        """The text form; `from_text` reads it back."""
        from .text import to_text

        return to_text(self)

    @staticmethod
    def from_text(text: str) -> Schedule:
        """Reads the text form; DecodeError names the line."""
        from .text import from_text

        return from_text(text)

    def encode(self) -> bytes:
        """The binary form, with a version and a checksum."""
        from .codec import encode

        return encode(self)

    @staticmethod
    def decode(data: bytes) -> Schedule:
        """Reads the binary form; DecodeError says what is wrong and where."""
        from .codec import decode

        return decode(data)

    def save(self, path: str | Path) -> None:
        """Writes `.txt` as text, anything else in the binary form."""
        path = file_path(path)
        path.write_bytes(self.text().encode() if path.suffix == ".txt" else self.encode())

    @staticmethod
    def load(path: str | Path) -> Schedule:
        """Reads what `save` wrote; DecodeError names the file."""
        from .codec import load

        return load(file_path(path))

    def show(self, **options: Any) -> Any:
        """Draws steps by ranks."""
        return views.draw("schedule", self, **options)

    def facts(self) -> dict[str, Any]:
        """The schedule in a few numbers."""
        kinds = np.bincount(self.ops.kind, minlength=len(Kind))
        return {
            "collective": self.collective,
            "algorithm": self.algorithm,
            "ranks": self.n_ranks,
            "channels": self.n_channels,
            "steps": self.n_steps,
            "ops": len(self.ops),
            "parts": self.parts,
            "in place": self.in_place,
            "message": units.format_size(self.nbytes),
            "dtype": self.dtype,
            "redop": self.redop,
            "kinds": {kind.name: int(kinds[kind]) for kind in Kind if kinds[kind]},
            "digest": self.digest[:12],
        }

    def __repr__(self) -> str:
        facts = self.facts()
        kinds = ", ".join(f"{count} {name}" for name, count in facts["kinds"].items())
        return (
            f"<Schedule {self.collective} {self.algorithm}: {self.n_ranks} ranks, {self.n_channels} channels, "
            f"{facts['steps']} {'ticks' if self.timetable else 'steps'}, {len(self.ops)} ops ({kinds}), {facts['message']} {self.dtype}>"
        )

    def _repr_html_(self) -> str:
        import html

        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(str(k))}</th><td style='text-align:left'>{html.escape(str(v))}</td></tr>"
            for k, v in self.facts().items()
        )
        why = "".join(f"<li>{html.escape(reason)}</li>" for reason in self.reasons)
        return f"<table>{rows}</table>" + (f"<ul>{why}</ul>" if why else "")
