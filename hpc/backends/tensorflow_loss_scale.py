"""The loss scale of amp-fp16: the loss is multiplied before its gradients are taken, which are divided afterwards."""

from __future__ import annotations

from typing import Any

from hpc.workloads.tensorflow_base import tf

_FIRST, _GROWTH, _BACKOFF, _GROWS_AFTER = 2.0**16, 2.0, 0.5, 2000
"""Those of torch.amp.GradScaler, so that frameworks skip alike."""


class LossScale:
    """Skips steps whose gradients are not finite. A dynamic scale is halved then, and doubled after 2000 good ones."""

    def __init__(self, static: float | None) -> None:
        self._dynamic = static is None
        self.scale = tf.Variable(_FIRST if static is None else static, trainable=False, dtype=tf.float32)
        self._good_steps = tf.Variable(0, trainable=False, dtype=tf.int32)

    def scaled(self, loss: Any) -> Any:
        """What gradients are taken of: in float32, because the scale alone may be more than float16 can hold."""
        return tf.cast(loss, tf.float32) * self.scale

    def apply(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        """Steps with gradients of the scaled loss: the reduced ones, or ranks would disagree on taking the step."""
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])

        def take() -> Any:
            optimizer.apply([gradient / tf.cast(self.scale, gradient.dtype) for gradient in gradients], variables)
            self._good_steps.assign_add(1)
            return tf.no_op()

        def skip() -> Any:
            self._good_steps.assign(0)
            if self._dynamic:
                self.scale.assign(self.scale * _BACKOFF)
            return tf.no_op()

        tf.cond(finite, take, skip)
        if self._dynamic:
            grows = tf.equal(self._good_steps, _GROWS_AFTER)
            self.scale.assign(tf.where(grows, self.scale * _GROWTH, self.scale))
            self._good_steps.assign(tf.where(grows, 0, self._good_steps))
