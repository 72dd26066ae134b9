"""Tensor parallelism by DTensor, as torch's tutorial has it: a feed-forward part, split by columns and by rows.

Gradients are clipped by their norm, which is of all ranks' shards. With --compile the model is compiled.
"""

import sys

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
if "--compile" in sys.argv:
    model.compile()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
for step in range(10):
    torch.manual_seed(step)
    loss = model(torch.randn(8, 16)).square().sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {dist.get_rank()} step {step} loss {loss.item().hex()}", flush=True)
leave()
