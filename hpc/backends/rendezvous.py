"""Where torch's ranks meet: a socket on one interface that rank 0 binds and keeps, told to the others over MPI."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition of torch's

from hpc.backends.addresses import LOOPBACK, interface_towards, reachable_address, share_a_stack

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def open_store(comm: Intracomm, requested_interface: str | None) -> tuple[TCPStore, str]:
    """The store that all ranks share, and the interface of this rank that leads to it. Collective.

    Ranks that share a network stack meet on loopback, others at `reachable_address` of rank 0.
    """
    shared_stack, hosts = share_a_stack(comm)
    listener = None
    if comm.rank == 0:
        address = LOOPBACK if shared_stack else reachable_address(requested_interface, hosts)
        # Bound here, and handed over open: TCPStore alone would listen on every interface of the host.
        listener = socket.create_server((address, 0), backlog=max(128, comm.size))
        host, port = listener.getsockname()
        comm.bcast((host, port))
    else:
        host, port = comm.bcast(None)
    store = TCPStore(
        host,
        port,
        world_size=comm.size,
        is_master=comm.rank == 0,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    return store, "lo" if shared_stack else (requested_interface or interface_towards(host))
