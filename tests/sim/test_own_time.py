"""Messages of two lengths in nodes that go on in their own time (own_time.hpp): as one by one, as the table of ops, and as the oracle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ccl_lab import simulate
from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.ir import Outline
from ccl_lab.planner import outline, plan
from ccl_lab.simulation import changes_of
from ccl_lab.simulator import exact_times, finish_times, loops, summarize
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import changing, drawn_rings, equal_to_every_message
from .oracle import Oracle


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often nodes could go on in their own time, where no message is followed (followed.hpp); and rounds that were gone over."""
    found: Counter[str] = Counter()
    step_by_step = loops._step_by_step

    def watched(how: str, *given: Any) -> Any:
        if how != "own_time":
            return None
        result = step_by_step(how, *given)
        found["done" if result is not None else "not"] += 1
        if result is not None:
            found["jumped"] += result[3]["jumped"]
            found["jumps"] += result[3]["jumped"] > 0
        return result

    monkeypatch.setattr(loops, "_step_by_step", watched)
    return found


def draw(rng: np.random.Generator, most_nodes: int, most_ranks: int) -> tuple[Topology, dict[str, Any]]:
    """Nodes whose channels wait for one another in ranks, more or less; some with slower or lost NICs, late or slower ranks."""
    group = int(rng.choice([2, 2, 2, 3, 4, 4, 8]))
    nodes = int(rng.integers(2, max(3, min(most_nodes, most_ranks // group) + 1)))
    nics = group * int(rng.choice([1, 1, 2]))
    topology = Topology.cluster(
        nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.choice([50, 200, 400])),
        nic_latency=f"{int(rng.choice([0, 300, 2500]))}ns", fabric_latency=f"{int(rng.choice([0, 100, 500, 1000]))}ns",
        fabric_gbytes_per_s=float(rng.choice([20, 367])), local_gbytes_per_s=float(rng.choice([40, 1675])))  # fmt: skip
    late = {}
    if rng.random() < 0.4:
        node, nic = int(rng.integers(nodes)), int(rng.integers(nics))
        kind = int(rng.integers(4))
        if kind == 0:
            topology = topology.slow(float(rng.choice([1.01, 1.5, 4, 40])), nic=(node, nic))
        if kind == 1 and nics > 1:
            topology = topology.without((node, nic))
        if kind == 2:
            topology = topology.slow(float(rng.choice([1.001, 1.3, 5])), rank=int(rng.integers(topology.n_ranks)))
        if kind == 3:
            most = int(rng.choice([10**8, 10**8, 10**10]))
            late = {int(rng.integers(topology.n_ranks)): f"{int(rng.integers(1, most))}ps" for _ in range(int(rng.integers(1, 4)))}
    return topology, {"late": late, "alpha": float(rng.choice([0, 0, 1e-7]))}


def made(rng: np.random.Generator, topology: Topology) -> tuple[Outline, int, dict[str, Any]] | None:
    """Rings on several channels, and a size that their parts do not divide: by an element more or less, or by any number."""
    planned = int(rng.choice([2**12, 2**20, 2**26]))
    options: dict[str, Any] = {"algorithm": "ring", "channels": int(rng.choice([1, 2, 2, 3, 4])), "in_place": bool(rng.random() < 0.3)}
    try:
        outlined = outline("all_reduce", topology, planned, **options)
    except UsageError:
        return None
    if outlined.loops is None:
        return None
    parts = outlined.loops.parts
    rest = int(rng.choice([1, 2, parts - 1, parts - 2, int(rng.integers(parts))]))
    return outlined, 4 * (parts * int(rng.choice([1, 20, 500, 2000])) + rest), {"planned": planned, **options}


def late_ps(topology: Topology, options: dict[str, Any]) -> list[int]:
    return [int(options["late"].get(rank, "0ps")[:-2]) for rank in range(topology.n_ranks)]


@pytest.mark.parametrize("block", range(20))
def test_random_clusters(block: int, done: Counter[str]) -> None:
    compared = equal_to_every_message(drawn_rings(first_of(range(40 * block, 40 * block + 40)), 71, lambda rng: draw(rng, 60, 160), made))
    assert compared >= expected(21) and done["done"] >= expected(16) and done["jumps"] >= expected(4)


@pytest.mark.parametrize("block", range(8))
def test_random_clusters_whose_nics_change_in_time(block: int, done: Counter[str]) -> None:
    rings = drawn_rings(first_of(range(40 * block, 40 * block + 40)), 73, lambda rng: draw(rng, 60, 160), made)
    assert equal_to_every_message(changing(rings)) >= expected(16) and done["done"] >= expected(9) and done["jumps"] >= expected(2)


@pytest.mark.parametrize("block", range(8))
def test_small_clusters_as_the_table_of_ops_and_the_oracle(block: int, done: Counter[str]) -> None:
    rings = drawn_rings(first_of(range(40 * block, 40 * block + 40)), 72, lambda rng: draw(rng, 32, 64), made)
    for seed, topology, options, outlined, nbytes, planned in rings:
        try:
            found = finish_times(outlined, topology, nbytes, **options)[0].tolist()
        except (Inapplicable, UsageError):
            continue
        schedule = plan("all_reduce", topology, planned.pop("planned"), **planned)
        assert found == exact_times(schedule, topology, nbytes, **options).finish_ps.tolist(), seed
        if len(schedule.ops) < 4000:
            alpha = round(options["alpha"] * 1e12)
            assert found == Oracle(schedule, topology, schedule.layout(nbytes=nbytes), late_ps(topology, options), alpha=alpha).finish, seed
    assert done["done"] >= expected(13) and done["jumped"] > 0


def test_late_ranks_in_more_nodes(done: Counter[str]) -> None:
    """Nodes after a late one wait for its messages for a while, or on and on; the others do not."""
    topology = Topology.preset("h100", 256)
    outlined = outline("all_reduce", topology, 2**26, algorithm="ring", channels=2)
    want = finish_times(outlined, topology, 31250000, late={77: "100us"}, merge=False, jumps=False)[0]
    found, how = finish_times(outlined, topology, 31250000, late={77: "100us"})
    assert found.tolist() == want.tolist() and done["jumps"] == 1


@pytest.mark.parametrize("faults", [
    ["nic:node=7,nic=0,factor=4,at=1ms,until=3ms"], ["nic:node=7,nic=0,factor=50,at=1ms,until=3ms"], ["nic:node=7,nic=2,at=2ms"],
    ["nic:node=7,nic=0,factor=1000,at=1ms,until=3ms", "nic:node=50,nic=4,factor=90,at=2ms,until=2500us"],
    ["nic:node=0,nic=0,factor=200,at=1us,until=2ms", "nic:node=383,nic=0,factor=30,at=4ms"],
])  # fmt: skip
def test_nics_that_change_in_time_among_thousands_of_ranks(faults: list[str], done: Counter[str]) -> None:
    """A node whose NICs change, and the one that puts to it, are evaluated message by message; those behind them wait for a while."""
    topology = Topology.preset("h100", 384)
    outlined = outline("all_reduce", topology, 2**26, algorithm="ring", channels=2)
    changes = changes_of(topology, faults)
    found, how = finish_times(outlined, topology, 60_000_000, changes=changes)
    want = finish_times(outlined, topology, 60_000_000, changes=changes, merge=False, jumps=False)[0]
    assert found.tolist() == want.tolist() and done["done"] == done["jumps"] == 1


def test_a_nic_that_changes_in_time_among_131072_ranks(done: Counter[str]) -> None:
    base = Topology.preset("h100", 16384)
    outlined = outline("all_reduce", base, "2GB", algorithm="ring")
    whole, found = (summarize(outlined, base, changes=changes_of(base, faults)).meta
                    for faults in ([], ["nic:node=7,nic=0,factor=1000,at=1ms,until=3ms"]))  # fmt: skip
    assert found["evaluated"]["rounds"] < 10**7 and done["done"] == 2
    assert 1 <= (found["time_ps"] - whole["time_ps"]) / 1e9 <= 2


FAULTS = ["none", "slower", "lost", "late", "slower rank", "two late", "very late", "very slow", "slowest"]


def faulty(fault: str, nodes: int) -> tuple[Topology, dict[str, Any]]:
    base = Topology.preset("h100", nodes)
    node = 70 % nodes
    topology = {"slower": base.slow(3, nic=(7, 0)), "lost": base.without((7, 0)), "slower rank": base.slow(1.5, rank=77),
                "very slow": base.slow(30, nic=(node, 0)), "slowest": base.slow(1000, nic=(node, 0))}.get(fault, base)  # fmt: skip
    return topology, {"late": {"late": {77: "300us"}, "two late": {77: "100us", 310: "1ms"}, "very late": {77: "20ms"}}.get(fault, {})}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("nodes", "channels"), [(128, 2), (61, 4), (40, 8)])
def test_a_thousand_ranks(nodes: int, channels: int, fault: str, done: Counter[str]) -> None:
    topology, options = faulty(fault, nodes)
    outlined = outline("all_reduce", topology, 2**26, algorithm="ring", channels=channels)
    assert outlined.loops is not None
    for count in (1907 * outlined.loops.parts + outlined.loops.parts // 3, 100 * outlined.loops.parts + 1):
        want = finish_times(outlined, topology, 4 * count, merge=False, jumps=False, **options)[0]
        found = finish_times(outlined, topology, 4 * count, **options)[0]
        assert found.tolist() == want.tolist(), count
    if fault in ("none", "slower") or (fault == "lost" and channels == 2):  # elsewhere it can be more work than every message
        assert done["done"] == done["jumps"] == 2


def test_4096_ranks_end_as_when_every_message_is_timed(done: Counter[str]) -> None:
    topology = Topology.preset("h100", 512)
    outlined = outline("all_reduce", topology, "64MiB", algorithm="ring", channels=2)
    found, how = finish_times(outlined, topology, "62500000B")
    want, how_every = finish_times(outlined, topology, "62500000B", merge=False, jumps=False)
    assert found.tolist() == want.tolist() and how["jumped"] > 0 and 20 * how["rounds"] < how_every["rounds"]


@pytest.mark.parametrize("nbytes", ["1.5GB", "2GB", "10GB"])
def test_gigabytes_among_131072_ranks(nbytes: str) -> None:
    """In a second, where every message takes an hour: between the times of shorter messages alone, and of longer ones."""
    topology = Topology.preset("h100", 16384)
    outlined = outline("all_reduce", topology, nbytes, algorithm="ring")
    assert outlined.loops is not None
    found = summarize(outlined, topology).meta
    element = 4 * outlined.loops.parts
    count = int(float(nbytes[:-2]) * 1e9) // element
    shorter, longer = (summarize(outlined, topology, times * element).meta["finish_ps"] for times in (count, count + 1))
    assert found["evaluated"]["jumped"] > 100 * found["evaluated"]["rounds"]
    assert (shorter <= found["finish_ps"]).all() and (found["finish_ps"] <= longer).all()
    assert found["nbytes"] == int(float(nbytes[:-2]) * 1e9)


@pytest.mark.parametrize(("fault", "least", "most"), [
    ("late 3 ms", 2.9, 3.1), ("late 50 ms", 49, 51), ("rank 1.5", 2, 6), ("nic 30", 90, 150),
    ("nic 1000", 38_000, 40_000)])
def test_all_nodes_wait_for_one_among_131072(fault: str, least: float, most: float, done: Counter[str]) -> None:
    """Nodes after it wait for its messages, for some time or to the end: messages are followed through them (own_time_band.hpp)."""
    base = Topology.preset("h100", 16384)
    outlined = outline("all_reduce", base, "2GB", algorithm="ring")
    kind, much = fault.split()[:2]
    topology = {"rank": base.slow(1.5, rank=3), "nic": base.slow(float(much), nic=(7, 0))}.get(kind, base)
    late = {3: f"{much}ms"} if kind == "late" else {}
    whole = summarize(outlined, base).meta["time_ps"]
    found = summarize(outlined, topology, late=late).meta
    assert found["evaluated"]["rounds"] < 2 * 10**7 and done["done"] == 2
    assert least <= (found["time_ps"] - whole) / 1e9 <= most


@pytest.mark.parametrize("fault", ["slower rank", "very slow", "slowest", "very late"])
def test_messages_followed_through_nodes_that_wait(fault: str, done: Counter[str]) -> None:
    """As every message, where most nodes wait for one; in hundredths of its work."""
    topology, options = faulty(fault, 384)
    outlined = outline("all_reduce", topology, 2**26, algorithm="ring", channels=2)
    found, how = finish_times(outlined, topology, 60_000_000, **options)
    want, how_every = finish_times(outlined, topology, 60_000_000, merge=False, jumps=False, **options)
    assert found.tolist() == want.tolist() and done["done"] == 1 and 5 * how["rounds"] < how_every["rounds"]


@pytest.mark.parametrize("what", ["all_gather", "reduce_scatter"])
def test_other_rings_among_131072_ranks(what: str) -> None:
    topology = Topology.preset("h100", 16384)
    found = simulate(what, topology, "2GB", algorithm="ring", result="summary").meta
    assert found["time_ps"] > 0 and found["nbytes"] <= 2 * 10**9


@pytest.mark.parametrize("nic", [1, 2, 5, 6])
def test_rings_that_cross_on_a_spare_nic(nic: int) -> None:
    """Four rings over nodes of eight ranks and NICs, one of theirs lost: as the table of ops; among 131,072 ranks about as when whole."""
    few, many = Topology.preset("h100", 6).without((3, nic)), Topology.preset("h100", 16384)
    for nbytes in (2**24, 10**7):
        outlined = outline("all_reduce", few, nbytes, algorithm="ring", channels=4)
        assert finish_times(outlined, few)[0].tolist() == exact_times(outlined.unroll(), few).finish_ps.tolist()
    ends = [finish_times(outline("all_reduce", each, "2GiB", algorithm="ring"), each)[0].max() for each in (many, many.without((7, nic)))]
    assert 1 < ends[1] / ends[0] < 1.03
