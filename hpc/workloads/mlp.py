"""A tiny perceptron: trains in microseconds, so that everything around it can be tested and seen."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from hpc.settings import options_of_run
from hpc.spec import RunSpec

_FEATURES, _CLASSES = 64, 10


class MLPWorkload:
    """Random features and labels, made once on the device; options `width` and `depth` size the hidden layers."""

    def __init__(self, run: RunSpec, device: torch.device, rank: int) -> None:
        options = options_of_run(run)
        width, depth = int(options["width"]), int(options["depth"])
        torch.manual_seed(run.seed)
        sizes = [_FEATURES, *[width] * depth]
        hidden = [layer for n, m in pairwise(sizes) for layer in (nn.Linear(n, m), nn.ReLU())]
        self.model = nn.Sequential(*hidden, nn.Linear(sizes[-1], _CLASSES))
        random = torch.Generator().manual_seed(run.seed + rank)
        self._features = torch.randn(run.local_batch_size, _FEATURES, generator=random).to(device)
        self._labels = torch.randint(_CLASSES, (run.local_batch_size,), generator=random).to(device)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same features and labels every step."""
        return self._features, self._labels

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Cross entropy."""
        features, labels = batch
        return nn.functional.cross_entropy(model(features), labels)

    def optimizer(self, **implementation: bool) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, **implementation)

    def samples(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        """How many samples the batch has."""
        return len(batch[0])
