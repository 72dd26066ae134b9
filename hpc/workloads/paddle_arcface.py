"""ArcFace in Paddle: PLSC's face backbone, and a head whose classes are sharded over the ranks."""

from __future__ import annotations

from math import cos, sin
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from hpc.measure.meetings import Meetings
from hpc.model.spec import RunSpec
from hpc.workloads import arcface, workload_options
from hpc.workloads.parts import Synthetic

# The margin softmax of face recognition in Paddle, its classes sharded over the ranks or all on each of them.


def with_margin(cosines: Any, columns: Any, inside: Any, margin: str) -> Any:
    """As `torch_margin.with_margin`."""
    m = arcface.MARGINS[margin]
    targets = paddle.take_along_axis(cosines, columns[:, None], 1)
    if margin == "cosface":
        moved = targets - m
    else:
        # Not at 0, where the gradient of the root is infinite.
        sine = paddle.sqrt(paddle.clip(1 - targets**2, min=float(paddle.finfo(cosines.dtype).tiny)))
        added = targets * cos(m) - sine * sin(m)
        moved = paddle.where(targets > -cos(m), added, targets - m * sin(m))
    return paddle.put_along_axis(cosines, columns[:, None], paddle.where(inside[:, None], moved, targets), 1)


class Group:
    """The collectives of paddle.distributed; one rank has none."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def gather(self, values: Any) -> Any:
        """The rows of all ranks, by rank."""
        if self.size == 1:
            return values
        parts: list[Any] = []
        paddle.distributed.all_gather(parts, values)
        return paddle.concat(parts)

    def sum(self, values: Any) -> Any:
        return self._reduced(values, paddle.distributed.ReduceOp.SUM)

    def maximum(self, values: Any) -> Any:
        return self._reduced(values, paddle.distributed.ReduceOp.MAX)

    def _reduced(self, values: Any, operation: Any) -> Any:
        if self.size > 1:
            paddle.distributed.all_reduce(values, op=operation)
        return values


class _Gathered(PyLayer):  # type: ignore[misc]  # mypy does not follow Paddle
    """As `torch_margin._Gathered`."""

    @staticmethod
    def forward(ctx: Any, values: Any, group: Group) -> Any:
        ctx.group = group
        return group.gather(values.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        summed = ctx.group.sum(gradient.clone())
        count = len(summed) // ctx.group.size
        return summed[ctx.group.rank * count : (ctx.group.rank + 1) * count] * ctx.group.size


class _ShardedCrossEntropy(PyLayer):  # type: ignore[misc]  # as above
    """As `torch_margin._ShardedCrossEntropy`."""

    @staticmethod
    def forward(ctx: Any, logits: Any, columns: Any, inside: Any, group: Group) -> Any:
        highest = group.maximum(paddle.max(logits, axis=1))
        exponentials = paddle.exp(logits - highest[:, None])
        targets = paddle.take_along_axis(logits, columns[:, None], 1).squeeze(1) - highest
        target_logits = paddle.where(inside, targets, paddle.zeros_like(targets))
        sums = group.sum(paddle.stack([exponentials.sum(axis=1), target_logits]))
        ctx.save_for_backward(exponentials / sums[0][:, None], columns, inside)
        return (paddle.log(sums[0]) - sums[1]).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        probabilities, columns, inside = ctx.saved_tensor()
        at_targets = -inside[:, None].astype(probabilities.dtype)
        logits = paddle.put_along_axis(probabilities, columns[:, None], at_targets, 1, reduce="add")
        return logits * (gradient / len(logits))


class MarginHead(nn.Layer):  # type: ignore[misc]  # as above
    """As `torch_arcface.MarginHead`; weights [classes here, 512]."""

    def __init__(self, values: Any, classes: range, *, margin: str, sample_ratio: float, seed: int) -> None:
        super().__init__()
        dtype = str(values.dtype).rpartition(".")[2]
        zeros = nn.initializer.Constant(0.0)
        self.weight = self.create_parameter(shape=values.shape, dtype=dtype, default_initializer=zeros)
        self.weight.set_value(values)  # initializer.Assign would make a Python number of each of them
        self._classes, self._margin, self._sample_ratio = classes, margin, sample_ratio
        self._random = np.random.default_rng(seed)

    def _sampled(self, occurring: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """As `torch_margin.MarginHead._sampled`; drawn on the host."""
        order = self._random.random(len(self._classes))
        order[occurring] = 2.0
        count = max(round(self._sample_ratio * len(self._classes)), len(np.unique(occurring)))
        return np.sort(np.argsort(-order)[:count])

    def logits(self, features: Any, labels: Any) -> tuple[Any, Any, Any]:
        """As `torch_margin.MarginHead.logits`."""
        inside = paddle.logical_and(labels >= self._classes.start, labels < self._classes.stop)
        columns = paddle.where(inside, labels - self._classes.start, paddle.zeros_like(labels))
        weight = self.weight
        if self._sample_ratio < 1:
            sampled = paddle.to_tensor(self._sampled(columns.numpy()[inside.numpy()]), place=labels.place)
            weight = paddle.gather(weight, sampled)
            columns = paddle.where(inside, paddle.searchsorted(sampled, columns), paddle.zeros_like(columns))
        cosines = F.linear(F.normalize(features, axis=1), F.normalize(weight, axis=1).T)
        if cosines.dtype in (paddle.float16, paddle.bfloat16):
            cosines = cosines.astype("float32")
        cosines = with_margin(paddle.clip(cosines, -1, 1), columns, inside, self._margin)
        return arcface.SCALE * cosines, columns, inside

    def forward(self, features: Any, labels: Any) -> Any:
        """The mean loss over the samples: features [samples, 512], labels [samples]."""
        # Not F.cross_entropy: with such logits its loss on CPUs is too small, 50.28 for 60.33.
        return _ShardedCrossEntropy.apply(*self.logits(features, labels), Group(0, 1))


class ShardedMarginHead(MarginHead):
    """As `torch_arcface.ShardedMarginHead`."""

    def __init__(self, group: Group | arcface.MeasuredGroup, values: Any, classes: range, **options: Any) -> None:
        super().__init__(values, classes, **options)
        self._group = group

    def forward(self, features: Any, labels: Any) -> Any:
        """The mean loss over the samples of all ranks: features [samples of this rank, 512], labels [samples]."""
        everybody = _Gathered.apply(features, self._group)
        logits = self.logits(everybody, self._group.gather(labels))
        return _ShardedCrossEntropy.apply(*logits, self._group)


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
    """Reference 003. A sharded head is beside `model`: the backend averages nothing of it."""

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
