"""Training and decode steps: how computation and predicted collectives add up.

Is: the usual accounting of a transformer under tensor, sequence, pipeline, data, sharded and expert parallelism, each collective
timed by `predict` where its group lies. Is not: a simulation of streams: overlap is a statement (what hides under what), not a
schedule; for schedules see ccl_lab.overlap. Invariants: `parts` adds up to the step; ranks of a group are a stride apart, tensor
innermost, then expert inside data, then pipeline.

    step = compute + tensor + expert + (p - 1) / m of that as bubble + transfers between stages + what of data parallelism nothing hides
    forward and backward of a layer: 2 and 4 flops per parameter and token, attention beside; roofline: max(flops / rate, bytes / memory)
"""

from __future__ import annotations

import dataclasses
from typing import Union

from ...arguments import amount, instance, named, whole
from ...errors import UsageError
from .platforms import Platform, find
from .predict import predict

SHARDING = ("none", "fsdp", "hsdp")


@dataclasses.dataclass(frozen=True)
class Device:
    """What one accelerator computes: tflops (dense, bfloat16, datasheet), the share of it that matmuls reach, memory_gbytes_per_s."""

    tflops: float
    share: float
    memory_gbytes_per_s: float

    def seconds(self, flops: float, nbytes: float) -> float:
        """The roofline: as long as the slower of arithmetic and memory. Williams, Waterman, Patterson 2009."""
        return max(flops / (self.tflops * 1e12 * self.share), nbytes / (self.memory_gbytes_per_s * 1e9))


DEVICES = {
    "a100": Device(312, 0.6, 2000),
    "h100": Device(989, 0.5, 3350),
    "h200": Device(989, 0.5, 4800),
    "b200": Device(2250, 0.5, 8000),
    "gb200": Device(2450, 0.5, 8000),
}
"""Peaks from NVIDIA's datasheets; shares are assumptions (large matmuls reach 50 to 70 %)."""


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A decoder: layers, hidden, feed_forward (gated: three matrices), key_value_share of the heads, vocabulary; experts, active of
    them a token."""

    layers: int
    hidden: int
    feed_forward: int
    vocabulary: int = 128_000
    key_value_share: float = 1.0
    experts: int = 1
    active: int = 1

    @property
    def attention_parameters(self) -> float:
        """Of one layer."""
        return 2 * self.hidden**2 * (1 + self.key_value_share)

    @property
    def expert_parameters(self) -> float:
        """Of one feed-forward of a layer."""
        return 3.0 * self.hidden * self.feed_forward

    @property
    def parameters(self) -> float:
        """Of all layers and experts, with embedding and head."""
        return self.layers * (self.attention_parameters + self.experts * self.expert_parameters) + 2 * self.vocabulary * self.hidden

    def layer_flops(self, tokens: float, sequence: int) -> float:
        """Forward of one layer: 2 per active parameter and token, and causal attention."""
        return 2 * tokens * (self.attention_parameters + self.active * self.expert_parameters) + 2 * tokens * sequence * self.hidden


@dataclasses.dataclass(frozen=True)
class Parallel:
    """How a job is split: tensor, pipeline, data, expert (inside data) ranks; sequence: activations split over tensor ranks, too.

    sharding: "none" (all_reduce of gradients), "fsdp" (over all data ranks) or "hsdp" (inside `shards`, gradients summed among copies).
    microbatches of a rank's batch in a step (1F1B).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    sequence: bool = True
    sharding: str = "none"
    shards: int = 0
    microbatches: int = 1

    @property
    def ranks(self) -> int:
        """Of the whole job."""
        return self.tensor * self.pipeline * self.data


@dataclasses.dataclass(frozen=True)
class Step:
    """seconds; parts: seconds by cause, which add up; whole: all communication, hidden or not, by cause; label: always "model"."""

    seconds: float
    parts: dict[str, float]
    whole: dict[str, float]
    label: str = "model"

    @property
    def exposed(self) -> float:
        """Share of the step in which nothing is computed."""
        return 1 - self.parts["compute"] / self.seconds


class _Groups:
    """Times of collectives in groups of `size` ranks that lie `stride` apart."""

    def __init__(self, platform: Union[str, Platform]) -> None:
        self.platform = find(platform)[0]

    def seconds(self, op: str, nbytes: float, size: int, stride: int) -> float:
        """0 for a group of one, or for nothing to move."""
        if size == 1 or nbytes < 1:
            return 0.0
        together = max(1, min(size, self.platform.gpus_per_node // stride))
        nodes = -(-size // together)
        while size % nodes:  # equal nodes: fewer ranks on each
            nodes += 1
        return predict(op, self.platform, nbytes, nodes=nodes, gpus=size).time_us / 1e6


def training_step(
    model: Transformer,
    parallel: Parallel,
    platform: Union[str, Platform],
    *,
    sequence: int,
    batch: int,
    device: Union[str, Device] = "h100",
    layer_seconds: float | None = None,
    item_bytes: int = 2,
) -> Step:
    """One training step: `batch` sequences of `sequence` tokens on each data rank.

    platform: as in `predict`. device: for the roofline, a name of DEVICES or a Device. layer_seconds: forward of one layer for one
    microbatch on one rank where it was measured (backward: twice that); replaces the roofline. item_bytes: of an activation and a
    gradient.

    Returns a Step with parts compute, tensor, expert, bubble, pipeline, data. Gradients and shards hide under the computation of
    the layers next to them; the first gather and the last scatter do not. Raises UsageError where the split does not fit.
    Sources: Megatron-LM (arXiv 2104.04473) for tensor and pipeline, FSDP (arXiv 2304.11277), GShard (arXiv 2006.16668) for experts.

        >>> training_step(Transformer(32, 4096, 14336), Parallel(data=8), "h100", sequence=8192, batch=1).seconds > 0
        True
    """
    device = _device(device)
    batch, sequence = _checked(model, parallel, batch, sequence)
    groups = _Groups(platform)
    layers, micro = model.layers // parallel.pipeline, parallel.microbatches
    tokens = batch * sequence / micro
    if layer_seconds is None:
        weights = (model.attention_parameters + max(1, model.experts // parallel.expert) * model.expert_parameters) / parallel.tensor
        layer_seconds = device.seconds(model.layer_flops(tokens, sequence) / parallel.tensor, weights * item_bytes)
    activations = tokens * model.hidden * item_bytes
    compute = 3 * layer_seconds * layers * micro
    tensor = _tensor(groups, parallel, activations) * layers * micro
    expert = 0.0
    if model.experts > 1:
        routed = activations * model.active / parallel.tensor
        expert = 4 * groups.seconds("all_to_all", routed, parallel.expert, parallel.tensor) * layers * micro
    hop = groups.seconds("send_recv", activations / parallel.tensor, 2 if parallel.pipeline > 1 else 1, parallel.tensor * parallel.data)
    bubble = (compute + tensor + expert) * (parallel.pipeline - 1) / micro
    whole, exposed = _data(groups, model, parallel, layers, item_bytes, layer_seconds * micro)
    transfers = 2 * hop * (parallel.pipeline - 1)
    parts = {"compute": compute, "tensor": tensor, "expert": expert, "bubble": bubble, "pipeline": transfers, "data": exposed}
    return Step(sum(parts.values()), parts, {"tensor": tensor, "expert": expert, "pipeline": transfers, "data": whole})


def _tensor(groups: _Groups, parallel: Parallel, activations: float) -> float:
    """A layer, forward and backward: four all_reduces, or with sequence parallelism four pairs of all_gather and reduce_scatter."""
    if parallel.sequence:
        pair = sum(groups.seconds(op, activations, parallel.tensor, 1) for op in ("all_gather", "reduce_scatter"))
        return 4 * pair
    return 4 * groups.seconds("all_reduce", activations, parallel.tensor, 1)


def _data(groups: _Groups, model: Transformer, parallel: Parallel, layers: int, item_bytes: int, forward: float) -> tuple[float, float]:
    """(all, exposed) seconds of data parallelism; `forward`: a layer's computation in the step, whose backward takes twice that.

    Experts are reduced among the data ranks that hold the same ones.
    """
    dense = model.attention_parameters / parallel.tensor * item_bytes
    sparse = model.expert_parameters * model.experts / parallel.expert / parallel.tensor * item_bytes
    copies = ((dense, parallel.data, parallel.tensor), (sparse, parallel.data // parallel.expert, parallel.tensor * parallel.expert))
    if parallel.sharding == "none":
        layer = sum(groups.seconds("all_reduce", *each) for each in copies)
        return layers * layer, (layers - 1) * max(0.0, layer - 2 * forward) + layer
    inside = parallel.shards if parallel.sharding == "hsdp" else parallel.data
    gather = scatter = among = 0.0
    for nbytes, ranks, stride in copies:
        shards = min(inside, ranks)
        gather += groups.seconds("all_gather", nbytes, shards, stride)
        scatter += groups.seconds("reduce_scatter", nbytes, shards, stride)
        among += groups.seconds("all_reduce", nbytes / shards, ranks // shards, stride * shards)
    hidden = (layers - 1) * (max(0.0, gather - forward) + max(0.0, gather + scatter + among - 2 * forward))
    return layers * (2 * gather + scatter + among), hidden + gather + scatter + among


def _device(device: Union[str, Device]) -> Device:
    if isinstance(device, Device):
        return device
    return DEVICES[named(device, "device", DEVICES, verdict="is unknown, and no Device")]


def _checked(model: Transformer, parallel: Parallel, batch: int, sequence: int) -> tuple[int, int]:
    """Batch and sequence, of a model that can be spread like that; or UsageError."""
    instance(model, "model", Transformer, "a Transformer")
    instance(parallel, "parallel", Parallel, "a Parallel")
    for name in ("tensor", "pipeline", "data", "expert", "microbatches"):
        whole(getattr(parallel, name), name, 1)
    for name, value in (("layers", model.layers), ("experts", model.experts)):
        whole(value, name, 1)
    named(parallel.sharding, "sharding", SHARDING)
    if parallel.sharding == "hsdp" and (parallel.shards < 1 or parallel.data // parallel.expert % parallel.shards):
        raise UsageError(f"hsdp with shards {parallel.shards}: expected a number that divides {parallel.data} data ranks / "
                         f"{parallel.expert} expert ranks.")
    for what, total, part in (("layers", model.layers, parallel.pipeline), ("data ranks", parallel.data, parallel.expert),
                              ("experts", model.experts, parallel.expert)):  # fmt: skip
        if total % part:
            raise UsageError(f"{total} {what} over {part}: expected a multiple.")
    return whole(batch, "batch", 1), whole(sequence, "sequence", 1)


# -- all_to_allv and decode

CONTROL_US = {"handshake": 1.3, "persistent": 0.3}
"""T_c of a peer. handshake: at 8 MB among 128 GPUs half of the time is handshake (arXiv 2510.20171), over 400 Gb/s; persistent:
handles were exchanged once, a put is posted (assumption, as ctran.POST_US)."""


def all_to_allv_us(ranks: int, nbytes: float, gbytes_per_s: float = 48.5, control: str = "handshake") -> dict[str, float]:
    """{"control", "bandwidth", "total"} us of an all_to_allv over NICs: T = T_c (N - 1) + S / BW.

    ranks: N; nbytes: S, what a rank sends to others; gbytes_per_s: of its NICs; control: "handshake" each time, or "persistent".
    Raises UsageError. Source: arXiv 2510.20171, AllToAllv at small sizes.
    """
    ranks = whole(ranks, "ranks", 1)
    named(control, "control", CONTROL_US)
    nbytes = amount(nbytes, "nbytes")
    gbytes_per_s = amount(gbytes_per_s, "gbytes_per_s", above=True)
    found = {"control": CONTROL_US[control] * (ranks - 1), "bandwidth": nbytes / gbytes_per_s / 1e3}
    return {**found, "total": sum(found.values())}


def decode_step(
    model: Transformer,
    *,
    ranks: int,
    batch: int,
    context: int,
    device: Union[str, Device] = "h100",
    control: str = "handshake",
    gbytes_per_s: float = 48.5,
    item_bytes: int = 2,
) -> Step:
    """One token for each of `batch` sequences a rank, experts spread over `ranks`, all_to_allv twice a layer.

    context: tokens in each sequence's cache. A layer reads the weights that this rank holds of its active experts and its cache: at
    decode memory rules, not arithmetic. Returns a Step with parts compute, control, bandwidth. Raises UsageError.
    """
    device = _device(device)
    instance(model, "model", Transformer, "a Transformer")
    ranks, batch, context = (whole(value, name, 1) for name, value in (("ranks", ranks), ("batch", batch), ("context", context)))
    if model.experts % ranks and ranks % model.experts:
        raise UsageError(f"{model.experts} experts over {ranks} ranks: expected a multiple, one way or the other.")
    held = min(max(1, model.experts // ranks), batch * ranks * model.active)
    weights = (model.attention_parameters + held * model.expert_parameters) * item_bytes
    cache = 2 * batch * context * model.hidden * model.key_value_share * item_bytes
    compute = device.seconds(model.layer_flops(batch, context), weights + cache) * model.layers
    sent = batch * min(model.active, ranks) * model.hidden * item_bytes * (ranks - 1) / ranks
    each = all_to_allv_us(ranks, sent, gbytes_per_s, control)
    parts = {"compute": compute, **{name: 2 * model.layers * each[name] / 1e6 for name in ("control", "bandwidth")}}
    return Step(sum(parts.values()), parts, {"all_to_allv": parts["control"] + parts["bandwidth"]})
