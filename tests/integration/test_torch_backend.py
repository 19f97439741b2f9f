"""Every collective and message of torch over the backend, equal to Gloo's; with 2 and 4 ranks, and over sockets."""

from __future__ import annotations

import pytest

from .torch_ranks import TorchRanks

CASES = (
    "all_reduce_of_every_type_and_size",
    "bits_logic_averages_and_complex",
    "what_cannot_be_reduced_is_refused",
    "memory_with_gaps_and_views",
    "moving_collectives",
    "whole_in_place",
    "reductions_to_one_and_to_blocks",
    "uneven_lists",
    "all_to_all_even_and_uneven",
    "objects",
    "coalesced",
    "async_works_and_futures",
    "a_work_goes_on_after_a_wait_that_was_too_short",
    "messages",
    "messages_from_anyone",
    "a_message_that_does_not_fit",
    "groups_of_some_ranks",
    "sizes_that_do_not_fit_are_refused_before_they_start",
    "the_trace_shows_what_ran",
    "monitored_barrier_and_names",
)


@pytest.fixture(scope="module", params=(2, 4), ids="{0} ranks".format)
def ranks(request):
    started = TorchRanks(request.param, "torch_cases.py")
    yield started
    assert started.close() == [0] * request.param


@pytest.mark.parametrize("case", CASES)
def test_it_is_equal_to_gloo(ranks: TorchRanks, case: str) -> None:
    ranks.run(case)
