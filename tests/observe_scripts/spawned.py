"""Ranks that the script starts itself, as the commonest of DDP tutorials has it: one of them reads slowly."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ending import leave
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

BATCH = 4


class Numbers(Dataset):
    def __init__(self, length, sleep_s):
        self.length, self.sleep_s = length, sleep_s

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.sleep_s / BATCH)
        return torch.full((16,), float(index % 7)), index % 4


def train(rank, size, args):
    os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group("gloo", init_method=f"file://{args.group}", rank=rank, world_size=size)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Numbers(args.steps * size * BATCH, args.sleep_ms / 1e3 if rank == args.late_rank else 0)
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs, targets) in enumerate(loader):
        if (step, rank) == (args.fails_at, 1):
            raise ValueError("no more")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("group", help="file by which the ranks meet")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--late-rank", type=int, default=1)
    parser.add_argument("--sleep-ms", type=float, default=20)
    parser.add_argument("--fails-at", type=int, default=-1)
    options = parser.parse_args()
    mp.spawn(train, args=(options.ranks, options), nprocs=options.ranks)
