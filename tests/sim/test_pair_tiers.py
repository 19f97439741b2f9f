"""Direct algorithms where switches between nodes add latencies: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline
from ccl_lab.simulation import simulate
from ccl_lab.simulator import exact_times
from ccl_lab.simulator.pairs import pair_finish
from ccl_lab.topo import Level, Topology

from ..shares import expected, first_of
from .draws import Drawn, drawn, equal_to_the_oracle, some_bytes
from .test_pair_cuts import in_some_ways
from .test_pair_turns import with_lost_nics
from .test_pairs import NAMES, times, with_odd_nodes
from .test_scale import even_topology


def with_tiers(rng: np.random.Generator, topology: Topology) -> Topology:
    """Switches above the NICs, in up to four tiers: with rails or without, far or near, groups that do not divide the nodes."""
    levels, nodes, rails = [], 1, int(rng.integers(0, 4))
    for tier in range(int(rng.integers(0, 4))):
        nodes *= int(rng.integers(2, 5))
        if nodes >= topology.n_nodes:
            break
        levels.append(Level(f"tier {tier}", nodes=nodes, latency=_far(rng), per_rail=tier < rails))
    return topology.with_network(*levels, Level("top", latency=_far(rng)))


def _far(rng: np.random.Generator) -> str:
    return f"{int(rng.choice([0, rng.integers(1, 10**4), rng.integers(1, 10**7), rng.integers(1, 10**9)]))}ps"


def draw(seed: int, name: tuple[str, str], most_nodes: int = 90) -> Drawn | None:
    rng = np.random.default_rng([seed, 61, *name[0].encode(), *name[1].encode()])
    few = most_nodes if rng.random() < 0.3 else min(most_nodes, 12)
    made = int(rng.integers(4 if most_nodes > 64 else 3))
    topology = (even_topology, with_lost_nics, in_some_ways)[made](rng, few) if made < 3 else with_odd_nodes(rng)
    if topology.n_nodes == 1:
        return None
    return drawn(rng, name, with_tiers(rng, topology), some_bytes(rng), (0.3, 0.1), lambda found: found.pairs is not None, most_ops=40_000)


@pytest.mark.parametrize("name", NAMES)
def test_tiers_are_passed_as_in_the_table_of_ops(name: tuple[str, str]) -> None:
    """Any rates, late ranks, lost NICs, several channels, rates that change, in place and not; nodes that are alike but for a few."""
    compared = many = 0
    for seed in first_of(range(120), fewest=40):
        case = draw(seed, name)
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        try:
            ends, how = case.found(pair_finish, case.outlined.pairs, changes)
        except Inapplicable as why:
            assert "ways, whose puts" in str(why) or "rates inside nodes change" in str(why) or "their places" in str(why), (seed, why)
            continue
        assert ends == want, seed
        compared, many = compared + 1, many + (how["units"] > 64)
    assert compared >= expected(30) and (many >= expected(3) or name[0] == "all_reduce"), (compared, many)


def test_tiers_are_passed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, NAMES[seed % 5], most_nodes=5) for seed in first_of(range(80)))
    assert equal_to_the_oracle(cases, pair_finish, "pairs", 3_000, may_refuse=True) >= expected(15)
