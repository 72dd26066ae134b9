"""ResNet-50 v1.5 on synthetic images, by the recipes of two reference systems.

The definition is ours because a benchmark's model may not move with a library's version; the parameters have
torchvision's names. v1.5: the stride of a bottleneck is in its 3×3 convolution.
"""

from __future__ import annotations

import torch
from torch import nn

from hpc.settings import options_of_run
from hpc.spec import RunSpec

CLASSES = 1000
_BLOCKS = (3, 4, 6, 3)
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride), 1×1, and the way around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
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
        self.layer1 = _stage(64, 64, _BLOCKS[0], stride=1)
        self.layer2 = _stage(256, 128, _BLOCKS[1], stride=2)
        self.layer3 = _stage(512, 256, _BLOCKS[2], stride=2)
        self.layer4 = _stage(1024, 512, _BLOCKS[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * _EXPANSION, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [N, 3, H, W] to logits [N, 1000]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (Bottleneck(width * _EXPANSION, width, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


def initialise(model: nn.Module, fan: str) -> None:
    """He initialisation of the convolutions by `fan_in` or `fan_out`; batch norm 1 and 0; the rest as torch has it."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")  # type: ignore[arg-type]  # a literal to mypy
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class ResNet50Workload:
    """Normal images and random labels, made once on the device from seed + rank.

    Recipe `ngc` (reference 000): learning rate 0.256 per 256 samples of the global batch, warmed up over 8 epochs in
    steps of an epoch, so that a benchmark stays at an eighth of it; momentum 0.875, weight decay 1/32768 but none on
    batch norm, label smoothing 0.1, fan-in initialisation. Recipe `pytorch-examples` (reference 001): learning rate
    global batch / 1000, momentum 0.9, weight decay 1e-4 on everything, fan-out initialisation.
    """

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        options = options_of_run(run)
        self._ngc = options["recipe"] == "ngc"
        self._global_batch_size = run.global_batch_size
        self._smoothing = 0.1 if self._ngc else 0.0
        torch.manual_seed(run.seed)
        self.model = ResNet50()
        initialise(self.model, "fan_in" if self._ngc else "fan_out")
        size = int(options["image_size"])
        layout = torch.channels_last if options.get("channels_last") else torch.contiguous_format
        random = torch.Generator(device).manual_seed(run.seed + rank)
        images = torch.randn(run.local_batch_size, 3, size, size, device=device, generator=random)
        self._images = images.contiguous(memory_format=layout)
        self._labels = torch.randint(CLASSES, (run.local_batch_size,), device=device, generator=random)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same images [N, 3, H, W] and labels [N] every step."""
        return self._images, self._labels

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Cross entropy, smoothed where the recipe says so."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=self._smoothing)

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        """SGD as the recipe has it."""
        if not self._ngc:
            return torch.optim.SGD(
                self.model.parameters(),
                lr=self._global_batch_size / 1000,
                momentum=0.9,
                weight_decay=1e-4,
                **implementation,
            )
        norms = [p for m in self.model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
        known = {id(p) for p in norms}
        others = [p for p in self.model.parameters() if id(p) not in known]
        groups = [{"params": others, "weight_decay": 1 / 32768}, {"params": norms, "weight_decay": 0.0}]
        warmed_up = 0.256 * self._global_batch_size / 256
        return torch.optim.SGD(groups, lr=warmed_up / 8, momentum=0.875, **implementation)

    def samples(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        """How many images the batch has."""
        return len(batch[0])
