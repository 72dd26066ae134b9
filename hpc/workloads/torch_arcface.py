"""ArcFace in torch: PLSC's face backbone, and a head whose classes are sharded over the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpc.measure.meetings import Meetings
from hpc.model.spec import RunSpec
from hpc.workloads import CHANNELS_LAST, arcface, options_in, workload_options
from hpc.workloads.synthetic import Synthetic
from hpc.workloads.torch_margin import HorovodGroup, MarginHead, ShardedMarginHead, TorchGroup


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
    """Reference 003. A sharded head lies beside `model`: the backend averages nothing of it."""

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
            group = HorovodGroup() if run.backend == "torch-horovod" else TorchGroup()
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
