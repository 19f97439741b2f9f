"""Nodes that go on as those before them (gathers.cpp): what is told of them is what is evaluated, one node at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab import _core

Columns = dict[str, Any]
OF_OWNERS = ("end_ps", "end_batch")
OF_NODES = {"end_ps": 2, "end_batch": 2, "finish_ps": 1, "class_of": 0}  # dimensions behind the node


def drawn(rng: np.random.Generator) -> Columns:
    """Columns of a cluster whose nodes come in stretches of arithmetic progressions, in which who waits for whom changes."""
    nodes, group, slices, classes = (int(rng.integers(low, high)) for low, high in ((1, 60), (2, 6), (1, 4), (1, 3)))
    owners = int(rng.integers(1, group + 1))
    end_ps, end_batch = (np.zeros((nodes, owners, slices), np.int64) for _ in range(2))
    finish, class_of = np.zeros((nodes, group), np.int64), np.zeros(nodes, np.int64)
    for column, most, steep in ((end_ps, 4000, 60), (end_batch, 30, 9), (finish, 9000, 90), (class_of, classes, 0)):
        at = 0
        while at < nodes:  # stretches of each column begin where they like
            count = int(rng.integers(1, 80))
            first = rng.integers(0, most, column.shape[1:])
            step = rng.integers(-steep, steep + 1, column.shape[1:]) * rng.integers(0, 2)
            line = first + step * np.arange(count).reshape(-1, *[1] * (column.ndim - 1))
            column[at : at + count] = np.abs(line)[: nodes - at]
            at += count
    ports = (classes, group)
    return {
        "nodes": nodes, "group": group, "slices": slices, "classes": classes, "alpha_ps": int(rng.integers(0, 2) * 100),
        "owners": np.stack([rng.permutation(group)[:owners] for _ in range(classes)]), "bytes": rng.integers(0, 3, (owners, slices)),
        "end_ps": end_ps, "end_batch": end_batch, "class_of": class_of, "bytes_per_s": rng.integers(1, 9, ports) * 10**9,
        "late_ps": rng.integers(0, 4000, ports), "tx_latency_ps": rng.integers(0, 500, ports), "rx_latency_ps": rng.integers(0, 500, ports),
        "tx_free_ps": rng.integers(0, 3000, ports), "rx_free_ps": rng.integers(0, 3000, ports), "finish_ps": finish,
    }  # fmt: skip


def by_owner(column: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Owner by owner, one row of those that are `alike` in all nodes."""
    return np.concatenate([column[: 1 if one else None, owner].ravel() for owner, one in enumerate(alike)])


def ended(columns: Columns, alike: np.ndarray | None = None) -> list[list[int]]:
    alike = np.zeros(columns["owners"].shape[1], bool) if alike is None else alike
    columns = {**columns, "rows": np.where(alike, 1, columns["nodes"]), **{name: by_owner(columns[name], alike) for name in OF_OWNERS}}
    flat = {name: np.array(each, np.int64).ravel() if isinstance(each, np.ndarray) else each for name, each in columns.items()}
    assert _core.simulate_gathers(flat)
    return flat["finish_ps"].reshape(columns["nodes"], -1).tolist()


@pytest.mark.parametrize("seed", range(300))
def test_together_as_one_by_one(seed: int) -> None:
    columns = drawn(np.random.default_rng(seed))
    alone = [ended({**columns, "nodes": 1, **{name: columns[name][node : node + 1] for name in OF_NODES}})
             for node in range(columns["nodes"])]  # fmt: skip
    assert ended(columns) == [row for one in alone for row in one]


@pytest.mark.parametrize("seed", range(300))
def test_one_row_stands_for_all_nodes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = drawn(rng)
    alike = rng.integers(0, 2, columns["owners"].shape[1]).astype(bool)
    for name in OF_OWNERS:
        columns[name][:, alike] = columns[name][:1, alike]
    assert ended(columns, alike) == ended(columns)
