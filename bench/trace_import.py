"""How long the import of a job of a million events takes, and how much memory, beside json.load of the same file.

Is: a measurement in fresh processes, in turns, on a file of our own making as torch.profiler writes it: a third host
operations, a third launches, a third kernels (and the same with kernels alone). Is not: a test (nothing is asserted).

    python -m bench.trace_import
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EVENTS, TURNS = 1_000_000, 3

_HOST = """  {
    "ph": "X", "cat": "cpu_op", "name": "aten::add_", "pid": 4711, "tid": 4711,
    "ts": %(ts).3f, "dur": 11.235,
    "args": {
      "External id": %(n)d,"Record function id": 0, "Concrete Inputs": ["", "", "1"], "Input type": ["float", "float", "Scalar"], "Input Strides": [[1], [1], []], "Input Dims": [[1000], [1000], []], "Ev Idx": %(n)d
    }
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711,
    "ts": %(ts).3f, "dur": 4.235,
    "args": {
      "External id": %(n)d, "cbid": 211, "correlation": %(n)d
    }
  },
"""  # noqa: E501
_KERNEL = """  {
    "ph": "X", "cat": "kernel", "name": "%(name)s", "pid": 0, "tid": %(stream)d,
    "ts": %(ts).3f, "dur": 15.235,
    "args": {
      "External id": %(n)d, "queued": 0, "device": 0, "context": 1, "stream": %(stream)d, "correlation": %(n)d,
      "registers per thread": 16, "shared memory": 0, "blocks per SM": 0.018519, "warps per SM": 0.037037,
      "grid": [2, 1, 1], "block": [64, 1, 1], "est. achieved occupancy %%": 0%(more)s
    }
  },
"""
_ARGUMENTS = """, "Collective name": "allreduce", "In msg nelems": 6637568, "Out msg nelems": 6637568, "Group size": 8, "dtype": "Float",
      "In split size": "[]", "Out split size": "[]", "Process Group Name": "0", "Process Group Description": "default_pg",
      "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Seq": %d"""
_NAMES = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, "
    "at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)",
    "ampere_sgemm_128x64_nn",
]
_COMM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

# what a fresh process does: [seconds, peak resident bytes beyond those of the empty interpreter, what came out]
_IMPORT = """
import resource, sys, time
from ccl_lab.trace import Trace
import ccl_lab.trace.importers.sources, ccl_lab.trace.exposed
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin, cpu = time.perf_counter(), time.process_time()
trace = Trace.load(sys.argv[1])
took, cpu = time.perf_counter() - begin, time.process_time() - cpu
begin = time.perf_counter()
trace.partition()
print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, len(trace), time.perf_counter() - begin, cpu)
"""
_JSON = """
import json, resource, sys, time
begin, cpu = time.perf_counter(), time.process_time()
with open(sys.argv[1]) as file:
    found = json.load(file)
took, cpu = time.perf_counter() - begin, time.process_time() - cpu
print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, len(found["traceEvents"]), 0, cpu)
"""


def write(path: Path, events: int, host: bool) -> None:
    """A rank's file of so many events."""
    head = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
        "baseTimeNanoseconds": 1_711_964_646_000_000_000,
    }
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ',\n"traceEvents": [\n')
        for n in range(events // 3 if host else events):
            comm = n % 40 == 0
            values = {
                "n": n,
                "ts": 4_458_677_009_853.422 + 20.731 * n,
                "stream": 40 if comm else 7,
                "name": _COMM if comm else _NAMES[n % 2],
                "more": _ARGUMENTS % n if comm else "",
            }
            file.write((_HOST % values if host else "") + _KERNEL % values)
        file.write(
            '  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 0}\n  ],\n  "traceName": "x"\n}\n'
        )


def _once(code: str, path: Path) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def measure(events: int, host: bool, turns: int) -> dict[str, Any]:
    """Both, in turns; medians, and the median of the ratios of neighbours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        write(path, events, host)
        size = path.stat().st_size
        ours, theirs = [], []
        for _ in range(turns):
            ours.append(_once(_IMPORT, path))
            theirs.append(_once(_JSON, path))
    return {
        "events": events,
        "file_bytes": size,
        "spans": int(ours[0][2]),
        "import_s": statistics.median(row[0] for row in ours),
        "import_cpu_s": statistics.median(row[4] for row in ours),
        "json_load_cpu_s": statistics.median(row[4] for row in theirs),
        "partition_s": statistics.median(row[3] for row in ours),
        "json_load_s": statistics.median(row[0] for row in theirs),
        "import_over_json_load": statistics.median(a[0] / b[0] for a, b in zip(ours, theirs, strict=True)),
        "import_peak_bytes": max(row[1] for row in ours),
        "json_load_peak_bytes": max(row[1] for row in theirs),
    }


def _words(case: dict[str, Any]) -> str:
    return (
        f"{case['import_s']:.2f} s ({case['import_cpu_s']:.2f} s of a core) and {case['import_peak_bytes'] / 2**20:.0f} MiB, "
        f"{case['import_over_json_load']:.2f} of json.load's time ({case['json_load_peak_bytes'] / 2**20:.0f} MiB)"
    )


def run(events: int = EVENTS, turns: int = TURNS) -> dict[str, Any]:
    """The record: a job with its host operations, and kernels alone."""
    cases = {"with_host": measure(events, True, turns), "kernels_only": measure(events, False, turns)}
    first, second = cases.values()
    summary = f"{events:,} events: {_words(first)}; kernels alone: {_words(second)}"
    return {"summary": summary, "turns": turns, **cases}


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
