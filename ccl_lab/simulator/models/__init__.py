"""Models of libraries that are not ours: how long NCCL and CTran take, and what builds on it.

Is: `predict` and its parameter sets. Is not: a simulation; every value says that it is a model's. Invariant: one parameter set per
platform, none per size.
"""

from .platforms import CTRAN_PLATFORMS, PLATFORMS, CtranPlatform, Platform
from .predict import Prediction, predict
from .start_up import MEASURED_S, StartUp, memory, start_up

__all__ = [
    "CTRAN_PLATFORMS",
    "MEASURED_S",
    "PLATFORMS",
    "CtranPlatform",
    "Platform",
    "Prediction",
    "StartUp",
    "memory",
    "predict",
    "start_up",
]
