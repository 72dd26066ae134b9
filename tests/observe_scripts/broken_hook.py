"""A script in which a hook raises after some steps; it must not notice."""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader


class Loader(DataLoader[Any]):
    batch_size = property(lambda self: 1 / 0, lambda self, size: None)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex())
    recording = sys.modules.get("_rankwise_observe.recording")
    if step == 3 and sys.argv[1:] == ["loader"]:
        numbers: Any = range(2)
        print(list(Loader(numbers)))
    elif step == 3 and recording is not None:
        recording.current.recorder.place = lambda: 1 / 0
print(torch.save.__code__.co_filename == torch.load.__code__.co_filename, "__call__" in vars(nn.Sequential))
