"""The training loop of all torch backends; a strategy adds how ranks find each other and average gradients."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from hpc.backends import device as checks
from hpc.backends.training import (
    CPU_DEVICE,
    BackendFacts,
    DeviceFacts,
    Losses,
    TrainingBase,
    check_no_sync,
    check_workload,
    synchronised_norms,
)
from hpc.measure.meetings import Meetings, meetings_of
from hpc.measure.timer import StepTimer, device_timer, host_timer
from hpc.model.collective_plan import ALL_REDUCE, BROADCAST
from hpc.model.groups import RankGroup
from hpc.model.training import TrainingState, check_shapes
from hpc.observe.collectives import sender_of
from hpc.observe.events import BUFFERS, FROM_ONE, NAMES, NO_ROOT, TO_ONE, UNCLEAR, CollectiveName, waits_at_once
from hpc.observe.patches import Patches
from hpc.observe.process_groups import collective_of

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

# The device of a rank in torch: its choice, abilities and facts.


def device_of_rank(run: RunSpec, world: World, comm: Intracomm) -> torch.device:
    """This rank's device: of the visible GPUs, the one for its place on the node. Raises InvalidRun. Collective."""
    if run.gpus_per_node == 0:
        return torch.device("cpu")
    device = torch.device("cuda", checks.index_of_rank(world, visible_gpus(run, world)))
    torch.cuda.set_device(device)
    checks.check_not_shared(world, comm, describe_device(device).uuid)
    return device


def visible_gpus(run: RunSpec, world: World) -> int:
    """The number of GPUs that this rank sees. Raises InvalidRun where it sees none."""
    if is_rocm():
        checks.check_amd_data(run)
        checks.check_visible_once()
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    lacking = "" if is_rocm() or torch.version.cuda is not None else "CUDA and ROCm"
    build = "the ROCm build of torch" if is_rocm() else "a CUDA or ROCm build of torch"
    checks.check_sees_gpus(visible, run, world, f"torch {torch.__version__}", lacking, build)
    return visible


def is_rocm() -> bool:
    """Whether this torch drives AMD GPUs; its functions have the names of CUDA all the same."""
    return torch.version.hip is not None


def check_precision(precision: str, device: torch.device) -> None:
    """Raises InvalidRun where the GPU lacks the precision: it is never replaced by another one."""
    if device.type == "cpu":
        return
    if is_rocm():
        properties = torch.cuda.get_device_properties(device)
        checks.check_amd_precision(precision, properties.name, properties.gcnArchName)
    else:
        name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        checks.check_gpu_precision(precision, name, capability)


def set_tf32(allowed: bool) -> None:
    """Disables TF32 for fp32: torch enables it for convolutions by default."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def versions() -> dict[str, Any]:
    """Versions of the libraries that determine the speed; None for one that this torch lacks.

    On ROCm torch answers by the same functions for the libraries that stand in for NVIDIA's.
    """
    version = torch.cuda.nccl.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]  # torch has none
    collectives = version and ".".join(map(str, version))
    convolutions = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch has none
    if is_rocm():
        return {"torch": torch.__version__, "hip": torch.version.hip, "miopen": convolutions, "rccl": collectives}
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": convolutions, "nccl": collectives}


def describe_device(device: torch.device) -> DeviceFacts:
    if device.type == "cpu":
        return CPU_DEVICE
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts.of_amd_gpu(properties) if is_rocm() else DeviceFacts.of_gpu(properties)


# What a torch training needs to go on elsewhere, as NumPy arrays: model, optimizer, loss scale.


def state_of(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
) -> TrainingState:
    """Parameters and buffers by torch's names, the optimizer's tensors by parameter, the scaler's values."""
    arrays = {f"model.{name}": _array(value) for name, value in module.state_dict().items()}
    values: dict[str, Any] = {} if scaler is None else {"scaler": scaler.state_dict()}
    for at, parameter in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                arrays[f"optimizer.{at}.{name}"] = _array(value)
    return TrainingState(arrays=arrays, values=values)


def load_state(
    state: TrainingState, module: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
) -> None:
    """Puts a state where `state_of` took it from. Raises ValueError where it is of another model or optimizer."""
    of_model = {name.removeprefix("model."): value for name, value in state.arrays.items() if name.startswith("model.")}
    check_shapes(of_model, {name: tuple(value.shape) for name, value in module.state_dict().items()})
    if (scaler is None) != ("scaler" not in state.values):
        raise ValueError("it is of another precision: only one of the two scales the loss")
    with torch.no_grad():
        for name, value in module.state_dict().items():
            value.copy_(torch.from_numpy(of_model[name]))
    parameters = list(_parameters(optimizer))
    for name, array in state.arrays.items():
        if name.startswith("optimizer."):
            _, at, key = name.split(".", 2)
            parameter = parameters[int(at)]
            value = torch.from_numpy(array)
            # In the layout of the parameter, as the optimizer itself makes it.
            held = torch.empty_like(parameter) if value.shape == parameter.shape else torch.empty_like(value)
            optimizer.state[parameter][key] = held.copy_(value)
    if scaler is not None:
        scaler.load_state_dict(dict(state.values["scaler"]))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _array(value: torch.Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = value.detach().cpu().contiguous().numpy().copy()
    return array


HALF = {"bf16": torch.bfloat16, "amp-fp16": torch.float16}
"""The dtype of autocast; other precisions run without it."""
MakeOptimizer = Callable[[], torch.optim.Optimizer]


class TorchLoop(TrainingBase):
    """A torch backend without its strategy. A subclass overrides the methods with one underscore up to `join`."""

    absent: tuple[str, ...] = ()
    """Stamps that the strategy cannot take."""

    def _find_device(self, run: RunSpec, world: World, comm: Intracomm) -> torch.device:
        """The device of the model. Raises InvalidRun where the run's are not there. Collective."""
        return device_of_rank(run, world, comm)

    @abstractmethod
    def _join_group(self, world: World, comm: Intracomm) -> str:
        """Forms the group of ranks; returns its transport."""

    @abstractmethod
    def _distribute(self, module: torch.nn.Module, make_optimizer: MakeOptimizer) -> tuple[Any, Any]:
        """The model and the optimizer that train on all devices, with equal parameters on all ranks.

        The workload makes its optimizer, when it is called for, of the parameters that the module has then.
        """

    @abstractmethod
    def _reduce(self, timer: StepTimer) -> None:
        """Called when `backward()` has returned: completes the averaging of gradients, with t4 and maybe t3."""

    @abstractmethod
    def _leave_group(self) -> None:
        """Ends what `_join_group` began."""

    def _early_collectives(self) -> list[str]:
        of_workload = getattr(self._workload, "early_collectives", [])
        return [*synchronised_norms(self._run, self._workload.model.modules()), *of_workload]

    def _reduced_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for parameter in self._parameters)

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        self._begin(run, world.rank)
        self._device = self._find_device(run, world, comm)
        check_precision(run.precision, self._device)
        if "OMP_NUM_THREADS" not in run.env:
            torch.set_num_threads(run.cpus_per_rank)
        set_tf32(run.precision == "tf32")
        torch.backends.cudnn.benchmark = True  # sizes never change: the fastest kernels are sought once, in warm-up
        self._transport = self._join_group(world, comm)

    def build(self, factory: Any) -> None:
        """Raises WorkloadError where the workload breaks the contract, InvalidRun where it cannot run without sync."""
        self._workload = workload = factory(self._run, self._device, self._rank)
        check_workload(workload, "torch")
        check_no_sync(self._run, self._early_collectives())
        wants = self._rank == 0 and getattr(workload, "count_flops", False)
        self._counted_flops = counted_flops(workload) if wants else None
        layout = torch.channels_last if self._options.get("channels_last") else torch.preserve_format
        module = workload.model.to(device=self._device, memory_format=layout).train()
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        half = HALF.get(self._run.precision)
        self._autocast: Any = torch.autocast(self._device.type, dtype=half) if half else nullcontext()
        self._scaler = _make_scaler(self._scale) if self._run.precision == "amp-fp16" else None
        make_optimizer = partial(_make_optimizer, workload, str(self._options["sgd"]))
        self._model, self._optimizer = self._distribute(module, make_optimizer)
        if self._options["compile"]:
            self._compile()
        self._losses = Losses(self._run.steps)
        self._meetings = meetings_of(workload) or Meetings(self._run.steps, self._run.warmup_steps)

    def _compile(self) -> None:
        # Around DDP, so that the graph is cut where its buckets end and reduction still overlaps backward.
        self._model = torch.compile(self._model)

    def _flops_per_sample(self) -> tuple[int | None, str | None]:
        return self._counted_flops or super()._flops_per_sample()

    def make_timer(self, steps: int) -> StepTimer:
        if self._device.type == "cpu":
            return host_timer(self._run.timing, steps)
        stream = torch.cuda.current_stream(self._device)
        return device_timer(self._run.timing, steps, partial(torch.cuda.Event, enable_timing=True), stream)

    def step(self, index: int, timer: StepTimer) -> int:
        self._meetings.begin(index)
        batch = self._workload.batch(index)
        timer.batch_ready()
        with self._autocast:
            loss = self._workload.loss(self._model, batch)
        timer.forward_end()
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        self._reduce(timer)
        self._update()
        self._losses.record(index, loss.detach())
        samples: int = self._workload.samples(batch)
        self._meetings.finish()
        timer.end()
        return samples

    def _update(self) -> None:
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update(None if self._scale is None else self._scale)
        self._optimizer.zero_grad()

    def group_facts(self) -> BackendFacts:
        return BackendFacts(
            versions=versions(),
            device=describe_device(self._device),
            transport=self._transport,
            threads=torch.get_num_threads(),
            options=self._options,
        )

    def describe(self) -> BackendFacts:
        skips_on_device = getattr(self._optimizer, "_step_supports_amp_scaling", False)
        return self._training_facts(
            absent=self.absent,
            options={**self._options, "sgd": _implementation(self._optimizer)},
            tf32=torch.backends.cuda.matmul.allow_tf32,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            fused=True,
            # GradScaler waits for the device to decide on skipping the step, unless the optimizer decides there.
            synchronises_every_step=(self._scaler is not None and not skips_on_device)
            or bool(getattr(self._workload, "waits_for_device", False)),
        )

    def parameters(self) -> list[Any]:
        return [parameter.detach().cpu().numpy().copy() for parameter in self._parameters]

    def begin_epoch(self, epoch: int) -> float:
        self._workload.begin_epoch(epoch)
        rate: float = self._workload.learning_rate(epoch)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def evaluate(self, completed: Callable[[], None]) -> tuple[int, int]:
        module = self._workload.model.eval()
        correct, evaluated = torch.zeros((), dtype=torch.int64, device=self._device), 0
        with torch.inference_mode(), self._autocast:
            for images, labels in self._workload.evaluation():
                correct += (module(images).argmax(1) == labels).sum()
                evaluated += len(labels)
                completed()
        module.train()
        return int(correct), evaluated

    def state(self) -> TrainingState:
        return state_of(self._workload.model, self._optimizer, self._scaler)

    def load_state(self, state: TrainingState) -> None:
        load_state(state, self._workload.model, self._optimizer, self._scaler)

    def statistics(self) -> list[Any]:
        return [buffer.detach().cpu().numpy().copy() for buffer in self._workload.model.buffers()]

    def set_statistics(self, values: Sequence[Any]) -> None:
        for buffer, value in zip(self._workload.model.buffers(), values, strict=True):
            buffer.copy_(torch.from_numpy(value))

    def leave(self) -> None:
        # The model goes before the group: its reducer must not outlive the group.
        del self._model, self._workload, self._optimizer, self._parameters
        if self._options["compile"]:
            torch.compiler.reset()  # the compiled code holds the model too
        gc.collect()
        self._leave_group()


def _make_scaler(scale: float | None) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cuda") if scale is None else torch.amp.GradScaler("cuda", scale)


def _make_optimizer(workload: Any, implementation: str) -> torch.optim.Optimizer:
    """The workload's optimizer in this implementation (auto: fused)."""
    implementations = {"foreach": {"foreach": True}, "for-loop": {"foreach": False, "fused": False}}
    optimizer: torch.optim.Optimizer = workload.optimizer(**implementations.get(implementation, {"fused": True}))
    return optimizer


def _implementation(optimizer: torch.optim.Optimizer) -> str:
    """The implementation in use, which may not be the requested one: a person's own optimizer may have only one."""
    # From the groups, which a step uses: Horovod's optimizers have no such defaults.
    groups = optimizer.param_groups
    names = [name for name in ("fused", "foreach") if all(group.get(name) for group in groups)]
    return (names or ["for-loop"])[0]


# What the collectives of the torch backends share.

PreparedCall = tuple[Callable[[], None], Callable[[], Any]]


class TorchCollectives(TorchLoop):
    """The shared part of the Groups."""

    in_place = (ALL_REDUCE, BROADCAST)

    def make_timer(self, steps: int) -> StepTimer:
        # Never a strategy's own, which would put hooks on gradients.
        return TorchLoop.make_timer(self, steps)

    def leave(self) -> None:
        self._leave_group()


# Records every collective that torch.distributed is called for from Python: SyncBatchNorm's, FSDP2's, a model's own.
#
# Not seen are those of C++ callers: DDP's buckets, whose reduction is between two time stamps of the step, and those
# inside compiled graphs.


@contextmanager
def recorded(meetings: Meetings, about_to_call: Callable[[str], None] = lambda name: None) -> Iterator[None]:
    """Inside this context collectives are recorded; `about_to_call` gets the name of each before it is called."""
    calls: dict[tuple[int, str, int], CollectiveName | None] = {}
    works: dict[int, tuple[int, bool]] = {}  # by the identity of its Work: a number in the step, and waits_at_once

    def collective(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(group: Any, *values: Any, **named: Any) -> Any:
            about_to_call(name)
            root = sender_of(values) if name in FROM_ONE else UNCLEAR if name in TO_ONE else NO_ROOT
            key = id(group), name, root  # torch keeps the groups of a training
            if key not in calls:
                calls[key] = collective_of(name, group, key[2])
            called = calls[key]
            if called is None:
                return method(group, *values, **named)
            its = called.group
            # All ranks are no group, whatever its name.
            part = None if its is None or len(its.ranks) == dist.get_world_size() else RankGroup(**its._asdict())
            number = meetings.arrived(called.name, called.root, part)
            work = method(group, *values, **named)
            if work is None:
                meetings.ended(number)
            else:
                works[id(work)] = number, waits_at_once(values)
            return work

        return call

    def waiting(method: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *values: Any, **named: Any) -> Any:
            number, at_once = works.pop(id(work), (None, False))
            if number is None:
                return method(work, *values, **named)
            if not at_once:
                meetings.waits(number)
            result = method(work, *values, **named)
            meetings.ended(number)
            return result

        return wait

    def broadcast(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, tensors: Any, size: int, root: int = 0) -> Any:
            return meetings.meet(BUFFERS, function, group, tensors, size, root, root=root)

        return call

    patches = Patches()
    for method, name in NAMES.items():
        patches.replace(dist.ProcessGroup, method, partial(collective, name=name))
    patches.replace(dist, "Work.wait", waiting)
    patches.replace(dist, "_broadcast_coalesced", broadcast)
    try:
        yield
    finally:
        patches.remove()


MAX_REASON = 200


def counted_flops(workload: Any) -> tuple[int | None, str]:
    """The FLOPs of a sample, forward and backward, by a batch of the workload, and how they were had; None with the
    reason where they cannot be counted."""
    batch = workload.batch(0)
    samples = workload.samples(batch)
    try:
        flops = _flops(workload, batch)
    except Exception as error:  # noqa: BLE001 - whatever a person's code raises where a tensor has no values
        reason = (str(error).strip().splitlines() or [""])[0][:MAX_REASON]
        return None, f"its FLOPs could not be counted by shapes alone ({type(error).__name__}: {reason})"
    if not flops or not samples:
        return None, "FlopCounterMode counted no multiply-add in a batch of it"
    return round(flops / samples), f"counted by torch's FlopCounterMode, forward and backward of {samples} samples"


def _flops(workload: Any, batch: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # only where a person wants it

    with FlopCounterMode(display=False) as counter:
        workload.loss(_Shapes(workload.model), tree_map_only(torch.Tensor, _shape, batch)).backward()
    return int(counter.get_total_flops())


class _Shapes(torch.nn.Module):
    """A model with shapes in the place of its parameters and buffers, which stay as they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model = model
        self._values = {name: _shape(value) for name, value in chain(model.named_parameters(), model.named_buffers())}

    def forward(self, *batch: Any, **named: Any) -> Any:
        return functional_call(self._model, self._values, batch, named)


def _shape(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
