"""The model of a day with failing NICs."""

from __future__ import annotations

import pytest

from ccl_lab.errors import UsageError
from ccl_lab.planner.goodput import NIC_MTBF_HOURS, Answer, goodput


def test_what_is_lost_adds_up() -> None:
    for cost, slower in ((0.0, 0.0), (600.0, 0.0), (0.0, 0.05), (600.0, 0.05)):
        found = goodput(Answer("x", cost, lambda lost, slower=slower: slower if lost else 0.0), nics=131072, seed=3)
        assert found.failures > 0 and found.share * 86400 + found.waited_s + found.slowed_s == pytest.approx(86400)
        assert found.waited_s <= cost * found.failures + 1e-6 and (found.slowed_s > 1) == (slower > 0)


def test_failures_come_at_the_rate_asked_for_and_dearer_answers_lose_more() -> None:
    days = [goodput(Answer("x", 60, lambda lost: 0.0), nics=131072, seed=seed) for seed in range(200)]
    assert sum(day.failures for day in days) / 200 == pytest.approx(131072 * 24 / NIC_MTBF_HOURS, rel=0.1)
    shares = [goodput(Answer("x", cost, lambda lost: 0.01 * lost), nics=131072, seed=1).share for cost in (0, 10, 1000)]
    assert shares == sorted(shares, reverse=True) and shares[0] < 1


@pytest.mark.parametrize("wrong", [{"nics": 0}, {"hours": -1}, {"mtbf_hours": 0}, {"repair_hours": 0}])
def test_impossible_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        goodput(Answer("x", 0.0, lambda lost: 0.0), **{"nics": 8, **wrong})  # type: ignore[arg-type]
