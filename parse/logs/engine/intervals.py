"""The intervals between printed steps, added up to windows."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from hpc.system.text import plural
from parse.logs.engine.log_format import NO_NUMBER, Floats, Integers, LogFormat, without_rows

# Turns step lines into points: one per printed step, whichever ranks print it and however their lines interleave.

STEP_BITS = 40
MAX_STEP, MAX_EPOCH = 1 << STEP_BITS, 1 << 20
"""Larger numbers are none that a program counted to."""
MAX_SIZES = 8
"""Up to as many sizes of groups are sorted one by one."""


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The columns of step lines and points. `key` has the order of epochs and steps; NaN: not printed."""

    key: Integers
    offset: Integers
    time_s: Floats
    rate: Floats
    duration_s: Floats
    elapsed_s: Floats
    mean_s: Floats
    mean_rate: Floats
    first: Integers
    epoch_steps: Integers
    batch: Floats

    def take(self, which: npt.NDArray[np.bool_] | Integers | slice) -> Self:
        """Those rows."""
        return type(self)(**{name: column[which] for name, column in vars(self).items()})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @property
    def epoch(self) -> Integers:
        """The epoch's printed number."""
        return (self.key >> STEP_BITS) - 1

    @property
    def step(self) -> Integers:
        """The step's printed number."""
        return self.key & (MAX_STEP - 1)

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True, kw_only=True)
class StepLines(_Columns):
    """Step lines in the order of the file."""

    rank: Integers


@dataclass(frozen=True, kw_only=True)
class Points(_Columns):
    """Printed steps in their order: of the lines of each the latest time stamp and the medians of the numbers.

    `offset` is that of the line with the latest stamp, `lines` the number of lines.
    """

    lines: Integers


SEVERAL_RUNS = 1.3
"""Lines of one step whose rates differ by this factor are not of ranks that run together."""
MEDIANS = ("rate", "duration_s", "elapsed_s", "mean_s", "mean_rate", "batch")
"""Columns of a point that are the medians of its lines'."""
NO_POINTS = without_rows(Points)


def epoch_and_step(key: int) -> tuple[int, int]:
    """The printed numbers of a key."""
    return (key >> STEP_BITS) - 1, key & (MAX_STEP - 1)


def merged(lines: StepLines) -> Points:
    """A point for each key of the lines."""
    shared = {name: column for name, column in vars(lines).items() if name != "rank"}
    if (np.diff(lines.key) > 0).all():
        return Points(**shared, lines=np.ones(len(lines), np.int64))
    order = np.lexsort((np.where(np.isnan(lines.time_s), -np.inf, lines.time_s), lines.key))
    lines = lines.take(order)
    begins = np.flatnonzero(np.concatenate([[True], np.diff(lines.key) > 0]))
    counts = np.diff(np.append(begins, len(lines)))
    latest = begins + counts - 1
    columns = {name: getattr(lines, name)[latest] for name in ("key", "offset", "time_s", "first")}
    columns |= {name: _medians(getattr(lines, name), begins, counts) for name in MEDIANS}
    return Points(**columns, epoch_steps=np.maximum.reduceat(lines.epoch_steps, begins), lines=counts)


def rates_apart(lines: StepLines) -> tuple[int, int]:
    """The number of steps, and of those of which several lines without a rank print rates that are of several runs."""
    if (np.diff(lines.key) > 0).all():
        return len(lines), 0
    lines = lines.take((lines.rank == NO_NUMBER) & (lines.rate > 0))
    lines = lines.take(np.argsort(lines.key, kind="stable"))
    begins = np.flatnonzero(np.diff(lines.key, prepend=-1))
    ratios = np.maximum.reduceat(lines.rate, begins) / np.minimum.reduceat(lines.rate, begins)
    return len(begins), int((ratios > SEVERAL_RUNS).sum())


def _medians(values: Floats, begins: Integers, counts: Integers) -> Floats:
    """The median of the numbers of each group, `counts` values from `begins` on; NaN where it has none."""
    finite = np.isfinite(values)
    if not finite.any():
        return np.full(len(begins), np.nan)
    ordered = _ordered(values, begins, counts)
    numbers = np.add.reduceat(finite.astype(np.int64), begins)
    middle = (ordered[begins + np.maximum(numbers - 1, 0) // 2] + ordered[begins + np.maximum(numbers // 2, 0)]) / 2
    return np.where(numbers > 0, middle, np.nan)


def _ordered(values: Floats, begins: Integers, counts: Integers) -> Floats:
    """The values in their groups, each group in ascending order and NaN last; groups of one size are sorted at once."""
    sizes = np.flatnonzero(np.bincount(counts))
    if len(sizes) > MAX_SIZES:
        return values[np.lexsort((values, np.repeat(np.arange(len(begins)), counts)))]
    ordered = values.copy()
    for size in sizes[sizes > 1].tolist():
        rows = begins[counts == size, None] + np.arange(size)
        ordered[rows] = np.sort(values[rows], axis=1)
    return ordered


def numbered(epoch: int, step: int) -> str:
    """A step as the log numbers it: `120 of epoch 3`, or `120` where the log has no epochs."""
    return f"{step} of epoch {epoch}" if epoch >= 0 else str(step)


Truths = npt.NDArray[np.bool_]

MAX_TIMES = 1 << 18
"""If a window has more intervals, the times of steps are those of the first."""
MAX_PAUSES = 10_000
RESOLVED = 10
"""An interval's time is used for its steps if it is this many times longer than the time stamps' finest unit."""
MAX_DECIMALS, WHOLE = 6, 5e-4
"""Decimals that are told apart, and how far from whole a number of units may be."""


@dataclass(frozen=True, kw_only=True)
class ExcludedInterval:
    """An excluded interval: the reason, its printed steps, and its length if there are time stamps."""

    reason: str
    from_step: int
    to_step: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class WindowTarget:
    """The target of a window's begin and end: the first printed steps at or after it; `span` None: the end of the log.

    `span` counts from the begin of the window, or, if `absolute`, from `begin_at`. `numbered` is `epoch` if numbers
    restart per epoch; `from_zero`: they start at 0. `keeps_pauses`: intervals that contain a pause or the end of an
    epoch count. `consumes`: the points' `batch` counts all steps so far. `mean_from` is the format's.
    """

    begin_at: int
    span: int | None
    keeps_pauses: bool
    numbered: str
    from_zero: bool
    absolute: bool = False
    consumes: bool = False
    mean_from: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepPlace:
    """A printed step. `reached` counts steps from the log's beginning; where numbers restart, over the epochs."""

    key: int
    epoch: int
    step: int
    reached: int
    offset: int

    def __str__(self) -> str:
        return numbered(self.epoch, self.step)


def steps_between(points: Points, target: WindowTarget, per_epoch: int | None) -> tuple[Integers, Truths]:
    """The steps of the intervals between points, and whether their number is known.

    It is unknown, and 0, over the border of epochs if numbers restart and the length of an epoch is not given.
    """
    epoch, step = points.epoch, points.step
    steps, epochs = np.diff(step), np.diff(epoch)
    restarted = (epochs > 0) & ((target.numbered == "epoch") | (steps <= 0))
    if not restarted.any():
        return steps, np.ones(len(steps), np.bool_)
    if per_epoch is None:
        return np.where(restarted, 0, steps), ~restarted
    remaining = np.maximum(per_epoch - step[:-1], int(target.from_zero))
    return np.where(restarted, per_epoch * (epochs - 1) + remaining + step[1:], steps), np.ones(len(steps), np.bool_)


def durations_by_means(points: Points, target: WindowTarget, mean_s: Floats) -> Floats:
    """Seconds per step, or sample, of the intervals between points, from the running means of an epoch at both ends.

    NaN over the border of epochs, where a mean is missing, and where the difference is not above 0.
    """
    if not np.isfinite(mean_s).any():
        return np.full(max(len(points) - 1, 0), np.nan)
    left_out = -int(target.from_zero) if target.mean_from is None else target.mean_from
    counted = points.step - left_out
    total_s = np.where(counted > 0, mean_s * counted, np.nan)
    seconds = np.diff(total_s) / np.maximum(np.diff(points.step), 1)
    return np.where((np.diff(points.epoch) == 0) & (seconds > 0), seconds, np.nan)


class WindowSum:
    """Adds up the window's intervals as points come, in their order."""

    def __init__(self, target: WindowTarget) -> None:
        self.target = target
        self.only_sums = False
        """Neither pauses nor the times of single intervals are kept any more, nor the stamps' resolution."""
        self.begin: StepPlace | None = None
        self.end: StepPlace | None = None
        self.last: StepPlace | None = None
        self.done = False
        """The end that was aimed at is reached."""
        self.steps = 0
        self.seconds = 0.0
        self.taken_in = 0.0
        """What the steps took in, by what their lines print; NaN where they do not print it."""
        self.resolution_s = self.duration_unit_s = 1.0
        self.error_of_means_s = 0.0
        """How far off a step's time is by the difference of two running means; 0 where lines print more than these."""
        self.backwards: tuple[int, int] | None = None
        """The steps between which the stamps go back."""
        self.pauses: list[ExcludedInterval] = []
        self.more_pauses = 0
        self.borders = 0
        """Borders of epochs over which the number of steps is unknown."""
        self.repeated = 0
        """Steps that have more than one line."""
        self.fresh = True
        self.durations, self.times = FirstValues(), FirstValues()
        self.by_rates, self.by_durations, self.by_means = WorkOverTime(), WorkOverTime(), WorkOverTime()
        """The printed numbers as work over time; `by_means` are durations from running means, also where the lines
        print those of single steps."""
        self._points = NO_POINTS

    def to_the_end(self) -> WindowSum:
        """The same sums, which go on to the end of the log."""
        other = copy.copy(self)
        other.target, other.only_sums, other.done = dataclasses.replace(self.target, span=None), True, False
        other.durations, other.times = FirstValues(), FirstValues()
        sums = self.by_rates, self.by_durations, self.by_means
        other.by_rates, other.by_durations, other.by_means = map(copy.copy, sums)
        return other

    def add(self, points: Points, pauses: Mapping[int, Sequence[str]], per_epoch: int | None) -> Points:
        """Goes on with the next points, and returns those behind its end; `pauses` are the reasons of pauses by the key
        of the step before."""
        if self.done or not len(points):
            return points
        points = Points.joined([self._points, points]) if len(self._points) else points
        steps, known = steps_between(points, self.target, per_epoch)
        start = self.last.reached if self.last else int(points.step[0])
        reached = start + np.concatenate([[0], np.cumsum(steps)])
        first, stop = 0, len(points)
        if self.begin is None:
            first = int(np.searchsorted(reached, self.target.begin_at))
            if first < stop:
                self.begin = _place(points, reached, first)
        if self.begin and self.target.span is not None:
            until = (self.target.begin_at if self.target.absolute else self.begin.reached) + self.target.span
            stop = min(stop, int(np.searchsorted(reached, until)) + 1)
            self.done = bool(reached[stop - 1] >= until)
        self._points = points.take(slice(stop - 1, stop))
        self.last = _place(points, reached, stop - 1)
        if self.begin:
            self.end = self.last
            window, inner = slice(first, stop), slice(first, stop - 1)
            self._sum(points.take(window), steps[inner], known[inner], reached[window], pauses)
        return points.take(slice(stop, None))

    def _sum(
        self, points: Points, steps: Integers, known: Truths, reached: Integers, pauses: Mapping[int, Sequence[str]]
    ) -> None:
        if not self.only_sums:
            self.resolution_s = min(self.resolution_s, resolution_s(points.time_s))
        seconds = np.diff(points.time_s)
        counted = known & self._free_of_pauses(points, seconds, known, pauses)
        self.borders += int((~known).sum())
        self.repeated += int((points.lines[0 if self.fresh else 1 :] > 1).sum())
        self.fresh = False
        self.steps += int(steps[counted].sum())
        self.seconds += float(seconds[counted].sum())
        taken_in = np.diff(points.batch) if self.target.consumes else points.batch[1:] * steps
        self.taken_in += float(taken_in[counted].sum())
        if self.backwards is None and (back := np.flatnonzero(counted & (seconds < 0))).size:
            self.backwards = int(points.step[back[0]]), int(points.step[back[0] + 1])
        if not self.only_sums:
            self.times.add((seconds / np.maximum(steps, 1))[counted])
        by_means = durations_by_means(points, self.target, points.mean_s)
        differenced = counted & np.isfinite(by_means)
        self.by_means.add(by_means[differenced], steps[differenced])
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            rates = 1 / durations_by_means(points, self.target, 1 / points.mean_rate)
        # A rate of one step of several says little of them all.
        whole = np.isfinite(points.rate[1:]) & (steps == 1)
        rates = np.where(np.isfinite(rates) & ~whole, rates, points.rate[1:])
        points = dataclasses.replace(points.take(slice(1, None)), rate=rates)
        self._add_printed(points, steps, reached[1:], counted, by_means, taken_in)

    def _add_printed(
        self,
        points: Points,
        steps: Integers,
        reached: Integers,
        counted: Truths,
        by_means: Floats,
        taken_in: Floats,
    ) -> None:
        """The printed numbers whose interval is in the window, each with the steps that it stands for."""
        assert self.begin is not None
        printed_interval = points.first != NO_NUMBER
        long = np.where(printed_interval, points.step - points.first, steps)
        counted = counted & (reached - long >= self.begin.reached)
        long = np.maximum(long, 1)
        with np.errstate(divide="ignore", over="ignore"):
            pace_s = 1 / points.rate
            work = taken_in * (long / np.maximum(steps, 1))
        rated = counted & np.isfinite(points.rate)
        self.by_rates.add(pace_s[rated], long[rated], work[rated])
        durations = by_means
        for printed, steps_of_it in ((points.elapsed_s, long), (points.duration_s, 1)):
            if (known := np.isfinite(printed)).any():
                durations = np.where(known, printed / steps_of_it, durations)
                self.duration_unit_s = min(self.duration_unit_s, decimal_unit(printed))
        if durations is by_means and len(points):  # the error of a mean is that of all steps before it
            self.error_of_means_s = decimal_unit(points.mean_s) * float(points.step[-1])
        timed = counted & np.isfinite(durations)
        if not self.only_sums:
            self.durations.add(durations[timed])
        self.by_durations.add(durations[timed], long[timed])

    def _free_of_pauses(
        self, points: Points, seconds: Floats, known: Truths, pauses: Mapping[int, Sequence[str]]
    ) -> Truths:
        reasons: dict[int, list[str]] = {}
        epoch, step = points.epoch, points.step
        for place in np.flatnonzero(np.diff(epoch) > 0 if not self.target.keeps_pauses else ~known).tolist():
            reasons[place] = [f"epoch {epoch[place + 1]} begins"]
        if not self.target.keeps_pauses and pauses:
            keys = np.fromiter(pauses, np.int64, len(pauses))
            places = np.searchsorted(points.key, keys, side="right") - 1
            inside = (places >= 0) & (places < len(seconds))
            for key, place in zip(keys[inside].tolist(), places[inside].tolist(), strict=True):
                listed = reasons.setdefault(place, [])
                listed += [reason for reason in pauses[key] if reason not in listed]
        free = np.ones(len(seconds), np.bool_)
        for place in sorted(reasons):
            free[place] = False
            if self.only_sums or len(self.pauses) == MAX_PAUSES:
                self.more_pauses += 1
                continue
            long = float(seconds[place])
            self.pauses.append(
                ExcludedInterval(
                    reason=", ".join(reasons[place]),
                    from_step=int(step[place]),
                    to_step=int(step[place + 1]),
                    seconds=None if np.isnan(long) else long,
                )
            )
        return free


class WorkOverTime:
    """Printed numbers added up to work over time: what a line prints of its steps counts as often as these do.

    Two halves of equal work at 100 and 300 samples/s are 150, which is the harmonic mean; their arithmetic one is 200.
    """

    def __init__(self) -> None:
        self.count = 0
        self._steps = self._steps_s = 0.0
        self._work = self._work_s = 0.0
        self._rates = 0.0

    def add(self, each_s: Floats, steps: Integers, work: Floats | None = None) -> None:
        """Goes on with lines: the seconds of a step, or of a sample, that each prints, its steps and what these took
        in, NaN where it is not printed."""
        self.count += len(each_s)
        self._steps += float(steps.sum())
        self._work += np.nan if work is None else float(work.sum())
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            self._steps_s += float((each_s * steps).sum())
            self._work_s += np.nan if work is None else float((each_s * work).sum())
            self._rates += float((1 / each_s).sum())

    @property
    def seconds(self) -> float | None:
        """The seconds of one step, or sample: all time over all work, or over all steps where lines print no work. None
        without a number above 0."""
        by_work = np.isfinite(self._work_s) and self._work > 0
        seconds, work = (self._work_s, self._work) if by_work else (self._steps_s, self._steps)
        return seconds / work if work > 0 and np.isfinite(seconds) and seconds > 0 else None

    @property
    def mean_of_rates(self) -> float | None:
        """The arithmetic mean of the rates, which is no work over time; None where one of them is infinite."""
        return self._rates / self.count if self.count and np.isfinite(self._rates) else None


class FirstValues:
    """The first MAX_TIMES of many numbers, in their order, and how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self.values = np.empty(0)

    def add(self, values: Floats) -> None:
        """Goes on with these."""
        self.count += len(values)
        self.values = np.concatenate([self.values, values[: MAX_TIMES - len(self.values)]])


def why_no_window(
    window_sum: WindowSum | None,
    log_format: LogFormat,
    *,
    warmup: int,
    whole: bool,
    step_lines: int,
    printed_every: int,
) -> str:
    """Why the intervals that were added up make no window; empty where they make one."""
    if not log_format.steps and (window_sum is None or window_sum.last is None):
        return "no step line of a known form is in it"
    if window_sum is None or window_sum.last is None:
        return "it has no line of a step" if not step_lines else "none of its step lines can be used"
    last, begin = window_sum.last, window_sum.begin
    last_text = f"the last printed step is {last}"
    if whole:
        return "" if window_sum.steps else f"{last_text} and no other step before it can be counted from"
    if begin is None or not window_sum.done:
        span = window_sum.target.span or 0
        needed = str((warmup if begin is None else begin.reached) + span)
        begins = f"from step {begin}" if begin else f"begins at step {warmup} and"
        if last.reached != last.step:
            needed = f"{needed} counted through the epochs, of which the last is number {last.reached}"
        remaining = last.reached - begin.reached if begin and printed_every <= max(warmup, 1) else 0
        remedy = f"; --steps {warmup + remaining} takes what is there" if remaining else ""
        return f"too short: {last_text}; the window of {plural(span, 'step')} {begins} needs step {needed}{remedy}"
    if not window_sum.steps:
        return f"no interval between the printed steps {begin} to {window_sum.end or begin} is free of pauses"
    return ""


def resolution_s(time_s: Floats) -> float:
    """The finest unit that time stamps use: 1 s, 1 ms or 1 µs."""
    unit = decimal_unit(time_s)
    return 1.0 if unit == 1 else 1e-3 if unit >= 1e-3 else 1e-6


def decimal_unit(values: Floats) -> float:
    """The worth of the last decimal of any of them, from 1 to 1e-6."""
    known = values[np.isfinite(values)]
    for decimals in range(MAX_DECIMALS):
        units = known * 10.0**decimals
        if (np.abs(units - np.round(units)) < WHOLE).all():
            return float(10.0**-decimals)
    return float(10.0**-MAX_DECIMALS)


def commonest(values: Integers) -> int | None:
    """The value that occurs most often, the smallest of several; None of no values."""
    if not len(values):
        return None
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(counts)])


def _place(points: Points, reached: Integers, row: int) -> StepPlace:
    return StepPlace(
        key=int(points.key[row]),
        epoch=int(points.epoch[row]),
        step=int(points.step[row]),
        reached=int(reached[row]),
        offset=int(points.offset[row]),
    )
