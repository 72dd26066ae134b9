"""Batches of images, made in a worker of any framework."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image

from hpc.model.options import DataSource
from hpc.model.spec import RunSpec
from hpc.workloads.image_reader import Batch, centre_box, input_facts, random_box, workers_to_start
from hpc.workloads.image_sets import ImageListing, list_images

# Images decoded, cropped and resized by Pillow.

_16_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")


class Undecodable(Exception):
    """The bytes are no image that can be decoded; the text has the decoder's reason."""


def decode(content: bytes) -> Image.Image:
    """The image in RGB of 8 bits. Grey and CMYK images are converted, 16 bits cut to their upper 8.

    Raises Undecodable.
    """
    try:
        image: Image.Image = Image.open(io.BytesIO(content))
        image.load()
        if image.mode in _16_BITS:  # `convert` would clip all above 255 to white
            grey = np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8
            image = Image.fromarray(grey.astype(np.uint8))
        return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # decoders raise all kinds of errors for damaged bytes
        reason = " ".join(str(error).split()).partition(" <")[0] or type(error).__name__
        raise Undecodable(reason) from error


def augment(image: Image.Image, size: int, draw: random.Random) -> npt.NDArray[np.uint8]:
    """A random crop, resized to [size, size, 3], a half of them mirrored, as pytorch/examples trains ImageNet."""
    left, top, width, height = random_box(image.width, image.height, draw)
    part = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if draw.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(part)


def centre(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """The middle of the image, [size, size, 3], as ImageNet is evaluated; the box is of fractions of pixels."""
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, centre_box(*image.size, size)))


ImageKey = tuple[int, int]
"""Epoch and number of a sample."""
DECODER = {"decoder": f"Pillow {PIL.__version__}", "resizing": "bilinear, antialiased", "workers_are": "processes"}
"""The facts of these batches."""


Finish = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.int64]], tuple[Any, Any]]


class ImageBatches:
    """Batches of a folder's images. An image's augmentation is drawn from the run's seed, the epoch and the image.

    `finish` turns uint8 [N, H, W, 3] and the labels [N] into what the framework wants, in the worker.
    """

    def __init__(
        self,
        listing: ImageListing,
        size: int,
        seed: int,
        finish: Finish,
        *,
        augmented: bool = True,
    ) -> None:
        self._listing, self._size, self._seed, self._finish, self._augmented = listing, size, seed, finish, augmented

    def __len__(self) -> int:
        return len(self._listing)

    def load(self, keys: Sequence[ImageKey]) -> Batch:
        """The samples of a batch without those that cannot be decoded. Raises OSError where a file cannot be read."""
        begun_ns, processor_ns, reading_ns = time.perf_counter_ns(), time.thread_time_ns(), 0
        images, labels, skipped = [], [], []
        for epoch, number in keys:
            before_ns = time.perf_counter_ns()
            content = (self._listing.folder / self._listing.names[number]).read_bytes()
            reading_ns += time.perf_counter_ns() - before_ns
            try:
                image = decode(content)
            except Undecodable as error:
                skipped.append((self._listing.shown_name(number), str(error)))
                continue
            images.append(self._transformed(image, f"{self._seed} {epoch} {number}"))
            labels.append(self._listing.labels[number])
        pixels = np.stack(images) if images else np.empty((0, self._size, self._size, 3), np.uint8)
        finished = self._finish(pixels, np.array(labels, np.int64))
        done_ns = time.perf_counter_ns()
        decoding_ns, processor_ns = done_ns - begun_ns - reading_ns, time.thread_time_ns() - processor_ns
        figures = (begun_ns, done_ns, reading_ns, decoding_ns, processor_ns)
        return Batch(*finished, figures, tuple(skipped))

    __getitem__ = __getitems__ = load
    """By which Paddle's DataLoader asks a worker for a batch, which it takes for a sample, and torch's."""

    def _transformed(self, image: Image.Image, draw: str) -> npt.NDArray[np.uint8]:
        return augment(image, self._size, random.Random(draw)) if self._augmented else centre(image, self._size)


class FolderLoaders:
    """What the DataLoaders of torch and Paddle share: one for training, and one for evaluation, each with workers of
    its own. `finish` as in ImageBatches."""

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: Any, rank: int, finish: Finish) -> None:
        self._run, self._source, self._size, self._device, self._rank = run, source, size, device, rank
        self._finish, self._workers = finish, workers_to_start(run)

    def _images(self, split: str, *, augmented: bool) -> ImageBatches:
        listing = list_images(self._source.path, split)
        return ImageBatches(listing, self._size, self._run.seed, self._finish, augmented=augmented)

    def facts(self, ahead: int) -> dict[str, Any]:
        """How a rank reads, each worker so many batches `ahead`."""
        listing, workers = list_images(self._source.path), self._workers
        return input_facts(self._run, self._source, listing, DECODER, workers=workers, prefetched=workers * ahead)
