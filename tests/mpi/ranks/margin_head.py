"""The sharded margin softmax against one over all classes on the joined batch: `margin_head.py torch|horovod`,
a line of JSON.

For every case the largest differences from the unsharded head: of the loss, of the gradient of the rank's own features
(`features`, before the backend divides by the ranks) and of the weights of its classes, each relative to the largest.
"""

import json
import math
import sys

import torch
import torch.distributed
from mpi4py import MPI

from hpc.backends.horovod_group import load_horovod
from hpc.backends.torch_ddp import open_store
from hpc.workloads import arcface
from hpc.workloads.torch_margin import HorovodGroup, MarginHead, ShardedMarginHead, TorchGroup

SAMPLES = 6
comm = MPI.COMM_WORLD


def unsharded(features, weight, labels, margin):
    """By angles, as the papers have it, and without any of the code under test."""
    cosines = (features / features.norm(dim=1, keepdim=True)) @ (weight / weight.norm(dim=1, keepdim=True)).T
    target = cosines[torch.arange(len(labels)), labels]
    if margin == "cosface":
        moved = target - 0.35
    else:
        angle = torch.acos(target)
        moved = torch.where(angle + 0.5 < torch.pi, torch.cos(angle + 0.5), target - 0.5 * math.sin(0.5))
    logits = 64 * torch.where(torch.nn.functional.one_hot(labels, len(weight)).bool(), moved[:, None], cosines)
    return torch.nn.functional.cross_entropy(logits, labels)


def inputs(classes, dtype, opposite):
    """Features and labels of all ranks, weights of all classes: the same on every rank."""
    random = torch.Generator().manual_seed(classes)
    weight = torch.randn(classes, arcface.EMBEDDING, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (SAMPLES * comm.size,), generator=random)
    features = torch.randn(SAMPLES * comm.size, arcface.EMBEDDING, generator=random, dtype=torch.float64)
    if opposite:  # nearly: the angle of these to their own class is within the margin of a straight one
        features[::2] = -weight[labels[::2]] + 0.2 * features[::2]
    return features.to(dtype), labels, weight.to(dtype)


def far_apart(values, wanted):
    largest = float(wanted.abs().max()) if wanted.numel() else 0.0
    return float((values - wanted).abs().max()) / largest if largest else 0.0


def case(classes, dtype, margin, opposite=False):
    features, labels, weight = inputs(classes, dtype, opposite)
    features.requires_grad_(), weight.requires_grad_()
    wanted = unsharded(features, weight, labels, margin)
    wanted.backward()
    own, here = slice(comm.rank * SAMPLES, (comm.rank + 1) * SAMPLES), arcface.shard(classes, comm.size, comm.rank)
    mine = features.detach()[own].clone().requires_grad_()
    values = weight.detach()[here.start : here.stop].clone()
    head = ShardedMarginHead(group, values, here, margin=margin, sample_ratio=1.0, seed=comm.rank)
    loss = head(mine, labels[own])
    loss.backward()
    return {
        "loss": far_apart(loss.detach(), wanted.detach()),
        "features": far_apart(mine.grad / comm.size, features.grad[own]),
        "weight": far_apart(head.weight.grad, weight.grad[here.start : here.stop]),
    }


def replicated(classes, dtype, margin):
    """The mean over ranks of what the replicated head computes, as a backend would average it."""
    features, labels, weight = inputs(classes, dtype, False)
    features.requires_grad_(), weight.requires_grad_()
    wanted = unsharded(features, weight, labels, margin)
    wanted.backward()
    own = slice(comm.rank * SAMPLES, (comm.rank + 1) * SAMPLES)
    head = MarginHead(weight.detach().clone(), range(classes), margin=margin, sample_ratio=1.0, seed=comm.rank)
    loss = head(features.detach()[own], labels[own])
    loss.backward()
    mean_loss = comm.allreduce(float(loss.detach())) / comm.size
    gradient = torch.from_numpy(comm.allreduce(head.weight.grad.numpy()) / comm.size)
    return {"loss": abs(mean_loss / float(wanted) - 1), "weight": far_apart(gradient, weight.grad)}


def partial(classes, ratio):
    """Of steps of partial FC: which classes have a gradient, which occur; and whether a seed draws the same again."""
    features, labels, weight = inputs(classes, torch.float32, False)
    own, here = slice(comm.rank * SAMPLES, (comm.rank + 1) * SAMPLES), arcface.shard(classes, comm.size, comm.rank)
    occurring = [int(label) - here.start for label in labels.unique() if int(label) in here]
    trained = []
    for _ in range(2):
        values = weight[here.start : here.stop].clone()
        head = ShardedMarginHead(group, values, here, margin="arcface", sample_ratio=ratio, seed=comm.rank)
        for _ in range(2):
            head.weight.grad = None
            head(features[own], labels[own]).backward()
            trained.append(torch.nonzero(head.weight.grad.abs().sum(dim=1)).flatten().tolist())
    return {"here": len(here), "occurring": occurring, "trained": trained}


if sys.argv[1] == "torch":
    store, _ = open_store(comm, None)
    torch.distributed.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    group = TorchGroup()
else:
    load_horovod("torch", comm).init(comm)
    group = HorovodGroup()
results = {"exact": [], "replicated": [], "partial": []}
for classes in (5, 10, 64):
    for dtype in (torch.float32, torch.float64):
        for margin in arcface.MARGINS:
            name = f"{classes} classes {dtype} {margin}"
            results["exact"].append({"case": name, "dtype": str(dtype), **case(classes, dtype, margin)})
            results["replicated"].append({"case": name, "dtype": str(dtype), **replicated(classes, dtype, margin)})
        opposite = case(classes, dtype, "arcface", opposite=True)
        results["exact"].append({"case": f"{classes} classes {dtype} opposite", "dtype": str(dtype), **opposite})
results["partial"] = partial(400, 0.1)
everybody = comm.gather(results)
if comm.rank == 0:
    print(json.dumps(everybody))
if sys.argv[1] == "torch":
    torch.distributed.destroy_process_group()
