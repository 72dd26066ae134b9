"""Paddle's DataParallel: NCCL where the run has GPUs, gloo where it has none. Paddle is imported by `join`."""

from __future__ import annotations

import gc
import io
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends import device as checks
from hpc.backends.addresses import PortTaken, endpoints, interface_towards, requested_interface
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
from hpc.measure.timer import StepTimer, device_timer, host_timer
from hpc.model.collective_plan import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Collective
from hpc.system.host import LOOPBACK
from hpc.workloads.collectives import ROOT

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

# The device of a rank in Paddle: its choice, made before Paddle is imported, its abilities and its facts.

_LEAST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "amp-fp16": (7, 0)}


def gpu_of_rank(run: RunSpec, world: World) -> int | None:
    """The number of this rank's GPU among those that it can see, None where the run uses CPUs; imports no Paddle.

    The one that the launcher has bound to the rank, where CUDA_VISIBLE_DEVICES names a single one; else the one for the
    rank's place on its node.
    """
    if run.gpus_per_node == 0:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if len(visible) == 1 and visible[0]:
        return 0
    return world.rank if world.nodes_simulated else world.local_rank


def take_device(paddle: Any, index: int | None, run: RunSpec, world: World) -> Any:
    """Selects the device that Paddle computes on and returns its place. Raises InvalidRun where that is impossible."""
    if index is None:
        paddle.set_device("cpu")
        return paddle.CPUPlace()
    name, has_cuda = f"Paddle {paddle.__version__}", paddle.is_compiled_with_cuda()
    checks.check_nvidia_only(run, name, paddle.is_compiled_with_rocm())
    visible = paddle.device.cuda.device_count() if has_cuda else 0
    checks.check_sees_gpus(visible, run, world, name, "" if has_cuda else "CUDA", "a CUDA build of Paddle")
    if index >= visible:
        raise InvalidRun(
            f"{run.ranks_per_node} ranks of {world.hostname} need a GPU each; rank {world.rank} sees {visible}"
        )
    paddle.set_device(f"gpu:{index}")
    _check_precision_of_gpu(paddle, run.precision)
    return paddle.CUDAPlace(index)


def _check_precision_of_gpu(paddle: Any, precision: str) -> None:
    """Refuses a precision that Paddle would replace by fp32 with only a warning; turns TF32 off for fp32 runs."""
    least = _LEAST_CAPABILITY.get(precision)
    if least is not None and (capability := tuple(paddle.device.cuda.get_device_capability())) < least:
        raise InvalidRun(
            f"precision {precision} was requested; it needs compute capability {least[0]}.{least[1]}, "
            f"{paddle.device.cuda.get_device_name()} has {capability[0]}.{capability[1]}"
        )
    paddle.base.core.set_cublas_switch(precision == "tf32")
    paddle.base.core.set_cudnn_switch(precision == "tf32")


def versions(paddle: Any) -> dict[str, Any]:
    """Versions of the libraries that determine the speed; None for one that this Paddle lacks."""
    if not paddle.is_compiled_with_cuda():
        return {"paddle": paddle.__version__, "cuda": None, "cudnn": None, "nccl": None}
    libraries = {name: getattr(paddle.version, name)() for name in ("cuda", "cudnn", "nccl")}
    return {"paddle": paddle.__version__, **{name: str(version) for name, version in libraries.items()}}


def describe_device(paddle: Any, index: int | None) -> DeviceFacts:
    if index is None:
        return CPU_DEVICE
    return DeviceFacts.of_gpu(paddle.device.cuda.get_device_properties(index))


# Paddle's group of ranks, made from MPI's communicator: variables first, then Paddle, then the group.

_NEEDLESS = (
    "No ccache found",
    "When training, we now always track global mean and variance",
    "The program will return to single-card operation",
)
"""Python warnings that Paddle always gives: at import, in batch norm, and with one rank."""
_NOISE = ("Modified FLAGS detected", "FLAGS(name=", "==========", "OMP_NUM_THREADS set to", "PLEASE USE OMP_NUM")
_LOOK_AGAIN_S = 0.01


def import_paddle(run: RunSpec, world: World, comm: Intracomm, gpu: int | None) -> Any:
    """The module `paddle`, imported after the variables that it reads at import are set. Collective."""
    _set_variables(run, world, endpoints(comm, requested_interface(gpu is not None)), gpu)
    at_termination = signal.getsignal(signal.SIGTERM)
    for message in _NEEDLESS:
        warnings.filterwarnings("ignore", message=message)
    with _without_noise():
        import paddle
    if at_termination is not None:
        # Paddle's own handler prints a C++ traceback on SIGTERM, which every process whose peer has failed gets.
        signal.signal(signal.SIGTERM, at_termination)
    return paddle


def _set_variables(run: RunSpec, world: World, addresses: list[str], gpu: int | None) -> None:
    """Sets ranks and addresses from MPI; leaves other variables unchanged."""
    os.environ.update(
        PADDLE_TRAINER_ID=str(world.rank),
        PADDLE_TRAINERS_NUM=str(world.size),
        PADDLE_CURRENT_ENDPOINT=addresses[world.rank],
        PADDLE_TRAINER_ENDPOINTS=",".join(addresses),
        PADDLE_MASTER=addresses[0],  # if set, Paddle uses it as the rendezvous instead of the first endpoint
        PADDLE_DISTRI_BACKEND=transport(gpu),  # unset, a Paddle without CUDA silently makes no group
    )
    if "OMP_NUM_THREADS" not in run.env:
        os.environ["OMP_NUM_THREADS"] = str(run.cpus_per_rank)
    if gpu is None:
        host = addresses[0].rpartition(":")[0]
        interface = requested_interface(gpu is not None) or ("lo" if host == LOOPBACK else interface_towards(host))
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    else:
        os.environ.update({"FLAGS_selected_gpus": str(gpu)})
        # Sizes never change: the fastest kernels are sought once, in warm-up.
        os.environ.setdefault("FLAGS_cudnn_exhaustive_search", "1")
    # Paddle's other store, its default, aborts the process where its port is taken.
    os.environ.setdefault("FLAGS_tcp_store_using_libuv", "0")
    if "GLOG_v" not in os.environ:
        os.environ.setdefault("GLOG_minloglevel", "1")  # warnings and above: not every socket that is opened


def transport(gpu: int | None) -> str:
    return "gloo" if gpu is None else "nccl"


def open_group(paddle: Any, world: World, gpu: int | None) -> None:
    """Forms the group of all ranks. Raises PortTaken where rank 0's address is taken, InvalidRun where none is made."""
    address = os.environ["PADDLE_MASTER"]
    if world.rank:
        _await_listener(address)
    try:
        with _without_noise():
            paddle.distributed.init_parallel_env()
    except ValueError as error:
        if world.rank == 0 and "Bind network" in str(error):
            raise PortTaken(f"{address} was free when rank 0 chose it and is taken now that Paddle binds it") from error
        raise
    if not paddle.distributed.is_initialized():
        raise InvalidRun(f"Paddle made no group of the {world.size} ranks, and would train each by itself")
    group = (paddle.distributed.get_rank(), paddle.distributed.get_world_size(), paddle.distributed.get_backend())
    if group != (world.rank, world.size, transport(gpu).upper()):
        raise InvalidRun(
            f"Paddle says rank {group[0]} of {group[1]} by {group[2]}; requested were rank {world.rank} of "
            f"{world.size} by {transport(gpu).upper()}"
        )


def _await_listener(address: str) -> None:
    """Returns once rank 0 listens. Paddle itself would retry only after three seconds."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            time.sleep(_LOOK_AGAIN_S)
        else:
            return


@contextmanager
def _without_noise() -> Iterator[None]:
    """Hides the lines that Paddle writes at every start, and shows all its other lines."""
    output = io.StringIO()
    try:
        with redirect_stderr(output):
            yield
    finally:
        lines = output.getvalue().splitlines(keepends=True)
        sys.stderr.writelines(line for line in lines if not any(noise in line for noise in _NOISE))


_MIB = 2**20


class PaddleFleet(TrainingBase):
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


class PaddleCollectives(PaddleFleet):
    """A Group; gloo has no reduce-scatter in Paddle."""

    in_place = (ALL_REDUCE, BROADCAST)

    def make_timer(self, steps: int) -> StepTimer:
        return self._device_timer(steps)

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        dist, operation = self._paddle.distributed, collective.operation
        sent = self._paddle.to_tensor(given, place=self._place)
        got = sent if operation in self.in_place else self._paddle.empty([collective.got], sent.dtype)
        calls: dict[str, Callable[[], Any]] = {
            ALL_REDUCE: lambda: dist.all_reduce(got),
            REDUCE_SCATTER: lambda: dist.stream.reduce_scatter(got, sent),
            ALL_GATHER: lambda: dist.stream.all_gather(got, sent),
            BROADCAST: lambda: dist.broadcast(got, ROOT),
        }
        self._wait_for_all()  # gloo would not wait long for a rank that is late
        return calls[operation], got.numpy

    def leave(self) -> None:
        gc.collect()
        self._paddle.distributed.destroy_process_group()
        if self._gpu is not None:
            self._paddle.device.cuda.empty_cache()
