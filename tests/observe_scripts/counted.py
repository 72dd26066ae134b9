"""Steps whose events a simulated device notes, to be counted: DDP or FSDP2, with words for buffers and accumulation."""

import sys
from contextlib import nullcontext

import simulated_torch
import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

STEPS, PARTS = 12, 3 if "accumulates" in sys.argv else 1

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
norms = [nn.BatchNorm1d(8)] if "buffers" in sys.argv else []
model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)), *norms, nn.Linear(8, 4))
if "fsdp2" in sys.argv:
    for block in list(model)[:4]:
        fully_shard(block)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
simulated_torch.register()
if "fsdp2" in sys.argv:
    simulated_torch.begin()
for number, inputs in enumerate(DataLoader(torch.randn(4 * STEPS * PARTS, 8), batch_size=4)):
    last = number % PARTS == PARTS - 1
    with nullcontext() if last or "fsdp2" in sys.argv else model.no_sync():
        model(inputs).sum().backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
simulated_torch.device.synchronize()  # the other rank may be long in coming to the last collectives
leave()
