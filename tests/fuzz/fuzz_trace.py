"""Feeds damaged files to the trace readers: a DecodeError or a trace, and nothing else.

    python tests/fuzz/fuzz_trace.py --inputs 1000000 --seed 1 --reader all

Is: the loop and its mutations, for the command line and for tests/unit/test_trace_fuzz.py. Is not: a
coverage-guided fuzzer. Half of the inputs are read without the checksum of the content, so that what lies
behind it is reached. With the checksum, what is accepted must be the trace that was damaged: damage is
found or did not matter. A crash or a hang of a minute ends the process with a traceback; seed and number
of the input are printed before.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import random
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "unit")]

from fuzz_codec import damaged  # noqa: E402
from trace_cases import random_trace, ring_trace  # noqa: E402

from ccl_lab.errors import CclError, DecodeError  # noqa: E402
from ccl_lab.trace import Trace  # noqa: E402
from ccl_lab.trace.files import decode  # noqa: E402

READERS = (".arrow", ".parquet", ".json", ".json.gz")
# shares of the inputs, so that a million takes minutes: Parquet and gzip cost five times as much as the others
SHARES = {".arrow": 0.5, ".json": 0.35, ".parquet": 0.1, ".json.gz": 0.05}
LENGTHS = [struct.pack("<q", n) for n in (-1, 2**31, 2**40, 2**62, -(2**63))]
_HANG_S, _ARM_EVERY = 60, 500


def seeds() -> list[Trace]:
    """Small traces that use every column."""
    return [random_trace(1, n=4), random_trace(2, n=2).replace(meta={}), ring_trace(2, 1, 1)[:3], Trace()]


def encoded(reader: str) -> list[bytes]:
    """The files of `seeds()`."""
    with tempfile.TemporaryDirectory() as folder:
        return [trace.save(Path(folder) / f"x{reader}").read_bytes() for trace in seeds()]


def inputs(reader: str, seed: int, count: int) -> Iterator[tuple[bytes, bool]]:
    """`count` pairs of (damaged file, whether to verify its checksum), the same for the same seed."""
    dice = random.Random(seed)
    originals = encoded(".json" if reader == ".json.gz" else reader)
    for _ in range(count):
        data = damaged(originals, dice)
        if dice.random() < 0.2 and len(data) > 16:
            at = dice.randrange(len(data) - 8)
            data = data[:at] + dice.choice(LENGTHS) + data[at + 8 :]
        if reader == ".json.gz":
            # damage inside the gzip, or to the gzip itself
            packed = gzip.compress(data, 1, mtime=0)
            data = packed if dice.random() < 0.5 else damaged([packed], dice)
        yield data, dice.random() < 0.5


def read(reader: str, data: bytes, verify: bool, originals: list[Trace]) -> Trace | None:
    """The trace, or None if it was refused as it should be; anything else is a bug and is raised."""
    try:
        trace = decode(data, reader, "fuzz", verify)
    except DecodeError as error:
        assert str(error).startswith("fuzz")
        return None
    if verify:
        assert trace in originals, "damage changed the trace and the checksum did not find it"
    elif len(data) % 16 == 0:
        # costs twenty times as much as reading
        repr(trace)
        try:
            trace.stats()
        except CclError:
            pass
    return trace


def fuzz(reader: str, seed: int, count: int, say: bool = False) -> tuple[int, int]:
    """(inputs read, inputs that were a trace after all)."""
    accepted, originals = 0, seeds()
    with warnings.catch_warnings():
        # numbers from damaged files overflow; they must not raise, what they say is not judged here
        warnings.simplefilter("ignore", RuntimeWarning)
        for i, (data, verify) in enumerate(inputs(reader, seed, count)):
            if say and i % _ARM_EVERY == 0:
                faulthandler.dump_traceback_later(_HANG_S, exit=True)
                if i % 50_000 == 0:
                    print(f"{reader} seed {seed}: input {i}", flush=True)
            try:
                accepted += read(reader, data, verify, originals) is not None
            except Exception as error:
                raise AssertionError(
                    f"{reader} input {i} of seed {seed} (verify={verify}): {type(error).__name__}: {error}"
                ) from error
    faulthandler.cancel_dump_traceback_later()
    return count, accepted


def run(count: int, seed: int, readers: tuple[str, ...] = READERS) -> None:
    """Fuzzes the readers with `count` inputs in all, in their shares; prints one line for each."""
    faulthandler.enable()
    whole = sum(SHARES[reader] for reader in readers)
    for reader in readers:
        begin = time.perf_counter()
        n, accepted = fuzz(reader, seed, round(count * SHARES[reader] / whole), say=True)
        took = time.perf_counter() - begin
        print(
            f"{n:,} {reader} inputs of seed {seed} in {took:.1f} s ({took / max(n, 1) * 1e6:.0f} µs each), "
            f"{accepted:,} were traces, none crashed",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", choices=("all", *READERS), default="all")
    given = parser.parse_args()
    run(given.inputs, given.seed, READERS if given.reader == "all" else (given.reader,))


if __name__ == "__main__":
    main()
