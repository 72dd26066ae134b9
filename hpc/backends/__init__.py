"""One file per framework and strategy, found through one table and imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from hpc.options import Option

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.spec import RunSpec
    from hpc.timer import Marks
    from hpc.world import World


class InvalidRun(Exception):
    """The run cannot be what it says it is on this machine; the text says why and what to do. Ends as `invalid`."""


class Backend(Protocol):
    """Trains a workload with one framework and strategy. No timing, no barrier, no rank logic of its own."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        """Sets threads and device, forms the group of ranks. Raises InvalidRun where the machine cannot do the run."""

    def build(self, factory: Any) -> None:
        """Makes model, optimizer and input from a workload's factory."""

    def make_marks(self, steps: int) -> Marks:
        """The recorder of this backend's stamps: the host's clock, or events of its device."""

    def settle(self) -> None:
        """Called once, at least five steps before the window: frees what only the first steps needed."""

    def step(self, index: int, marks: Marks) -> int:
        """One optimizer step, with its marks. Returns how many samples this rank really saw."""

    def losses(self) -> list[float]:
        """Loss of this rank at every step so far; called outside the window only."""

    def describe(self) -> dict[str, Any]:
        """Versions, device, transports, effective options, and which stamps it cannot honour."""

    def parameters(self) -> list[Any]:
        """The model's trainable parameters as numpy arrays, in the model's order: what the contract test compares."""

    def leave(self) -> None:
        """Leaves the group and frees the device."""


@dataclass(frozen=True, kw_only=True)
class BackendEntry:
    """Where a backend lives, the framework that its workloads are written for, what it can be told."""

    where: str
    framework: str
    options: Mapping[str, Option] = field(default_factory=dict)


BACKENDS: Mapping[str, BackendEntry] = {
    "torch-ddp": BackendEntry(
        where="hpc.backends.torch_ddp:TorchDDP",
        framework="torch",
        options={
            "bucket_cap_mb": Option(default=25.0, help="size of DDP's gradient buckets in MiB"),
            "static_graph": Option(default=True, help="tell DDP that the graph never changes"),
            "gradient_as_bucket_view": Option(default=True, help="let gradients live inside DDP's buckets"),
            "broadcast_buffers": Option(default=False, help="DDP broadcasts buffers before each forward"),
            "channels_last": Option(default=True, help="NHWC memory format for 4-D tensors"),
            "sgd": Option(default="auto", choices=("auto", "fused", "foreach", "for-loop"), help="SGD implementation"),
            "compile": Option(default=False, help="run the model through torch.compile"),
            "loss_scale": Option(default="dynamic", help="amp-fp16: dynamic, or a number for a static scale"),
        },
    ),
    "mpi": BackendEntry(where="hpc.backends.mpi:MPIAllreduce", framework="numpy"),
}


def load_backend(name: str) -> Backend:
    """A fresh backend of that name; imports its framework's module and no other."""
    module, _, attribute = BACKENDS[name].where.partition(":")
    backend: Backend = getattr(import_module(module), attribute)()
    return backend
