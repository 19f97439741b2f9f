"""A fault script: a list of faults, as text, as JSON, and put together from others.

    # a NIC, then its neighbour while the first is being repaired
    nic_down node=1 nic=2 after=2ms
    black_hole node=1 nic=3 direction=tx after=2.5ms for=20ms
    heal at=end

Is: the value that is parsed, saved, composed and compared. Is not: an injector: `world.faults.play(script)`, or
`world.run(schedule, faults=script)`. Invariants: frozen; `parse(text())` and `from_dict(to_dict())` are the script itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Union

from ..arguments import file_path, instance, listed
from ..errors import DecodeError, UsageError
from ..topo import Topology
from ..units import Duration
from .spec import FaultSpec

FORMAT, VERSION = "ccl_lab.faults", 1
MAX_FAULTS = 100_000


class FaultScript:
    """Faults, each a FaultSpec or its text.

    Times count from the begin of the run it is given to (`world.run(schedule, faults=script)`), or from the call of
    `world.faults.play(script)`. `a + b` has the faults of both. Raises UsageError for a line that cannot be read.

        >>> FaultScript("nic_down node=1 nic=2 after=2ms").final_heal().text()
        'nic_down node=1 nic=2 after=2ms\\nheal at=end\\n'
    """

    __slots__ = ("entries",)
    entries: tuple[FaultSpec, ...]

    def __init__(self, *faults: FaultSpec | str) -> None:
        found = tuple(FaultSpec.parse(each) if isinstance(each, str) else each for each in faults)
        for each in found:
            if not isinstance(each, FaultSpec):
                raise UsageError(f"a fault script holds faults or their text, found {type(each).__name__}.")
        if len(found) > MAX_FAULTS:
            raise UsageError(f"{len(found)} faults: expected at most {MAX_FAULTS} in one script.")
        object.__setattr__(self, "entries", found)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a FaultScript is a value: {name} cannot be set; make another one.")

    # -- forms

    @classmethod
    def parse(cls, text: str) -> FaultScript:
        """Of one fault a line; `#` begins a comment. Raises UsageError naming the line and what was expected."""
        found = []
        for number, line in enumerate(instance(text, "fault script", str, "text, one fault a line").splitlines(), 1):
            words = line.split("#", 1)[0].strip()
            if not words:
                continue
            try:
                found.append(FaultSpec.parse(words))
            except UsageError as error:
                raise UsageError(f"line {number}, {words[:80]!r}: {error}") from None
        return cls(*found)

    @classmethod
    def of(cls, faults: FaultScript | FaultSpec | str | Iterable[FaultSpec | str]) -> FaultScript:
        """What people pass for a script: one, its text, a fault, or a list of faults."""
        if isinstance(faults, FaultScript):
            return faults
        if isinstance(faults, str):
            return cls.parse(faults)
        return cls(*listed(faults, "faults", (FaultSpec, str), "a FaultScript, its text, a fault or a list of faults"))

    def text(self) -> str:
        """One line per fault."""
        return "".join(f"{each.text()}\n" for each in self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"format": FORMAT, "version": VERSION, "faults": [each.to_dict() for each in self.entries]}

    @classmethod
    def from_dict(cls, data: Any) -> FaultScript:
        """Of what `to_dict` made. Raises DecodeError naming the fault and what was expected."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DecodeError(f'not a fault script: expected an object with "format": "{FORMAT}".')
        if data.get("version") != VERSION:
            raise DecodeError(f"fault script version {data.get('version')!r}: expected {VERSION}; a newer ccl_lab wrote it.")
        rows = data.get("faults")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DecodeError("faults: expected a list of objects.")
        found = []
        for number, row in enumerate(rows, 1):
            try:
                values = {name: value for name, value in row.items() if name != "kind"}
                if None in values.values() or any(name.endswith("_") for name in values):
                    raise UsageError("names and values as to_dict writes them were expected.")
                found.append(FaultSpec.make(row.get("kind"), **values))
            except UsageError as error:
                raise DecodeError(f"fault {number}: {error}") from None
        return cls(*found)

    def save(self, path: Union[str, os.PathLike[str]]) -> Path:
        """Writes the text form for .txt and .faults, else JSON; whole or not at all."""
        path = file_path(path)
        body = self.text() if path.suffix in (".txt", ".faults") else json.dumps(self.to_dict(), indent=1) + "\n"
        scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            scratch.write_text(body, encoding="utf-8")
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> FaultScript:
        """Reads JSON or text, whichever it is. Raises DecodeError naming file, line and what was expected; OSError if it cannot
        be opened."""
        try:
            body = file_path(path).read_bytes().decode("utf-8")
            return cls.from_dict(json.loads(body)) if body.lstrip().startswith("{") else cls.parse(body)
        except (DecodeError, UsageError) as error:
            raise DecodeError(f"{path}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{path}: neither JSON nor text of a fault script ({error}).") from None

    # -- putting together

    def __add__(self, other: FaultScript) -> FaultScript:
        return FaultScript(*self.entries, *other.entries) if isinstance(other, FaultScript) else NotImplemented

    def shifted(self, by: Duration) -> FaultScript:
        """All that is a matter of time happens later by so much; what waits for bytes, ops, points or the end does not."""
        ns = FaultSpec.make("heal", after=by).after_ns
        moved = [
            each.changed(moment="after", at=each.after_ns + ns) if ns and each.moment in ("", "after") else each
            for each in self.entries
        ]
        return FaultScript(*moved)

    def final_heal(self, after: Duration | None = None) -> FaultScript:
        """With everything undone `after` so long, by default when the run has ended; the script itself if it ends so."""
        heal = FaultSpec.make("heal", after=after) if after is not None else FaultSpec.make("heal", at="end")
        return self if self.entries[-1:] == (heal,) else self + FaultScript(heal)

    def check(self, topology: Topology) -> None:
        """Raises UsageError naming the line that asks for a node, NIC or rank which `topology` has not."""
        instance(topology, "topology", Topology, "a Topology")
        for each in self.entries:
            each.check(topology)

    # -- a sequence, and a value

    def __iter__(self) -> Iterator[FaultSpec]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> FaultSpec:
        return self.entries[index]

    def __eq__(self, other: object) -> bool:
        return self.entries == other.entries if isinstance(other, FaultScript) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.entries)

    def __reduce__(self) -> tuple[Any, ...]:
        return FaultScript, self.entries

    def __repr__(self) -> str:
        return f"FaultScript({', '.join(repr(each.text()) for each in self.entries)})"
