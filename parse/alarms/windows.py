"""The rules about time inside a run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import sqrt

import numpy as np
import numpy.typing as npt

from hpc.model.findings import FigureValues
from parse import stats
from parse.alarms.scaling import Setting
from parse.runs.result import Result

RATES_APART = 0.01
STEADY_APART = 0.05
CLOCKS_APART = 0.01
DRIFT = 0.01
MIN_THIRD_STEPS = 10
LONG_STEP = 1.5
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
BATCHES = 5
GROUPS_APART = 0.1
"""Repeats of a point are closer together than that."""
STEADY_SCORE = 2.5
"""With one run, only thirds whose batches do not overlap at all exceed it: 2 chances in 252 for a steady window."""


def rates_and_wall_clock(result: Result, _: Setting) -> Iterator[FigureValues]:
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
        if not (log := run.attempt and run.attempt.log) or not log.wall_clock or not run.measured:
            continue
        speed = run.measured.throughput
        of_protocol = speed not in (log.wall_clock, log.printed)
        for source, printed in (("log", log.printed), ("protocol", speed if of_protocol else None)):
            if printed and abs(printed / log.wall_clock - 1) > highest:
                highest, numbers = abs(printed / log.wall_clock - 1), {"printed": printed, "wall_clock": log.wall_clock}
                difference = printed / log.wall_clock - 1
                worst = {"source": source, "run": run.requested.run.repeat, "difference": difference, **numbers}
    if worst:
        yield worst
    yield from _stalls(result)


def window_and_steady_run(result: Result, _: Setting) -> Iterator[FigureValues]:
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


def loose_clocks(result: Result, _: Setting) -> Iterator[FigureValues]:
    """The speed is uncertain by over 1 %: clocks agree badly, or time stamps are too coarse for so short a window."""
    shares = [(run.measured.clock_share, run) for run in result.ok if run.measured]
    share, run = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if run and share > CLOCKS_APART:
        source = "log" if run.attempt and run.attempt.log else "traces"
        yield {"share": share, "run": run.requested.run.repeat, "source": source}


def contradicting_clocks(result: Result, _: Setting) -> Iterator[FigureValues]:
    """The clocks of a device and its host exclude one another; the figures are of the rank that loses most steps."""
    for run in result.ok:
        ranks = run.machine.contradictions if run.machine else ()
        if ranks:
            worst = max(ranks, key=lambda each: (each.steps, each.off_ms))
            figures = {name: getattr(worst, name) for name in ("rank", "steps", "of_steps", "jumps", "off_ms")}
            yield {"run": run.requested.run.repeat, "ranks": len(ranks), **figures}


def wall_clock_set(result: Result, _: Setting) -> Iterator[FigureValues]:
    """The wall clock of a node was set while an attempt ran, by the record's monotonic duration, else by the trace."""
    for run in result.runs:
        repeat, seen = run.requested.run.repeat, set()
        for record in run.records:
            if shift_s := record.clock_shift_s:
                seen.add(record.attempt)
                yield {"run": repeat, "attempt": record.attempt, "shift_s": shift_s, "source": "record"}
        attempt = run.attempt
        if attempt and attempt.clock_shift_s and attempt.number not in seen:
            its = next((record for record in run.records if record.attempt == attempt.number), None)
            source = "trace" if its is None or its.duration_ms < 0 else "other node"
            yield {"run": repeat, "attempt": attempt.number, "shift_s": attempt.clock_shift_s, "source": source}


def unsteady(result: Result, _: Setting) -> Iterator[FigureValues]:
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


def outlying_runs(result: Result, _: Setting) -> Iterator[FigureValues]:
    """Runs far from the others of their point."""
    runs = [(str(run.requested.run.repeat), run.measured.throughput) for run in result.ok if run.measured]
    speeds = [speed for _, speed in runs]
    if not all(np.isfinite(speeds)) or min(speeds, default=0) <= 0:
        return
    if positions := stats.outlying(speeds):
        yield {"runs": {runs[at][0]: runs[at][1] for at in positions}, "median": stats.median(speeds)}


def two_groups(result: Result, _: Setting) -> Iterator[FigureValues]:
    """Runs of a point that are groups, further apart than repeats are: something else differs between them. They are
    parted where they are furthest apart. A run by itself is a group where its own steps scatter little."""
    runs = sorted(
        (run.measured.throughput, run.requested.run.repeat, _scatter_of_steps(run.measured.step_s))
        for run in result.ok if run.measured
    )  # fmt: skip
    if result.published or len(runs) < 2 or not 0 < runs[0][0] <= runs[-1][0] < np.inf:
        return
    gaps = [above[0] / below[0] - 1 for below, above in pairwise(runs)]
    place = int(np.argmax(gaps)) + 1
    apart = [gap for gap in gaps if gap > GROUPS_APART]
    ends = [at for at, gap in enumerate(gaps, start=1) if gap > GROUPS_APART]
    parts = [runs[first:stop] for first, stop in pairwise([0, *ends, len(runs)])]
    within = max(group[-1][0] / group[0][0] - 1 if group[1:] else group[0][2] for group in parts)
    if apart and within < min(apart) / 2 and not stats.outlying([speed for speed, *_ in runs]):
        groups = {
            name: {str(repeat): speed for speed, repeat, _ in group}
            for name, group in (("slower", runs[:place]), ("faster", runs[place:]))
        }
        yield {**groups, "apart": gaps[place - 1]}


def _scatter_of_steps(step_s: npt.NDArray[np.float64]) -> float:
    """The share by which the thirds of a run differ; inf where its steps are too few to say it, or take no time."""
    thirds = (
        [float(third.mean()) for third in np.array_split(step_s, 3)] if len(step_s) >= 3 * MIN_THIRD_STEPS else [0.0]
    )
    return max(thirds) / min(thirds) - 1 if min(thirds) > 0 else np.inf
