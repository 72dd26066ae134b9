"""Images in class folders, read by torch's DataLoader and split among ranks by its DistributedSampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from hpc.model.options import DataSource, is_augmented, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads.image_batches import DECODER, ImageBatches, ImageKey
from hpc.workloads.image_reader import (
    DEVIATION,
    MEAN,
    Batch,
    ImageReader,
    evaluation_share,
    input_facts,
    workers_to_start,
)
from hpc.workloads.image_sets import list_images


def folder_reader(run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> ImageReader:
    """The images of a rank, read by DataLoader."""
    loaders = _TorchLoaders(run, source, size, device, rank)
    prefetched = loaders.workers * loaders.ahead
    facts = input_facts(run, source, list_images(source.path), DECODER, workers=loaders.workers, prefetched=prefetched)
    return ImageReader(run, source, facts, loaders)


class _TorchLoaders:
    """A DataLoader for training, and one for evaluation, each with workers of its own.

    As pytorch/examples does: DistributedSampler repeats up to ranks − 1 samples so that all ranks have equally many,
    and the last batch of an epoch has what is left.
    """

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> None:
        self._run, self._source, self._size, self._device, self._rank = run, source, size, device, rank
        self.workers = workers_to_start(run)
        images = self._images("train", augmented=is_augmented(run))
        self._sampler = _EpochSampler(images, num_replicas=run.ranks, rank=rank, seed=run.seed)
        self._training = self._loader(images, self._sampler, self.workers)
        self._evaluation: DataLoader[Any] | None = None

    @property
    def ahead(self) -> int:
        """Batches that each worker is ahead."""
        return self._training.prefetch_factor or 0

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._sampler.set_epoch(epoch)
        return iter(self._training)

    def evaluation(self) -> Iterator[Batch]:
        images = self._images("val", augmented=False)
        if self._evaluation is None:
            keys = [(0, number) for number in evaluation_share(len(images), self._run, self._rank)]
            self._evaluation = self._loader(images, keys, workers_of(self._run) if keys else 0)
        return iter(self._evaluation)

    def on_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return on_device(batch, self._device)

    def _images(self, split: str, *, augmented: bool) -> _ImageFolder:
        listing = list_images(self._source.path, split)
        return _ImageFolder(ImageBatches(listing, self._size, self._run.seed, normalised, augmented=augmented))

    def _loader(self, images: _ImageFolder, keys: Iterable[ImageKey], workers: int) -> DataLoader[Any]:
        return DataLoader(
            images,
            batch_size=self._run.rank_batch_size,
            sampler=keys,
            num_workers=workers,
            collate_fn=as_it_is,
            pin_memory=self._device.type == "cuda",
            persistent_workers=workers > 0,
        )


class _ImageFolder(Dataset[Batch]):
    """Whole batches for DataLoader."""

    def __init__(self, batches: ImageBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitems__(self, keys: list[ImageKey]) -> Batch:
        """The samples of a batch; called by DataLoader in a worker."""
        batch = self._batches.load(keys)
        return batch._replace(labels=torch.from_numpy(batch.labels))


class _EpochSampler(DistributedSampler[Any]):
    """A DistributedSampler that gives the epoch along with each sample, so that workers know it."""

    def __iter__(self) -> Iterator[ImageKey]:
        return ((self.epoch, number) for number in super().__iter__())


def on_device(batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a batch, moved to the device; from pinned memory without waiting."""
    pinned = device.type == "cuda"
    images, labels = (values.to(device, non_blocking=pinned) for values in (batch.images, batch.labels))
    return images, labels


def as_it_is(batch: Any) -> Any:
    """In the place of DataLoader's own joining of samples: the batch is whole."""
    return batch


def normalised(images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W], whose channels stay last in memory."""
    mean, deviation = (torch.tensor(values).mul(255).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().sub_(mean).div_(deviation)
