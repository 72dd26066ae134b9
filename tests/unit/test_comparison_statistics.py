"""The interval of a ratio, the number of runs that tells, outlying runs: exact cases and simulations."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from parse import stats
from parse.comparison.types import (
    MAX_EXACT_PAIRS,
    MAX_RUNS,
    ComparisonVerdict,
    RatioInterval,
    least_runs,
    least_single_runs,
    of_pair,
    of_reference,
    ratio_interval,
    runs_to_tell,
    single_interval,
)
from tests.truth.comparisons import KINDS, advice, coverage, false_calls
from tests.unit.comparisons import FIVE, times


def by_counting(n: int, m: int, k: int) -> float:
    """The probability that k − 1 or fewer of the n·m pairs have the new value below, by looking at every order."""
    below = 0
    for base in combinations(range(n + m), n):
        new = [rank for rank in range(n + m) if rank not in base]
        below += sum(value < reference for value in new for reference in base) < k
    return below / comb(n + m, n)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (4, 4), (3, 4), (4, 6), (6, 3)])
def test_the_coverage_is_that_of_all_orders(n, m):
    base, new = np.linspace(1, 2, n).tolist(), np.linspace(3.1, 4.7, m).tolist()
    interval = ratio_interval(base, new)
    assert interval is not None
    ratios = sorted(value / reference for value in new for reference in base)
    k = ratios.index(interval.low) + 1
    assert interval.high == ratios[-k]
    assert interval.coverage == pytest.approx(1 - 2 * by_counting(n, m, k))
    assert interval.coverage >= 0.95 or k == 1
    assert 1 - 2 * by_counting(n, m, k + 1) < 0.95


@pytest.mark.parametrize(("base", "new"), [([], []), ([1.0], []), ([1.0], [2.0]), ([1, 2, 3], [1, 2, 3])])
def test_too_few_runs_have_no_interval(base, new):
    assert ratio_interval(base, new) is None


def test_the_least_numbers_of_runs():
    assert least_runs() == 4 and ratio_interval([1] * 3, [1] * 3) is None and ratio_interval([1] * 4, [1] * 4)
    assert least_single_runs() == 5 and single_interval([1] * 4, 1) is None
    assert single_interval([9, 10, 11, 12, 13], 10) == RatioInterval(ratio=1.1, low=0.9, high=1.3, coverage=0.9375)


def test_beyond_the_exact_count_the_normal_distribution_takes_over_without_a_jump():
    runs = int(MAX_EXACT_PAIRS**0.5)
    speeds = np.random.default_rng(0).normal(100, 1, (2, runs + 1))
    exact = ratio_interval(speeds[0, :runs].tolist(), speeds[1, :runs].tolist())
    normal = ratio_interval(speeds[0].tolist(), speeds[1].tolist())
    assert exact and normal and normal.low == pytest.approx(exact.low, abs=1e-3)
    assert normal.high == pytest.approx(exact.high, abs=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "pair", "reference"),
    [
        (0.98, 1.02, ComparisonVerdict.SAME, ComparisonVerdict.SAME),
        (0.97, 1.03, ComparisonVerdict.SAME, ComparisonVerdict.SAME),
        (0.98, 0.99, ComparisonVerdict.SAME, ComparisonVerdict.SAME),
        (0.90, 0.96, ComparisonVerdict.SLOWER, ComparisonVerdict.SLOWER),
        (0.95, 0.99, ComparisonVerdict.SLOWER, ComparisonVerdict.CANNOT_TELL),
        (0.95, 1.00, ComparisonVerdict.CANNOT_TELL, ComparisonVerdict.CANNOT_TELL),
        (0.98, 1.05, ComparisonVerdict.CANNOT_TELL, ComparisonVerdict.SAME),
        (1.01, 1.05, ComparisonVerdict.FASTER, ComparisonVerdict.SAME),
        (1.04, 1.05, ComparisonVerdict.FASTER, ComparisonVerdict.FASTER),
        (0.90, 1.10, ComparisonVerdict.CANNOT_TELL, ComparisonVerdict.CANNOT_TELL),
    ],
)
def test_verdicts(low, high, pair, reference):
    interval = RatioInterval(ratio=(low + high) / 2, low=low, high=high, coverage=0.95)
    assert (of_pair(interval, 0.03), of_reference(interval, 0.03)) == (pair, reference)


def test_more_scatter_and_a_smaller_threshold_take_more_runs():
    near, far = (times(1, (100, 100 + width, 100 - width)) for width in (0.5, 2))
    assert runs_to_tell((near, near), 0.03) < runs_to_tell((far, far), 0.03)
    assert runs_to_tell((near, near), 0.03) < runs_to_tell((near, near), 0.005)
    assert runs_to_tell((near, near), 1e-5) is None
    assert runs_to_tell(([100.0], [100.0]), 0.03) is None
    assert runs_to_tell(([100.0, 100.0], [100.0]), 0.03) == least_runs()
    assert 2 <= (runs_to_tell((near,), 0.03) or 0) <= MAX_RUNS


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_the_truth(kind):
    """Expected are the exact 96.8 % of five runs: 600 points have a standard error of 0.7 %."""
    assert coverage(kind, 600, 5, 0.97) == pytest.approx(0.968, abs=0.025)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_sides_are_called_different_in_at_most_five_of_a_hundred(kind):
    assert false_calls(kind, 600, 5) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "autocorrelated", "two-mode"])
def test_a_true_difference_is_called_with_the_runs_that_were_named(kind):
    """In normal runs few of the points are open after five runs: 500 points give 51."""
    figures = advice(kind, 500, 0.97)
    assert figures.advised > 50 and figures.called >= 0.9


def test_outlying_values():
    assert stats.outlying([*FIVE[:4], 80.0]) == (4,)
    assert stats.outlying(FIVE) == () and stats.outlying([100, 50, 25]) == () and stats.outlying([]) == ()
    assert stats.outlying([100.0] * 4 + [99.0]) == () and stats.outlying([100.0] * 4 + [97.0]) == (4,)


def test_normal_samples_have_outlying_values_in_at_most_about_five_of_a_hundred():
    generator = np.random.default_rng(0)
    for n in (4, 5, 6, 8, 12):
        samples = generator.normal(100, 3, (800, n)).tolist()
        assert np.mean([bool(stats.outlying(values)) for values in samples]) <= 0.065


def test_without_an_interval_there_is_no_verdict():
    assert of_pair(None, 0.03) == of_reference(None, 0.03) == ComparisonVerdict.CANNOT_TELL
