"""Batches of images from class folders, made in a worker of any framework."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpc.workloads.image_folder import ImageListing
from hpc.workloads.images import Undecodable, augment, centre, decode

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
        self,
        listing: ImageListing,
        size: int,
        seed: int,
        finish: Callable[[npt.NDArray[np.uint8]], Any],
        *,
        augmented: bool = True,
    ) -> None:
        self._listing, self._size, self._seed, self._finish = listing, size, seed, finish
        self._augmented = augmented

    def __len__(self) -> int:
        return len(self._listing)

    def load(self, keys: Sequence[Key]) -> Batch:
        """The samples of a batch, none where no file can be decoded. Raises OSError where one cannot be read."""
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
                skipped.append((self._listing.shown_name(number), str(error)))
                continue
            images.append(self._transformed(image, f"{self._seed} {epoch} {number}"))
            labels.append(self._listing.labels[number])
        pixels = np.stack(images) if images else np.empty((0, self._size, self._size, 3), np.uint8)
        finished = self._finish(pixels)
        done_ns = time.perf_counter_ns()
        decoding_ns, processor_ns = done_ns - begun_ns - reading_ns, time.thread_time_ns() - processor_ns
        figures = (begun_ns, done_ns, reading_ns, decoding_ns, processor_ns)
        return Batch(finished, np.array(labels, np.int64), figures, tuple(skipped))

    def _transformed(self, image: Any, seed: str) -> npt.NDArray[np.uint8]:
        return augment(image, self._size, random.Random(seed)) if self._augmented else centre(image, self._size)
