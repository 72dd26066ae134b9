"""collectives_alone.py WORDS…: calls hpc.collectives; rank 1 lacks a variable, or fails, and the others wait for it."""

import os
import sys

from mpi4py import MPI

from hpc import collectives


def fails(arguments):
    raise OSError("my driver is gone")


if MPI.COMM_WORLD.rank == 1 and os.environ.pop("NCCL_ALGO", None) is None:
    collectives._options = fails
sys.exit(collectives.main(sys.argv[1:]))
