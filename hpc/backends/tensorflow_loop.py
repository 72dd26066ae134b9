"""The training loop of both TensorFlow backends; a strategy adds how ranks find each other and average gradients."""

from __future__ import annotations

import ctypes
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun, WorkloadError
from hpc.backends import device as checks
from hpc.backends.training import (
    CPU_DEVICE,
    BackendFacts,
    DeviceFacts,
    Losses,
    TrainingBase,
    check_no_sync,
    check_workload,
)
from hpc.measure.timer import StepTimer, host_timer
from hpc.model.collective_plan import Collective
from hpc.model.training import TrainingState, check_shapes
from hpc.workloads.tensorflow_base import HALVES, tf

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

# The device of a rank in TensorFlow: its choice, threads, abilities and facts.

CPU = "/CPU:0"


def device_of_rank(run: RunSpec, world: World, comm: Intracomm) -> str:
    """TensorFlow's name of this rank's device, the only one that it sees from now on. Collective."""
    if run.gpus_per_node == 0:
        tf.config.set_visible_devices([], "GPU")
        return CPU
    name, build = f"TensorFlow {tf.__version__}", "a CUDA build (pip install tensorflow[and-cuda])"
    checks.check_nvidia_only(run, name, tf.test.is_built_with_rocm())
    gpus = tf.config.list_physical_devices("GPU")
    checks.check_sees_gpus(len(gpus), run, world, name, "" if tf.test.is_built_with_cuda() else "CUDA", build)
    index = checks.index_of_rank(world, len(gpus))
    checks.check_not_shared(world, comm, _uuid(index))
    tf.config.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    return "/GPU:0"


def set_threads(run: RunSpec) -> None:
    """`cpus_per_rank` threads compute, unless the run itself sets one of the variables for that.

    As many operations may run beside each other, and two at least: where one alone may, a person's tf.py_function that
    calls a tf.function waits for itself for ever.
    """
    computing = int(run.env.get("TF_NUM_INTRAOP_THREADS") or run.env.get("OMP_NUM_THREADS") or run.cpus_per_rank)
    tf.config.threading.set_intra_op_parallelism_threads(computing)
    tf.config.threading.set_inter_op_parallelism_threads(
        int(run.env.get("TF_NUM_INTEROP_THREADS") or max(2, computing))
    )


def check_precision(precision: str, device: str) -> None:
    """Raises InvalidRun where the GPU lacks the precision: it is never replaced by another one."""
    if device != CPU:
        details = _details()
        checks.check_gpu_precision(
            precision, details.get("device_name", "the GPU"), details.get("compute_capability", (0, 0))
        )


def versions() -> dict[str, Any]:
    """Versions of the libraries that determine the speed; None for one that this TensorFlow lacks."""
    built = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "keras": tf.keras.__version__,
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
    }


def describe_device(device: str) -> DeviceFacts:
    if device == CPU:
        return CPU_DEVICE
    (visible,) = tf.config.get_visible_devices("GPU")
    details = _details()
    return DeviceFacts(
        kind="gpu",
        name=details.get("device_name"),
        uuid=_uuid(tf.config.list_physical_devices("GPU").index(visible)),
        capability=".".join(map(str, details.get("compute_capability", ()))),
    )


def _details() -> dict[str, Any]:
    (visible,) = tf.config.get_visible_devices("GPU")
    return dict(tf.config.experimental.get_device_details(visible))


def _uuid(index: int) -> str:
    """The UUID of a GPU by its number, from the CUDA driver API: TensorFlow does not expose it."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, its_bytes = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), index),
        driver.cuDeviceGetUuid(its_bytes, device),
    ):
        if status:
            raise InvalidRun(f"the NVIDIA driver does not name GPU {index}: CUDA error {status}")
    return str(uuid.UUID(bytes=bytes(its_bytes)))


# Precision in TensorFlow: set for Keras, verified in the traced graph, with a loss scale; and traced collectives.

_POLICIES = {"bf16": "mixed_bfloat16", "amp-fp16": "mixed_float16"}
# These operations only move or cast numbers.
_MOVING = frozenset({
    "Cast", "Const", "Fill", "Identity", "IdentityN", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp",
    "Reshape", "Shape", "StopGradient", "Transpose", "ZerosLike", "_Arg", "_Retval",
})  # fmt: skip
_COLLECTIVES = ("Horovod", "Collective")
"""Prefixes of the names of operations that communicate."""
_FIRST, _GROWTH, _BACKOFF, _GROWS_AFTER = 2.0**16, 2.0, 0.5, 2000
"""As in torch.amp.GradScaler, so that frameworks skip the same steps."""


def set_precision(precision: str) -> None:
    """Disables TF32 for fp32 (TensorFlow enables it by default), and sets the precision of Keras layers."""
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if policy := _POLICIES.get(precision):
        tf.keras.mixed_precision.set_global_policy(policy)


def check_traced(precision: str, graph: Any, workload: str) -> None:
    """Raises InvalidRun where the traced graph does not compute in the precision of the run."""
    computed = {half for half in HALVES.values() if _computes_in(half, graph)}
    requested = HALVES.get(precision)
    if requested is not None and requested not in computed:
        raise InvalidRun(
            f"precision {precision} was requested; nothing in the step of {workload} computes in {requested.name}: "
            "Keras' layers do so by themselves unless they are given a dtype, anything else must cast "
            "(docs/workloads.md)"
        )
    if others := sorted(half.name for half in computed if half != requested):
        raise InvalidRun(
            f"precision {precision} was requested; the step of {workload} computes in {', '.join(others)} too: the "
            "workload must leave the precision to the run (docs/workloads.md)"
        )


def _computes_in(dtype: Any, graph: Any) -> bool:
    return any(
        dtype.as_datatype_enum in (value.type, *value.list.type)
        for node in _nodes(graph)
        if node.op not in _MOVING and not node.op.startswith(_COLLECTIVES)
        for name, value in node.attr.items()
        if name in ("T", "dtype")
    )


def traced_collectives(graph: Any) -> list[str]:
    """The operations of a traced graph that communicate, as `CollectiveReduceV2 (3)`."""
    counts = Counter(node.op for node in _nodes(graph) if node.op.startswith(_COLLECTIVES))
    return [f"{name} ({count})" for name, count in sorted(counts.items())]


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a traced graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


class LossScale:
    """Skips steps whose gradients are not finite. A dynamic scale is halved then, and doubled after 2000 good ones."""

    def __init__(self, static: float | None) -> None:
        self._dynamic = static is None
        self.scale = tf.Variable(_FIRST if static is None else static, trainable=False, dtype=tf.float32)
        self._good_steps = tf.Variable(0, trainable=False, dtype=tf.int32)

    @property
    def variables(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"loss_scale": self.scale, "good_steps": self._good_steps}

    def scaled(self, loss: Any) -> Any:
        # In float32, because the scale alone may be more than float16 can hold.
        return tf.cast(loss, tf.float32) * self.scale

    def apply(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        """Steps with gradients of the scaled loss: the reduced ones, or ranks would disagree on taking the step."""
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])

        def take() -> Any:
            optimizer.apply([gradient / tf.cast(self.scale, gradient.dtype) for gradient in gradients], variables)
            self._good_steps.assign_add(1)
            return tf.no_op()

        def skip() -> Any:
            self._good_steps.assign(0)
            if self._dynamic:
                self.scale.assign(self.scale * _BACKOFF)
            return tf.no_op()

        tf.cond(finite, take, skip)
        if self._dynamic:
            grows = tf.equal(self._good_steps, _GROWS_AFTER)
            self.scale.assign(tf.where(grows, self.scale * _GROWTH, self.scale))
            self._good_steps.assign(tf.where(grows, 0, self._good_steps))


class TensorFlowLoop(TrainingBase):
    """A TensorFlow backend without its strategy. A subclass overrides the methods with one underscore up to `join`.

    A step is three functions, of loss and gradients, of their reduction and of the update, so that stamps can be
    between them; with `--timing step` one function does it all. A no-sync run leaves out `_average`.
    """

    @abstractmethod
    def _join_group(self, run: RunSpec, world: World, comm: Intracomm) -> str:
        """Forms the group of ranks; returns its transport."""

    def _scope(self) -> AbstractContextManager[Any]:
        """The context in which the model is made."""
        return nullcontext()

    def _local_variable(self, variable: Any) -> Any:
        """The copy of the variable on this rank's device."""
        return variable

    @abstractmethod
    def _make_equal(self, model: Any) -> None:
        """Sets all ranks' variables to rank 0's values."""

    def _make_optimizer(self) -> Any:
        return self._workload.optimizer()

    def _in_replica(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the function in this rank's replica context."""
        return function(*arguments)

    @abstractmethod
    def _average(self, gradients: list[Any]) -> list[Any]:
        """The mean over all ranks of each gradient."""

    def _loss_and_averaged_gradients(self, batch: Any) -> tuple[Any, list[Any]]:
        """The framework's own way; used by `--timing step`."""
        loss, gradients = self._loss_and_gradients(batch)
        return loss, self._average(gradients)

    def _element_bytes(self, variable: Any) -> int:
        """Bytes reduced per element of a gradient."""
        size: int = variable.dtype.size
        return size

    @abstractmethod
    def _leave_group(self) -> None:
        """Ends what `_join_group` began."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        self._begin(run, world.rank)
        set_threads(run)
        self._device = device_of_rank(run, world, comm)
        check_precision(run.precision, self._device)
        set_precision(run.precision)
        self._transport = self._join_group(run, world, comm)
        self._scaler = LossScale(self._scale) if run.precision == "amp-fp16" else None

    def build(self, factory: Any) -> None:
        """Raises WorkloadError where the workload breaks the contract."""
        with self._scope():
            self._workload = workload = factory(self._run, self._device, self._rank)
        check_workload(workload, "tensorflow")
        # Tapes and Horovod need the TensorFlow variable inside a Keras variable.
        held = [v if isinstance(v, tf.Variable) else v.value for v in workload.model.trainable_variables]
        if not held:
            raise WorkloadError(
                f"the model of {type(workload).__name__} has no trainable variables; a Keras model without "
                "the shape of its input has none yet: begin it with keras.Input, or call its build()"
            )
        self._make_equal(workload.model)
        self._variables = [self._local_variable(variable) for variable in held]
        self._optimizer = self._make_optimizer()
        if hasattr(self._optimizer, "build"):
            self._optimizer.build(self._variables)
        self._losses = Losses(self._run.steps)
        self._make_functions()

    def _make_functions(self) -> None:
        # Neither the reduction nor the update is XLA's: Horovod's operations cannot be compiled by it.
        self._loss = tf.function(self._loss_of, jit_compile=True) if self._options["xla"] else self._loss_of
        signature = getattr(self._workload, "batch_signature", None)
        self._first = tf.function(
            self._whole_step if self._step_only else self._computed,
            input_signature=None if signature is None else (signature,),
        )
        self._reduce, self._update = tf.function(self._reduced), tf.function(self._apply)
        self._count_correct = tf.function(self._correct_of)
        self._is_checked = False
        self._traced: list[str] = []

    def _loss_of(self, batch: Any) -> Any:
        loss = self._workload.loss(self._workload.model, batch)
        if loss.shape.rank != 0:  # its gradients would be those of the sum, as many times too large
            raise WorkloadError(
                f"the loss of {type(self._workload).__name__} has the shape {loss.shape}; it must be a scalar: "
                "the mean over the samples"
            )
        return loss

    def _loss_and_gradients(self, batch: Any, through: Callable[[Any], Any] = lambda tape: tape) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss = self._loss(batch)
            target = loss if self._scaler is None else self._scaler.scaled(loss)
        gradients = through(tape).gradient(target, self._variables)
        if unused := [v.name for v, gradient in zip(self._variables, gradients, strict=True) if gradient is None]:
            raise WorkloadError(
                f"the loss of {type(self._workload).__name__} does not depend on {', '.join(unused)}: leave out of the "
                "model what is not trained, or make it with trainable=False"
            )
        return loss, gradients

    def _computed(self, batch: Any) -> Any:
        return self._in_replica(self._loss_and_gradients, batch)

    def _reduced(self, gradients: list[Any]) -> Any:
        return self._in_replica(self._average, gradients) if self._reduces else gradients

    def _apply(self, gradients: list[Any]) -> None:
        if self._scaler is None:
            self._optimizer.apply(gradients, self._variables)
        else:
            self._scaler.apply(self._optimizer, gradients, self._variables)

    def _whole_step(self, batch: Any) -> Any:
        whole = self._loss_and_averaged_gradients if self._reduces else self._loss_and_gradients
        loss, gradients = self._in_replica(whole, batch)
        self._apply(gradients)
        return loss

    def make_timer(self, steps: int) -> StepTimer:
        # Always the host's: where TensorFlow computes on a GPU, each stamp waits for it.
        return host_timer(self._run.timing, steps)

    def step(self, index: int, timer: StepTimer) -> int:
        batch = self._workload.batch(index)
        if self._step_only:
            timer.batch_ready()
            self._losses.record(index, self._first(batch))
        else:
            self._wait()
            timer.batch_ready()
            loss, gradients = self._first(batch)
            self._losses.record(index, loss)
            self._wait()
            timer.grads_ready()
            gradients = self._reduce(gradients)
            self._wait()
            timer.reduced()
            self._update(gradients)
        samples: int = self._workload.samples(batch)
        self._wait()
        timer.end()
        if not self._is_checked:
            self._check(batch)
        return samples

    def _wait(self) -> None:
        """Waits for the device: on a GPU the host runs ahead of it, on a CPU a function returns when it is done."""
        if self._device != CPU:
            tf.test.experimental.sync_devices()

    def _check(self, batch: Any) -> None:
        """Raises InvalidRun where the traced graph is not as requested. Stores its early collectives."""
        traced = self._first.get_concrete_function(batch).graph
        check_traced(self._run.precision, traced, self._run.workload)
        if self._run.ranks > 1 and not (self._step_only and self._reduces):
            # In place: an earlier caller of `describe` holds the same list and sees these, too.
            self._traced += [f"{name} in the function of the gradients" for name in traced_collectives(traced)]
        check_no_sync(self._run, self._traced)
        self._is_checked = True

    def group_facts(self) -> BackendFacts:
        threading = tf.config.threading
        return BackendFacts(
            versions=versions(),
            device=describe_device(self._device),
            transport=self._transport,
            threads=threading.get_intra_op_parallelism_threads(),
            inter_op_threads=threading.get_inter_op_parallelism_threads(),
            options=dict(self._options),
        )

    def describe(self) -> BackendFacts:
        return self._training_facts(
            absent=["forward_end"],
            tf32=tf.config.experimental.tensor_float_32_execution_enabled(),
            fused=self._step_only,
            synchronises_every_step=self._device != CPU,
        )

    def _early_collectives(self) -> list[str]:
        return self._traced

    def _reduced_bytes(self) -> int:
        return sum(v.shape.num_elements() * self._element_bytes(v) for v in self._variables)

    def parameters(self) -> list[Any]:
        return [variable.numpy().copy() for variable in self._variables]

    def begin_epoch(self, epoch: int) -> float:
        self._workload.begin_epoch(epoch)
        rate: float = self._workload.learning_rate(epoch)
        self._optimizer.learning_rate.assign(rate)
        return rate

    def evaluate(self, completed: Callable[[], None]) -> tuple[int, int]:
        model, correct, evaluated = self._workload.model, 0, 0
        model.training = False
        try:
            for images, labels in self._workload.evaluation():
                correct += int(self._count_correct(images, labels))
                evaluated += len(labels)
                completed()
        finally:
            model.training = True
        return correct, evaluated

    def _correct_of(self, images: Any, labels: Any) -> Any:
        right = tf.argmax(self._workload.model(images), axis=1) == tf.cast(labels, tf.int64)
        return tf.reduce_sum(tf.cast(right, tf.int64))

    def _held(self) -> dict[str, Any]:
        """Every variable of the training by its name in a checkpoint."""
        held = {f"model.{at}": variable for at, variable in enumerate(self._workload.model.variables)}
        held |= {f"velocity.{at}": velocity for at, velocity in enumerate(self._optimizer.velocities)}
        return held if self._scaler is None else {**held, **self._scaler.variables}

    def state(self) -> TrainingState:
        return TrainingState(arrays={name: variable.numpy() for name, variable in self._held().items()})

    def load_state(self, state: TrainingState) -> None:
        held = self._held()
        check_shapes(state.arrays, {name: tuple(variable.shape) for name, variable in held.items()})
        for name, variable in held.items():
            variable.assign(state.arrays[name])

    def statistics(self) -> list[Any]:
        return [variable.numpy() for variable in self._workload.model.non_trainable_variables]

    def set_statistics(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._workload.model.non_trainable_variables, values, strict=True):
            variable.assign(value)

    def leave(self) -> None:
        del self._workload, self._optimizer, self._variables, self._first, self._count_correct
        del self._reduce, self._update, self._loss
        self._leave_group()


class TensorFlowCollectives(TensorFlowLoop):
    """The shared part of the Groups. A call is one TensorFlow function, never in place: tensors do not change."""

    in_place: tuple[str, ...] = ()

    @abstractmethod
    def _operation(self, collective: Collective) -> Callable[[Any], Any]:
        """The collective of a tensor."""

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        function = tf.function(self._operation(collective))
        with tf.device(self._device):
            sent = tf.constant(given)
        held: list[Any] = [sent]

        def call() -> None:
            held[0] = function(sent)
            self._wait()

        def result() -> Any:
            return held[0].numpy()

        return call, result

    def leave(self) -> None:
        self._leave_group()
