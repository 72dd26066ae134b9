"""The FLOPs of a training sample from those of its layers forward."""

from __future__ import annotations

from collections.abc import Iterable

FLOPS_BY = (
    "by the table of its layers, 2 for each multiply-add of convolutions and matrices, forward and twice backward but "
    "for the input's gradient; torch's FlopCounterMode counts the same"
)


def training_flops(first: int, others: Iterable[int]) -> int:
    """As FLOPS_BY says; `first` is the layer that takes the sample."""
    return 2 * first + 3 * sum(others)


def convolution_flops(inputs: int, outputs: int, kernel: int, side: int) -> int:
    """Of a square convolution forward, whose outputs are `side` pixels high and wide."""
    return 2 * inputs * outputs * kernel**2 * side**2
