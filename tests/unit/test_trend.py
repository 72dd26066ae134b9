"""Change points of short series: against Apache Otava's answers, exhaustively, exact cases, simulated truth."""

from __future__ import annotations

import json
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest

from parse import stats
from parse.trend.series import changes, most_divergent, t_test, weak_changes
from tests.truth.histories import false_alarms, located

OTAVA = json.loads((Path(__file__).parent / "trend/otava-0.8.0.json").read_text())


def t_test_of_otava(values: np.ndarray, others: np.ndarray) -> float:
    """Otava divides sums of squares by n where Student's test divides them by n − 1."""
    freedom = len(values) + len(others) - 2
    difference = float(others.mean() - values.mean())
    if freedom < 1 or difference == 0:
        return 1.0
    squares = (len(values) - 1) * values.var() + (len(others) - 1) * others.var()
    error = sqrt(squares / freedom * (1 / len(values) + 1 / len(others)))
    return stats.student_p(abs(difference) / error if error else inf, freedom)


@pytest.mark.parametrize("case", OTAVA, ids=range(len(OTAVA)))
def test_random_series_have_the_changes_that_otava_finds(case):
    """Answers of apache-otava 0.8.0 with one line of its merge corrected: it computes anew the two changes behind a
    removed one, in place of one on either side, so that a change may keep a p-value that is no longer true."""
    series = np.array(case["values"])
    assert weak_changes(series, t_test_of_otava, temporary=False) == case["weak"]
    computed = changes(case["values"], case["min_magnitude"], test=t_test_of_otava, temporary=False)
    assert [change.at for change in computed] == [at for at, _, _ in case["changes"]]
    for change, (_, p_value, size) in zip(computed, case["changes"], strict=True):
        assert change.p_value == pytest.approx(p_value, rel=1e-4, abs=1e-13)
        assert change.size == pytest.approx(size, rel=1e-5)


def test_the_divergence_is_largest_where_the_definition_says():
    """Matteson and James, equations 5 and 7, written out."""
    generator = np.random.default_rng(3)

    def mean_within(part: np.ndarray) -> float:
        pairs = [abs(a - b) for at, a in enumerate(part) for b in part[:at]]
        return float(np.mean(pairs)) if pairs else 0.0

    for count in (2, 3, 4, 7, 12):
        series = generator.standard_normal(count)
        by_definition = {}
        for at in range(1, count):
            for stop in range(at + 1, count + 1):
                before, after = series[:at], series[at:stop]
                n, m = len(before), len(after)
                apart = 2 * np.mean(np.abs(before[:, None] - after[None, :]))
                by_definition[at, stop] = n * m / (n + m) * (apart - mean_within(before) - mean_within(after))
        best = max(by_definition, key=by_definition.__getitem__)
        divergence, *position = most_divergent(series)
        assert tuple(position) == best and divergence == pytest.approx(by_definition[best])


def test_the_t_test_by_hand():
    """Means 2 and 5, pooled variance 1, t = 3 / sqrt(2/3) 4 degrees of freedom, whose distribution is algebraic."""
    sine = (27 / 2 / (4 + 27 / 2)) ** 0.5
    expected = 1 - sine * (1 + (1 - sine**2) / 2)
    assert t_test(np.array([1.0, 2, 3]), np.array([4.0, 5, 6])) == pytest.approx(expected)


@pytest.mark.parametrize(("confidence", "freedom"), [(0.9, 1), (0.95, 2), (0.999, 7), (0.99, 30), (0.5, 201)])
def test_the_p_value_turns_the_quantile_round(confidence, freedom):
    assert stats.student_p(stats.student(confidence, freedom), freedom) == pytest.approx(1 - confidence, rel=1e-9)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [3.0] * 40, [1.0] * 10 + [1.0 + 1e-9] * 10])
def test_nothing_changes_where_there_is_nothing_to_see(values):
    assert changes(values, 0.03) == ()


def test_levels_without_scatter_change_where_they_change():
    (change,) = changes([100.0] * 7 + [95.0] * 5, 0.03)
    assert (change.at, change.before, change.after, change.p_value) == (7, 100, 95, 0)
    assert change.size == pytest.approx(-0.05) and change.magnitude == pytest.approx(5 / 95)


def test_small_changes_are_merged_before_they_hide_a_large_one():
    values = [100.0, 100.1] * 10 + [90.0, 90.1] * 10 + [90.5, 90.6] * 10
    assert [change.at for change in changes(values)] == [20, 40]
    (change,) = changes(values, 0.03)
    assert change.at == 20 and change.after == pytest.approx(90.3)


def test_old_changes_do_not_hide_new_ones():
    levels = (100.0, 80.0, 100.0, 80.0, 95.0)
    values = [level + shift for level in levels for shift in (0.3, -0.3) * 20]
    assert [change.at for change in changes(values, 0.03)] == [40, 80, 120, 160]


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 20, 50])
def test_equal_measurements_raise_an_alarm_in_less_than_five_of_a_hundred_series(count):
    assert false_alarms("normal", 1000, count) < 0.05
    assert false_alarms("normal", 1000, count, 0.03, scatter=0.05) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("count", "slower"), [(10, 5), (20, 10), (20, 2), (50, 25), (50, 2)])
def test_a_step_of_five_percent_is_located_within_two_measurements(count, slower):
    """With the last two measurements slower, it is also called no later than at the second of them."""
    assert located("normal", 500, count, slower) >= 0.95


def test_a_loss_that_was_made_good_is_two_changes_which_otava_does_not_see():
    values = [100.0, 100.2] * 3 + [90.0, 90.2] * 3 + [100.0, 100.2] * 3
    assert [change.at for change in changes(values, 0.03)] == [6, 12]
    assert changes(values, 0.03, temporary=False) == ()


def test_a_single_value_far_off_is_no_temporary_level():
    values = [100.0, 100.2, 99.9, 100.1] * 5
    assert changes([*values, 95.0, *values], 0.03) == ()
    assert [change.at for change in changes([*values, 95.0, 95.1, 94.9, *values], 0.03)] == [20, 23]
