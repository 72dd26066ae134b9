"""What can be wrong with the measured windows of a point's runs: the rules that look at time inside a run."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
import numpy.typing as npt

from parse import stats
from parse.alarms_scaling import Beside
from parse.result import Result, Run

RATES_APART = 0.01
CLOCKS_APART = 0.01
DRIFT = 0.01
MIN_THIRD_STEPS = 10
BATCHES = 5
STEADY_SCORE = 2.5
"""With one run, only thirds whose batches do not overlap at all exceed it: 2 chances in 252 for a steady window."""


def rates_and_wall_clock(result: Result, _: Beside) -> Iterator[str]:
    """Means of rates, or what a log or a document prints, against what the clock says."""
    claimed = result.published
    if claimed and claimed.wall_clock and claimed.median:
        apart = claimed.median / claimed.wall_clock - 1
        if abs(apart) > RATES_APART:
            yield (
                f"it reports {claimed.median:.2f} samples/s, but {claimed.wall_clock_from} "
                f"are {claimed.wall_clock:.2f} by the clock: {apart:+.1%} apart"
            )
    pairs = [(pair[0] / pair[1] - 1, pair, run) for run in result.ok if (pair := _two_speeds(run))]
    worst = max(pairs, key=lambda one: abs(one[0]), default=None)
    if worst is None or abs(worst[0]) <= RATES_APART:
        return
    apart, (rates, clock), run = worst
    if run.attempt and run.attempt.log:
        yield (
            f"run {run.asked.run.repeat}: its log prints {rates:.2f} samples/s on average, {apart:+.1%} from the "
            f"{clock:.2f} by its time stamps; the time stamps' speed is the result"
        )
    else:
        yield (
            f"run {run.asked.run.repeat}: the mean of the steps' rates is {apart:+.1%} from the wall clock's speed: "
            "its steps differ much in length; the wall clock's speed is the result"
        )


def _two_speeds(run: Run) -> tuple[float, float] | None:
    """Of a run, the mean of its rates and its speed by the clock; None where it has only one of them."""
    if run.attempt and run.attempt.log:
        log = run.attempt.log
        return (log.printed, log.wall_clock) if log.printed and log.wall_clock else None
    measured = run.measured
    if measured is None or measured.mean_of_rates is None:
        return None
    return measured.mean_of_rates, measured.throughput


def loose_clocks(result: Result, _: Beside) -> Iterator[str]:
    """The speed is not known to 1 %, because clocks agree badly or time stamps are coarse for so short a window."""
    worst = max(
        ((run.measured.clock_share, run) for run in result.ok if run.measured),
        key=lambda pair: pair[0],
        default=None,
    )
    if worst is None or worst[0] <= CLOCKS_APART:
        return
    share, run = worst
    if run.attempt and run.attempt.log:
        yield (
            f"run {run.asked.run.repeat}: its window is too short for time stamps as coarse as its log's: they leave "
            f"{share:.1%} of the speed open; --window all or more steps make it longer"
        )
    else:
        yield f"the ranks' clocks are known so loosely that they leave {share:.1%} of the speed open"


def unsteady(result: Result, _: Beside) -> Iterator[str]:
    """First and last third of the windows differ, beyond the runs' scatter.

    Each third of a run's step times is cut into batches (neighbouring steps are alike, batches less so) and their
    medians compared by rank sums (Mann and Whitney 1947), added up over the runs (van Elteren 1960). Where a log prints
    every few steps only, a third has fewer batches, at least two.
    """
    windows = [run.measured for run in result.ok if run.measured]
    thirds = [
        _thirds(one.step_s)
        for one in windows
        if len(one.step_s) * one.printed_every >= 3 * MIN_THIRD_STEPS and len(one.step_s) >= 6
    ]
    if not thirds or result.median_speed is None:
        return
    drift = stats.median([stats.median(last.tolist()) / stats.median(first.tolist()) - 1 for first, last in thirds])
    scatter = (result.interval.high - result.interval.low) / 2 / result.median_speed if result.interval else 0.0
    if abs(drift) <= max(DRIFT, scatter):
        return
    beyond, variance = 0.0, 0.0
    for first, last in thirds:
        batches = min(BATCHES, len(first))
        beyond += _wins(_batch_medians(first, batches), _batch_medians(last, batches)) - batches**2 / 2
        variance += batches**2 * (2 * batches + 1) / 12
    if abs(beyond) / sqrt(variance) > STEADY_SCORE:
        yield f"the window is not steady: steps of its last third take {drift:+.1%} against its first"


def _thirds(step_s: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    third = len(step_s) // 3
    return step_s[:third], step_s[-third:]


def _batch_medians(step_s: npt.NDArray[np.float64], batches: int) -> npt.NDArray[np.float64]:
    return np.array([np.median(batch) for batch in np.array_split(step_s, batches)])


def _wins(first: npt.NDArray[np.float64], last: npt.NDArray[np.float64]) -> float:
    """How many pairs have the larger value in the last third; ties count half."""
    return float((last[:, None] > first).sum() + (last[:, None] == first).sum() / 2)
