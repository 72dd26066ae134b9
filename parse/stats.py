"""Pure functions on numbers: what measurement.md computes."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import cos, exp, isfinite, isqrt, lgamma, log, log1p, pi, sin, sqrt, tan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PRECISION = 1e-15
"""Of functions that are computed term by term, as a share."""
UNCOVERED_PART = 20
"""An interval of 95 % leaves out at most one part in twenty; whole numbers stay exact for any n."""
MAX_REPEATS = 100
"""More are no advice."""
FEW_RUNS = 5
"""Fewer runs have no interval of 95 %: the least and the most of them are shown."""
MIN_COVERAGE = 0.93
"""The least coverage of an interval that passes for one of 95 %: five runs of one side give 93.75 %."""


@dataclass(frozen=True)
class Interval:
    """An interval of the median with the coverage that it really has."""

    low: float
    high: float
    coverage: float

    @property
    def of_few_runs(self) -> bool:
        """Whether it is from the least to the most of too few runs for 95 %."""
        return self.coverage < MIN_COVERAGE


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean with its interval (Student's t over runs, or over pieces of a single run) and what that covers, 0…1; None:
    too few. `runs` is from the least to the most of fewer than FEW_RUNS runs: shown in place of the interval, which
    then decides only whether 0 is in it."""

    value: float
    low: float | None = None
    high: float | None = None
    coverage: float | None = None
    runs: tuple[float, float] | None = None

    @property
    def shown(self) -> tuple[float, float] | None:
        """The least and the most of few runs, else the ends of the interval; None where there is neither."""
        ends = None if self.low is None or self.high is None else (self.low, self.high)
        return self.runs or ends

    @property
    def resolved(self) -> bool:
        """Whether 0 is outside its interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


mean, median = statistics.fmean, statistics.median


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation of the sample (n − 1) over its mean; None for fewer than two values, where one is not finite,
    and where the mean is 0."""
    if len(values) < 2 or not all(map(isfinite, values)) or mean(values) == 0:
        return None
    return statistics.stdev(values) / mean(values)


def median_interval(values: Sequence[float]) -> Interval | None:
    """The exact order-statistic interval of the median, with its true coverage; None for fewer than two values.

    The k-th smallest to the k-th largest of n values covers the median with probability
    1 − 2·P(Binomial(n, ½) < k) (David and Nagaraja, Order Statistics, 7.1). Taken is the narrowest such interval
    that reaches 95 %; where none does, smallest to largest: five values give 93.75 %, six 96.875 %.
    """
    n = len(values)
    if n < 2:
        return None
    k, uncovered = interval_rank(n)
    ordered = sorted(values)
    return Interval(ordered[k - 1], ordered[n - k], 1 - uncovered)


@lru_cache(1000)
def interval_rank(n: int) -> tuple[int, float]:
    """The rank k of `median_interval` for n values, and what it leaves out. Terms follow from one another in whole
    numbers, so that the work grows with the square of n."""
    k, term, tail = 1, 1, 1  # term: comb(n, k − 1), tail: Σ comb(n, i) for i < k, in units of 2^-n
    limit = 2**n // UNCOVERED_PART
    while 2 * (tail + (term := term * (n - k + 1) // k)) <= limit:
        k, tail = k + 1, tail + term
    return k, 2 * tail / 2**n


@lru_cache(1000)
def student(confidence: float, freedom: float) -> float:
    """Within how many standard errors a t-distributed number of so many degrees of freedom, whole or not, is with that
    probability; by bisection."""
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        farther = _beta(freedom / 2, 0.5, cos(middle) ** 2, sin(middle) ** 2)
        low, high = (middle, high) if farther > 1 - confidence else (low, middle)
    return sqrt(freedom) * tan(low)


def student_p(t: float, freedom: float) -> float:
    """The probability that a t-distributed number of so many degrees of freedom is farther from 0 than `t`, which is
    positive (Abramowitz and Stegun, 26.7.1 and 26.5.27)."""
    square = t * t / freedom
    return _beta(freedom / 2, 0.5, 1 / (1 + square), 1 - 1 / (1 + square) if square > 1 else square / (1 + square))


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function of x; `rest` is 1 − x.

    By its continued fraction (Abramowitz and Stegun, 26.5.8) in Lentz's order, which converges fast on one side of
    (a + 1) / (a + b + 2); from there on the complement is computed.
    """
    if x == 0 or rest == 0:
        return float(rest == 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, rest, x)
    above, below = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction, change, m = below, 0.0, 0
    while abs(change - 1) > PRECISION:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            below, above = 1 / (1 + term * below), 1 + term / above
            change *= below * above
        fraction *= change
    size = a * log(x) + b * log(rest) + lgamma(a + b) - lgamma(a) - lgamma(b)
    return exp(size) / a * fraction


MIN_SERIES = 40
"""The least number of values whose batches say how their mean scatters: six batches."""


def series_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean of a series whose neighbours are alike, as a share of the mean; None for fewer
    than MIN_SERIES values.

    From the means of √n batches of neighbours (Law, Simulation Modeling and Analysis, 9.5.3), the first values left out
    where batches of equal size do not use all.
    """
    n = len(values)
    if n < MIN_SERIES:
        return None
    batches = isqrt(n)
    size = n // batches
    means = [mean(values[at : at + size]) for at in range(n - batches * size, n, size)]
    return statistics.stdev(means) / sqrt(batches) / mean(means)


T_COVERAGE = 0.95
"""Of an interval by Student's t."""
T_COVERAGE_OF_TWO = 0.9
"""The same of two values on a side, whose scatter is hardly known: simulated, 83 to 98 % where values have one mode, 51
to 97 % where they have two."""


def t_coverage(*numbers: int) -> float:
    """What an interval by Student's t covers, by the number of values on each side."""
    return T_COVERAGE_OF_TWO if min(numbers) == 2 else T_COVERAGE


def mean_margin(values: Sequence[float]) -> float | None:
    """Half of the interval of a mean by Student's t, which has `t_coverage`; None for fewer than two values."""
    n = len(values)
    return None if n < 2 else student(T_COVERAGE, n - 1) * sqrt(statistics.variance(values) / n)


def difference_margin(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Half of the interval of the difference of two means whose scatters differ, which has `t_coverage`; None for fewer
    than two of each.

    Welch's t with the Welch–Satterthwaite degrees of freedom (B. L. Welch, Biometrika 34, 1947).
    """
    if min(len(values), len(others)) < 2:
        return None
    return _margin(statistics.variance(values), len(values), statistics.variance(others), len(others))


def repeats_within(values: Sequence[float], others: Sequence[float], margin: float) -> int | None:
    """How many of each give a `difference_margin` of at most so much, if they scatter as these.

    None for fewer than two of each, and where more than MAX_REPEATS would be needed.
    """
    if min(len(values), len(others)) < 2:
        return None
    ours, theirs = statistics.variance(values), statistics.variance(others)
    counts = range(2, MAX_REPEATS + 1)
    at = bisect_left(counts, -margin, key=lambda n: -_margin(ours, n, theirs, n))  # it falls with n
    return counts[at] if at < len(counts) else None


def _margin(ours: float, our_number: int, theirs: float, their_number: int) -> float:
    """Half of the interval by the variances and numbers of both sides."""
    square = ours / our_number + theirs / their_number
    if square == 0:
        return 0.0
    part = ours / our_number / square
    freedom = 1 / (part**2 / (our_number - 1) + (1 - part) ** 2 / (their_number - 1))
    return student(T_COVERAGE, freedom) * sqrt(square)


def block_durations_ns(latest_end_ns: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]) -> list[int]:
    """Duration of each block in ns: from the latest end of the step before it to the latest end of its last step."""
    return [int(latest_end_ns[stop - 1]) - int(latest_end_ns[first - 1]) for first, stop in blocks]


def pauses_s(latest_end_ns: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]) -> tuple[float, ...]:
    """The pause before each block but the first, in s: from the latest end of the block before to its own begin."""
    return tuple(
        (int(latest_end_ns[first - 1]) - int(latest_end_ns[stop - 1])) / 1e9
        for (_, stop), (first, _) in pairwise(blocks)
    )


def throughput(
    latest_end_ns: npt.NDArray[np.int64], samples: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]
) -> float:
    """Σ samples in the blocks / Σ (E_last − E_start), in samples/s; arrays are [step], over all ranks."""
    inside = sum(int(samples[first:stop].sum()) for first, stop in blocks)
    return inside / sum(block_durations_ns(latest_end_ns, blocks)) * 1e9


def step_times_s(latest_end_ns: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Time of each measured step in s: from the latest end of the step before to its own latest end."""
    import numpy as np

    return np.concatenate([np.diff(latest_end_ns[first - 1 : stop]) for first, stop in blocks]) / 1e9


def mean_of_rates(
    latest_end_ns: npt.NDArray[np.int64], samples: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]
) -> float:
    """The mean over the measured steps of samples / step time: what many published tables use."""
    import numpy as np

    inside = np.concatenate([samples[first:stop] for first, stop in blocks])
    return float(np.mean(inside / step_times_s(latest_end_ns, blocks)))


MIN_OUTLYING = 4
"""With fewer values none is far from the others."""
OUTLYING = 3.5
"""Standard deviations from the median (Iglewicz and Hoaglin 1993), where the values are many."""
OUTLYING_FEW = 21
"""Added for few values n, divided by n: so that at most 5 % of normal samples have an outlying value (simulated)."""
LEAST_OUTLYING = 0.02
"""An outlying value departs from the median by at least so much, as a share."""


def outlying(values: Sequence[float]) -> tuple[int, ...]:
    """The positions of positive values far from the others, by the median absolute deviation of their logs.

    A value is far where it is more than OUTLYING + OUTLYING_FEW / n robust standard deviations (1.4826 · MAD) away
    from the median, and more than LEAST_OUTLYING.
    """
    if len(values) < MIN_OUTLYING:
        return ()
    logs = [log(value) for value in values]
    middle = median(logs)
    scatter = 1.4826 * median([abs(value - middle) for value in logs])
    limit = max((OUTLYING + OUTLYING_FEW / len(values)) * scatter, LEAST_OUTLYING)
    return tuple(at for at, value in enumerate(logs) if abs(value - middle) > limit)


def binomial_tail(trials: int, hits: int, chance: float) -> float:
    """The probability of so many hits or more."""
    total = 0.0
    for each in range(hits, trials + 1):
        log_ways = lgamma(trials + 1) - lgamma(each + 1) - lgamma(trials - each + 1)
        term = exp(log_ways + each * log(chance) + (trials - each) * log1p(-chance))
        total += term
        if each > chance * trials and term <= 1e-18 * total:  # as are all that follow
            break
    return min(1.0, total) if hits else 1.0
