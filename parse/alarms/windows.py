"""Alarms about the measured windows of a point's runs: the rules about time inside a run."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from hpc.model.findings import FigureValues
from parse import stats
from parse.alarms.scaling import Neighbours
from parse.change_points import change_points
from parse.result import Result

RATES_APART = 0.01
STEADY_APART = 0.05
CLOCKS_APART = 0.01
DRIFT = 0.01
MIN_THIRD_STEPS = 10
LONG_STEP = 1.5
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
BATCHES = 5
STEADY_SCORE = 2.5
"""With one run, only thirds whose batches do not overlap at all exceed it: 2 chances in 252 for a steady window."""


def rates_and_wall_clock(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """The speed that a document or a log prints, or the mean of a trace's rates, is not the speed by the clock."""
    published = result.published
    if published and published.wall_clock and published.median:
        difference = published.median / published.wall_clock - 1
        if abs(difference) > RATES_APART:
            yield {
                "source": "document",
                "printed": published.median,
                "wall_clock": published.wall_clock,
                "wall_clock_from": published.wall_clock_from,
                "difference": difference,
            }
    worst: FigureValues = {}
    highest = RATES_APART
    for run in result.ok:
        if (log := run.attempt and run.attempt.log) and log.printed and log.wall_clock:
            difference = log.printed / log.wall_clock - 1
            if abs(difference) > highest:
                highest, numbers = abs(difference), {"printed": log.printed, "wall_clock": log.wall_clock}
                worst = {"source": "log", "run": run.requested.run.repeat, "difference": difference, **numbers}
    if worst:
        yield worst
    yield from _stalls(result)


def window_and_steady_run(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """The protocol's window of a log is faster or slower than the log's whole run from there on, pauses left out."""
    worst: FigureValues = {}
    highest = STEADY_APART
    for run in result.ok:
        log = run.attempt and run.attempt.log
        if not log or not log.steady_run or not run.measured:
            continue
        difference = run.measured.throughput / log.steady_run - 1
        if abs(difference) > highest:
            highest = abs(difference)
            worst = {
                "run": run.requested.run.repeat,
                "window": log.window,
                "speed": run.measured.throughput,
                "steady_window": log.steady_window,
                "steady_run": log.steady_run,
                "difference": difference,
            }
    if worst:
        yield worst


def _stalls(result: Result) -> Iterator[FigureValues]:
    """In every run of traces, some steps are so long that the mean of the steps' rates exceeds the speed by more than
    the scatter of the other steps, and of the runs, explains.

    For step times with the relative standard deviation c, mean(1/t) * mean(t) = 1 + c² (exp(σ²) for a lognormal one),
    so every noisy window has a difference. σ comes from the quartiles of log t, which a quarter of long steps does not
    move. One run alone has no scatter between runs: its thirds take the place of runs.
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
    figures = {"long_steps": long_steps, "steps": sum(map(len, windows)), "long_step": LONG_STEP, "difference": below}
    yield {"source": "steps", **figures}


def _rates_apart(step_s: npt.NDArray[np.float64]) -> float:
    """Returns the excess of the mean of the steps' rates over the rate of the mean step, as a share."""
    return float(np.mean(1 / step_s) * np.mean(step_s)) - 1


def _excess(step_s: npt.NDArray[np.float64]) -> float:
    """Returns the part of `_rates_apart` that lognormal noise as wide as the middle half of the steps leaves open."""
    low, high = np.quantile(np.log(step_s), (0.25, 0.75))
    return _rates_apart(step_s) - float(np.expm1(((high - low) / NORMAL_QUARTILES) ** 2))


def _scatter(result: Result) -> float:
    """Returns half of the interval of the median speed, as a share; 0 if there is none."""
    if result.interval is None or not result.median_speed:
        return 0.0
    return (result.interval.high - result.interval.low) / 2 / result.median_speed


def loose_clocks(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """The speed is uncertain by over 1 %: clocks agree badly, or time stamps are too coarse for so short a window."""
    shares = [(run.measured.clock_share, run) for run in result.ok if run.measured]
    share, run = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if run and share > CLOCKS_APART:
        source = "log" if run.attempt and run.attempt.log else "traces"
        yield {"share": share, "run": run.requested.run.repeat, "source": source}


def unsteady(result: Result, _: Neighbours) -> Iterator[FigureValues]:
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
        yield {"drift": drift}


def _thirds(step_s: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    third = len(step_s) // 3
    return step_s[:third], step_s[-third:]


def _batch_medians(step_s: npt.NDArray[np.float64], batches: int) -> npt.NDArray[np.float64]:
    return np.array([np.median(batch) for batch in np.array_split(step_s, batches)])


def _wins(first: npt.NDArray[np.float64], last: npt.NDArray[np.float64]) -> float:
    """Returns the number of pairs with the larger value in the last third; ties count half."""
    return float((last[:, None] > first).sum() + (last[:, None] == first).sum() / 2)


# Alarms about steady state: a warm-up that was too short, runs far from the others.

MIN_SHARE = 0.01
"""The least share of the speed that steps of a warm-up in the window must cost."""


def short_warmup(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """In most runs the window begins with steps of another level, which a longer warm-up would have left out.

    The steps are those before the last change point in the first half of a window whose second half has none. Where a
    log prints means over several steps, a position counts as that many.
    """
    windows = [
        (run.requested.run.repeat, run.measured.step_s, run.measured.printed_every)
        for run in result.ok
        if run.measured and not run.measured.pauses_s and (run.measured.step_s > 0).all()
    ]
    warmup = result.run.warmup_steps
    if warmup is None:
        return
    begins = [(repeat, begin * every, *_effects(step_s, begin)) for repeat, step_s, every in windows
              if (begin := steady_from(step_s))]  # fmt: skip
    costly = [begin for begin in begins if abs(begin[3]) > MIN_SHARE]
    if not costly or 2 * len(costly) <= len(result.ok):
        return
    repeats, extra, levels, shares = zip(*costly, strict=True)
    yield {
        "extra": ceil(stats.median(extra)),
        "warmup": warmup,
        "runs": [*repeats],
        "ok": len(result.ok),
        "level": stats.median(levels),
        "share": stats.median(shares),
    }


def steady_from(step_s: npt.NDArray[np.float64]) -> int:
    """The position from which on the step times [n] keep one level, if that is in their first half; else 0."""
    positions = change_points(step_s)
    return positions[-1] if positions and positions[-1] <= len(step_s) // 2 else 0


def _effects(step_s: npt.NDArray[np.float64], begin: int) -> tuple[float, float]:
    """By how much the median step before `begin` exceeds those behind it, and the speed of the whole window that of its
    steady part, as shares."""
    level = float(np.median(step_s[:begin]) / np.median(step_s[begin:])) - 1
    return level, float(step_s[begin:].mean() / step_s.mean()) - 1


def outlying_runs(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """Runs far from the others of their point."""
    runs = [(str(run.requested.run.repeat), run.measured.throughput) for run in result.ok if run.measured]
    speeds = [speed for _, speed in runs]
    if not all(np.isfinite(speeds)) or min(speeds, default=0) <= 0:
        return
    if positions := stats.outlying(speeds):
        yield {"runs": {runs[at][0]: runs[at][1] for at in positions}, "median": stats.median(speeds)}
