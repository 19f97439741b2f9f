"""Files as other tools write them, of our own making and of known answers: Kineto of several ages, flight recorder, tars."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_TO_ALL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_nn"
BASE = 1_711_964_646_000_000_000
STEP_US = 1000.0
COLLECTIVES = 4
# per collective (µs): compute 0..500, the all_reduce begins at 300 (the late rank: at 450) and ends for all at 600; copy 590..650
KNOWN = {"compute_us": 500.0, "comm_us": 300.0, "exposed_comm_us": 100.0, "exposed_memcpy_us": 50.0}
LATE = 2


def x(name, cat, ts, dur, tid, **args):
    """A complete event."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"stream": tid} | args,
    }


def kineto(rank=0, n_ranks=4, skew_us=0.0, arguments=True, steps=COLLECTIVES, old=False, host=True):
    """The document of one rank. `skew_us`: how far its clock is ahead; `old`: capital words, no base, no arguments."""
    events, late = [], rank == LATE
    kernel, memcpy = ("Kernel", "Memcpy") if old else ("kernel", "gpu_memcpy")
    for step in range(steps):
        t = step * STEP_US + skew_us + (BASE / 1000 if old else 0.125)
        begin = 450.0 if late else 300.0
        args = {}
        if arguments and not old:
            args = {
                "Collective name": "allreduce",
                "In msg nelems": 1000,
                "Out msg nelems": 1000,
                "Group size": n_ranks,
                "dtype": "Float",
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(n_ranks))),
                "Seq": step,
            }
        if host:
            events.append(
                x(
                    "aten::mm",
                    "Operator" if old else "cpu_op",
                    t,
                    20.0,
                    4711,
                    **{"Input Dims": [[1, 2], [2, 3]], "External id": step},
                )
            )
            events.append(
                x(
                    "cudaLaunchKernel",
                    "Runtime" if old else "cuda_runtime",
                    t + 1,
                    5.0,
                    4711,
                    correlation=step,
                )
            )
        events.append(x(GEMM, kernel, t, 480.0, 7, correlation=step))
        events.append(x("Memset (Device)", "Memset" if old else "gpu_memset", t + 480, 20.0, 7))
        events.append(x(ALL_REDUCE, kernel, t + begin, 600.0 - begin, 20, **args))
        events.append(x("Memcpy HtoD (Pinned -> Device)", memcpy, t + 590, 60.0, 21))
    events.append(
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}}
    )
    events.append(
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": steps * STEP_US}
    )
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "device"}, {"id": 1, "name": "device"}],
    }
    head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": n_ranks}
    if not old:
        head["baseTimeNanoseconds"] = BASE
    return head | {"traceEvents": events, "traceName": f"rank{rank}.json"}


def job(n_ranks=4, **options):
    """rank -> document; clocks differ by 100 µs times the rank."""
    return {rank: kineto(rank, n_ranks, skew_us=100.0 * rank, **options) for rank in range(n_ranks)}


def tar(files, mode="w:gz"):
    """An archive of name -> bytes, as bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def job_tar(**options):
    """A .tar.gz of a job, as bytes."""
    return tar(
        {
            f"job/worker{rank}.pt.trace.json": json.dumps(document).encode()
            for rank, document in job(**options).items()
        }
    )


def flight(rank=0, n_ranks=2, skew_ns=0):
    """A dump of the flight recorder: two all_reduces, a send to the next rank or a receive, one collective that hangs."""
    entries = []
    for number in range(2):
        begin = BASE + number * 1_000_000 + skew_ns
        late = 400_000 if rank == 1 else 100_000
        entries.append(_entry(number, "nccl:all_reduce", number + 1, 0, begin, begin + late, begin + 500_000))
    pair = f"nccl:send {rank}->{rank + 1}" if rank == 0 else f"nccl:recv {rank}<-{rank - 1}"
    entries.append(
        _entry(
            2,
            pair,
            2,
            1,
            BASE + 3_000_000 + skew_ns,
            BASE + 3_100_000 + skew_ns,
            BASE + 3_200_000 + skew_ns,
            is_p2p=True,
        )
    )
    entries.append(
        _entry(3, "nccl:all_gather", 3, 1, BASE + 4_000_000 + skew_ns, BASE + 4_100_000 + skew_ns, None)
    )
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(n_ranks)))}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def _entry(number, name, seq, p2p, created, started, ended, is_p2p=False):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": p2p,
        "op_id": number,
        "profiling_name": name,
        "input_sizes": ((4, 250),),
        "input_dtypes": ["Float"],
        "output_sizes": ((4, 250),),
        "output_dtypes": ["Float"],
        "time_created_ns": created,
        "duration_ms": None,
        "state": "completed" if ended else "started",
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": ended,
        "retired": bool(ended),
        "timeout_ms": 600000,
        "is_p2p": is_p2p,
    }


def flight_pickle(rank=0, **options):
    """The dump as the pickle that torch writes by default."""
    return pickle.dumps(flight(rank, **options), protocol=2)


def zipped(document):
    return gzip.compress(json.dumps(document).encode(), mtime=0)
