"""The words by which an injector asks something of a NIC or of a rank's messages, as the notebook process writes them."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import UsageError

KINDS = ["silent_tx", "silent_rx", "unplugged", "damage", "sever", "delay_ns", "jitter_ns", "down"]


@pytest.fixture
def segment():
    engine = _core.Engine(0, np.zeros(1, np.int32), n_nics=2, arena_bytes=1 << 20, trace_spans=64)
    yield _core.Segment.open(engine.pid, engine.segment_fd)
    engine.close()


def test_faults_of_a_nic_are_set_shown_and_undone(segment):
    nothing = {"values": dict.fromkeys(KINDS, 0), "hits": dict.fromkeys(KINDS, 0)}
    assert segment.faults() == {0: nothing, 1: nothing}
    for kind in KINDS:
        segment.set_fault(1, kind, 1)
        assert segment.faults()[1]["values"] == {**nothing["values"], kind: 1}
        assert segment.faults()[0] == nothing
        segment.set_fault(1, kind, 0)
        assert segment.faults()[1] == nothing
    segment.set_fault(0, "delay_ns", 5_000_000)
    segment.set_fault(0, "damage", 7)
    assert segment.faults()[0]["values"] == {**nothing["values"], "delay_ns": 5_000_000, "damage": 7}


def test_down_is_the_state_of_the_nic(segment):
    segment.set_nic(1, 10**9, False)
    assert segment.faults()[1]["values"]["down"] == 1
    segment.set_fault(1, "down", 0)
    assert segment.faults()[1]["values"]["down"] == 0


def test_faults_of_messages_are_set_shown_and_undone(segment):
    kinds = ["loss_ppm", "double_ppm", "late_ns"]
    nothing = dict.fromkeys(kinds, 0)
    assert segment.message_faults() == {"values": nothing, "hits": nothing}
    for kind in kinds:
        segment.set_message_fault(kind, 1000)
        assert segment.message_faults() == {"values": {**nothing, kind: 1000}, "hits": nothing}
        segment.set_message_fault(kind, 0)
    assert segment.message_faults()["values"] == nothing


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.set_fault(2, "sever", 1), r"NIC 2 is outside 0\.\.1"),
        (lambda s: s.set_fault(0, "fire", 1), "no fault is called 'fire': expected silent_tx, .* or down"),
        (lambda s: s.set_fault(0, "silent_tx", 2), "fault silent_tx = 2: expected 0 .none. to 1"),
        (lambda s: s.set_fault(0, "damage", -1), "fault damage = -1"),
        (lambda s: s.set_fault(0, "delay_ns", 1 << 60), "fault delay_ns"),
        (lambda s: s.set_message_fault("fire", 1), "expected loss_ppm, double_ppm or late_ns"),
        (lambda s: s.set_message_fault("loss_ppm", 1_000_001), "to 1000000"),
    ],
)
def test_what_cannot_be_asked_is_refused(segment, call, words):
    before = segment.faults(), segment.message_faults()
    with pytest.raises(UsageError, match=words):
        call(segment)
    assert (segment.faults(), segment.message_faults()) == before
