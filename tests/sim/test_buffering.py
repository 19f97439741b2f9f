"""The queue of one port under a window: the closed form against a fluid stepped in time, and the published size of the effect."""

from __future__ import annotations

import pytest

from ccl_lab.errors import UsageError
from ccl_lab.simulator.models.buffering import MEASURED, buffering, window_bytes


def stepped(senders: int, nbytes: float, window: float, rate: float, round_trip: float, step: float) -> float:
    """Peak of the queue in a fluid: what leaves the port is acknowledged half a round trip later, as it took half of one to come."""
    delay = round(round_trip / 2 / step)
    sent = acknowledged = queue = peak = 0.0
    on_way, back = [0.0] * delay, [0.0] * delay
    while acknowledged < nbytes * senders - 1e-6:
        allowed = max(0.0, min(window * senders - (sent - acknowledged), senders * rate * step, senders * nbytes - sent))
        sent += allowed
        on_way.append(allowed)
        queue += on_way.pop(0)
        leaves = min(queue, rate * step)
        queue -= leaves
        peak = max(peak, queue)
        back.append(leaves)
        acknowledged += back.pop(0)
    return peak


@pytest.mark.parametrize(
    ("senders", "nbytes", "window"),
    [(2, 100.0, 20.0), (8, 100.0, 20.0), (8, 100.0, 40.0), (4, 30.0, 25.0), (3, 50.0, 1e9), (1, 90.0, 20.0)],
)
def test_peak_is_that_of_a_fluid(senders: int, nbytes: float, window: float) -> None:
    """Bytes and bytes/us scaled: a port of 1 byte/us, a round trip of 20 us."""
    said = buffering(senders, int(nbytes), int(window), gbytes_per_s=1e-3, round_trip_us=20.0)
    assert stepped(senders, nbytes, window, 1.0, 20.0, 0.01) == pytest.approx(said.peak_bytes, rel=0.03, abs=0.3)


def test_the_effect_has_the_published_direction_and_size() -> None:
    """all_to_allv: 75 to 90 % less where a peer's message is 4 to 10 bandwidth-delay products, whatever the number of senders."""
    product = 50e3 * 20
    low, high = MEASURED["all_to_allv"]
    for senders in (2, 16, 127):
        assert buffering(senders, int(4 * product), None).reduction == pytest.approx(low)
        assert buffering(senders, int(10 * product), None).reduction == pytest.approx(high)
        assert buffering(senders, "8MiB", None).gbytes_per_s == 50


def test_a_wide_window_limits_nothing_and_a_narrow_one_the_rate() -> None:
    wide = window_bytes(16, "512KiB", 128)
    assert wide == 1 << 30 and buffering(8, "8MiB", wide).reduction == 0
    assert buffering(1, "8MiB", "256KiB").gbytes_per_s == pytest.approx(0.262144e6 / 20e3)
    assert buffering(1, "8MiB", None).peak_bytes == 0 == buffering(1, "8MiB", None).reduction


def test_bad_input_is_named() -> None:
    for arguments, more, words in (
        ((0, 8, None), {}, "senders 0"), ((2, 0, None), {}, "1 byte or more"), ((2, 8, None), {"round_trip_us": 0}, "above 0"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            buffering(*arguments, **more)
    with pytest.raises(UsageError, match="qps 0: expected a whole number"):
        window_bytes(0, 8, 8)
