"""Paddle's DataParallel: NCCL where the run has GPUs, gloo where it has none. Paddle is imported by `join`."""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack, nullcontext
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from hpc.backends.facts import BackendFacts
from hpc.backends.paddle_device import describe_device, gpu_of_rank, take_device, versions
from hpc.backends.paddle_group import import_paddle, open_group, transport
from hpc.backends.training import Losses, Training, check_no_sync, check_workload, synchronised_norms
from hpc.measure.timer import StepTimer, device_timer, host_timer

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_MIB = 2**20


class PaddleFleet(Training):
    """One process per device, each with a replica; gradients are averaged in buckets.

    By NCCL, buckets are reduced on a stream of their own while backward goes on. By gloo, Paddle reduces a bucket as
    soon as its gradients are there, on the thread that computes them: nothing overlaps, and a rank waits for slower
    ones in the middle of its backward, where its wait looks like compute. With `--timing phases` gloo is given all
    gradients as one bucket, so that nothing is reduced before a rank's own last gradient is complete.
    """

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        self._begin(run, world.rank)
        self._world, self._comm = world, comm
        self._gpu = gpu_of_rank(run, world)
        self._paddle = import_paddle(run, world, comm, self._gpu)
        self._place = take_device(self._paddle, self._gpu, run, world)
        if world.size > 1:
            self._wait_for_all()
            open_group(self._paddle, world, self._gpu)

    def build(self, factory: Any) -> None:
        """Raises WorkloadError where the workload breaks the contract, InvalidRun where it cannot run without sync."""
        paddle = self._paddle
        self._workload = workload = factory(self._run, self._place, self._rank)
        check_workload(workload, "paddle")
        check_no_sync(self._run, self._early_collectives())
        workload.model.train()
        self._parameters = [p for p in workload.model.parameters() if not p.stop_gradient]
        self._optimizer = workload.optimizer()
        self._single_bucket = self._gpu is None and not self._step_only
        if self._single_bucket:
            whole = ceil(self._reduced_bytes() / _MIB) + 1
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
        """Every gradient has a hook: which one arrives last is not known beforehand."""
        self._timer = self._device_timer(steps)
        hooked = () if self._step_only or self._absent() else self._parameters
        self._hooks = [parameter.register_hook(self._complete) for parameter in hooked]
        return self._timer

    def _device_timer(self, steps: int) -> StepTimer:
        if self._gpu is None:
            return host_timer(self._run.timing, steps)
        cuda = self._paddle.device.cuda
        return device_timer(self._run.timing, steps, partial(cuda.Event, enable_timing=True), cuda.current_stream())

    def _complete(self, _: Any) -> None:
        self._timer.grads_ready()

    def _early_collectives(self) -> list[str]:
        of_workload = getattr(self._workload, "early_collectives", [])
        return [*synchronised_norms(self._run, self._workload.model.sublayers(include_self=True)), *of_workload]

    def _reduced_bytes(self) -> int:
        return sum(p.size * p.element_size() for p in self._parameters)

    def _absent(self) -> list[str]:
        # Gradients of several types cannot be one bucket.
        return ["grads_ready"] if self._single_bucket and len(self._bucket_sizes()) > 1 else []

    def _bucket_sizes(self) -> list[int]:
        """Number of parameters in each bucket, in the order in which they are reduced; empty with one rank."""
        return [len(bucket) for bucket in reversed(getattr(self._model, "group_indices", []))]

    def release(self) -> None:
        """Keeps the hooks: Paddle's graph is not declared static, so any of them may be needed again."""
        super().release()

    def step(self, index: int, timer: StepTimer) -> int:
        self._timer = timer
        batch = self._workload.batch(index)
        timer.batch_ready()
        with self._autocast():
            loss = self._workload.loss(self._model, batch)
        timer.forward_end()
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        timer.reduced()
        self._update()
        self._losses.record(index, loss.detach())
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

    def group_facts(self) -> BackendFacts:
        return BackendFacts(
            versions=versions(self._paddle),
            device=describe_device(self._paddle, self._gpu),
            transport=transport(self._gpu) if self._world.size > 1 else "none (one rank)",
            threads=int(os.environ["OMP_NUM_THREADS"]),
            options=self._options,
        )

    def describe(self) -> BackendFacts:
        return self._training_facts(
            absent=self._absent(),
            tf32=self._run.precision == "tf32",
            parameters_per_bucket=self._bucket_sizes(),
            fused=not self._single_bucket,
            # GradScaler waits for the device to decide whether to skip the step.
            synchronises_every_step=self._scaler is not None
            or bool(getattr(self._workload, "waits_for_device", False)),
        )

    def parameters(self) -> list[Any]:
        return [parameter.numpy().copy() for parameter in self._parameters]

    def leave(self) -> None:
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
