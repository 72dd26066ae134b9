"""What a workload adds to its steps so that it can be trained to a target: epochs, a rate for each, held-out images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpc.model.spec import RunSpec
from hpc.workloads import workload_options
from hpc.workloads.schedule import Schedule, epoch_rate


class TrainableWorkload:
    """Of workloads with a `reader` of files. `_peak` is the recipe's highest rate for the run's global batch."""

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


class Mixup:
    """The share of the first image of each pair that mixup mixes (Zhang et al. 2018: Beta(alpha, alpha)).

    Drawn from seed, rank and epoch, so that a training that is resumed draws the same.
    """

    def __init__(self, run: RunSpec, rank: int) -> None:
        self.alpha = float(workload_options(run).get("mixup", 0.0))
        self._key = (run.seed, rank)
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        self._random = np.random.default_rng((*self._key, epoch))

    def draw(self) -> float:
        """The share of the next step's, from 0 to 1."""
        return float(self._random.beta(self.alpha, self.alpha))
