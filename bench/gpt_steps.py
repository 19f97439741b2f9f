"""Training a small GPT over TP x DP: torch's tensor parallelism over Gloo, ours without overlap, ours with it; side by side.

Is: four ranks, a network namespace and a NIC each (a veth pair held to a rate by the kernel's token bucket, so that Gloo and we have
the same network), three copies of a model in each rank, a step of each in turn, 50 times. Is not: a large model; the ranks share the
cores there are. Invariants: all copies see the same data, and their losses must be those of one process; `exposed` is the time in
which the training thread neither computed nor waited for a core (wall - CPU - run queue, /proc/thread-self/schedstat): what it
waited for others. Needs root for the namespaces.

    python -m bench gpt_steps
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANKS, TP, STEPS, GBITS = 4, 2, 50, 1.0
NAMES = ("torch_gloo", "ours_sequential", "ours_decomposed")
PORT = 29500
TOLERANCE = 2e-3  # of a loss, after any number of the steps


def _environment(rank: int, size: int, lead: str, port: int) -> dict[str, str]:
    return {"CCL_LAB_RANK": str(rank), "CCL_LAB_WORLD_SIZE": str(size), "CCL_LAB_RENDEZVOUS": f"{lead}:{port}"}


def _group(rank: int, ranks: list[int], port: int) -> Any:
    """A communicator of some ranks; ranks are numbered in the order of `ranks`."""
    import ccl_lab as ccl

    os.environ |= _environment(ranks.index(rank), len(ranks), f"10.77.{1 + ranks[0]}.1", port)
    return ccl.init(timeout="60s")


def _clock() -> tuple[float, float, float]:
    """(wall, CPU, waiting for a core) of this thread, seconds."""
    cpu, queue, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    return time.perf_counter(), cpu / 1e9, queue / 1e9


def worker(rank: int, folder: str, steps: int) -> None:
    """One rank: steps of the three copies, in turn; writes its times and losses."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from . import gpt_model as models

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://10.77.1.1:{PORT}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS // TP, TP), mesh_dim_names=("dp", "tp"))
    replica, inside = divmod(rank, TP)
    tp = _group(rank, [replica * TP + i for i in range(TP)], PORT + 10 + replica)
    dp = _group(rank, [i * TP + inside for i in range(RANKS // TP)], PORT + 20 + inside)
    forms = {
        "torch_gloo": models.Torch(mesh),
        "ours_sequential": models.Ours(tp, dp, overlap=False),
        "ours_decomposed": models.Ours(tp, dp, overlap=True),
    }
    found: dict[str, dict[str, list[float]]] = {name: {"loss": [], "wall": [], "exposed": [], "cpu": []} for name in NAMES}
    for step in range(steps):
        tokens = models.batch(step, RANKS // TP)
        for name in NAMES[:: 1 if step % 2 == 0 else -1]:
            dist.barrier()
            began = _clock()
            loss = forms[name].step(tokens)
            forms[name].finish()
            wall, cpu, queue = (after - before for after, before in zip(_clock(), began, strict=True))
            for key, value in (("loss", loss), ("wall", wall), ("cpu", cpu), ("exposed", max(wall - cpu - queue, 0.0))):
                found[name][key].append(value)
    from ccl_lab.overlap import tune

    reasons = {" ".join(map(str, key)): list(choice.reasons)[:1] for key, choice in tune.choices(tp).items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps({"forms": found, "choices": reasons}))
    dist.barrier()
    tp.close()
    dp.close()
    dist.destroy_process_group()


def _start(rank: int, fd: int, folder: str, secret: str) -> subprocess.Popen[bytes]:
    """A rank on a host of its own: network, host name, and /sys that shows its interface."""
    shape = f"tc qdisc add dev nic0 root tbf rate {GBITS}gbit burst 64kb latency 400ms"
    route = f"ip route replace 10.77.0.0/16 dev nic0 scope link src 10.77.{1 + rank}.1"  # for sockets that name no address
    enter = f"mount --make-rprivate / && mount -t sysfs sysfs /sys && hostname node{rank} && {shape} && {route}"
    python = f"exec {sys.executable} -m bench.gpt_steps {rank} {folder} {STEPS}"
    words = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{fd}", "unshare", "--mount", "--uts", "sh", "-c", f"{enter} && {python}"]
    env = os.environ | {
        "CCL_LAB_TRANSPORT": "tcp", "CCL_LAB_NICS": "nic0", "CCL_LAB_SECRET": secret, "GLOO_SOCKET_IFNAME": "nic0", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.Popen(words, env=env, stdout=sys.stderr)


def peak_gflops() -> float:
    """Of the machine: one thread's float32 matmul times the cores there are for the ranks."""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(12):
        began = time.perf_counter()
        torch.mm(a, a)
        times.append(time.perf_counter() - began)
    return 2 * 1024**3 / min(times) / 1e9 * min(RANKS, len(os.sched_getaffinity(0)))


def single_process() -> list[float]:
    """Losses of the whole model on the whole batch."""
    from . import gpt_model as models

    whole = models.Whole()
    return [whole.step(models.batch(step, RANKS // TP)) for step in range(STEPS)]


def _summary(ranks: list[dict[str, Any]], alone: list[float], peak: float, flops: float) -> dict[str, Any]:
    rows = {}
    for name in NAMES:
        each = [rank["forms"][name] for rank in ranks]
        # torch's loss is that of the replica on both of its ranks, ours that of a rank's positions.
        share = 1 / TP if name == "torch_gloo" else 1.0
        losses = [share * sum(loss) / (RANKS // TP) for loss in zip(*(rank["loss"] for rank in each), strict=True)]
        walls = [max(step) for step in zip(*(rank["wall"] for rank in each), strict=True)]
        step_s = statistics.median(walls[5:])
        rows[name] = {
            "step_ms": step_s * 1e3,
            "mfu": flops / step_s / 1e9 / peak,
            "exposed_ms": statistics.median(statistics.fmean(step) for step in zip(*(rank["exposed"] for rank in each), strict=True)) * 1e3,
            "worst_loss_difference": max(abs(a - b) for a, b in zip(losses, alone, strict=True)),
            "last_loss": losses[-1], "losses": losses, "walls_ms": [wall * 1e3 for wall in walls],
        }  # fmt: skip
    return rows


def run() -> dict[str, Any]:
    """The facts of a record."""
    import ccl_lab as ccl
    from ccl_lab.engine.netns import Namespaces

    from . import gpt_model as models

    alone, peak, began = single_process(), peak_gflops(), time.time()
    namespaces = Namespaces(ccl.Topology.cluster(nodes=RANKS, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=GBITS))
    with tempfile.TemporaryDirectory() as folder:
        secret = secrets.token_hex(16)
        processes = [_start(rank, fd, folder, secret) for rank, fd in enumerate(namespaces.nodes)]
        try:
            statuses = [process.wait(timeout=600) for process in processes]
        finally:
            for process in processes:
                process.kill()
            namespaces.close()
        if any(statuses):
            raise RuntimeError(f"ranks of gpt_steps ended with {statuses}; see above")
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    rows = _summary(ranks, alone, peak, models.flops(RANKS // TP))
    for name, row in rows.items():
        assert row["worst_loss_difference"] < TOLERANCE, f"{name}: off by {row['worst_loss_difference']}"
    said = "; ".join(f"{name} {r['step_ms']:.0f} ms (exposed {r['exposed_ms']:.0f}, MFU {r['mfu']:.0%})" for name, r in rows.items())
    return {
        "summary": f"{STEPS} steps, TP {TP} x DP {RANKS // TP}, {GBITS} Gb/s: {said}; losses those of one process to "
                   f"{max(row['worst_loss_difference'] for row in rows.values()):.1e}",
        "ranks": RANKS, "tp": TP, "gbits_per_s": GBITS, "steps": STEPS, "peak_gflops": peak, "flops_per_step": models.flops(RANKS // TP),
        "model": {"width": models.WIDTH, "layers": models.LAYERS, "heads": models.HEADS, "positions": models.POSITIONS,
                  "sequences": models.BATCH * RANKS // TP},
        "single_process_losses": alone, "took_s": time.time() - began, "load": os.getloadavg(), "choices": ranks[0]["choices"],
        "forms": rows,
    }  # fmt: skip


if __name__ == "__main__":
    worker(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
