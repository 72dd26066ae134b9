"""ArcFace in torch: PLSC's face backbone, and a head whose classes are sharded over the ranks."""

from __future__ import annotations

from math import cos, sin
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn import functional as F

from hpc.measure.meetings import Meetings
from hpc.model.spec import RunSpec
from hpc.workloads import CHANNELS_LAST, arcface, options_in, workload_options
from hpc.workloads.parts import Synthetic

# The margin softmax of face recognition in torch, its classes sharded over the ranks or all on each of them.

_Tensor = torch.Tensor


def with_margin(cosines: _Tensor, columns: _Tensor, inside: _Tensor, margin: str) -> _Tensor:
    """The cosines [samples, classes] with the margin on the targets: the target of a sample that is `inside` is in
    its column, that of others is no class here.

    ArcFace adds its margin m to the angle θ. Beyond θ + m = π the cosine would rise again: there it is
    cos θ - m sin m, as in the code of the paper (insightface, arcface_torch/losses.py), which goes on falling.
    """
    m = arcface.MARGINS[margin]
    targets = cosines.gather(1, columns[:, None])
    if margin == "cosface":
        moved = targets - m
    else:
        sine = torch.sqrt(torch.clamp(1 - targets**2, min=torch.finfo(cosines.dtype).tiny))
        added = targets * cos(m) - sine * sin(m)
        moved = torch.where(targets > -cos(m), added, targets - m * sin(m))
    return cosines.scatter(1, columns[:, None], torch.where(inside[:, None], moved, targets))


class Group(Protocol):
    """The collectives of a backend on tensors of all ranks, which have the same shape on each."""

    rank: int
    size: int

    def gather(self, values: _Tensor) -> _Tensor:
        """The rows of all ranks, by rank."""

    def sum(self, values: _Tensor) -> _Tensor: ...

    def maximum(self, values: _Tensor) -> _Tensor: ...


class TorchGroup:
    """That of torch.distributed."""

    def __init__(self) -> None:
        self._distributed = torch.distributed
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def gather(self, values: _Tensor) -> _Tensor:
        parts = [torch.empty_like(values) for _ in range(self.size)]
        self._distributed.all_gather(parts, values.contiguous())
        return torch.cat(parts)

    def sum(self, values: _Tensor) -> _Tensor:
        self._distributed.all_reduce(values)
        return values

    def maximum(self, values: _Tensor) -> _Tensor:
        self._distributed.all_reduce(values, self._distributed.ReduceOp.MAX)
        return values


class HorovodGroup:
    """That of Horovod."""

    def __init__(self) -> None:
        import horovod.torch as hvd  # only where the backend has loaded it

        self._hvd = hvd
        self.rank, self.size = int(hvd.rank()), int(hvd.size())

    def gather(self, values: _Tensor) -> _Tensor:
        return cast(_Tensor, self._hvd.allgather(values.contiguous(), name=f"head.gather.{values.dtype}"))

    def sum(self, values: _Tensor) -> _Tensor:
        return cast(
            _Tensor, self._hvd.allreduce(values, op=self._hvd.Sum, name=f"head.sum.{values.dim()}.{len(values)}")
        )

    def maximum(self, values: _Tensor) -> _Tensor:
        return cast(_Tensor, self._hvd.allreduce(values, op=self._hvd.Max, name="head.maximum"))


class _Gathered(torch.autograd.Function):
    """The rows of all ranks, by rank. Backward: the gradient of the rank's own rows, summed over ranks, times their
    number, since the backbone's gradients are averaged and the loss is the mean over all samples."""

    @staticmethod
    def forward(ctx: Any, values: _Tensor, group: Group) -> _Tensor:
        ctx.group = group
        return group.gather(values)

    @staticmethod
    def backward(ctx: Any, *gradients: _Tensor) -> tuple[_Tensor, None]:
        group: Group = ctx.group
        summed = group.sum(gradients[0].clone(memory_format=torch.contiguous_format))
        count = len(summed) // group.size
        return summed[group.rank * count :][:count] * group.size, None


class _ShardedCrossEntropy(torch.autograd.Function):
    """The mean cross entropy of logits [samples, classes here], of which each rank has some; `columns` and `inside` as
    in `with_margin`."""

    @staticmethod
    def forward(ctx: Any, logits: _Tensor, columns: _Tensor, inside: _Tensor, group: Group) -> _Tensor:
        highest = group.maximum(logits.amax(dim=1))
        exponentials = torch.exp(logits - highest[:, None])
        targets = logits.gather(1, columns[:, None]).squeeze(1) - highest
        # Both in one reduction: the sum of the exponentials, and the logit of the target, which one rank has.
        sums = group.sum(torch.stack((exponentials.sum(dim=1), torch.where(inside, targets, 0.0))))
        ctx.save_for_backward(exponentials / sums[0][:, None], columns, inside)
        return (torch.log(sums[0]) - sums[1]).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: _Tensor) -> tuple[_Tensor, None, None, None]:
        probabilities, columns, inside = ctx.saved_tensors
        at_targets = -inside[:, None].to(probabilities.dtype)
        logits = probabilities.scatter_add(1, columns[:, None], at_targets)
        return logits * (gradients[0] / len(logits)), None, None, None


class MarginHead(torch.nn.Module):
    """The weights [classes here, 512] of a margin softmax.

    `sample_ratio` below 1 is partial FC: a step trains the classes that occur in it and as many others, drawn without
    replacement from `seed`, as make that share of the classes here. Momentum and weight decay go on for all.
    """

    def __init__(self, values: _Tensor, classes: range, *, margin: str, sample_ratio: float, seed: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(values)
        self._classes, self._margin, self._sample_ratio = classes, margin, sample_ratio
        self._random = torch.Generator(values.device).manual_seed(seed)

    def _sampled(self, occurring: _Tensor) -> _Tensor:
        """The places that this step trains [sampled classes], ascending: all that occur, and others up to the share."""
        order = torch.rand(len(self._classes), generator=self._random, device=occurring.device)
        order[occurring] = 2.0
        count = max(round(self._sample_ratio * len(self._classes)), len(torch.unique(occurring)))
        return torch.topk(order, count).indices.sort().values

    def logits(self, features: _Tensor, labels: _Tensor) -> tuple[_Tensor, _Tensor, _Tensor]:
        """Logits [samples, trained classes here] in 32 or 64 bits; `columns` and `inside` as in `with_margin`."""
        inside = (labels >= self._classes.start) & (labels < self._classes.stop)
        columns = torch.where(inside, labels - self._classes.start, 0)
        weight: _Tensor = self.weight
        if self._sample_ratio < 1:
            sampled = self._sampled(columns[inside])
            weight = weight[sampled]
            columns = torch.where(inside, torch.searchsorted(sampled, columns), 0)
        cosines = F.linear(F.normalize(features), F.normalize(weight))
        cosines = cosines.float() if cosines.dtype in (torch.float16, torch.bfloat16) else cosines
        logits = arcface.SCALE * with_margin(cosines.clamp(-1, 1), columns, inside, self._margin)
        return logits, columns, inside

    def forward(self, features: _Tensor, labels: _Tensor) -> _Tensor:
        """The mean loss over the samples: features [samples, 512], labels [samples]."""
        logits, columns, _ = self.logits(features, labels)
        return F.cross_entropy(logits, columns)


class ShardedMarginHead(MarginHead):
    """Each rank has its share of the classes, at least one, and the loss is that of the samples of all ranks."""

    def __init__(self, group: Group, values: _Tensor, classes: range, **options: Any) -> None:
        super().__init__(values, classes, **options)
        self._group = group

    def forward(self, features: _Tensor, labels: _Tensor) -> _Tensor:
        """The mean loss over the samples of all ranks: features [samples of this rank, 512], labels [samples]."""
        everybody = cast(_Tensor, _Gathered.apply(features, self._group))  # type: ignore[no-untyped-call]  # torch says no types
        logits = self.logits(everybody, self._group.gather(labels))
        loss = _ShardedCrossEntropy.apply(*logits, self._group)  # type: ignore[no-untyped-call]  # as above
        return cast(_Tensor, loss)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=arcface.BN_EPSILON, momentum=arcface.BN_MOMENTUM)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class ResidualUnit(nn.Module):
    """One of `arcface.units`."""

    def __init__(self, unit: arcface.Unit) -> None:
        super().__init__()
        self.bn1 = _norm(unit.inputs)
        self.conv1 = _convolution(unit.inputs, unit.outputs, 3)
        self.bn2 = _norm(unit.outputs)
        self.prelu = nn.PReLU()
        self.conv2 = _convolution(unit.outputs, unit.outputs, 3, unit.stride)
        self.bn3 = _norm(unit.outputs)
        self.downsample: nn.Module | None = None
        if unit.stride != 1:
            self.downsample = nn.Sequential(
                _convolution(unit.inputs, unit.outputs, 1, unit.stride), _norm(unit.outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = x if self.downsample is None else self.downsample(x)
        y = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        result: torch.Tensor = self.bn3(self.conv2(y)) + around
        return result


class FaceBackbone(nn.Module):
    """Images [N, 3, H, W] to embeddings [N, 512]."""

    def __init__(self, image_size: int, dropout: float) -> None:
        super().__init__()
        channels = arcface.STAGES[0][0]
        self.conv1, self.bn1, self.prelu = _convolution(3, channels, 3), _norm(channels), nn.PReLU()
        for stage in range(1, len(arcface.STAGES) + 1):
            its = [ResidualUnit(unit) for unit in arcface.units() if unit.name.startswith(f"layer{stage}.")]
            self.add_module(f"layer{stage}", nn.Sequential(*its))
        channels = arcface.STAGES[-1][0]
        self.bn2, self.dropout = _norm(channels), nn.Dropout(dropout)
        self.fc = nn.Linear(channels * arcface.final_size(image_size) ** 2, arcface.EMBEDDING)
        self.features = nn.BatchNorm1d(arcface.EMBEDDING, eps=arcface.BN_EPSILON, momentum=arcface.BN_MOMENTUM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.prelu(self.bn1(self.conv1(x)))
        for stage in range(1, len(arcface.STAGES) + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        embeddings: torch.Tensor = self.features(self.fc(torch.flatten(self.dropout(self.bn2(x)), 1)))
        return embeddings


class _WithHead(nn.Module):
    """Backbone and replicated head as one module, so that the backend averages both: images and labels to the loss."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.head(self.backbone(images), labels)
        return loss


class TorchArcFace(Synthetic):
    """Reference 003. A sharded head is beside `model`: the backend averages nothing of it."""

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        options = workload_options(run)
        backbone = FaceBackbone(int(options["image_size"]), float(options["dropout"]))
        values = {name: torch.from_numpy(value) for name, value in arcface.initial_values(run).items()}
        backbone.load_state_dict({**backbone.state_dict(), **values})
        torch.manual_seed(run.seed + rank)  # dropout
        count, sharded = int(options["classes"]), options["head"] == "sharded"
        classes = arcface.shard(count, run.ranks, rank) if sharded else range(count)
        head_values = torch.from_numpy(arcface.head_values(run, classes)).to(device)
        chosen: dict[str, Any] = {"margin": options["margin"], "sample_ratio": options["sample_ratio"]}
        chosen["seed"] = run.seed + rank
        if sharded:
            group = TorchGroup() if torch.distributed.is_initialized() else HorovodGroup()
            self.meetings = Meetings(run.steps, run.warmup_steps, arcface.MEETINGS)
            measured = arcface.MeasuredGroup(group, self.meetings)
            head: nn.Module = ShardedMarginHead(measured, head_values, classes, **chosen)
        else:
            head = MarginHead(head_values, classes, **chosen)
        self._learning_rate = arcface.LEARNING_RATE_PER_SAMPLE * run.global_batch_size
        self._head = head if sharded else None
        self.model: nn.Module = backbone if sharded else _WithHead(backbone, head)
        self.local_parameters = [*head.parameters()] if sharded else []
        self.waits_for_device = float(options["sample_ratio"]) < 1  # to know how many classes occur
        self.early_collectives = ["the sharded head gathers features"] if sharded and run.ranks > 1 else []
        layout = torch.channels_last if options_in(CHANNELS_LAST, run)["channels_last"] else torch.contiguous_format
        images, labels = (torch.from_numpy(values).to(device) for values in arcface.synthetic_batch(run, rank))
        super().__init__(images.contiguous(memory_format=layout), labels)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        if self._head is None:
            return torch.mean(model(images, labels))  # torch-dp has a loss for each device
        loss: torch.Tensor = self._head(model(images), labels)
        return loss

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [*self.model.parameters(), *self.local_parameters], lr=self._learning_rate, momentum=arcface.MOMENTUM,
            weight_decay=arcface.WEIGHT_DECAY, **implementation,
        )  # fmt: skip
