"""Holds ResNet-50 against transformers' and prints the differences as JSON. One process, no ranks."""

import json
from collections import Counter

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from hpc.model.spec import RunSpec
from hpc.workloads.torch_models import ResNet50, TorchResNet50

THEIRS = {"conv1": "resnet.embedder.embedder.convolution", "bn1": "resnet.embedder.embedder.normalization"}
THEIRS["fc"] = "classifier.1"


def their_name(ours):
    """transformers' name of a parameter or buffer that has torchvision's name here."""
    module, _, kind = ours.rpartition(".")
    if module in THEIRS:
        return f"{THEIRS[module]}.{kind}"
    stage, block, part, *rest = module.split(".")
    layer = f"resnet.encoder.stages.{int(stage[-1]) - 1}.layers.{block}"
    if part == "downsample":
        return f"{layer}.shortcut.{('convolution', 'normalization')[int(rest[0])]}.{kind}"
    return f"{layer}.layer.{int(part[-1]) - 1}.{'convolution' if part.startswith('conv') else 'normalization'}.{kind}"


def recipe(name, ranks):
    run = RunSpec(
        nodes=1, ranks_per_node=ranks, gpus_per_node=0, cpus_per_rank=2, backend="torch-ddp", workload="resnet50",
        batch_size=64, precision="fp32", scaling="weak", warmup_steps=5, measured_steps=1, repeat=1, seed=0,
        site="here", options={"recipe": name, "image_size": "32"},
    )  # fmt: skip
    workload = TorchResNet50(run, torch.device("cpu"), 0)
    groups = workload.optimizer(foreach=True).param_groups
    decays = Counter()
    for group in groups:
        decays[str(group["weight_decay"])] += len(group["params"])
    images, labels = workload.batch(0)
    conv = workload.model.layer1[0].conv2.weight
    fan = conv.shape[1 if name == "ngc" else 0] * 9
    logits = torch.zeros(1, 1000, requires_grad=True)
    workload.loss(lambda _: logits, (images, torch.tensor([3]))).backward()
    return {
        "lr": sorted({group["lr"] for group in groups}),
        "momentum": sorted({group["momentum"] for group in groups}),
        "decays": decays,
        "images": list(images.shape),
        "channels_last": images.is_contiguous(memory_format=torch.channels_last),
        "labels": [len(labels), int(labels.min()) >= 0, int(labels.max()) < 1000],
        "samples": workload.samples((images, labels)),
        # He: standard deviation sqrt(2 / fan); 36,864 draws know it to half a percent.
        "spread": float(conv.std()) / (2 / fan) ** 0.5,
        "gradient_of_the_label": float(logits.grad[0, 3]),
    }


torch.manual_seed(1)
ours, theirs = ResNet50(), ResNetForImageClassification(ResNetConfig(num_labels=1000))
state = theirs.state_dict()
for tensor in state.values():  # batch norm must not be the identity, or a wrong one would not be seen
    if tensor.dtype == torch.float32 and tensor.ndim == 1:
        tensor.uniform_(0.5, 1.5)
theirs.load_state_dict(state)
names = [their_name(name) for name in ours.state_dict()]
ours.load_state_dict({name: state[their_name(name)] for name in ours.state_dict()})
images = torch.randn(2, 3, 96, 96)
distance = {}
for mode in ("eval", "train"):
    getattr(ours, mode)()
    getattr(theirs, mode)()
    with torch.no_grad():
        a, b = ours(images), theirs(images).logits
    distance[mode] = float((a - b).abs().max() / b.abs().max())
print(
    json.dumps(
        {
            "parameters": sum(p.numel() for p in ours.parameters() if p.requires_grad),
            "all_taken": sorted(names) == sorted(state),
            "distance": distance,
            "strides": {
                name: [module.kernel_size[0], module.stride[0]]
                for name, module in ours.named_modules()
                if isinstance(module, torch.nn.Conv2d) and module.stride[0] > 1
            },
            "ngc": recipe("ngc", 2),
            "pytorch-examples": recipe("pytorch-examples", 2),
        }
    )
)
