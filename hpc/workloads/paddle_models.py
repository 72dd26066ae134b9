"""ResNet-50 v1.5 and the tiny perceptron in Paddle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import paddle
from paddle import nn

from hpc.model.options import data_source
from hpc.model.spec import RunSpec
from hpc.workloads import mlp, resnet50
from hpc.workloads.parts import Synthetic

if TYPE_CHECKING:
    from hpc.workloads.image_reader import ImageReader


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    return nn.Conv2D(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias_attr=False)


def _norm(width: int) -> Any:
    """Paddle's momentum is the share of the old statistics; its running variance is the biased one, torch's is not."""
    return nn.BatchNorm2D(width, momentum=1 - resnet50.BN_MOMENTUM, epsilon=resnet50.BN_EPSILON)


class Bottleneck(nn.Layer):  # type: ignore[misc]  # mypy does not follow Paddle
    """1×1, 3×3 (with the stride), 1×1, and the way around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * resnet50.EXPANSION
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = _norm(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = _norm(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = _norm(outputs)
        self.relu = nn.ReLU()
        self.downsample: Any = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(outputs))

    def forward(self, x: Any) -> Any:
        """[N, inputs, H, W] to [N, 4 × width, H / stride, W / stride]."""
        around = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + around)


class ResNet50(nn.Layer):  # type: ignore[misc]  # as above
    """25,557,032 trainable parameters; their names are torchvision's, but for the running statistics of batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _convolution(3, 64, 7, 2)
        self.bn1 = _norm(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2D(3, stride=2, padding=1)
        inputs = 64
        for number, (width, blocks, stride) in enumerate(resnet50.STAGES, start=1):
            self.add_sublayer(f"layer{number}", _stage(inputs, width, blocks, stride))
            inputs = width * resnet50.EXPANSION
        self.avgpool = nn.AdaptiveAvgPool2D(1)
        self.fc = nn.Linear(resnet50.FEATURES, resnet50.CLASSES)

    def forward(self, x: Any) -> Any:
        """Images [N, 3, H, W] to logits [N, 1000]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(resnet50.STAGES) + 1):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(paddle.flatten(self.avgpool(x), 1))


def _stage(inputs: int, width: int, blocks: int, stride: int) -> Any:
    rest = (Bottleneck(width * resnet50.EXPANSION, width, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


def paddle_values(values: dict[str, resnet50.Array]) -> dict[str, resnet50.Array]:
    """Values by torchvision's names in torch's shapes, converted to Paddle's names and shapes."""
    names = {"running_mean": "_mean", "running_var": "_variance"}
    renamed = {}
    for name, value in values.items():
        module, _, kind = name.rpartition(".")
        # Paddle's linear layers keep their weights [inputs, outputs].
        renamed[f"{module}.{names.get(kind, kind)}"] = value.T.copy() if name == "fc.weight" else value
    return renamed


def _reader(run: RunSpec, size_of: Callable[[RunSpec], int], device: Any, rank: int) -> ImageReader | None:
    """The images of a rank from files; None for a run that reads none."""
    if (source := data_source(run.data)) is None:
        return None
    from hpc.workloads.paddle_images import image_reader  # Pillow, which synthetic samples do without

    return image_reader(run, source, size_of(run), device, rank)


def _synthetic(samples: tuple[Any, Any], device: Any) -> Synthetic:
    return Synthetic(*(paddle.to_tensor(values, place=device) for values in samples))


class PaddleResNet50:
    """ResNet-50 trained by the recipe of the run, on synthetic images or on files."""

    def __init__(self, run: RunSpec, device: Any, rank: int) -> None:
        self._recipe = resnet50.recipe_of(run)
        self._learning_rate = self._recipe.learning_rate(run)
        self.model = ResNet50()
        self.model.set_state_dict({**self.model.state_dict(), **paddle_values(resnet50.initial_values(run))})
        self.reader = _reader(run, resnet50.image_size, device, rank)
        self.input = self.reader and self.reader.record
        data = self.reader or _synthetic(resnet50.synthetic_batch(run, rank), device)
        self.batch, self.samples = data.batch, data.samples

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=self._recipe.label_smoothing)

    def optimizer(self, **implementation: Any) -> Any:
        norms = [p for m in self.model.sublayers() if isinstance(m, nn.BatchNorm2D) for p in (m.weight, m.bias)]
        known = {id(p) for p in norms}
        others = [p for p in self.model.parameters() if not p.stop_gradient and id(p) not in known]
        groups = self._recipe.groups(norms, others)
        return paddle.optimizer.Momentum(
            self._learning_rate, self._recipe.momentum, parameters=groups, **implementation
        )


class PaddleMLP:
    """The perceptron, trained by SGD with momentum, on synthetic samples or on files."""

    def __init__(self, run: RunSpec, device: Any, rank: int) -> None:
        self.reader = _reader(run, mlp.image_size, device, rank)
        self.input = self.reader and self.reader.record
        layers: list[Any] = [nn.Flatten()] if self.reader else []
        for weight, bias in mlp.initial_values(run):
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.set_state_dict({"weight": weight.T.copy(), "bias": bias})  # Paddle has [inputs, outputs]
            layers += [layer, nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        data = self.reader or _synthetic(mlp.synthetic_batch(run, rank), device)
        self.batch, self.samples = data.batch, data.samples

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        features, labels = batch
        return nn.functional.cross_entropy(model(features), labels)

    def optimizer(self, **implementation: Any) -> Any:
        parameters = self.model.parameters()
        return paddle.optimizer.Momentum(mlp.LEARNING_RATE, mlp.MOMENTUM, parameters=parameters, **implementation)
