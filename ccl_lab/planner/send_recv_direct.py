"""Send and receive: one rank's input becomes another's output."""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from .problem import Problem


def direct(problem: Problem) -> Builder:
    """One put per channel; the sender being the receiver, a copy.

    Steps: 1. Bytes sent: one message. No scratch. Source: NCCLX, arXiv 2510.20171, 2.2 (zero-copy send and receive).
    """
    channels = problem.slices(problem.nics_per_rank, problem.nbytes)
    b = problem.builder("direct", channels=channels, parts=channels)
    part = np.arange(channels)
    sender, receiver = np.full(channels, problem.root), np.full(channels, problem.peer)
    if problem.root == problem.peer:
        b.copy(rank=sender, src=b.input[part], dst=b.output[part], channel=part)
        return b
    b.put(rank=sender, peer=receiver, src=b.input[part], dst=b.output[part], channel=part)
    b.wait(rank=receiver, peer=sender, channel=part)
    return b
