"""Messages of two lengths, each followed all the way round the ring (followed.hpp): as one by one, and as the oracle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.ir import Outline
from ccl_lab.planner import outline, plan
from ccl_lab.simulator import finish_times, loops, summarize
from ccl_lab.simulator.patience import patience
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import changing, drawn_rings, equal_to_every_message
from .oracle import Oracle
from .test_scale import MOST_OPS, even_topology
from .test_swept import case

NAMES = [("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"), ("all_reduce", "hierarchical"),
         ("all_reduce", "balance")]  # fmt: skip


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, bool]]:
    """How messages of two lengths were timed, and whether that could be."""
    found: Counter[tuple[str, bool]] = Counter()
    step_by_step = loops._step_by_step

    def watched(how: str, *given: Any) -> Any:
        result = step_by_step(how, *given)
        found[how, result is not None] += 1
        return result

    monkeypatch.setattr(loops, "_step_by_step", watched)
    return found


def draw(rng: np.random.Generator) -> tuple[Topology, dict[str, Any]]:
    """Nodes that are alike, or some that are not: slower and lost NICs, late ranks, slower ones, rates of their own."""
    if rng.random() < 0.5:
        return case(rng)
    topology = even_topology(rng, 24)
    some = rng.random() < 0.4
    late = {r: f"{int(rng.integers(1, 10**7))}ps" for r in range(topology.n_ranks) if some and rng.random() < 0.1}
    return topology, {"late": late, "alpha": float(rng.choice([0, 1e-7]))}


def made(rng: np.random.Generator, topology: Topology, most_ops: int = MOST_OPS) -> tuple[Outline, int, dict[str, Any]] | None:
    """A schedule of rings, a size that its parts seldom divide, and what it was planned with; None where there is none, or a large one."""
    collective, algorithm = NAMES[int(rng.integers(len(NAMES)))]
    planned = int(rng.choice([2**12, 2**16, 2**24]))
    options: dict[str, Any] = {"algorithm": algorithm, "channels": None if rng.random() < 0.6 else int(rng.integers(1, 4)),
                               "in_place": bool(rng.random() < 0.3)}  # fmt: skip
    nbytes = 4 * int(rng.integers(100, 50_000 if rng.random() < 0.5 else 10**7))
    try:
        outlined = outline(collective, topology, planned, **options)
    except UsageError:
        return None
    if outlined.loops is None or outlined.ops_about > most_ops:
        return None
    return outlined, nbytes, {"collective": collective, "planned": planned, **options}


@pytest.mark.parametrize("block", range(20))
def test_random_clusters(block: int, done: Counter[tuple[str, bool]]) -> None:
    compared = equal_to_every_message(drawn_rings(first_of(range(50 * block, 50 * block + 50)), 15, draw, made))
    assert compared >= expected(21) and done["followed", True] >= 2 * done["followed", False]


@pytest.mark.parametrize("block", range(8))
def test_random_clusters_whose_nics_change_in_time(block: int, done: Counter[tuple[str, bool]]) -> None:
    compared = equal_to_every_message(changing(drawn_rings(first_of(range(50 * block, 50 * block + 50)), 17, draw, made)))
    assert compared >= expected(11) and done["followed", True] > done["followed", False]


def test_the_oracle(done: Counter[tuple[str, bool]]) -> None:
    rings = drawn_rings(first_of(range(150), fewest=60), 16, draw, lambda rng, topology: made(rng, topology, 3000))
    for seed, topology, options, outlined, nbytes, planned in rings:
        schedule = plan(planned.pop("collective"), topology, planned.pop("planned"), **planned)
        late_ps = [0] * topology.n_ranks
        for rank, time in options["late"].items():
            late_ps[rank] = int(time[:-2]) * (1 if time.endswith("ps") else 1000)
        try:
            found, _ = finish_times(outlined, topology, nbytes, **options)
        except Inapplicable:
            continue
        oracle = Oracle(schedule, topology, schedule.layout(nbytes=nbytes), late_ps, alpha=round(options["alpha"] * 1e12))
        assert found.tolist() == oracle.finish, seed
    assert done["followed", True] >= expected(11)


@pytest.mark.parametrize("fault", ["none", "slower", "lost", "late", "slower rank"])
@pytest.mark.parametrize(("collective", "algorithm", "nodes"), [
    ("all_reduce", "ring", 40), ("all_gather", "ring", 61), ("reduce_scatter", "ring", 60), ("all_reduce", "hierarchical", 300)])
def test_hundreds_of_nodes(collective: str, algorithm: str, nodes: int, fault: str, done: Counter[tuple[str, bool]]) -> None:
    """So many that jumps are long, and messages catch up with longer ones on their way."""
    base = Topology.preset("h100", nodes)
    topology = {"slower": base.slow(3, nic=(7, 7)), "lost": base.without((7, 7)), "slower rank": base.slow(2, rank=77)}.get(fault, base)
    late = {"late": {77: "100us"}} if fault == "late" else {}
    for nbytes in (topology.n_ranks * 8 + 52, topology.n_ranks * 7000 + 1000) if algorithm == "ring" else (10**6, 10**8):
        outlined = outline(collective, topology, nbytes, algorithm=algorithm)
        try:
            want = finish_times(outlined, topology, merge=False, jumps=False, **late)[0]
        except Inapplicable:
            continue
        assert finish_times(outlined, topology, **late)[0].tolist() == want.tolist(), nbytes


@pytest.mark.parametrize("fault", ["none", "slower", "lost", "late"])
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_1_gb_among_131072_ranks(algorithm: str, fault: str, done: Counter[tuple[str, bool]]) -> None:
    """In a second or two, where every message takes minutes: between the times of shorter messages alone, and of longer ones."""
    base = Topology.preset("h100", 16384)
    topology = {"slower": base.slow(4, nic=(7, 7)), "lost": base.without((7, 7))}.get(fault, base)
    late = {"late": {800: "1ms"}} if fault == "late" else {}
    outlined = outline("all_reduce", topology, "1GB", algorithm=algorithm)
    found = summarize(outlined, topology, **late).meta
    assert set(done) == {("followed", True)}
    assert found["evaluated"]["rounds"] < 2 * 10**7
    assert outlined.loops is not None
    element = 4 * outlined.loops.parts
    shorter, longer = (summarize(outlined, topology, times * element, **late).meta["finish_ps"]
                       for times in (10**9 // element, -(-(10**9) // element)))  # fmt: skip
    assert (shorter <= found["finish_ps"]).all() and (found["finish_ps"] <= longer).all()


def test_what_would_be_too_much_work_is_refused(done: Counter[tuple[str, bool]]) -> None:
    """A rank so late that all nodes wait for it, again and again; to follow each message, which is no less work, is not tried then."""
    topology = Topology.preset("h100", 16384)
    with patience(0.1), pytest.raises(Inapplicable, match="chunks differ by an element"):
        summarize(outline("all_reduce", topology, "2GB", algorithm="ring"), topology, late={3: "500ms"})
    assert not done


def test_131_072_ranks_end_as_when_every_message_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology.preset("h100", 16384).slow(3.0, nic=(9, 1))
    outlined = outline("all_reduce", topology, 10**9, algorithm="hierarchical")
    followed, how = finish_times(outlined, topology)
    step_by_step = loops._step_by_step
    monkeypatch.setattr(loops, "_step_by_step", lambda how, *given: None if how == "followed" else step_by_step(how, *given))
    every, how_every = finish_times(outlined, topology)
    assert how["rounds"] < 10**6 < how_every["rounds"] and followed.tolist() == every.tolist()
