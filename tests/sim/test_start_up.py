"""Start-up and memory at N ranks: through the published points, growth, ranges, bad input."""

from __future__ import annotations

import pytest

from ccl_lab.errors import UsageError
from ccl_lab.simulator.models import MEASURED_S, memory, start_up
from ccl_lab.simulator.models.start_up import MEASURED_BYTES, TOLERANCE, coefficients

POINTS = [(library, ranks, seconds) for library, points in MEASURED_S.items() for ranks, seconds in points.items()]


@pytest.mark.parametrize(("library", "ranks", "seconds"), POINTS)
def test_passes_through_the_published_points(library: str, ranks: int, seconds: float) -> None:
    said = start_up(ranks, library)
    assert said.seconds == pytest.approx(seconds) == pytest.approx(sum(said.parts.values()))
    assert said.low == pytest.approx((1 - TOLERANCE) * seconds) and said.high == pytest.approx((1 + TOLERANCE) * seconds)


@pytest.mark.parametrize("library", sorted(MEASURED_S))
def test_coefficients_are_physical_and_ranges_hold_the_prediction(library: str) -> None:
    assert min(coefficients(library).values()) >= 0
    before = 0.0
    for ranks in (1, 2, 1024, 8192, 16384, 32768, 98304, 131072):
        said = start_up(ranks, library)
        assert said.low <= said.seconds <= said.high and said.seconds > before
        before = said.seconds
    assert start_up(98304, library).high / start_up(98304, library).low > start_up(32768, library).high / start_up(32768, library).low


def test_range_is_that_of_straight_lines_where_only_two_points_bound_it() -> None:
    """The least at 98304 of the baseline is a line: high at 8K, low at 32K. The most has no linear term."""
    (n0, t0), (n1, t1) = sorted(MEASURED_S["baseline"].items())
    low, high = (1 - TOLERANCE), (1 + TOLERANCE)
    line = high * t0 + (98304 - n0) * (low * t1 - high * t0) / (n1 - n0)
    square = low * t0 + (98304**2 - n0**2) * (high * t1 - low * t0) / (n1**2 - n0**2)
    said = start_up(98304, "baseline")
    assert (said.low, said.high) == (pytest.approx(line), pytest.approx(square))


def test_the_baseline_is_slower_and_holds_more() -> None:
    for ranks in (8192, 32768, 98304):
        assert start_up(ranks, "baseline").low > start_up(ranks).high
        assert memory(ranks, "baseline")["total"] > memory(ranks)["total"]
    for library, points in MEASURED_BYTES.items():
        for ranks, total in points.items():
            assert memory(ranks, library)["total"] == pytest.approx(total)


def test_bad_input_is_named() -> None:
    with pytest.raises(UsageError, match="library .* is not in the model.*ncclx"):
        start_up(8, "nccl_x")
    with pytest.raises(UsageError, match="library .* is not in the model.*baseline"):
        memory(8, "basline")
    for ranks in (0, -1, 1.5, True, "8K"):
        with pytest.raises(UsageError, match="ranks"):
            start_up(ranks)  # type: ignore[arg-type]
