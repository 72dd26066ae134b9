"""Torch workloads of people's own that are wrong in one way each."""

import torch
from torch import nn


class Small:
    def __init__(self, run, device, rank):
        torch.manual_seed(run.seed)
        self.rank = rank
        self.model = nn.Linear(4, 1)
        self.inputs = torch.ones(run.local_batch_size, 4, device=device)

    def batch(self, step):
        self.step = step
        return self.inputs

    def loss(self, model, batch):
        return model(batch).square().mean()

    def optimizer(self, **implementation):
        return torch.optim.SGD(self.model.parameters(), lr=0.01, **implementation)

    def samples(self, batch):
        return len(batch)


class AsksForTooMuch(Small):
    def batch(self, step):
        return torch.empty(1 << 50)


class LacksLossAndSamples:
    def __init__(self, run, device, rank):
        self.model = nn.Linear(4, 1)

    def batch(self, step):
        return None

    def optimizer(self, **implementation):
        return None
