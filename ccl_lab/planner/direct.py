"""What direct algorithms share: where the data of each sender lands, and the sources of one big reduction.

Invariant: sources are always in rank order, so every rank computes bitwise the same sum of floats.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Ref


def slot(sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
    """Scratch block at `receiver` for what `sender` puts: senders in order, the receiver itself left out."""
    return sender - (sender > receiver)


def sources(me: np.ndarray, group: int, own_chunk: np.ndarray, landed_chunk: np.ndarray, parts: int, n_chunks: int = 1) -> list[Ref]:
    """Sources in order 0 … group-1: what landed in each slot, and the INPUT of member `me` at its own place."""
    refs = []
    for member in range(group):
        mine = me == member
        chunk = np.where(mine, own_chunk, slot(np.full_like(me, member), me) * parts + landed_chunk)
        refs.append(Ref(np.where(mine, int(Buffer.input), int(Buffer.scratch)), chunk, n_chunks))
    return refs
