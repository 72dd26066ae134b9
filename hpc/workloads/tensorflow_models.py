"""ResNet-50 v1.5 and the tiny perceptron in TensorFlow, and the images that they read."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.options import DataSource, data_source, is_augmented, samples_per_epoch, workers_of
from hpc.model.spec import RunSpec
from hpc.workloads import WORKLOADS, mlp, resnet50
from hpc.workloads.image_reader import (
    DEVIATION,
    MEAN,
    Batch,
    ImageReader,
    centre_box,
    evaluation_share,
    input_facts,
    random_box,
    workers_to_start,
)
from hpc.workloads.image_sets import ImageListing, RecordListing, SplitListing, list_source
from hpc.workloads.parts import Synthetic, TrainableWorkload
from hpc.workloads.tensorflow_base import Momentum, changing, compute_dtype, tf

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


class ResNet50(tf.Module):  # type: ignore[misc]  # mypy is not shown TensorFlow
    """25,557,032 trainable parameters, by torchvision's names in `parameters` and `statistics`.

    Computes in `dtype`, with float32 parameters; batch norm looks at the batch while `training` is set.
    """

    def __init__(self, values: Mapping[str, resnet50.Array], dtype: Any) -> None:
        """`values` has torch's shapes: convolutions [outputs, inputs, k, k], the classifier [1000, 2048]."""
        super().__init__()
        self.training = True
        self._dtype = dtype
        self._convolutions = {convolution.name: convolution for convolution in resnet50.convolutions()}
        self.parameters = {name: tf.Variable(from_torch(value), name=name) for name, value in values.items()}
        self.statistics = {}
        for convolution in self._convolutions.values():
            for kind, start in (("running_mean", tf.zeros), ("running_var", tf.ones)):
                name = f"{convolution.norm}.{kind}"
                self.statistics[name] = tf.Variable(start(convolution.outputs), trainable=False, name=name)

    def __call__(self, images: Any) -> Any:
        """Images [N, H, W, 3] to logits [N, 1000], float32."""
        x = tf.nn.relu(self._convolved("conv1", tf.cast(images, self._dtype)))
        # Zero padding is as good as −∞ here: no value is below zero.
        x = tf.nn.max_pool2d(_padded(x, 1), 3, strides=2, padding="VALID")
        for stage, (_, blocks, _) in enumerate(resnet50.STAGES, start=1):
            for block in range(blocks):
                x = self._bottleneck(f"layer{stage}.{block}", x)
        weight, bias = (tf.cast(self.parameters[f"fc.{kind}"], self._dtype) for kind in ("weight", "bias"))
        return tf.cast(tf.matmul(tf.reduce_mean(x, axis=[1, 2]), weight) + bias, tf.float32)

    def _bottleneck(self, where: str, x: Any) -> Any:
        """1×1, 3×3 (with the stride), 1×1, and the way around them."""
        y = tf.nn.relu(self._convolved(f"{where}.conv1", x))
        y = tf.nn.relu(self._convolved(f"{where}.conv2", y))
        y = self._convolved(f"{where}.conv3", y)
        around = f"{where}.downsample.0"
        return tf.nn.relu(y + (self._convolved(around, x) if around in self._convolutions else x))

    def _convolved(self, name: str, x: Any) -> Any:
        """One convolution and the batch norm behind it."""
        convolution = self._convolutions[name]
        weight = tf.cast(self.parameters[f"{name}.weight"], self._dtype)
        padding = "SAME"
        if convolution.stride > 1:
            # On all sides alike, as in torch: "SAME" would be one-sided. By hand, because gradients of a convolution
            # with explicit padding have no fast kernels on CPUs (bf16 ran five times slower).
            x, padding = _padded(x, convolution.kernel // 2), "VALID"
        return self._normalised(convolution.norm, tf.nn.conv2d(x, weight, strides=convolution.stride, padding=padding))

    def _normalised(self, name: str, x: Any) -> Any:
        mean, variance = (self.statistics[f"{name}.{kind}"] for kind in ("running_mean", "running_var"))
        # The operation itself: the function around it, tf.nn.fused_batch_norm, takes no epsilon as small as torch's.
        done = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=self.parameters[f"{name}.weight"], offset=self.parameters[f"{name}.bias"], mean=mean,
            variance=variance, epsilon=resnet50.BN_EPSILON, exponential_avg_factor=resnet50.BN_MOMENTUM,
            is_training=self.training,
        )  # fmt: skip
        if self.training:
            mean.assign(done.batch_mean)
            variance.assign(done.batch_variance)
        return done.y


def from_torch(value: resnet50.Array) -> resnet50.Array:
    """A convolution [outputs, inputs, k, k] as [k, k, inputs, outputs], a matrix transposed, a vector unchanged."""
    order = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[value.ndim]
    return np.ascontiguousarray(value.transpose(order))


def _padded(x: Any, by: int) -> Any:
    return tf.pad(x, [[0, 0], [by, by], [by, by], [0, 0]]) if by else x


def _reader(run: RunSpec, size_of: Callable[[RunSpec], int], device: str, rank: int) -> ImageReader | None:
    """The images of a rank from files; None for a run that reads none."""
    if (source := data_source(run.data)) is None:
        return None

    return image_reader(run, source, size_of(run), device, rank)


def _signature(run: RunSpec, size_of: Callable[[RunSpec], int]) -> Any:
    """Batches from files in tf.function's terms: of any number of images, so that no step is traced again for a smaller
    one. None for synthetic samples, of which every batch has the same number."""
    if data_source(run.data) is None:
        return None
    return tf.TensorSpec((None, size_of(run), size_of(run), 3), tf.float32), tf.TensorSpec((None,), tf.int64)


class TensorFlowResNet50(TrainableWorkload):
    """ResNet-50 trained by the recipe of the run, on synthetic images or on files."""

    def __init__(self, run: RunSpec, device: str, rank: int) -> None:
        self._run, self._recipe = run, resnet50.recipe_of(run)
        self._schedule, self._peak = self._recipe.schedule, self._recipe.peak(run)
        self.model = ResNet50(resnet50.initial_values(run), compute_dtype(run.precision))
        self.reader = _reader(run, resnet50.image_size, device, rank)
        self.input = self.reader and self.reader.record
        self.batch_signature = _signature(run, resnet50.image_size)
        data: Synthetic | ImageReader
        if self.reader is not None:
            data = self.reader
        else:
            images, labels = resnet50.synthetic_batch(run, rank)
            with tf.device(device):
                data = Synthetic(tf.constant(np.ascontiguousarray(images.transpose(0, 2, 3, 1))), tf.constant(labels))
        self.batch, self.samples = data.batch, data.samples

    def loss(self, model: ResNet50, batch: tuple[Any, Any]) -> Any:
        images, labels = batch
        smoothing = self._recipe.label_smoothing
        wanted = tf.one_hot(labels, resnet50.CLASSES) * (1 - smoothing) + smoothing / resnet50.CLASSES
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, model(images)))

    def optimizer(self) -> Momentum:
        recipe = self._recipe
        norms = {f"{convolution.norm}.{kind}" for convolution in resnet50.convolutions() for kind in ("weight", "bias")}
        names = [variable.name.partition(":")[0] for variable in self.model.trainable_variables]
        decays = [0.0 if name in norms and not recipe.norms_decay else recipe.weight_decay for name in names]
        return Momentum(changing(self._run, recipe.learning_rate(self._run)), recipe.momentum, decays)


class MLP(tf.Module):  # type: ignore[misc]  # mypy is not shown TensorFlow
    """Dense layers with ReLU between them, computing in `dtype`; the parameters are float32."""

    def __init__(self, layers: Any, dtype: Any) -> None:
        super().__init__()
        self._dtype = dtype
        self.layers = [(tf.Variable(weight.T), tf.Variable(bias)) for weight, bias in layers]

    def __call__(self, features: Any) -> Any:
        """Features [N, inputs], or images [N, H, W, 3], to logits [N, outputs], float32."""
        if features.shape.rank == 4:  # flattened as torch and Paddle do, where channels come first
            features = tf.reshape(tf.transpose(features, (0, 3, 1, 2)), (-1, self.layers[0][0].shape[0]))
        x = tf.cast(features, self._dtype)
        for number, (weight, bias) in enumerate(self.layers):
            x = x if number == 0 else tf.nn.relu(x)
            x = tf.matmul(x, tf.cast(weight, self._dtype)) + tf.cast(bias, self._dtype)
        return tf.cast(x, tf.float32)


class TensorFlowMLP(TrainableWorkload):
    """The perceptron, trained by SGD with momentum, on synthetic samples or on files."""

    def __init__(self, run: RunSpec, device: str, rank: int) -> None:
        self._run, self._schedule, self._peak = run, mlp.SCHEDULE, mlp.PEAK
        self.model = MLP(mlp.initial_values(run), compute_dtype(run.precision))
        self.reader = _reader(run, mlp.image_size, device, rank)
        self.input = self.reader and self.reader.record
        self.batch_signature = _signature(run, mlp.image_size)
        data: Synthetic | ImageReader
        if self.reader is not None:
            data = self.reader
        else:
            with tf.device(device):
                data = Synthetic(*map(tf.constant, mlp.synthetic_batch(run, rank)))
        self.batch, self.samples = data.batch, data.samples

    def loss(self, model: MLP, batch: tuple[Any, Any]) -> Any:
        features, labels = batch
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(features)))

    def optimizer(self) -> Momentum:
        return Momentum(
            changing(self._run, mlp.LEARNING_RATE), mlp.MOMENTUM, [0.0] * len(self.model.trainable_variables)
        )
