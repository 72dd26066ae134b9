"""Images in class folders, read by Paddle's DataLoader and split among ranks by its DistributedBatchSampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from paddle.io import DataLoader, DistributedBatchSampler

from hpc.model.options import DataSource, is_augmented, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads.image_batches import FolderLoaders, ImageBatches, ImageKey
from hpc.workloads.image_reader import DEVIATION, MEAN, Batch, ImageReader, evaluation_share

PREFETCHED = 2
"""Batches that each worker is ahead: Paddle's own default."""
_SEEDS = 2**32
"""Paddle's sampler shuffles by a number of 32 bits."""


def image_reader(run: RunSpec, source: DataSource, size: int, device: Any, rank: int) -> ImageReader:
    """The images of a rank, read by DataLoader."""
    loaders = _PaddleLoaders(run, source, size, device, rank)
    return ImageReader(run, source, loaders.facts(PREFETCHED), loaders)


class _PaddleLoaders(FolderLoaders):
    """DistributedBatchSampler repeats up to ranks − 1 samples so that all ranks have equally many, and the last batch
    of an epoch has what is left.
    """

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: Any, rank: int) -> None:
        super().__init__(run, source, size, device, rank, _finished)
        images = self._images("train", augmented=is_augmented(run))
        self._sampler = _EpochSampler(images, run, rank)
        self._training = self._loader(images, self._sampler, self._workers)
        self._evaluation: Any = None

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._sampler.begin(epoch)
        return map(_batch, self._training)

    def evaluation(self) -> Iterator[Batch]:
        images = self._images("val", augmented=False)
        numbers = evaluation_share(len(images), self._run, self._rank)
        if not numbers:
            return iter(())
        if self._evaluation is None:
            of_step, keys = self._run.rank_batch_size, [(0, number) for number in numbers]
            batches = [[keys[at : at + of_step]] for at in range(0, len(keys), of_step)]
            self._evaluation = self._loader(images, batches, workers_of(self._run))
        return map(_batch, self._evaluation)

    def on_device(self, batch: Batch) -> tuple[Any, Any]:
        return batch.images, batch.labels

    def _loader(self, images: ImageBatches, batches: Any, workers: int) -> Any:
        return DataLoader(
            images,
            batch_sampler=batches,
            places=[self._device],
            num_workers=workers,
            collate_fn=_only,
            prefetch_factor=PREFETCHED,
            persistent_workers=workers > 0,
        )


class _EpochSampler(DistributedBatchSampler):  # type: ignore[misc]  # mypy does not follow Paddle
    """A DistributedBatchSampler that shuffles by seed and epoch, and gives the epoch along with each sample."""

    def __init__(self, images: ImageBatches, run: RunSpec, rank: int) -> None:
        super().__init__(images, run.rank_batch_size, num_replicas=run.ranks, rank=rank, shuffle=True)
        self._seed, self._epoch = run.seed, 0

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self.set_epoch(int(np.random.default_rng((self._seed, epoch)).integers(_SEEDS)))  # its only seed

    def __iter__(self) -> Iterator[list[list[ImageKey]]]:
        epoch = self._epoch
        return ([[(epoch, number) for number in numbers]] for numbers in super().__iter__())


def _only(batches: list[Batch]) -> list[Any]:
    """In the place of DataLoader's own joining of samples, as lists and arrays, which alone it hands on.

    It cannot hand on an array without elements: a batch without images gets zeros.
    """
    (batch,) = batches
    images, labels = (batch.images, batch.labels) if len(batch.labels) else (np.zeros(1), np.zeros(1))
    return [images, labels, list(batch.figures), [list(pair) for pair in batch.skipped], len(batch.labels)]


def _batch(fields: Sequence[Any]) -> Batch:
    """The batch that `_only` handed on."""
    images, labels, figures, skipped, count = fields
    return Batch(images, labels, figures, skipped) if count else Batch((), (), figures, skipped)


def _finished(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W], and the labels."""
    normalised = np.empty((len(images), 3, *images.shape[1:3]), np.float32)
    for channel, (mean, deviation) in enumerate(zip(MEAN, DEVIATION, strict=True)):
        np.multiply(images[..., channel], np.float32(1 / (255 * deviation)), out=normalised[:, channel])
        normalised[:, channel] -= np.float32(mean / deviation)
    return normalised, labels
