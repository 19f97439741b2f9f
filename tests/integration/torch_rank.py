"""A rank of the torch tests: joins Gloo and ccl_lab, then runs the cases it is told on its standard input.

Is: `python torch_rank.py RANK SIZE STORE CASES.py`; one JSON line in ({"case": name}), one out ({"error": text or None}).
Is not: a test. A case is `name(c)`, where c has rank, size, ours, gloo (groups) and both(f).
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib.util
import json
import os
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist

import ccl_lab.torch_backend  # noqa: F401 - registers the backend


class Context:
    """What a case gets."""

    def __init__(self, rank: int, size: int, ours: Any, gloo: Any, store: str) -> None:
        self.rank, self.size, self.ours, self.gloo, self.store = rank, size, ours, gloo, store

    def both(self, run: Any, *, tolerance: float = 0.0) -> Any:
        """run(group) over ours and over Gloo gives the same; returns ours. run returns tensors, or lists of them."""
        found, wanted = run(self.ours), run(self.gloo)
        self.same(found, wanted, tolerance)
        return found

    def same(self, found: Any, wanted: Any, tolerance: float = 0.0) -> None:
        if isinstance(wanted, (list, tuple)):
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                self.same(one, other, tolerance)
        elif isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert found == wanted, (found, wanted)


def main() -> None:
    rank, size, store, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is not an answer
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(160)  # where it hangs, if it does
    spec = importlib.util.spec_from_file_location("cases", path)
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    wait = datetime.timedelta(seconds=120)
    dist.init_process_group("ccl_lab", init_method=f"file://{store}", rank=rank, world_size=size, timeout=wait)
    context = Context(rank, size, dist.group.WORLD, dist.new_group(backend="gloo", timeout=wait), store)
    faulthandler.cancel_dump_traceback_later()
    for line in sys.stdin:
        faulthandler.dump_traceback_later(160)
        try:
            getattr(cases, json.loads(line)["case"])(context)
            error = None
        except BaseException:
            error = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"error": error}), file=out, flush=True)
    faulthandler.dump_traceback_later(15)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
