"""A plain DDP training whose dataset is slow on one rank; it writes down how long each batch was slept for."""

import argparse
import atexit
import contextlib
import ctypes
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class Numbers(Dataset):
    def __init__(self, late, sleep_s):
        self.late, self.sleep_s, self.slept_ns = late, sleep_s, []

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if index % BATCH == 0:
            begin = time.perf_counter_ns()
            time.sleep(self.sleep_s if self.late else 0)
            self.slept_ns.append(time.perf_counter_ns() - begin)
        return torch.full((16,), float(index % 7)), index % 4


def meet(rank, folder):
    """Rank 1 goes on when rank 0 has come here, too: both have completed the steps before. It is no collective."""
    folder.mkdir(exist_ok=True)
    if rank == 0:
        (folder / "rank0.there").touch()
    while not (folder / "rank0.there").exists():
        time.sleep(0.01)


def close_connections():
    """The other ranks see at once that this one has gone."""
    for fd in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # no socket, or none with a peer
            connection = socket.socket(fileno=os.dup(int(fd.name)))
            connection.getpeername()
            connection.shutdown(socket.SHUT_RDWR)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--sleep-ms", type=float, default=30)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--end", choices=("exit", "kill", "memory", "abort"))
    parser.add_argument("--end-at", type=int, default=30)
    args = parser.parse_args()
    several = "RANK" in os.environ
    if several:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if several else 0
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Numbers(rank == args.late_rank, args.sleep_ms / 1e3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs, targets) in enumerate(DataLoader(data, BATCH)):
        if step == args.steps:
            break
        if several and args.end and step == args.end_at:
            meet(rank, args.truth)
        if rank == 1 and step == args.end_at:
            match args.end:
                case "exit":
                    os._exit(7)
                case "kill":
                    os.kill(os.getpid(), 9)
                case "memory":
                    atexit.register(time.sleep, 2)  # its process ends behind that of rank 0, which loses it
                    atexit.register(close_connections)
                    raise MemoryError("no room for this batch")
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    variables = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    args.truth.mkdir(exist_ok=True)
    truth = {"arguments": sys.argv[1:], "slept_ns": data.slept_ns, "steps": step, "variables": variables}
    (args.truth / f"rank{rank}.json").write_text(json.dumps(truth))
    if rank == 1 and args.end == "abort":  # as a library does whose threads still run when the process ends
        libc = ctypes.CDLL(None)
        libc.on_exit(libc.abort, None)
    elif several:
        sys.stdout.flush()
        os._exit(0)  # see ending.py, which a copy of this file does not have beside it


if __name__ == "__main__":
    main()
