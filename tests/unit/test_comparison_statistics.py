"""The interval of a ratio, the number of runs that tells, change points, outlying runs: exact cases and simulations."""

from __future__ import annotations

from itertools import combinations
from math import ceil, comb

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parse import stats
from parse.alarms.windows import MAX_BINS, MIN_SEGMENT, MIN_VALUES, change_points, levels, pelt
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
from tests.truth.comparisons import DISTRIBUTIONS, KINDS, advice, coverage, false_alarms, false_calls, located, main
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


def test_five_runs_a_side_by_hand():
    interval = ratio_interval([100, 101, 102, 103, 104], [90, 91, 92, 93, 94])
    ratios = sorted(new / base for new in range(90, 95) for base in range(100, 105))
    assert interval == RatioInterval(ratio=92 / 102, low=ratios[2], high=ratios[-3], coverage=1 - 8 / 252)


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


def test_without_an_interval_there_is_no_verdict():
    assert of_pair(None, 0.03) == of_reference(None, 0.03) == ComparisonVerdict.CANNOT_TELL


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


def test_a_wrong_interval_would_be_noticed():
    """Half as wide, it covers far less than 93 %."""
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        interval = ratio_interval(*generator.normal(100, 1, (2, 5)).tolist())
        assert interval is not None
        hits += abs(interval.ratio - 1) < (interval.high - interval.low) / 4
    assert hits / 300 < 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_equal_sides_are_called_different_in_at_most_five_of_a_hundred(kind):
    assert false_calls(kind, 600, 5) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "autocorrelated", "two-mode"])
def test_a_true_difference_is_called_with_the_runs_that_were_named(kind):
    """In normal runs few of the points are open after five runs: 500 points give 51."""
    figures = advice(kind, 500, 0.97)
    assert figures.advised > 50 and figures.called >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_change_points_where_the_level_changes_and_none_where_it_does_not(kind):
    assert false_alarms(kind, 200) <= 0.05
    assert located(kind, 100, 2.0) >= 0.9


@pytest.mark.slow
def test_the_command_says_what_is_not_as_required(capsys):
    assert main(["--points", "40"]) in (0, 1)
    printed = capsys.readouterr().out
    assert "normal, 5 runs: coverage" in printed and "located within 2 steps" in printed


def exhaustive(values: np.ndarray, penalty: float, min_segment: int) -> list[int]:
    """The change points of least cost, by trying every start of every last segment."""

    def cost(start: int, stop: int) -> float:
        return float(((values[start:stop] - values[start:stop].mean()) ** 2).sum()) + penalty

    best: list[tuple[float, list[int]]] = [(-penalty, [])] + [(np.inf, [])] * len(values)
    for stop in range(min_segment, len(values) + 1):
        costs = [best[start][0] + cost(start, stop) for start in range(stop - min_segment + 1)]
        start = int(np.argmin(costs))
        best[stop] = costs[start], [*best[start][1], *([start] if start else [])]
    return best[-1][1]


@pytest.mark.parametrize("seed", [*range(15), 121, 178, 473, 579])
def test_pelt_is_exact(seed):
    """Levels, and outliers in the last segment: where a start is worse than another, but for the values behind it."""
    generator = np.random.default_rng(seed)
    values = generator.normal(0, 1, 40) + np.repeat(generator.normal(0, 3, 8), 5)
    values[-4:] += generator.normal(0, 6)
    assert pelt(values, 4.0, 5, np.arange(41)) == exhaustive(values, 4.0, 5)


SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(100, 300), st.integers(20, 90), st.floats(1, 9))
def test_bins_have_no_change_point_where_values_have_none(seed, n, bins, penalty):
    """So a steady series has one no more often than it would by all positions."""
    values = np.random.default_rng(seed).normal(0, 1, n)
    assert levels(values, penalty, n) or levels(values, penalty, bins) == []


@given(SEEDS, st.lists(st.integers(40, 200), min_size=1, max_size=4), st.integers(30, 300))
@example(0, [40, 40, 144], 60)  # a change within a bin, whose mean is like a level between the two
def test_bins_find_the_levels_that_values_find(seed, lengths, bins):
    generator = np.random.default_rng(seed)
    values = np.repeat(np.cumsum(generator.choice([-12.0, 12.0], len(lengths))), lengths)
    values += generator.normal(0, 1, len(values))
    assert levels(values, 30.0, bins) == levels(values, 30.0, len(values)) == np.cumsum(lengths)[:-1].tolist()


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.sampled_from([*DISTRIBUTIONS]), st.integers(MAX_BINS + 1, 100_000), st.floats(0.1, 0.9))
def test_a_level_of_a_long_run_is_found_within_a_bin(seed, kind, steps, part):
    change = round(part * steps)
    step_s = np.where(np.arange(steps) < change, 1.5, 1.0) * DISTRIBUTIONS[kind](np.random.default_rng(seed), steps)
    positions = change_points(step_s)
    assert len(positions) == 1 and abs(positions[0] - change) <= ceil(steps / MAX_BINS)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_a_long_steady_run_has_no_change_point(kind):
    assert change_points(DISTRIBUTIONS[kind](np.random.default_rng(0), 50_000)) == []


def test_change_points_by_hand():
    level = np.repeat([1.5, 1.0], [20, 80])
    assert change_points(level) == [20]
    assert change_points(np.ones(100)) == []
    assert change_points(level[: MIN_VALUES - 1]) == []
    stalls = np.ones(100)
    stalls[[30, 60]] = 10
    assert change_points(stalls) == []
    assert MIN_SEGMENT == 5


def test_outlying_values():
    assert stats.outlying([*FIVE[:4], 80.0]) == (4,)
    assert stats.outlying(FIVE) == () and stats.outlying([100, 50, 25]) == () and stats.outlying([]) == ()
    assert stats.outlying([100.0] * 4 + [99.0]) == () and stats.outlying([100.0] * 4 + [97.0]) == (4,)


def test_normal_samples_have_outlying_values_in_at_most_about_five_of_a_hundred():
    generator = np.random.default_rng(0)
    for n in (4, 5, 6, 8, 12):
        samples = generator.normal(100, 3, (800, n)).tolist()
        assert np.mean([bool(stats.outlying(values)) for values in samples]) <= 0.065
