"""`--repeats auto`, the decision: a table of cases, what is shown, and by simulation how often the intervals cover."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, log
from typing import Any

import pytest

from launch.sweep.auto_repeats import RepeatReason, describe_repeats, expected_half_width, more_repeats
from launch.sweep.spec import FIRST_REPEATS
from parse import stats

CI = 0.01
SPEEDS_2 = (98.0, 99.0, 100.0, 100.0, 101.0, 102.0)
"""Six runs from -2 % to +2 % around 100: half width 2 %, coefficient of variation 1.41 %."""


@pytest.mark.parametrize(
    ("speeds", "changes", "expected"),
    [
        ((), {}, ("few_runs", 6)),
        ((100.0, 101.0, 99.0), {}, ("few_runs", 3)),
        ((100.0,) * 5, {}, ("few_runs", 1)),
        ((100.0,) * 6, {}, ("narrow", 0)),
        ((99.1, 99.9, 100.0, 100.0, 100.1, 100.9), {}, ("narrow", 0)),
        (SPEEDS_2, {}, ("wide", 6)),  # twice as many at most
        (SPEEDS_2, {"ci": 0.0195}, ("wide", 3)),
        (SPEEDS_2, {"ci": 0.02}, ("narrow", 0)),
        (SPEEDS_2, {"max_repeats": 8}, ("wide", 2)),
        (SPEEDS_2, {"max_repeats": 6}, ("max_repeats", 0)),
        (SPEEDS_2, {"max_repeats": 6, "ci": 0.02}, ("narrow", 0)),
        (SPEEDS_2 * 2, {"ci": 0.005}, ("wide", 8)),  # 20 at most
        (SPEEDS_2 * 2, {"ci": 0.005, "max_repeats": 100}, ("wide", 12)),
        (SPEEDS_2 * 3, {"ci": 0.008, "max_repeats": 100}, ("wide", 12)),  # 30 runs: 0.47 of 1.6 %
        (SPEEDS_2, {"missing": 1}, ("not_ok", 0)),
        ((100.0,) * 6, {"missing": 1}, ("not_ok", 0)),
        ((), {"missing": 6}, ("not_ok", 0)),
    ],
)
def test_the_decision_follows_from_the_speeds(
    speeds: tuple[float, ...], changes: dict[str, Any], expected: tuple[str, int]
) -> None:
    decision = more_repeats(speeds, **({"ci": CI, "max_repeats": 20} | changes))
    assert (decision.reason, decision.more) == (RepeatReason(expected[0]), expected[1])
    assert decision.runs == len(speeds)


def test_the_figures_are_those_of_the_summary() -> None:
    decision = more_repeats(SPEEDS_2, CI, 20)
    interval = stats.median_interval(SPEEDS_2)
    assert interval is not None
    assert decision.half_width == pytest.approx((interval.high - interval.low) / 200)
    assert decision.scatter == stats.coefficient_of_variation(SPEEDS_2)
    assert more_repeats((99.0, 101.0), CI, 20).half_width is None  # min to max of two covers 50 %


def test_the_expected_half_width_falls_where_the_interval_gains_a_rank() -> None:
    """By the tables of normal order statistics (Harter 1961): 1.2672 for the largest of six, 0.9323 for the second of
    nine; of 20 runs the 15th."""
    assert expected_half_width(6) == pytest.approx(1.2672, abs=0.015)
    assert expected_half_width(9) == pytest.approx(0.9323, abs=0.005)
    assert expected_half_width(7) > expected_half_width(6) > expected_half_width(9) > expected_half_width(20)


@pytest.mark.parametrize(
    ("errors", "of_steps"),
    [
        ((), None),
        ((0.01, None, 0.01), None),
        ((0.0, 0.0, 0.0), 0.0),
        ((0.005, 0.005, 0.005), 0.25),
        ((0.01, 0.0, 0.0), 1 / 3),
        ((0.5, 0.5, 0.5), 1.0),
    ],
)
def test_the_part_of_steps_is_that_of_the_variance(errors: tuple[float | None, ...], of_steps: float | None) -> None:
    decision = more_repeats((99.0, 100.0, 101.0), CI, 20, step_errors=errors)  # scatter by 1 %
    assert decision.of_steps == (None if of_steps is None else pytest.approx(of_steps))


def test_every_decision_is_printed_with_its_figures() -> None:
    def text(*arguments: Any, **changes: Any) -> str:
        return describe_repeats(more_repeats(*arguments, **changes), arguments[1])

    assert text(SPEEDS_2, CI, 20) == "half width 2 % after 6 runs; between-run scatter 1.4 %; 6 more runs"
    assert text(SPEEDS_2, 0.02, 20) == "half width 2 % after 6 runs, at most 2 % as requested"
    assert text(SPEEDS_2, CI, 7, step_errors=[0.01] * 6) == (
        "half width 2 % after 6 runs; between-run scatter 1.4 %, 50 % of its square from steps within runs; 1 more run"
    )
    assert text(SPEEDS_2, CI, 6, step_errors=[0.012] * 6) == (
        "half width 2 % after 6 runs; between-run scatter 1.4 %, 72 % of its square from steps within runs: longer "
        "runs (--steps) would need fewer of them; not 1 %, and no more runs are allowed (--repeats auto:CI:MAX)"
    )
    assert text((99.0, 101.0), CI, 20) == "2 runs, too few for an interval of 95 %: 4 more"
    assert text((99.0,), CI, 20, 5) == "5 of 6 runs without a speed: none is added before these are looked at (retry)"


def test_the_error_of_a_series_respects_its_neighbours() -> None:
    """An AR(1) series with ρ = 0.6 has a mean with a variance of (1 + ρ) / (1 − ρ) = 4 times that of independent
    values: counted as independent the error would be half as large."""
    rng = random.Random(2)
    errors, means = [], []
    for _ in range(300):
        value, series = 0.0, []
        for _ in range(400):
            value = 0.6 * value + rng.gauss(0, 1)
            series.append(100 + value)
        error = stats.series_error(series)
        assert error is not None
        errors.append(error)
        means.append(stats.mean(series))
    true = stats.coefficient_of_variation(means)
    assert true is not None
    assert stats.mean(errors) == pytest.approx(true, rel=0.15)
    assert stats.series_error([1.0] * 39) is None and stats.series_error([1.0] * 40) == 0


def normal(rng: random.Random, scatter: float) -> float:
    return 100 * (1 + scatter * rng.gauss(0, 1))


def lognormal(rng: random.Random, scatter: float) -> float:
    return 100 * exp(3 * scatter * rng.gauss(0, 1)) if rng.random() < 0.1 else 100 * exp(scatter * rng.gauss(0, 1))


def slow_tail(rng: random.Random, scatter: float) -> float:
    """Most runs near the fastest, median 100."""
    return 100 * (1 + scatter * (log(2) - rng.expovariate(1)))


def two_modes(rng: random.Random, scatter: float) -> float:
    return 100 * (1 + scatter * (rng.choice((-0.5, 0.5)) + rng.gauss(0, 0.5)))


@pytest.mark.parametrize("draw", [normal, lognormal, slow_tail, two_modes])
def test_intervals_at_the_stop_cover_as_often_as_95_percent(draw: Callable[[random.Random, float], float]) -> None:
    """2,000 points, each with a scatter of its own from 0.3 to 2.5 %: at most one point below 95 %, which is two
    standard errors of the simulation; almost all of them reach the half width."""
    rng = random.Random(7)
    points, covered, narrow = 2_000, 0, 0
    for _ in range(points):
        scatter, speeds, more = rng.uniform(0.003, 0.025), [], FIRST_REPEATS
        while more:
            speeds += [draw(rng, scatter) for _ in range(more)]
            decision = more_repeats(speeds, CI, 60)
            more = decision.more
        interval = stats.median_interval(speeds)
        assert interval is not None and interval.coverage >= 0.95
        covered += interval.low <= 100 <= interval.high
        narrow += decision.reason is RepeatReason.NARROW
    assert covered / points >= 0.94
    assert narrow / points > 0.9
