"""What a comparison consists of: points, each with its verdict, and what differs between the environments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from parse.comparison.ratio import RatioInterval
from parse.comparison.verdict import ComparisonVerdict


class ComparisonError(ValueError):
    """Nothing can be compared; the text says why and what to do."""


class Reason(Enum):
    """Why the verdict on a point is `cannot tell`."""

    SCATTER = "the runs scatter too much"
    FEW_RUNS = "too few runs for an interval of 95 %"
    NOT_OK = "no run ended ok"
    NO_SPEED = "a speed is no positive number"
    NOT_MEASURED = "no point here is of these settings"
    SEVERAL = "several points here are of these settings"
    OTHER_SETTINGS = "its settings are not those of the reference"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison of a point. `speeds` [runs] are those of its ok runs, `repeats` their numbers, in the
    same order; `median` is theirs, or an expected speed, which has no runs. `outcomes` are all its runs by outcome,
    `outlying` the repeats of runs far from the others."""

    median: float | None
    speeds: tuple[float, ...] = ()
    repeats: tuple[int, ...] = ()
    outcomes: tuple[tuple[str, int], ...] = ()
    outlying: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComparedPoint:
    """A point of both sides. Speeds are in its `unit`. `threshold` is a share.

    `ratio` is that of the medians, new over base. `runs_needed` is the number of runs of each side (of the new one
    against a reference) needed for a verdict; None where there is a verdict, or where `reason` says that none is known.
    `source` says where an expected speed is from. `detail` belongs to `reason`: settings, repeats.
    """

    name: str
    unit: str
    threshold: float
    base: Side
    new: Side
    verdict: ComparisonVerdict
    ratio: float | None = None
    interval: RatioInterval | None = None
    reason: Reason | None = None
    detail: str = ""
    runs_needed: int | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact of the machines or a setting in effect whose values differ; empty where a side does not state it.
    `points` are the names of the points that it concerns, empty where it concerns all."""

    name: str
    base: tuple[str, ...]
    new: tuple[str, ...]
    points: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NearMiss:
    """A point of each side that would be one but for these settings. `ignorable` is the name of the only one, where
    --ignore takes it, else empty."""

    base: str
    new: str
    settings: tuple[str, ...]
    ignorable: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is compared. `base` and `new` name the sides; `is_reference`: base is expected speeds.

    `only_base` and `only_new` are the names of points of one side. `remarks` and `refusals` are of reading.
    """

    base: str
    new: str
    is_reference: bool
    points: tuple[ComparedPoint, ...]
    differences: tuple[Difference, ...] = ()
    only_base: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()

    def with_verdict(self, *verdicts: ComparisonVerdict) -> tuple[ComparedPoint, ...]:
        """The points that have one of these verdicts."""
        return tuple(point for point in self.points if point.verdict in verdicts)

    @property
    def status(self) -> int:
        """The exit status: 1 for a regression, else 2 where a point has no verdict or none is compared, else 0."""
        if self.with_verdict(ComparisonVerdict.SLOWER):
            return 1
        return 2 if not self.points or self.with_verdict(ComparisonVerdict.CANNOT_TELL) else 0
