"""Loaders with an `__iter__` of their own. `stateful` stands in for torchdata's StatefulDataLoader, with what of it the
hooks meet: its own `__iter__`, iterators derived from torch's, a state. `generator` is no DataLoader at all."""

import sys

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

BATCH, EPOCHS, STEPS = 4, 3, 5


class StatefulIterator(_SingleProcessDataLoaderIter):
    finished = False

    def __next__(self):
        try:
            return super().__next__()
        except StopIteration:
            self.finished = True
            raise


class StatefulLoader(DataLoader):
    def __iter__(self):
        self.latest = StatefulIterator(self)
        return self.latest

    def state_dict(self):
        return {"finished": self.latest.finished}


data = torch.randn(STEPS * BATCH, 16)
loader = StatefulLoader(data, BATCH) if sys.argv[1] == "stateful" else None
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(EPOCHS):
    for inputs in (each for each in data.split(BATCH)) if loader is None else loader:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loader is None or loader.state_dict() == {"finished": True}
