"""Models of libraries that are not ours: how long NCCL and CTran take, and what builds on it.

Is: `predict` and its parameter sets. Is not: a simulation; every value says that it is a model's. Invariant: one parameter set per
platform, none per size.
"""

from .buffering import Buffering, buffering, window_bytes
from .graphs import replay
from .platforms import CTRAN_PLATFORMS, PLATFORMS, CtranPlatform, Platform
from .predict import Prediction, predict
from .start_up import MEASURED_S, StartUp, memory, start_up
from .workloads import (
    DEVICES,
    Device,
    Parallel,
    Step,
    Transformer,
    all_to_allv_us,
    decode_step,
    training_step,
)

__all__ = [
    "Buffering",
    "CTRAN_PLATFORMS",
    "DEVICES",
    "MEASURED_S",
    "PLATFORMS",
    "CtranPlatform",
    "Device",
    "Parallel",
    "Platform",
    "Prediction",
    "StartUp",
    "Step",
    "Transformer",
    "all_to_allv_us",
    "buffering",
    "decode_step",
    "memory",
    "predict",
    "replay",
    "start_up",
    "training_step",
    "window_bytes",
]
