"""One fault as plain data: its kind, where, when, and for how long.

    nic_down node=1 nic=2 after=2ms for=10ms
    kill rank=3 at_op=120
    heal at=end

Is: a line of a FaultScript. Is not: a fault that happened (engine.faults). Invariants: frozen, canonical: a name that has
its default is as if it was not said; at most one of after, at_bytes, at_op, at_point and at.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, suggest
from .kinds import KINDS, TIMES, Kind, Parameter, expected, read, write

if TYPE_CHECKING:
    from ..topo import Topology

MOMENTS = ("after", "at_bytes", "at_op", "at_point", "at")


@dataclasses.dataclass(frozen=True)
class FaultSpec:
    """Made by `FaultSpec.make` or `FaultSpec.parse`.

    values: (name, value) of the kind, in its order, with defaults. moment: "" (at once) or a name of MOMENTS; value: its
    value, ns for after. seen_by: the rank whose op or point is meant, of a fault that is not of a rank; -1: any. for_ns: undone by
    itself after so long; None: not.
    """

    kind: str
    values: tuple[tuple[str, Any], ...]
    moment: str = ""
    at: Any = 0
    seen_by: int = -1
    for_ns: int | None = None

    @staticmethod
    def make(kind: str, **given: Any) -> FaultSpec:
        """From Python: `FaultSpec.make("nic_down", node=1, nic=2, after="2ms", for_="10ms")`; None is as if not given.

        Raises UsageError naming what is wrong and what was expected.
        """
        if not isinstance(kind, str) or kind not in KINDS:
            raise UsageError(f"{str(kind)[:60]!r} is no kind of fault.{suggest(str(kind), KINDS)}")
        found = {name.rstrip("_"): value for name, value in given.items() if value is not None}
        what = KINDS[kind]
        for name in found:
            if name not in _allowed(what):
                raise UsageError(f"{kind} has no {name!r}.{suggest(name, _allowed(what))} Expected: {usage(what)}.")
        moments = [name for name in MOMENTS if name in found]
        if len(moments) > 1:
            raise UsageError(f"{kind}: {moments[0]}= and {moments[1]}= exclude each other: expected one moment.")
        when, at = (moments[0], read(TIMES[moments[0]], found[moments[0]])) if moments else ("", 0)
        _check_moment(what, when, found)
        seen_by = read(Parameter("rank", "index"), found["rank"]) if what.target == "nic" and "rank" in found else -1
        for_ns = read(TIMES["for"], found["for"]) if "for" in found else None
        if (when, at) == ("after", 0):
            when = ""
        spec = FaultSpec(kind, _values(what, found), when, at, seen_by, for_ns)
        _check_sense(spec)
        return spec

    @staticmethod
    def parse(line: str) -> FaultSpec:
        """From text such as `nic_down node=1 nic=2 after=2ms`. Raises UsageError."""
        kind, *items = line.split() or [""]
        if not kind:
            raise UsageError(f"an empty line: expected a fault, one of {', '.join(KINDS)}.")
        found: dict[str, str] = {}
        for item in items:
            name, equals, value = item.partition("=")
            if not (name and equals and value):
                raise UsageError(f"{item!r}: expected name=value.")
            if name in found:
                raise UsageError(f"{name}= is there twice: expected it once.")
            if name.endswith("_"):
                raise UsageError(f"{kind} has no {name!r}: in text it is {name.rstrip('_')}=.")
            found[name] = value
        return FaultSpec.make(kind, **found)

    # -- reading it

    def __getitem__(self, name: str) -> Any:
        """A value of the kind: spec["nic"], spec["latency"] in ns."""
        return dict(self.values)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """As of dict."""
        return dict(self.values).get(name, default)

    @property
    def what(self) -> Kind:
        """Its row in the table of kinds."""
        return KINDS[self.kind]

    @property
    def after_ns(self) -> int:
        """When it is due after the begin; 0 where that is not a matter of time."""
        return int(self.at) if self.moment == "after" else 0

    def items(self) -> list[tuple[str, str, Any]]:
        """(name, form, value) of all that differs from its default, in the order of the text."""
        names = self.what.names
        rows = [(name, names[name].form, value) for name, value in self.values if value != names[name].default]
        if self.seen_by >= 0:
            rows.append(("rank", "index", self.seen_by))
        if self.moment:
            rows.append((self.moment, TIMES[self.moment].form, self.at))
        if self.for_ns is not None:
            rows.append(("for", "ns", self.for_ns))
        return rows

    def text(self) -> str:
        """The line that parses to this."""
        return " ".join([self.kind, *(f"{name}={write(form, value)}" for name, form, value in self.items())])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: durations are text, the rest numbers and words."""
        rows = self.items()
        return {"kind": self.kind} | {name: write(form, value) if form == "ns" else value for name, form, value in rows}

    def python(self, faults: str = "world.faults") -> str:
        """The Python that does it."""
        words = []
        for name, form, value in self.items():
            text = write(form, value)
            said = text if form not in ("ns", "bytes") and not isinstance(value, str) else f'"{text}"'
            words.append(f"{name}{'_' if name == 'for' else ''}={said}")
        return f"{faults}.{self.kind}({', '.join(words)})"

    def changed(self, **fields: Any) -> FaultSpec:
        """A copy with other fields."""
        return dataclasses.replace(self, **fields)

    def check(self, topology: Topology) -> None:
        """Raises UsageError if the topology has no such node, NIC or rank."""
        for name, limit in (("node", topology.n_nodes), ("nic", topology.nics_per_node), ("rank", topology.n_ranks)):
            value = self.seen_by if name == "rank" and self.what.target == "nic" else self.get(name, -1)
            if value >= limit:
                raise UsageError(
                    f"{self.text()}: {name}={value} is not of this world: expected 0 to {limit - 1} ({limit} in all)."
                )

    def __str__(self) -> str:
        return self.text()


def _allowed(kind: Kind) -> list[str]:
    """Names a line of this kind may have."""
    times = [name for name in TIMES if (name == "at") == (kind.target == "") or name == "after"]
    if kind.target == "":
        times = ["after", "at", "at_op", "at_point"]
    if not kind.undo or kind.counted:
        times = [name for name in times if name != "for"]
    return [*kind.names, *times, *(["rank"] if kind.target == "nic" else [])]


def usage(kind: Kind) -> str:
    """What a line of this kind looks like."""
    words = [f"{each.name}={_sample(each)}" for each in kind.parameters if each.default is None and not each.optional]
    options = [f"{each.name}=" for each in kind.parameters if each.default is not None or each.optional]
    times = [f"{name}=" for name in _allowed(kind) if name in TIMES]
    return f"{' '.join([kind.name, *words])}, and any of {' '.join([*options, *times])}"


def _sample(parameter: Parameter) -> str:
    return {"ns": "2ms"}.get(parameter.form, "0")


def _values(kind: Kind, found: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    values: list[tuple[str, Any]] = []
    for each in kind.parameters:
        if each.name in found:
            values.append((each.name, read(each, found[each.name])))
        elif each.default is not None:
            values.append((each.name, each.default))
        elif not each.optional:
            raise UsageError(f"{kind.name} lacks {each.name}= ({expected(each.form)}). Expected: {usage(kind)}.")
    return tuple(values)


def _check_moment(kind: Kind, when: str, found: dict[str, Any]) -> None:
    if kind.target == "nic" and "rank" in found and when not in ("at_op", "at_point"):
        raise UsageError(f"{kind.name}: rank= says whose op at_op= means, or who passes at_point=; expected both or neither.")


def _check_sense(spec: FaultSpec) -> None:
    """Values that are right one by one, but say nothing together."""
    if spec.kind == "cap" and len(spec.values) != 3:
        raise UsageError("cap: expected fraction= or gbits=, one of them.")
    if spec.kind == "cap" and spec.get("fraction") == 0:
        raise UsageError("cap: fraction=0 lets nothing through: expected more than 0, or use black_hole.")
    if spec.kind == "delay" and not (spec["latency"] or spec["jitter"]):
        raise UsageError("delay: expected latency= or jitter= above 0.")
    if spec.kind == "flap" and spec["period"] < 1_000_000:
        raise UsageError(f"flap: period={write('ns', spec['period'])}: expected 1ms or more.")
    if spec.kind == "messages" and not (spec["loss"] or spec["double"] or spec["late"]):
        raise UsageError("messages: expected loss=, double= or late= above 0.")
