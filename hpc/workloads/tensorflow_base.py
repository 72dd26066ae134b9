"""TensorFlow, imported after the variables that it reads only then are set; and what its models share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpc.model.spec import RunSpec

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors and warnings: not every library that is looked for
# Keras comes with TensorFlow and would import the framework that the user's settings name.
os.environ["KERAS_BACKEND"] = "tensorflow"


@contextmanager
def _without(*packages: str) -> Iterator[None]:
    """As if these were not installed, unless they are imported already; afterwards they can be."""
    hidden = dict.fromkeys({*packages} - {*sys.modules})
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None: the import fails
    try:
        yield
    finally:
        for package in hidden:
            sys.modules.pop(package)


# Keras takes these along where they are installed, for wrappers and plots: a third of the time of this import.
with _without("sklearn", "matplotlib"):
    import tensorflow as tf

__all__ = ["HALVES", "Momentum", "changing", "compute_dtype", "tf"]

HALVES = {"bf16": tf.bfloat16, "amp-fp16": tf.float16}


def compute_dtype(precision: str) -> Any:
    """The dtype in which a model multiplies; parameters and loss stay in float32."""
    return HALVES.get(precision, tf.float32)


def changing(run: RunSpec, learning_rate: float) -> Any:
    """The rate for an optimizer: a variable in a whole training, whose epochs have rates of their own."""
    return tf.Variable(learning_rate, trainable=False) if run.epochs else learning_rate


class Momentum:
    """v ← momentum · v + gradient + decay · w; w ← w − rate · v, with one operation per variable for momentum and step.

    (torch.optim.SGD; Keras has the rate inside the momentum, which is the same while the rate is constant.)
    `decays` has one weight decay per variable, in the order of `build` and `apply`. A `learning_rate` that is a
    variable may change from epoch to epoch. `velocities` are there after `build`.
    """

    def __init__(self, learning_rate: Any, momentum: float, decays: Sequence[float]) -> None:
        self.learning_rate, self._momentum, self._decays = learning_rate, momentum, tuple(decays)
        self.velocities: list[Any] = []

    def build(self, variables: Sequence[Any]) -> None:
        self.velocities = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables]

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        per_variable = zip(gradients, variables, self.velocities, self._decays, strict=True)
        for gradient, variable, velocity, decay in per_variable:
            decayed = gradient + tf.constant(decay, variable.dtype) * variable if decay else gradient
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=velocity.handle,
                lr=tf.convert_to_tensor(self.learning_rate, variable.dtype),
                grad=decayed,
                momentum=tf.constant(self._momentum, variable.dtype),
            )
