"""What a run's precision is in TensorFlow: told to Keras and to our models, and looked for in what they trace."""

from __future__ import annotations

from typing import Any

from hpc.backends import InvalidRun
from hpc.backends.tensorflow_graph import REDUCING, nodes
from hpc.workloads.tensorflow_base import HALVES, compute_dtype, tf

__all__ = ["check_traced", "compute_dtype", "set_precision"]

_POLICIES = {"bf16": "mixed_bfloat16", "amp-fp16": "mixed_float16"}
# These move numbers or give them another type; they compute nothing.
_MOVING = frozenset({
    "Cast", "Const", "Fill", "Identity", "IdentityN", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp",
    "Reshape", "Shape", "StopGradient", "Transpose", "ZerosLike", "_Arg", "_Retval",
})  # fmt: skip


def set_precision(precision: str) -> None:
    """fp32 means fp32: TensorFlow takes TF32 unless it is told not to. Keras' layers compute as the run asks."""
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if policy := _POLICIES.get(precision):
        tf.keras.mixed_precision.set_global_policy(policy)


def check_traced(precision: str, graph: Any, workload: str) -> None:
    """Raises InvalidRun where the traced graph does not compute in the precision of the run."""
    computed = {half for half in HALVES.values() if _computes_in(half, graph)}
    requested = HALVES.get(precision)
    if requested is not None and requested not in computed:
        raise InvalidRun(
            f"precision {precision} was asked for; nothing in the step of {workload} computes in {requested.name}: "
            "Keras' layers do so by themselves unless they are given a dtype, anything else must cast "
            "(docs/workloads.md)"
        )
    if others := sorted(half.name for half in computed if half != requested):
        raise InvalidRun(
            f"precision {precision} was asked for; the step of {workload} computes in {', '.join(others)} too: the "
            "workload must leave the precision to the run (docs/workloads.md)"
        )


def _computes_in(dtype: Any, graph: Any) -> bool:
    return any(
        dtype.as_datatype_enum in (value.type, *value.list.type)
        for node in nodes(graph)
        if node.op not in _MOVING and not node.op.startswith(REDUCING)
        for name, value in node.attr.items()
        if name in ("T", "dtype")
    )
