"""One time axis from synchronisation points: rank 0's time of any stamp, with its error bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hpc.model.timestamps import ABSENT

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_DRIFT = 200e-6
"""No two clocks' rates differ by more than this: crystals are sold with up to 100 ppm each."""
WANDER = 10e-6
"""The largest assumed difference of a clock's rate at any moment from its mean rate between two synchronisations,
unless its points prove more."""
STAR = 32
"""Up to this many clock domains are compared with rank 0's directly; more, in a tree (reasons: docs/clock.md)."""
MOST_NS = 3.2e18
"""The most of a local time, an offset, a bound, of which sums are still whole numbers of 64 bits: a century."""
ROUNDING_NS = 3.0
"""Added to bounds for readings and results in whole nanoseconds; so only a shared clock has a bound of 0."""
_CHUNK = 1 << 18  # stamps converted at a time: it bounds the scratch; each chunk has its costs
_COLUMNS = 128  # stamps of one rank among them, at least: below that, rows cost more than stamps


class ClockError(Exception):
    """The readings of the clocks contradict: one was stepped, slewed, suspended, or is another clock than assumed."""


@dataclass(frozen=True)
class SyncPoint:
    """When the local clock showed `local_ns`, rank 0's showed `local_ns + offset_ns`, give or take `bound_ns`."""

    local_ns: int
    offset_ns: float
    bound_ns: float


def estimate(c1: Ints, p1: Ints, p2: Ints, c2: Ints, drift: float) -> SyncPoint:
    """The offset that a burst of messages proves, by causality alone: no path is taken to be symmetric.

    The child sends at c1, the parent receives at p1 and answers at p2, the child receives at c2 (all ns, [ping]).
    So offset ≤ p1 − c1 when the child's clock shows c1, and offset ≥ p2 − c2 when it shows c2. All limits are
    referred to one instant, the middle of the fastest exchange, with `drift` times the distance allowed for.
    Raises ClockError where a lower limit is above an upper one.
    """
    fastest = int(np.argmin((c2 - c1) - (p2 - p1)))
    at = int(c1[fastest]) + int(c2[fastest] - c1[fastest]) // 2
    near = int(p1[fastest] - c1[fastest])  # as an integer, so that the floats below stay small and exact
    upper = float(np.min(p1 - c1 - near + drift * np.abs(c1 - at)))
    lower = float(np.max(p2 - c2 - near - drift * np.abs(c2 - at)))
    if lower - upper > ROUNDING_NS:
        raise ClockError(f"its messages contradict one another by {(lower - upper) / 1e6:.3f} ms")
    offset = near + (lower + upper) / 2
    return SyncPoint(at, offset, (upper - lower) / 2 + ROUNDING_NS + float(np.spacing(abs(offset))))


def through(point: SyncPoint, parent: SyncPoint) -> SyncPoint:
    """The point against rank 0's clock, from `point` against the parent's and the parent's own point at that time.

    The parent time is uncertain by the point's bound, and the parent's clock drifts meanwhile: so that bound is scaled
    by (1 + MAX_DRIFT).
    """
    offset = point.offset_ns + parent.offset_ns
    bound = point.bound_ns * (1 + MAX_DRIFT) + parent.bound_ns + float(np.spacing(abs(offset)))
    return SyncPoint(point.local_ns, offset, bound)


def neighbours(index: int, domains: int, star: int) -> tuple[int | None, list[int]]:
    """The clock domain that domain `index` is compared with, and those that it then serves, in order; 0 is rank 0's.

    Up to `star` domains all are compared with rank 0's. More are a tree of as few levels as stars of that many allow,
    no wider than those levels need.
    """
    levels, width = 1, 2
    while star**levels < domains:
        levels += 1
    while width**levels < domains:
        width += 1
    parent, children = None, []
    for level in reversed(range(levels)):
        step = width**level
        if index % step == 0:
            digit = index // step % width
            if digit:
                parent = index - digit * step
            else:
                children += [child for child in range(index + step, index + width * step, step) if child < domains]
    return parent, children


class _BrokenLine:
    """Straight between the knots [rank, knot]; before and beyond them with a slope of its own, [rank, knot + 1]."""

    def __init__(self, knots: Floats, heights: Floats, slopes: Floats) -> None:
        # The origin of each segment: the knot to its left; the first knot for the segment before it.
        self.start, self.height = np.hstack([knots[:, :1], knots]), np.hstack([heights[:, :1], heights])
        self.knots, self.slopes = self.start[:, 1:], slopes

    def at(self, ranks: slice, x: Floats, first: Floats, last: Floats) -> Floats:
        """The heights of these ranks' lines at x [rank, n]; every x is between `first` and `last` [rank, 1].

        Each height depends on its own x only.
        """
        knots = self.knots[ranks]
        begin, end = ((knots < limit).sum(axis=1, keepdims=True) for limit in (first, last))
        y = self._straight(ranks, x, begin)[0]
        for more in range(1, int((end - begin).max(initial=0)) + 1):
            beyond, start = self._straight(ranks, x, np.minimum(begin + more, end))
            np.copyto(y, beyond, where=x > start)
        return y

    def _straight(self, ranks: slice, x: Floats, segment: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """One segment of each rank's line, extended over all x, and the x where the segment begins."""
        start, height, slope = (
            values[ranks].take(segment + values.shape[1] * np.arange(len(x))[:, np.newaxis])
            for values in (self.start, self.height, self.slopes)
        )
        y: Floats = x - start
        y *= slope
        y += height
        return y, start


@dataclass(frozen=True, eq=False)
class ClockModel:
    """The ranks' synchronisation points [rank, point], ns, and the time axis that they make.

    Between two points the offset is interpolated, outside them carried on at their mean rate. A single point has no
    rate: its bound grows by MAX_DRIFT times the distance. Raises ClockError where no clock can have the points.
    """

    local_ns: Ints
    offset_ns: Floats
    bound_ns: Floats

    def __post_init__(self) -> None:
        _check_points(self.local_ns, self.offset_ns, self.bound_ns)

    @classmethod
    def of(cls, points: Sequence[SyncPoint]) -> ClockModel:
        """The model of one rank."""
        return cls(
            np.array([[point.local_ns for point in points]], np.int64),
            np.array([[point.offset_ns for point in points]], np.float64),
            np.array([[point.bound_ns for point in points]], np.float64),
        )

    def place(self, local_ns: int) -> SyncPoint:
        """The point of the only rank of this model when its clock shows `local_ns`."""
        stamp = np.array([[local_ns]], np.int64)
        return SyncPoint(local_ns, float(self.to_global(stamp)[0, 0] - local_ns), float(self.bounds_ns(stamp)[0, 0]))

    def to_global(self, local_ns: Ints, out: Ints | None = None) -> Ints:
        """Rank 0's time of each stamp [rank, n], ns; absent stays absent. `out` may be `local_ns` itself."""
        out = np.empty(local_ns.shape, np.int64) if out is None else out
        whole, line = self._offset
        for chunk, stamps, absent, offset in self._chunks(line, local_ns):
            shift = np.rint(offset, out=offset).astype(np.int64)
            shift += whole[chunk[0]]
            np.add(shift, stamps, out=out[chunk])
            if absent is not None:
                np.copyto(out[chunk], ABSENT, where=absent)
        return out

    def bounds_ns(self, local_ns: Ints) -> Floats:
        """The error bound of rank 0's time of each stamp [rank, n], ns; NaN where the stamp is absent."""
        out = np.empty_like(local_ns, np.float64)
        for chunk, _, absent, bound in self._chunks(self._bound, local_ns):
            if absent is not None:
                np.copyto(bound, np.nan, where=absent)
            out[chunk] = bound
        return out

    def _chunks(
        self, line: _BrokenLine, local_ns: Ints
    ) -> Iterator[tuple[tuple[slice, slice], Ints, Bools | None, Floats]]:
        """The slices of each chunk, its stamps (anything for absent ones), which are absent (None: none is), and the
        line's heights."""
        if len(local_ns) != len(self.local_ns):
            raise ValueError(f"stamps of {len(local_ns)} ranks for points of {len(self.local_ns)}")
        for chunk in _cut(len(local_ns), local_ns.shape[1], line.knots.shape[1]):
            stamps, origin = local_ns[chunk], self.local_ns[chunk[0], :1]
            first, last = stamps.min(axis=1, keepdims=True), stamps.max(axis=1, keepdims=True)
            absent = None
            if (first == ABSENT).any():
                absent = stamps == ABSENT
                np.copyto(last, origin, where=last == ABSENT)
                stamps = np.where(absent, last, stamps)  # so that no knot is looked at for their sake
                first = stamps.min(axis=1, keepdims=True)
            # Exact: integers are subtracted, and what is left is a run's length.
            elapsed, *ends = ((times - origin).astype(np.float64) for times in (stamps, first, last))
            yield chunk, stamps, absent, line.at(chunk[0], elapsed, *ends)

    @cached_property
    def _elapsed(self) -> Floats:
        return (self.local_ns - self.local_ns[:, :1]).astype(np.float64)

    @cached_property
    def _offset(self) -> tuple[Ints, _BrokenLine]:
        """Whole nanoseconds [rank, 1], and the line of the remaining offset: small, so exact."""
        whole = np.rint(self.offset_ns[:, :1])
        rate, _ = self._rate
        slopes = np.hstack([rate, np.diff(self.offset_ns) / np.diff(self._elapsed), rate])
        return whole.astype(np.int64), _BrokenLine(self._elapsed, self.offset_ns - whole, slopes)

    @cached_property
    def _bound(self) -> _BrokenLine:
        """Between two points the bound rises with the wander to the middle and falls again."""
        points, bound = self._elapsed, self.bound_ns
        _, doubt = self._rate
        wander = np.where(bound.any(axis=1, keepdims=True), self._wander, 0.0)
        gap, mean_slope = np.diff(points), np.diff(bound) / np.diff(points)
        knots, heights = np.empty((2, len(points), 2 * points.shape[1] - 1))
        knots[:, ::2], knots[:, 1::2] = points, points[:, :-1] + gap / 2
        heights[:, ::2], heights[:, 1::2] = bound, (bound[:, :-1] + bound[:, 1:]) / 2 + wander * gap / 2
        slopes = np.empty((len(points), 2 * points.shape[1]))
        slopes[:, :1], slopes[:, -1:] = -doubt, doubt
        slopes[:, 1:-1:2], slopes[:, 2:-1:2] = mean_slope + wander, mean_slope - wander
        return _BrokenLine(knots, heights, slopes)

    @cached_property
    def _wander(self) -> Floats:
        """WANDER [rank, 1], or more where the points prove it: a rate is as near to the mean before it as after."""
        gap = np.diff(self._elapsed)
        rate, doubt = np.diff(self.offset_ns) / gap, (self.bound_ns[:, :-1] + self.bound_ns[:, 1:]) / gap
        proven: Floats = (np.abs(np.diff(rate)) - doubt[:, :-1] - doubt[:, 1:]) / 2
        wander: Floats = proven.max(axis=1, initial=WANDER, keepdims=True)
        return wander

    @cached_property
    def _rate(self) -> tuple[Floats, Floats]:
        """The rate of the offset outside the points, and its error bound; [rank, 1] each.

        The points prove an interval for the mean rate between them, the prior ±MAX_DRIFT cuts it, and cuts the rate
        itself too: two points close together have a wild one.
        """
        bound, elapsed = self.bound_ns, self._elapsed
        same_clock = ~bound.any(axis=1, keepdims=True)
        if elapsed.shape[1] == 1:
            return np.zeros_like(elapsed), np.where(same_clock, 0.0, MAX_DRIFT)
        span = elapsed[:, -1:]
        rate = (self.offset_ns[:, -1:] - self.offset_ns[:, :1]) / span
        doubt = (bound[:, :1] + bound[:, -1:]) / span + self._wander
        lowest, highest = np.maximum(rate - doubt, -MAX_DRIFT), np.minimum(rate + doubt, MAX_DRIFT)
        rate = np.clip(rate, -MAX_DRIFT, MAX_DRIFT)
        return rate, np.where(same_clock, 0.0, np.maximum(highest - rate, rate - lowest))


def _cut(ranks: int, stamps: int, knots: int) -> Iterator[tuple[slice, slice]]:
    """Slices of about _CHUNK stamps: of many ranks, and each of so few that they are between few of its knots."""
    columns = min(max(stamps // knots, _COLUMNS), max(stamps, 1), _CHUNK)
    rows = _CHUNK // columns
    for rank in range(0, ranks, rows):
        for stamp in range(0, stamps, columns):
            yield slice(rank, rank + rows), slice(stamp, stamp + columns)


def _check_points(local: Ints, offset: Floats, bound: Floats) -> None:
    """Raises ClockError unless a clock that drifts by no more than MAX_DRIFT can have all the points [rank, point]."""
    if not local.shape == offset.shape == bound.shape or local.ndim != 2:
        raise ClockError(f"points of shapes {local.shape}, {offset.shape} and {bound.shape}; want one of each a point")
    if local.shape[1] == 0:
        raise ClockError("no synchronisation point: these clocks were never compared")
    if not (np.isfinite(offset) & np.isfinite(bound) & (bound >= 0)).all():
        raise ClockError("an offset is not finite, or a bound is not finite or is negative")
    if max(float(np.abs(values.astype(np.float64)).max()) for values in (local, offset, bound)) > MOST_NS:
        raise ClockError("a local time, an offset or a bound is longer than a century")
    elapsed = local - local[:, :1]
    if len(bad := np.flatnonzero((np.diff(elapsed) <= 0).any(axis=1))):
        raise ClockError(f"the local times of the points do not increase{_which(bad, len(local))}")
    moved = offset - offset[:, :1]
    lower, upper, allowance = moved - bound, moved + bound, MAX_DRIFT * elapsed
    # Each point against all before it: it may be no further from any than the drift allows.
    above = lower - allowance - np.minimum.accumulate(upper - allowance, axis=1)
    below = np.maximum.accumulate(lower + allowance, axis=1) - upper - allowance
    excess: Floats = np.maximum(above, below).max(axis=1)
    if len(bad := np.flatnonzero(excess > ROUNDING_NS)):
        raise ClockError(
            f"the offset moved by {excess.max() / 1e6:.3f} ms more than clocks drift ({MAX_DRIFT * 1e6:.0f} ppm) "
            f"between synchronisations{_which(bad, len(local))}"
        )


def _which(bad: NDArray[np.intp], ranks: int) -> str:
    return f" (rank {', '.join(map(str, bad[:8]))})" if ranks > 1 else ""


# What moved a clock's offset further than clocks drift, by its points: a step, or a rate that is wrong.

MAX_SLEW = 0.1
"""No time service slews by more than this: the kernel by 500 ppm (adjtimex), chrony by 83,333 by default."""


class FaultKind(StrEnum):
    """How the offset moved: all at once, steadily, or in a way that the points do not decide."""

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
    one excludes its rate. Two points alone, or a rate that is wrong since the last but one, decide neither.
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
            return f"stepped or suspended{briefly}: it {way} by {moved}, once (a virtual machine that moved?)"
        case FaultKind.UNKNOWN:
            return f"slewed, so that it {rate}, or stepped or suspended, by {moved}: its points do not decide"
