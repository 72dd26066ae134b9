"""A plain DDP training on the CPU in which one rank is late for a real cause; each rank keeps to a core of its own.

`--cause`: `none`, `work` (it computes more), `gil` (a second Python thread that never sleeps), `threads` (two compute
threads on its core), `stop` (stopped for 5 of every 15 ms), `fsync` (writes files to the disk in each step), `quota` (a
control group, whose folder is --group, lets it run for a part of the time), `child` (a process that it started is on
its core), `beside` (a process of nobody's is), `sleep`.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

CAUSES = ("none", "work", "gil", "threads", "stop", "fsync", "quota", "child", "beside", "sleep")
parser = argparse.ArgumentParser()
parser.add_argument("--cause", choices=CAUSES, required=True)
parser.add_argument("--rank", type=int, default=1, help="the late one")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--group", type=Path, help="an existing control group with a quota, for --cause quota")
parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where --cause fsync writes")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
cause = args.cause if rank == args.rank else "none"
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[rank % len(cores)]})
torch.set_num_threads(2 if cause == "threads" else 1)


def spin():
    while True:
        pass


def stop_now_and_then(pid):
    """Of the process that it is forked from; ends with it."""
    os.sched_setaffinity(0, cores)
    while os.getppid() == pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.005)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.010)


def spin_while(pid):
    while Path(f"/proc/{pid}").exists():
        for _ in range(1_000_000):
            pass


def forked(work, *, orphan=False):
    pid = os.getpid()
    child = os.fork()
    if child == 0:
        if not orphan or os.fork() == 0:
            work(pid)
        os._exit(0)
    if orphan:
        os.waitpid(child, 0)


if cause == "quota":
    (args.group / "cgroup.procs").write_text(str(os.getpid()))
elif cause == "gil":
    threading.Thread(target=spin, name="spinner", daemon=True).start()
elif cause == "stop":
    forked(stop_now_and_then)
elif cause in ("child", "beside"):
    forked(spin_while, orphan=cause == "beside")

width = 256
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(3))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
numbers = torch.randn(400, 400)
for (inputs,) in DataLoader(TensorDataset(torch.randn(args.steps * 64, width)), batch_size=64):
    for _ in range(20 if cause == "work" else 10):
        numbers @ numbers
    if cause == "sleep":
        time.sleep(0.015)
    elif cause == "fsync":
        with tempfile.NamedTemporaryFile(dir=args.folder) as file:
            for _ in range(4):
                file.write(os.urandom(1 << 16))
                file.flush()
                os.fsync(file.fileno())
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
os._exit(0)  # a thread that spins does not end
