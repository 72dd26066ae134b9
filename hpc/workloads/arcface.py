"""ArcFace and CosFace on PLSC's face backbone, as numbers that every framework's version takes: layers, values, images.

The backbone is the "ResNet50" of PLSC at the commit of reference 003 (plsc/models/resnet.py): residual units of two 3×3
convolutions behind a batch norm, [3, 4, 14, 3] of them, and no max pooling, so that 112 × 112 pixels end as 7 × 7.
ArcFace: Deng et al. 2019, https://arxiv.org/abs/1801.07698. CosFace: Wang et al. 2018, https://arxiv.org/abs/1801.09414.
Partial FC: An et al. 2020, https://arxiv.org/abs/2010.05222.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.measure.meetings import Meetings
from hpc.model.spec import RunSpec
from hpc.workloads import workload_options
from hpc.workloads.parts import convolution_flops, random_samples, training_flops

EMBEDDING = 512
STAGES = ((64, 3), (128, 4), (256, 14), (512, 3))
"""Channels and residual units of each of the four stages; the first unit of each halves the size."""
BN_EPSILON, BN_MOMENTUM = 2e-5, 0.1
"""The momentum as torch has it: the share of the new batch."""
PRELU = 0.25
SCALE = 64.0
MARGINS = {"arcface": 0.5, "cosface": 0.35}
"""Of the papers: an angle added to the target's, in radians; a number subtracted from its cosine."""
LEARNING_RATE_PER_SAMPLE, MOMENTUM, WEIGHT_DECAY = 0.1 / 1024, 0.9, 5e-4
MEETINGS = ("features", "labels", "maximum", "sums", "gradients")
"""The collectives of a sharded head in a step: features and labels gathered; the softmax's maximum, its sum with the
targets' logits, and the gradients of the features reduced."""
_ROWS = 1024
"""The head's initial values are drawn in blocks of so many rows, so that they do not depend on the sharding."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A residual unit: batch norm, 3×3, batch norm, PReLU, 3×3 with the stride, batch norm; and a 1×1 around it where
    the size changes, which the first unit of each stage does."""

    name: str
    inputs: int
    outputs: int
    stride: int


class MeasuredGroup:
    """A backend's group of ranks whose collectives are recorded, by the names and in the order of MEETINGS."""

    def __init__(self, group: Any, meetings: Meetings) -> None:
        self._group, self._meetings = group, meetings
        self.rank, self.size = int(group.rank), int(group.size)
        self._names = cycle(MEETINGS)

    def gather(self, values: Any) -> Any:
        """The rows of all ranks, by rank."""
        return self._meetings.meet(next(self._names), self._group.gather, values)

    def sum(self, values: Any) -> Any:
        return self._meetings.meet(next(self._names), self._group.sum, values)

    def maximum(self, values: Any) -> Any:
        return self._meetings.meet(next(self._names), self._group.maximum, values)


def units() -> Iterator[Unit]:
    """All 24, in order."""
    inputs = STAGES[0][0]
    for stage, (outputs, count) in enumerate(STAGES, start=1):
        for number in range(count):
            yield Unit(name=f"layer{stage}.{number}", inputs=inputs, outputs=outputs, stride=2 if number == 0 else 1)
            inputs = outputs


def final_size(image_size: int) -> int:
    """Height and width of the last feature map in pixels."""
    for _ in STAGES:
        image_size = (image_size + 1) // 2
    return image_size


def flops_per_sample(run: RunSpec) -> int | None:
    """The FLOPs of a training image, its share of the head's included: of a sharded head all samples meet all shards.
    None where the classes that a step trains depend on the labels."""
    options = workload_options(run)
    side, classes, ratio = int(options["image_size"]), int(options["classes"]), float(options["sample_ratio"])
    first, flops = convolution_flops(3, STAGES[0][0], 3, side), list[int]()
    for unit in units():
        flops.append(convolution_flops(unit.inputs, unit.outputs, 3, side))
        side = -(-side // unit.stride)
        flops.append(convolution_flops(unit.outputs, unit.outputs, 3, side))
        if unit.stride != 1:
            flops.append(convolution_flops(unit.inputs, unit.outputs, 1, side))
    sharded = options["head"] == "sharded"
    shards = [shard(classes, run.ranks, rank) for rank in range(run.ranks)] if sharded else [range(classes)]
    trained = [round(ratio * len(each)) for each in shards]
    if ratio < 1 and min(trained) < (run.global_batch_size if sharded else run.rank_batch_size):
        return None
    return training_flops(first, [*flops, 2 * STAGES[-1][0] * side**2 * EMBEDDING, 2 * EMBEDDING * sum(trained)])


def shard(classes: int, ranks: int, rank: int) -> range:
    """The classes of a rank; where they do not divide, the first ranks have one more."""
    each, more = divmod(classes, ranks)
    begin = rank * each + min(rank, more)
    return range(begin, begin + each + (rank < more))


def initial_values(run: RunSpec) -> dict[str, Array]:
    """Every trainable parameter of the backbone by name, float32 in torch's shapes, drawn from the run's seed.

    Convolutions and the embedding's layer normal with variance 2 / fan-out, as PLSC has them; PReLUs 0.25.
    """
    random = np.random.default_rng(run.seed)
    values: dict[str, Array] = {}

    def normal(name: str, outputs: int, *others: int) -> None:
        fan_out = outputs * int(np.prod(others[1:], dtype=np.int64))
        values[name] = random.standard_normal((outputs, *others), np.float32) * np.float32((2 / fan_out) ** 0.5)

    def norm(name: str, channels: int) -> None:
        values[f"{name}.weight"], values[f"{name}.bias"] = np.ones(channels, np.float32), np.zeros(channels, np.float32)

    def prelu(name: str) -> None:
        values[f"{name}.weight"] = np.full(1, PRELU, np.float32)

    normal("conv1.weight", STAGES[0][0], 3, 3, 3)
    norm("bn1", STAGES[0][0])
    prelu("prelu")
    for unit in units():
        norm(f"{unit.name}.bn1", unit.inputs)
        normal(f"{unit.name}.conv1.weight", unit.outputs, unit.inputs, 3, 3)
        norm(f"{unit.name}.bn2", unit.outputs)
        prelu(f"{unit.name}.prelu")
        normal(f"{unit.name}.conv2.weight", unit.outputs, unit.outputs, 3, 3)
        norm(f"{unit.name}.bn3", unit.outputs)
        if unit.stride != 1:
            normal(f"{unit.name}.downsample.0.weight", unit.outputs, unit.inputs, 1, 1)
            norm(f"{unit.name}.downsample.1", unit.outputs)
    channels, size = STAGES[-1][0], final_size(int(workload_options(run)["image_size"]))
    norm("bn2", channels)
    normal("fc.weight", EMBEDDING, channels * size**2)
    values["fc.bias"] = np.zeros(EMBEDDING, np.float32)
    norm("features", EMBEDDING)
    return values


def head_values(run: RunSpec, classes: range) -> Array:
    """The head's weights [classes, 512] of these classes, normal with variance 2 / all classes, whoever holds them."""
    total = int(workload_options(run)["classes"])
    blocks = [
        np.random.default_rng((run.seed, 1, block)).standard_normal((_ROWS, EMBEDDING), np.float32)
        for block in range(classes.start // _ROWS, -(-classes.stop // _ROWS))
    ]
    begin = classes.start - classes.start // _ROWS * _ROWS
    rows = np.concatenate(blocks)[begin : begin + len(classes)] if blocks else np.empty((0, EMBEDDING), np.float32)
    return rows * np.float32((2 / total) ** 0.5)


def synthetic_batch(run: RunSpec, rank: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Images [N, 3, H, W] and labels [N] of a rank."""
    options = workload_options(run)
    size = int(options["image_size"])
    return random_samples(run, rank, (3, size, size), int(options["classes"]))
