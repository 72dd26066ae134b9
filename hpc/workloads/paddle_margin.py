"""The margin softmax of face recognition in Paddle, its classes sharded over the ranks or all on each of them."""

from __future__ import annotations

from math import cos, sin
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from hpc.workloads import arcface


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
    """As `torch_margin.MarginHead`; weights [classes here, 512]."""

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
    """As `torch_margin.ShardedMarginHead`."""

    def __init__(self, group: Group | arcface.MeasuredGroup, values: Any, classes: range, **options: Any) -> None:
        super().__init__(values, classes, **options)
        self._group = group

    def forward(self, features: Any, labels: Any) -> Any:
        """The mean loss over the samples of all ranks: features [samples of this rank, 512], labels [samples]."""
        everybody = _Gathered.apply(features, self._group)
        logits = self.logits(everybody, self._group.gather(labels))
        return _ShardedCrossEntropy.apply(*logits, self._group)
