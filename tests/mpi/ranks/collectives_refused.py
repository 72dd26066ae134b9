"""collectives_refused.py JSON: calls hpc.collectives with each list of words; rank 0 prints what they returned."""

import json
import sys

from mpi4py import MPI

from hpc import collectives

returned = [collectives.main(words) for words in json.loads(sys.argv[1])]
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(returned))
