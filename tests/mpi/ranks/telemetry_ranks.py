"""What rank 0 makes of recordings that differ between nodes; run by test_telemetry. Prints it as JSON, a line for each
limit of the arguments, and one for no recording.

Rank 0 records 5 samples of a and b, rank 1 nothing, rank 2 a recording without samples, rank 3 3 samples of b and c.
"""

import json
import sys

import numpy as np
from mpi4py import MPI

from hpc.node_agent.agent import Recording
from hpc.run import gather


def recording(rank: int, samples: int, series: tuple[str, ...]) -> Recording:
    values = rank * 1000 + 10 * np.arange(samples)[:, None] + np.arange(len(series))
    return Recording(local_ns=np.arange(samples) + rank * 100, values=values.astype(float), series=series)


comm = MPI.COMM_WORLD
some = {0: recording(0, 5, ("a", "b")), 2: recording(2, 0, ()), 3: recording(3, 3, ("b", "c"))}
for limit, recordings in [*((int(limit), some) for limit in sys.argv[1:]), (1000, {})]:
    gather.MAX_NUMBERS = limit
    telemetry = gather.gather_telemetry(comm, recordings.get(comm.rank))
    assert comm.rank == 0 or telemetry is None
    if comm.rank == 0:
        print(json.dumps(telemetry and {
            "ranks": telemetry.ranks.tolist(), "local_ns": telemetry.local_ns.tolist(), "series": telemetry.series,
            "values": np.where(np.isnan(telemetry.values), -1, telemetry.values).tolist(),
        }))  # fmt: skip
