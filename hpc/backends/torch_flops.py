"""The FLOPs of a person's torch training, counted by the shapes of its tensors: nothing is computed.

Forward and backward run on the device `meta`, whose tensors have no values. That takes a second or two, where counting
while a CPU computes takes as long as the steps do.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

MAX_REASON = 200


def counted_flops(workload: Any) -> tuple[int | None, str]:
    """The FLOPs of a sample, forward and backward, by a batch of the workload, and how they were had; None with the
    reason where they cannot be counted."""
    batch = workload.batch(0)
    samples = workload.samples(batch)
    try:
        flops = _flops(workload, batch)
    except Exception as error:  # noqa: BLE001 - whatever a person's code raises where a tensor has no values
        reason = (str(error).strip().splitlines() or [""])[0][:MAX_REASON]
        return None, f"its FLOPs could not be counted by shapes alone ({type(error).__name__}: {reason})"
    if not flops or not samples:
        return None, "FlopCounterMode counted no multiply-add in a batch of it"
    return round(flops / samples), f"counted by torch's FlopCounterMode, forward and backward of {samples} samples"


def _flops(workload: Any, batch: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # only where a person wants it

    with FlopCounterMode(display=False) as counter:
        workload.loss(_Shapes(workload.model), tree_map_only(torch.Tensor, _shape, batch)).backward()
    return int(counter.get_total_flops())


class _Shapes(torch.nn.Module):
    """A model with shapes in the place of its parameters and buffers, which stay as they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model = model
        self._values = {name: _shape(value) for name, value in chain(model.named_parameters(), model.named_buffers())}

    def forward(self, *batch: Any, **named: Any) -> Any:
        return functional_call(self._model, self._values, batch, named)


def _shape(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
