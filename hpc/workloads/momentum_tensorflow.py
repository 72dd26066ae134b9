"""Stochastic gradient descent with momentum in TensorFlow, by torch's formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Momentum:
    """v ← momentum · v + gradient + decay · w; w ← w − rate · v, with one operation per variable for momentum and step.

    (torch.optim.SGD; Keras has the rate inside the momentum, which is the same while the rate is constant.)
    """

    def __init__(self, learning_rate: float, momentum: float, decays: Sequence[float]) -> None:
        """`decays` has one weight decay per variable, in the order in which they will be given."""
        self._learning_rate, self._momentum, self._decays = learning_rate, momentum, tuple(decays)
        self._velocities: list[Any] = []

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the momentum of each variable: zeros."""
        self._velocities = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables]

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """One step."""
        of_each = zip(gradients, variables, self._velocities, self._decays, strict=True)
        for gradient, variable, velocity, decay in of_each:
            decayed = gradient + tf.constant(decay, variable.dtype) * variable if decay else gradient
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=velocity.handle,
                lr=tf.constant(self._learning_rate, variable.dtype),
                grad=decayed,
                momentum=tf.constant(self._momentum, variable.dtype),
            )
