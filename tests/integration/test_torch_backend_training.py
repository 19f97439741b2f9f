"""What torch builds on a backend gives over ours what it gives over Gloo: DDP, FSDP, DTensor, functional collectives, checkpoints."""

from __future__ import annotations

import pytest

from .torch_ranks import TorchRanks

CASES = (
    "data_parallel",
    "data_parallel_with_hooks",
    "fully_sharded",
    "fully_sharded_the_old_way",
    "tensors_over_a_mesh",
    "meshes_of_several_dimensions",
    "functional_collectives",
    "checkpoints",
    "optimizer_in_shards",
    "random_calls_in_one_order",
    "unequal_models_are_found",
)


@pytest.fixture(scope="module", params=(2, 4), ids="{0} ranks".format)
def ranks(request):
    started = TorchRanks(request.param, "torch_training_cases.py")
    yield started
    assert started.close() == [0] * request.param


@pytest.mark.parametrize("case", CASES)
def test_it_is_equal_to_gloo(ranks: TorchRanks, case: str) -> None:
    ranks.run(case)
