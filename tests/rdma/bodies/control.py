"""The two machines of a body find each other on the control network, and run commands.

Is not: RDMA. Machine 0 is the one that listens; both ends make the same calls.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from typing import Any

ME, NICS = int(os.environ["RDMA_VM"]), int(os.environ["RDMA_VM_NICS"])
PORT = 4444


def shell(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


class Meeting:
    """The other machine, on the control network."""

    def __init__(self) -> None:
        if ME == 0:
            with socket.create_server(("", PORT)) as door:
                self._control, _ = door.accept()
        else:
            self._control = self._call()
        self._incoming = self._control.makefile("r")

    @staticmethod
    def _call() -> socket.socket:
        while True:
            try:
                return socket.create_connection(("10.77.0.1", PORT), timeout=60)
            except OSError:
                time.sleep(0.02)

    def exchange(self, mine: Any = None) -> Any:
        """What the other machine exchanged at the same point."""
        self._control.sendall(json.dumps(mine).encode() + b"\n")
        return json.loads(self._incoming.readline())
