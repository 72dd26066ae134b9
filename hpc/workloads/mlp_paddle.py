"""The tiny perceptron in Paddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import nn

from hpc.model.spec import RunSpec
from hpc.workloads.mlp import LEARNING_RATE, MOMENTUM, initial_values, synthetic_batch


class PaddleMLP:
    """Random features and labels, made once."""

    def __init__(self, run: RunSpec, device: Any, rank: int) -> None:
        layers: list[Any] = []
        for weight, bias in initial_values(run):
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.set_state_dict({"weight": weight.T.copy(), "bias": bias})  # Paddle has [inputs, outputs]
            layers += [layer, nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        features, labels = synthetic_batch(run, rank)
        self._features, self._labels = (paddle.to_tensor(values, place=device) for values in (features, labels))

    def batch(self, step: int) -> tuple[Any, Any]:
        """The same features and labels every step."""
        return self._features, self._labels

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        """Cross entropy."""
        features, labels = batch
        return nn.functional.cross_entropy(model(features), labels)

    def optimizer(self, **implementation: Any) -> Any:
        """SGD with momentum."""
        parameters = self.model.parameters()
        return paddle.optimizer.Momentum(LEARNING_RATE, MOMENTUM, parameters=parameters, **implementation)

    def samples(self, batch: tuple[Any, Any]) -> int:
        """How many samples the batch has."""
        return len(batch[0])
