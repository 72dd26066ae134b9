"""Horovod on PyTorch: NCCL where the run has GPUs, MPI where it has none."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from hpc.backends import WorkloadError
from hpc.backends.horovod_group import horovod_facts, join_horovod, load_horovod
from hpc.backends.torch_loop import MakeOptimizer, PreparedCall, TorchCollectives, TorchLoop
from hpc.backends.training import BackendFacts
from hpc.measure.timer import StepTimer
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective
from hpc.workloads.collectives import ROOT

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World


class TorchHorovod(TorchLoop):
    """One process per device; Horovod averages gradients from hooks, in fused buffers, while backward goes on.

    t3 is the return of `backward()`, t4 that of `synchronize()`. Horovod's own `step()` is just `synchronize()` and the
    optimizer's step: calling them separately loses no overlap.
    """

    def _join_group(self, world: World, comm: Intracomm) -> str:
        # Imported here: Horovod may not load, and a mismatch is reported before it is loaded.
        self._hvd = load_horovod("torch", comm)
        self._options = join_horovod(self._hvd, "torch", self._options, self._run, comm)
        self._horovod = horovod_facts(self._hvd, self._run)
        return self._horovod.operations

    def _distribute(self, module: torch.nn.Module, make_optimizer: MakeOptimizer) -> tuple[Any, Any]:
        hvd, optimizer = self._hvd, make_optimizer()
        _check_takes_over(optimizer)
        values = chain(module.named_parameters(), module.named_buffers())
        hvd.broadcast_parameters([(name, _as_contiguous(value.detach())) for name, value in values], root_rank=0)
        # Check the reduced gradients for overflow, or ranks would disagree on taking the step.
        self._apart = self._reduces and (not self._step_only or self._scaler is not None)
        if not self._reduces:
            return module, optimizer
        # Horovod averages the gradients of what requires one now.
        local = list(getattr(self._workload, "local_parameters", []))
        for parameter in local:
            parameter.requires_grad_(False)
        distributed = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[*module.named_parameters(), *((f"local.{at}", p) for at, p in enumerate(local))],
            compression=_InAnyLayout(getattr(hvd.Compression, str(self._options["compression"]))),
            op=hvd.Average,
        )
        for parameter in local:
            parameter.requires_grad_(True)
        return module, distributed

    def _reduce(self, timer: StepTimer) -> None:
        timer.grads_ready()
        if self._apart:
            self._optimizer.synchronize()
        timer.reduced()

    def _update(self) -> None:
        with self._optimizer.skip_synchronize() if self._apart else nullcontext():
            super()._update()

    def _reduced_bytes(self) -> int:
        if self._options["compression"] == "fp16":
            return sum(2 * parameter.numel() for parameter in self._parameters)
        return super()._reduced_bytes()

    def group_facts(self) -> BackendFacts:
        return replace(super().group_facts(), horovod=self._horovod)

    def describe(self) -> BackendFacts:
        facts = super().describe()
        # `synchronize()` waits on the host for reductions that a GPU does, unless that is switched off.
        goes_on = os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION", "0") not in ("", "0")
        waits = self._device.type == "cuda" and not goes_on and self._reduces
        return replace(facts, synchronises_every_step=facts.synchronises_every_step or waits)

    def _leave_group(self) -> None:
        self._hvd.shutdown()


class _InAnyLayout:
    """A compression of Horovod's that takes tensors in channels_last too: Horovod itself wants contiguous ones only.

    Nothing is copied. Horovod gets the same memory with its dimensions in the order in memory.
    """

    def __init__(self, compression: Any) -> None:
        self._compression = compression

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        contiguous = _as_contiguous(tensor)
        compressed, context = self._compression.compress(contiguous)
        return compressed, (context, contiguous is not tensor)

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        of_compression, moved = context
        restored: torch.Tensor = self._compression.decompress(tensor, of_compression)
        return restored.permute(0, 3, 1, 2) if moved else restored


def _as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or one in channels_last seen as [N, H, W, C], the order in memory."""
    if tensor.is_contiguous() or not tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor
    return tensor.permute(0, 2, 3, 1)


def _check_takes_over(optimizer: torch.optim.Optimizer) -> None:
    """Raises WorkloadError for what Horovod would drop: it makes a new optimizer of the same class and groups."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or optimizer.state:
        raise WorkloadError(
            f"the {type(optimizer).__name__} of the workload has step hooks or state; Horovod makes a new optimizer of "
            "the same class and parameter groups and would drop them: override step() in a class of your own instead"
        )


class TorchHorovodCollectives(TorchCollectives, TorchHorovod):
    """Horovod's: NCCL or MPI. Each size keeps its name, as gradients do: Horovod's ranks agree on it once."""

    def prepare(self, collective: Collective, given: Any) -> PreparedCall:
        hvd, operation, name = self._hvd, collective.operation, f"{collective.operation}_{collective.bytes}"
        sent = torch.from_numpy(given).to(self._device)
        calls: dict[str, Callable[[], Any]] = {
            ALL_REDUCE: lambda: hvd.allreduce_(sent, op=hvd.Sum, name=name),
            REDUCE_SCATTER: lambda: hvd.reducescatter(sent, op=hvd.Sum, name=name),
            ALL_GATHER: lambda: hvd.allgather(sent, name=name),
            BROADCAST: lambda: hvd.broadcast_(sent, ROOT, name=name),
        }
        chosen, held = calls[operation], [sent]

        def call() -> None:
            held[0] = chosen()

        return call, lambda: held[0].cpu().numpy()
