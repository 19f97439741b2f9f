"""FaultScript: text, JSON and Python forms lose nothing; errors name line and what was expected; scripts compose."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ccl_lab as ccl
from ccl_lab.errors import DecodeError, UsageError
from ccl_lab.faults import KINDS, POINTS, FaultScript, FaultSpec, kinds
from ccl_lab.faults.kinds import TIMES

ROOT = Path(__file__).resolve().parents[2]
WHOLE = st.integers(0, kinds.MAX_COUNT)
FORMS = {
    "index": WHOLE, "count": st.integers(1, kinds.MAX_COUNT),
    "ns": st.integers(0, kinds.MAX_NS).map(kinds.duration_text), "bytes": st.integers(0, kinds.MAX_BYTES),
    "share": st.floats(0, 1, allow_subnormal=False), "inside": st.floats(1e-9, 1, exclude_max=True),
    "rate": st.floats(1e-9, 1e6), "point": st.tuples(st.sampled_from(POINTS), st.sampled_from(("", ":1", ":2", ":70"))).map("".join),
}  # fmt: skip


def _value(draw: Any, form: str) -> Any:
    return draw(FORMS[form] if form in FORMS else st.sampled_from(form.split("|")))


@st.composite
def specs(draw: Any) -> FaultSpec:
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    given_: dict[str, Any] = {}
    for each in kind.parameters:
        if each.default is None and not each.optional or draw(st.booleans()):
            given_[each.name] = _value(draw, each.form)
    moments = ["", "after", "at_op", "at_point", "at" if kind.name == "heal" else "at_bytes"]
    if moment := draw(st.sampled_from(moments)):
        given_[moment] = _value(draw, TIMES[moment].form)
    if moment in ("at_op", "at_point") and kind.target == "nic" and draw(st.booleans()):
        given_["rank"] = draw(WHOLE)
    if kind.undo and not kind.counted and draw(st.booleans()):
        given_["for_"] = _value(draw, "ns")
    try:
        return FaultSpec.make(kind.name, **given_)
    except UsageError:  # values that say nothing together
        return FaultSpec.make("kill", rank=draw(WHOLE))


SCRIPTS = st.lists(specs(), max_size=8).map(lambda found: FaultScript(*found))


@settings(max_examples=300, deadline=None)
@given(SCRIPTS)
def test_every_form_is_the_script_again(script: FaultScript) -> None:
    assert FaultScript.parse(script.text()) == script
    assert FaultScript.from_dict(json.loads(json.dumps(script.to_dict()))) == script
    assert hash(FaultScript.parse(script.text())) == hash(script)
    assert pickle.loads(pickle.dumps(script)) == script and copy.deepcopy(script) == script
    assert eval(repr(script), {"FaultScript": FaultScript}) == script


WORDS = ["nic_down", "node=1", "nic=2", "after=", "=", "for=1ms", "kill", "rank=1", "at=end", "heal", "#"]
NAMES = st.sampled_from(["kind", "node", "nic", "for", "for_", "after"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
OBJECTS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=8)


class _Recorder:
    """Stands for world.faults: keeps what the Python form calls."""

    def __getattr__(self, kind: str) -> Any:
        return lambda **given_: FaultSpec.make(kind, **given_)


@settings(max_examples=300, deadline=None)
@given(specs())
def test_python_does_the_same(spec: FaultSpec) -> None:
    assert eval(spec.python("faults"), {"faults": _Recorder()}) == spec


@settings(max_examples=200, deadline=None)
@given(SCRIPTS, SCRIPTS, SCRIPTS)
def test_scripts_compose(a: FaultScript, b: FaultScript, c: FaultScript) -> None:
    assert (a + b) + c == a + (b + c) and a + FaultScript() == a
    assert len(a + b) == len(a) + len(b) and list(a + b) == [*a, *b]
    healed = a.final_heal()
    assert healed[-1].text() == "heal at=end" and healed.final_heal() == healed


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_a_script_or_a_usage_error(text: str) -> None:
    try:
        script = FaultScript.parse(text)
    except UsageError as error:
        assert re.match(r"line \d+, ", str(error)), str(error)
    else:
        assert FaultScript.parse(script.text()) == script


@settings(max_examples=300, deadline=None)
@given(OBJECTS)
def test_any_object_is_a_script_or_a_decode_error(row: Any) -> None:
    try:
        script = FaultScript.from_dict({"format": "ccl_lab.faults", "version": 1, "faults": [row]})
    except DecodeError as error:
        assert "fault" in str(error)
    else:
        assert len(script) == 1


def test_text_form_reads_as_it_is_written() -> None:
    script = FaultScript.parse("""
        # pulled, and then its neighbour
        nic_down node=1 nic=2 after=2ms      # the first
        black_hole nic=3 node=1 direction=both for=0.01s after=2500us
        kill rank=3 at_op=120
        cap node=0 nic=0 fraction=0.5 rank=1 at_op=3
        delay node=0 nic=1 latency=1500ns at_bytes=4MiB
        heal at=end
    """)
    assert script.text().splitlines() == [
        "nic_down node=1 nic=2 after=2ms", "black_hole node=1 nic=3 after=2.5ms for=10ms", "kill rank=3 at_op=120",
        "cap node=0 nic=0 fraction=0.5 rank=1 at_op=3", "delay node=0 nic=1 latency=1.5us at_bytes=4MiB", "heal at=end",
    ]  # fmt: skip
    assert script[0].python() == 'world.faults.nic_down(node=1, nic=2, after="2ms")'
    assert script[1].python() == 'world.faults.black_hole(node=1, nic=3, after="2.5ms", for_="10ms")'
    assert script[4].python() == 'world.faults.delay(node=0, nic=1, latency="1.5us", at_bytes="4MiB")'


WRONG = {
    "nic_dwn node=1 nic=1": "no kind of fault. Did you mean 'nic_down'",
    "nic_down node=1 nick=1": "nic_down has no 'nick'. Did you mean 'nic'.*Expected: nic_down node=0 nic=0",
    "nic_down node=1": "lacks nic= .a whole number",
    "nic_down node=1 nic=one": "nic=one: expected a whole number",
    "nic_down node=1 nic=-1": "nic=-1: expected a whole number",
    "nic_down node=1 nic=1 nic=1": "nic= is there twice",
    "nic_down node 1": "'node': expected name=value",
    "nic_down node=1 nic=1 after=soon": "after=soon: expected a duration such as 2ms",
    "nic_down node=1 nic=1 after=1h at_bytes=1": "after= and at_bytes= exclude each other",
    "nic_down node=1 nic=1 at_point=posting": "at_point=posting: expected one of at_start",
    "nic_down node=1 nic=1 at_point=posted:0": "at_point=posted:0: expected one of at_start.*n-th",
    "nic_down node=1 nic=1 at_point=posted:": "at_point=posted:: expected one of",
    "nic_down node=1 nic=1 at=end": "has no 'at'",
    "nic_down node=1 nic=1 rank=1": "rank= says whose op at_op= means",
    "nic_down node=1 nic=1 for_=1ms": "in text it is for=",
    "black_hole node=1 nic=1 direction=up": "direction=up: expected one of both, tx, rx",
    "flap node=1 nic=1": "flap lacks period=",
    "flap node=1 nic=1 period=10us": "period=10us: expected 1ms or more",
    "flap node=1 nic=1 period=10ms duty=1": "duty=1: expected a fraction between 0 and 1",
    "cap node=1 nic=1": "expected fraction= or gbits=, one of them",
    "cap node=1 nic=1 fraction=0.5 gbits=1": "expected fraction= or gbits=, one of them",
    "cap node=1 nic=1 fraction=0": "fraction=0 lets nothing through",
    "cap node=1 nic=1 fraction=1.5": "fraction=1.5: expected a fraction from 0 to 1",
    "delay node=1 nic=1": "expected latency= or jitter= above 0",
    "corrupt node=1 nic=1 frames=0": "frames=0: expected a whole number, 1 or more",
    "corrupt node=1 nic=1 for=1ms": "corrupt has no 'for'",
    "kill rank=1 for=1ms": "kill has no 'for'",
    "messages rank=1": "expected loss=, double= or late= above 0",
    "heal for=1ms": "heal has no 'for'",
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line.replace(" ", ","))
def test_errors_name_line_and_what_was_expected(line: str) -> None:
    with pytest.raises(UsageError, match=f"line 3, .*{WRONG[line]}"):
        FaultScript.parse(f"# one\nkill rank=0\n{line}\n")


def test_save_and_load(tmp_path: Path) -> None:
    script = FaultScript("nic_down node=1 nic=2 after=2ms", "messages rank=0 loss=0.25 late=3ms").final_heal()
    for name in ("script.json", "script.txt", "script.faults"):
        assert FaultScript.load(script.save(tmp_path / name)) == script
    assert (tmp_path / "script.txt").read_text().startswith("nic_down node=1 nic=2 after=2ms\n")
    assert json.loads((tmp_path / "script.json").read_text())["faults"][0]["after"] == "2ms"
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    "body, match",
    [
        ('{"format": "other"}', 'expected an object with "format"'),
        ('{"format": "ccl_lab.faults", "version": 2}', "version 2: expected 1"),
        ('{"format": "ccl_lab.faults", "version": 1, "faults": 3}', "expected a list of objects"),
        ('{"format": "ccl_lab.faults", "version": 1, "faults": [{"kind": "kill"}]}', "fault 1: kill lacks rank="),
        ('{"format": "ccl_lab.faults", "version": 1, "faults": [{"kind": 3}]}', "fault 1: '3' is no kind"),
        ('{"format"', "neither JSON nor text"),
        ("kill rank=0\nkil rank=1", "line 2, 'kil rank=1'"),
        (b"\xff\xfe", "neither JSON nor text"),
    ],
)
def test_files_that_are_none_name_the_file(body: str | bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.faults"
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    with pytest.raises(DecodeError, match=f"wrong.faults: .*{match}"):
        FaultScript.load(path)


def test_shifted_moves_what_is_a_matter_of_time() -> None:
    script = FaultScript("nic_down node=0 nic=0", "cable node=0 nic=1 after=1ms", "kill rank=0 at_op=3", "heal at=end")
    assert script.shifted("2ms").text().splitlines() == [
        "nic_down node=0 nic=0 after=2ms", "cable node=0 nic=1 after=3ms", "kill rank=0 at_op=3", "heal at=end",
    ]  # fmt: skip
    assert script.shifted(0) == script


def test_what_people_pass_for_a_script() -> None:
    spec = FaultSpec.make("nic_down", node=1, nic=2)
    want = ccl.FaultScript("nic_down node=1 nic=2")
    assert [ccl.FaultScript.of(each) for each in (want, "nic_down node=1 nic=2\n", spec, [spec])] == [want] * 4
    with pytest.raises(UsageError, match="found int"):
        ccl.FaultScript(3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="is a value"):
        want.entries = ()  # type: ignore[misc]


@pytest.mark.parametrize("line, match", [
    ("nic_down node=2 nic=0", "node=2 is not of this world: expected 0 to 1"),
    ("nic_down node=0 nic=4", "nic=4 is not of this world: expected 0 to 3"),
    ("kill rank=6", "rank=6 is not of this world: expected 0 to 5"),
    ("cap node=0 nic=0 gbits=1 at_op=1 rank=9", "rank=9 is not of this world"),
])  # fmt: skip
def test_what_the_topology_has_not_is_named(line: str, match: str) -> None:
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=3, nics_per_node=4)
    with pytest.raises(UsageError, match=match):
        FaultScript(line).check(topology)
    FaultScript("nic_down node=1 nic=3", "kill rank=5").check(topology)


def test_points_are_those_of_the_simulation() -> None:
    text = (ROOT / "native/tests/fault_script.hpp").read_text()
    names = re.search(r"kSimPointNames\[\] = \{(.*?)\}", text, re.DOTALL)
    assert names and ("at_time", *POINTS) == tuple(re.findall(r'"(\w+)"', names[1]))
    live = re.search(r"kProtocolPointNames = \{(.*?)\}", (ROOT / "native/src/fault/points.hpp").read_text(), re.DOTALL)
    assert live and tuple(re.findall(r'"(\w+)"', live[1])) == POINTS
