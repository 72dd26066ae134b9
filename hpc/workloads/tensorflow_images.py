"""Images from class folders or TFRecord files, read by tf.data and decoded by TensorFlow's own operations.

The operations are called one image at a time from Python, in tf.data's threads: an operation inside tf.data's graph
fails without a word on the file that it failed on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.data_source import DataSource, is_augmented, samples_per_epoch, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads import WORKLOADS
from hpc.workloads.crops import DEVIATION, MEAN, centre_box, random_box
from hpc.workloads.image_reader import Batch, ImageReader, evaluation_share, input_facts, workers_to_start
from hpc.workloads.image_sets import ImageListing, RecordListing, SplitListing, list_source
from hpc.workloads.tensorflow_base import tf

PREFETCHED = 2
"""Batches that the workers are ahead."""
DECODER = {
    "decoder": f"tf.io.decode_image of TensorFlow {tf.__version__}",
    "resizing": "bilinear, not antialiased",
    "workers_are": "threads",
}
_CPU = "/CPU:0"
_FIRST_LABEL = 1
"""Of TensorFlow's ImageNet files, whose 0 is no class."""
_FIELDS = (tf.float32, tf.int64, tf.int64, tf.string)

AnyArray = npt.NDArray[Any]


def image_reader(run: RunSpec, source: DataSource, size: int, device: str, rank: int) -> ImageReader:
    """The images of a rank, read by tf.data; images are NHWC."""
    workers = workers_to_start(run)
    prefetched = PREFETCHED if workers else 0
    facts = input_facts(run, source, list_source(source), DECODER, workers=workers, prefetched=prefetched)
    return ImageReader(run, source, facts, _TensorFlowLoaders(run, source, size, device, rank))


def epoch_share(images: int, run: RunSpec, rank: int, epoch: int) -> npt.NDArray[np.int64]:
    """The numbers of the images of a rank in an epoch, in its order.

    As torch's DistributedSampler: all images in an order from seed and epoch, the first up to ranks − 1 of them once
    more at the end, dealt out rank by rank.
    """
    order = np.random.default_rng((run.seed, epoch)).permutation(images)
    return np.resize(order, samples_per_epoch(run, images) * run.ranks)[rank :: run.ranks]


class _TensorFlowLoaders:
    """A tf.data pipeline for each epoch and each evaluation."""

    def __init__(self, run: RunSpec, source: DataSource, size: int, device: str, rank: int) -> None:
        self._run, self._source, self._size, self._device, self._rank = run, source, size, device, rank

    def epoch(self, epoch: int) -> Iterator[Batch]:
        images = self._images("train", epoch if is_augmented(self._run) else None)
        numbers = epoch_share(len(images.listing), self._run, self._rank, epoch)
        return _batches(images, numbers, self._run.rank_batch_size, workers_to_start(self._run))

    def evaluation(self) -> Iterator[Batch]:
        images = self._images("val", None)
        numbers = np.array(evaluation_share(len(images.listing), self._run, self._rank), np.int64)
        return _batches(images, numbers, self._run.rank_batch_size, workers_of(self._run))

    def on_device(self, batch: Batch) -> tuple[Any, Any]:
        with tf.device(self._device):
            return tf.identity(batch.images), tf.identity(batch.labels)

    def _images(self, split: str, epoch: int | None) -> _Images:
        max_classes = WORKLOADS[self._run.workload].max_classes
        return _Images(list_source(self._source, split), self._size, self._run.seed, epoch, max_classes)


def _batches(images: _Images, numbers: AnyArray, batch_size: int, workers: int) -> Iterator[Batch]:
    """Batches of the numbered images, in their order; tf.data begins to read them when the first is requested."""
    with tf.device(_CPU):
        data = tf.data.Dataset.from_tensor_slices(numbers)
        data = data.map(images.loaded, num_parallel_calls=workers or None)
        data = data.batch(batch_size).map(_with_time)
        data = data.prefetch(PREFETCHED) if workers else data
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        if workers:
            options.threading.private_threadpool_size = workers
        iterator = iter(data.with_options(options))
    starts = range(0, len(numbers), batch_size)
    return (_batch(images, numbers[at : at + batch_size], iterator) for at in starts)


def _batch(images: _Images, numbers: AnyArray, iterator: Any) -> Batch:
    """The next batch without the images that could not be decoded."""
    pixels, labels, figures, reasons, done_ns = next(iterator)
    begun_ns, reading_ns, decoding_ns, processor_ns = figures.numpy().T
    reasons = reasons.numpy().tolist()
    skipped = [
        (images.listing.shown_name(number), reason.decode())
        for number, reason in zip(numbers.tolist(), reasons, strict=True)
        if reason
    ]
    if skipped:
        decoded = [not reason for reason in reasons]
        pixels, labels = tf.boolean_mask(pixels, decoded), tf.boolean_mask(labels, decoded)
    sums = (int(values.sum()) for values in (reading_ns, decoding_ns, processor_ns))
    return Batch(pixels, labels, (int(begun_ns.min()), int(done_ns), *sums), tuple(skipped))


def _with_time(*fields: Any) -> tuple[Any, ...]:
    """The fields of a batch, and when it was done."""
    return (*fields, tf.numpy_function(lambda: np.int64(time.perf_counter_ns()), [], tf.int64))


class _Undecodable(Exception):
    """The bytes are no image that TensorFlow decodes; the text has its reason."""


@dataclass(frozen=True)
class _Images:
    """Loads single images of a listing; they are augmented from seed, epoch and number, not where `epoch` is None."""

    listing: SplitListing
    size: int
    seed: int
    epoch: int | None
    max_classes: int

    def loaded(self, number: Any) -> tuple[Any, ...]:
        """The operation that loads an image: pixels [size, size, 3], label, figures, reason why not."""
        pixels, label, figures, reason = tf.numpy_function(self._load, [number], _FIELDS)
        return (
            tf.ensure_shape(pixels, (self.size, self.size, 3)),
            tf.ensure_shape(label, ()),
            tf.ensure_shape(figures, (4,)),
            tf.ensure_shape(reason, ()),
        )

    def _load(self, number: np.int64) -> tuple[AnyArray, np.int64, AnyArray, bytes]:
        """An image; zeros with the reason where it cannot be decoded. Figures: begun, reading, decoding, processor."""
        begun_ns, processor_ns = time.perf_counter_ns(), time.thread_time_ns()
        read_ns = begun_ns
        reason, label = b"", 0
        try:
            content, label = self._content(int(number))
            read_ns = time.perf_counter_ns()
            pixels = self._transformed(_decoded(content), int(number))
        except _Undecodable as error:
            pixels, reason = np.zeros((self.size, self.size, 3), np.float32), str(error).encode()
        done_ns = time.perf_counter_ns()
        figures = (begun_ns, read_ns - begun_ns, done_ns - read_ns, time.thread_time_ns() - processor_ns)
        return pixels, np.int64(label), np.array(figures, np.int64), reason

    def _content(self, number: int) -> tuple[bytes, int]:
        """The encoded image and its label. Raises ValueError where a record has no image or a label beyond classes."""
        if isinstance(self.listing, ImageListing):
            return (self.listing.folder / self.listing.names[number]).read_bytes(), self.listing.labels[number]
        assert isinstance(self.listing, RecordListing)
        return _parsed(self.listing.read(number), self.listing.shown_name(number), self.max_classes)

    def _transformed(self, image: AnyArray, number: int) -> AnyArray:
        """The part to be trained or evaluated on, float32 [size, size, 3], normalised."""
        height, width = image.shape[:2]
        if self.epoch is None:
            return _normalised(_resized_box(image, centre_box(width, height, self.size), self.size))
        draw = random.Random(f"{self.seed} {self.epoch} {number}")
        left, top, across, down = random_box(width, height, draw)
        pixels = _resized(image[top : top + down, left : left + across], self.size)
        return _normalised(pixels[:, ::-1] if draw.random() < 0.5 else pixels)


def _parsed(record: bytes, name: str, max_classes: int) -> tuple[bytes, int]:
    """Encoded image and label, from 0, of a record with the features of TensorFlow's ImageNet files."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's own class of it is not part of TensorFlow
        raise _Undecodable(f"no tf.train.Example: {error}") from error
    images, labels = features["image/encoded"].bytes_list.value, features["image/class/label"].int64_list.value
    if len(images) != 1 or len(labels) != 1:
        raise ValueError(f"{name} has not one image/encoded and one image/class/label, as ImageNet's files have")
    label: int = labels[0] - _FIRST_LABEL
    if not 0 <= label < max_classes:
        raise ValueError(f"{name} has the label {labels[0]}; labels are from {_FIRST_LABEL} to {max_classes}")
    return images[0], label


def _decoded(content: bytes) -> AnyArray:
    """RGB [H, W, 3] of 8 bits. Raises _Undecodable."""
    try:
        with tf.device(_CPU):
            image: AnyArray = tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        reason = " ".join(error.message.split()).rpartition("}} ")[2].partition(" [Op:")[0]
        raise _Undecodable(reason or "InvalidArgumentError") from error
    return image


def _resized(image: AnyArray, size: int) -> AnyArray:
    """The whole image, float32 [size, size, 3], as tf.image.resize does it."""
    with tf.device(_CPU):
        resized = tf.raw_ops.ResizeBilinear(images=image[None], size=(size, size), half_pixel_centers=True)
    pixels: AnyArray = resized.numpy()[0]
    return pixels


def _resized_box(image: AnyArray, box: tuple[float, float, float, float], size: int) -> AnyArray:
    """The same of a box (left, top, right, bottom) of fractions of pixels, which takes longer."""
    left, top, right, bottom = box
    scale = np.array((size / (bottom - top), size / (right - left)), np.float32)
    with tf.device(_CPU):
        resized = tf.raw_ops.ScaleAndTranslate(
            images=image[None], size=(size, size), scale=scale, translation=-scale * np.array((top, left), np.float32),
            kernel_type="triangle", antialias=False,
        )  # fmt: skip
    pixels: AnyArray = resized.numpy()[0]
    return pixels


def _normalised(pixels: AnyArray) -> AnyArray:
    """float32 [H, W, 3] from 0 to 255, normalised by ImageNet's mean and deviation."""
    rows = pixels.reshape(len(pixels), -1)
    factors, shifts = (
        np.tile(np.array(values, np.float32), pixels.shape[1])
        for values in ([1 / (255 * d) for d in DEVIATION], [-m / d for m, d in zip(MEAN, DEVIATION, strict=True)])
    )
    normalised: AnyArray = np.multiply(rows, factors)
    normalised += shifts
    return normalised.reshape(pixels.shape)
