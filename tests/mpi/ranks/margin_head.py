"""The sharded margin softmax against one over all classes on the joined batch: `margin_head.py BACKEND`, as JSON.

For every case the largest differences from the unsharded head: of the loss, of the gradient of the rank's own features
(`features`, before the backend divides by the ranks) and of the weights of its classes, each relative to the largest.
"""

import json
import math
import sys

import torch
from common import run_of
from mpi4py import MPI

from hpc.backends import load_backend
from hpc.measure.world import world_of
from hpc.workloads import arcface, torch_arcface

SAMPLES = 6
comm = MPI.COMM_WORLD
of_rank = slice(comm.rank * SAMPLES, (comm.rank + 1) * SAMPLES)


def unsharded(features, weight, labels):
    """By angles, as the papers have it, and without any of the code under test."""
    cosines = (features / features.norm(dim=1, keepdim=True)) @ (weight / weight.norm(dim=1, keepdim=True)).T
    target = cosines[torch.arange(len(labels)), labels]
    angle = torch.acos(target)
    moved = torch.where(angle + 0.5 < torch.pi, torch.cos(angle + 0.5), target - 0.5 * math.sin(0.5))
    logits = 64 * torch.where(torch.nn.functional.one_hot(labels, len(weight)).bool(), moved[:, None], cosines)
    return torch.nn.functional.cross_entropy(logits, labels)


def inputs(classes, dtype, opposite=False):
    """Features and labels of all ranks, weights of all classes: the same on every rank."""
    random = torch.Generator().manual_seed(classes)
    weight = torch.randn(classes, arcface.EMBEDDING, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (SAMPLES * comm.size,), generator=random)
    features = torch.randn(SAMPLES * comm.size, arcface.EMBEDDING, generator=random, dtype=torch.float64)
    if opposite:  # nearly: the angle of these to their own class is within the margin of a straight one
        features[::2] = -weight[labels[::2]] + 0.2 * features[::2]
    return features.to(dtype), labels, weight.to(dtype)


def torch_head(values, classes, group):
    """A head in torch, and a function that trains it: arrays in, arrays out."""
    head = torch_arcface.ShardedMarginHead(group, torch.from_numpy(values.copy()), classes)

    def train(features, labels):
        head.weight.grad = None
        features = torch.from_numpy(features.copy()).requires_grad_()
        loss = head(features, torch.from_numpy(labels))
        loss.backward()
        return float(loss.detach()), features.grad.numpy(), head.weight.grad.numpy()

    return train


def paddle_head(values, classes, group):
    import paddle

    from hpc.workloads import paddle_arcface

    head = paddle_arcface.ShardedMarginHead(group, paddle.to_tensor(values), classes)

    def train(features, labels):
        head.clear_gradients()
        features = paddle.to_tensor(features, stop_gradient=False)
        loss = head(features, paddle.to_tensor(labels))
        loss.backward()
        return float(loss), features.grad.numpy(), head.weight.grad.numpy()

    return train


def far_apart(values, wanted):
    return float(abs(values - wanted).max() / abs(wanted).max())


def case(classes, dtype, group, *, opposite):
    features, labels, weight = inputs(classes, dtype, opposite)
    features.requires_grad_(), weight.requires_grad_()
    wanted = unsharded(features, weight, labels)
    wanted.backward()
    wanted_features, wanted_weight = features.grad[of_rank].numpy(), weight.grad.numpy()
    features, labels, weight = features.detach()[of_rank].numpy(), labels[of_rank].numpy(), weight.detach().numpy()
    here = arcface.shard(classes, comm.size, comm.rank)
    train = make_head(weight[here.start : here.stop], here, group)
    loss, of_features, of_weight = train(features, labels)
    return {
        "case": f"{classes} classes {dtype} opposite={opposite}",
        "dtype": str(dtype),
        "loss": abs(loss / float(wanted) - 1),
        "features": far_apart(of_features / comm.size, wanted_features),
        "weight": far_apart(of_weight, wanted_weight[here.start : here.stop]),
    }


backend = load_backend(sys.argv[1])
backend.join(run_of({"backend": sys.argv[1]}), world_of(comm), comm)
if sys.argv[1] == "paddle-fleet":
    from hpc.workloads.paddle_arcface import Group

    make_head, group = paddle_head, Group(comm.rank, comm.size)
else:
    make_head = torch_head
    group = torch_arcface.HorovodGroup() if sys.argv[1] == "torch-horovod" else torch_arcface.TorchGroup()
exact = []
for classes in (5, 10, 64):
    for dtype in (torch.float32, torch.float64):
        exact += [case(classes, dtype, group, opposite=opposite) for opposite in (False, True)]
everybody = comm.gather(exact)
if comm.rank == 0:
    print(json.dumps(everybody))
if sys.argv[1] != "paddle-fleet":
    backend._leave_group()
