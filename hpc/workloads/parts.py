"""What workloads of several frameworks share: random samples, epochs and rates of whole trainings, FLOPs by layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.spec import RunSpec
from hpc.workloads import workload_options
from hpc.workloads.schedule import Schedule, epoch_rate

FLOPS_BY = (
    "by the table of its layers, 2 for each multiply-add of convolutions and matrices, forward and twice backward but "
    "for the input's gradient; torch's FlopCounterMode counts the same"
)


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


class TrainableWorkload:
    """What a workload with a `reader` of files needs to be trained to a target: epochs, rates, held-out images.

    `_peak` is the recipe's highest rate for the run's global batch.
    """

    reader: Any
    _run: RunSpec
    _peak: float
    _schedule: Schedule

    def begin_epoch(self, epoch: int) -> None:
        """The next batch is the first of this epoch, counted from 0."""
        self.reader.begin_epoch(epoch)

    def learning_rate(self, epoch: int) -> float:
        """The rate of an epoch, counted from 0."""
        return epoch_rate(workload_options(self._run), self._schedule, self._peak, epoch, self._run.epochs)

    def evaluation(self) -> Iterator[tuple[Any, Any]]:
        """This rank's share of the held-out images, each of them on one rank, with labels."""
        yield from self.reader.evaluation()


def training_flops(first: int, others: Iterable[int]) -> int:
    """As FLOPS_BY says; `first` is the layer that takes the sample."""
    return 2 * first + 3 * sum(others)


def convolution_flops(inputs: int, outputs: int, kernel: int, side: int) -> int:
    """Of a square convolution forward, whose outputs are `side` pixels high and wide."""
    return 2 * inputs * outputs * kernel**2 * side**2
