"""Feeds damaged schedules to the readers: a DecodeError or a schedule, and nothing else.

    python tests/fuzz/fuzz_codec.py --inputs 1000000 --seed 1 --reader binary

Is: the loop and its mutations, for the command line and for the test of the same name. Is not: a coverage-guided fuzzer.
Half of the damaged binaries get a fresh checksum, so that what lies behind it is reached. Every schedule that is read must
be stable: encoded again and decoded it is the same; the verifier must reach a verdict on it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from ccl_lab import verify
from ccl_lab.errors import CclError, DecodeError
from ccl_lab.ir import Builder, Schedule

NASTY = (b"", b"\0", b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"{", b"[" * 64, b"1e999", b"NaN",
         b'"\\ud800"', b"-", b"9" * 30)


def seeds() -> list[Schedule]:
    """Small schedules that use every field of the format."""
    r = np.arange(3)
    b = Builder("all_reduce", 3, algorithm="all kinds", channels=2, parts=2, scratch_blocks=2)
    b.put(rank=r, peer=(r + 1) % 3, src=b.input[0], dst=b.scratch[0], signal=False)
    b.put(rank=r, peer=(r + 1) % 3, src=b.input[0:2], dst=b.scratch[2:4], channel=1)
    b.signal(rank=r, peer=(r + 1) % 3)
    b.wait(rank=r, peer=(r - 1) % 3)
    b.flush(rank=r)
    b.get(rank=r, peer=(r + 1) % 3, src=b.input[1], dst=b.output[1])
    b.reduce(rank=r, dst=b.output[0], srcs=[b.input[0], b.scratch[0], b.input[0].at((r + 1) % 3)])
    b.copy(rank=r, src=b.input[0], dst=b.output[0])
    b.compute(rank=r, arg=r)
    v = Builder("all_to_allv", 2, algorithm="v", in_place=True, scratch_blocks=1, counts=np.array([[1, 2], [2, 3]]),
                scratch_pairs=np.array([[[0, 1]], [[1, 0]]]))
    v.put(rank=[0, 1], peer=[1, 0], src=v.input[[1, 0]], dst=v.scratch[0])
    v.wait(rank=[0, 1], peer=[1, 0])
    v.copy(rank=[0, 1], src=v.scratch[0], dst=v.output[[1, 0]])
    empty = Builder("barrier", 1, algorithm="")
    return [b.build(nbytes=4096, dtype="bfloat16", redop="avg", reasons=("because", "ünïcode")), v.build(), empty.build()]


def damaged(originals: list[bytes], dice: random.Random) -> bytes:
    """One of `originals` with 1 to 4 bytes, ranges or lengths changed."""
    data = bytearray(dice.choice(originals))
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        at, way = dice.randrange(len(data) + 1), dice.randrange(7)
        if way == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif way == 1 and at < len(data):
            data[at] = dice.randrange(256)
        elif way == 2:
            del data[at:]
        elif way == 3:
            del data[at : at + dice.choice((1, 2, 4, 16, 100))]
        elif way == 4:
            data[at:at] = dice.choice(NASTY)
        elif way == 5:
            piece = dice.choice(NASTY)
            data[at : at + len(piece)] = piece
        else:
            other = dice.choice(originals)
            begin = dice.randrange(len(other))
            data[at : at + 16] = other[begin : begin + dice.choice((4, 16, 64))]
    return bytes(data)


def inputs(reader: str, seed: int, count: int) -> Iterator[bytes]:
    """`count` damaged inputs, the same for the same seed."""
    dice = random.Random(seed)
    originals = [schedule.encode() if reader == "binary" else schedule.text().encode() for schedule in seeds()]
    for _ in range(count):
        data = damaged(originals, dice)
        if reader == "binary" and dice.random() < 0.5:
            if len(data) >= 24 and dice.random() < 0.5:
                # the head promises what is there, so that header and columns are reached
                head = bytearray(data[:24])
                struct.pack_into("<8sHH", head, 0, *struct.unpack_from("<8sHH", originals[0]))
                data = bytes(head) + data[24:]
            data = data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))
        yield data


def read(reader: str, data: bytes) -> Schedule | None:
    """The schedule, or None if it was refused as it should be; anything else is a bug and is raised."""
    decode: Callable[[bytes], Schedule] = Schedule.decode
    try:
        schedule = decode(data) if reader == "binary" else Schedule.from_text(data.decode("utf-8", "replace"))
    except DecodeError as error:
        assert str(error)
        return None
    again = decode(schedule.encode())
    assert again == schedule and again.digest == schedule.digest
    assert schedule.text() and repr(schedule)
    with contextlib.suppress(CclError):
        verify(schedule)
    return schedule


def fuzz(reader: str, seed: int, count: int) -> tuple[int, int]:
    """(inputs read, inputs that were a schedule after all)."""
    accepted = 0
    for i, data in enumerate(inputs(reader, seed, count)):
        try:
            accepted += read(reader, data) is not None
        except Exception as error:
            raise AssertionError(f"{reader} input {i} of seed {seed}: {type(error).__name__}: {error}; data {data[:200]!r}") from error
    return count, accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", choices=("binary", "text"), default="binary")
    given = parser.parse_args()
    begin = time.perf_counter()
    count, accepted = fuzz(given.reader, given.seed, given.inputs)
    took = time.perf_counter() - begin
    print(f"{count:,} {given.reader} inputs in {took:.1f} s ({count / took:,.0f}/s), {accepted:,} were schedules, none crashed")


if __name__ == "__main__":
    main()
