"""The margin softmax of face recognition in torch, its classes sharded over the ranks or all on each of them."""

from __future__ import annotations

from math import cos, sin
from typing import Any, cast

import torch
import torch.distributed
from torch.nn import functional as F

from hpc.workloads import arcface

_Tensor = torch.Tensor


def with_margin(cosines: _Tensor, rows: _Tensor, columns: _Tensor, margin: str) -> _Tensor:
    """The cosines [samples, classes] with the margin on the targets, which stand at (rows, columns).

    ArcFace adds its margin m to the angle θ. Beyond θ + m = π the cosine would rise again: there it is
    cos θ - m sin m, as in the code of the paper (insightface, arcface_torch/losses.py), which goes on falling.
    """
    m = arcface.MARGINS[margin]
    targets = cosines[rows, columns]
    if margin == "cosface":
        moved = targets - m
    else:
        sine = torch.sqrt(torch.clamp(1 - targets**2, min=torch.finfo(cosines.dtype).tiny))
        added = targets * cos(m) - sine * sin(m)
        moved = torch.where(targets > -cos(m), added, targets - m * sin(m))
    return cosines.index_put((rows, columns), moved)


class _Gathered(torch.autograd.Function):
    """The rows of all ranks, by rank. Backward: the gradient of the rank's own rows, summed over ranks, times their
    number, since the backbone's gradients are averaged and the loss is the mean over all samples."""

    @staticmethod
    def forward(ctx: Any, values: _Tensor) -> _Tensor:
        return _gather(values)

    @staticmethod
    def backward(ctx: Any, *gradients: _Tensor) -> _Tensor:
        (gradient,) = gradients
        gradient = gradient.contiguous()
        torch.distributed.all_reduce(gradient)
        ranks = torch.distributed.get_world_size()
        own = len(gradient) // ranks
        return gradient[torch.distributed.get_rank() * own :][:own] * ranks


class _ShardedCrossEntropy(torch.autograd.Function):
    """The mean cross entropy of logits [samples, own classes], of which each rank has some columns; the targets here
    stand at (`rows`, `columns`)."""

    @staticmethod
    def forward(ctx: Any, logits: _Tensor, rows: _Tensor, columns: _Tensor) -> _Tensor:
        highest = logits.new_full((len(logits),), -torch.inf)
        if logits.shape[1]:
            highest = logits.amax(dim=1)
        torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX)
        exponentials = torch.exp(logits - highest[:, None])
        # Both sums in one reduction: that of the exponentials, and the logit of the target, which one rank has.
        sums = logits.new_zeros((2, len(logits)))
        sums[0] = exponentials.sum(dim=1)
        sums[1, rows] = logits[rows, columns] - highest[rows]
        torch.distributed.all_reduce(sums)
        probabilities = exponentials / sums[0][:, None]
        ctx.save_for_backward(probabilities, rows, columns)
        return (torch.log(sums[0]) - sums[1]).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: _Tensor) -> tuple[_Tensor, None, None]:
        probabilities, rows, columns = ctx.saved_tensors
        (gradient,) = gradients
        logits = probabilities.clone()
        logits[rows, columns] -= 1
        return logits * (gradient / len(logits)), None, None


def _gather(values: _Tensor) -> _Tensor:
    parts = [torch.empty_like(values) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, values.contiguous())
    return torch.cat(parts)


class MarginHead(torch.nn.Module):
    """The weights [classes of this rank, 512] of a margin softmax over all classes.

    `sample_ratio` below 1 is partial FC: a step trains the classes that occur in it and as many others, drawn without
    replacement from `seed`, as make that share of the rank's classes. Momentum and weight decay go on for all.
    """

    def __init__(self, values: _Tensor, classes: range, *, margin: str, sample_ratio: float, seed: int) -> None:
        super().__init__()
        self.weight, device = torch.nn.Parameter(values), values.device
        self._classes, self._margin, self._sample_ratio = classes, margin, sample_ratio
        self._random = torch.Generator(device).manual_seed(seed)

    def _targets(self, labels: _Tensor) -> tuple[_Tensor, _Tensor]:
        """Rows of the samples whose class is here, and its place among the classes here."""
        rows = torch.nonzero((labels >= self._classes.start) & (labels < self._classes.stop)).flatten()
        return rows, labels[rows] - self._classes.start

    def _sampled(self, places: _Tensor) -> _Tensor:
        """The places that this step trains [sampled classes], ascending: all that occur, and others up to the share."""
        count = round(self._sample_ratio * len(self._classes))
        order = torch.rand(len(self._classes), generator=self._random, device=places.device)
        order[places] = 2.0
        count = max(count, len(torch.unique(places)))
        return torch.topk(order, count).indices.sort().values

    def logits(self, features: _Tensor, labels: _Tensor) -> tuple[_Tensor, _Tensor, _Tensor]:
        """Logits [samples, sampled classes here] in 32 or 64 bits, and the rows and columns of the targets in them."""
        rows, places = self._targets(labels)
        weight: _Tensor = self.weight
        if self._sample_ratio < 1:
            sampled = self._sampled(places)
            weight, places = weight[sampled], torch.searchsorted(sampled, places)
        cosines = F.linear(F.normalize(features), F.normalize(weight))
        cosines = cosines.float() if cosines.dtype in (torch.float16, torch.bfloat16) else cosines
        cosines = cosines.clamp(-1, 1)
        return arcface.SCALE * with_margin(cosines, rows, places, self._margin), rows, places

    def forward(self, features: _Tensor, labels: _Tensor) -> _Tensor:
        """The mean loss over the samples of all ranks: features [samples of this rank, 512], labels [samples]."""
        everybody = cast(_Tensor, _Gathered.apply(features))  # type: ignore[no-untyped-call]  # torch says no types
        loss = _ShardedCrossEntropy.apply(*self.logits(everybody, _gather(labels)))  # type: ignore[no-untyped-call]  # as above
        return cast(_Tensor, loss)


class ReplicatedMarginHead(MarginHead):
    """All classes on every rank, each with its own samples: gradients are averaged as those of other layers."""

    def forward(self, features: _Tensor, labels: _Tensor) -> _Tensor:
        logits, _, places = self.logits(features, labels)
        return F.cross_entropy(logits, places)
