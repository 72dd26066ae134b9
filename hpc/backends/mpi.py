"""Gradients averaged by MPI_Allreduce over numpy arrays: small enough to read as the example of a backend."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc.backends import InvalidRun
from hpc.backends.losses import Losses
from hpc.measure.timer import StepTimer, host_timer
from hpc.model.timestamps import INNER

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


class MPIAllreduce:
    """One process per rank, the whole gradient in one buffer, one blocking all-reduce: nothing is overlapped."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        """See Backend. The group of ranks is MPI's own."""
        if run.gpus_per_node:
            raise InvalidRun(f"{run.gpus_per_node} GPUs per node were asked for; backend mpi runs on CPUs only")
        if run.precision != "fp32":
            raise InvalidRun(f"precision {run.precision} was asked for; backend mpi knows fp32 only")
        self._run, self._rank, self._comm = run, world.rank, comm.Dup()
        self._reduces = run.reduction == "on"

    def build(self, factory: Any) -> None:
        """See Backend; docs/workloads.md has what a numpy workload offers."""
        self._workload = factory(self._run, "cpu", self._rank)
        for parameter in self._workload.parameters:
            self._comm.Bcast(parameter)
        sizes = [parameter.size for parameter in self._workload.parameters]
        self._cuts = np.cumsum([0, *sizes])
        self._buffer = np.zeros(sum(sizes), np.result_type(*self._workload.parameters))
        self._losses = Losses(self._run.steps)

    def make_timer(self, steps: int) -> StepTimer:
        """See Backend."""
        return host_timer(self._run.timing, steps)

    def release(self) -> None:
        """See Backend."""
        self._losses.release()

    def step(self, index: int, timer: StepTimer) -> int:
        """See Backend."""
        from mpi4py import MPI

        batch = self._workload.batch(index)
        timer.batch_ready()
        self._losses.keep(index, self._workload.forward(batch))
        timer.forward_end()
        gradients = self._workload.backward()
        timer.grads_ready()
        self._workload.receive(self._average(gradients, MPI) if self._reduces else gradients)
        timer.reduced()
        self._workload.update()
        samples: int = self._workload.samples(batch)
        timer.end()
        return samples

    def _average(self, gradients: list[Any], mpi: Any) -> list[Any]:
        spans = list(pairwise(self._cuts))
        for (first, last), gradient in zip(spans, gradients, strict=True):
            self._buffer[first:last] = gradient.ravel()
        self._comm.Allreduce(mpi.IN_PLACE, self._buffer, op=mpi.SUM)
        self._buffer /= self._comm.size
        return [self._buffer[first:last].reshape(g.shape) for (first, last), g in zip(spans, gradients, strict=True)]

    def losses(self) -> list[float]:
        """See Backend."""
        return self._losses.values()

    def describe(self) -> dict[str, Any]:
        """See Backend."""
        return {
            "versions": {},
            "device": {"kind": "cpu"},
            "transport": "mpi",
            "threads": self._run.env.get("OMP_NUM_THREADS", self._run.cpus_per_rank),
            "options": {},
            "absent_stamps": list(INNER) if self._run.timing == "step" else [],
            "fused": True,
            "synchronises_every_step": False,
            "reduces": self._reduces,
            "gradient_bytes": self._buffer.nbytes if self._reduces else 0,
            "meets_before_gradients": [],
        }

    def parameters(self) -> list[Any]:
        """See Backend."""
        return list(self._workload.parameters)

    def leave(self) -> None:
        """See Backend."""
        self._comm.Free()
