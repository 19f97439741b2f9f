"""Direct all_to_all in place, where what came is copied once what was put there has left: as the unrolled schedule and the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline, plan
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.pairs import pair_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import Drawn, alike_by_twos, equal_to_the_oracle, some_bytes
from .test_pair_turns import FEW, with_lost_nics
from .test_pairs import times
from .test_scale import even_topology


def draw(seed: int, most_nodes: int = 90, most_ops: int = 40_000) -> Drawn | None:
    """Nodes that lost NICs or not, memories as slow as NICs or slower, one channel or several."""
    rng = np.random.default_rng([seed, 57])
    most = int(rng.choice([6, 6, 30, most_nodes]))
    topology = with_lost_nics(rng, min(most, most_nodes)) if rng.random() < 0.5 else even_topology(rng, min(most, 12, most_nodes))
    if rng.random() < 0.7:
        topology = topology.replace(local_bytes_per_s=rng.integers(10**8, 10**12, topology.n_ranks))
    options = {"algorithm": "direct", "in_place": True, "channels": int(rng.choice([1, 1, 2, 3, 4]))}
    nbytes = some_bytes(rng)
    outlined = outline("all_to_all", topology, nbytes, **options) if topology.n_ranks > 1 else None
    if outlined is None or outlined.ops_about > most_ops or outlined.pairs is None:
        return None
    late = {rank: f"{int(rng.integers(1, 10**8))}ps" for rank in range(topology.n_ranks) if rng.random() < 0.1}
    return Drawn(plan("all_to_all", topology, nbytes, **options), outlined, topology, late, float(rng.choice([0, 3e-6])), rng)


def test_copies_in_place_are_timed_as_their_ops() -> None:
    """Any rates, late ranks, lost NICs, several channels whose copies take turns on one memory, rates that change."""
    seen = {"compared": 0, "dealt": 0, "channels": 0, "nodes": 0}
    for seed in first_of(range(160), fewest=50):
        case = draw(seed)
        if case is None:
            continue
        want, changes = case.wanted(change=case.topology.n_nodes > 1)
        for merge in (True, False):
            ends, how = case.found(pair_finish, case.outlined.pairs, changes, few=FEW[seed % len(FEW)], merge=merge)
            assert ends == want, (seed, merge)
            seen["compared"] += 1
            seen["dealt"] += "turns" in how
            seen["channels"] += "turns" in how and case.outlined.pairs.channels > 1
            seen["nodes"] += "turns" in how and case.topology.n_nodes > 64
    least = {"compared": 150, "dealt": 40, "channels": 40, "nodes": 3}
    assert all(seen[name] >= expected(count) for name, count in least.items()), seen


def test_copies_in_place_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, most_nodes=4, most_ops=1_500) for seed in first_of(range(60)))
    assert equal_to_the_oracle(cases, pair_finish, "pairs", 1_500) >= expected(20)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_copies_on_every_kind_of_vectors(target: int) -> None:
    """Blocks and turns, memories and NICs that are alike, or all different."""
    rng = np.random.default_rng(5)
    alike = Topology.cluster(nodes=150, gpus_per_node=2, nics_per_node=2)
    different = alike.replace(nic_bytes_per_s=rng.integers(10**8, 10**10, 300), local_bytes_per_s=rng.integers(10**8, 10**10, 300))
    for whole in (alike.slow(3, nic=(70, 1)), different):
        for topology in (whole, whole.without((7, 1), (100, 0))):
            outlined = outline("all_to_all", topology, "64MiB", algorithm="direct", in_place=True)
            found, how = times(outlined, topology, merge=False, target=target)
            assert how["units"] == 150 and found == exact_times(outlined.unroll(), topology).finish_ps.tolist()


@pytest.mark.parametrize("channels", [1, 2])
def test_512_ranks_in_place_as_their_ops(channels: int) -> None:
    whole = Topology.preset("h100", 64)
    for topology, late in ((whole, None), (whole.slow(3, nic=(7, 2)), {3: "20us"}), (whole.slow(20, rank=100).without((40, 0)), None)):
        outlined = outline("all_to_all", topology, "64MiB", algorithm="direct", in_place=True, channels=channels)
        found, how = finish_times(outlined, topology, late=late)
        assert how["as"] == "pairs" and found.tolist() == exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()


@pytest.mark.parametrize("nodes", [8, 64, 512])
def test_merged_nodes_copy_as_those_that_are_evaluated(nodes: int) -> None:
    for topology, late, units in alike_by_twos(nodes):
        outlined = outline("all_to_all", topology, "1GB", algorithm="direct", in_place=True, channels=2)
        found, how = times(outlined, topology, late)
        assert how["units"] == units and found == times(outlined, topology, late, merge=False)[0]


def test_131072_ranks_in_place() -> None:
    """A copy of each block after all that could have come before it: a little later than out of place."""
    topology = Topology.preset("h100", 16384)
    ends = [finish_times(outline("all_to_all", topology, "1GiB", algorithm="direct", in_place=in_place), topology)[0]
            for in_place in (False, True)]  # fmt: skip
    assert [len(np.unique(each)) for each in ends] == [1, 1] and 1 < ends[1][0] / ends[0][0] < 1.1


def test_many_copies_in_orders_of_their_own_are_refused() -> None:
    topology = Topology.preset("h100", 8192).without((7, 2))
    with pytest.raises(Inapplicable, match="copies each rank makes in an order of its own"):
        times(outline("all_to_all", topology, "1GiB", algorithm="direct", in_place=True, channels=2), topology)
