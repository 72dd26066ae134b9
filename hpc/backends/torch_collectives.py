"""The collectives of both torch backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hpc.backends.torch_ddp import TorchDDP
from hpc.backends.torch_horovod import TorchHorovod
from hpc.backends.torch_loop import TorchLoop
from hpc.measure.timer import StepTimer
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective, partner_rank
from hpc.workloads.collectives import ROOT

PreparedCall = tuple[Callable[[], None], Callable[[], Any]]


class _Collectives(TorchLoop):
    """The shared part of both Groups."""

    in_place = (ALL_REDUCE, BROADCAST)

    def make_timer(self, steps: int) -> StepTimer:
        # Never a strategy's own, which would put hooks on gradients.
        return TorchLoop.make_timer(self, steps)

    def leave(self) -> None:
        self._leave_group()


class TorchDDPCollectives(_Collectives, TorchDDP):
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


class TorchHorovodCollectives(_Collectives, TorchHorovod):
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


def _newest(operation: str) -> Any:
    """The function on one tensor under the name that this torch has for it: 2.13 renamed both."""
    older = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}[operation]
    return getattr(dist, f"{operation}_single", None) or getattr(dist, older)
