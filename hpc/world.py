"""Who I am among the ranks, as MPI says."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's place. `nodes_simulated` says that nodes are groups of ranks, not machines."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int
    hostname: str
    nodes_simulated: bool = False


def world_from_mpi(comm: Intracomm, group_ranks_by: int | None = None) -> World:
    """The world as MPI sees it: ranks that share memory are one node, numbered by their lowest rank.

    Collective. `group_ranks_by` simulates nodes instead: that many consecutive ranks are one node each.
    """
    from mpi4py import MPI

    rank, size = comm.Get_rank(), comm.Get_size()
    if group_ranks_by is not None:
        leader = rank - rank % group_ranks_by
    else:
        shared = comm.Split_type(MPI.COMM_TYPE_SHARED, key=rank)
        leader = shared.bcast(rank, root=0)
        shared.Free()
    leaders = comm.allgather(leader)
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
