"""PyTorch DistributedDataParallel: NCCL where the run has GPUs, gloo where it has none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
import torch.distributed
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpc.backends import BACKENDS
from hpc.backends.torch_loop import MakeOptimizer, PreparedCall, TorchCollectives
from hpc.backends.torch_process_group import ProcessGroupLoop
from hpc.backends.training import BackendFacts
from hpc.measure.timer import StepTimer
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective, partner_rank
from hpc.workloads.collectives import ROOT


class TorchDDP(ProcessGroupLoop):
    """One process per device, each with a replica; gradients are averaged in buckets while backward goes on.

    t3 comes from hooks that fire when a gradient is complete, and t4 when `backward()` has returned: the hooks change
    nothing of the reduction. A no-sync run has the same model in the same wrapping, in `no_sync()`.
    """

    def _distribute(self, module: torch.nn.Module, make_optimizer: MakeOptimizer) -> tuple[Any, Any]:
        options = self._options
        model = DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=_bucket_cap(float(options["bucket_cap_mb"])),
            gradient_as_bucket_view=bool(options["gradient_as_bucket_view"]),
            # DDP reduces a static graph in its first step and broadcasts buffers even if no_sync is set later.
            static_graph=bool(options["static_graph"]) and self._reduces,
            **_broadcasting_buffers(bool(options["broadcast_buffers"]) and self._reduces),
        )
        self._unreduced = ExitStack()
        if not self._reduces:
            self._unreduced.enter_context(model.no_sync())
        return model, make_optimizer()

    def _early_collectives(self) -> list[str]:
        broadcasts = self._options["broadcast_buffers"] and self._reduces and self._run.ranks > 1
        if broadcasts and any(True for _ in self._workload.model.buffers()):
            return ["DDP broadcasts buffers before each forward", *super()._early_collectives()]
        return super()._early_collectives()

    def describe(self) -> BackendFacts:
        facts = super().describe()
        if self._reduces:
            return facts
        return replace(facts, options={**facts.options, "static_graph": False, "broadcast_buffers": False})

    def make_timer(self, steps: int) -> StepTimer:
        """With `--timing phases` every gradient gets a hook."""
        timer = super().make_timer(steps)
        self._last = -1
        self._seen_last: set[int] = set()
        hooked = enumerate(self._parameters) if not self._step_only else ()
        self._hooks = [p.register_post_accumulate_grad_hook(self._make_hook(number)) for number, p in hooked]
        return timer

    def _make_hook(self, number: int) -> Any:
        def complete(_: torch.Tensor) -> None:
            self._last = number
            self._timer.grads_ready()

        return complete

    def release(self) -> None:
        """Removes the hooks of parameters whose gradients were never a step's last.

        Where the graph may change, or no step has been made, none is removed.
        """
        super().release()
        if not self._options["static_graph"] or not self._seen_last:
            return
        for number, hook in enumerate(self._hooks):
            if number not in self._seen_last:
                hook.remove()

    def _reduce(self, timer: StepTimer) -> None:
        timer.reduced()
        self._seen_last.add(self._last)

    def leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._unreduced.close()
        super().leave()


def _bucket_cap(cap_mib: float) -> float | None:
    """The bucket cap for DDP; None for the default, with which DDP starts early with a small first bucket (1 MiB)."""
    default = BACKENDS["torch-ddp"].options["bucket_cap_mb"].default
    return None if cap_mib == default else cap_mib


def _broadcasting_buffers(wanted: bool) -> dict[str, Any]:
    """DDP's switch under the name that this torch has for it: 2.13 renamed it."""
    names = ("forward_sync_buffers", "broadcast_buffers")
    known = signature(DistributedDataParallel.__init__).parameters
    return {next(name for name in names if name in known): wanted}


class TorchDDPCollectives(TorchCollectives, TorchDDP):
    """torch.distributed's, NCCL or gloo: those that torch-fsdp calls, too."""

    def prepare(self, collective: Collective, given: Any) -> PreparedCall:
        operation = collective.operation
        sent = torch.from_numpy(given).to(self._device)
        if collective.turn is not None:
            return self._exchange(collective.turn, sent)
        got = sent if operation in self.in_place else torch.empty(collective.got, device=self._device)
        reduce_scatter, all_gather = _newest("reduce_scatter"), _newest("all_gather")
        calls: dict[str, Callable[[], Any]] = {
            ALL_REDUCE: lambda: dist.all_reduce(got),
            REDUCE_SCATTER: lambda: reduce_scatter(got, sent),
            ALL_GATHER: lambda: all_gather(got, sent),
            BROADCAST: lambda: dist.broadcast(got, ROOT),
        }
        return calls[operation], lambda: got.cpu().numpy()

    def _exchange(self, turn: int, sent: torch.Tensor) -> PreparedCall:
        other = partner_rank(self._run, self._rank, turn)
        if other is None:
            return lambda: None, lambda: sent.cpu().numpy()
        got = torch.empty_like(sent)
        both = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]

        def call() -> None:
            for work in dist.batch_isend_irecv(both):
                work.wait()

        return call, lambda: got.cpu().numpy()


def _newest(operation: str) -> Any:
    """The function on one tensor under the name that this torch has for it: 2.13 renamed both."""
    older = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}[operation]
    return getattr(dist, f"{operation}_single", None) or getattr(dist, older)
