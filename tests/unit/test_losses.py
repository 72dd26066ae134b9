"""hpc.backends.losses: what is kept is not looked at before the steps are over."""

from __future__ import annotations

import math

from hpc.backends.losses import Losses


class OnDevice:
    """A loss that whoever looks at it waits for."""

    looked_at = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        OnDevice.looked_at += 1
        return self.value


def test_losses_are_looked_at_when_they_settle_and_not_before() -> None:
    losses = Losses(4)
    losses.keep(0, OnDevice(1.5))
    losses.keep(2, OnDevice(2.5))
    assert OnDevice.looked_at == 0
    losses.release()
    assert OnDevice.looked_at == 2
    losses.keep(3, 0.25)
    first, missing, *others = losses.values()
    assert (first, others) == (1.5, [2.5, 0.25])
    assert math.isnan(missing)
    assert OnDevice.looked_at == 2
