"""Words that the overlap schedules share: the channels of a rank, and how one of its channels tells another.

Is: names. Is not: a schedule. Invariants: channel 0 is a rank's compute stream, channel 1 its communication; a counter of a
rank to itself is waited for on the channel that gave it its number.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder

COMPUTE, COMM = 0, 1


def tell(b: Builder, rank: np.ndarray, channel: int, other: int) -> None:
    """What `channel` of `rank` did so far comes before what its channel `other` does from here on."""
    b.signal(rank=rank, peer=rank, channel=channel, sig_channel=other)
    b.wait(rank=rank, peer=rank, channel=other, sig_channel=other)


def before_the_next(b: Builder, peer: np.ndarray, step: int, last: int) -> None:
    """What goes to one peer leaves before what goes to the next: else they share the NIC, and all arrive when the last does."""
    if step < last:
        b.flush(rank=np.arange(b.n_ranks), peer=peer, channel=COMM)
