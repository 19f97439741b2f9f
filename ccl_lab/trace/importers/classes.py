"""What the kernels of foreign traces are: communication, computation, copies; by a table that people can edit.

Is: the table (classes.txt, or lines of the user's before it), the judgement of a name, and the account of what was judged how.
Is not: a guess from times or streams.
Invariants: the first rule that fits decides; what no rule fits is computation; every judgement is in the account.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError, suggest

MAX_RULES, _MAX_PATTERN, _MAX_NAME = 1000, 2000, 1000


class SpanClass(IntEnum):
    """Classes of the table."""

    compute = 0
    communication = 1
    memcpy = 2
    memset = 3
    ignore = 4


@dataclass(frozen=True)
class Rule:
    """A line of the table: names in which `pattern` is found are of this class."""

    span_class: SpanClass
    library: str
    pattern: re.Pattern[str]


ELSE = Rule(SpanClass.compute, "", re.compile(""))


def parse_rules(text: str, where: str) -> tuple[Rule, ...]:
    """The rules of a table: class, library, regular expression on a line, two blanks or more between them.

    Raises UsageError naming the line.
    """
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = re.split(r"\s{2,}|\t", line.strip(), maxsplit=2)
        if len(parts) != 3:
            raise UsageError(
                f"{where}: line {number} is {line[:80]!r}: expected class, library and pattern, two blanks between."
            )
        word, library, pattern = parts
        if word not in SpanClass.__members__:
            raise UsageError(
                f"{where}: line {number}: class {word[:40]!r} is unknown.{suggest(word, SpanClass.__members__)}"
            )
        try:
            compiled = re.compile(pattern[:_MAX_PATTERN])
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(
                f"{where}: line {number}: {pattern[:80]!r} is no regular expression: {error}."
            ) from None
        rules.append(Rule(SpanClass[word], library, compiled))
        if len(rules) > MAX_RULES:
            raise UsageError(f"{where}: more than {MAX_RULES} rules.")
    return tuple(rules)


@cache
def built_in() -> tuple[Rule, ...]:
    """The rules of classes.txt."""
    path = Path(__file__).with_name("classes.txt")
    return parse_rules(path.read_text("utf-8"), path.name)


def rules_of(classes: str | Path | Iterable[Rule] | None) -> tuple[Rule, ...]:
    """Rules of the user (a file, or Rules) before the built-in ones."""
    if classes is None:
        return built_in()
    if isinstance(classes, (str, Path)):
        try:
            text = Path(classes).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"table of classes {str(classes)!r} cannot be read: {error}.") from None
        return parse_rules(text, str(classes)) + built_in()
    return tuple(classes) + built_in()


class Classifier:
    """Judges names, and keeps account."""

    def __init__(self, classes: str | Path | Iterable[Rule] | None = None) -> None:
        self.rules = rules_of(classes)
        self._known: dict[str, Rule] = {}
        self._spans: dict[str, int] = {}
        self._ns: dict[str, int] = {}

    def rule(self, name: str) -> Rule:
        """The rule that decides about a name."""
        found = self._known.get(name)
        if found is None:
            short = name[:_MAX_NAME]
            found = next((rule for rule in self.rules if rule.pattern.search(short)), ELSE)
            self._known[name] = found
        return found

    def account(self, names: list[str], which: np.ndarray, duration_ns: np.ndarray) -> None:
        """Adds spans to the account: name number and duration of each."""
        n = len(names)
        spans, ns = np.bincount(which, minlength=n), np.zeros(n, np.int64)
        np.add.at(ns, which, duration_ns)
        for name, count, length in zip(names, spans.tolist(), ns.tolist(), strict=True):
            if count:
                self._spans[name] = self._spans.get(name, 0) + count
                self._ns[name] = self._ns.get(name, 0) + length

    def report(self) -> list[dict[str, Any]]:
        """What was classified how, a dict per rule that decided: class, library, pattern, names, spans, time_us, examples."""
        found: dict[int, dict[str, Any]] = {}
        for name, spans in sorted(self._spans.items(), key=lambda item: -self._ns[item[0]]):
            rule = self.rule(name)
            row = found.setdefault(id(rule), {"class": rule.span_class.name, "library": rule.library,
                                              "pattern": rule.pattern.pattern, "names": 0, "spans": 0, "time_us": 0.0,
                                              "examples": []})  # fmt: skip
            row["names"] += 1
            row["spans"] += spans
            row["time_us"] += self._ns[name] / 1e3
            if len(row["examples"]) < 5:
                row["examples"].append(name[:80])
        return sorted(found.values(), key=lambda row: (row["class"], -row["time_us"]))
