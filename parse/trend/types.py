"""What a history consists of: for each point its speeds over time, and where they change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean

from parse import stats
from parse.comparison.ratio import RatioInterval
from parse.comparison.types import Difference
from parse.trend.divisive import LevelChange

MIN_MEASUREMENTS = 10
"""A verdict needs so many: with them a step of 5 % in their middle is seen in 97 % of the series that scatter by 1 %,
with eight in 78 % (simulated, docs/results.md)."""


class Trend(StrEnum):
    """What the latest change of a point is."""

    SLOWER = "slower"
    FASTER = "faster"
    STEADY = "steady"
    TOO_FEW = "too few"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A point in one measurement. `begin_unix_s` is when the first of its ok runs began, `speeds` are those of the ok
    runs; `interval` is that of the median, None for one run."""

    folder: str
    begin_unix_s: int
    date: str
    median: float
    speeds: tuple[float, ...]
    interval: stats.Interval | None


@dataclass(frozen=True, kw_only=True)
class DatedChange:
    """A change of level, from the sample `previous` to `first`, and what differs between the environments of both.

    `interval` is that of the ratio of the medians after it to those before it, up to the neighbouring changes; None for
    too few of them.
    """

    change: LevelChange
    interval: RatioInterval | None
    previous: Sample
    first: Sample
    differences: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A measurement that has the point without a speed or a date."""

    folder: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Series:
    """A point over time. Speeds are in its `unit`; samples and changes are in order of time."""

    name: str
    unit: str
    samples: tuple[Sample, ...]
    changes: tuple[DatedChange, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """The levels between the changes: positions of the first sample and behind the last one, mean of the medians;
        none without a verdict."""
        if self.verdict is Trend.TOO_FEW:
            return ()
        edges = [0, *(change.change.at for change in self.changes), len(self.samples)]
        return tuple(
            (start, stop, fmean(sample.median for sample in self.samples[start:stop]))
            for start, stop in pairwise(edges)
        )

    @property
    def verdict(self) -> Trend:
        """By the latest change."""
        if len(self.samples) < MIN_MEASUREMENTS:
            return Trend.TOO_FEW
        if not self.changes:
            return Trend.STEADY
        return Trend.SLOWER if self.changes[-1].change.size < 0 else Trend.FASTER


@dataclass(frozen=True, kw_only=True)
class History:
    """All points over time. `folders` are those that were read; smaller changes than `threshold`, a share, are none.

    `remarks` and `refusals` are of reading.
    """

    folders: tuple[str, ...]
    threshold: float
    series: tuple[Series, ...]
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()

    def with_verdict(self, verdict: Trend) -> tuple[Series, ...]:
        """The points with this verdict."""
        return tuple(series for series in self.series if series.verdict is verdict)

    @property
    def status(self) -> int:
        """The exit status: 1 where the latest change of a point is a slowdown, 2 where no point has enough
        measurements, else 0."""
        if self.with_verdict(Trend.SLOWER):
            return 1
        return 2 if len(self.with_verdict(Trend.TOO_FEW)) == len(self.series) else 0
