"""Checks of a rank's device that are the same in every framework; each raises InvalidRun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc.backends import InvalidRun

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_AMPERE = (8, 0)


def check_one_gpu_per_rank(run: RunSpec) -> None:
    if run.gpus_per_node != run.ranks_per_node:
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs and {run.ranks_per_node} ranks per node were requested; "
            f"{run.backend} drives one GPU per rank"
        )


def check_sees_gpus(visible: int, run: RunSpec, world: World, framework: str, has_cuda: bool, build: str) -> None:
    """`framework` is its name and version, `build` the one to install where it sees no GPU."""
    if not visible:
        reason = (
            "no driver or no visible GPU"
            if has_cuda
            else f"this {framework.split(maxsplit=1)[0]} was built without CUDA"
        )
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs per node were requested; {framework} finds none on {world.hostname} ({reason}). "
            f"Install {build}, or state gpus_per_node = 0 in the site"
        )


def index_of_rank(world: World, visible: int) -> int:
    """The index of this rank's GPU among the `visible` ones."""
    place, needed = (world.rank, world.size) if world.nodes_simulated else (world.local_rank, world.local_size)
    index = 0 if visible == 1 else place  # one visible GPU: the launcher has bound each rank to its own
    if index >= visible:
        raise InvalidRun(f"{needed} ranks of {world.hostname} need a GPU each; rank {world.rank} sees {visible}")
    return index


def check_not_shared(world: World, comm: Intracomm, uuid: str) -> None:
    """Collective."""
    mine = (world.hostname, uuid)
    sharing = [rank for rank, theirs in enumerate(comm.allgather(mine)) if theirs == mine]
    if len(sharing) > 1:
        raise InvalidRun(f"ranks {', '.join(map(str, sharing))} share one GPU of {world.hostname}: bind one to each")


def check_cpu_precision(precision: str, fp16_slowdown: int) -> None:
    """`fp16_slowdown` is how many times slower than fp32 the framework trains in amp-fp16 on a CPU."""
    if precision == "tf32":
        raise InvalidRun("precision tf32 was requested; it is a mode of NVIDIA GPUs from Ampere on, not of CPUs")
    if precision == "amp-fp16":
        raise InvalidRun(
            "precision amp-fp16 was requested; a CPU has no fp16 training path worth the name (about "
            f"{fp16_slowdown} times slower than fp32): take fp32 or bf16"
        )


def check_gpu_precision(precision: str, name: str, capability: tuple[int, int]) -> None:
    if precision in ("tf32", "bf16") and capability < _AMPERE:
        raise InvalidRun(f"precision {precision} was requested; {name} is before Ampere")
