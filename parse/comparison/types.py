"""What a comparison consists of: ratios with their intervals, verdicts, points, what differs between environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from math import comb, log, pi, sqrt
from statistics import NormalDist, variance

from parse import stats
from parse.faults import has_fault
from parse.stats import MIN_COVERAGE

CONFIDENCE = 0.95
MAX_RUNS = 100
"""More runs of a side are no advice."""
POWER = 0.93
"""Planned probability that a difference of the threshold is called; a part is lost to scatter that is known badly."""
EFFICIENCY = 3 / pi
"""The rank test needs 1 / 0.955 of the runs of a t test where runs are normal (Lehmann, Nonparametrics, 1975, 2.4)."""
SCATTER_QUANTILE = 0.2
"""The scatter that a number of runs is planned with exceeds the true one in 4 of 5 cases (Browne 1995)."""
MAX_EXACT_PAIRS = 10_000
"""Up to so many pairs of runs the distribution is counted, beyond it is taken as normal."""


@dataclass(frozen=True, kw_only=True)
class RatioInterval:
    """The ratio of two medians with the ends of its interval, and the coverage that the interval really has."""

    ratio: float
    low: float
    high: float
    coverage: float


def ratio_interval(base: Sequence[float], new: Sequence[float]) -> RatioInterval | None:
    """The ratio of the medians, new over base, with its exact interval; None where the runs are too few for one.

    The interval is that of the rank test of Mann and Whitney, turned round (Moses 1953; Lehmann, Nonparametrics, 1975,
    2.5): of the n·m ratios of one run of either side, sorted, from the k-th smallest to the k-th largest. It covers the
    true ratio with probability 1 − 2·P(U < k), whatever the distribution of the runs, if both sides have the same
    distribution but for that factor. Taken is the narrowest interval that reaches 95 %, else the widest, if that
    reaches MIN_COVERAGE. All speeds must be positive and finite.
    """
    k, coverage = rank_and_coverage(len(base), len(new)) if base and new else (0, 0.0)
    if coverage < MIN_COVERAGE:
        return None
    ratios = sorted(speed / reference for speed in new for reference in base)
    ratio = stats.median(new) / stats.median(base)
    return RatioInterval(ratio=ratio, low=ratios[k - 1], high=ratios[-k], coverage=coverage)


def single_interval(speeds: Sequence[float], expected: float) -> RatioInterval | None:
    """The ratio of the median to an expected speed, with its exact order-statistic interval (`stats.median_interval`);
    None where the runs are too few for MIN_COVERAGE."""
    interval = stats.median_interval(speeds)
    if interval is None or interval.coverage < MIN_COVERAGE:
        return None
    return RatioInterval(
        ratio=stats.median(speeds) / expected,
        low=interval.low / expected,
        high=interval.high / expected,
        coverage=interval.coverage,
    )


@cache
def rank_and_coverage(n: int, m: int) -> tuple[int, float]:
    """The k of `ratio_interval` for n and m runs, and its coverage."""
    if n * m > MAX_EXACT_PAIRS:
        normal = NormalDist(n * m / 2, sqrt(n * m * (n + m + 1) / 12))
        return max(1, int(normal.inv_cdf((1 - CONFIDENCE) / 2))), CONFIDENCE
    counts, total = _rank_counts(n, m), comb(n + m, n)
    k, tail = 1, 2 * counts[0]
    while (wider := tail + 2 * counts[k]) <= total * (1 - CONFIDENCE):
        k, tail = k + 1, wider
    return k, 1 - tail / total


def _rank_counts(n: int, m: int) -> list[int]:
    """How many of the orders of n and m runs have U = 0, 1, …, n·m: the coefficients of the Gaussian binomial
    Π (1 − q^(m+i)) / (1 − q^i), i = 1…n (Mann and Whitney 1947)."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for at in range(n * m, m + i - 1, -1):
            counts[at] -= counts[at - m - i]
        for at in range(i, n * m + 1):
            counts[at] += counts[at - i]
    return counts


def least_runs() -> int:
    """The least number of runs of each side that has an interval."""
    return next(n for n in range(1, MAX_RUNS) if rank_and_coverage(n, n)[1] >= MIN_COVERAGE)


def least_single_runs() -> int:
    """The least number of runs whose median has an interval."""
    return next(n for n in range(1, MAX_RUNS) if 1 - 2 / 2**n >= MIN_COVERAGE)


def runs_to_tell(sides: Sequence[Sequence[float]], threshold: float) -> int | None:
    """How many runs of each side call a true difference of `threshold` in 90 % of the cases or more, planned with the
    scatter of these runs; None where more than MAX_RUNS would, and where no side has two runs.

    `sides` are the speeds of the two sides, or of one that is compared with a fixed number. The number n is the least
    for which the threshold is t + z standard errors wide (t of the interval, z of POWER), with the pooled standard
    deviation of log speeds at the upper end of its own interval.
    """
    freedom = sum(len(speeds) - 1 for speeds in sides)
    if freedom < 1:
        return None
    logs = [[log(speed) for speed in speeds] for speeds in sides]
    squares = sum(variance(values) * (len(values) - 1) for values in logs if len(values) > 1)
    scatter = upper_scatter(squares, freedom)
    least = least_runs() if len(sides) == 2 else least_single_runs()
    wanted = -log(1 - threshold)
    for n in range(max(2, least), MAX_RUNS + 1):
        error = scatter * sqrt(len(sides) / (EFFICIENCY * n))
        if (stats.student(CONFIDENCE, len(sides) * (n - 1)) + NormalDist().inv_cdf(POWER)) * error <= wanted:
            return n
    return None


def upper_scatter(squares: float, freedom: int) -> float:
    """The standard deviation to plan a number of runs with, from a sum of squared deviations: SCATTER_QUANTILE."""
    return sqrt(squares / _chi_squared(freedom, SCATTER_QUANTILE))


def _chi_squared(freedom: int, probability: float) -> float:
    """The quantile of a χ² distribution by Wilson and Hilferty (1931); for one and two degrees of freedom exact."""
    if freedom == 1:
        return NormalDist().inv_cdf((1 + probability) / 2) ** 2
    if freedom == 2:
        return -2 * log(1 - probability)
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(probability) * sqrt(part)) ** 3)


def order_chance(base: Sequence[float], new: Sequence[float]) -> float | None:
    """How often chance puts all runs of one side below all of the other, if both are alike: two of the orders of n and
    m runs do (Mann and Whitney 1947). None where the sides overlap."""
    apart = max(new) < min(base) or max(base) < min(new)
    return min(1.0, 2 / comb(len(base) + len(new), len(base))) if apart else None


# What an interval of a ratio means.


class ComparisonVerdict(StrEnum):
    """The result of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


def of_pair(interval: RatioInterval | None, threshold: float) -> ComparisonVerdict:
    """The verdict on two measurements.

    `same`: the whole interval is within the threshold. Otherwise `slower` and `faster`: it excludes 1, so that the
    speeds differ, and the difference may reach the threshold. `cannot tell`: everything else.
    """
    if interval is None:
        return ComparisonVerdict.CANNOT_TELL
    if 1 - threshold <= interval.low and interval.high <= 1 + threshold:
        return ComparisonVerdict.SAME
    if interval.high < 1:
        return ComparisonVerdict.SLOWER
    return ComparisonVerdict.FASTER if interval.low > 1 else ComparisonVerdict.CANNOT_TELL


def of_reference(interval: RatioInterval | None, tolerance: float) -> ComparisonVerdict:
    """The verdict on a measurement and an expected speed, which has no scatter.

    `slower`: the whole interval is below 1 − tolerance; `faster`: above 1 + tolerance; `same`: none of it is below
    1 − tolerance. `cannot tell`: it contains 1 − tolerance.
    """
    if interval is None:
        return ComparisonVerdict.CANNOT_TELL
    if interval.high < 1 - tolerance:
        return ComparisonVerdict.SLOWER
    if interval.low > 1 + tolerance:
        return ComparisonVerdict.FASTER
    return ComparisonVerdict.SAME if interval.low >= 1 - tolerance else ComparisonVerdict.CANNOT_TELL


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
    against a reference) needed for a verdict on a `difference`, a share: the observed one, at least the threshold; None
    where there is a verdict, or where `reason` says that none is known.
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
    difference: float | None = None
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
        """The exit status: 1 for a regression, else 2 where a point has no verdict, none is compared or a run was lost
        by a fault of this program, else 0."""
        if self.with_verdict(ComparisonVerdict.SLOWER):
            return 1
        unknown = not self.points or self.with_verdict(ComparisonVerdict.CANNOT_TELL) or has_fault(self.refusals)
        return 2 if unknown else 0
