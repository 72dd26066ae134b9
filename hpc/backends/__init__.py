"""The table of backends. Each has a file of its own, which is imported only when the backend is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from hpc.backends.limits import fsdp_refusal, multiworker_refusal, one_rank_refusal
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, OPERATIONS, PAIRS, REDUCE_SCATTER
from hpc.model.options import WHOLE, Option, OptionValue, read_options
from hpc.model.spec import SCRIPT, UNKNOWN, RunSpec, SpecError
from hpc.system.import_guard import install_command
from hpc.workloads import CHANNELS_LAST, WORKLOADS, is_user_code, options_of_files

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.backends.training import BackendFacts
    from hpc.measure.meetings import Meetings
    from hpc.measure.timer import StepTimer
    from hpc.measure.world import World


class InvalidRun(Exception):
    """The run is not possible as requested on this machine; the text has the reason and the fix. Ends as `invalid`."""


class Backend(Protocol):
    """Trains a workload with one framework and strategy. No timing, no barrier, no rank logic of its own."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        """Sets threads and device, forms the group of ranks. Raises InvalidRun."""

    def build(self, factory: Any) -> None:
        """Makes model, optimizer and input from a workload's factory."""

    def meetings(self) -> Meetings | None:
        """The collectives inside its steps but for the reduction of gradients; None where they are not recorded.
        Called after `build`."""

    def make_timer(self, steps: int) -> StepTimer:
        """A timer by the host's clock or by events of the device."""

    def release(self) -> None:
        """Frees what only the steps so far needed; may wait for the device. Called between segments of steps, first at
        least five steps before the window."""

    def step(self, index: int, timer: StepTimer) -> int:
        """One optimizer step. Returns the number of samples that this rank processed."""

    def losses(self) -> list[float]:
        """This rank's loss of every step; called outside the window only, may wait for the device."""

    def describe(self) -> BackendFacts:
        """Versions, device, transport, effective options, absent stamps. Called after `build`."""

    def parameters(self) -> list[Any]:
        """The model's trainable parameters as numpy arrays, in the model's order; for the contract test."""

    def leave(self) -> None:
        """Leaves the group and frees the device."""


class WorkloadError(Exception):
    """The backend cannot train the workload; the text has the reason."""


@dataclass(frozen=True, kw_only=True)
class CollectivesEntry:
    """`where` is "module:Class"; operations `only_on_gpus` are missing on CPUs."""

    where: str
    operations: tuple[str, ...] = OPERATIONS
    only_on_gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BackendEntry:
    """One backend. `where` is "module:Class", empty where a script of its own trains; `framework` is the one that its
    workloads are written for.

    `modules` maps each imported module to the command that installs it. With `one_rank_per_node` one rank drives all
    GPUs of its node. `no_sync_unsupported` is the reason why gradients cannot stay unreduced, or empty. `collectives`
    is None where ranks do not communicate. `uses_gpus` is False for a backend that always runs on CPUs;
    `trains_to_target` is whether it has whole trainings; `cpu_precisions` are those that it trains in on CPUs.
    `refuses` returns why it cannot do a run with these options, empty where it can; `no_sharded_head` why it cannot
    train arcface with the head's classes shared out over ranks.
    """

    where: str
    framework: str
    modules: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)
    one_rank_per_node: bool = False
    no_sync_unsupported: str = ""
    collectives: CollectivesEntry | None = None
    uses_gpus: bool = True
    trains_to_target: bool = False
    cpu_precisions: tuple[str, ...] = ("fp32", "bf16")
    refuses: Callable[[RunSpec, Mapping[str, OptionValue]], str] | None = None
    no_sharded_head: str = ""


def _check_loss_scale(text: str) -> None:
    if text != "dynamic" and not (_NUMBER.fullmatch(text) and 0 < float(text) < float("inf")):
        raise ValueError(f"{text!r} is neither dynamic nor a number above 0")


def _check_shard_group(text: str) -> None:
    if text not in ("all", "node") and not (WHOLE.fullmatch(text) and 1 <= int(text) <= 1_000_000):
        raise ValueError(f"{text[:40]!r} is neither all nor node nor a number of ranks from 1")


def _check_plain_number(text: str) -> None:
    if not _NUMBER.fullmatch(text) or "e" in text.lower():
        raise ValueError(f"{text!r} must be written as 0.5 or 64")  # Horovod reads no other form


_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_TORCH, _TENSORFLOW, _PADDLE = ({name: install_command(name)} for name in ("torch", "tensorflow", "paddle"))
_HOROVOD = {"horovod": "make horovod"}

_MAX_MIB = 2**20
"""A TiB: more than any device holds."""
_LOSS_SCALE = {
    "loss_scale": Option(
        default="dynamic", help="amp-fp16: dynamic, or a number for a static scale", check=_check_loss_scale
    )
}
_TORCH_OPTIONS = {
    **CHANNELS_LAST,
    "sgd": Option(
        default="auto", choices=("auto", "fused", "foreach", "for-loop"), help="implementation of SGD or AdamW"
    ),
    "compile": Option(default=False, help="run the model through torch.compile"),
    **_LOSS_SCALE,
}
_TENSORFLOW_OPTIONS = {"xla": Option(default=False, help="compile the step's computation by XLA"), **_LOSS_SCALE}
_HOROVOD_OPTIONS = {
    "fusion_threshold_mb": Option(
        default=128.0, maximum=_MAX_MIB, help="size of Horovod's fusion buffer in MiB", check=_check_plain_number
    ),
    "cycle_time_ms": Option(
        default=1.0, help="how often Horovod looks for tensors to reduce", check=_check_plain_number
    ),
    "compression": Option(default="none", choices=("none", "fp16"), help="of the gradients while they are reduced"),
}

BACKENDS: Mapping[str, BackendEntry] = {
    "torch-ddp": BackendEntry(
        where="hpc.backends.torch_ddp:TorchDDP",
        collectives=CollectivesEntry(
            where="hpc.backends.torch_ddp:TorchDDPCollectives", operations=(*OPERATIONS, PAIRS)
        ),
        framework="torch",
        trains_to_target=True,
        modules=_TORCH,
        options={
            "bucket_cap_mb": Option(default=25.0, maximum=_MAX_MIB, help="size of DDP's gradient buckets in MiB"),
            "static_graph": Option(default=True, help="DDP's static_graph: the graph never changes"),
            "gradient_as_bucket_view": Option(default=True, help="gradients are views of DDP's buckets"),
            "broadcast_buffers": Option(default=False, help="DDP broadcasts buffers before each forward"),
            **_TORCH_OPTIONS,
        },
    ),
    "torch-horovod": BackendEntry(
        where="hpc.backends.torch_horovod:TorchHorovod",
        collectives=CollectivesEntry(where="hpc.backends.torch_horovod:TorchHorovodCollectives"),
        framework="torch",
        trains_to_target=True,
        modules={**_TORCH, **_HOROVOD},
        options={**_HOROVOD_OPTIONS, **_TORCH_OPTIONS},
    ),
    "torch-fsdp": BackendEntry(
        where="hpc.backends.torch_fsdp:TorchFSDP",
        collectives=CollectivesEntry(
            where="hpc.backends.torch_ddp:TorchDDPCollectives", operations=(*OPERATIONS, PAIRS)
        ),
        framework="torch",
        modules=_TORCH,
        options={
            "reshard_after_forward": Option(
                default="auto",
                choices=("auto", "on", "off"),
                help="free parameters until backward; auto: FSDP2's choice",
            ),
            "shard_group": Option(
                default="all",
                help="ranks that share one set of shards: all, node (hybrid sharding: replicas across nodes), or at "
                "most so many neighbours",
                check=_check_shard_group,
            ),
            "channels_last": Option(default=False, help="refused: FSDP2 shards contiguous parameters only"),
            "sgd": Option(
                default="foreach", choices=("foreach", "for-loop"), help="implementation of SGD or AdamW; none is fused"
            ),
            "compile": Option(default=False, help="run the forward of each child of the model through torch.compile"),
        },
        no_sync_unsupported="every rank holds a shard of the parameters, which all gather in forward and backward",
        refuses=fsdp_refusal,
        no_sharded_head="the sharded head of arcface is not among FSDP2's shards",
    ),
    "torch-dp": BackendEntry(
        where="hpc.backends.torch_dp:TorchDP",
        framework="torch",
        modules=_TORCH,
        options=_TORCH_OPTIONS,
        one_rank_per_node=True,
        refuses=one_rank_refusal,
        no_sharded_head="it has no ranks over which the head of arcface could be sharded",
        no_sync_unsupported="one rank drives all GPUs, whose gradients are added up inside backward",
    ),
    "tensorflow-horovod": BackendEntry(
        where="hpc.backends.tensorflow_horovod:TensorFlowHorovod",
        collectives=CollectivesEntry(where="hpc.backends.tensorflow_horovod:TensorFlowHorovodCollectives"),
        framework="tensorflow",
        trains_to_target=True,
        modules={**_TENSORFLOW, **_HOROVOD},
        options={**_HOROVOD_OPTIONS, **_TENSORFLOW_OPTIONS},
    ),
    "tensorflow-multiworker": BackendEntry(
        where="hpc.backends.tensorflow_multiworker:TensorFlowMultiWorker",
        collectives=CollectivesEntry(
            where="hpc.backends.tensorflow_multiworker:TensorFlowMultiWorkerCollectives",
            operations=(ALL_REDUCE, ALL_GATHER),
        ),
        framework="tensorflow",
        refuses=multiworker_refusal,
        modules=_TENSORFLOW,
        options={
            "collective": Option(default="auto", choices=("auto", "ring", "nccl"), help="TensorFlow's collectives"),
            "bytes_per_pack_mb": Option(
                default=0.0, maximum=_MAX_MIB, help="gradients packed together, in MiB; 0 leaves it to TensorFlow"
            ),
            **_TENSORFLOW_OPTIONS,
        },
    ),
    "paddle-fleet": BackendEntry(
        where="hpc.backends.paddle_fleet:PaddleFleet",
        collectives=CollectivesEntry(
            where="hpc.backends.paddle_fleet:PaddleCollectives", only_on_gpus=(REDUCE_SCATTER,)
        ),
        framework="paddle",
        cpu_precisions=("fp32",),
        modules=_PADDLE,
        options={
            "comm_buffer_mb": Option(
                default=25, minimum=1, maximum=_MAX_MIB, help="size of DataParallel's gradient buckets in MiB"
            ),
            "last_comm_buffer_mb": Option(
                default=1, minimum=1, maximum=_MAX_MIB, help="size of the bucket that is reduced last, in MiB"
            ),
            **_LOSS_SCALE,
        },
    ),
    "mpi": BackendEntry(
        where="hpc.backends.mpi:MPIAllreduce",
        framework="numpy",
        uses_gpus=False,
        cpu_precisions=("fp32",),
        collectives=CollectivesEntry(where="hpc.backends.mpi:MPICollectives", operations=(*OPERATIONS, PAIRS)),
    ),
    SCRIPT: BackendEntry(
        where="",
        framework="torch",
        cpu_precisions=(UNKNOWN,),
        modules=_TORCH,
        no_sync_unsupported="the script alone decides when gradients are reduced",
    ),
}


TRAINERS = {name: entry for name, entry in BACKENDS.items() if entry.where}
"""The backends that train workloads: all but that of scripts, which train by themselves."""


def options_of_run(run: RunSpec) -> dict[str, OptionValue]:
    """Every option of the run's backend, workload and data, requested or default.

    Raises OptionError on an unknown one.
    """
    workload = {} if is_user_code(run.workload) else WORKLOADS[run.workload].options
    of_files = options_of_files(run.workload, run.data)
    return read_options({**BACKENDS[run.backend].options, **workload, **of_files}, run.options)


def missing_modules(backend: str) -> list[str]:
    """The backend's modules that this interpreter lacks, each with its install command; imports none of them."""
    modules = BACKENDS[backend].modules
    return [f"{name} is not installed here: {command}" for name, command in modules.items() if find_spec(name) is None]


def load_backend(name: str) -> Backend:
    """A new backend; imports its framework's module and no other."""
    backend: Backend = _class_at(BACKENDS[name].where)()
    return backend


def operations_of(backend: str, gpus: bool) -> tuple[str, ...]:
    """The collectives that a backend has on GPUs or on CPUs. Raises SpecError where it has none."""
    entry = BACKENDS[backend].collectives
    if entry is None:
        raise SpecError(_no_collectives(backend))
    return tuple(name for name in entry.operations if gpus or name not in entry.only_on_gpus)


def load_collectives(name: str) -> Backend:
    """A backend that calls the collectives of `name`; imports its framework's module only. Raises InvalidRun."""
    from hpc.backends.collective_loop import CollectiveLoop

    entry = BACKENDS[name].collectives
    if entry is None:
        raise InvalidRun(_no_collectives(name))
    loop: Backend = CollectiveLoop(_class_at(entry.where)())
    return loop


def _class_at(where: str) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)


def _no_collectives(backend: str) -> str:
    having = ", ".join(name for name, entry in BACKENDS.items() if entry.collectives)
    return (
        f"backend {backend} has no collectives: one rank drives the GPUs of its node, and nothing goes from rank to "
        f"rank; {having} have them"
    )
