"""What moved a clock's offset further than clocks drift, by its points: a step, or a rate that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from hpc.model.clock_model import MAX_DRIFT, SyncPoint

MAX_SLEW = 0.1
"""No time service slews by more than this: the kernel by 500 ppm (adjtimex), chrony by 83,333 by default."""


class FaultKind(StrEnum):
    """How the offset moved: all at once, steadily, or in a way that the points do not tell."""

    STEPPED = "stepped"
    SLEWED = "slewed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class ClockFault:
    """The offset of a clock against rank 0's moved by `moved_ns` within `span_ns` of its own time, give or take
    `bound_ns`: positive where the clock fell behind. Of a step both are those between the two points around it."""

    kind: FaultKind
    moved_ns: float
    span_ns: int
    bound_ns: float

    @property
    def rate(self) -> float:
        """By how much the clock runs too slow, 1e-6 for 1 ppm; negative where it runs too fast."""
        return self.moved_ns / self.span_ns


@dataclass(frozen=True)
class _Interval:
    """From one point to the next."""

    span_ns: int
    moved_ns: float
    bound_ns: float

    @property
    def rates(self) -> tuple[float, float]:
        """The lowest and the highest mean rate that the points leave open."""
        return (self.moved_ns - self.bound_ns) / self.span_ns, (self.moved_ns + self.bound_ns) / self.span_ns

    @property
    def too_fast(self) -> int:
        """The sign of a rate that is proven to be beyond MAX_DRIFT, else 0."""
        low, high = self.rates
        return 1 if low > MAX_DRIFT else -1 if high < -MAX_DRIFT else 0


def clock_fault(points: Sequence[SyncPoint]) -> ClockFault | None:
    """What the points of one clock say about why its offset moved too far; None where no interval proves that it did.

    Slewed: at least two intervals prove a rate beyond MAX_DRIFT of one sign. Stepped: one interval does, and a later
    one excludes its rate. Two points alone, or a rate that is wrong since the last but one, tell neither.
    """
    intervals = [_interval(before, after) for before, after in pairwise(points)]
    faulty = [at for at, interval in enumerate(intervals) if interval.too_fast]
    if not faulty:
        return None
    first, last = faulty[0], faulty[-1]
    whole = _interval(points[first], points[last + 1])
    if len(faulty) > 1:
        steady = len({intervals[at].too_fast for at in faulty}) == 1
        return _fault(FaultKind.SLEWED if steady else FaultKind.UNKNOWN, whole)
    over = any(_exclude_each_other(whole, later) for later in intervals[last + 1 :])
    return _fault(FaultKind.STEPPED if over else FaultKind.UNKNOWN, whole)


def _interval(before: SyncPoint, after: SyncPoint) -> _Interval:
    return _Interval(
        after.local_ns - before.local_ns, after.offset_ns - before.offset_ns, before.bound_ns + after.bound_ns
    )


def _fault(kind: FaultKind, interval: _Interval) -> ClockFault:
    return ClockFault(kind=kind, moved_ns=interval.moved_ns, span_ns=interval.span_ns, bound_ns=interval.bound_ns)


def _exclude_each_other(first: _Interval, other: _Interval) -> bool:
    (low, high), (other_low, other_high) = first.rates, other.rates
    return high < other_low or other_high < low


def fault_text(fault: ClockFault) -> str:
    """`slewed: it gains 500 ppm, 1.050 ms in 2.1 s, and goes on`."""
    moved = f"{abs(fault.moved_ns) / 1e6:.3f} ms in {fault.span_ns / 1e9:.1f} s"
    rate = f"{'loses' if fault.rate > 0 else 'gains'} {abs(fault.rate) * 1e6:.0f} ppm"
    match fault.kind:
        case FaultKind.SLEWED:
            return f"slewed: it {rate}, {moved}, and goes on (its time service still corrects it: chronyc tracking)"
        case FaultKind.STEPPED:
            way = "fell back" if fault.moved_ns > 0 else "went ahead"
            briefly = ", or slewed for a part of that time" if abs(fault.rate) <= MAX_SLEW else ""
            return f"stepped or suspended{briefly}: it {way} by {moved}, and no further (a virtual machine that moved?)"
        case FaultKind.UNKNOWN:
            return f"slewed, so that it {rate}, or stepped or suspended, by {moved}: its points do not tell"
