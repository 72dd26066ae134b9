"""Loaders with an `__iter__` of their own. `stateful` stands in for torchdata's StatefulDataLoader, with what of it the
hooks meet: its own `__iter__`, iterators derived from torch's, a state. `generator` is no DataLoader at all."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

BATCH = 4


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


class Numbers(Dataset):
    def __init__(self, length, sleep_s):
        self.length, self.sleep_s = length, sleep_s

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.sleep_s if index % BATCH == 0 else 0)
        return torch.full((16,), float(index % 7)), index % 4


def batches(data):
    for first in range(0, len(data), BATCH):
        inputs, targets = zip(*(data[index] for index in range(first, first + BATCH)), strict=True)
        yield torch.stack(inputs), torch.tensor(targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("stateful", "generator"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15, help="of an epoch")
    parser.add_argument("--late-rank", type=int, default=1)
    parser.add_argument("--sleep-ms", type=float, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    rank = 0
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model, rank = DistributedDataParallel(model), dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Numbers(args.steps * BATCH, args.sleep_ms / 1e3 if rank == args.late_rank else 0)
    loader = StatefulLoader(data, BATCH) if args.kind == "stateful" else None
    for _ in range(args.epochs):
        for inputs, targets in batches(data) if loader is None else loader:
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loader is None or loader.state_dict() == {"finished": True}
    sys.stdout.flush()
    os._exit(0)  # see ending.py


if __name__ == "__main__":
    main()
