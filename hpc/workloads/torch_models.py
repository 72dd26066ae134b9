"""ResNet-50 v1.5 and the tiny perceptron in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from hpc.model.options import DALI, DataSource, data_source
from hpc.model.spec import RunSpec
from hpc.workloads import CHANNELS_LAST, mlp, options_in, resnet50
from hpc.workloads.parts import Synthetic, TrainableWorkload

if TYPE_CHECKING:
    from hpc.workloads.image_reader import ImageReader


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride), 1×1, and the way around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * resnet50.EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inputs, H, W] to [N, 4 × width, H / stride, W / stride]."""
        around = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += around
        result: torch.Tensor = self.relu(y)
        return result


class ResNet50(nn.Module):
    """25,557,032 trainable parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for number, (width, blocks, stride) in enumerate(resnet50.STAGES, start=1):
            self.add_module(f"layer{number}", _stage(inputs, width, blocks, stride))
            inputs = width * resnet50.EXPANSION
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(resnet50.FEATURES, resnet50.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [N, 3, H, W] to logits [N, 1000]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(resnet50.STAGES) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (Bottleneck(width * resnet50.EXPANSION, width, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


def _reader(run: RunSpec, size_of: Callable[[RunSpec], int], device: torch.device, rank: int) -> ImageReader | None:
    """The images of a rank from files; None for a run that reads none."""
    if (source := data_source(run.data)) is None:
        return None
    return image_reader(run, source, size_of(run), device, rank)


def image_reader(run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> ImageReader:
    """The images of a rank; imports the package that reads their kind."""
    if source.kind == DALI:
        from hpc.workloads.torch_dali import dali_reader

        return dali_reader(run, source, size, device, rank)
    from hpc.workloads.torch_images import folder_reader

    return folder_reader(run, source, size, device, rank)


class TorchResNet50(TrainableWorkload):
    """ResNet-50 trained by the recipe of the run, on synthetic images or on files."""

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        self._run, self._recipe = run, resnet50.recipe_of(run)
        self._schedule, self._peak = self._recipe.schedule, self._recipe.peak(run)
        self._learning_rate = self._recipe.learning_rate(run)
        self.model = ResNet50()
        values = {name: torch.from_numpy(value) for name, value in resnet50.initial_values(run).items()}
        self.model.load_state_dict({**self.model.state_dict(), **values})
        self._layout = (
            torch.channels_last if options_in(CHANNELS_LAST, run)["channels_last"] else torch.contiguous_format
        )
        self.reader = _reader(run, resnet50.image_size, device, rank)
        self.input = self.reader and self.reader.record
        self._data: Synthetic | ImageReader
        if self.reader is not None:
            self._data = self.reader
        else:
            images, labels = (torch.from_numpy(values).to(device) for values in resnet50.synthetic_batch(run, rank))
            self._data = Synthetic(images.contiguous(memory_format=self._layout), labels)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self._data.batch(step)
        return images.contiguous(memory_format=self._layout), labels

    def evaluation(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in super().evaluation():
            yield images.contiguous(memory_format=self._layout), labels

    def samples(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        return len(batch[0])

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        smoothing = self._recipe.label_smoothing
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=smoothing)

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        norms = [p for m in self.model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
        known = {id(p) for p in norms}
        others = [p for p in self.model.parameters() if id(p) not in known]
        groups = self._recipe.groups(norms, others)
        return torch.optim.SGD(groups, lr=self._learning_rate, momentum=self._recipe.momentum, **implementation)


class TorchMLP(TrainableWorkload):
    """The perceptron, trained by SGD with momentum, on synthetic samples or on files."""

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        self._run, self._schedule, self._peak = run, mlp.SCHEDULE, mlp.PEAK
        self.reader = _reader(run, mlp.image_size, device, rank)
        self.input = self.reader and self.reader.record
        layers: list[nn.Module] = [nn.Flatten()] if self.reader else []
        for weight, bias in mlp.initial_values(run):
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
            layers += [layer, nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        data = self.reader or Synthetic(*(torch.from_numpy(v).to(device) for v in mlp.synthetic_batch(run, rank)))
        self.batch, self.samples = data.batch, data.samples

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        features, labels = batch
        return nn.functional.cross_entropy(model(features), labels)

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), mlp.LEARNING_RATE, mlp.MOMENTUM, **implementation)
