"""The FLOPs of a ResNet-50 by its shapes, against those that torch counts while it trains."""

from __future__ import annotations

import pytest

from hpc.workloads import resnet50


@pytest.mark.all
def test_torch_counts_the_same() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from hpc.workloads.torch_models import ResNet50

    counter = FlopCounterMode(display=False)
    with counter:
        ResNet50()(torch.zeros(2, 3, 64, 64)).sum().backward()
    assert counter.get_total_flops() == 2 * resnet50.flops_per_sample(64)
