"""Notebooks that tests run: replies of a kernel that a client does not sleep through.

A client that sends on the channel of the kernel's replies, as it does for what `interact` prints, may use up the one wake-up for a reply
that has just come. It then looks again when its wait is over, minutes later (jupyter/nbclient issue 312).

Is: another look twice a second. Is not: a longer or a shorter wait.
"""

from __future__ import annotations

import importlib.util
import time
from queue import Empty
from typing import Any

LOOK_S = 0.5


def look_often() -> None:
    """For all clients of this process, from now on."""
    if importlib.util.find_spec("jupyter_client") is None:  # where no notebook is run
        return
    from jupyter_client.channels import AsyncZMQSocketChannel

    wait = AsyncZMQSocketChannel.get_msg

    async def get_msg(self: AsyncZMQSocketChannel, timeout: float | None = None) -> dict[str, Any]:
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            try:
                return await wait(self, max(0.0, min(LOOK_S, end - time.monotonic())))
            except Empty:
                if time.monotonic() >= end:
                    raise

    AsyncZMQSocketChannel.get_msg = get_msg  # type: ignore[method-assign]
