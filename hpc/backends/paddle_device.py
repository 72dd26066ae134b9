"""The device of a rank in Paddle: its choice, made before Paddle is imported, its abilities and its facts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends import device as checks
from hpc.backends.facts import CPU_DEVICE, DeviceFacts

if TYPE_CHECKING:
    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_LEAST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "amp-fp16": (7, 0)}


def gpu_of_rank(run: RunSpec, world: World) -> int | None:
    """The number of this rank's GPU among those that it can see, None where the run uses CPUs; imports no Paddle.

    The one that the launcher has bound to the rank, where CUDA_VISIBLE_DEVICES names a single one; else the one for the
    rank's place on its node.
    """
    if run.gpus_per_node == 0:
        return None
    checks.check_one_gpu_per_rank(run)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if len(visible) == 1 and visible[0]:
        return 0
    return world.rank if world.nodes_simulated else world.local_rank


def take_device(paddle: Any, index: int | None, run: RunSpec, world: World) -> Any:
    """Selects the device that Paddle computes on and returns its place. Raises InvalidRun where that is impossible."""
    if index is None:
        if run.precision == "tf32":
            checks.check_cpu_precision("tf32", 0)
        if run.precision != "fp32":
            raise InvalidRun(
                f"precision {run.precision} was requested; Paddle has no automatic mixed precision on CPUs and would "
                "silently compute in fp32: take fp32"
            )
        paddle.set_device("cpu")
        return paddle.CPUPlace()
    has_cuda = paddle.is_compiled_with_cuda()
    visible = paddle.device.cuda.device_count() if has_cuda else 0
    checks.check_sees_gpus(visible, run, world, f"Paddle {paddle.__version__}", has_cuda, "a CUDA build of Paddle")
    if index >= visible:
        raise InvalidRun(
            f"{run.ranks_per_node} ranks of {world.hostname} need a GPU each; rank {world.rank} sees {visible}"
        )
    paddle.set_device(f"gpu:{index}")
    _check_precision_of_gpu(paddle, run.precision)
    return paddle.CUDAPlace(index)


def _check_precision_of_gpu(paddle: Any, precision: str) -> None:
    """Refuses a precision that Paddle would replace by fp32 with only a warning; turns TF32 off for fp32 runs."""
    least = _LEAST_CAPABILITY.get(precision)
    if least is not None and (capability := tuple(paddle.device.cuda.get_device_capability())) < least:
        raise InvalidRun(
            f"precision {precision} was requested; it needs compute capability {least[0]}.{least[1]}, "
            f"{paddle.device.cuda.get_device_name()} has {capability[0]}.{capability[1]}"
        )
    paddle.base.core.set_cublas_switch(precision == "tf32")
    paddle.base.core.set_cudnn_switch(precision == "tf32")


def versions(paddle: Any) -> dict[str, Any]:
    """Versions of the libraries that determine the speed; None for one that this Paddle lacks."""
    if not paddle.is_compiled_with_cuda():
        return {"paddle": paddle.__version__, "cuda": None, "cudnn": None, "nccl": None}
    libraries = {name: getattr(paddle.version, name)() for name in ("cuda", "cudnn", "nccl")}
    return {"paddle": paddle.__version__, **{name: str(version) for name, version in libraries.items()}}


def describe_device(paddle: Any, index: int | None) -> DeviceFacts:
    if index is None:
        return CPU_DEVICE
    return DeviceFacts.of_gpu(paddle.device.cuda.get_device_properties(index))
