"""Brings the telemetry of all nodes to rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpc.model.timestamps import ABSENT
from hpc.model.trace import Telemetry
from hpc.node_agent.agent import Recording

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

MAX_NUMBERS = 1 << 26
"""How many numbers the telemetry of a trace has at most (half a GiB): beyond that every node leaves out samples."""
_TAG = 79


def gather_telemetry(comm: Intracomm, recording: Recording | None) -> Telemetry | None:
    """All recordings, on rank 0; None on all other ranks, and on rank 0 where no helper read anything. Collective.

    Nodes are in the order of the ranks that recorded. A series that only some nodes have is NaN for the others. Raises
    MemoryError on rank 0 alone, where the recordings do not fit into memory; no rank sends anything then.
    """
    mine = recording if recording is not None and len(recording.local_ns) else None
    sizes = comm.gather(None if mine is None else (mine.series, len(mine.local_ns)))
    recorded = {} if sizes is None else {rank: size for rank, size in enumerate(sizes) if size is not None}
    series = tuple(dict.fromkeys(name for names, _ in recorded.values() for name in names))
    longest = max((samples for _, samples in recorded.values()), default=0)
    every = max(1, -(-len(recorded) * longest * len(series) // MAX_NUMBERS))
    failure: MemoryError | None = None
    try:
        local_ns = np.full((len(recorded), -(-longest // every)), ABSENT, np.int64)
        values = np.full((*local_ns.shape, len(series)), np.nan)
    except MemoryError as error:
        every, failure = 0, error
    every = int(comm.bcast(every))
    if mine is not None and comm.rank != 0 and every:
        comm.Send(np.ascontiguousarray(mine.local_ns[::every]), 0, _TAG)
        comm.Send(np.ascontiguousarray(mine.values[::every]), 0, _TAG)
    if failure is not None:
        raise failure
    if not recorded:
        return None
    for node, (rank, (names, samples)) in enumerate(recorded.items()):
        count = -(-samples // every)
        if rank == 0:
            assert mine is not None
            rows_ns, rows = mine.local_ns[::every], mine.values[::every]
        else:
            rows_ns, rows = np.empty(count, np.int64), np.empty((count, len(names)))
            comm.Recv(rows_ns, rank, _TAG)
            comm.Recv(rows, rank, _TAG)
        local_ns[node, :count] = rows_ns
        values[node, :count, [series.index(name) for name in names]] = rows.T
    return Telemetry(ranks=np.array(list(recorded), np.int64), local_ns=local_ns, values=values, series=series)
