"""What can be wrong with the measured windows of a point's runs: the rules that look at time inside a run."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
import numpy.typing as npt

from parse import stats
from parse.alarms.scaling import Beside
from parse.result import Result, Run

RATES_APART = 0.01
CLOCKS_APART = 0.01
DRIFT = 0.01
MIN_THIRD_STEPS = 10
LONG_STEP = 1.5
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
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
    pairs = [(pair[0] / pair[1] - 1, pair, run) for run in result.ok if (pair := _speeds_of_log(run))]
    worst = max(pairs, key=lambda candidate: abs(candidate[0]), default=None)
    if worst is not None and abs(worst[0]) > RATES_APART:
        apart, (rates, clock), run = worst
        yield (
            f"run {run.requested.run.repeat}: its log prints {rates:.2f} samples/s on average, {apart:+.1%} from the "
            f"{clock:.2f} by its time stamps; the time stamps' speed is the result"
        )
    yield from _stalls(result)


def _speeds_of_log(run: Run) -> tuple[float, float] | None:
    """The speed that a log prints and the one by its time stamps; None where it has only one of them."""
    log = run.attempt.log if run.attempt else None
    return (log.printed, log.wall_clock) if log and log.printed and log.wall_clock else None


def _stalls(result: Result) -> Iterator[str]:
    """In every run of traces, some steps are so long that the mean of the steps' rates exceeds the speed by more than
    the scatter of the other steps, and of the runs, explains.

    For step times with the relative standard deviation c, mean(1/t) * mean(t) = 1 + c² (exp(σ²) for a lognormal one),
    so every noisy window has a difference. σ comes from the quartiles of log t, which a quarter of long steps does not
    move. One run alone has no scatter between runs: its thirds stand for runs.
    """
    windows = [run.measured.step_s for run in result.ok if run.measured and not (run.attempt and run.attempt.log)]
    windows = [step_s for step_s in windows if len(step_s) and step_s.min() > 0]
    if not windows or result.median_speed is None:
        return
    parts = windows
    if len(windows) == 1:
        parts = np.array_split(windows[0], 3) if len(windows[0]) >= 3 * MIN_THIRD_STEPS else []
    interval = stats.median_interval([_excess(step_s) for step_s in parts])
    if interval is None or interval.low <= max(RATES_APART, _scatter(result)):
        return
    long_steps = sum(int((step_s >= LONG_STEP * np.median(step_s)).sum()) for step_s in windows)
    below = 1 - 1 / (1 + stats.median([_rates_apart(step_s) for step_s in windows]))
    yield (
        f"stalls: {long_steps} of {sum(map(len, windows))} measured steps take {LONG_STEP:g} × their run's median step "
        f"or more and bring the speed {below:.1%} below the mean of the steps' rates, beyond what the scatter of the "
        "other steps explains"
    )


def _rates_apart(step_s: npt.NDArray[np.float64]) -> float:
    """By how much the mean of the steps' rates exceeds the rate of the mean step, as a share."""
    return float(np.mean(1 / step_s) * np.mean(step_s)) - 1


def _excess(step_s: npt.NDArray[np.float64]) -> float:
    """What of `_rates_apart` lognormal noise as wide as the middle half of the steps does not explain."""
    low, high = np.quantile(np.log(step_s), (0.25, 0.75))
    return _rates_apart(step_s) - float(np.expm1(((high - low) / NORMAL_QUARTILES) ** 2))


def _scatter(result: Result) -> float:
    """Half of the interval of the median speed, as a share; 0 where there is none."""
    if result.interval is None or not result.median_speed:
        return 0.0
    return (result.interval.high - result.interval.low) / 2 / result.median_speed


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
            f"run {run.requested.run.repeat}: its window is too short for time stamps as coarse as its log's: they "
            f"leave {share:.1%} of the speed open; --window all or more steps make it longer"
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
        _thirds(window.step_s)
        for window in windows
        if len(window.step_s) * window.printed_every >= 3 * MIN_THIRD_STEPS and len(window.step_s) >= 6
    ]
    if not thirds or result.median_speed is None:
        return
    drift = stats.median([stats.median(last.tolist()) / stats.median(first.tolist()) - 1 for first, last in thirds])
    if abs(drift) <= max(DRIFT, _scatter(result)):
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
