"""What both TensorFlow backends do alike; a strategy fills in how ranks find each other and average gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from hpc.backends import BACKENDS, WorkloadError, check_workload
from hpc.backends.early_collectives import check_twin
from hpc.backends.loss_scale import static_scale
from hpc.backends.losses import Losses
from hpc.backends.settings import options_of_run
from hpc.backends.tensorflow_device import CPU, check_precision, describe_device, device_of_rank, set_threads, versions
from hpc.backends.tensorflow_graph import meetings
from hpc.backends.tensorflow_import import tf
from hpc.backends.tensorflow_loss_scale import LossScale
from hpc.backends.tensorflow_precision import check_traced, set_precision
from hpc.measure.timer import StepTimer, host_timer
from hpc.model.timestamps import INNER

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


class TensorFlowLoop(ABC):
    """A TensorFlow backend but for its strategy: the methods with one underscore that a subclass overrides.

    A step is three functions, of loss and gradients, of their reduction and of the update, so that stamps can lie
    between them; with `--timing step` one function does it all. A twin is the same
    without `_average`.
    """

    @abstractmethod
    def _join_group(self, run: RunSpec, world: World, comm: Intracomm) -> str:
        """Forms the group of ranks; returns its transport."""

    def _scope(self) -> AbstractContextManager[Any]:
        """In what the model is made."""
        return nullcontext()

    def _local_variable(self, variable: Any) -> Any:
        """The variable that lies on this rank's device."""
        return variable

    @abstractmethod
    def _make_equal(self, model: Any) -> None:
        """Gives all ranks the values that rank 0 begins with."""

    def _make_optimizer(self) -> Any:
        return self._workload.optimizer()

    def _in_replica(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the function as this rank's part of what all ranks do."""
        return function(*arguments)

    @abstractmethod
    def _average(self, gradients: list[Any]) -> list[Any]:
        """The mean over all ranks of each gradient."""

    def _loss_and_averaged_gradients(self, batch: Any) -> tuple[Any, list[Any]]:
        """The framework's own way, that `--timing step` takes."""
        loss, gradients = self._loss_and_gradients(batch)
        return loss, self._average(gradients)

    def _element_bytes(self, variable: Any) -> int:
        """How much of a gradient is reduced per element."""
        size: int = variable.dtype.size
        return size

    @abstractmethod
    def _leave_group(self) -> None:
        """Ends what `_join_group` began."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        """See Backend."""
        self._run, self._rank, self._reduces = run, world.rank, run.reduction == "on"
        options = options_of_run(run)
        self._options = {name: options[name] for name in BACKENDS[run.backend].options}
        scale = static_scale(self._options["loss_scale"])
        set_threads(run)
        self._device = device_of_rank(run, world, comm)
        check_precision(run.precision, self._device)
        set_precision(run.precision)
        self._transport = self._join_group(run, world, comm)
        self._scale = LossScale(scale) if run.precision == "amp-fp16" else None

    def build(self, factory: Any) -> None:
        """See Backend. Raises WorkloadError where the workload lacks a piece of the contract."""
        with self._scope():
            self._workload = workload = factory(self._run, self._device, self._rank)
        check_workload(workload, "tensorflow")
        # A Keras variable holds one of TensorFlow's, which is what tapes and Horovod know.
        held = [v if isinstance(v, tf.Variable) else v.value for v in workload.model.trainable_variables]
        if not held:
            raise WorkloadError(
                f"the model of {type(workload).__name__} has no trainable variables; a Keras model that was not told "
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
        fused = self._run.timing == "step"
        self._first = tf.function(self._whole_step if fused else self._computed)
        self._reduce, self._update = tf.function(self._reduced), tf.function(self._apply)
        self._is_checked = False
        self._meetings: list[str] = []

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
            target = loss if self._scale is None else self._scale.scaled(loss)
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
        if self._scale is None:
            self._optimizer.apply(gradients, self._variables)
        else:
            self._scale.apply(self._optimizer, gradients, self._variables)

    def _whole_step(self, batch: Any) -> Any:
        whole = self._loss_and_averaged_gradients if self._reduces else self._loss_and_gradients
        loss, gradients = self._in_replica(whole, batch)
        self._apply(gradients)
        return loss

    def make_timer(self, steps: int) -> StepTimer:
        """See Backend. Always the host's: where TensorFlow computes on a GPU, each mark waits for it."""
        return host_timer(self._run.timing, steps)

    def release(self) -> None:
        """See Backend."""
        self._losses.release()

    def step(self, index: int, timer: StepTimer) -> int:
        """See Backend."""
        batch = self._workload.batch(index)
        if self._run.timing == "step":
            timer.batch_ready()
            self._losses.keep(index, self._first(batch))
        else:
            self._wait()
            timer.batch_ready()
            loss, gradients = self._first(batch)
            self._losses.keep(index, loss)
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
        """Until the device is done: on a GPU the host runs ahead of it, on a CPU a function returns when it is done."""
        if self._device != CPU:
            tf.test.experimental.sync_devices()

    def _check(self, batch: Any) -> None:
        """Raises InvalidRun where the traced graph is not as requested. Adds its meetings before t3 to `_meetings`."""
        traced = self._first.get_concrete_function(batch).graph
        check_traced(self._run.precision, traced, self._run.workload)
        if self._run.ranks > 1 and (self._run.timing == "phases" or not self._reduces):
            # In place: an earlier caller of `describe` holds the same list and sees these, too.
            self._meetings += [f"{meeting} in the function of the gradients" for meeting in meetings(traced)]
        check_twin(self._run, self._meetings)
        self._is_checked = True

    def losses(self) -> list[float]:
        """See Backend. Waits for the device."""
        return self._losses.values()

    def describe(self) -> dict[str, Any]:
        """See Backend."""
        fused = self._run.timing == "step"
        return {
            "versions": versions(),
            "device": describe_device(self._device),
            "transport": self._transport,
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "options": dict(self._options),
            "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "absent_stamps": list(INNER) if fused else ["forward_end"],
            "fused": fused,
            "synchronises_every_step": self._device != CPU,
            "reduces": self._reduces,
            "gradient_bytes": self._reduced_bytes() if self._reduces else 0,
            "meets_before_gradients": self._meetings,
        }

    def _reduced_bytes(self) -> int:
        return sum(v.shape.num_elements() * self._element_bytes(v) for v in self._variables)

    def parameters(self) -> list[Any]:
        """See Backend."""
        return [variable.numpy().copy() for variable in self._variables]

    def leave(self) -> None:
        """See Backend."""
        del self._workload, self._optimizer, self._variables, self._first, self._reduce, self._update, self._loss
        self._leave_group()
