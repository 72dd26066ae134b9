"""`--repeats auto`: how many more runs a point gets, a decision from the speeds of its runs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import NormalDist
from typing import Final

from parse import stats
from parse.comparison.ratio import upper_scatter

AUTO: Final = "auto"
CONFIDENCE = 0.95
FIRST_REPEATS = 6
"""The runs of every point before the first decision: the least number whose median has an interval of 95 %."""
DEFAULT_CI, DEFAULT_MAX_REPEATS = 0.01, 20
MAX_GROWTH = 2
"""A decision at most multiplies the runs by this: the scatter that it is planned with is that of few runs."""


class RepeatReason(StrEnum):
    """The reason why a point gets more runs, or none."""

    NOT_OK = "not_ok"  # a run did not end ok, or has no speed: a person must look first
    NARROW = "narrow"  # the interval is as narrow as requested
    MAX_REPEATS = "max_repeats"  # it is not, and there are as many runs as allowed
    WIDE = "wide"  # it is not: more runs
    FEW_RUNS = "few_runs"  # too few runs for an interval: more runs


@dataclass(frozen=True, kw_only=True)
class RepeatDecision:
    """How many runs are added to a point that has `runs` of them with a speed, and `missing` without.

    `half_width` is half of the 95 % interval of the median speed, as a share of the median; None without an interval.
    `scatter` is the coefficient of variation of the runs, None for fewer than two. `of_steps` is the share of its
    square that the scatter of steps within runs explains; None where runs have too few steps to tell.
    """

    reason: RepeatReason
    runs: int
    missing: int = 0
    more: int = 0
    half_width: float | None = None
    scatter: float | None = None
    of_steps: float | None = None


def more_repeats(
    speeds: Sequence[float], ci: float, max_repeats: int, missing: int = 0, step_errors: Sequence[float | None] = ()
) -> RepeatDecision:
    """Decides by the first reason that holds; see RepeatReason.

    `speeds` are those of the ok runs, positive; `ci` is the requested half width as a share. `missing` runs have none.
    `step_errors` has for each run the relative standard error of its speed that the scatter of its steps makes
    (`stats.series_error`), None where that is not known.

    Runs are the highest level of repetition: the scatter between them contains that of steps within them, and only
    more runs average it (Kalibera and Jones, Rigorous benchmarking in reasonable time, 2013, 6.1). Their number is
    planned with the scatter at the upper end of its interval: planned with the scatter itself, points would stop
    because they happen to scatter little, and their intervals cover less than 95 % (tests/unit/test_repeats.py).
    """
    runs = len(speeds)
    scatter = stats.coefficient_of_variation(speeds)
    interval = stats.median_interval(speeds)
    half_width, planned, reason = None, FIRST_REPEATS, RepeatReason.FEW_RUNS
    if interval is not None and interval.coverage >= CONFIDENCE:
        assert scatter is not None  # positive speeds, six or more
        half_width = (interval.high - interval.low) / 2 / stats.median(speeds)
        reason = RepeatReason.NARROW if half_width <= ci else RepeatReason.WIDE
        if reason is RepeatReason.WIDE:
            upper = upper_scatter(scatter**2 * (runs - 1), runs - 1)
            planned = max(runs + 1, _runs_for(ci / upper, MAX_GROWTH * runs))
    if missing:
        reason = RepeatReason.NOT_OK
    elif reason is not RepeatReason.NARROW and runs >= max_repeats:
        reason = RepeatReason.MAX_REPEATS
    adds = reason in (RepeatReason.WIDE, RepeatReason.FEW_RUNS)
    return RepeatDecision(
        reason=reason, runs=runs, missing=missing, more=min(planned, max_repeats) - runs if adds else 0,
        half_width=half_width, scatter=scatter, of_steps=_share_of_steps(scatter, step_errors),
    )  # fmt: skip


def _runs_for(wanted: float, max_runs: int) -> int:
    """The least number of runs, at most `max_runs`, with an interval of this expected half width, in standard
    deviations."""
    return next((runs for runs in range(FIRST_REPEATS, max_runs) if expected_half_width(runs) <= wanted), max_runs)


@cache
def expected_half_width(runs: int) -> float:
    """Half of the interval of the median of so many normal runs, in standard deviations: the expected value of the
    order statistic at its end (Blom 1958)."""
    interval = stats.median_interval(range(1, runs + 1))
    assert interval is not None
    return NormalDist().inv_cdf((interval.high - 0.375) / (runs + 0.25))


def _share_of_steps(scatter: float | None, step_errors: Sequence[float | None]) -> float | None:
    """The part of the squared scatter that steps explain, at most 1; None where it is not known of every run."""
    errors = [error for error in step_errors if error is not None]
    if not scatter or not errors or len(errors) < len(step_errors):
        return None
    return min(1.0, stats.mean([error**2 for error in errors]) / scatter**2)
