"""PyTorch DistributedDataParallel: NCCL where the run has GPUs, gloo where it has none."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition of torch's
from torch.nn.parallel import DistributedDataParallel

from hpc.backends import BACKENDS
from hpc.backends.addresses import LOOPBACK, interface_towards, reachable_address, requested_interface, share_a_stack
from hpc.backends.torch_loop import MakeOptimizer, TorchLoop, recorded
from hpc.backends.training import BackendFacts
from hpc.measure.meetings import Meetings
from hpc.measure.timer import StepTimer

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World

# Ranks that form a process group of torch.distributed: NCCL where the run has GPUs, gloo where it has none.


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


class TorchDDP(ProcessGroupLoop):
    """One process per device, each with a replica; gradients are averaged in buckets while backward goes on.

    t3 comes from hooks that fire when a gradient is complete, and t4 when `backward()` has returned: the hooks change
    nothing of the reduction. A no-sync run has the same model in the same wrapping, in `no_sync()`.
    """

    def _distribute(self, module: torch.nn.Module, make_optimizer: MakeOptimizer) -> tuple[Any, Any]:
        options = self._options
        model = DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=_bucket_cap(float(options["bucket_cap_mb"])),
            gradient_as_bucket_view=bool(options["gradient_as_bucket_view"]),
            # DDP reduces a static graph in its first step and broadcasts buffers even if no_sync is set later.
            static_graph=bool(options["static_graph"]) and self._reduces,
            **_broadcasting_buffers(bool(options["broadcast_buffers"]) and self._reduces),
        )
        self._unreduced = ExitStack()
        if not self._reduces:
            self._unreduced.enter_context(model.no_sync())
        return model, make_optimizer()

    def _early_collectives(self) -> list[str]:
        broadcasts = self._options["broadcast_buffers"] and self._reduces and self._run.ranks > 1
        if broadcasts and any(True for _ in self._workload.model.buffers()):
            return ["DDP broadcasts buffers before each forward", *super()._early_collectives()]
        return super()._early_collectives()

    def describe(self) -> BackendFacts:
        facts = super().describe()
        if self._reduces:
            return facts
        return replace(facts, options={**facts.options, "static_graph": False, "broadcast_buffers": False})

    def make_timer(self, steps: int) -> StepTimer:
        """With `--timing phases` every gradient gets a hook."""
        timer = super().make_timer(steps)
        self._last = -1
        self._seen_last: set[int] = set()
        hooked = enumerate(self._parameters) if not self._step_only else ()
        self._hooks = [p.register_post_accumulate_grad_hook(self._make_hook(number)) for number, p in hooked]
        return timer

    def _make_hook(self, number: int) -> Any:
        def complete(_: torch.Tensor) -> None:
            self._last = number
            self._timer.grads_ready()

        return complete

    def release(self) -> None:
        """Removes the hooks of parameters whose gradients were never a step's last.

        Where the graph may change, or no step has been made, none is removed.
        """
        super().release()
        if not self._options["static_graph"] or not self._seen_last:
            return
        for number, hook in enumerate(self._hooks):
            if number not in self._seen_last:
                hook.remove()

    def _reduce(self, timer: StepTimer) -> None:
        timer.reduced()
        self._seen_last.add(self._last)

    def leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._unreduced.close()
        super().leave()


def _bucket_cap(cap_mib: float) -> float | None:
    """The bucket cap for DDP; None for the default, with which DDP starts early with a small first bucket (1 MiB)."""
    default = BACKENDS["torch-ddp"].options["bucket_cap_mb"].default
    return None if cap_mib == default else cap_mib


def _broadcasting_buffers(wanted: bool) -> dict[str, Any]:
    """DDP's switch under the name that this torch has for it: 2.13 renamed it."""
    names = ("forward_sync_buffers", "broadcast_buffers")
    known = signature(DistributedDataParallel.__init__).parameters
    return {next(name for name in names if name in known): wanted}
