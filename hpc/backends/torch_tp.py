"""Tensor parallelism by DTensor inside a node, data parallelism between groups of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from hpc.backends import InvalidRun
from hpc.backends.limits import group_size_of, tp_refusal
from hpc.backends.rank_groups import not_on_one_node
from hpc.backends.torch_loop import MakeOptimizer, functional_recorded
from hpc.backends.torch_process_group import ProcessGroupLoop
from hpc.measure.timer import StepTimer

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


class OneInput(ParallelStyle):
    """The layers of a module share its first input as one DTensor: backward adds up its gradient once for all."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        def shared(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            first = DTensor.from_local(inputs[0], device_mesh, (Replicate(),), run_check=False)
            return first, *inputs[1:]

        module.register_forward_pre_hook(shared)
        return module


STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "columns": ColwiseParallel,
    "gathered columns": partial(ColwiseParallel, output_layouts=Replicate()),
    "rows": RowwiseParallel,
    "one input": OneInput,
    "embedding": partial(RowwiseParallel, input_layouts=Replicate()),
}
"""How a layer is split, by the words of a workload's `tensor_parallel_plan`."""


class TorchTP(ProcessGroupLoop):
    """A group of neighbouring ranks on a node holds one model, each rank its part of every layer of the plan.

    All ranks of a group train on the group's samples: those that its ranks would have each under data parallelism. The
    gradients of equal parts are averaged over the groups as they become complete, t3 is the last of them, t4 when all
    averages are there. One group averages nothing: both are when `backward()` has returned. The functional collectives
    that DTensor calls inside a group are recorded on CPUs.
    """

    def _find_device(self, run: RunSpec, world: World, comm: Intracomm) -> torch.device:
        if reason := tp_refusal(run, self._options):
            raise InvalidRun(reason)
        self._split = group_size_of(run, self._options)
        self._groups = run.ranks // self._split
        if reason := not_on_one_node(self._split, world, comm):
            raise InvalidRun(reason)
        return super()._find_device(run, world, comm)

    def build(self, factory: Any) -> None:
        super().build(partial(self._workload_of_group, factory))

    def _workload_of_group(self, factory: Any, run: RunSpec, device: torch.device, rank: int) -> Any:
        """The workload, for which each group is one rank with the samples of all."""
        its_run = replace(
            run,
            ranks_per_node=run.ranks_per_node // self._split,
            gpus_per_node=run.gpus_per_node // self._split,
            batch_size=run.batch_size * (self._split if run.scaling == "weak" else 1),
        )
        return factory(its_run, device, rank // self._split)

    def _distribute(self, module: torch.nn.Module, make_optimizer: MakeOptimizer) -> tuple[Any, Any]:
        plan = getattr(self._workload, "tensor_parallel_plan", None)
        if not plan:
            raise InvalidRun(
                "the workload has no tensor_parallel_plan, which says how each layer is split over the ranks "
                "(docs/workloads.md): add one, or take torch-ddp"
            )
        if unknown := sorted(set(plan.values()) - set(STYLES)):
            raise InvalidRun(f"tensor_parallel_plan has {', '.join(unknown)}; known: {', '.join(STYLES)}")
        for value in chain(module.parameters(), module.buffers()):
            dist.broadcast(value.detach(), 0)
        mesh = init_device_mesh(self._device.type, (self._groups, self._split), mesh_dim_names=("dp", "tp"))
        shared = _shared_parameters(module)
        parallelize_module(module, mesh["tp"], {name: STYLES[style]() for name, style in plan.items()})
        _share_again(shared)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._replicas = mesh.get_group("dp")
        self._works: list[Any] = []
        hooked = self._parameters if self._groups > 1 else []
        self._hooks = [p.register_post_accumulate_grad_hook(self._average) for p in hooked]
        return module, make_optimizer()

    def _average(self, parameter: torch.Tensor) -> None:
        """A gradient is complete on this rank: begins to average it over the groups."""
        assert parameter.grad is not None
        self._timer.grads_ready()
        local = _local(parameter.grad)
        local.div_(self._groups)
        self._works.append(dist.all_reduce(local, group=self._replicas, async_op=True))

    def _reduce(self, timer: StepTimer) -> None:
        if self._groups == 1:
            timer.grads_ready()
        for work in self._works:
            work.wait()
        self._works.clear()
        timer.reduced()

    def step(self, index: int, timer: StepTimer) -> int:
        """The samples of a group are shared by its ranks, so that those of all ranks add up to the batch."""
        each, rest = divmod(super().step(index, timer), self._split)
        return each + (self._rank % self._split < rest)

    def _early_collectives(self) -> list[str]:
        sums = ["the ranks of a node add up activations in every layer"] if self._split > 1 else []
        return [*sums, *super()._early_collectives()]

    def _records_collectives(self) -> bool:
        return self._split > 1 and self._device.type == "cpu" and super()._records_collectives()

    def _reduction(self) -> Mapping[str, Any] | None:
        if not self._records_collectives():
            return None
        if self._groups == 1:
            return {"by": "calls"}
        return {
            "by": "wrapper",
            "ranks": [*range(self._rank % self._split, self._run.ranks, self._split)],
            "dimension": "dp",
        }

    def make_timer(self, steps: int) -> StepTimer:
        timer = super().make_timer(steps)
        if self._records_collectives():
            self._recording.enter_context(functional_recorded(self._meetings))
        return timer

    def _not_recorded(self) -> Any:
        return self._replicas

    def _reduced_bytes(self) -> int:
        """Of the parts on this rank; none where there is one group."""
        local = [_local(parameter.detach()) for parameter in self._parameters] if self._groups > 1 else []
        return sum(part.numel() * part.element_size() for part in local)

    def parameters(self) -> list[Any]:
        """Whole ones. Collective."""
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in self._parameters]
        return [value.detach().cpu().numpy().copy() for value in whole]

    def leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        del self._replicas
        super().leave()


def _local(value: torch.Tensor) -> torch.Tensor:
    """This rank's part, in its own memory."""
    with torch.no_grad():
        part = value.to_local() if isinstance(value, DTensor) else value
    return part.wait() if isinstance(part, AsyncCollectiveTensor) else part


def _shared_parameters(module: torch.nn.Module) -> list[list[tuple[torch.nn.Module, str]]]:
    """The places of each parameter that several modules have."""
    places: dict[int, list[tuple[torch.nn.Module, str]]] = defaultdict(list)
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            places[id(parameter)].append((part, name))
    return [its for its in places.values() if len(its) > 1]


def _share_again(shared: list[list[tuple[torch.nn.Module, str]]]) -> None:
    """Splitting made a parameter of its own in each of these places. Raises InvalidRun where they are split apart."""
    for (first, name), *others in shared:
        parameter = getattr(first, name)
        for part, its_name in others:
            if getattr(getattr(part, its_name), "placements", ()) != getattr(parameter, "placements", ()):
                raise InvalidRun(f"{name} is shared by modules that tensor_parallel_plan splits in different ways")
            setattr(part, its_name, parameter)
