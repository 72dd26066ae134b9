"""Change points of step times: where a run goes over from one level to another (PELT)."""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_SEGMENT = 5
"""The least number of values between two change points: fewer long steps are stalls."""
MIN_VALUES = 40
MAX_BINS = 4000
"""Of more values, change points are first looked for between so many bins: in a steady series PELT drops no start, so
that its time grows as the square of the positions."""
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
    (Killick, Fearnhead, Eckley 2012), which is exact; of more than MAX_BINS values over the positions between bins,
    then over those within a bin of one that is found. Stalls are clipped first: no value is farther than CLIP from
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
    return levels(logs - logs.mean(), PENALTY * log(n) * variance)


def levels(values: npt.NDArray[np.float64], penalty: float, max_bins: int = MAX_BINS) -> list[int]:
    """The change points of values, by `pelt` over at most `max_bins` bins, then near those that it finds."""
    n = len(values)
    bins = min(n, max_bins)
    positions = pelt(values, penalty, MIN_SEGMENT, np.arange(bins + 1) * n // bins)
    if bins == n or not positions:
        return positions
    near = np.add.outer(positions, np.arange(-(n // bins) - 1, n // bins + 2))
    return pelt(values, penalty, MIN_SEGMENT, np.union1d(near[(near > 0) & (near < n)], [0, n]))


def pelt(values: npt.NDArray[np.float64], penalty: float, min_segment: int, edges: npt.NDArray[np.int64]) -> list[int]:
    """The change points that minimise Σ (squares around the mean of the segment) + penalty · (number of change points),
    with at least `min_segment` values in each segment.

    They are among `edges`, which are ascending positions, the first 0 and the last the number of values.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])[edges]
    latest = np.searchsorted(edges, edges - min_segment, "right") - 1  # the last start of a segment that ends there
    beyond = np.searchsorted(edges, edges + min_segment)  # the first stop of one that begins there
    best = np.full(len(edges), np.inf)
    best[0] = -penalty
    previous = np.zeros(len(edges), np.int64)
    starts = np.empty(0, np.int64)

    def totals(stop: Any) -> npt.NDArray[np.float64]:
        """The least cost of the values up to `stop` by the start of their last segment, less its penalty and the sum of
        all squares; of several stops [n, 1], of each."""
        lengths = np.maximum(edges[stop] - edges[starts], 1)
        total: npt.NDArray[np.float64] = best[starts] - (sums[stop] - sums[starts]) ** 2 / lengths
        return total

    first = int(beyond[0])
    while first < len(edges):
        stops = np.arange(first, beyond[first])  # no segment is between two of them
        # A start that is worse than a change point at `new` stays so from where a segment that begins there may end.
        new = latest[first]
        starts = starts[(starts > latest[new]) | (totals(new) <= best[new])]
        starts = np.append(starts, np.arange(latest[first - 1] + 1, latest[stops[-1]] + 1))
        total = totals(stops[:, None])
        total[starts > latest[stops, None]] = np.inf
        at = total.argmin(axis=1)
        best[stops], previous[stops] = total[np.arange(len(stops)), at] + penalty, starts[at]
        first = int(beyond[first])
    positions: list[int] = []
    stop = int(previous[-1])
    while stop > 0:
        positions.append(int(edges[stop]))
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
