"""Where the level of a short series changes: E-divisive, made deterministic by Student's t-test.

The method is that of Apache Otava, formerly Hunter (Fleming et al., Hunter: Using Change Point Detection to Hunt for
Performance Regressions, ICPE 2023): candidates by the divergence of E-divisive (Matteson and James, A Nonparametric
Approach for Multiple Change Point Analysis of Multivariate Data, JASA 2014), accepted by a t-test in place of
permutations, first weakly in overlapping windows, then merged by significance and magnitude. No random number is drawn.

Otava tests a candidate against all that follows up to the next change, in which a loss that was made good again cancels
out: it does not see half of the steps of 5 % that last for 10 of 30 measurements. Here the values up to the end that
E-divisive itself chooses are tested too, by a stricter limit (`temporary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from parse import stats

Floats = npt.NDArray[np.float64]
TestOfMeans = Callable[[Floats, Floats], float]

MAX_P_VALUE = 0.001
WEAK = 10
"""Weak change points may have a p-value so many times larger: the series around them is not yet divided."""
STRICT = 10
"""A change that only a temporary level shows needs a p-value so many times smaller: there are many such levels."""
MIN_LEVEL = 3
"""The least number of values of a temporary level and before it: fewer are outliers."""
WINDOW = 50
"""Values that are divided together. Windows overlap by half, so that old changes do not hide new ones."""


@dataclass(frozen=True, kw_only=True)
class LevelChange:
    """The level of a series changes: `at` is the position of the first value of the new level.

    `before` and `after` are the means up to the neighbouring changes, `p_value` that of their t-test.
    """

    at: int
    before: float
    after: float
    p_value: float

    @property
    def size(self) -> float:
        """The relative change of the level, negative for a fall."""
        return self.after / self.before - 1

    @property
    def magnitude(self) -> float:
        """The relative change, seen from the level from which it is larger."""
        return max(abs(self.size), abs(self.before / self.after - 1))


def t_test(values: Floats, others: Floats) -> float:
    """The two-sided p-value of Student's t-test with pooled variance; 1 for fewer than three values, and for equal
    means without scatter."""
    freedom = len(values) + len(others) - 2
    difference = float(others.mean() - values.mean())
    if freedom < 1 or difference == 0:
        return 1.0
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (values, others))
    error = sqrt(squares / freedom * (1 / len(values) + 1 / len(others)))
    return stats.student_p(abs(difference) / error if error else inf, freedom)


def changes(
    values: Sequence[float],
    min_magnitude: float = 0.0,
    *,
    max_p_value: float = MAX_P_VALUE,
    window: int = WINDOW,
    test: TestOfMeans = t_test,
    temporary: bool = True,
) -> tuple[LevelChange, ...]:
    """The changes of level of positive values [n], ascending. Each has a p-value below `max_p_value` and a magnitude
    above `min_magnitude`. Without `temporary` the method is Otava's."""
    series = np.asarray(values, np.float64)
    positions = weak_changes(series, max_p_value, window, test, temporary=temporary)
    return _merged(series, positions, max_p_value, min_magnitude, test)


def weak_changes(series: Floats, max_p_value: float, window: int, test: TestOfMeans, *, temporary: bool) -> list[int]:
    """The positions of the weak changes of all windows, before they are merged. A window begins half a window after the
    one before it, or at that window's last change, where this is later."""
    positions: set[int] = set()
    start = 0
    while start < len(series):
        divided = [start + at for at in _divided(series[start : start + window], max_p_value, test, temporary)]
        positions.update(divided)
        start = max([start + window // 2, *divided[-1:]])
    return sorted(positions)


def _divided(series: Floats, max_p_value: float, test: TestOfMeans, temporary: bool) -> list[int]:
    """Divides where the divergence is largest, as long as both sides of that position differ."""
    positions: list[int] = []
    while True:
        edges = [0, *positions, len(series)]
        candidates = [
            (*most_divergent(series[start:stop]), start, stop) for start, stop in pairwise(edges) if stop - start > 1
        ]
        if not candidates:
            return positions
        _, at, end, start, stop = max(candidates, key=lambda candidate: candidate[0])
        before, after = series[start : start + at], series[start + at : stop]
        level = series[start + at : start + end]
        is_temporary = (
            temporary and min(len(before), len(level)) >= MIN_LEVEL and test(before, level) <= max_p_value / STRICT
        )
        if not is_temporary and test(before, after) > WEAK * max_p_value:
            return positions
        positions = sorted([*positions, start + at])


def most_divergent(series: Floats) -> tuple[float, int, int]:
    """The largest divergence between values [:at] and [at:stop], with that `at` and `stop`.

    With n and m values in the two parts, it is n·m / (n + m) times (2 × the mean distance between the parts − the
    mean distances within each), Matteson and James, equations 5 and 7.
    """
    count = len(series)
    total = np.zeros((count + 1, count + 1))  # [i, j]: the distances between series[:i] and series[:j]
    total[1:, 1:] = np.abs(series[:, None] - series[None, :]).cumsum(axis=0).cumsum(axis=1)
    at, stop = np.arange(1, count)[:, None], np.arange(2, count + 1)[None, :]
    inside = total[at, at] / 2
    between = total[at, stop] - total[at, at]
    behind = total[stop, stop] / 2 - inside - between
    n, m = at, stop - at
    divergence = 2 / (n + m) * (between - m * inside / np.maximum(n - 1, 1) - n * behind / np.maximum(m - 1, 1))
    divergence[np.broadcast_to(m < 1, divergence.shape)] = -np.inf
    best = int(np.argmax(divergence))
    return float(divergence.flat[best]), best // (count - 1) + 1, best % (count - 1) + 2


def _merged(
    series: Floats, positions: list[int], max_p_value: float, min_magnitude: float, test: TestOfMeans
) -> tuple[LevelChange, ...]:
    """Removes the weakest change, by p-value and then by magnitude, until all are significant and large enough."""
    while True:
        edges = [0, *positions, len(series)]
        parts = [series[start:stop] for start, stop in pairwise(edges)]
        remaining = [
            LevelChange(at=at, before=float(before.mean()), after=float(after.mean()), p_value=test(before, after))
            for at, before, after in zip(positions, parts, parts[1:], strict=False)
        ]
        if not remaining:
            return ()
        weakest = max(remaining, key=lambda change: change.p_value)
        if weakest.p_value < max_p_value:
            weakest = min(remaining, key=lambda change: change.magnitude)
            if weakest.magnitude > min_magnitude:
                return tuple(remaining)
        positions = [at for at in positions if at != weakest.at]
