"""Precision in TensorFlow: set for Keras, verified in the traced graph, with a loss scale; and traced collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hpc.backends import InvalidRun
from hpc.workloads.tensorflow_base import HALVES, tf

_POLICIES = {"bf16": "mixed_bfloat16", "amp-fp16": "mixed_float16"}
# These operations only move or cast numbers.
_MOVING = frozenset({
    "Cast", "Const", "Fill", "Identity", "IdentityN", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp",
    "Reshape", "Shape", "StopGradient", "Transpose", "ZerosLike", "_Arg", "_Retval",
})  # fmt: skip
_COLLECTIVES = ("Horovod", "Collective")
"""Prefixes of the names of operations that communicate."""
_FIRST, _GROWTH, _BACKOFF, _GROWS_AFTER = 2.0**16, 2.0, 0.5, 2000
"""As in torch.amp.GradScaler, so that frameworks skip the same steps."""


def set_precision(precision: str) -> None:
    """Disables TF32 for fp32 (TensorFlow enables it by default), and sets the precision of Keras layers."""
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if policy := _POLICIES.get(precision):
        tf.keras.mixed_precision.set_global_policy(policy)


def check_traced(precision: str, graph: Any, workload: str) -> None:
    """Raises InvalidRun where the traced graph does not compute in the precision of the run."""
    computed = {half for half in HALVES.values() if _computes_in(half, graph)}
    requested = HALVES.get(precision)
    if requested is not None and requested not in computed:
        raise InvalidRun(
            f"precision {precision} was requested; nothing in the step of {workload} computes in {requested.name}: "
            "Keras' layers do so by themselves unless they are given a dtype, anything else must cast "
            "(docs/workloads.md)"
        )
    if others := sorted(half.name for half in computed if half != requested):
        raise InvalidRun(
            f"precision {precision} was requested; the step of {workload} computes in {', '.join(others)} too: the "
            "workload must leave the precision to the run (docs/workloads.md)"
        )


def _computes_in(dtype: Any, graph: Any) -> bool:
    return any(
        dtype.as_datatype_enum in (value.type, *value.list.type)
        for node in _nodes(graph)
        if node.op not in _MOVING and not node.op.startswith(_COLLECTIVES)
        for name, value in node.attr.items()
        if name in ("T", "dtype")
    )


def traced_collectives(graph: Any) -> list[str]:
    """The operations of a traced graph that communicate, as `CollectiveReduceV2 (3)`."""
    counts = Counter(node.op for node in _nodes(graph) if node.op.startswith(_COLLECTIVES))
    return [f"{name} ({count})" for name, count in sorted(counts.items())]


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a traced graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


class LossScale:
    """Skips steps whose gradients are not finite. A dynamic scale is halved then, and doubled after 2000 good ones."""

    def __init__(self, static: float | None) -> None:
        self._dynamic = static is None
        self.scale = tf.Variable(_FIRST if static is None else static, trainable=False, dtype=tf.float32)
        self._good_steps = tf.Variable(0, trainable=False, dtype=tf.int32)

    @property
    def variables(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"loss_scale": self.scale, "good_steps": self._good_steps}

    def scaled(self, loss: Any) -> Any:
        # In float32, because the scale alone may be more than float16 can hold.
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
