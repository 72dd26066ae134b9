"""Two ways of doing the same thing, timed in alternating blocks of one process: a ratio with its interval."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from parse.stats import Interval, median, median_interval

BLOCKS = 30


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Medians of our time and the reference's; median of the blocks' ratios, with the exact interval of that."""

    name: str
    ours_s: float
    reference_s: float
    ratio: float
    interval: Interval
    limit: float | None

    @property
    def verdict(self) -> str:
        """`met` or `missed` where the whole interval lies on one side of the limit, else `not resolved`; without one
        `not judged`."""
        return "not judged" if self.limit is None else _verdict(self.interval, self.limit)

    def __str__(self) -> str:
        limit = "no limit" if self.limit is None else f"limit {self.limit:.4g}"
        return (
            f"{self.name}: {_time(self.ours_s)} / {_time(self.reference_s)}, by blocks {self.ratio:.3f} "
            f"[{self.interval.low:.3f}, {self.interval.high:.3f}] {self.interval.coverage:.1%}; {limit}: {self.verdict}"
        )


def against_limit(name: str, taken: Sequence[float], limit: float, unit: str) -> str:
    """One line: the median of what was taken, its exact interval, and how that stands to an absolute limit."""
    interval = median_interval(taken)
    assert interval is not None, "two measurements at least"
    return f"{with_interval(name, taken, unit)}; limit {limit:g} {unit}: {_verdict(interval, limit)}"


def with_interval(name: str, taken: Sequence[float], unit: str) -> str:
    """The median of what was taken, and its exact interval."""
    interval = median_interval(taken)
    assert interval is not None, "two measurements at least"
    return f"{name}: {median(taken):.3f} {unit} [{interval.low:.3f}, {interval.high:.3f}] {interval.coverage:.1%}"


def compare(
    name: str,
    ours: Callable[[], object],
    reference: Callable[[], object],
    *,
    limit: float | None,
    blocks: int = BLOCKS,
    calls: int = 1,
    between: Callable[[], object] | None = None,
) -> Comparison:
    """Times `calls` calls of each per block, the first of the two by turns; `between` runs untimed before each.

    `ratio` is the median of the blocks' ratios, so that it lies in its interval. One block of each before the first is
    thrown away.
    """
    taken: dict[Callable[[], object], list[float]] = {ours: [], reference: []}
    for block in range(blocks + 1):
        for what in (ours, reference) if block % 2 else (reference, ours):
            if between is not None:
                between()
            taken[what].append(_timed_s(what, calls))
    ours_s, reference_s = taken[ours][1:], taken[reference][1:]
    ratios = [a / b for a, b in zip(ours_s, reference_s, strict=True)]
    interval = median_interval(ratios)
    assert interval is not None, "blocks must be at least 2"
    return Comparison(
        name=name,
        ours_s=median(ours_s),
        reference_s=median(reference_s),
        ratio=median(ratios),
        interval=interval,
        limit=limit,
    )


def _verdict(interval: Interval, limit: float) -> str:
    if interval.high <= limit:
        return "met"
    return "missed" if interval.low > limit else "not resolved"


def _timed_s(what: Callable[[], object], calls: int) -> float:
    gc.collect()
    gc.disable()
    try:
        begin = perf_counter_ns()
        for _ in range(calls):
            what()
        return (perf_counter_ns() - begin) / 1e9 / calls
    finally:
        gc.enable()


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
