"""Pure functions on numbers: what measurement.md computes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import atan2, comb, cos, isfinite, isqrt, log, pi, sin, sqrt, tan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

UNCOVERED_PART = 20
"""An interval of 95 % leaves out at most one part in twenty; whole numbers stay exact for any n."""
MAX_REPEATS = 100
"""More are no advice."""


@dataclass(frozen=True)
class Interval:
    """An interval of the median with the coverage that it really has."""

    low: float
    high: float
    coverage: float


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
    k, tail = 1, 2  # tail: 2·Σ comb(n, i) for i < k, in units of 2^-n
    while (wider := tail + 2 * comb(n, k)) <= 2**n // UNCOVERED_PART:
        k, tail = k + 1, wider
    ordered = sorted(values)
    return Interval(ordered[k - 1], ordered[n - k], 1 - tail / 2**n)


def student(confidence: float, freedom: int) -> float:
    """Within how many standard errors a t-distributed number of so many degrees of freedom is, with that probability.

    The probability within t is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4), turned round by bisection.
    """

    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return sqrt(freedom) * tan(low)


def student_p(t: float, freedom: int) -> float:
    """The probability that a t-distributed number of so many degrees of freedom lies farther from 0 than `t`, which is
    positive; exact to 1e-14."""
    return max(0.0, 1 - _within(atan2(t, sqrt(freedom)), freedom))


def _within(angle: float, freedom: int) -> float:
    """The probability of a t-distributed number within ± sqrt(freedom) · tan(angle)."""
    term, total = (cos(angle), 0.0) if freedom % 2 else (1.0, 0.0)
    for power in range(3 if freedom % 2 else 2, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power - 1) / power
    return 2 / pi * (angle + sin(angle) * total) if freedom % 2 else sin(angle) * total


@cache
def _student(freedom: int) -> float:
    """The 97.5 % point as tables print it: three decimals, beyond 30 degrees of freedom that of 30, which is larger."""
    return round(student(0.95, min(max(1, freedom), 30)), 3)


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


def mean_margin(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a mean, by Student's t; None for fewer than two values."""
    n = len(values)
    return None if n < 2 else _student(n - 1) * sqrt(statistics.variance(values) / n)


def difference_margin(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the difference of two means whose scatters differ; None for fewer than two of each.

    Welch's t with the Welch–Satterthwaite degrees of freedom (B. L. Welch, Biometrika 34, 1947).
    """
    if min(len(values), len(others)) < 2:
        return None
    ours, theirs = statistics.variance(values) / len(values), statistics.variance(others) / len(others)
    if ours + theirs == 0:
        return 0.0
    freedom = (ours + theirs) ** 2 / (ours**2 / (len(values) - 1) + theirs**2 / (len(others) - 1))
    return _student(int(freedom)) * sqrt(ours + theirs)


def repeats_within(values: Sequence[float], others: Sequence[float], margin: float) -> int | None:
    """How many of each give a `difference_margin` of at most so much, if they scatter as these.

    None for fewer than two of each, and where more than MAX_REPEATS would be needed.
    """
    if min(len(values), len(others)) < 2:
        return None
    ours, theirs = statistics.variance(values), statistics.variance(others)
    if ours + theirs == 0:
        return 2
    for n in range(2, MAX_REPEATS + 1):
        freedom = (n - 1) * (ours + theirs) ** 2 / (ours**2 + theirs**2)
        if _student(int(freedom)) * sqrt((ours + theirs) / n) <= margin:
            return n
    return None


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
    """The positions of positive values that lie far from the others, by the median absolute deviation of their logs.

    A value lies far where it is more than OUTLYING + OUTLYING_FEW / n robust standard deviations (1.4826 · MAD) away
    from the median, and more than LEAST_OUTLYING.
    """
    if len(values) < MIN_OUTLYING:
        return ()
    logs = [log(value) for value in values]
    middle = median(logs)
    scatter = 1.4826 * median([abs(value - middle) for value in logs])
    limit = max((OUTLYING + OUTLYING_FEW / len(values)) * scatter, LEAST_OUTLYING)
    return tuple(at for at, value in enumerate(logs) if abs(value - middle) > limit)
