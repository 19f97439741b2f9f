"""Feeds damaged files of other tools to the importers: a DecodeError or a trace, and nothing else.

    python tests/fuzz/fuzz_import.py --inputs 1000000 --seed 1 --reader all

Is: the loop and its mutations, for the command line and for tests/fuzz/test_fuzz_import.py. Is not: a coverage-guided fuzzer.
Half of the JSON inputs are damaged as values (a member of another type, missing, doubled, far too large), half as
bytes. A crash or a hang of a minute ends the process with a traceback; seed and number of the input are printed before.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import json
import pickle
import random
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "unit")]

from foreign_cases import flight, job_tar, kineto, tar  # noqa: E402
from fuzz_codec import damaged  # noqa: E402
from trace_cases import ring_trace  # noqa: E402

from ccl_lab.errors import CclError, DecodeError  # noqa: E402
from ccl_lab.trace import Trace  # noqa: E402
from ccl_lab.trace.export.chakra import encode_ranks  # noqa: E402
from ccl_lab.trace.importers.sources import read_bytes  # noqa: E402

READERS = {
    "kineto": "x.json",
    "kineto.gz": "x.json.gz",
    "tar": "x.tar.gz",
    "flight": "x.json",
    "pickle": "dump",
    "chakra": "x.et",
}
SHARES = {"kineto": 0.35, "kineto.gz": 0.1, "tar": 0.05, "flight": 0.15, "pickle": 0.15, "chakra": 0.2}
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**400,
    1.5,
    -0.0,
    1e308,
    "",
    "1",
    "\x00",
    [],
    {},
    [[]],
    {"a": 1},
    "[0, 1",
    [0, 1],
    "nccl",
]
CODE = [
    b"cos\nsystem\n(S'true'\ntR",
    b"\x8c\x02os\x8c\x06system\x93",
    b"R",
    b"b",
    b"\x81",
    b"\x82\x01",
    b"P1\n",
    b"Q",
    b"iA\nb\n",
]
_HANG_S, _ARM_EVERY = 60, 200


def documents(reader: str) -> list[Any]:
    """Small files of a format, before they become bytes."""
    if reader == "flight" or reader == "pickle":
        return [flight(0), flight(1)]
    return [kineto(steps=1), kineto(rank=2, steps=1, old=True), kineto(steps=1, arguments=False, host=False)]


def whole(reader: str) -> list[bytes]:
    """Undamaged files."""
    if reader == "chakra":
        return list(encode_ranks(ring_trace(2, 1, 1)).values())
    if reader == "tar":
        return [job_tar(steps=1), tar({"rank0.json": json.dumps(kineto(steps=1)).encode()}, "w")]
    if reader == "pickle":
        return [pickle.dumps(value, protocol) for value in documents(reader) for protocol in (2, 4)]
    return [json.dumps(value, indent=dent).encode() for value in documents(reader) for dent in (None, 1)]


def altered(value: Any, dice: random.Random) -> Any:
    """The value with one member changed somewhere inside."""
    place, path = value, []
    while isinstance(place, (dict, list)) and place and (not path or dice.random() < 0.85):
        key = dice.choice(list(place)) if isinstance(place, dict) else dice.randrange(len(place))
        path.append((place, key))
        place = place[key]
    inside, key = path[-1]
    if dice.random() < 0.2:
        del inside[key]
    elif dice.random() < 0.1 and isinstance(inside, list):
        inside.append(place)
    else:
        inside[key] = dice.choice(ODD)
    return value


def inputs(reader: str, seed: int, count: int) -> Iterator[bytes]:
    """`count` damaged files, the same for the same seed."""
    dice = random.Random(seed)
    base = "kineto" if reader == "kineto.gz" else reader
    originals = whole(base)
    texts = [json.dumps(value) for value in documents(base)] if base in ("kineto", "flight") else []
    plain = [pickle.dumps(value, 2) for value in documents(base)] if base == "pickle" else []
    for _ in range(count):
        if texts and dice.random() < 0.5:
            data = json.dumps(altered(json.loads(dice.choice(texts)), dice)).encode()
        elif plain and dice.random() < 0.3:
            data = pickle.dumps(altered(pickle.loads(dice.choice(plain)), dice), dice.choice((2, 4)))
        else:
            data = damaged(originals, dice)
        if base == "pickle" and dice.random() < 0.3:
            at = dice.randrange(len(data) + 1)
            data = data[:at] + dice.choice(CODE) + data[at:]
        if reader == "kineto.gz":
            packed = gzip.compress(data, 1, mtime=0)
            data = packed if dice.random() < 0.5 else damaged([packed], dice)
        yield data


def read(reader: str, data: bytes, recover: bool) -> Trace | None:
    """The trace, or None if it was refused as it should be; anything else is a bug and is raised."""
    name = f"fuzz/{READERS[reader]}"
    try:
        trace = read_bytes(data, name, recover=recover)
    except DecodeError as error:
        assert str(error).startswith("fuzz"), str(error)
        assert len(str(error)) < 2000
        return None
    if len(data) % 8 == 0:
        exposure = trace.exposure()
        ranks = exposure.ranks
        assert (
            ranks["total_ns"]
            == ranks["compute_ns"] + ranks["exposed_comm_ns"] + ranks["exposed_memcpy_ns"] + ranks["idle_ns"]
        ).all()
        repr(exposure), repr(trace.stragglers()), json.dumps(trace.meta)
        try:
            trace.stats()
        except CclError:
            pass
    return trace


def fuzz(reader: str, seed: int, count: int, say: bool = False) -> tuple[int, int]:
    """(inputs read, inputs that were a trace after all)."""
    accepted = 0
    with warnings.catch_warnings():
        # numbers from damaged files overflow; they must not raise, what they say is not judged here
        warnings.simplefilter("ignore", RuntimeWarning)
        for i, data in enumerate(inputs(reader, seed, count)):
            if say and i % _ARM_EVERY == 0:
                faulthandler.dump_traceback_later(_HANG_S, exit=True)
                if i % 50_000 == 0:
                    print(f"{reader} seed {seed}: input {i}", flush=True)
            try:
                accepted += read(reader, data, recover=i % 3 == 0) is not None
            except Exception as error:
                raise AssertionError(
                    f"{reader} input {i} of seed {seed}: {type(error).__name__}: {error}"
                ) from error
    faulthandler.cancel_dump_traceback_later()
    return count, accepted


def run(count: int, seed: int, readers: list[str]) -> None:
    """Fuzzes the readers with `count` inputs in all, in their shares; prints one line for each."""
    faulthandler.enable()
    share = sum(SHARES[reader] for reader in readers)
    for reader in readers:
        begin = time.perf_counter()
        n, accepted = fuzz(reader, seed, round(count * SHARES[reader] / share), say=True)
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
    run(given.inputs, given.seed, list(READERS) if given.reader == "all" else [given.reader])


if __name__ == "__main__":
    main()
