"""Gradients averaged by MPI_Allreduce over numpy arrays, the shortest example of a backend; and MPI's collectives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc.backends.training import CPU_DEVICE, BackendFacts, Losses, TrainingBase
from hpc.measure.timer import StepTimer, host_timer
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective, partner_rank
from hpc.workloads.collectives import ROOT

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


class MPIAllreduce(TrainingBase):
    """One process per rank, the whole gradient in one buffer, one blocking all-reduce without overlap."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        from mpi4py import MPI

        self._begin(run, world.rank)
        self._mpi, self._comm = MPI, comm.Dup()

    def build(self, factory: Any) -> None:
        self._workload = factory(self._run, "cpu", self._rank)
        for parameter in self._workload.parameters:
            self._comm.Bcast(parameter)
        sizes = [parameter.size for parameter in self._workload.parameters]
        self._spans = list(pairwise(np.cumsum([0, *sizes])))
        self._buffer = np.zeros(sum(sizes), np.result_type(*self._workload.parameters))
        self._losses = Losses(self._run.steps)

    def make_timer(self, steps: int) -> StepTimer:
        return host_timer(self._run.timing, steps)

    def step(self, index: int, timer: StepTimer) -> int:
        batch = self._workload.batch(index)
        timer.batch_ready()
        self._losses.record(index, self._workload.forward(batch))
        timer.forward_end()
        gradients = self._workload.backward()
        timer.grads_ready()
        self._workload.receive(self._average(gradients) if self._reduces else gradients)
        timer.reduced()
        self._workload.update()
        samples: int = self._workload.samples(batch)
        timer.end()
        return samples

    def _average(self, gradients: list[Any]) -> list[Any]:
        for (first, stop), gradient in zip(self._spans, gradients, strict=True):
            self._buffer[first:stop] = gradient.ravel()
        self._comm.Allreduce(self._mpi.IN_PLACE, self._buffer, op=self._mpi.SUM)
        self._buffer /= self._comm.size
        return [
            self._buffer[first:stop].reshape(gradient.shape)
            for (first, stop), gradient in zip(self._spans, gradients, strict=True)
        ]

    def group_facts(self) -> BackendFacts:
        threads = self._run.env.get("OMP_NUM_THREADS", self._run.cpus_per_rank)
        return BackendFacts(versions={}, device=CPU_DEVICE, transport="mpi", threads=threads, options={})

    def describe(self) -> BackendFacts:
        return self._training_facts(fused=True, synchronises_every_step=False)

    def _reduced_bytes(self) -> int:
        return self._buffer.nbytes

    def parameters(self) -> list[Any]:
        return list(self._workload.parameters)

    def leave(self) -> None:
        self._comm.Free()


class MPICollectives(MPIAllreduce):
    """A Group; blocking calls."""

    in_place = (ALL_REDUCE, BROADCAST)

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        mpi, comm, operation = self._mpi, self._comm, collective.operation
        if collective.turn is not None:
            return self._exchange(collective.turn, given)
        got = given if operation in self.in_place else np.empty(collective.got, given.dtype)
        calls: dict[str, Callable[[], None]] = {
            ALL_REDUCE: lambda: comm.Allreduce(mpi.IN_PLACE, got, op=mpi.SUM),
            REDUCE_SCATTER: lambda: comm.Reduce_scatter_block(given, got, op=mpi.SUM),
            ALL_GATHER: lambda: comm.Allgather(given, got),
            BROADCAST: lambda: comm.Bcast(got, root=ROOT),
        }
        return calls[operation], lambda: got

    def _exchange(self, turn: int, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        other, comm = partner_rank(self._run, self._rank, turn), self._comm
        if other is None:
            return lambda: None, lambda: given
        got = np.empty_like(given)
        return lambda: comm.Sendrecv(given, other, recvbuf=got, source=other), lambda: got
