"""One-pass send_recv on shared memory: the sender writes the first half into the receiver's output, the receiver reads the second.

Invariant: the sender ends when its input has been read; each half is one copy, from where it lies to where it belongs.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from .problem import Problem


def one_pass(problem: Problem) -> Builder:
    """A put and a copy at the same time, so that both cores work.

    Steps: 1. Bytes put, and bytes read from the peer: half of the message. No scratch, one node.
    Source: single-copy messages as of XPMEM and CMA in MPI libraries, shared between both ends.
    """
    channels = problem.slices(1, problem.nbytes)
    b = problem.builder("one_pass", channels=channels, parts=2 * channels)
    channel = np.arange(channels)
    sender, receiver = np.full(channels, problem.root), np.full(channels, problem.peer)
    first, second = 2 * channel, 2 * channel + 1
    if problem.root == problem.peer:
        b.copy(rank=sender, src=b.input[first : first + 2], dst=b.output[first : first + 2], channel=channel)
        return b
    b.put(rank=sender, peer=receiver, src=b.input[first], dst=b.output[first], channel=channel)
    b.copy(rank=receiver, src=b.input[second].at(problem.root), dst=b.output[second], channel=channel)
    b.signal(rank=receiver, peer=sender, channel=channel)
    b.wait(rank=sender, peer=receiver, channel=channel)
    b.wait(rank=receiver, peer=sender, channel=channel)
    return b
