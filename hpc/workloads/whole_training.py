"""What a workload adds to its steps so that it can be trained to a target: epochs, a rate for each, held-out images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
