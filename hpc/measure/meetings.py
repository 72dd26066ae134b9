"""The collectives inside forward and backward of a step, where ranks meet before their gradients are complete."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from hpc.model.timestamps import ABSENT


class Meetings:
    """When this rank arrives at each of them, and when it leaves, in the order in which ranks call them.

    `stamps` is flat int64 [steps × meetings × 2], ns of this rank's `perf_counter_ns`. A timer decides by which clock;
    without one, and where only whole steps are stamped, all are absent.
    """

    def __init__(self, names: Sequence[str], steps: int) -> None:
        self.names = tuple(names)
        self.width = 2 * len(self.names)
        self.stamps = memoryview(array("q", [ABSENT]) * (steps * self.width))
        self._record: Callable[[int], None] | None = None
        self._at = self._stop = 0

    def record_by(self, record: Callable[[int], None]) -> None:
        """Has this called with the place in `stamps` that is due now."""
        self._record = record

    def begin(self, step: int) -> None:
        self._at = step * self.width
        self._stop = self._at + self.width

    def arrived(self) -> None:
        """This rank calls the next collective: what it contributes is complete."""
        self._mark()

    def ended(self) -> None:
        """The collective's result is available on this rank."""
        self._mark()

    def _mark(self) -> None:
        if self._at == self._stop:
            raise RuntimeError(f"a step has more meetings than {', '.join(self.names)}, or was not begun")
        if self._record is not None:
            self._record(self._at)
        self._at += 1


def meetings_of(workload: Any) -> Meetings | None:
    """Those of a workload whose ranks meet in forward or backward, by its attribute `meetings`."""
    meetings = getattr(workload, "meetings", None)
    return meetings if isinstance(meetings, Meetings) else None
