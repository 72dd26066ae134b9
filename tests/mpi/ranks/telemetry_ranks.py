"""What rank 0 makes of recordings that differ between nodes; run by test_telemetry. Prints it as JSON.

Rank 0 records 5 samples of a and b, rank 1 nothing, rank 2 a recording without samples, rank 3 3 samples of b and c.
"""

import json
import sys

import numpy as np
from mpi4py import MPI

from hpc.node_agent import nodes
from hpc.node_agent.recorder import Recording


def recording(rank, samples, series):
    values = rank * 1000 + 10 * np.arange(samples)[:, None] + np.arange(len(series))
    return Recording(local_ns=np.arange(samples) + rank * 100, values=values.astype(float), series=series)


comm = MPI.COMM_WORLD
nodes.MAX_NUMBERS = int(sys.argv[1])
recorder_facts = {0: recording(0, 5, ("a", "b")), 2: recording(2, 0, ()), 3: recording(3, 3, ("b", "c"))}
if sys.argv[2] == "nobody":
    recorder_facts = {}
facts = nodes.gather_telemetry(comm, recorder_facts.get(comm.rank))
assert comm.rank == 0 or facts is None
if comm.rank == 0:
    print(json.dumps(facts and {
        "ranks": facts.ranks.tolist(), "local_ns": facts.local_ns.tolist(), "series": facts.series,
        "values": np.where(np.isnan(facts.values), -1, facts.values).tolist(),
    }))  # fmt: skip
