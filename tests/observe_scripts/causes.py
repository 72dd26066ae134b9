"""A plain training by DDP with a cause of delay that is built in, chosen by name, and marks of what each rank did.

A rank's marks: `syncs`, the calls and ends of its collectives, and `faults`, from when to when it was held up on
purpose, where that is a stretch of time. All [step, name, begin, end] in ns of the clock that the ranks of a machine
share. What slows a rank down all the time (a quota, a thread) leaves no stretch: it calls later than the others.
"""

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("--marks", type=Path, required=True)
parser.add_argument("--faults", default="", help="HOW:PHASE:AMOUNT@RANK/WHEN, joined by +; RANK -1 is every rank")
parser.add_argument("--work", choices=("sleep", "burn", "matmul"), default="sleep", help="what computing is")
parser.add_argument("--lengths", choices=("equal", "common", "uneven"), default="equal", help="of computing, by step")
parser.add_argument("--fixed", type=float, default=12.0, help="computing, ms")
parser.add_argument("--shrinks", type=float, default=0.0, help="computing that ranks share, ms")
parser.add_argument("--workers", type=int, default=0, help="of the loader")
parser.add_argument("--evaluate", choices=("inner", "wrapper", "function"), default="inner", help="how it is called")
parser.add_argument("--metric-every", type=int, default=0, help="all-reduces a metric in one of so many steps")
parser.add_argument("--cgroup", type=Path, help="into which a rank with a quota goes")
parser.add_argument("--steps", type=int, default=130)
args = parser.parse_args()

BATCH, WIDTH = 8, 64
STOP = """
import os, signal, time
while os.getppid() == {parent}:
    time.sleep({every})
    os.kill({parent}, signal.SIGSTOP)
    time.sleep({stopped})
    os.kill({parent}, signal.SIGCONT)
"""
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
torch.set_num_threads(1)
torch.manual_seed(rank)
marks = {"syncs": [], "faults": []}
at = {"step": 0}


@contextmanager
def noted(kind, name):
    begin = time.perf_counter_ns()
    yield
    marks[kind].append([at["step"], name, begin, time.perf_counter_ns()])


class Fault:
    """Something that happens on a rank in a phase, in steps that `when` names: everyN, afterN (the first behind N),
    blocksN, shareN, fromN, grow."""

    def __init__(self, text):
        what, _, where = text.partition("@")
        self.how, self.phase, amount = what.split(":")
        ranks, _, self.when = where.partition("/")
        self.amount, self.rank = float(amount), int(ranks)
        self.number = int(self.when.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)

    def amount_at(self, step):
        kind, number = self.when.rstrip("0123456789"), self.number
        if kind == "blocks":
            return self.amount * (step // number % size == rank)
        if self.rank not in (rank, -1):
            return 0.0
        return (
            self.amount
            * {
                "": 1.0,
                "every": step % max(1, number) == number - 1,
                "after": step > 0 and step % max(1, number) == 0,
                "share": random.Random(f"{self.rank} {step}").random() * 100 < number,
                "from": step >= number,
                "grow": step / args.steps,
            }[kind]
        )


faults = [Fault(text) for text in args.faults.split("+") if text]
mine = {fault.how: fault for fault in faults if fault.rank == rank}


def sleep(ms):
    time.sleep(ms / 1e3)


def hog(mib):
    torch.ones(int(mib * 2**18))


def fsync(mib):
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.write(bytes(int(mib * 2**20)))
        file.flush()
        os.fsync(file.fileno())


def save(mib):
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        torch.save({"model": inner.state_dict(), "more": torch.zeros(int(mib * 2**18))}, file)


def evaluate(ms):
    if args.evaluate == "function":
        return evaluated(model, ms)
    with torch.no_grad():
        return rounds(inner if args.evaluate == "inner" else model, ms)


@torch.no_grad()
def evaluated(its, ms):
    return rounds(its, ms)


def rounds(its, ms):
    its.eval()
    for _ in range(4):
        its(torch.zeros(BATCH, WIDTH))
        sleep(ms / 4)
    its.train()


def collect(lists):
    """Has Python collect its garbage, among so many live objects of this rank."""
    while len(heap) < lists:
        heap.append([len(heap)])
    gc.collect()


heap = []
HOW = {"sleep": sleep, "hog": hog, "fsync": fsync, "save": save, "evaluate": evaluate, "collect": collect}


def happen(phase):
    for fault in faults:
        if fault.phase == phase and fault.how in HOW and (amount := fault.amount_at(at["step"])):
            with noted("faults", phase):
                HOW[fault.how](amount)


def hold_gil():
    while True:
        pass


def work(ms):
    if args.work == "burn":
        stop_cpu = time.thread_time_ns() + ms * 0.4e6
        while time.thread_time_ns() < stop_cpu:
            pass
        sleep(ms * 0.6)
        return
    for _ in range(round(ms)):
        sleep(1)
    if args.work == "matmul":
        torch.mm(square, square)


def length():
    """What computing of this step takes, ms."""
    its = args.fixed + args.shrinks / size
    of = {"equal": None, "common": f"{at['step']}", "uneven": f"{at['step']} {rank}"}[args.lengths]
    return its if of is None else its * (0.5 + random.Random(of).random())


class Numbers(Dataset):
    def __len__(self):
        return BATCH * size * (args.steps + 1)

    def __getitem__(self, index):
        worker = get_worker_info()
        if index % BATCH == 0 and worker is None:
            happen("data")
        elif index % BATCH == 0 and "worker" in mine and worker.id == 1:
            sleep(mine["worker"].amount)
        return torch.full((WIDTH,), float(index % 3))


class Batches:
    """Which samples a rank's batches have: one of `batch:data:MORE@RANK/WHEN` has so many times more."""

    def __len__(self):
        return args.steps

    def __iter__(self):
        for step in range(args.steps):
            more = mine["batch"].amount_at(step) if "batch" in mine else 0.0
            first = (step * size + rank) * BATCH
            yield range(first, first + BATCH + int(BATCH * more))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, inputs):
        if self.training:
            happen("compute")
            work(length() * len(inputs) / BATCH)
        return self.last(torch.relu(self.first(inputs)))


class SGD(torch.optim.SGD):
    def step(self, closure=None):
        happen("optimizer")
        return super().step(closure)


square = torch.rand(192, 192)
inner = Net()
grads = {}
inner.first.weight.register_post_accumulate_grad_hook(lambda _: grads.update(ns=time.perf_counter_ns()))
model = DistributedDataParallel(inner)
optimizer = SGD(model.parameters(), lr=1e-3)
if "threads" in mine:
    torch.set_num_threads(int(mine["threads"].amount))
if "gil" in mine:
    threading.Thread(target=hold_gil, name="spinner", daemon=True).start()
if "quota" in mine:
    (args.cgroup / "cgroup.procs").write_text(str(os.getpid()))
if "stop" in mine:
    times = {"parent": os.getpid(), "every": 0.01, "stopped": mine["stop"].amount / 1e3}
    subprocess.Popen([sys.executable, "-S", "-c", STOP.format(**times)])
batches = iter(DataLoader(Numbers(), batch_sampler=Batches(), num_workers=args.workers))
for step in range(args.steps):
    at["step"] = step
    inputs = next(batches)
    happen("before")
    loss = model(inputs).square().mean()
    loss.backward()
    end = time.perf_counter_ns()
    marks["syncs"].append([step, "reduction", grads["ns"], end])
    optimizer.step()
    optimizer.zero_grad()
    if args.metric_every and step % args.metric_every == args.metric_every - 1:
        metric = loss.detach().clone()
        happen("metric")
        with noted("syncs", "metric"):
            dist.all_reduce(metric)
    if step % 25 == 24:
        happen("evaluation")
        happen("checkpoint")
args.marks.mkdir(parents=True, exist_ok=True)
begins_ns = marks["syncs"][0][2]
(args.marks / f"{begins_ns}.rank{rank}of{size}.json").write_text(json.dumps(marks))
leave()
