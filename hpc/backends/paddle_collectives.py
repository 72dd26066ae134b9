"""Paddle's collectives: NCCL where the run has GPUs, gloo where it has none."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from hpc.backends.paddle_fleet import PaddleFleet
from hpc.measure.timer import StepTimer
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective
from hpc.workloads.collectives import ROOT


class PaddleCollectives(PaddleFleet):
    """A Group; gloo has no reduce-scatter in Paddle."""

    in_place = (ALL_REDUCE, BROADCAST)

    def make_timer(self, steps: int) -> StepTimer:
        return self._device_timer(steps)

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        dist, operation = self._paddle.distributed, collective.operation
        sent = self._paddle.to_tensor(given, place=self._place)
        got = sent if operation in self.in_place else self._paddle.empty([collective.got], sent.dtype)
        calls: dict[str, Callable[[], Any]] = {
            ALL_REDUCE: lambda: dist.all_reduce(got),
            REDUCE_SCATTER: lambda: dist.stream.reduce_scatter(got, sent),
            ALL_GATHER: lambda: dist.stream.all_gather(got, sent),
            BROADCAST: lambda: dist.broadcast(got, ROOT),
        }
        self._wait_for_all()  # gloo would not wait long for a rank that is late
        return calls[operation], got.numpy

    def leave(self) -> None:
        gc.collect()
        self._paddle.distributed.destroy_process_group()
        if self._gpu is not None:
            self._paddle.device.cuda.empty_cache()
