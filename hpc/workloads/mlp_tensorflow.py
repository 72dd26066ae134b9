"""The tiny perceptron in TensorFlow."""

from __future__ import annotations

from typing import Any

from hpc.model.spec import RunSpec
from hpc.workloads.mlp import LEARNING_RATE, MOMENTUM, initial_values, synthetic_batch
from hpc.workloads.tensorflow_base import Momentum, compute_dtype, tf


class MLP(tf.Module):  # type: ignore[misc]  # mypy is not shown TensorFlow
    """Dense layers with ReLU between them, computing in `dtype`; the parameters are float32."""

    def __init__(self, layers: Any, dtype: Any) -> None:
        super().__init__()
        self._dtype = dtype
        self.layers = [(tf.Variable(weight.T), tf.Variable(bias)) for weight, bias in layers]

    def __call__(self, features: Any) -> Any:
        """Features [N, inputs] to logits [N, outputs], float32."""
        x = tf.cast(features, self._dtype)
        for number, (weight, bias) in enumerate(self.layers):
            x = x if number == 0 else tf.nn.relu(x)
            x = tf.matmul(x, tf.cast(weight, self._dtype)) + tf.cast(bias, self._dtype)
        return tf.cast(x, tf.float32)


class TensorFlowMLP:
    """Random features and labels, made once."""

    def __init__(self, run: RunSpec, device: str, rank: int) -> None:
        self.model = MLP(initial_values(run), compute_dtype(run.precision))
        features, labels = synthetic_batch(run, rank)
        with tf.device(device):
            self._features, self._labels = tf.constant(features), tf.constant(labels)

    def batch(self, step: int) -> tuple[Any, Any]:
        """The same features and labels every step."""
        return self._features, self._labels

    def loss(self, model: MLP, batch: tuple[Any, Any]) -> Any:
        """Cross entropy."""
        features, labels = batch
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(features)))

    def optimizer(self) -> Momentum:
        """SGD with momentum."""
        return Momentum(LEARNING_RATE, MOMENTUM, [0.0] * len(self.model.trainable_variables))

    def samples(self, batch: tuple[Any, Any]) -> int:
        """How many samples the batch has."""
        return len(batch[0])
