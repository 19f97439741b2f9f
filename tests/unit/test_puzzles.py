"""Puzzles accept the solution and say what is wrong with anything else."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ccl_lab.errors import UsageError
from ccl_lab.ir import Builder
from ccl_lab.puzzles import ring_all_gather


def solution(b: Builder, n: int) -> None:
    r = np.arange(n)
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    for s in range(n - 1):
        b.put(rank=r, peer=(r + 1) % n, src=b.output[(r - s) % n], dst=b.output[(r - s) % n])
        b.wait(rank=r, peer=(r - 1) % n)


def without_wait(b: Builder, n: int) -> None:
    r = np.arange(n)
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    for s in range(n - 1):
        b.put(rank=r, peer=(r + 1) % n, src=b.output[(r - s) % n], dst=b.output[(r - s) % n])


def without_copy(b: Builder, n: int) -> None:
    r = np.arange(n)
    for s in range(n - 1):
        b.put(rank=r, peer=(r + 1) % n, src=b.output[(r - s) % n], dst=b.output[(r - s) % n])
        b.wait(rank=r, peer=(r - 1) % n)


def all_to_everybody(b: Builder, n: int) -> None:
    r = np.arange(n)
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    for s in range(1, n):
        b.put(rank=r, peer=(r + s) % n, src=b.input[0], dst=b.output[r])
    for s in range(1, n):
        b.wait(rank=r, peer=(r - s) % n)


def test_solution_is_proved() -> None:
    verdict = ring_all_gather.check(solution)
    assert verdict, verdict
    assert verdict.schedule is not None and verdict.schedule.n_ranks == 8


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (without_wait, "with 2 ranks: .*Error"),
        (without_copy, "with 2 ranks: .*Error"),
        (all_to_everybody, "not its right neighbour"),
        (lambda b, n: b.put(rank=0), "your function raised TypeError"),
        (lambda b, n: None, "with 2 ranks"),
    ],
)
def test_wrong_answers_are_explained(answer, message: str) -> None:
    verdict = ring_all_gather.check(answer)
    assert not verdict
    assert re.search(message, verdict.message), verdict.message


def test_show_and_hints() -> None:
    assert "right neighbour" in repr(ring_all_gather.show())
    for shown in (ring_all_gather.show(), ring_all_gather.check(lambda b, n: None)):
        assert "<pre" in shown._repr_html_() and "word-break:normal" in shown._repr_html_(), "pictures keep their lines"
    assert "hint 1 of 4" in repr(ring_all_gather.hint())
    with pytest.raises(UsageError, match="hint 9 of ring_all_gather: there are 4"):
        ring_all_gather.hint(9)


def test_no_tail_takes_an_order_that_leaves_nothing_and_says_what_is_wrong_with_others():
    from ccl_lab.errors import UsageError
    from ccl_lab.puzzles import no_tail

    assert no_tail.check(lambda r, i, n: (r + 1 + i) % n)
    assert no_tail.check(lambda r, i, n: (r - 1 - i) % n)
    everybody_alike = no_tail.check(lambda r, i, n: i)
    assert not everybody_alike and "6 µs stay exposed" in everybody_alike.message
    assert "never slice 1" in no_tail.check(lambda r, i, n: 0).message
    assert "raised TypeError" in no_tail.check(lambda r: 0).message
    assert "[?]" in repr(no_tail.show()) and "hint 3 of 3" in repr(no_tail.hint(3))
    with pytest.raises(UsageError, match="there are 3"):
        no_tail.hint(4)
