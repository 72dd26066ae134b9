"""hpc.collectives where one element that rank 1 gets of an all-reduce is off by one."""

import sys

from mpi4py import MPI

from hpc import collectives
from hpc.backends.mpi import MPICollectives

prepare = MPICollectives.prepare


def spoilt(self, collective, given):  # type: ignore[no-untyped-def]  # what it replaces has the types
    call, result = prepare(self, collective, given)

    def got():  # type: ignore[no-untyped-def]  # as above
        values = result()
        if collective.operation == "all-reduce" and MPI.COMM_WORLD.rank == 1:
            values[5] += 1
        return values

    return call, got


MPICollectives.prepare = spoilt  # type: ignore[method-assign]  # the fault that is to be detected
sys.exit(collectives.main(sys.argv[1:]))
