"""ResNet-50 in Paddle held against the one in torch, which cannot be loaded into the same process.

`torch FILE.npz` writes weights, images and what torch makes of them; `paddle FILE.npz` makes the same of them in Paddle
and prints how far apart they are, as JSON. `losses BACKEND` is one of several real ranks and prints the losses of the
first steps of all of them.
"""

import json
import sys
from collections import Counter

import numpy as np

from hpc.backends import BACKENDS, load_backend
from hpc.model.spec import RunSpec
from hpc.workloads import load_factory
from hpc.workloads.resnet50 import RECIPES

STEPS, NORM = 3, "layer1.0.bn1"


def run_of(backend, recipe="ngc", ranks=1, **fields):
    usual = {
        "nodes": 1, "ranks_per_node": ranks, "gpus_per_node": 0, "cpus_per_rank": 1, "backend": backend,
        "workload": "resnet50", "batch_size": 2, "precision": "fp32", "scaling": "weak", "warmup_steps": 5,
        "measured_steps": 1, "repeat": 1, "seed": 0, "site": "here",
        "options": {"recipe": recipe, "image_size": "64"},
    }  # fmt: skip
    return RunSpec(**{**usual, **fields})


def learned(workload, images, labels, clear):
    """Losses of the first steps in fp64, in which rounding has no time to grow."""
    optimizer = workload.optimizer()
    losses = []
    for _ in range(STEPS):
        loss = workload.loss(workload.model, (images, labels))
        loss.backward()
        optimizer.step()
        clear(optimizer)
        losses.append(float(loss.detach()))
    return losses


def in_torch(path):
    import torch

    from hpc.workloads.torch_models import ResNet50, TorchResNet50

    torch.manual_seed(1)
    model = ResNet50()
    for tensor in model.state_dict().values():  # batch norm must not be the identity, or a wrong one would not be seen
        if tensor.dtype == torch.float32 and tensor.ndim == 1:
            tensor.uniform_(0.5, 1.5)
    result = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        outputs = {mode: getattr(model, mode)()(images).numpy() for mode in ("eval", "train")}
    after = model.state_dict()
    statistics = {f"after.{kind}": after[f"{NORM}.{kind}"].numpy() for kind in ("running_mean", "running_var")}
    for recipe in RECIPES:
        workload = TorchResNet50(run_of("torch-ddp", recipe), torch.device("cpu"), 0)
        workload.model.double().train()
        images_of_run, labels = workload.batch(0)
        losses = learned(workload, images_of_run.double(), labels, lambda optimizer: optimizer.zero_grad())
        outputs[f"losses.{recipe}"] = np.array(losses)
    np.savez(path, images=images.numpy(), **result, **outputs, **statistics)


def decays(workload, paddle):
    """Rate and momentum of the optimizer, and how many parameters decay by how much where no gradient moves them."""
    optimizer, rate = workload.optimizer(), 100.0
    result = {"rate": optimizer.get_lr()}
    optimizer.set_lr(rate)
    parameters = [p for p in workload.model.parameters() if not p.stop_gradient]
    for parameter in parameters:
        parameter.set_value(paddle.ones_like(parameter))
    values = []
    for _ in range(2):
        sum(((p * 0).sum() for p in parameters), paddle.zeros([])).backward()
        optimizer.step()
        optimizer.clear_grad()
        values.append([float(p.flatten()[0]) for p in parameters])
    result["decays"] = Counter(f"{(1 - value) / rate:.3g}" for value in values[0])
    once, twice = values[0][0], values[1][0]
    result["momentum"] = (once - twice) / (1 - once) - once  # m × decay + decay × once, in units of the first decay
    return result


def in_paddle(path):
    import paddle

    from hpc.workloads.paddle_models import PaddleResNet50, ResNet50, paddle_values

    torch_model = dict(np.load(path))
    model = ResNet50()
    ours = {name for name in torch_model if "." in name and not name.startswith(("after.", "losses."))}
    state = paddle_values({name: torch_model[name] for name in ours if not name.endswith("num_batches_tracked")})
    result = {
        "all_taken": sorted(state) == sorted(model.state_dict()),
        "parameters": sum(p.size for p in model.parameters() if not p.stop_gradient),
        "distance": {},
    }
    model.set_state_dict(state)
    for mode in ("eval", "train"):
        getattr(model, mode)()
        with paddle.no_grad():
            mine = model(paddle.to_tensor(torch_model["images"])).numpy()
        result["distance"][mode] = float(np.abs(mine - torch_model[mode]).max() / np.abs(torch_model[mode]).max())
    norm = dict(model.named_sublayers())[NORM]
    per_channel = 2 * 24 * 24  # images × height × width: torch divides by one less
    old = torch_model[f"{NORM}.running_var"]
    biased = 0.9 * old + (torch_model["after.running_var"] - 0.9 * old) * (per_channel - 1) / per_channel
    result["running_mean"] = float(np.abs(norm._mean.numpy() - torch_model["after.running_mean"]).max())
    result["running_var"] = float(np.abs(norm._variance.numpy() / biased - 1).max())
    for recipe in RECIPES:
        workload = PaddleResNet50(run_of("paddle-fleet", recipe), paddle.CPUPlace(), 0)
        images, labels = workload.batch(0)
        logits = paddle.zeros([1, 1000])
        logits.stop_gradient = False
        workload.loss(lambda _, logits=logits: logits, (images, paddle.to_tensor([3]))).backward()
        result[recipe] = {
            **decays(workload, paddle),
            "gradient_of_the_label": float(logits.grad[0, 3]),
            "images": images.shape,
            "samples": workload.samples((images, labels)),
        }
        workload = PaddleResNet50(run_of("paddle-fleet", recipe), paddle.CPUPlace(), 0)
        workload.model.to(dtype="float64")
        workload.model.train()
        losses = learned(workload, images.astype("float64"), labels, lambda optimizer: optimizer.clear_grad())
        result[recipe]["losses"] = np.abs(np.array(losses) / torch_model[f"losses.{recipe}"] - 1).tolist()
    print(json.dumps(result))


def of_ranks(name):
    from mpi4py import MPI

    from hpc.measure.world import world_of

    comm = MPI.COMM_WORLD
    run = run_of(name, ranks=comm.size)
    backend = load_backend(name)
    backend.join(run, world_of(comm), comm)
    backend.build(load_factory("resnet50", BACKENDS[name].framework))
    timer = backend.make_timer(run.steps)
    timer.begin(0)
    for step in range(STEPS):
        backend.step(step, timer)
    timer.resolve()
    losses = comm.gather(backend.losses()[:STEPS])
    backend.leave()
    if comm.rank == 0:
        print(json.dumps(losses))


{"torch": in_torch, "paddle": in_paddle, "losses": of_ranks}[sys.argv[1]](sys.argv[2])
