"""DDP with accumulation, as its documentation has it: a step reads several batches, and one rank is slow at each."""

import argparse
import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class Numbers(Dataset):
    def __init__(self, sleep_s):
        self.sleep_s = sleep_s

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(self.sleep_s if index % BATCH == 0 else 0)
        return torch.full((16,), float(index % 7)), index % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--late-rank", type=int, default=1)
    parser.add_argument("--sleep-ms", type=float, default=20)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Numbers(args.sleep_ms / 1e3 if dist.get_rank() == args.late_rank else 0)
    for number, (inputs, targets) in enumerate(DataLoader(data, BATCH)):
        if number == args.steps * args.accumulate:
            break
        last = number % args.accumulate == args.accumulate - 1
        with contextlib.nullcontext() if last else model.no_sync():
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    sys.stdout.flush()
    os._exit(0)  # see ending.py


if __name__ == "__main__":
    main()
