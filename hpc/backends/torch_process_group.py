"""Ranks that form a process group of torch.distributed: NCCL where the run has GPUs, gloo where it has none."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition of torch's

from hpc.backends.addresses import interface_towards, reachable_address, requested_interface, share_a_stack
from hpc.backends.torch_loop import TorchLoop, recorded
from hpc.measure.meetings import Meetings
from hpc.measure.timer import StepTimer
from hpc.system.host import LOOPBACK

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World


class ProcessGroupLoop(TorchLoop):
    """The group of ranks, and the record of the collectives that they call in a step."""

    def _join_group(self, world: World, comm: Intracomm) -> str:
        cuda = self._device.type == "cuda"
        transport = "nccl" if cuda else "gloo"
        self._store, interface = open_store(comm, requested_interface(cuda))
        if not cuda:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        torch.distributed.init_process_group(
            transport,
            store=self._store,
            rank=world.rank,
            world_size=world.size,
            device_id=self._device if cuda else None,
        )
        return transport

    def _unrecorded_collectives(self) -> list[str]:
        return [] if self._records_collectives() else super()._unrecorded_collectives()

    def _records_collectives(self) -> bool:
        """Whether all collectives of a step are recorded but the reduction; else only those of the workload are."""
        return not self._step_only and not self._options["compile"] and self._run.ranks > 1

    def meetings(self) -> Meetings | None:
        return self._meetings if self._records_collectives() else super().meetings()

    def make_timer(self, steps: int) -> StepTimer:
        self._timer = super().make_timer(steps)
        self._recording = ExitStack()
        if self._records_collectives():
            self._recording.enter_context(recorded(self._meetings, self._collective_called))
        return self._timer

    def _collective_called(self, name: str) -> None:
        """This rank is about to call a collective from Python, of this name in `Meetings.names`."""

    def leave(self) -> None:
        """Ends gloo's threads now: one that still runs when Python ends would abort the process.

        They end with the last reference to the group. The model and its reducer must not be the last to hold one: they
        would wait for the threads without letting go of Python's lock, which the threads may need.
        """
        self._recording.close()
        super().leave()

    def _leave_group(self) -> None:
        torch.distributed.destroy_process_group()


def open_store(comm: Intracomm, requested_interface: str | None) -> tuple[TCPStore, str]:
    """The store that all ranks share, and the interface of this rank that leads to it. Collective.

    Ranks that share a network stack use loopback, others `reachable_address` of rank 0.
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
    make_store = partial(
        TCPStore,
        host,
        port,
        world_size=comm.size,
        is_master=comm.rank == 0,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    try:
        store = make_store()
    except NotImplementedError:  # the newer server of torch 2.6 takes no open listener, the older one does
        store = make_store(use_libuv=False)
    return store, "lo" if shared_stack else (requested_interface or interface_towards(host))
