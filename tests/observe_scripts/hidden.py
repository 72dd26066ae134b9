"""Trains two steps where another sitecustomize has its say."""

import builtins
import sys

import torch

print(getattr(builtins, "hidden", None), hasattr(sys.modules["sitecustomize"], "builtins"))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
