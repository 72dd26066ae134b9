"""Holds TensorFlow's ResNet-50 against torch's, which may not share its process: `torch FILE`, then `tensorflow FILE`.

torch leaves what it computes in the file; TensorFlow reads it and prints what it finds as JSON. One process, no ranks.
"""

import json
import sys
from collections import Counter
from dataclasses import replace

import numpy as np

from hpc.model.spec import RunSpec
from hpc.workloads.resnet50 import convolutions, initial_values

RANKS, STEPS = 2, 3


def spec(framework):
    """64 pixels, four images: with 32 and two, batch norm is over two numbers, and torch disagrees with itself."""
    return RunSpec(
        nodes=1, ranks_per_node=RANKS, gpus_per_node=0, cpus_per_rank=2, backend=framework, workload="resnet50",
        batch_size=4, precision="fp32", scaling="weak", warmup_steps=5, measured_steps=1, repeat=1, seed=0,
        site="here", options={"image_size": "64"},
    )  # fmt: skip


def beginning(framework):
    """Parameters and running statistics with which no batch norm is the identity, and images [N, 3, H, W]."""
    random, values = np.random.default_rng(1), initial_values(spec(framework))
    for module in convolutions():
        for kind in ("weight", "bias", "running_mean", "running_var"):
            values[f"{module.norm}.{kind}"] = random.uniform(0.5, 1.5, module.outputs).astype(np.float32)
    return values, random.standard_normal((2, 3, 96, 96), np.float32)


def by_torch():
    """Outputs in both modes and the running statistics after them; gradients and losses of a training of two ranks."""
    import torch

    from hpc.workloads.torch_models import ResNet50, TorchResNet50

    values, images = beginning("torch-ddp")
    model = ResNet50()
    model.load_state_dict({**model.state_dict(), **{name: torch.from_numpy(value) for name, value in values.items()}})
    ours = {}
    with torch.no_grad():
        for mode in ("eval", "train"):
            getattr(model, mode)()
            ours[f"output.{mode}"] = model(torch.from_numpy(images)).numpy()
    ours |= {name: value.numpy() for name, value in model.state_dict().items() if "running" in name}
    for kind, steps in ((torch.float32, STEPS), (torch.float64, 1)):
        ranks = [TorchResNet50(spec("torch-ddp"), torch.device("cpu"), rank) for rank in range(RANKS)]
        workload, model = ranks[0], ranks[0].model.to(kind).train()
        optimizer = workload.optimizer(foreach=True)
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            batches = [of_rank.batch(step) for of_rank in ranks]
            of_ranks = [workload.loss(model, (pixels.to(kind), labels)) for pixels, labels in batches]
            (sum(of_ranks) / RANKS).backward()
            losses.append([loss.item() for loss in of_ranks])
            if step == 0:  # those of batch norm and of the small convolutions depend on all the others
                small = {name: p.grad.numpy() for name, p in model.named_parameters() if p.numel() <= 1 << 16}
                ours |= {f"{kind}.{name}": value.copy() for name, value in small.items()}
            optimizer.step()
        ours[f"{kind}.losses"] = np.array(losses)
    return ours


def by_tensorflow(ours):
    from hpc.workloads.tensorflow_base import tf
    from hpc.workloads.tensorflow_models import ResNet50, TensorFlowResNet50, from_torch

    values, images = beginning("tensorflow-horovod")
    model = ResNet50({name: value for name, value in values.items() if "running" not in name}, tf.float32)
    distance = {}
    for name, variable in model.statistics.items():
        variable.assign(values[name])
    for mode in ("eval", "train"):
        model.training = mode == "train"
        distance[mode] = far(model(images.transpose(0, 2, 3, 1)).numpy(), ours[f"output.{mode}"])
    distance["statistics"] = max(far(variable.numpy(), ours[name]) for name, variable in model.statistics.items())

    ranks = [TensorFlowResNet50(spec("tensorflow-horovod"), "/CPU:0", rank) for rank in range(RANKS)]
    workload, variables = ranks[0], ranks[0].model.trainable_variables
    with tf.GradientTape() as tape:
        loss = sum(workload.loss(workload.model, of_rank.batch(0)) for of_rank in ranks) / RANKS
    gradients = dict(zip([v.name.partition(":")[0] for v in variables], tape.gradient(loss, variables), strict=True))
    compared = [name.removeprefix("torch.float64.") for name in ours if name.startswith("torch.float64.")]
    compared.remove("losses")
    right = {name: from_torch(ours[f"torch.float64.{name}"]) for name in compared}
    return {
        "parameters": sum(int(np.prod(v.shape)) for v in variables),
        "all_taken": sorted(gradients) == sorted(name for name in values if "running" not in name),
        "distance": distance,
        "compared": len(compared),
        "gradients_off": {
            "tensorflow": off({name: gradients[name].numpy() for name in compared}, right),
            "torch": off({name: from_torch(ours[f"torch.float32.{name}"]) for name in compared}, right),
        },
        "losses": ours["torch.float32.losses"].tolist(),
        "recipes": {name: recipe(TensorFlowResNet50, name) for name in ("ngc", "pytorch-examples")},
    }


def recipe(workload_class, name):
    run = replace(spec("tensorflow-horovod"), batch_size=64, options={"image_size": "32", "recipe": name})
    optimizer = workload_class(run, "/CPU:0", 0).optimizer()
    return [optimizer.learning_rate, optimizer._momentum, Counter(map(str, optimizer._decays))]


def far(result, wanted):
    return float(np.abs(result - wanted).max() / np.abs(wanted).max())


def off(result, right):
    """The largest distance of one parameter's gradient, as a share of the length of the right one."""
    return max(float(np.linalg.norm(result[name] - right[name]) / np.linalg.norm(right[name])) for name in right)


if sys.argv[1] == "torch":
    np.savez(sys.argv[2], **by_torch())
else:
    print(json.dumps(by_tensorflow(dict(np.load(sys.argv[2])))))
