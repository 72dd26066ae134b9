"""world_ranks.py [GROUP]: prints the world of every rank, as JSON; nodes are GROUP ranks each, or what MPI says."""

import dataclasses
import json
import sys

from mpi4py import MPI

from hpc.measure.world import world_of

world = world_of(MPI.COMM_WORLD, *map(int, sys.argv[1:]))
everybody = MPI.COMM_WORLD.gather(dataclasses.asdict(world))
if everybody is not None:
    print(json.dumps(everybody))
