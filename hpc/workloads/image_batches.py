"""Batches of images from class folders, made in a worker of any framework, and the facts about them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import PIL

from hpc.measure.input_record import InputRecord
from hpc.model.data_source import DataSource, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads.image_folder import ImageListing
from hpc.workloads.images import Undecodable, augment, decode

Key = tuple[int, int]
"""Epoch and number of a sample."""


class Batch(NamedTuple):
    """Images as `finish` of ImageBatches makes them, and labels [N].

    `figures` are the worker's, INPUT_FIGURES from `begun` on; `skipped` has name and reason of each file that it could
    not decode.
    """

    images: Any
    labels: Any
    figures: tuple[int, ...]
    skipped: tuple[tuple[str, str], ...]


class ImageBatches:
    """Makes whole batches. An image's augmentation is drawn from the run's seed, the epoch and the image alone.

    `finish` turns uint8 [N, H, W, 3] into what the framework wants, in the worker.
    """

    def __init__(
        self, listing: ImageListing, size: int, seed: int, finish: Callable[[npt.NDArray[np.uint8]], Any]
    ) -> None:
        self._listing, self._size, self._seed, self._finish = listing, size, seed, finish

    def __len__(self) -> int:
        return len(self._listing.names)

    def load(self, keys: Sequence[Key]) -> Batch:
        """The samples of a batch. Raises ValueError where none can be decoded, OSError where a file cannot be read."""
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
        finished = self._finish(np.stack(images))
        done_ns = time.perf_counter_ns()
        decoding_ns, processor_ns = done_ns - begun_ns - reading_ns, time.thread_time_ns() - processor_ns
        figures = (begun_ns, done_ns, reading_ns, decoding_ns, processor_ns)
        return Batch(finished, np.array(labels, np.int64), figures, tuple(skipped))


class ImageReader:
    """The training images of a rank, epoch after epoch, on its device; with `data_cache` always the first batch.

    `batches_of` starts an epoch, `on_device` moves images and labels of a batch. What each step read is in `record`.
    """

    def __init__(
        self,
        run: RunSpec,
        facts: Mapping[str, Any],
        batches_of: Callable[[int], Iterator[Batch]],
        on_device: Callable[[Batch], tuple[Any, Any]],
    ) -> None:
        self._batches_of, self._to_device = batches_of, on_device
        self._epoch = 0
        self._batches = batches_of(0)
        self.record = InputRecord(run.steps, facts)
        self._cached = self._on_device(self._next()) if run.data_cache == "device" else None

    def batch(self, step: int) -> tuple[Any, Any]:
        if self._cached is not None:
            return self._cached
        requested_ns = time.perf_counter_ns()
        batch = self._next()
        self.record.record(step, (requested_ns, time.perf_counter_ns(), *batch.figures))
        return self._on_device(batch)

    def samples(self, batch: tuple[Any, Any]) -> int:
        return len(batch[0])

    def _on_device(self, batch: Batch) -> tuple[Any, Any]:
        for name, reason in batch.skipped:
            self.record.skip(name, reason)
        return self._to_device(batch)

    def _next(self) -> Batch:
        """The next batch, at the end of an epoch the first of the next one."""
        batch = next(self._batches, None)
        if batch is None:
            self._epoch += 1
            self._batches = self._batches_of(self._epoch)
            batch = next(self._batches)
        return batch


def workers_to_start(run: RunSpec) -> int:
    """The workers of each rank: none where one batch is all that is read."""
    return 0 if run.data_cache == "device" else workers_of(run)


def input_facts(
    run: RunSpec, source: DataSource, listing: ImageListing, *, workers: int, ahead: int, samples: int
) -> dict[str, Any]:
    """How a rank reads: it has so many workers, each `ahead` batches ahead, and so many samples in an epoch."""
    return {
        "kind": source.kind,
        "path": source.path,
        "images": len(listing.names),
        "classes": len(listing.classes),
        "ignored_files": listing.ignored,
        "listing_sha256": listing.sha256,
        "decoder": f"Pillow {PIL.__version__}",
        "augmentation": "random resized crop, mirrored by half, normalised (pytorch/examples)",
        "cache": run.data_cache,
        "workers": workers,
        "prefetched_batches": workers * ahead,
        "samples_per_epoch": samples,
        "repeated_samples_per_epoch": samples * run.ranks - len(listing.names),
        "last_batch_samples": samples % run.rank_batch_size or run.rank_batch_size,
    }
