"""Images in class folders, read by torch's DataLoader and split among ranks by its DistributedSampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, DistributedSampler

from hpc.model.options import DataSource, is_augmented, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads.image_batches import FolderLoaders, ImageBatches, ImageKey
from hpc.workloads.image_reader import DEVIATION, MEAN, Batch, ImageReader, evaluation_share


def folder_reader(run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> ImageReader:
    """The images of a rank, read by DataLoader."""
    loaders = _TorchLoaders(run, source, size, device, rank)
    return ImageReader(run, source, loaders.facts(loaders.ahead), loaders)


class _TorchLoaders(FolderLoaders):
    """As pytorch/examples does: DistributedSampler repeats up to ranks − 1 samples so that all ranks have equally many,
    and the last batch of an epoch has what is left.
    """

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> None:
        super().__init__(run, source, size, device, rank, finished)
        images = self._images("train", augmented=is_augmented(run))
        self._sampler = _EpochSampler(images, num_replicas=run.ranks, rank=rank, seed=run.seed)  # type: ignore[arg-type]  # its length is all that is used
        self._training = self._loader(images, self._sampler, self._workers)
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

    def _loader(self, images: ImageBatches, keys: Iterable[ImageKey], workers: int) -> DataLoader[Any]:
        return DataLoader(
            images,  # type: ignore[arg-type]  # it asks for nothing but batches
            batch_size=self._run.rank_batch_size,
            sampler=keys,
            num_workers=workers,
            collate_fn=as_it_is,
            pin_memory=self._device.type == "cuda",
            persistent_workers=workers > 0,
        )


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


def finished(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W], whose channels stay last in memory, and the labels."""
    mean, deviation = (torch.tensor(values).mul(255).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().sub_(mean).div_(deviation), torch.from_numpy(labels)
