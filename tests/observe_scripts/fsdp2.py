"""FSDP2 as pytorch/examples has it: fully_shard on each block and on the whole. With --clip gradients are clipped."""

import sys

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)))
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(10):
    x = torch.randn(8, 16)
    loss = model(x).sum()
    loss.backward()
    if "--clip" in sys.argv:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {dist.get_rank()} step {step} loss {loss.item().hex()}", flush=True)
leave()
