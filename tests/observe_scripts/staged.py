"""Pipelines by torch.distributed.pipelining, with known delays on one rank in some steps.

`--mesh 4` is a pipeline of four stages, `2x2` two replicas of two stages, `2x2x2` these with tensor parallel pairs. A
stage takes STAGE_MS for a micro-batch, each way. `--schedule` is a class of torch's, which has two stages on each rank
where it interleaves.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ending import leave
from group_delays import Backwards, GroupDelays
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, ROWS = 16, 2
STAGE_MS = 1.5
DIMENSIONS = {1: ("pp",), 2: ("pp", "dp"), 3: ("pp", "dp", "tp")}


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        # Behind the first layer: the first stage's inputs have no gradient.
        return self.second(torch.relu(Backwards.apply(self.first(self.work(inputs, "forward")), self.back)))

    def back(self, gradient):
        return self.work(gradient, "backward")

    def work(self, tensor, place):
        time.sleep(STAGE_MS / 1e3)
        delay(place)
        delay("stage")  # both ways
        return tensor


class DelayedSGD(torch.optim.SGD):
    def step(self, closure=None):
        delay("optimizer")
        return super().step(closure)


parser = argparse.ArgumentParser()
parser.add_argument("--plan", type=Path, required=True)
parser.add_argument("--truth", type=Path, required=True)
parser.add_argument("--shape", required=True, help="the mesh: 2, 4, 2x2, 2x2x2")
parser.add_argument("--schedule", default="1F1B")
parser.add_argument("--micro-batches", type=int, default=4)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
delay = GroupDelays(args.plan, rank)
torch.manual_seed(rank)
torch.set_num_threads(1)

sizes = tuple(map(int, args.shape.split("x")))
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=DIMENSIONS[len(sizes)])
pp = mesh["pp"].get_group()
at, stages = dist.get_rank(pp), dist.get_world_size(pp)
make = get_schedule_class(args.schedule)
several = issubclass(make, PipelineScheduleMulti)
parts = [Stage() for _ in range(2 if several else 1)]
if "tp" in mesh.mesh_dim_names:
    for part in parts:
        parallelize_module(part, mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
numbers = [at + turn * stages for turn in range(len(parts))]
if several and args.schedule in ("ZBVZeroBubble", "DualPipeV"):  # the second half comes back
    numbers = [at, 2 * stages - 1 - at]
pipeline = [
    pipelining.PipelineStage(part, number, stages * len(parts), torch.device("cpu"), group=pp)
    for part, number in zip(parts, numbers, strict=True)
]
schedule = make(
    pipeline if several else pipeline[0], args.micro_batches, loss_fn=lambda out, target: (out - target).square().mean()
)
is_first, is_last = 0 in numbers, stages * len(parts) - 1 in numbers
delay.asleep = {dist.get_process_group_ranks(pp)[(at + 1) % stages]}
optimizer = DelayedSGD([each for part in parts for each in part.parameters()], lr=1e-3)
delay.watch()
for _ in range(delay.steps):
    delay("data")
    torch.manual_seed(len(delay.done))
    inputs, target = torch.randn(2, ROWS * args.micro_batches, WIDTH)
    schedule.step(*[inputs] if is_first else [], **{"target": target} if is_last else {})
    if "dp" in mesh.mesh_dim_names:
        for part in parts:
            for parameter in part.parameters():
                gradient = parameter.grad
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                dist.all_reduce(local, group=mesh["dp"].get_group())
                local /= sizes[1]
    optimizer.step()
    optimizer.zero_grad()
    delay.end()
delay.write(args.truth)
leave()
