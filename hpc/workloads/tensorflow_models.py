"""ResNet-50 v1.5 and the tiny perceptron in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc.model.data_source import data_source
from hpc.model.spec import RunSpec
from hpc.workloads import mlp, resnet50
from hpc.workloads.synthetic import Synthetic
from hpc.workloads.tensorflow_base import Momentum, changing, compute_dtype, tf
from hpc.workloads.whole_training import Mixup, TrainableWorkload

if TYPE_CHECKING:
    from hpc.workloads.image_reader import ImageReader


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
    from hpc.workloads.tensorflow_images import image_reader

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
        self._mixup = Mixup(run, rank)
        # A variable, which the graph reads: a share drawn for each step.
        self._share = tf.Variable(1.0, trainable=False)
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
        self._batch, self.samples = data.batch, data.samples

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self._mixup.begin_epoch(epoch)

    def batch(self, step: int) -> tuple[Any, Any]:
        if self._mixup.alpha:
            self._share.assign(self._mixup.draw())
        batch: tuple[Any, Any] = self._batch(step)
        return batch

    def loss(self, model: ResNet50, batch: tuple[Any, Any]) -> Any:
        images, labels = batch
        smoothing = self._recipe.label_smoothing
        wanted = tf.one_hot(labels, resnet50.CLASSES) * (1 - smoothing) + smoothing / resnet50.CLASSES
        if self._mixup.alpha:  # each image with the one at the mirrored place of its batch
            images = images * self._share + tf.reverse(images, [0]) * (1 - self._share)
            wanted = wanted * self._share + tf.reverse(wanted, [0]) * (1 - self._share)
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
