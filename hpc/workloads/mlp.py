"""A tiny perceptron: trains in microseconds, so that everything around it can be tested and seen.

The numbers that every framework's version takes: layers, values, samples.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpc.model.spec import RunSpec
from hpc.workloads import workload_options

FEATURES, CLASSES = 64, 10
LEARNING_RATE, MOMENTUM = 0.1, 0.9

Array = npt.NDArray[np.float32]


def sizes(run: RunSpec) -> list[int]:
    """Features before the first layer and after each; options `width` and `depth` size the hidden ones."""
    options = workload_options(run)
    return [FEATURES, *[int(options["width"])] * int(options["depth"]), CLASSES]


def initial_values(run: RunSpec) -> list[tuple[Array, Array]]:
    """Weight [outputs, inputs] and bias [outputs] of each layer, uniform in ±1/√inputs, from the run's seed."""
    random = np.random.default_rng(run.seed)
    layers = []
    for inputs, outputs in pairwise(sizes(run)):
        limit = inputs**-0.5
        weight = random.uniform(-limit, limit, (outputs, inputs)).astype(np.float32)
        layers.append((weight, random.uniform(-limit, limit, outputs).astype(np.float32)))
    return layers


def synthetic_batch(run: RunSpec, rank: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Normal features [N, 64] and random labels [N] of a rank, from the run's seed and the rank; N per rank."""
    random = np.random.default_rng((run.seed, rank))
    features = random.standard_normal((run.rank_batch_size, FEATURES), np.float32)
    return features, random.integers(CLASSES, size=run.rank_batch_size)
