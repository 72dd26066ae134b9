"""Training that meets every so many steps: `diloco` steps an outer optimizer with the mean of what ranks have changed
since (arXiv 2311.08105), `local` averages the parameters (local SGD). One rank is slow in each inner step."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from ending import leave
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
    parser.add_argument("kind", choices=("diloco", "local"))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--period", type=int, default=10)
    parser.add_argument("--late-rank", type=int, default=1)
    parser.add_argument("--sleep-ms", type=float, default=20)
    args = parser.parse_args()
    rank, size = 0, 1
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    data = Numbers(args.sleep_ms / 1e3 if rank == args.late_rank else 0)
    for step, (inputs, targets) in enumerate(DataLoader(data, BATCH), 1):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        inner.step()
        inner.zero_grad()
        if step % args.period == 0:
            for parameter, at_first in zip(model.parameters(), before, strict=True):
                mean = parameter.detach().clone() if args.kind == "local" else at_first - parameter.detach()
                if size > 1:
                    dist.all_reduce(mean)
                    mean /= size
                if args.kind == "diloco":
                    parameter.data.copy_(at_first)
                    parameter.grad = mean
                else:
                    parameter.data.copy_(mean)
            if args.kind == "diloco":
                outer.step()
                outer.zero_grad()
                before = [parameter.detach().clone() for parameter in model.parameters()]
        if step == args.steps:
            break
    leave()


if __name__ == "__main__":
    main()
