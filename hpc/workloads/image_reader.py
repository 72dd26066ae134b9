"""The images of a rank, read from files by a framework's own loader: epochs of training, and evaluation."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from hpc.measure.meetings import InputRecord
from hpc.model.options import DataSource, is_augmented, samples_per_epoch, steps_per_epoch, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads.image_sets import SplitListing, list_source

AUGMENTATIONS = {
    True: "random resized crop, mirrored by half, normalised (pytorch/examples)",
    False: "off: the shorter side resized to 256/224 of the size, the middle of it, normalised, as in evaluation",
}


class Batch(NamedTuple):
    """Images as the framework wants them, and labels [N].

    `figures` are the worker's, INPUT_FIGURES from `begun` on; `skipped` has name and reason of each file that it could
    not decode.
    """

    images: Any
    labels: Any
    figures: tuple[int, ...]
    skipped: tuple[tuple[str, str], ...]


class Loaders(Protocol):
    """What reads the files of a rank in a framework."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The rank's training batches of an epoch, in its order."""

    def evaluation(self) -> Iterator[Batch]:
        """The rank's share of the held-out images."""

    def on_device(self, batch: Batch) -> tuple[Any, Any]:
        """Images and labels, moved to the rank's device."""


class ImageReader:
    """The images of a rank on its device. What each step read is in `record`.

    An epoch follows the other, but in a whole training (`run.epochs`), where `begin_epoch` begins each, the first
    too, and nothing is read before. With `data_cache` the first batch is trained on in every step.
    """

    def __init__(self, run: RunSpec, source: DataSource, facts: Mapping[str, Any], loaders: Loaders) -> None:
        self._run, self._source, self._loaders = run, source, loaders
        self._epoch = 0
        self._batches: Iterator[Batch] | None = None
        self._cached: tuple[Any, Any] | None = None
        self.record = InputRecord(run.steps, facts)
        if not run.epochs:
            self.begin_epoch(0)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a rank in an epoch, the same on all ranks."""
        return steps_per_epoch(self._run, len(list_source(self._source)))

    @property
    def evaluation_images(self) -> int:
        """The held-out images over all ranks."""
        return len(list_source(self._source, "val"))

    def begin_epoch(self, epoch: int) -> None:
        """The next batch is the first of this epoch."""
        self._epoch = epoch
        if self._cached is not None:
            return
        self._batches = self._loaders.epoch(epoch)
        if self._run.data_cache == "device":
            self._cached = self._on_device(self._next())

    def batch(self, step: int) -> tuple[Any, Any]:
        """Images and labels of the next batch. Raises ValueError where no file of it can be decoded."""
        if self._cached is not None:
            return self._cached
        requested_ns = time.perf_counter_ns()
        batch = self._next()
        self.record.record(step, (requested_ns, time.perf_counter_ns(), *batch.figures))
        return self._on_device(batch)

    def evaluation(self) -> Iterator[tuple[Any, Any]]:
        """The rank's share of the held-out images: each exactly once over all ranks, in batches of images and labels.

        Ranks may have different numbers of batches, also none. Files that cannot be decoded are counted in `record`.
        """
        for batch in self._loaders.evaluation():
            self._count_skipped(batch)
            if len(batch.labels):
                yield self._loaders.on_device(batch)

    def samples(self, batch: tuple[Any, Any]) -> int:
        return len(batch[0])

    def _on_device(self, batch: Batch) -> tuple[Any, Any]:
        self._count_skipped(batch)
        if not len(batch.labels):
            raise ValueError(f"no image of a batch of {len(batch.skipped)} can be decoded: {[*batch.skipped]}")
        return self._loaders.on_device(batch)

    def _count_skipped(self, batch: Batch) -> None:
        for name, reason in batch.skipped:
            self.record.skip(name, reason)

    def _next(self) -> Batch:
        """The next batch; after the last one of an epoch the first of the next, but in a whole training."""
        if self._batches is None:
            raise RuntimeError("no epoch has begun: begin_epoch() begins it")
        batch = next(self._batches, None)
        if batch is None and self._run.epochs:
            raise RuntimeError(f"epoch {self._epoch} has no batch after {self.steps_per_epoch} steps")
        if batch is None:
            self.begin_epoch(self._epoch + 1)
            batch = next(self._batches)
        return batch


def workers_to_start(run: RunSpec) -> int:
    """The workers of each rank: none where one batch is all that is read in training."""
    return 0 if run.data_cache == "device" else workers_of(run)


def evaluation_share(images: int, run: RunSpec, rank: int) -> range:
    """The numbers of the held-out images that a rank evaluates: each is one rank's."""
    return range(rank, images, run.ranks)


def input_facts(
    run: RunSpec,
    source: DataSource,
    listing: SplitListing,
    decoder: Mapping[str, str],
    *,
    workers: int,
    prefetched: int,
) -> dict[str, Any]:
    """How a rank reads: its workers, the batches that they are ahead, what decodes."""
    samples = samples_per_epoch(run, len(listing))
    facts = {
        "kind": source.kind,
        "path": source.path,
        **listing.facts(),
        **decoder,
        "augmentation": AUGMENTATIONS[is_augmented(run)],
        "cache": run.data_cache,
        "workers": workers,
        "prefetched_batches": prefetched,
        "samples_per_epoch": samples,
        "repeated_samples_per_epoch": samples * run.ranks - len(listing),
        "last_batch_samples": samples % run.rank_batch_size or run.rank_batch_size,
    }
    if run.epochs:
        held_out = list_source(source, "val")
        facts |= {"evaluation_images": len(held_out), "evaluation_listing_sha256": held_out.sha256}
    return facts


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, from 0 to 1; inputs are normalised by them."""
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Share of an image's area, and width over height, of a random crop (torchvision's RandomResizedCrop)."""
_TRIES = 10


def centre_box(width: int, height: int, size: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the middle: that of `size` pixels once the shorter side has 256/224 as many."""
    side = min(width, height) * size / round(size * 256 / 224)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """Left, top, width and height: ten tries, then the largest part in the middle whose ratio is allowed."""
    for _ in range(_TRIES):
        area = width * height * draw.uniform(*AREA)
        ratio = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return (width - w) // 2, (height - h) // 2, w, h
