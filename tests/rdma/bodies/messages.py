"""Queues of messages over verbs: the cases of the other transports, and a NIC of machine 1 that is switched off while they come in.

Prints what explain() says, and how often paths were lost and came back.
"""

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from tests.integration import message_cases as cases

from .jobs import ME, join, paths, sh


def switch_off(rank: int) -> None:
    """On machine 1, soon."""
    if rank == 1:
        subprocess.Popen("sleep 0.05; ip link set eth1 down", shell=True)


def switched_off(comm: Any) -> dict[str, Any]:
    """Queues of messages until one has lost a path, then until it is back."""
    deadline, hurt = time.monotonic() + 80, False
    while True:
        before = paths(comm)["lost"]
        cases.stream(comm, 10, 16 * cases.MIB, 4, lambda rank, hurt=hurt: None if hurt else switch_off(rank))
        lost = paths(comm)["lost"] > before
        if ME == 1 and not hurt:
            time.sleep(0.2)
            sh("ip link set eth1 up && ip addr replace 10.77.1.2/24 dev eth1")
        up = set(paths(comm)["states"]) == {"up"}
        any_lost, all_up, too_late = comm.all_reduce(np.array([lost, up, time.monotonic() > deadline], np.int32))
        assert not too_late, paths(comm)
        hurt = hurt or any_lost > 0
        if hurt and all_up == 2:
            return paths(comm)
        time.sleep(0.05)


settings = dict(word.split("=", 1) for word in sys.argv[1:])
cases.MIB = 256 << 10  # a machine of the rig has one core
with join(**{"timeout": "60s", **settings}) as comm:
    cases.queues(comm)
    cases.both_ways(comm)
    found = {"explained": comm.explain()}
    if settings.get("failover") != "off":
        found["after"] = switched_off(comm)
print(json.dumps(found))
