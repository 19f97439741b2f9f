"""Every collective over verbs, at three sizes, compared bit for bit; prints the wrong ones and what explain() says."""

import json
import sys
from typing import Any

import numpy as np

from .jobs import MACHINES, ME, join, numbers, summed

wrong: list[str] = []


def same(name: str, found: Any, expected: np.ndarray) -> None:
    if not np.array_equal(np.asarray(found).ravel(), np.asarray(expected).ravel()):
        wrong.append(name)


with join(**dict(word.split("=", 1) for word in sys.argv[1:])) as comm:
    explained = comm.explain()
    for count in (1, 1000, 1 << 18):
        mine = numbers(ME, count)
        everyone = np.stack([numbers(rank, count) for rank in range(MACHINES)])
        blocks = [numbers(rank, (MACHINES, count), 1) for rank in range(MACHINES)]
        same(f"all_reduce {count}", comm.all_reduce(mine), summed(count))
        same(f"all_gather {count}", comm.all_gather(mine), everyone)
        same(f"reduce_scatter {count}", comm.reduce_scatter(blocks[ME]), sum(blocks)[ME])  # type: ignore[index]
        same(f"broadcast {count}", comm.broadcast(mine.copy(), root=1), everyone[1])
        reduced = comm.reduce(mine, root=0)
        gathered = comm.gather(mine, root=1)
        if ME == 0:
            same(f"reduce {count}", reduced, summed(count))
        if ME == 1:
            same(f"gather {count}", gathered, everyone)
        part = np.zeros(count, np.int32)
        same(f"scatter {count}", comm.scatter(blocks[0] if ME == 0 else None, root=0, out=part), blocks[0][ME])
        same(f"all_to_all {count}", comm.all_to_all(blocks[ME]), np.stack([block[ME] for block in blocks]))
        if ME == 0:
            comm.send(mine, 1)
        elif ME == 1:
            received = np.zeros(count, np.int32)
            comm.recv(received, 0)
            same(f"send_recv {count}", received, everyone[0])
        comm.barrier()
print(json.dumps({"wrong": wrong, "explained": explained}))
