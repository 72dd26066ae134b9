"""Images in class folders, read by Paddle's DataLoader and split among ranks by its DistributedBatchSampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from paddle.io import DataLoader, Dataset, DistributedBatchSampler

from hpc.model.data_source import DataSource
from hpc.model.spec import RunSpec
from hpc.workloads.image_batches import Batch, ImageBatches, ImageReader, Key, input_facts, workers_to_start
from hpc.workloads.image_folder import list_images
from hpc.workloads.images import DEVIATION, MEAN

PREFETCHED = 2
"""Batches that each worker is ahead: Paddle's own default."""
_SEEDS = 2**32
"""Paddle's sampler shuffles by a number of 32 bits."""


def image_reader(run: RunSpec, source: DataSource, size: int, device: Any, rank: int) -> ImageReader:
    """The training images of a rank.

    DistributedBatchSampler repeats up to ranks − 1 samples so that all ranks have equally many, and the last batch of
    an epoch has what is left.
    """
    listing, workers = list_images(source.path), workers_to_start(run)
    images = _ImageFolder(ImageBatches(listing, size, run.seed, _normalised))
    sampler = _EpochSampler(images, run, rank)
    loader = DataLoader(
        images,
        batch_sampler=sampler,
        places=[device],
        num_workers=workers,
        collate_fn=_only,
        prefetch_factor=PREFETCHED,
        persistent_workers=workers > 0,
    )

    def batches_of(epoch: int) -> Iterator[Batch]:
        sampler.begin(epoch)
        return (Batch(*fields) for fields in loader)

    facts = input_facts(run, source, listing, workers=workers, ahead=PREFETCHED, samples=sampler.num_samples)
    return ImageReader(run, facts, batches_of, lambda batch: (batch.images, batch.labels))


class _ImageFolder(Dataset):  # type: ignore[misc]  # mypy does not follow Paddle
    """Whole batches for DataLoader: what it takes for a sample is a batch."""

    def __init__(self, batches: ImageBatches) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, keys: list[Key]) -> Batch:
        return self._batches.load(keys)


class _EpochSampler(DistributedBatchSampler):  # type: ignore[misc]  # as above
    """A DistributedBatchSampler that shuffles by seed and epoch, and gives the epoch along with each sample."""

    def __init__(self, images: _ImageFolder, run: RunSpec, rank: int) -> None:
        super().__init__(images, run.rank_batch_size, num_replicas=run.ranks, rank=rank, shuffle=True)
        self._seed, self._epoch = run.seed, 0

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self.set_epoch(int(np.random.default_rng((self._seed, epoch)).integers(_SEEDS)))  # its only seed

    def __iter__(self) -> Iterator[list[list[Key]]]:
        epoch = self._epoch
        return ([[(epoch, number) for number in numbers]] for numbers in super().__iter__())


def _only(batches: list[Batch]) -> list[Any]:
    """In the place of DataLoader's own joining of samples, as lists and arrays, which alone it hands on."""
    (batch,) = batches
    return [batch.images, batch.labels, list(batch.figures), [list(pair) for pair in batch.skipped]]


def _normalised(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W]."""
    normalised = np.empty((len(images), 3, *images.shape[1:3]), np.float32)
    for channel, (mean, deviation) in enumerate(zip(MEAN, DEVIATION, strict=True)):
        np.multiply(images[..., channel], np.float32(1 / (255 * deviation)), out=normalised[:, channel])
        normalised[:, channel] -= np.float32(mean / deviation)
    return normalised
