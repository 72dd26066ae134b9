"""MPI's collectives over numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpc.backends.mpi import MPIAllreduce
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective
from hpc.workloads.collectives import ROOT


class MPICollectives(MPIAllreduce):
    """See Group; blocking calls."""

    in_place = (ALL_REDUCE, BROADCAST)

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        """See Group."""
        from mpi4py import MPI

        comm, operation = self._comm, collective.operation
        got = given if operation in self.in_place else np.empty(collective.got, given.dtype)
        calls: dict[str, Callable[[], None]] = {
            ALL_REDUCE: lambda: comm.Allreduce(MPI.IN_PLACE, got, op=MPI.SUM),
            REDUCE_SCATTER: lambda: comm.Reduce_scatter_block(given, got, op=MPI.SUM),
            ALL_GATHER: lambda: comm.Allgather(given, got),
            BROADCAST: lambda: comm.Bcast(got, root=ROOT),
        }
        return calls[operation], lambda: got

    def describe(self) -> dict[str, Any]:
        """See Group."""
        return {
            "versions": {},
            "device": {"kind": "cpu"},
            "transport": "mpi",
            "threads": self._run.env.get("OMP_NUM_THREADS", self._run.cpus_per_rank),
            "options": {},
        }
