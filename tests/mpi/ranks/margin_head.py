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


def inputs(classes, dtype, opposite=False):
    """Features and labels of all ranks, weights of all classes: the same on every rank."""
    random = torch.Generator().manual_seed(classes)
    weight = torch.randn(classes, arcface.EMBEDDING, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (SAMPLES * comm.size,), generator=random)
    features = torch.randn(SAMPLES * comm.size, arcface.EMBEDDING, generator=random, dtype=torch.float64)
    if opposite:  # nearly: the angle of these to their own class is within the margin of a straight one
        features[::2] = -weight[labels[::2]] + 0.2 * features[::2]
    return features.to(dtype), labels, weight.to(dtype)


def torch_head(values, classes, group, **options):
    """A head in torch, and a function that trains it: arrays in, arrays out."""
    options = {"sample_ratio": 1.0, "seed": comm.rank, **options}
    values = torch.from_numpy(values.copy())
    head = (
        torch_arcface.ShardedMarginHead(group, values, classes, **options)
        if group
        else torch_arcface.MarginHead(values, classes, **options)
    )

    def train(features, labels):
        head.weight.grad = None
        features = torch.from_numpy(features.copy()).requires_grad_()
        loss = head(features, torch.from_numpy(labels))
        loss.backward()
        return float(loss.detach()), features.grad.numpy(), head.weight.grad.numpy()

    return train


def paddle_head(values, classes, group, **options):
    import paddle

    from hpc.workloads import paddle_arcface

    options = {"sample_ratio": 1.0, "seed": comm.rank, **options}
    values = paddle.to_tensor(values)
    head = (
        paddle_arcface.ShardedMarginHead(group, values, classes, **options)
        if group
        else paddle_arcface.MarginHead(values, classes, **options)
    )

    def train(features, labels):
        head.clear_gradients()
        features = paddle.to_tensor(features, stop_gradient=False)
        loss = head(features, paddle.to_tensor(labels))
        loss.backward()
        return float(loss), features.grad.numpy(), head.weight.grad.numpy()

    return train


def far_apart(values, wanted):
    return float(abs(values - wanted).max() / abs(wanted).max())


def case(classes, dtype, margin, *, opposite=False, group=None):
    """Sharded where there is a group; otherwise the mean over ranks, as a backend would average it."""
    features, labels, weight = inputs(classes, dtype, opposite)
    features.requires_grad_(), weight.requires_grad_()
    wanted = unsharded(features, weight, labels, margin)
    wanted.backward()
    wanted_features, wanted_weight = features.grad[of_rank].numpy(), weight.grad.numpy()
    features, labels, weight = features.detach()[of_rank].numpy(), labels[of_rank].numpy(), weight.detach().numpy()
    here = arcface.shard(classes, comm.size, comm.rank) if group else range(classes)
    train = make_head(weight[here.start : here.stop], here, group, margin=margin)
    loss, of_features, of_weight = train(features, labels)
    if not group:
        loss, of_weight = comm.allreduce(loss) / comm.size, comm.allreduce(of_weight) / comm.size
    return {
        "case": f"{classes} classes {dtype} {margin} opposite={opposite} sharded={group is not None}",
        "dtype": str(dtype),
        "loss": abs(loss / float(wanted) - 1),
        "features": far_apart(of_features / comm.size, wanted_features),
        "weight": far_apart(of_weight, wanted_weight[here.start : here.stop]),
    }


def partial(classes, ratio, group):
    """Of steps of partial FC: which classes have a gradient, which occur; and whether a seed draws the same again."""
    features, labels, weight = inputs(classes, torch.float32)
    here = arcface.shard(classes, comm.size, comm.rank)
    trained = []
    for _ in range(2):
        values = weight[here.start : here.stop].numpy()
        train = make_head(values, here, group, margin="arcface", sample_ratio=ratio)
        for _ in range(2):
            _, _, gradient = train(features[of_rank].numpy(), labels[of_rank].numpy())
            trained.append([place for place, row in enumerate(gradient) if abs(row).sum() > 0])
    occurring = [int(label) - here.start for label in labels.unique() if int(label) in here]
    return {"here": len(here), "occurring": occurring, "trained": trained}


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
        for margin in arcface.MARGINS:
            exact += [case(classes, dtype, margin, group=group), case(classes, dtype, margin)]
        exact.append(case(classes, dtype, "arcface", opposite=True, group=group))
everybody = comm.gather({"exact": exact, "partial": partial(400, 0.1, group)})
if comm.rank == 0:
    print(json.dumps(everybody))
if sys.argv[1] != "paddle-fleet":
    backend._leave_group()
