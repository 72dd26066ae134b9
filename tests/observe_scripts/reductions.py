"""Forwards and backwards of DDP in every order; prints before each backward its case, and after it whether DDP reduced.

What DDP reduces goes through a communication hook of its own, which counts.
"""

import tempfile

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

reduced = []  # the buckets since the last backward began


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Recomputed(Net):
    def forward(self, x):
        return self.second(checkpoint(self.first, x, use_reentrant=False))


def count(reduced, bucket):
    reduced.append(bucket.index())
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def ddp(kind=Net, **options):
    net = kind()
    if not options.get("find_unused_parameters"):
        del net.unused
    model = DDP(net, **options)
    model.register_comm_hook(reduced, count)
    return model


def backward(name, *losses):
    reduced.clear()
    sum(losses).backward()
    print(name, bool(reduced), flush=True)


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/group", rank=0, world_size=1)
x = torch.ones(3, 4)
kinds = {
    "plain": {}, "static": {"static_graph": True}, "unused": {"find_unused_parameters": True},
    "checkpoint": {"kind": Recomputed},
}  # fmt: skip
for name, options in kinds.items():
    model = ddp(**options)
    for _ in range(3):
        backward(name, model(x).sum())
model = ddp()
for _ in range(2):
    with model.no_sync():
        backward("accumulated", model(x).sum())
    backward("last-of-accumulation", model(x).sum())
    with model.no_sync():
        loss = model(x).sum()
    backward("forward-alone-in-no-sync", loss)
    backward("after-it", model(x).sum())
    loss = model(x).sum()
    with model.no_sync():
        backward("backward-alone-in-no-sync", loss)
    loss = model(x).sum()
    with torch.no_grad():
        model(x)
    backward("evaluation-between", loss)
    with torch.no_grad():
        model(x)
    with model.no_sync():
        backward("evaluation-before-no-sync", model(x).sum())
    model(x)
    with model.no_sync():
        backward("forward-without-backward-before", model(x).sum())
    backward("after-that", model(x).sum())
    backward("several-forwards", model(x).sum(), model(2 * x).sum())
    other = ddp()
    backward("two-models", model(x).sum(), other(x).sum())
    with model.no_sync():
        loss = model(x).sum()
    backward("one-of-two-models", loss, other(x).sum())
leave()
