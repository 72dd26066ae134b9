"""DDP with a communication hook of a kind, `comm_hooks.py KIND`: rank 1 sleeps 40 ms in it before its last bucket.

Each rank prints, by step: when it had slept, and when it called each collective of that bucket and was back, ns.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def blocking(_, bucket):
    dist.all_reduce(bucket.buffer())
    return unseen(_, bucket)


def unseen(_, bucket):
    """Calls nothing of torch."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def noting(*values, original=dist.all_reduce, **named):
    called = [time.perf_counter_ns()]
    calls.append(called)
    result = original(*values, **named)
    called.append(time.perf_counter_ns())
    return result


def hook(state, bucket):
    if bucket.is_last():
        time.sleep(0.04 * dist.get_rank())
        calls.clear()
        steps.append({"slept_ns": time.perf_counter_ns()})
    return hooks[kind](state, bucket)


hooks = {
    "all-reduce": default_hooks.allreduce_hook, "bf16": default_hooks.bf16_compress_hook,
    "power-sgd": powerSGD_hook.powerSGD_hook, "blocking": blocking, "unseen": unseen,
}  # fmt: skip
kind, calls, steps = sys.argv[1], [], []
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
dist.all_reduce = noting
net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
model = DistributedDataParallel(net, bucket_cap_mb=25 if kind == "power-sgd" else 0.02)
state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2) if kind == "power-sgd" else None
model.register_comm_hook(state, hook)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(8):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps[-1]["calls_ns"] = [*calls]
print(json.dumps(steps))
leave()
