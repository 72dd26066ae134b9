"""The device of a rank in torch: which one, what it can do, what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hpc.backends import InvalidRun
from hpc.backends.facts import CPU_DEVICE, DeviceFacts

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_AMPERE = (8, 0)


def device_of_rank(run: RunSpec, world: World, comm: Intracomm) -> torch.device:
    """This rank's device: of the GPUs that it can see, the one for its place on the node. Collective."""
    if run.gpus_per_node == 0:
        return torch.device("cpu")
    if run.gpus_per_node != run.ranks_per_node:
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs and {run.ranks_per_node} ranks per node were asked for; "
            f"{run.backend} drives one GPU per rank"
        )
    visible = visible_gpus(run, world)
    place, needed = (world.rank, world.size) if world.nodes_simulated else (world.local_rank, world.local_size)
    index = 0 if visible == 1 else place  # one visible GPU: the launcher has bound each rank to its own
    if index >= visible:
        raise InvalidRun(f"{needed} ranks of {world.hostname} need a GPU each; rank {world.rank} sees {visible}")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    mine = (world.hostname, str(torch.cuda.get_device_properties(device).uuid))
    sharing = [rank for rank, theirs in enumerate(comm.allgather(mine)) if theirs == mine]
    if len(sharing) > 1:
        raise InvalidRun(f"ranks {', '.join(map(str, sharing))} share one GPU of {world.hostname}: bind one to each")
    return device


def visible_gpus(run: RunSpec, world: World) -> int:
    """How many GPUs this rank can see. Raises InvalidRun where it sees none."""
    if not torch.cuda.is_available():
        reason = "this torch was built without CUDA" if torch.version.cuda is None else "no driver or no visible GPU"
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs per node were asked for; torch {torch.__version__} finds none on "
            f"{world.hostname} ({reason}). Install a CUDA build of torch, or state gpus_per_node = 0 in the site"
        )
    return torch.cuda.device_count()


def check_precision(precision: str, device: torch.device) -> None:
    """Raises InvalidRun where the device cannot do the precision: it is never run as something else."""
    if device.type == "cpu":
        if precision == "tf32":
            raise InvalidRun("precision tf32 was asked for; it is a mode of NVIDIA GPUs from Ampere on, not of CPUs")
        if precision == "amp-fp16":
            raise InvalidRun(
                "precision amp-fp16 was asked for; a CPU has no fp16 training path worth the name (about 30 times "
                "slower than fp32): take fp32 or bf16"
            )
    elif precision in ("tf32", "bf16") and torch.cuda.get_device_capability(device) < _AMPERE:
        raise InvalidRun(f"precision {precision} was asked for; {torch.cuda.get_device_name(device)} is before Ampere")


def set_tf32(allowed: bool) -> None:
    """fp32 means fp32: torch lets convolutions use TF32 unless it is told not to."""
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
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        kind="gpu",
        name=properties.name,
        uuid=str(properties.uuid),
        memory_bytes=properties.total_memory,
        capability=f"{properties.major}.{properties.minor}",
    )
