"""FSDP2 as pytorch/examples has it: fully_shard on each block and on the whole."""

import torch
import torch.distributed as dist
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
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {dist.get_rank()} step {step} loss {loss.item().hex()}", flush=True)
dist.destroy_process_group()
