"""PyTorch FSDP2 (`fully_shard`): parameters, gradients and the optimizer's state are shards, one on each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from hpc.backends import InvalidRun
from hpc.backends.limits import NODE, shard_group_size
from hpc.backends.torch_loop import MakeOptimizer, recorded
from hpc.backends.torch_process_group import ProcessGroupLoop
from hpc.backends.training import synchronised_norms
from hpc.measure.meetings import Meetings
from hpc.measure.timer import StepTimer
from hpc.model.collective_plan import ALL_REDUCE, REDUCE_SCATTER

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

OLDEST_ON_CPUS = "2.13.0a0"
"""In 2.6.0 torch.cpu.Stream lacks record_event; with 2.7.1 two ranks do not learn in fp32 what one process learns from
the whole batch. Versions between them and 2.13 were not tried."""

RESHARD: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "on": {"reshard_after_forward": True},
    "off": {"reshard_after_forward": False},
}
"""The argument as FSDP2 takes it; without one every module is resharded but the root (None, of torch 2.6 True)."""


class TorchFSDP(ProcessGroupLoop):
    """Each child of the model is gathered before its forward and its backward; its gradients are reduced and scattered.

    The children are those of `_parts`, or the `blocks` that a workload names. With several groups of shards (hybrid
    sharding) each group holds a whole model, and the groups' gradients are reduced behind those of the ranks in them.

    t3 is the call of a step's last reduce-scatter (where each rank has all shards of the last all-reduce), t4 when
    `backward()` has returned. One rank reduces nothing: both are the latter; so they are with several groups of several
    shards, whose recorded collectives are all that reduces. Collectives are recorded on CPUs. On GPUs
    FSDP2 calls them on streams of its own, where events of the compute stream do not see them: there only t3 is taken
    from the calls.
    """

    def _begin(self, run: RunSpec, rank: int) -> None:
        # The workload's images have the layout of the parameters, which FSDP2 wants contiguous.
        super()._begin(replace(run, options={"channels_last": "off", **run.options}), rank)

    def _find_device(self, run: RunSpec, world: World, comm: Intracomm) -> torch.device:
        if not run.gpus_per_node and torch.__version__ < OLDEST_ON_CPUS:
            raise InvalidRun(
                f"FSDP2 of torch {torch.__version__} is not known to learn right on CPUs: take torch 2.13 or newer, "
                "GPUs, or torch-ddp"
            )
        self._shards = shard_group_size(run, self._options)
        if self._options["shard_group"] == NODE and (reason := _not_on_one_node(self._shards, world, comm)):
            raise InvalidRun(reason)
        return super()._find_device(run, world, comm)

    def _distribute(self, module: torch.nn.Module, make_optimizer: MakeOptimizer) -> tuple[Any, Any]:
        if getattr(self._workload, "local_parameters", []):
            raise InvalidRun(
                "the workload has local_parameters, which its optimizer would update together with FSDP2's shards: "
                "take torch-ddp, or for arcface head=replicated"
            )
        parts: list[torch.nn.Module] = getattr(self._workload, "blocks", None) or [*_parts(module)]
        if max(Counter(id(parameter) for part in parts for parameter in part.parameters()).values(), default=0) > 1:
            raise InvalidRun(
                "children of the model share a parameter, which FSDP2 would shard once only: take torch-ddp"
            )
        for value in chain(module.parameters(), module.buffers()):
            dist.broadcast(value.detach(), 0)
        mesh = self._mesh()
        reshard = RESHARD[str(self._options["reshard_after_forward"])]
        for part in (*parts, module):
            fully_shard(part, mesh=mesh, **reshard)
        self._parts = parts
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        return module, make_optimizer()

    def _mesh(self) -> DeviceMesh:
        """All ranks in one dimension; with several groups of shards they are the second, their replicas the first."""
        if self._shards < self._run.ranks:
            shape = (self._run.ranks // self._shards, self._shards)
            return init_device_mesh(self._device.type, shape, mesh_dim_names=("dp_replicate", "dp_shard"))
        world = dist.group.WORLD
        assert world is not None  # joined
        return DeviceMesh.from_group(world, self._device.type)

    def _compile(self) -> None:
        """Each part alone: FSDP2's collectives, in hooks around its forward, stay outside of the graphs."""
        for part in self._parts:
            part.forward = torch.compile(part.forward)

    def _early_collectives(self) -> list[str]:
        gathers = ["FSDP gathers parameters before each module"] if self._run.ranks > 1 else []
        return [*gathers, *super()._early_collectives()]

    def _reduction(self) -> Mapping[str, Any] | None:
        grouped = 1 < self._shards < self._run.ranks and self._records_collectives()
        return {"by": "calls"} if grouped else None

    def _records_collectives(self) -> bool:
        return not self._step_only and self._run.ranks > 1 and self._device.type == "cpu"

    def _unrecorded_collectives(self) -> list[str]:
        if self._records_collectives() and self._options["compile"]:  # of what the graphs of the parts hold
            return synchronised_norms(self._run, self._workload.model.modules())
        return super()._unrecorded_collectives()

    def make_timer(self, steps: int) -> StepTimer:
        timer = super().make_timer(steps)
        if self._device.type == "cuda" and not self._step_only:
            self._recording.enter_context(recorded(Meetings(0, 0), self._collective_called))
        return timer

    def _collective_called(self, name: str) -> None:
        # Groups of one rank scatter nothing: their gradients are only reduced between the groups.
        if name == (ALL_REDUCE if self._shards == 1 else REDUCE_SCATTER):
            self._timer.grads_ready()

    def _reduce(self, timer: StepTimer) -> None:
        if self._run.ranks == 1 or self._reduction() is not None:
            timer.grads_ready()
        timer.reduced()

    def parameters(self) -> list[Any]:
        """Whole ones. Collective."""
        whole = [parameter.full_tensor() for parameter in self._parameters]
        return [value.detach().cpu().numpy().copy() for value in whole]


def _not_on_one_node(size: int, world: World, comm: Intracomm) -> str:
    """The reason why groups of that size are not each on one node, for all ranks the same; else empty. Collective."""
    nodes = comm.allgather(world.node_rank)
    for first in range(0, len(nodes), size):
        if len(group := set(nodes[first : first + size])) > 1:
            return (
                f"ranks {first} to {first + size - 1} were to be on one node and are on {len(group)}: start the ranks "
                "of each node one after the other, by srun --distribution=block or mpirun --map-by slot"
            )
    return ""


def _parts(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The children that are gathered one by one: those with trainable parameters; of a list of modules, its own."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):  # without a forward that could gather them
            yield from _parts(child)
        elif any(parameter.requires_grad for parameter in child.parameters()):
            yield child
