"""Trainings that are no plain loop of DDP; rank 1 has each batch, or its forward, 20 ms late."""

import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

kind, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
LATE_S = 0.02 * rank


class Net(nn.Module):
    def __init__(self, late_s=0.0):
        super().__init__()
        self.layers, self.late_s = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)), late_s

    def forward(self, x):
        time.sleep(self.late_s)
        return self.layers(x)


def batches(count=steps):
    return DataLoader(torch.randn(4 * count, 16), batch_size=4)


def late(loader):
    for x in loader:
        time.sleep(LATE_S)
        yield x


def reduce_and_update(gradients, optimizer):
    for parameter, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        dist.all_reduce(gradient)
        parameter.grad = gradient
    optimizer.step()


def minimise(model, x, optimizer):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


if kind in ("grad", "forward"):
    model = Net(LATE_S if kind == "forward" else 0.0)
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    for x in batches() if kind == "forward" else late(batches()):
        if kind == "grad":
            reduce_and_update(torch.autograd.grad(model(x).square().mean(), parameters), optimizer)
        else:
            optimizer.zero_grad()
            model.forward(x).square().mean().backward()
            reduce_and_update([parameter.grad for parameter in parameters], optimizer)
elif kind == "join":  # rank 1 has more batches, and rank 0 shadows its last steps
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    with Join([model, optimizer]):
        for x in late(batches(steps + 5 * rank)):
            minimise(model, x, optimizer)
elif kind == "read-by-thread":
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ready = queue.Queue(4)

    def read():
        for x in late(batches()):
            ready.put(x)
        ready.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (x := ready.get()) is not None:
        minimise(model, x, optimizer)
else:
    assert kind == "evaluated-by-thread"
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    @torch.no_grad()
    def evaluate():
        for x in batches(20):
            model.module(x)
            time.sleep(1e-3)

    for number, x in enumerate(late(batches())):
        if number % 20 == 10:
            threading.Thread(target=evaluate, daemon=True).start()
        minimise(model, x, optimizer)
leave()
