"""Feeds damaged files to every reader of foreign bytes: `python -m tests.fuzz --inputs 1000000 --seed 1`.

Half of the inputs go to the schedule readers, a quarter each to the readers of our traces and to the importers of
others'. The seed and the number of the input are printed, so that a finding can be replayed with fuzz_codec.py,
fuzz_trace.py or fuzz_import.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fuzz_codec  # noqa: E402
import fuzz_import  # noqa: E402
import fuzz_trace  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for reader, share in (("binary", 0.35), ("text", 0.15)):
        begin = time.perf_counter()
        n, accepted = fuzz_codec.fuzz(reader, given.seed, round(given.inputs * share))
        took = time.perf_counter() - begin
        print(
            f"{n:,} {reader} schedules of seed {given.seed} in {took:.1f} s ({took / max(n, 1) * 1e6:.0f} µs each), "
            f"{accepted:,} were schedules, none crashed",
            flush=True,
        )
    fuzz_trace.run(given.inputs // 4, given.seed)
    fuzz_import.run(given.inputs // 4, given.seed, list(fuzz_import.READERS))


if __name__ == "__main__":
    main()
