"""Paddle's collectives: NCCL where the run has GPUs, gloo where it has none."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from hpc.backends.paddle_device import describe_device, versions
from hpc.backends.paddle_fleet import PaddleFleet
from hpc.backends.paddle_group import transport
from hpc.measure.timer import StepTimer, device_timer, host_timer
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective
from hpc.workloads.collectives import ROOT


class PaddleCollectives(PaddleFleet):
    """See Group; gloo has no reduce-scatter in Paddle."""

    in_place = (ALL_REDUCE, BROADCAST)

    def make_timer(self, steps: int) -> StepTimer:
        """See Group."""
        if self._gpu is None:
            return host_timer(self._run.timing, steps)
        cuda = self._paddle.device.cuda
        return device_timer(self._run.timing, steps, partial(cuda.Event, enable_timing=True), cuda.current_stream())

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        """See Group."""
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

    def describe(self) -> dict[str, Any]:
        """See Group."""
        return {
            "versions": versions(self._paddle),
            "device": describe_device(self._paddle, self._gpu),
            "transport": transport(self._gpu),
            "threads": int(os.environ["OMP_NUM_THREADS"]),
            "options": self._options,
        }

    def leave(self) -> None:
        """See Group."""
        gc.collect()
        self._paddle.distributed.destroy_process_group()
        if self._gpu is not None:
            self._paddle.device.cuda.empty_cache()
