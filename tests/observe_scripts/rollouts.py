"""Trains as PPO does: a rollout without gradients, then four updates; rank 1's rollouts take 40 ms longer."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LATE_S, UPDATES, ROLLOUTS = 0.04, 4, 25
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(ROLLOUTS):
    with torch.no_grad():
        states = torch.randn(64, 64)
        actions = model.module(states).argmax(-1)
        time.sleep(LATE_S * dist.get_rank())
    for _ in range(UPDATES):
        chosen = torch.randperm(64)[:16]
        loss = nn.functional.cross_entropy(model(states[chosen]), actions[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
