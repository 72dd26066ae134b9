"""DDP whose optimizer's step is compiled, so that no hook sees it; one rank reads slowly, or updates slowly."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from ending import leave
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


parser = argparse.ArgumentParser()
parser.add_argument("where", choices=("data", "update"))
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--backend", default="eager")
parser.add_argument("--sleep-ms", type=float, default=20)
args = parser.parse_args()
rank = 0
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model, rank = DistributedDataParallel(model), dist.get_rank()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
update = torch.compile(optimizer.step, backend=args.backend)
sleep_s = args.sleep_ms / 1e3 if rank == 1 else 0
for step, (inputs, targets) in enumerate(DataLoader(Numbers(sleep_s if args.where == "data" else 0), BATCH), 1):
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    update()
    time.sleep(sleep_s if args.where == "update" else 0)
    optimizer.zero_grad()
    if step == args.steps:
        break
leave()
