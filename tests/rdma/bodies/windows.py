"""Windows over verbs: the cases of the other transports, and a NIC of machine 1 that is switched off while a put comes in.

Prints what explain() says, and how often paths were lost and came back.
"""

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

import ccl_lab as ccl
from tests.integration import window_cases as cases

from .jobs import ME, NICS, join, numbers, paths, sh

NBYTES = 24 << 20


def switched_off(comm: Any) -> dict[str, Any]:
    """Puts until one of them has lost a path, then until it is back; each is there, whole and once, when its signal is seen."""
    deadline, hurt, healed = time.monotonic() + 80, False, False
    window = comm.window(ccl.empty(NBYTES // 4, "int32"))
    while not healed:
        x = numbers(0, NBYTES // 4, 7)
        x[0] = hurt
        before = paths(comm)["lost"]
        if ME == 1 and not hurt:
            subprocess.Popen("sleep 0.1; ip link set eth1 down", shell=True)
        comm.barrier()
        if ME == 0:
            window.put(1, x, signal=True, timeout="60s")
            window.wait(1, timeout="60s")
        else:
            window.wait(0, timeout="60s")
            assert (window.array == x).all() and window.count() == 0
            window.array[:] = 0
            window.signal(0)
        lost = paths(comm)["lost"] > before
        late = time.monotonic() > deadline
        if ME == 1 and not hurt:
            time.sleep(0.2)
            sh("ip link set eth1 up && ip addr replace 10.77.1.2/24 dev eth1")
        up = set(paths(comm)["states"]) == {"up"}
        any_lost, all_up, too_late = comm.all_reduce(np.array([lost, up, late], np.int32))
        assert not too_late, paths(comm)
        hurt = hurt or any_lost > 0
        healed = bool(hurt and all_up == 2)
        time.sleep(0.05)
    window.close()
    return paths(comm)


settings = dict(word.split("=", 1) for word in sys.argv[1:])
with join(**{"timeout": "60s", **settings}) as comm:
    cases.simple(comm)
    cases.random_programs(comm, 2, 3)
    cases.all_nics_one_notice(comm, NICS)
    cases.closed_in_flight(comm)
    explained = comm.explain()
    after = switched_off(comm) if settings.get("failover") != "off" else {}
print(json.dumps({"explained": explained, "after": after}))
