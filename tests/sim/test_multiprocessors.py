"""The model of SMs that a matmul and a collective share, and the trace of it that lab 15 shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.simulator.models import multiprocessors as model
from ccl_lab.trace.columns import Track

GPU, N, COLLECTIVE = model.LAB
STORED = Path(__file__).resolve().parents[2] / "labs" / "data" / "no_sm.parquet"


def test_the_stored_trace_is_what_the_model_makes():
    stored = ccl.Trace.load(STORED)
    assert stored == model.compare(*model.LAB) and stored.meta == model.compare(*model.LAB).meta
    assert stored.meta["source"] == "simulated" and set(stored.meta["sources"])


@pytest.mark.parametrize("sms", [0, 7, 131])
def test_each_tile_is_computed_once_and_an_sm_does_one_thing_at_a_time(sms):
    trace = model.run(GPU, 1000, dataclasses.replace(COLLECTIVE, nbytes=4 << 20, sms=sms))
    tiles = trace.where(track=Track.compute)
    assert sorted(tiles["op_id"].tolist()) == list(range(8 * 4))
    for sm in range(GPU.sms):
        mine = trace.where(index=sm)
        order = np.argsort(mine["begin_ns"], kind="stable")
        assert (mine["end_ns"][order][:-1] <= mine["begin_ns"][order][1:]).all()
    copies = trace.where(track=Track.fabric)
    assert sorted(copies["index"].tolist()) == (list(range(sms)) or [GPU.sms])


def test_waves_by_hand():
    small = model.Gpu(sms=4, memory_gbytes_per_s=1e6)
    tile = model.tile_ns(small, 512)
    assert model.matmul_ns(model.run(small, 512), model.ALONE) == 2 * tile  # 8 tiles on 4 SMs
    long = model.Collective(nbytes=1 << 33, sms=1)
    assert model.matmul_ns(model.run(small, 512, long), model.ALONE) == 3 * tile  # 8 tiles on 3 SMs
    brief = dataclasses.replace(long, nbytes=8 * round(tile * small.link_gbytes_per_s / 7))  # its SM comes back after one tile
    assert model.matmul_ns(model.run(small, 512, brief), model.ALONE) == pytest.approx(3 * tile, abs=tile / 100)


def test_copy_engines_cost_nothing_while_memory_has_room_and_more_sms_never_cost_less():
    slower = [model.slowdown(GPU, N, dataclasses.replace(COLLECTIVE, sms=sms)) for sms in range(0, 60, 4)]
    assert slower[0] == 0 and slower == sorted(slower) and slower[-1] > 0.2
    full = dataclasses.replace(GPU, memory_gbytes_per_s=1100.0)
    assert model.slowdown(full, N, dataclasses.replace(COLLECTIVE, sms=0)) > 0.3


def test_what_cannot_be_is_refused():
    with pytest.raises(ccl.UsageError, match="132 SMs of 132"):
        model.run(GPU, 512, dataclasses.replace(COLLECTIVE, sms=132))
    with pytest.raises(ccl.UsageError, match="no room"):
        model.run(dataclasses.replace(GPU, memory_gbytes_per_s=700.0), 512, COLLECTIVE)
