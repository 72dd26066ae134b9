"""What the collectives of the torch backends share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpc.backends.torch_loop import TorchLoop
from hpc.measure.timer import StepTimer
from hpc.model.collective_plan import ALL_REDUCE, BROADCAST

PreparedCall = tuple[Callable[[], None], Callable[[], Any]]


class TorchCollectives(TorchLoop):
    """The shared part of the Groups."""

    in_place = (ALL_REDUCE, BROADCAST)

    def make_timer(self, steps: int) -> StepTimer:
        # Never a strategy's own, which would put hooks on gradients.
        return TorchLoop.make_timer(self, steps)

    def leave(self) -> None:
        self._leave_group()
