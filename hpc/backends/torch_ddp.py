"""PyTorch DistributedDataParallel: NCCL where the run has GPUs, gloo where it has none."""

from __future__ import annotations

import gc
import os
from contextlib import nullcontext
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from hpc.backends import BACKENDS, InvalidRun, check_workload
from hpc.backends.rendezvous import open_store
from hpc.backends.torch_device import check_precision, describe_device, device_of_rank, set_tf32, versions
from hpc.options import OptionValue
from hpc.settings import options_of_run
from hpc.timer import DeviceMarks, HostMarks, Marks

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.spec import RunSpec
    from hpc.world import World


class TorchDDP:
    """One process per device, each with a replica; gradients are averaged in buckets while backward goes on."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        """See Backend."""
        self._run, self._rank = run, world.rank
        asked = options_of_run(run)
        self._options = {name: asked[name] for name in BACKENDS["torch-ddp"].options}
        self._scale = _loss_scale(self._options["loss_scale"])
        self._device = device_of_rank(run, world, comm)
        check_precision(run.precision, self._device)
        if "OMP_NUM_THREADS" not in run.env:
            torch.set_num_threads(run.cpus_per_rank)
        set_tf32(run.precision == "tf32")
        torch.backends.cudnn.benchmark = True  # sizes never change: the fastest kernels are sought once, in warm-up
        cuda = self._device.type == "cuda"
        self._transport = "nccl" if cuda else "gloo"
        self._store, interface = open_store(comm, _asked_interface(cuda))
        if not cuda:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        torch.distributed.init_process_group(
            self._transport,
            store=self._store,
            rank=world.rank,
            world_size=world.size,
            device_id=self._device if cuda else None,
        )

    def build(self, factory: Any) -> None:
        """See Backend. Raises WorkloadError where the workload lacks a piece of the contract."""
        self._workload = workload = factory(self._run, self._device, self._rank)
        check_workload(workload, "torch")
        options = self._options
        layout = torch.channels_last if options["channels_last"] else torch.preserve_format
        module = workload.model.to(device=self._device, memory_format=layout).train()
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._sgd, self._optimizer = _make_optimizer(workload, str(options["sgd"]))
        self._model: Any = DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=_bucket_cap(float(options["bucket_cap_mb"])),
            gradient_as_bucket_view=bool(options["gradient_as_bucket_view"]),
            static_graph=bool(options["static_graph"]),
            **_broadcasting_buffers(bool(options["broadcast_buffers"])),
        )
        if options["compile"]:
            # Around DDP, so that the graph is cut where its buckets end and reduction still overlaps backward.
            self._model = torch.compile(self._model)
        half = {"bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(self._run.precision)
        self._autocast: Any = torch.autocast(self._device.type, dtype=half) if half else nullcontext()
        self._scaler = _make_scaler(self._scale) if self._run.precision == "amp-fp16" else None
        self._losses = torch.full((self._run.steps,), torch.nan, device=self._device)
        self._loss_of_step = self._losses.unbind()  # views made here: making one in a step costs as much as all marks

    def make_marks(self, steps: int) -> Marks:
        """See Backend."""
        self._marks: Marks = HostMarks(steps)
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            self._marks = DeviceMarks(steps, partial(torch.cuda.Event, enable_timing=True), stream)
        self._last = -1
        self._seen_last: set[int] = set()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._make_hook(number))
            for number, parameter in enumerate(self._parameters)
        ]
        return self._marks

    def _make_hook(self, number: int) -> Any:
        def complete(_: torch.Tensor) -> None:
            self._last = number
            self._marks.grads_ready()

        return complete

    def settle(self) -> None:
        """Keeps the hooks of those parameters only whose gradients were ever a step's last.

        Where the graph may change, or before any step has shown it, all are kept.
        """
        if not self._options["static_graph"] or not self._seen_last:
            return
        for number, hook in enumerate(self._hooks):
            if number not in self._seen_last:
                hook.remove()

    def step(self, index: int, marks: Marks) -> int:
        """See Backend."""
        self._marks = marks
        batch = self._workload.batch(index)
        marks.batch_ready()
        with self._autocast:
            loss = self._workload.loss(self._model, batch)
        marks.forward_end()
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        marks.reduced()
        self._seen_last.add(self._last)
        self._update()
        self._loss_of_step[index].copy_(loss.detach())
        samples: int = self._workload.samples(batch)
        marks.end()
        return samples

    def _update(self) -> None:
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update(None if self._scale is None else self._scale)
        self._optimizer.zero_grad(set_to_none=True)

    def losses(self) -> list[float]:
        """See Backend. Waits for the device."""
        values: list[float] = self._losses.tolist()
        return values

    def describe(self) -> dict[str, Any]:
        """See Backend."""
        fused = getattr(self._optimizer, "_step_supports_amp_scaling", False)
        return {
            "versions": versions(),
            "device": describe_device(self._device),
            "transport": self._transport,
            "threads": torch.get_num_threads(),
            "options": {**self._options, "sgd": self._sgd},
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "absent_stamps": [],
            # GradScaler asks the device whether to skip the step unless the optimizer looks by itself.
            "synchronises_every_step": self._scaler is not None and not fused,
        }

    def parameters(self) -> list[Any]:
        """See Backend."""
        return [parameter.detach().cpu().numpy().copy() for parameter in self._parameters]

    def leave(self) -> None:
        """See Backend. Ends gloo's threads now: one that still runs when Python ends would abort the process.

        They end with the last reference to the group. The model and its reducer must not be the last to hold one: they
        would wait for the threads without letting go of Python's lock, which the threads may need.
        """
        for hook in self._hooks:
            hook.remove()
        del self._model, self._workload, self._optimizer, self._parameters
        if self._options["compile"]:
            torch.compiler.reset()  # what it compiled holds the model too
        gc.collect()
        torch.distributed.destroy_process_group()


def _bucket_cap(asked_mib: float) -> float | None:
    """What DDP is to be told: only where it is told nothing is its first bucket small (1 MiB), to begin early."""
    default = BACKENDS["torch-ddp"].options["bucket_cap_mb"].default
    return None if asked_mib == default else asked_mib


def _broadcasting_buffers(wanted: bool) -> dict[str, Any]:
    """DDP's switch under the name that this torch has for it: 2.13 renamed it."""
    names = ("forward_sync_buffers", "broadcast_buffers")
    known = signature(DistributedDataParallel.__init__).parameters
    return {next(name for name in names if name in known): wanted}


def _asked_interface(cuda: bool) -> str | None:
    asked = os.environ.get("NCCL_SOCKET_IFNAME" if cuda else "GLOO_SOCKET_IFNAME", "")
    first = asked.split(",")[0].removeprefix("=")
    return None if not first or first.startswith("^") else first


def _loss_scale(option: OptionValue) -> float | None:
    """A static scale, or None for the dynamic one."""
    if option == "dynamic":
        return None
    try:
        scale = float(option)
    except ValueError:
        scale = 0.0
    if not 0 < scale < float("inf"):
        raise InvalidRun(f"loss_scale is {option!r}; it must be dynamic or a number above 0")
    return scale


def _make_scaler(static_scale: float | None) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cuda") if static_scale is None else torch.amp.GradScaler("cuda", static_scale)


def _make_optimizer(workload: Any, asked: str) -> tuple[str, torch.optim.Optimizer]:
    """The workload's optimizer, in the implementation asked for (auto: fused), and which one it is."""
    implementations = {"foreach": {"foreach": True}, "for-loop": {"foreach": False, "fused": False}}
    optimizer = workload.optimizer(**implementations.get(asked, {"fused": True}))
    # What it is, not what was asked: a person's own optimizer may know no other implementation than one.
    found = [name for name in ("fused", "foreach") if optimizer.defaults.get(name)]
    return (found or ["for-loop"])[0], optimizer
