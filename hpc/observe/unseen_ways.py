"""By which ways the ranks of a script may meet that no hook on collectives sees, as far as its process shows them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import events as e

if TYPE_CHECKING:
    from .collectives import AfterImport
    from .observer import Observer

LOOK_EVERY = 8
"""Steps between two looks."""
OFTEN = 0.1
"""A store counts as a way to meet from this share of the steps on: fewer queries share settings."""
MODULES = {
    "cupyx.distributed": "cupyx.distributed", "deep_ep": "DeepEP", "mpi4py.MPI": "mpi4py", "nvshmem": "NVSHMEM",
    "pplx_kernels": "pplx-kernels", "ray.util.collective": "ray.util.collective", "torchcomms": "torchcomms",
    "triton_dist": "Triton-distributed", "uccl": "UCCL", "ucp": "UCX (ucp)", "ucxx": "UCX (ucxx)",
    "transformer_engine.pytorch.module.base": "userbuffers of Transformer Engine",
}  # fmt: skip
"""Modules whose functions have ranks wait for one another, and what they are called; torch imports none of them."""
STORE = "a store of torch.distributed"
SYMMETRIC = "torch.distributed._symmetric_memory"
_SCHEDULED = Path("/proc/thread-self/schedstat")
_STORE_CALLS = ("get", "wait", "check", "add", "compare_set", "multi_get")
_SYMMETRIC_CALLS = ("rendezvous", "get_symm_mem_workspace")


def hook(o: Observer, after_import: AfterImport) -> None:
    """Counts what a script asks of a store in its steps, and what it maps into the memory of other ranks."""
    if not dist.is_available():
        return

    def counted(way: str) -> Any:
        def make(original: Any) -> Any:
            def call(*values: Any, **named: Any) -> Any:
                if o.steps or way != STORE:  # groups of torch find one another by it before
                    o.calls[way] = o.calls.get(way, 0) + 1
                return original(*values, **named)

            return call

        return make

    for name in _STORE_CALLS:
        o.replace(dist, f"Store.{name}", counted(STORE))

    def hook_symmetric() -> None:
        for name in _SYMMETRIC_CALLS:
            o.replace(sys.modules[SYMMETRIC], name, counted(SYMMETRIC))

    after_import(SYMMETRIC, hook_symmetric)


def look(o: Observer) -> None:
    """Records how long the thread that trains was awake so far, and by which ways it may have met other ranks."""
    try:
        ready_ns = int(_SCHEDULED.read_text().split()[1])
    except (OSError, ValueError, IndexError):  # a kernel that does not count it
        ready_ns = -1
    if ready_ns >= 0 and o.mark is None:  # else it may sleep until the device has done its work
        awake_ns = time.thread_time_ns() + ready_ns
        if torch.get_num_threads() > 1:  # while the others compute it may sleep
            awake_ns += time.process_time_ns() - time.thread_time_ns()
        o.note(e.AWAKE, 0, awake_ns // 1000)
    ways = sorted({name for module, name in MODULES.items() if _joins_ranks(module)} | {
        way for way, count in o.calls.items() if way != STORE or count >= OFTEN * o.steps
    })  # fmt: skip
    if ways != o.ways:
        o.ways = ways
        o.recorder.state(unseen_ways=ways)


def _joins_ranks(name: str) -> bool:
    """Whether a module is there, and what it needs to join ranks, where that shows."""
    module = sys.modules.get(name)
    if module is None:
        return False
    if name == "mpi4py.MPI":
        return bool(module.Is_initialized() and not module.Is_finalized() and module.COMM_WORLD.Get_size() > 1)
    if name.startswith("transformer_engine."):
        return bool(getattr(module, "_ub_communicators", None))
    return True
