"""The loss of every step of a rank, kept without a wait for the device and without growing by a tensor a step."""

from __future__ import annotations

from array import array
from math import nan
from typing import Any


class Losses:
    """What a framework gives as a loss is kept as it is while steps are measured, and becomes a number afterwards.

    A number takes 8 bytes, a tensor of its own hundreds.
    """

    def __init__(self, steps: int) -> None:
        self._known = array("d", [nan]) * steps
        self._fresh: dict[int, Any] = {}

    def keep(self, step: int, loss: Any) -> None:
        """Keeps the loss of a step, anything that `float` takes; does not look at it."""
        self._fresh[step] = loss

    def release(self) -> None:
        """Makes numbers of what was kept; waits for the device."""
        for step, loss in self._fresh.items():
            self._known[step] = float(loss)
        self._fresh = {}

    def values(self) -> list[float]:
        """Those of all steps, NaN where there is none; waits for the device."""
        self.release()
        return self._known.tolist()
