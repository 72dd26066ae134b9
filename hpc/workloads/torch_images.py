"""Images in class folders, read by torch's DataLoader and split among ranks by its DistributedSampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from hpc.model.data_source import DataSource
from hpc.model.spec import RunSpec
from hpc.workloads.image_batches import Batch, ImageBatches, ImageReader, Key, input_facts, workers_to_start
from hpc.workloads.image_folder import list_images
from hpc.workloads.images import DEVIATION, MEAN


def image_reader(run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> ImageReader:
    """The training images of a rank.

    As pytorch/examples does: DistributedSampler repeats up to ranks − 1 samples so that all ranks have equally many,
    and the last batch of an epoch has what is left.
    """
    listing, workers = list_images(source.path), workers_to_start(run)
    images = _ImageFolder(ImageBatches(listing, size, run.seed, _normalised))
    sampler = _EpochSampler(images, num_replicas=run.ranks, rank=rank, seed=run.seed)
    loader: DataLoader[Any] = DataLoader(
        images,
        batch_size=run.rank_batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )

    def batches_of(epoch: int) -> Iterator[Batch]:
        sampler.set_epoch(epoch)
        return iter(loader)

    def on_device(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        pinned = device.type == "cuda"
        images, labels = (values.to(device, non_blocking=pinned) for values in (batch.images, batch.labels))
        return images, labels

    ahead = loader.prefetch_factor or 0
    facts = input_facts(run, source, listing, workers=workers, ahead=ahead, samples=len(sampler))
    return ImageReader(run, facts, batches_of, on_device)


class _ImageFolder(Dataset[Batch]):
    """Whole batches for DataLoader."""

    def __init__(self, batches: ImageBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitems__(self, keys: list[Key]) -> Batch:
        """The samples of a batch; called by DataLoader in a worker."""
        batch = self._batches.load(keys)
        return batch._replace(labels=torch.from_numpy(batch.labels))


class _EpochSampler(DistributedSampler[Any]):
    """A DistributedSampler that gives the epoch along with each sample, so that workers know it."""

    def __iter__(self) -> Iterator[Key]:
        return ((self.epoch, number) for number in super().__iter__())


def _as_it_is(batch: Any) -> Any:
    """In the place of DataLoader's own joining of samples: the batch is whole."""
    return batch


def _normalised(images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W], whose channels stay last in memory."""
    mean, deviation = (torch.tensor(values).mul(255).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().sub_(mean).div_(deviation)
