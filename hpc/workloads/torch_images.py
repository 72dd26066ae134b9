"""Images in class folders, read by torch's DataLoader and split among ranks by its DistributedSampler."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from hpc.measure.input_record import InputRecord
from hpc.model.data_source import DataSource, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads.image_folder import ImageListing, list_images
from hpc.workloads.images import DEVIATION, MEAN, Undecodable, augment, decode

Key = tuple[int, int]
"""Epoch and number of a sample."""


class Batch(NamedTuple):
    """Images [N, 3, H, W], normalised, and labels [N]; the worker's figures, and files that it could not decode."""

    images: torch.Tensor
    labels: torch.Tensor
    figures: tuple[int, int, int, int, int]
    skipped: tuple[tuple[str, str], ...]


class ImageFolder(Dataset[Batch]):
    """Makes whole batches. An image's augmentation is drawn from the run's seed, the epoch and the image alone."""

    def __init__(self, listing: ImageListing, size: int, seed: int) -> None:
        self._listing, self._size, self._seed = listing, size, seed

    def __len__(self) -> int:
        return len(self._listing.names)

    def __getitems__(self, keys: list[Key]) -> Batch:
        """The samples of a batch; called by DataLoader in a worker."""
        begun_ns, processor_ns, reading_ns = time.perf_counter_ns(), time.thread_time_ns(), 0
        images, labels, skipped = [], [], []
        for epoch, number in keys:
            name = self._listing.names[number]
            before_ns = time.perf_counter_ns()
            content = (self._listing.folder / name).read_bytes()
            reading_ns += time.perf_counter_ns() - before_ns
            try:
                image = decode(content)
            except Undecodable as error:
                skipped.append((name, str(error)))
                continue
            images.append(augment(image, self._size, random.Random(f"{self._seed} {epoch} {number}")))
            labels.append(self._listing.labels[number])
        if not images:
            raise ValueError(f"no image of a batch of {len(keys)} in {self._listing.folder} can be decoded: {skipped}")
        normalised = _normalised(torch.from_numpy(np.stack(images)))
        done_ns = time.perf_counter_ns()
        figures = (
            begun_ns, done_ns, reading_ns, done_ns - begun_ns - reading_ns, time.thread_time_ns() - processor_ns,
        )  # fmt: skip
        return Batch(normalised, torch.tensor(labels), figures, tuple(skipped))


def _normalised(images: torch.Tensor) -> torch.Tensor:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W], whose channels stay last in memory."""
    mean, deviation = (torch.tensor(values).mul(255).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return images.permute(0, 3, 1, 2).float().sub_(mean).div_(deviation)


class EpochSampler(DistributedSampler[Any]):
    """A DistributedSampler that gives the epoch along with each sample, so that workers know it."""

    def __iter__(self) -> Iterator[Key]:
        return ((self.epoch, number) for number in super().__iter__())


def _as_it_is(batch: Any) -> Any:
    """In the place of DataLoader's own joining of samples: the batch is whole."""
    return batch


class TorchImages:
    """The training images of a rank, epoch after epoch, on its device; with `data_cache` always the first batch.

    As pytorch/examples does: DistributedSampler repeats up to ranks − 1 samples so that all ranks have equally many,
    and the last batch of an epoch has what is left.
    """

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> None:
        cached = run.data_cache == "device"
        listing, workers = list_images(source.path), 0 if cached else workers_of(run)
        images = ImageFolder(listing, size, run.seed)
        self._device = device
        self._epoch = 0
        self._sampler = EpochSampler(images, num_replicas=run.ranks, rank=rank, seed=run.seed)
        self._loader: DataLoader[Any] = DataLoader(
            images,
            batch_size=run.rank_batch_size,
            sampler=self._sampler,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
        )
        self._batches: Iterator[Batch] = iter(self._loader)
        self._cached: tuple[torch.Tensor, torch.Tensor] | None = None
        samples = len(self._sampler)
        self.record = InputRecord(
            run.steps,
            {
                "kind": source.kind,
                "path": source.path,
                "images": len(images),
                "classes": len(listing.classes),
                "ignored_files": listing.ignored,
                "listing_sha256": listing.sha256,
                "decoder": f"Pillow {PIL.__version__}",
                "augmentation": "random resized crop, mirrored by half, normalised (pytorch/examples)",
                "cache": run.data_cache,
                "workers": workers,
                "prefetched_batches": workers * (self._loader.prefetch_factor or 0),
                "samples_per_epoch": samples,
                "repeated_samples_per_epoch": samples * run.ranks - len(images),
                "last_batch_samples": samples % run.rank_batch_size or run.rank_batch_size,
            },
        )

        if cached:
            self._cached = self._on_device(self._next())

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._cached is not None:
            return self._cached
        asked_ns = time.perf_counter_ns()
        batch = self._next()
        self.record.record(step, (asked_ns, time.perf_counter_ns(), *batch.figures))
        return self._on_device(batch)

    def _on_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        for name, reason in batch.skipped:
            self.record.skip(name, reason)
        pinned = self._device.type == "cuda"
        return batch.images.to(self._device, non_blocking=pinned), batch.labels.to(self._device, non_blocking=pinned)

    def samples(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        return len(batch[0])

    def _next(self) -> Batch:
        """The next batch, at the end of an epoch the first of the next one."""
        batch = next(self._batches, None)
        if batch is None:
            self._epoch += 1
            self._sampler.set_epoch(self._epoch)
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return batch
