"""ResNet-50 v1.5 and two training recipes, as numbers that every framework's version takes: layers, values, images.

One definition, so that frameworks are compared with one model on the same data from the same initial values. It is
this project's own because a benchmark's model must not change with a library's version; the parameters have
torchvision's names.
v1.5: the stride of a bottleneck is in its 3×3 convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.spec import RunSpec
from hpc.workloads import workload_options
from hpc.workloads.parts import convolution_flops, random_samples, training_flops
from hpc.workloads.schedule import Schedule

CLASSES = 1000
EXPANSION = 4
FEATURES = 512 * EXPANSION
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, number of bottlenecks, and stride of the first of them, of each of the four stages."""
BN_EPSILON, BN_MOMENTUM = 1e-5, 0.1
"""As torch has them: the share of the new batch in the running statistics, not that of the old."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """The training recipe: SGD with momentum, weight decay added to the gradient, cross entropy; a benchmark's rate is
    constant."""

    learning_rate_per_sample: float
    momentum: float
    weight_decay: float
    norms_decay: bool
    label_smoothing: float
    fan: str
    schedule: Schedule
    """Of whole trainings; its first epoch has the rate of the benchmark."""

    def learning_rate(self, run: RunSpec) -> float:
        return self.learning_rate_per_sample * run.global_batch_size

    def peak(self, run: RunSpec) -> float:
        """The highest learning rate of a whole training, reached after the warm-up."""
        return self.learning_rate(run) * max(1, self.schedule.warmup_epochs)

    def groups(self, norms: list[Any], others: list[Any]) -> list[dict[str, Any]]:
        """Parameter groups, in the form of torch and Paddle, of batch norms and of other layers."""
        decay = self.weight_decay
        return [
            {"params": others, "weight_decay": decay},
            {"params": norms, "weight_decay": decay if self.norms_decay else 0.0},
        ]


RECIPES: Mapping[str, TrainingRecipe] = {
    # Reference 000: 0.256 per 256 samples, warmed up over 8 epochs in steps of one; a benchmark stays in the first.
    "ngc": TrainingRecipe(
        learning_rate_per_sample=0.256 / 256 / 8, momentum=0.875, weight_decay=1 / 32768, norms_decay=False,
        label_smoothing=0.1, fan="in", schedule=Schedule(warmup_epochs=8),
    ),
    # Reference 001.
    "pytorch-examples": TrainingRecipe(
        learning_rate_per_sample=1 / 1000, momentum=0.9, weight_decay=1e-4, norms_decay=True, label_smoothing=0.0,
        fan="out", schedule=Schedule(warmup_epochs=0, step_epochs=30),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """One convolution and the batch norm behind it, by torchvision's names."""

    name: str
    norm: str
    inputs: int
    outputs: int
    kernel: int
    stride: int


def convolutions() -> Iterator[Convolution]:
    """All 53, in the order of torchvision's parameters."""
    yield Convolution(name="conv1", norm="bn1", inputs=3, outputs=64, kernel=7, stride=2)
    inputs = 64
    for stage, (width, blocks, first_stride) in enumerate(STAGES, start=1):
        for block in range(blocks):
            where, stride, outputs = f"layer{stage}.{block}", first_stride if block == 0 else 1, width * EXPANSION
            shapes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1))
            for number, (n, m, kernel, its_stride) in enumerate(shapes, start=1):
                yield Convolution(
                    name=f"{where}.conv{number}", norm=f"{where}.bn{number}", inputs=n, outputs=m, kernel=kernel,
                    stride=its_stride,
                )  # fmt: skip
            if block == 0:
                yield Convolution(
                    name=f"{where}.downsample.0", norm=f"{where}.downsample.1", inputs=inputs, outputs=outputs,
                    kernel=1, stride=stride,
                )  # fmt: skip
            inputs = outputs


def flops_per_sample(run: RunSpec) -> int:
    """The FLOPs of a training image."""
    first, *others = convolutions()
    side = -(-image_size(run) // first.stride)
    of_first, inside = _flops(first, side), -(-side // 2)
    flops = [2 * FEATURES * CLASSES]
    for convolution in others:
        if ".downsample" not in convolution.name:  # which is beside the bottleneck, to the size behind it
            inside = -(-inside // convolution.stride)
        flops.append(_flops(convolution, inside))
    return training_flops(of_first, flops)


def _flops(convolution: Convolution, side: int) -> int:
    return convolution_flops(convolution.inputs, convolution.outputs, convolution.kernel, side)


def recipe_of(run: RunSpec) -> TrainingRecipe:
    return RECIPES[str(workload_options(run)["recipe"])]


def initial_values(run: RunSpec) -> dict[str, Array]:
    """Every trainable parameter by torchvision's name, float32 in torch's shapes, drawn from the run's seed.

    Convolutions [outputs, inputs, k, k] by He et al. 2015 with the recipe's fan, batch norms 1 and 0, the classifier
    [1000, 2048] and its bias uniform in ±1/√2048, as torch has them.
    """
    random = np.random.default_rng(run.seed)
    fan = recipe_of(run).fan
    values: dict[str, Array] = {}
    for convolution in convolutions():
        shape = (convolution.outputs, convolution.inputs, convolution.kernel, convolution.kernel)
        inputs = (convolution.inputs if fan == "in" else convolution.outputs) * convolution.kernel**2
        values[f"{convolution.name}.weight"] = random.standard_normal(shape, np.float32) * np.float32(
            (2 / inputs) ** 0.5
        )
        values[f"{convolution.norm}.weight"] = np.ones(convolution.outputs, np.float32)
        values[f"{convolution.norm}.bias"] = np.zeros(convolution.outputs, np.float32)
    limit = FEATURES**-0.5
    values["fc.weight"] = random.uniform(-limit, limit, (CLASSES, FEATURES)).astype(np.float32)
    values["fc.bias"] = random.uniform(-limit, limit, CLASSES).astype(np.float32)
    return values


def synthetic_batch(run: RunSpec, rank: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Images [N, 3, H, W] and labels [N] of a rank."""
    size = image_size(run)
    return random_samples(run, rank, (3, size, size), CLASSES)


def image_size(run: RunSpec) -> int:
    """Height and width of the images in pixels."""
    return int(workload_options(run)["image_size"])
