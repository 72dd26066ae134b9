"""ArcFace in Paddle: PLSC's face backbone, and a head whose classes are sharded over the ranks."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import nn

from hpc.measure.meetings import Meetings
from hpc.model.spec import RunSpec
from hpc.workloads import arcface, workload_options
from hpc.workloads.paddle_margin import Group, MarginHead, ShardedMarginHead
from hpc.workloads.synthetic import Synthetic


def _norm(channels: int, layer: Any = nn.BatchNorm2D) -> Any:
    return layer(channels, momentum=1 - arcface.BN_MOMENTUM, epsilon=arcface.BN_EPSILON)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    return nn.Conv2D(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias_attr=False)


class ResidualUnit(nn.Layer):  # type: ignore[misc]  # mypy does not follow Paddle
    """One of `arcface.units`."""

    def __init__(self, unit: arcface.Unit) -> None:
        super().__init__()
        self.bn1 = _norm(unit.inputs)
        self.conv1 = _convolution(unit.inputs, unit.outputs, 3)
        self.bn2 = _norm(unit.outputs)
        self.prelu = nn.PReLU()
        self.conv2 = _convolution(unit.outputs, unit.outputs, 3, unit.stride)
        self.bn3 = _norm(unit.outputs)
        self.downsample: Any = None
        if unit.stride != 1:
            self.downsample = nn.Sequential(
                _convolution(unit.inputs, unit.outputs, 1, unit.stride), _norm(unit.outputs)
            )

    def forward(self, x: Any) -> Any:
        around = x if self.downsample is None else self.downsample(x)
        y = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(y)) + around


class FaceBackbone(nn.Layer):  # type: ignore[misc]  # as above
    """Images [N, 3, H, W] to embeddings [N, 512]."""

    def __init__(self, image_size: int, dropout: float) -> None:
        super().__init__()
        channels = arcface.STAGES[0][0]
        self.conv1, self.bn1, self.prelu = _convolution(3, channels, 3), _norm(channels), nn.PReLU()
        for stage in range(1, len(arcface.STAGES) + 1):
            its = [ResidualUnit(unit) for unit in arcface.units() if unit.name.startswith(f"layer{stage}.")]
            self.add_sublayer(f"layer{stage}", nn.Sequential(*its))
        channels = arcface.STAGES[-1][0]
        self.bn2, self.dropout = _norm(channels), nn.Dropout(dropout)
        self.fc = nn.Linear(channels * arcface.final_size(image_size) ** 2, arcface.EMBEDDING)
        self.features = _norm(arcface.EMBEDDING, nn.BatchNorm1D)

    def forward(self, x: Any) -> Any:
        x = self.prelu(self.bn1(self.conv1(x)))
        for stage in range(1, len(arcface.STAGES) + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.features(self.fc(paddle.flatten(self.dropout(self.bn2(x)), 1)))


def paddle_values(values: dict[str, arcface.Array]) -> dict[str, arcface.Array]:
    """Values by torch's names in torch's shapes, converted to Paddle's names and shapes."""
    renamed = {}
    for name, value in values.items():
        module, _, kind = name.rpartition(".")
        if name == "fc.weight":  # Paddle has [inputs, outputs]
            renamed[name] = value.T.copy()
        else:
            renamed[f"{module}._{kind}" if module.endswith("prelu") else name] = value
    return renamed


class _WithHead(nn.Layer):  # type: ignore[misc]  # as above
    """Backbone and replicated head as one layer, so that the backend averages both: images and labels to the loss."""

    def __init__(self, backbone: Any, head: Any) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Any, labels: Any) -> Any:
        return self.head(self.backbone(images), labels)


class PaddleArcFace(Synthetic):
    """Reference 003. A sharded head lies beside `model`: the backend averages nothing of it."""

    def __init__(self, run: RunSpec, device: Any, rank: int) -> None:
        options = workload_options(run)
        backbone = FaceBackbone(int(options["image_size"]), float(options["dropout"]))
        values = paddle_values(arcface.initial_values(run))
        known = backbone.state_dict()
        assert {*values} <= {*known}, "a parameter has another name in Paddle"
        backbone.set_state_dict({**known, **values})
        paddle.seed(run.seed + rank)  # dropout
        count, sharded = int(options["classes"]), options["head"] == "sharded"
        classes = arcface.shard(count, run.ranks, rank) if sharded else range(count)
        head_values = paddle.to_tensor(arcface.head_values(run, classes), place=device)
        chosen: dict[str, Any] = {"margin": options["margin"], "sample_ratio": options["sample_ratio"]}
        chosen["seed"] = run.seed + rank
        if sharded:
            self.meetings = Meetings(run.steps, run.warmup_steps, arcface.MEETINGS)
            group = arcface.MeasuredGroup(Group(rank, run.ranks), self.meetings)
            self._head: Any = ShardedMarginHead(group, head_values, classes, **chosen)
            self.model: Any = backbone
        else:
            self._head = None
            self.model = _WithHead(backbone, MarginHead(head_values, classes, **chosen))
        self.waits_for_device = float(options["sample_ratio"]) < 1  # to know how many classes occur
        self.early_collectives = ["the sharded head gathers features"] if sharded and run.ranks > 1 else []
        self._learning_rate = arcface.LEARNING_RATE_PER_SAMPLE * run.global_batch_size
        super().__init__(*(paddle.to_tensor(values, place=device) for values in arcface.synthetic_batch(run, rank)))

    def batch(self, step: int) -> tuple[Any, Any]:
        if self._head is not None:
            self.meetings.begin(step)
        return super().batch(step)

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        images, labels = batch
        return model(images, labels) if self._head is None else self._head(model(images), labels)

    def optimizer(self, **implementation: Any) -> Any:
        head = [] if self._head is None else self._head.parameters()
        return paddle.optimizer.Momentum(
            self._learning_rate, arcface.MOMENTUM, parameters=[*self.model.parameters(), *head],
            weight_decay=arcface.WEIGHT_DECAY, **implementation,
        )  # fmt: skip
