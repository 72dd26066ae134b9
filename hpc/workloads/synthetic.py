"""Random samples of a rank, made once and kept on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.spec import RunSpec


def random_samples(
    run: RunSpec, rank: int, shape: tuple[int, ...], classes: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Normal inputs [N, *shape] and random labels [N] of a rank, from the run's seed and the rank; N per rank."""
    random = np.random.default_rng((run.seed, rank))
    inputs = random.standard_normal((run.rank_batch_size, *shape), np.float32)
    return inputs, random.integers(classes, size=run.rank_batch_size)


class Synthetic:
    """The part of a workload that is its data: the same inputs and labels in every step."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self._batch = inputs, labels

    def batch(self, step: int) -> tuple[Any, Any]:
        return self._batch

    def samples(self, batch: tuple[Any, Any]) -> int:
        return len(batch[0])
