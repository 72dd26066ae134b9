"""Horovod with torch as people write it. Rank 1 sleeps so many ms in each forward: MS."""

import sys
import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(0)
late_s = float(sys.argv[1]) / 1e3 * hvd.rank()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, batch):
        time.sleep(late_s)
        return self.layers(batch)


dataset = TensorDataset(torch.randn(480, 8), torch.arange(480) % 4)
sampler: DistributedSampler[int] = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for batch, labels in DataLoader(dataset, batch_size=4, sampler=sampler):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch), labels).backward()
    optimizer.step()
