"""A training that Rankwise measures unchanged, in three shapes, with known delays on host and device of its last rank.

The shapes, of which no code is taken: `ddp` is pytorch/examples' distributed/ddp-tutorial-series (a DataLoader, DDP,
cross entropy), `gpt` karpathy/nanoGPT's train.py (get_batch, micro-batches, autocast, clipped gradients), `fsdp2`
pytorch/examples' distributed/FSDP2 (fully_shard on each block and on the whole). It imports nothing of Rankwise.

The steps are windows of LEAD + `--window` steps, one for each name in `--delays`, which each of their steps has once.
`ddp` and `fsdp2` read their loss in every step, so that the host is never ahead of the device by more than a step;
`gpt` reads it every ten steps. With `--profile` the last ten steps are profiled, and the host's times at their borders
are noted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LEAD, PROFILED = 10, 10
DELAYS = ("none", "host-data", "host-forward", "device-forward", "device-backward", "device-update")
MICRO_BATCHES = 2

parser = argparse.ArgumentParser()
parser.add_argument("--shape", choices=("ddp", "gpt", "fsdp2"), required=True)
parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
parser.add_argument("--delays", nargs="+", choices=DELAYS, default=list(DELAYS))
parser.add_argument("--delay-ms", type=float, default=10.0)
parser.add_argument("--window", type=int, default=30)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--profile", type=Path)
parser.add_argument("--truth", type=Path, help="gets the length of the device's delays, measured once more at the end")
args = parser.parse_args()

device = torch.device("cuda:0" if args.device == "cuda" else "cpu")
if args.device == "cuda":
    torch.cuda.set_device(device)
    dist.init_process_group(args.backend, device_id=device if args.backend == "nccl" else None)
else:
    torch.set_num_threads(1)
    dist.init_process_group(args.backend)
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
steps = len(args.delays) * (LEAD + args.window) + (PROFILED + LEAD if args.profile else 0)


def cycles_per_ms() -> float:
    """How long the device's spinning kernel takes, once its clock has risen."""
    spin: Any = torch.cuda._sleep
    spin(500_000_000)
    make_event: Any = torch.cuda.Event
    begin, end = (make_event(enable_timing=True) for _ in range(2))
    begin.record()
    spin(100_000_000)
    end.record()
    end.synchronize()
    return 100_000_000 / float(begin.elapsed_time(end))


class Delays:
    """Sleeps on the host, or spins on the current stream of the device, where a window asks for it."""

    def __init__(self) -> None:
        self.step, self._late = 0, -1
        self._spin: Any = torch.cuda._sleep if args.device == "cuda" else None
        self.cycles = cycles_per_ms() * args.delay_ms if args.device == "cuda" else 0.0

    def __call__(self, where: str) -> None:
        window, place = divmod(self.step, LEAD + args.window)
        if (
            self._late == self.step
            or rank != size - 1
            or place < LEAD
            or window >= len(args.delays)
            or args.delays[window] != where
        ):
            return
        self._late = self.step  # once, although there are micro-batches
        if where.startswith("host") or args.device == "cpu":
            time.sleep(args.delay_ms / 1e3)
        else:
            self._spin(int(self.cycles))


delay = Delays()


class Samples(Dataset[Any]):
    def __init__(self) -> None:
        self.samples, self.fetched = torch.randn(64, args.width), 0

    def __len__(self) -> int:
        samples: int = args.batch_size * (steps + 1)
        return samples

    def __getitem__(self, index: int) -> Any:
        if self.fetched % args.batch_size == 0:
            delay("host-data")
        self.fetched += 1
        return self.samples[index % 64], index % 8


class Late(torch.autograd.Function):
    """Takes its time on the way back."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        delay("device-backward")
        return gradients[0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(args.width), nn.Linear(args.width, 2 * args.width)
        self.narrow = nn.Linear(2 * args.width, args.width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = inputs + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(inputs))))
        return outputs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(args.width, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            inputs = block(inputs)
            if number == 1:
                delay("host-forward")
                delay("device-forward")
                inputs = Late.apply(inputs)  # type: ignore[no-untyped-call]  # torch's
        outputs: torch.Tensor = self.head(inputs)
        return outputs


class Optimizer(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        delay("device-update")
        return loss


marks: dict[str, list[int]] = {"forward": [], "reduced": [], "end": []}


def mark(name: str) -> None:
    """The host's time, right before the hooks take theirs."""
    if args.profile:
        marks[name].append(time.perf_counter_ns())


def train_by_loader(model: nn.Module, optimizer: Optimizer) -> None:
    """As both examples of pytorch/examples do."""
    loader = DataLoader(Samples(), args.batch_size, pin_memory=args.device == "cuda")
    for step, (samples, labels) in enumerate(loader):
        delay.step = step
        if step == steps:
            break
        with_profile(step)
        inputs, targets = samples.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        mark("forward")
        loss: Any = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        mark("reduced")
        optimizer.step()
        mark("end")
        loss.item()
        delay.step = step + 1


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Cut out of what is in memory, as nanoGPT does."""
    at = torch.randint(64, (args.batch_size // MICRO_BATCHES,))
    inputs, targets = SOURCE[at], at % 8
    if args.device == "cuda":
        return inputs.pin_memory().to(device, non_blocking=True), targets.pin_memory().to(device, non_blocking=True)
    return inputs, targets


SOURCE = torch.randn(64, args.width)


def train_by_get_batch(model: Any, optimizer: Optimizer) -> None:
    """As nanoGPT does, but that each batch is read when it is needed."""
    autocast = torch.autocast("cuda", torch.bfloat16) if args.device == "cuda" else contextlib.nullcontext()
    for step in range(steps):
        delay.step = step
        with_profile(step)
        for micro in range(MICRO_BATCHES):
            model.require_backward_grad_sync = micro == MICRO_BATCHES - 1
            if micro == 0:
                delay("host-data")
            inputs, targets = get_batch()
            mark("forward")
            with autocast:
                loss: Any = torch.nn.functional.cross_entropy(model(inputs), targets) / MICRO_BATCHES
            loss.backward()
        mark("reduced")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mark("end")
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()


profiler = contextlib.ExitStack()


def with_profile(step: int) -> None:
    """Begins the profile ten steps before the end."""
    if not args.profile or step != steps - PROFILED:
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if args.device == "cuda" else []
    profiler.enter_context(profiled(activities))
    for its in marks.values():
        its.clear()


@contextlib.contextmanager
def profiled(activities: Any) -> Iterator[None]:
    """Writes the profile, and beside it the marks and how Unix time differs from the host's clock."""
    profile = torch.profiler.profile(activities=activities)
    profile.start()
    yield
    if args.device == "cuda":
        torch.cuda.synchronize()
    offset = time.time_ns() - time.perf_counter_ns()
    profile.stop()
    profile.export_chrome_trace(str(args.profile))
    beside = {"steps": steps, "profiled": PROFILED, "unix_offset_ns": offset, "marks": marks}
    args.profile.with_suffix(".marks").write_text(json.dumps(beside))


model: Any = Net().to(device)
if args.shape == "fsdp2":
    for its in model.blocks:
        fully_shard(its)
    fully_shard(model)
else:
    model = DistributedDataParallel(model, device_ids=[0] if args.device == "cuda" else None)
train: Callable[[Any, Optimizer], None] = train_by_get_batch if args.shape == "gpt" else train_by_loader
train(model, Optimizer(model.parameters(), lr=1e-4))
profiler.close()
if args.truth and rank == size - 1:
    device_ms = delay.cycles / cycles_per_ms() if args.device == "cuda" else args.delay_ms
    args.truth.write_text(json.dumps({"host": args.delay_ms, "device": device_ms}))
dist.barrier()
os._exit(0)  # gloo's threads may abort Python's own end
