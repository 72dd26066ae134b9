"""Paddle's DataParallel: NCCL where the run has GPUs, gloo where it has none. Paddle is imported by `join`."""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack, nullcontext
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from hpc.backends import BACKENDS, InvalidRun, check_workload
from hpc.backends.early_collectives import check_twin, of_layers
from hpc.backends.loss_scale import static_scale
from hpc.backends.losses import Losses
from hpc.backends.paddle_device import describe_device, gpu_of_rank, take_device, versions
from hpc.backends.paddle_group import import_paddle, open_group, transport
from hpc.backends.settings import options_of_run
from hpc.measure.timer import StepTimer, device_timer, host_timer
from hpc.model.timestamps import INNER

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_MIB = 2**20
_NO_TRANSPORT = "none (one rank)"


class PaddleFleet:
    """One process per device, each with a replica; gradients are averaged in buckets.

    By NCCL, buckets are reduced on a stream of their own while backward goes on. By gloo, Paddle reduces a bucket as
    soon as its gradients are there, on the thread that computes them: nothing overlaps, and a rank waits for slower
    ones in the middle of its backward, where its wait looks like compute. With phases timed gloo is therefore given all
    gradients as one bucket, so that nothing is reduced before a rank's own last gradient is complete.
    """

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        """See Backend."""
        self._run, self._world, self._comm = run, world, comm
        self._reduces = run.reduction == "on"
        options = options_of_run(run)
        self._options = {name: options[name] for name in BACKENDS["paddle-fleet"].options}
        self._scale = static_scale(self._options["loss_scale"])
        for name in ("comm_buffer_mb", "last_comm_buffer_mb"):
            if int(self._options[name]) < 1:
                raise InvalidRun(f"{name} is {self._options[name]}; it must be at least 1 (MiB)")
        self._gpu = gpu_of_rank(run, world)
        self._paddle = import_paddle(run, world, comm, self._gpu)
        self._place = take_device(self._paddle, self._gpu, run, world)
        if world.size > 1:
            self._wait_for_all()
            open_group(self._paddle, world, self._gpu)

    def build(self, factory: Any) -> None:
        """See Backend. Raises WorkloadError where the workload lacks a piece of the contract, InvalidRun if it has no
        twin and is asked to be one."""
        paddle = self._paddle
        self._workload = workload = factory(self._run, self._place, self._world.rank)
        check_workload(workload, "paddle")
        check_twin(self._run, self._meetings())
        workload.model.train()
        self._parameters = [p for p in workload.model.parameters() if not p.stop_gradient]
        self._optimizer = workload.optimizer()
        self._single_bucket = self._gpu is None and self._run.timing == "phases"
        if self._single_bucket:
            whole = ceil(self._gradient_bytes() / _MIB) + 1
            self._options.update(comm_buffer_mb=whole, last_comm_buffer_mb=whole)
        self._wait_for_all()
        self._model = paddle.DataParallel(
            workload.model,
            comm_buffer_size=int(self._options["comm_buffer_mb"]),
            last_comm_buffer_size=int(self._options["last_comm_buffer_mb"]),
        )
        self._unreduced = ExitStack()
        if not self._reduces:
            self._unreduced.enter_context(self._model.no_sync())
        half = {"bf16": "bfloat16", "amp-fp16": "float16"}.get(self._run.precision)
        self._autocast: Any = partial(paddle.amp.auto_cast, level="O1", dtype=half) if half else nullcontext
        self._scaler = _make_scaler(paddle, self._scale) if self._run.precision == "amp-fp16" else None
        self._losses = Losses(self._run.steps)

    def _wait_for_all(self) -> None:
        """By MPI, which has patience: gloo waits 30 s for a rank that is late, and then Paddle aborts the process."""
        self._comm.Barrier()

    def make_timer(self, steps: int) -> StepTimer:
        """See Backend. The gradient that arrives last is known by none but itself: every one has a hook."""
        cuda = self._paddle.device.cuda
        self._timer: StepTimer = (
            host_timer(self._run.timing, steps)
            if self._gpu is None
            else device_timer(self._run.timing, steps, partial(cuda.Event, enable_timing=True), cuda.current_stream())
        )
        tells = "grads_ready" not in self._absent_stamps()
        self._hooks = [p.register_hook(self._complete) for p in self._parameters] if tells else []
        return self._timer

    def _complete(self, _: Any) -> None:
        self._timer.grads_ready()

    def _meetings(self) -> list[str]:
        return of_layers(self._run, self._workload.model.sublayers(include_self=True))

    def _gradient_bytes(self) -> int:
        return sum(p.size * p.element_size() for p in self._parameters)

    def _absent_stamps(self) -> list[str]:
        if self._run.timing == "step":
            return list(INNER)
        # Gradients of several types cannot be one bucket.
        return ["grads_ready"] if self._single_bucket and len(self._bucket_sizes()) > 1 else []

    def _bucket_sizes(self) -> list[int]:
        """Number of parameters in each bucket, in the order in which they are reduced; empty with one rank."""
        return [len(bucket) for bucket in reversed(getattr(self._model, "group_indices", []))]

    def release(self) -> None:
        """See Backend. Hooks stay: Paddle is not told that its graph never changes, so any may be needed again."""
        self._losses.release()

    def step(self, index: int, timer: StepTimer) -> int:
        """See Backend."""
        self._timer = timer
        batch = self._workload.batch(index)
        timer.batch_ready()
        with self._autocast():
            loss = self._workload.loss(self._model, batch)
        timer.forward_end()
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        timer.reduced()
        self._update()
        self._losses.keep(index, loss.detach())
        del loss  # its graph is freed in the time of this step, not in that of the next one's batch
        samples: int = self._workload.samples(batch)
        timer.end()
        return samples

    def _update(self) -> None:
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.clear_grad(set_to_zero=False)

    def losses(self) -> list[float]:
        """See Backend. Waits for the device."""
        return self._losses.values()

    def describe(self) -> dict[str, Any]:
        """See Backend."""
        return {
            "versions": versions(self._paddle),
            "device": describe_device(self._paddle, self._gpu),
            "transport": transport(self._gpu) if self._world.size > 1 else _NO_TRANSPORT,
            "threads": int(os.environ["OMP_NUM_THREADS"]),
            "options": self._options,
            "tf32": self._run.precision == "tf32",
            "parameters_per_bucket": self._bucket_sizes(),
            "absent_stamps": self._absent_stamps(),
            "fused": not self._single_bucket,
            # GradScaler asks the device whether to skip the step.
            "synchronises_every_step": self._scaler is not None,
            "reduces": self._reduces,
            "gradient_bytes": self._gradient_bytes() if self._reduces else 0,
            "meets_before_gradients": self._meetings(),
        }

    def parameters(self) -> list[Any]:
        """See Backend."""
        return [parameter.numpy().copy() for parameter in self._parameters]

    def leave(self) -> None:
        """See Backend."""
        for hook in self._hooks:
            hook.remove()
        self._unreduced.close()
        del self._model, self._workload, self._optimizer, self._parameters, self._hooks, self._losses
        gc.collect()
        if self._world.size > 1:
            self._paddle.distributed.destroy_process_group()
        if self._gpu is not None:
            self._paddle.device.cuda.empty_cache()


def _make_scaler(paddle: Any, scale: float | None) -> Any:
    if scale is None:
        return paddle.amp.GradScaler()
    return paddle.amp.GradScaler(init_loss_scaling=scale, use_dynamic_loss_scaling=False)
