"""The device of a rank in torch: its choice, abilities and facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hpc.backends import device as checks
from hpc.backends.facts import CPU_DEVICE, DeviceFacts

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


def device_of_rank(run: RunSpec, world: World, comm: Intracomm) -> torch.device:
    """This rank's device: of the visible GPUs, the one for its place on the node. Raises InvalidRun. Collective."""
    if run.gpus_per_node == 0:
        return torch.device("cpu")
    checks.check_one_gpu_per_rank(run)
    device = torch.device("cuda", checks.index_of_rank(world, visible_gpus(run, world)))
    torch.cuda.set_device(device)
    checks.check_not_shared(world, comm, str(torch.cuda.get_device_properties(device).uuid))
    return device


def visible_gpus(run: RunSpec, world: World) -> int:
    """The number of GPUs that this rank sees. Raises InvalidRun where it sees none."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name, has_cuda = f"torch {torch.__version__}", torch.version.cuda is not None
    checks.check_sees_gpus(visible, run, world, name, has_cuda, "a CUDA build of torch")
    return visible


def check_precision(precision: str, device: torch.device) -> None:
    """Raises InvalidRun where the device lacks the precision: it is never replaced by another one."""
    if device.type == "cpu":
        checks.check_cpu_precision(precision, fp16_slowdown=30)
    else:
        name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        checks.check_gpu_precision(precision, name, capability)


def set_tf32(allowed: bool) -> None:
    """Disables TF32 for fp32: torch enables it for convolutions by default."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def versions() -> dict[str, Any]:
    """Versions of the libraries that determine the speed; None for one that this torch lacks."""
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]  # torch has none
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]  # torch has none
        "nccl": nccl and ".".join(map(str, nccl)),
    }


def describe_device(device: torch.device) -> DeviceFacts:
    if device.type == "cpu":
        return CPU_DEVICE
    return DeviceFacts.of_gpu(torch.cuda.get_device_properties(device))
