"""Change points of step times: where a run goes over from one level to another (PELT)."""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_SEGMENT = 5
"""The least number of values between two change points: fewer long steps are stalls."""
MIN_VALUES = 40
PENALTY = 3.5
"""The penalty of a change point, in log(n) long-run variances: by simulation, below 5 % false alarms."""
CLIP = 3.0
"""In standard deviations of the steps."""
TRIMMED, TRIMMED_MEAN = 0.05, 0.758
"""The largest part of the squared differences that is left out, and the mean of what remains for a variance of 1."""
MAX_CORRELATION = 0.9
RESOLUTION = 1e-4
"""The least scatter of step times, as a share: equal ones have been rounded."""


def change_points(step_s: npt.NDArray[np.float64]) -> list[int]:
    """The positions at which the level of the step times [n] changes, ascending; empty for fewer than MIN_VALUES
    values, which must be positive.

    Minimised is the sum of squares of log step times within segments + a penalty for each change point, by PELT
    (Killick, Fearnhead, Eckley 2012), which is exact. Stalls are clipped first: no value lies farther than CLIP from
    the median of the five around it, which keeps changes of level. The penalty grows with the long-run variance,
    because neighbouring steps are alike.
    """
    n = len(step_s)
    if n < MIN_VALUES:
        return []
    logs = np.log(step_s)
    scatter = sqrt(_squared_differences(logs, 1) / 2)
    if scatter == 0:
        scatter = RESOLUTION
    middle = _running_median(logs)
    logs = np.clip(logs, middle - CLIP * scatter, middle + CLIP * scatter)
    variance = max(_long_run_variance(logs), RESOLUTION**2)
    return pelt(logs - logs.mean(), PENALTY * log(n) * variance, MIN_SEGMENT)


def pelt(values: npt.NDArray[np.float64], penalty: float, min_segment: int) -> list[int]:
    """The change points that minimise Σ (squares around the mean of the segment) + penalty · (number of change points),
    with at least `min_segment` values in each segment."""
    n = len(values)
    sums, squares = np.concatenate([[0.0], np.cumsum(values)]), np.concatenate([[0.0], np.cumsum(values**2)])
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    previous = np.zeros(n + 1, np.int64)
    starts = np.empty(0, np.int64)

    def totals(stop: Any) -> npt.NDArray[np.float64]:
        """The least cost of the values up to `stop` by the start of their last segment, less its penalty; of several
        stops [n, 1], of each."""
        cost = squares[stop] - squares[starts] - (sums[stop] - sums[starts]) ** 2 / (stop - starts)
        total: npt.NDArray[np.float64] = best[starts] + cost
        return total

    for first in range(min_segment, n + 1, min_segment):  # no segment lies between two of so few stops
        stops = np.arange(first, min(first + min_segment, n + 1))
        # A start that is worse than a change point at `new` stays so from where a segment that begins there may end.
        new = first - min_segment
        starts = starts[(starts > new - min_segment) | (totals(new) <= best[new])]
        latest = stops - min_segment
        starts = np.append(starts, latest)
        total = totals(stops[:, None])
        total[:, -len(stops) :][latest > latest[:, None]] = np.inf
        at = total.argmin(axis=1)
        best[stops], previous[stops] = total[np.arange(len(stops)), at] + penalty, starts[at]
    positions: list[int] = []
    stop = int(previous[n])
    while stop > 0:
        positions.append(stop)
        stop = int(previous[stop])
    return positions[::-1]


def _running_median(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The median of each value [n] with the two before it and the two behind it; at the ends, of the five there."""
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 5), axis=1)
    return np.concatenate([middle[[0, 0]], middle, middle[[-1, -1]]])


def _squared_differences(values: npt.NDArray[np.float64], lag: int) -> float:
    """The mean squared difference of values `lag` apart, without the largest twentieth, in which changes of level and
    stalls are; as large as the whole mean where differences are normal."""
    squares = np.sort((values[lag:] - values[:-lag]) ** 2)
    return float(np.mean(squares[: len(squares) - ceil(TRIMMED * len(squares))])) / TRIMMED_MEAN


def _long_run_variance(values: npt.NDArray[np.float64]) -> float:
    """The variance γ(1 + ρ) / (1 − ρ) of an AR(1) process, from differences, which change points hardly touch.

    The mean squared differences over one and over two steps are 2γ(1 − ρ) and 2γ(1 − ρ²): their ratio less 1 is ρ
    (Chakar, Lebarbier, Lévy-Leduc, Robin, Bernoulli 2017).
    """
    single, double = _squared_differences(values, 1), _squared_differences(values, 2)
    correlation = 0.0 if single == 0 else min(max(0.0, double / single - 1), MAX_CORRELATION)
    return single / 2 * (1 + correlation) / (1 - correlation) ** 2
