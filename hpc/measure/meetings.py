"""What is recorded in a step beside its time stamps: the collectives that ranks call before the reduction of the
gradients, every meeting of the ranks; the batches that a rank reads from files."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpc.model.groups import RankGroup
from hpc.model.options import INPUT_FIGURES
from hpc.model.timestamps import ABSENT, MEETING_STAMPS
from hpc.observe.events import NO_ROOT

_ARRIVES, _WAITS, _ENDS = range(len(MEETING_STAMPS))
_NESTED = -1
MakeRecord = Callable[[memoryview], Callable[[int], None]]


class Meetings:
    """When this rank calls each collective of a step, when it begins to wait for the result, and when it has it.

    Which collectives a step has, in the order of the calls, is learned while warming up; a workload that knows them
    gives their `names`. `roots` has the rank that sends to the others, NO_ROOT or UNCLEAR, `groups` the ranks that take
    part, None for all. `stamps` is flat int64
    [steps × meetings × 3], ns of this rank's `perf_counter_ns`. A timer decides by which clock; without one, and where
    only whole steps are stamped, all are absent. A collective that a rank waits for at once has no moment at which it
    begins to wait: it is that of the call. A measured step with other collectives is absent as a whole.
    """

    def __init__(self, steps: int, warmup_steps: int, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        self.roots = (NO_ROOT,) * len(self.names)
        self.groups: tuple[RankGroup | None, ...] = (None,) * len(self.names)
        self.irregular_steps = 0
        self._steps, self._warmup_steps = steps, warmup_steps
        self._step = -1
        self._base = 0
        self._nested = False
        self._make_record: MakeRecord | None = None
        self._record: Callable[[int], None] | None = None
        self._called: list[tuple[str, int, RankGroup | None]] = []
        self._allocate()

    @classmethod
    def recorded(
        cls, names: Sequence[str], roots: Sequence[int], stamps: memoryview, groups: Sequence[RankGroup | None] = ()
    ) -> Meetings:
        """Those that were recorded elsewhere: `stamps` as above, of steps that are over."""
        meetings = cls(0, 0, names)
        meetings.roots, meetings.stamps = tuple(roots), stamps
        meetings.groups = tuple(groups) or meetings.groups
        return meetings

    @property
    def width(self) -> int:
        """Stamps of a step."""
        return len(MEETING_STAMPS) * len(self.names)

    def _allocate(self) -> None:
        self.stamps = memoryview(array("q", [ABSENT]) * (self._steps * self.width))
        self._record = None if self._make_record is None else self._make_record(self.stamps)

    def record_by(self, make_record: MakeRecord) -> None:
        """`make_record` takes the stamps and returns what is called with the place in them that is due now."""
        self._make_record = make_record
        self._record = make_record(self.stamps)

    def begin(self, step: int) -> None:
        """A step begins; those from `steps` on are not recorded."""
        self.finish()
        self._step = step if step < self._steps else -1
        self._called = []
        self._base = step * self.width

    def finish(self) -> None:
        """The step has made all its calls."""
        if self._step < 0:
            return
        known = [*zip(self.names, self.roots, self.groups, strict=True)]
        if self._called != known:
            if self._step < self._warmup_steps:
                self.names = tuple(name for name, *_ in self._called)
                self.roots = tuple(root for _, root, _ in self._called)
                self.groups = tuple(group for *_, group in self._called)
                self._allocate()
            else:
                self.irregular_steps += 1
                self.stamps[self._base : self._base + self.width] = array("q", [ABSENT]) * self.width
        self._step = -1

    def arrived(self, name: str, root: int = NO_ROOT, group: RankGroup | None = None) -> int:
        """This rank calls a collective, of a group or of all ranks: what it contributes is complete. Returns its number
        in the step."""
        if self._nested:
            return _NESTED
        number = len(self._called)
        self._called.append((name, root, group))
        self._mark(number, _ARRIVES)
        return number

    def waits(self, number: int) -> None:
        """This rank has nothing else to do than to wait for the result of that collective."""
        self._mark(number, _WAITS)

    def ended(self, number: int) -> None:
        """The collective's result is available on this rank."""
        self._mark(number, _ENDS)

    def meet(self, name: str, collective: Callable[..., Any], *values: Any, root: int = NO_ROOT) -> Any:
        """The result of a collective, recorded by this name; those that it calls in turn are a part of it."""
        number, outermost = self.arrived(name, root), not self._nested
        self._nested = True
        try:
            return collective(*values)
        finally:
            self._nested = not outermost
            self.ended(number)

    def _mark(self, number: int, column: int) -> None:
        if self._record is not None and self._step >= 0 and 0 <= number < len(self.names):
            self._record(self._base + len(MEETING_STAMPS) * number + column)


def meetings_of(workload: Any) -> Meetings | None:
    """Those that a workload records itself, by its attribute `meetings`."""
    meetings = getattr(workload, "meetings", None)
    return meetings if isinstance(meetings, Meetings) else None


MAX_NAMED = 20
"""The maximum of skipped files that a rank names."""


class InputRecord:
    """The figures of every step, and the files that were skipped because they cannot be decoded.

    `figures` is flat int64 [steps × INPUT_FIGURES]. `facts` say how the rank reads.
    """

    def __init__(self, steps: int, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.figures = memoryview(array("q", [ABSENT]) * (steps * len(INPUT_FIGURES)))
        self._skipped: dict[str, str] = {}
        self._skips = 0

    def record(self, step: int, figures: Sequence[int]) -> None:
        """Stores the figures of a step, in the order of INPUT_FIGURES; of none after the steps of the run."""
        at = step * len(INPUT_FIGURES)
        if at >= len(self.figures):
            return
        self.figures[at : at + len(INPUT_FIGURES)] = array("q", figures)

    def skip(self, name: str, reason: str) -> None:
        """Counts a file that cannot be decoded, each time that it is met."""
        self._skips += 1
        self._skipped[name] = reason

    def as_json(self) -> dict[str, Any]:
        """The facts, and what was skipped: how often, how many files, the first of them with their reasons."""
        named = dict(list(self._skipped.items())[:MAX_NAMED])
        return {**self.facts, "skips": self._skips, "skipped_files": len(self._skipped), "skipped": named}


def input_record_of(workload: Any) -> InputRecord | None:
    """That of a workload that reads files, by its attribute `input`."""
    record = getattr(workload, "input", None)
    return record if isinstance(record, InputRecord) else None
