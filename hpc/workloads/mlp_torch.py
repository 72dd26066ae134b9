"""The tiny perceptron in torch."""

from __future__ import annotations

import torch
from torch import nn

from hpc.model.spec import RunSpec
from hpc.workloads.mlp import LEARNING_RATE, MOMENTUM, initial_values, synthetic_batch


class TorchMLP:
    """Random features and labels, made once."""

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        layers: list[nn.Module] = []
        for weight, bias in initial_values(run):
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
            layers += [layer, nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        features, labels = synthetic_batch(run, rank)
        self._features, self._labels = torch.from_numpy(features).to(device), torch.from_numpy(labels).to(device)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same features and labels every step."""
        return self._features, self._labels

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Cross entropy."""
        features, labels = batch
        return nn.functional.cross_entropy(model(features), labels)

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, **implementation)

    def samples(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        """How many samples the batch has."""
        return len(batch[0])
