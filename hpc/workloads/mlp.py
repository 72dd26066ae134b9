"""A tiny perceptron for trying things out, in numbers that every framework's version takes: layers, values, samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpc.model.options import data_source
from hpc.model.spec import RunSpec
from hpc.workloads import workload_options
from hpc.workloads.parts import random_samples, training_flops
from hpc.workloads.schedule import Schedule

FEATURES, CLASSES = 64, 10
"""Of the synthetic samples."""
LEARNING_RATE, MOMENTUM = 0.1, 0.9
SCHEDULE, PEAK = Schedule(warmup_epochs=0), 0.03
"""Of whole trainings: on scikit-learn's digits 0.1 breaks off again what it has reached."""

Array = npt.NDArray[np.float32]


def initial_values(run: RunSpec) -> list[tuple[Array, Array]]:
    """Weight [outputs, inputs] and bias [outputs] of each layer, uniform in ±1/√inputs, from the run's seed.

    Options `width` and `depth` size the hidden layers.
    """
    random = np.random.default_rng(run.seed)
    layers = []
    for inputs, outputs in _sizes(run):
        limit = inputs**-0.5
        weight = random.uniform(-limit, limit, (outputs, inputs)).astype(np.float32)
        layers.append((weight, random.uniform(-limit, limit, outputs).astype(np.float32)))
    return layers


def _sizes(run: RunSpec) -> Iterator[tuple[int, int]]:
    """Inputs and outputs of each layer."""
    options = workload_options(run)
    return pairwise([features(run), *[int(options["width"])] * int(options["depth"]), CLASSES])


def flops_per_sample(run: RunSpec) -> int:
    """The FLOPs of a training sample."""
    first, *others = (2 * inputs * outputs for inputs, outputs in _sizes(run))
    return training_flops(first, others)


def image_size(run: RunSpec) -> int:
    """Height and width of the images in pixels, of a run that reads files."""
    return int(workload_options(run)["image_size"])


def features(run: RunSpec) -> int:
    """Inputs of the first layer: with files every pixel's red, green and blue, in the order [3, H, W]."""
    return FEATURES if data_source(run.data) is None else 3 * image_size(run) ** 2


def synthetic_batch(run: RunSpec, rank: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Features [N, 64] and labels [N] of a rank."""
    return random_samples(run, rank, (FEATURES,), CLASSES)
