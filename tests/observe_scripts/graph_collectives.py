"""Averages its gradients by an all-reduce inside a compiled graph, which no hook of Python is called in, and calls in a
group of one rank, too."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

dist.init_process_group("gloo")
single, _ = dist.new_subgroups(1)
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


@torch.compile(backend="aot_eager", fullgraph=True)
def average(gradient):
    return functional.all_reduce(gradient, "sum", dist.group.WORLD) / 2


for _ in range(12):
    model(torch.randn(8, 16)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=single)
        parameter.grad = average(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
