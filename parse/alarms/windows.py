"""The rules about time inside a run, and where its step times go over from one level to another."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.findings import FigureValues
from parse import stats
from parse.alarms.scaling import Neighbours
from parse.runs.result import Result

# Change points: where step times go over from one level to another.

MIN_SEGMENT = 5
"""The least number of values between two change points: fewer long steps are stalls."""
MIN_VALUES = 40
MAX_BINS = 4000
"""Of more values, change points are first looked for between so many bins: in a steady series PELT drops no start, so
that its time grows as the square of the positions."""
PENALTY = 3.5
"""The penalty of a change point, in log(n) long-run variances: by simulation, below 5 % false alarms."""
CLIP = 3.0
"""In standard deviations of the steps."""
TRIMMED, TRIMMED_MEAN = 0.05, 0.758
"""The largest part of the squared differences that is left out, and the mean of what remains for a variance of 1."""
MAX_CORRELATION = 0.9
RESOLUTION = 1e-4
"""The least scatter of step times, as a share: equal ones have been rounded."""


def change_points(step_s: npt.NDArray[np.float64]) -> list[int]:
    """The positions at which the level of the step times [n] changes, ascending; empty for fewer than MIN_VALUES
    values, which must be positive.

    Minimised is the sum of squares of log step times within segments + a penalty for each change point, by PELT
    (Killick, Fearnhead, Eckley 2012), which is exact; of more than MAX_BINS values over the positions between bins,
    then over those within a bin of one that is found. Stalls are clipped first: no value is farther than CLIP from
    the median of the five around it, which keeps changes of level. The penalty grows with the long-run variance,
    because neighbouring steps are alike.
    """
    n = len(step_s)
    if n < MIN_VALUES:
        return []
    logs = np.log(step_s)
    scatter = sqrt(_squared_differences(logs, 1) / 2)
    if scatter == 0:
        scatter = RESOLUTION
    middle = _running_median(logs)
    logs = np.clip(logs, middle - CLIP * scatter, middle + CLIP * scatter)
    variance = max(_long_run_variance(logs), RESOLUTION**2)
    return levels(logs - logs.mean(), PENALTY * log(n) * variance)


def levels(values: npt.NDArray[np.float64], penalty: float, max_bins: int = MAX_BINS) -> list[int]:
    """The change points of values, by `pelt` over at most `max_bins` bins, then near those that it finds."""
    n = len(values)
    bins = min(n, max_bins)
    positions = pelt(values, penalty, MIN_SEGMENT, np.arange(bins + 1) * n // bins)
    if bins == n or not positions:
        return positions
    near = np.add.outer(positions, np.arange(-(n // bins) - 1, n // bins + 2))
    return pelt(values, penalty, MIN_SEGMENT, np.union1d(near[(near > 0) & (near < n)], [0, n]))


def pelt(values: npt.NDArray[np.float64], penalty: float, min_segment: int, edges: npt.NDArray[np.int64]) -> list[int]:
    """The change points that minimise Σ (squares around the mean of the segment) + penalty · (number of change points),
    with at least `min_segment` values in each segment.

    They are among `edges`, which are ascending positions, the first 0 and the last the number of values.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])[edges]
    latest = np.searchsorted(edges, edges - min_segment, "right") - 1  # the last start of a segment that ends there
    beyond = np.searchsorted(edges, edges + min_segment)  # the first stop of one that begins there
    best = np.full(len(edges), np.inf)
    best[0] = -penalty
    previous = np.zeros(len(edges), np.int64)
    starts = np.empty(0, np.int64)

    def totals(stop: Any) -> npt.NDArray[np.float64]:
        """The least cost of the values up to `stop` by the start of their last segment, less its penalty and the sum of
        all squares; of several stops [n, 1], of each."""
        lengths = np.maximum(edges[stop] - edges[starts], 1)
        total: npt.NDArray[np.float64] = best[starts] - (sums[stop] - sums[starts]) ** 2 / lengths
        return total

    first = int(beyond[0])
    while first < len(edges):
        stops = np.arange(first, beyond[first])  # no segment is between two of them
        # A start that is worse than a change point at `new` stays so from where a segment that begins there may end.
        new = latest[first]
        starts = starts[(starts > latest[new]) | (totals(new) <= best[new])]
        starts = np.append(starts, np.arange(latest[first - 1] + 1, latest[stops[-1]] + 1))
        total = totals(stops[:, None])
        total[starts > latest[stops, None]] = np.inf
        at = total.argmin(axis=1)
        best[stops], previous[stops] = total[np.arange(len(stops)), at] + penalty, starts[at]
        first = int(beyond[first])
    positions: list[int] = []
    stop = int(previous[-1])
    while stop > 0:
        positions.append(int(edges[stop]))
        stop = int(previous[stop])
    return positions[::-1]


def _running_median(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The median of each value [n] with the two before it and the two behind it; at the ends, of the five there."""
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 5), axis=1)
    return np.concatenate([middle[[0, 0]], middle, middle[[-1, -1]]])


def _squared_differences(values: npt.NDArray[np.float64], lag: int) -> float:
    """The mean squared difference of values `lag` apart, without the largest twentieth, in which changes of level and
    stalls are; as large as the whole mean where differences are normal."""
    squares = np.sort((values[lag:] - values[:-lag]) ** 2)
    return float(np.mean(squares[: len(squares) - ceil(TRIMMED * len(squares))])) / TRIMMED_MEAN


def _long_run_variance(values: npt.NDArray[np.float64]) -> float:
    """The variance γ(1 + ρ) / (1 − ρ) of an AR(1) process, from differences, which change points hardly touch.

    The mean squared differences over one and over two steps are 2γ(1 − ρ) and 2γ(1 − ρ²): their ratio less 1 is ρ
    (Chakar, Lebarbier, Lévy-Leduc, Robin, Bernoulli 2017).
    """
    single, double = _squared_differences(values, 1), _squared_differences(values, 2)
    correlation = 0.0 if single == 0 else min(max(0.0, double / single - 1), MAX_CORRELATION)
    return single / 2 * (1 + correlation) / (1 - correlation) ** 2


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


def contradicting_clocks(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """The clocks of a device and its host exclude one another; the figures are of the rank that loses most steps."""
    for run in result.ok:
        ranks = run.machine.contradictions if run.machine else ()
        if ranks:
            worst = max(ranks, key=lambda each: (each.steps, each.off_ms))
            figures = {name: getattr(worst, name) for name in ("rank", "steps", "of_steps", "jumps", "off_ms")}
            yield {"run": run.requested.run.repeat, "ranks": len(ranks), **figures}


def wall_clock_set(result: Result, _: Neighbours) -> Iterator[FigureValues]:
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
