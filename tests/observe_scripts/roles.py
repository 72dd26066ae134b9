"""Reinforcement learning by ranks of two roles: generators roll out, learners train on that and hand on new weights.

Ranks 0 and 1 learn, 2 and 3 generate; the rank that is named takes 20 ms longer in each round.
"""

import sys
import time

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel

late, rounds = int(sys.argv[1]), int(sys.argv[2])
LEARNERS, UPDATES = 2, 1
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
learners = dist.new_group([*range(LEARNERS)], group_desc="learners")
policy = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
model = DistributedDataParallel(policy, process_group=learners) if rank < LEARNERS else policy
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
gathered = [torch.empty(8, 16) for _ in range(dist.get_world_size())]
for _ in range(rounds):
    states = torch.zeros(8, 16)
    if rank >= LEARNERS:
        with torch.no_grad():
            states = policy(torch.randn(8, 16))
        time.sleep(0.02 if rank == late else 0)
    dist.all_gather(gathered, states)
    if rank < LEARNERS:
        for _ in range(UPDATES):
            optimizer.zero_grad()
            loss = model(gathered[LEARNERS + rank]).square().mean()
            time.sleep(0.02 if rank == late else 0)
            loss.backward()
            optimizer.step()
    for parameter in policy.parameters():
        dist.broadcast(parameter.data, 0)
leave()
