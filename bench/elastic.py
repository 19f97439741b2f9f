"""How long a job stands still when a member dies, and until a new one takes part: a World and a launcher's job, 8 groups each.

Is: real processes that are killed in the middle of an all_reduce; every result is compared with the sum over the members that
took part. Times are by one clock of this host, from just before the kill. Is not: a cluster: all ranks share this machine's
cores, and NICs are shaped.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan

from .record import percentiles

GROUPS, ITERATIONS = 8, 10
SIZES = {1 << 20: 0.1, 16 << 20: 1.0}  # bytes of the all_reduce: Gb/s of a NIC, so that a kill hits it in the middle
NBYTES = 1 << 20  # of the job
GOAL_RESUME_S, GOAL_JOIN_S = 1.0, 2.0


def world(nbytes: int, nic_gbits_per_s: float) -> dict[str, Any]:
    """Seconds from the kill until the survivors were told to go on, until they had the result, and for a new member to join."""
    topology = Topology.cluster(nodes=GROUPS, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=nic_gbits_per_s)
    rng = np.random.default_rng(4)
    found: dict[str, list[float]] = {"agreed_s": [], "resumed_s": [], "finished_s": [], "joined_s": []}
    with World(topology, elastic=True, groups=GROUPS) as made:
        for _ in range(ITERATIONS):
            run = made.start(plan("all_reduce", topology, nbytes, algorithm="ring"))
            while not run.done() and (run.state != "running" or made.status()["progress"] < 0.2):
                time.sleep(0.002)
            victim = int(rng.choice(made.members))
            pid, begin = made.status()["pids"][victim], time.monotonic()
            os.kill(pid, signal.SIGKILL)
            run.wait(60)
            end = time.monotonic()
            if run.begin_s < begin:  # it had ended before the kill took hold: not what is measured
                made.shrink()
                made.grow()
                continue
            if set(made.members) - set(run.members) or victim in run.members or len(run.members) != GROUPS - 1:
                raise RuntimeError(f"expected member {victim} alone to be lost, found {[str(e) for e in made.events[-4:]]}")
            found["resumed_s"].append(run.begin_s - begin)
            found["finished_s"].append(end - begin)
            found["agreed_s"].append(made.events[-1].took_s)
            run.check()
            begin = time.monotonic()
            made.grow()
            found["joined_s"].append(time.monotonic() - begin)
            run = made.start(plan("all_reduce", made.topology, "1MiB"))
            run.wait(60)
            run.check()
    return {name: percentiles(values) for name, values in found.items()}


PROGRAM = """
    import os, signal, sys, time
    import numpy as np
    import ccl_lab as ccl
    joins, victim, count = bool(os.environ.get("JOINS")), int(sys.argv[1]), int(sys.argv[2])
    if joins: time.sleep(1.0)  # while the others start
    comm = ccl.init(elastic=True, join=joins, timeout="30s")
    me, x = comm.member, np.full(count, 2.0 ** comm.member, np.float32)
    def reduced():
        y = comm.all_reduce(x)
        assert (y == sum(2.0 ** member for member in comm.members)).all()
    if not joins:
        for _ in range(3): reduced()
        usual = time.monotonic()
        for _ in range(5): reduced()
        print("usual", (time.monotonic() - usual) / 5)
        comm.barrier()
        if me == victim:
            print("killed", time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        reduced()
        print("resumed", time.monotonic())
        begin = time.monotonic()
        assert comm.grow(1, timeout="30s") == (8,)
        print("grew", time.monotonic() - begin)
    reduced()
    print("members", *comm.members)
    comm.close()
"""


def job(victim: int) -> dict[str, float]:
    """One job of 8 processes of which `victim` dies and a ninth joins; seconds."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    shared = dict(os.environ) | {"CCL_LAB_WORLD_SIZE": str(GROUPS), "CCL_LAB_RENDEZVOUS": f"127.0.0.1:{port}"}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(victim), str(NBYTES // 4)]
    processes = [
        subprocess.Popen(
            command,
            env=shared | {"CCL_LAB_RANK": str(min(rank, GROUPS - 1))} | ({"JOINS": "1"} if rank == GROUPS else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(GROUPS + 1)
    ]
    said = [process.communicate(timeout=120)[0].split("\n") for process in processes]
    status = [process.returncode for process in processes]
    if [rank for rank, code in enumerate(status) if code] != [victim]:
        raise RuntimeError(f"expected rank {victim} alone to die, found exit statuses {status}")

    def each(word: str) -> list[float]:
        return [float(line.split()[1]) for lines in said for line in lines if line.startswith(word)]

    killed = each("killed")[0]
    return {
        "finished_s": max(each("resumed")) - killed, "usual_s": max(each("usual")), "joined_s": max(each("grew")),
    }  # fmt: skip


def jobs() -> dict[str, Any]:
    """Seconds from the kill until the last survivor had its result (`usual_s`: without a kill), and for `grow`."""
    found: dict[str, Any] = {}
    for name, victim in (("a member", 5), ("the hub", 0)):
        rows = [job(victim) for _ in range(ITERATIONS // 2)]
        found[name] = {key: percentiles([row[key] for row in rows]) for key in rows[0]}
    return found


def run() -> dict[str, Any]:
    """See the module."""
    of_world = {str(nbytes): world(nbytes, rate) | {"nic_gbits_per_s": rate} for nbytes, rate in SIZES.items()}
    of_jobs = jobs()
    world_text = "; ".join(
        f"{int(nbytes) >> 20} MiB: survivors agreed after {row['agreed_s']['p50']:.2f} s, went on after {row['resumed_s']['p50']:.2f} s ("
        f"worst {row['resumed_s']['max']:.2f}), a new one is in after {row['joined_s']['p50']:.2f} s (worst {row['joined_s']['max']:.2f})"
        for nbytes, row in of_world.items()
    )
    job_text = "; ".join(
        f"{name} dies: all have the result after {row['finished_s']['p50']:.2f} s (worst {row['finished_s']['max']:.2f}, usual "
        f"{row['usual_s']['p50']:.3f}), grow takes {row['joined_s']['p50']:.2f} s"
        for name, row in of_jobs.items()
    )
    return {
        "summary": (
            f"goals: go on in {GOAL_RESUME_S:g} s, join in {GOAL_JOIN_S:g} s. World of {GROUPS} groups, {world_text}. Job of {GROUPS} "
            f"processes, {NBYTES >> 20} MiB, {job_text}"
        ),
        "groups": GROUPS, "iterations": ITERATIONS, "goals": {"resumed_s": GOAL_RESUME_S, "joined_s": GOAL_JOIN_S},
        "world": of_world, "job_nbytes": NBYTES, "job": of_jobs,
    }  # fmt: skip
