"""PyTorch DataParallel: one rank splits its batch over all GPUs of one node, in threads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hpc.backends import InvalidRun
from hpc.backends.torch_loop import HALF, MakeOptimizer, TorchLoop, check_precision, describe_device, visible_gpus
from hpc.backends.training import BackendFacts
from hpc.measure.timer import StepTimer

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


class TorchDP(TorchLoop):
    """The model is on the first GPU; every step copies it to the others and adds their gradients up on the first.

    That sum is a part of backward, so there is no telling when a GPU's own gradients were complete: t3 is absent, and
    t4 is when `backward()` has returned.
    """

    absent = ("grads_ready",)

    def _find_device(self, run: RunSpec, world: World, comm: Intracomm) -> torch.device:
        if (visible := visible_gpus(run, world)) < run.gpus_per_node:
            raise InvalidRun(f"{run.gpus_per_node} GPUs per node were requested; {world.hostname} shows {visible}")
        self._devices = [torch.device("cuda", index) for index in range(run.gpus_per_node)]
        for device in self._devices:
            check_precision(run.precision, device)
        torch.cuda.set_device(self._devices[0])
        return self._devices[0]

    def _join_group(self, world: World, comm: Intracomm) -> str:
        return "nccl" if len(self._devices) > 1 else "none"

    def _distribute(self, module: torch.nn.Module, make_optimizer: MakeOptimizer) -> tuple[Any, Any]:
        half = HALF.get(self._run.precision)
        inner = module if half is None else Autocasting(module, half)
        return torch.nn.DataParallel(inner, device_ids=self._devices), make_optimizer()

    def _reduce(self, timer: StepTimer) -> None:
        timer.reduced()

    def _leave_group(self) -> None:
        """No group was formed: one rank drives all devices."""

    def describe(self) -> BackendFacts:
        return replace(super().describe(), devices=[describe_device(device) for device in self._devices])


class Autocasting(torch.nn.Module):
    """A module under autocast in every thread: DataParallel's threads inherit autocast, but as fp16 even for bf16."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype, device_type: str = "cuda") -> None:
        super().__init__()
        self.module = module
        self._dtype, self._device_type = dtype, device_type

    def forward(self, *batch: Any, **named: Any) -> Any:
        with torch.autocast(self._device_type, dtype=self._dtype):
            return self.module(*batch, **named)
