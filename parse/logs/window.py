"""From a log to one window of steps: where it begins and ends by printed numbers, its time, the numbers printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.findings import CheckFinding, Severity
from hpc.system.text import plural
from parse.logs.engine.intervals import (
    NO_POINTS,
    RESOLVED,
    SEVERAL_RUNS,
    ExcludedInterval,
    Points,
    WindowSum,
    WindowTarget,
    commonest,
    epoch_and_step,
    numbered,
    why_no_window,
)
from parse.logs.engine.log_format import OF_RUN, Floats, Integers, LogError, LogFormat, LogPart, LogRecord
from parse.logs.engine.reader import batches
from parse.logs.engine.step_merge import StepMerge

# What is odd about a log and its window: findings by the name of their sentence.


def remark(name: str, /, **figures: Any) -> CheckFinding:
    """The remark of that name; its figures are the arguments of its sentence. Steps are pairs of epoch and step, -1
    without epochs."""
    sentence = SENTENCES[name]
    text = sentence.format(**figures) if isinstance(sentence, str) else sentence(**figures)
    return CheckFinding(name=name, text=text, severity=Severity.NOTE, figures=figures)


SENTENCES: Mapping[str, str | Callable[..., str]] = {
    "of_format": "{text}",
    "contradiction": "{name} is {value} and {other} (byte {byte}) in it; {taken}",
    "stamps_go_back": "time stamps go back between steps {begin} and {end}: there is no wall clock",
    "stamps_stand_still": "time stamps do not advance in the window: there is no wall clock",
    "coarse_stamps": (
        "time stamps of {resolution_s:g} s do not resolve intervals of {interval_s:.3g} s: there are no step times"
    ),
    "coarse_means": ("running means leave {error_s:.1g} s of a step of {mean_s:.3g} s open: there are no step times"),
    "first_step_times": "step times are those of the first {first} of {intervals} intervals",
    "another_run": lambda passed, to, byte: (
        f"steps go back from {numbered(*passed)} to {numbered(*to)} at byte {byte}, as where a second run is appended: "
        "only steps before it count"
    ),
    "impossible_lines": lambda lines: f"{plural(lines, 'step line')} with impossible numbers left out",
    "late_lines": lambda lines: f"{plural(lines, 'step line')} left out that came long after others of their steps",
    "unstamped_steps": lambda steps: f"{plural(steps, 'printed step')} left out that bear no time stamp",
    "epochs_of_unknown_length": lambda ends: (
        f"the window goes over {plural(ends, 'end')} of epochs, but nothing says how many steps an epoch has: only "
        "intervals between printed steps of one epoch count"
    ),
    "more_pauses": "{more} more pauses are kept out than are listed",
    "repeated_steps": lambda steps: (
        f"{plural(steps, 'step')} of the window printed more than once: each counts once, with the latest time stamp"
    ),
    "late_first_step": lambda first, warmup: (
        f"the first printed step is {numbered(*first)}, beyond the warm-up of {warmup}: what came before, or that the "
        "run was resumed there, the log does not say"
    ),
    "dropped_records": "{records} evaluations and marks beyond the first {most} are not kept",
}


HEAD = 4096
"""Printed steps from which the print interval, and whether lines have time stamps, are determined."""
INTERVALS = 5
"""A window has at least as many printed intervals where more than the warm-up is between two printed steps."""
MAX_RECORDS = 100_000
MAX_PER_EPOCH = 1 << 31
RECORD_KINDS = ("evaluation", "mark", "mllog", "summary", "epoch")
SIZES = ("world_size", "nodes", "gpus_per_node")
COUNTS = ("batch_size", "global_batch_size", *SIZES)
SHARED = (*COUNTS, "precision", "model")
"""Facts that are the same on all ranks of a run."""
STANDS_STILL = {
    "eval_accuracy": "validation",
    "total_epoch_cnt": "end of an epoch",
    "eval_start": "validation",
    "eval_stop": "validation",
    "epoch_start": "end of an epoch",
    "epoch_stop": "end of an epoch",
    "block_start": "end of an epoch",
    "block_stop": "end of an epoch",
}
"""Marks and MLPerf's keys of pauses in the training, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The requested window: `warmup` steps before it, `total` with them; None: the format's own.

    `whole`: from the first printed step to the last, pauses and ends of epochs in it.
    """

    warmup: int | None = None
    total: int | None = None
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Window:
    """The steps (begin, end] of a log, by printed numbers; step times and durations in s, rates in samples/s.

    `steps` counts the intervals without a pause. `seconds` is their time by time stamps with the finest unit
    `resolution_s`, None if the log has no usable ones. `rate` and `duration_s` are those of all steps, work over time,
    by `printed` printed numbers, each the median over ranks; `mean_of_rates` is the arithmetic mean of the rates, and
    `mean_steps_per_s` of the durations' inverses; `mean_duration_s` is by the differences of running means.
    `lines_per_step` is the number of lines of most steps: the number of printing ranks if lines have no rank.
    `taken_in` is what the counted steps took in, in the format's unit, None if lines do not print it. `step_unit_s` is
    the finest unit of `step_s`, `rounding` the share of printed durations that their digits leave open, where the speed
    is by these. `in_steps_done`: numbers count from 0 and the log ends one short of the total, so they are taken as
    numbers of steps done.
    """

    begin: int
    end: int
    begin_epoch: int
    end_epoch: int
    steps: int
    seconds: float | None
    resolution_s: float | None
    rate: float | None
    duration_s: float | None
    printed: int
    printed_every: int
    step_s: Floats
    ranks: tuple[int, ...]
    begin_offset: int
    end_offset: int
    pauses: tuple[ExcludedInterval, ...]
    step_unit_s: float = 0.0
    rounding: float = 0.0
    lines_per_step: int = 1
    mean_of_rates: float | None = None
    mean_steps_per_s: float | None = None
    mean_duration_s: float | None = None
    in_steps_done: bool = False
    taken_in: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The content of a log. Without `window`, `reason` has the cause. `facts_at` are the offsets of the facts' lines.

    `last` is the furthest printed step as (epoch, step) of the run that counts; `step_lines` are all of the file.
    `steady_run` goes from the window's begin to the last printed step, without pauses and step times. `short_window`
    has the steps that are there, where the log ends before the window does; then there is no `window`.
    """

    log_format: LogFormat
    facts: Mapping[str, str]
    facts_at: Mapping[str, int]
    window: Window | None
    reason: str
    remarks: tuple[CheckFinding, ...]
    step_lines: int
    last: tuple[int, int] | None
    records: tuple[LogRecord, ...]
    steady_run: Window | None = None
    short_window: Window | None = None


def window_text(window: Window) -> str:
    """The window in words: `steps 20 to 120 of epoch 0`."""
    if window.begin_epoch < 0 and window.end_epoch < 0:
        return f"steps {window.begin} to {window.end}"
    if window.begin_epoch == window.end_epoch:
        return f"steps {window.begin} to {window.end} of epoch {window.begin_epoch}"
    return f"step {window.begin} of epoch {window.begin_epoch} to step {window.end} of epoch {window.end_epoch}"


def ends_early(reading: Reading, counted: str) -> bool:
    """Whether the window that is counted, in words, is what there is of a log that ends before the protocol's."""
    return reading.short_window is not None and counted == window_text(reading.short_window)


def read_log(path: Path, log_format: LogFormat, protocol: Protocol) -> Reading:
    """Reads the log in that format. Raises LogError if it cannot be read."""
    return read_batches(batches(path, log_format), log_format, protocol)


def read_batches(stretches: Iterable[LogPart], log_format: LogFormat, protocol: Protocol) -> Reading:
    """The log that comes in these batches."""
    reader = _Reader(log_format, protocol)
    for batch in stretches:
        reader.take(batch)
    return reader.finish()


class _Reader:
    def __init__(self, log_format: LogFormat, protocol: Protocol) -> None:
        self.log_format = log_format
        self.whole = protocol.whole
        self.warmup = log_format.warmup if protocol.warmup is None else protocol.warmup
        self.total = log_format.total if protocol.total is None else protocol.total
        if self.warmup < 0 or self.total <= self.warmup:
            raise LogError(
                f"a window of {self.total} steps of which the first {self.warmup} are warm-up holds none: "
                "the steps must be more than those of the warm-up"
            )
        self.step_merge = StepMerge(bars=log_format.bars, one_bar=log_format.one_bar)
        self.head: list[Points] = []
        self.window_sum: WindowSum | None = None
        self.in_steps_done: WindowSum | None = None
        """Of numbers from 0, taken as steps that are done: what holds where a log ends one number short."""
        self.steady_run: WindowSum | None = None
        """The sums of the window and of what is behind it; None where that is nothing."""
        self.printed_every = self.lines_per_step = 1
        self.per_epoch: int | None = None
        self.stamped = False
        self.unstamped_points = 0
        self.step_lines = 0
        self.units: dict[str, float] = {}
        self.first: tuple[int, int] | None = None
        self.facts: dict[str, tuple[str, int]] = {}
        self.of_run = False
        """Sizes are those of one run of several on the machine, whose own are not taken."""
        self.processes: dict[int, int] = {}
        """The ranks that print facts, each with the offset of its first."""
        self.contradictions: dict[str, tuple[str, int]] = {}
        self.records: list[LogRecord] = []
        self.dropped_records = 0
        self.remarks: list[CheckFinding] = []

    def take(self, batch: LogPart) -> None:
        self.step_lines += len(batch.steps.step)
        self.units |= {name: min(unit, self.units.get(name, unit)) for name, unit in batch.units.items()}
        pauses = []
        for record in batch.records:
            self._keep_record(record)
            if not self.whole and (reason := _pause(record)):
                pauses.append((record, reason))
        self._add(self.step_merge.add(batch.steps, pauses))

    def _keep_record(self, record: LogRecord) -> None:
        if record.kind == "facts":
            if record.rank is not None and len(self.processes) < MAX_RECORDS:
                self.processes.setdefault(record.rank, record.offset)
            for name, value in record.values.items():
                if name in SIZES and not self.of_run and OF_RUN in record.values:
                    self.of_run = True
                    for size in SIZES:
                        self.facts.pop(size, None)
                        self.contradictions.pop(size, None)
                if name in SIZES and self.of_run and OF_RUN not in record.values:
                    continue
                known, _ = self.facts.setdefault(name, (value, record.offset))
                if known != value and name in SHARED:
                    self.contradictions.setdefault(name, (value, record.offset))
        elif record.kind == "remark":
            self.remarks.append(remark("of_format", text=record.values["text"]))
        elif record.kind in RECORD_KINDS:
            if len(self.records) < MAX_RECORDS:
                self.records.append(record)
            else:
                self.dropped_records += 1

    def _add(self, points: Points) -> None:
        if self.window_sum is None:
            if len(points):
                self.head.append(points)
            if sum(map(len, self.head)) < HEAD:
                return
            points = self._decide()
        self._add_up(points)

    def _decide(self) -> Points:
        """Determines how the log prints from its first points, and returns these."""
        points = Points.joined(self.head) if self.head else NO_POINTS
        self.head = []
        same_epoch = np.diff(points.epoch) == 0
        self.printed_every = commonest(np.diff(points.step)[same_epoch]) or 1
        self.lines_per_step = commonest(points.lines) or 1
        self.stamped = 2 * int(np.isfinite(points.time_s).sum()) > len(points)
        self.per_epoch = commonest(points.epoch_steps[(points.epoch_steps > 0) & (points.epoch_steps < MAX_PER_EPOCH)])
        if len(points):
            self.first = epoch_and_step(int(points.key[0]))
        steps = self.total - self.warmup
        sparse = self.printed_every > max(self.warmup, 1)
        span = max(steps, INTERVALS * self.printed_every) if sparse else steps
        from_zero = self.log_format.from_zero or _from_zero(points.step, self.printed_every)
        target = WindowTarget(
            begin_at=0 if self.whole else self.warmup,
            span=None if self.whole else span,
            keeps_pauses=self.whole,
            numbered=self.log_format.numbered,
            from_zero=from_zero,
            consumes=self.log_format.consumes,
            mean_from=self.log_format.mean_from,
        )
        self.window_sum = WindowSum(target)
        if from_zero and not self.whole and 0 < self.warmup >= self.printed_every:
            self.in_steps_done = WindowSum(dataclasses.replace(target, begin_at=self.warmup - 1, absolute=True))
        return points

    def _add_up(self, points: Points) -> None:
        assert self.window_sum is not None
        if self.stamped and np.isnan(points.time_s).any():
            stamped = np.isfinite(points.time_s)
            self.unstamped_points += 0 if self.window_sum.done else int((~stamped).sum())
            points = points.take(stamped)
        pauses, per_epoch = self.step_merge.pauses, self.per_epoch or self._steps_per_epoch()
        if self.in_steps_done:
            self.in_steps_done.add(points, pauses, per_epoch)
        behind = self.window_sum.add(points, pauses, per_epoch)
        if len(behind):
            self.steady_run = self.steady_run or self.window_sum.to_the_end()
            self.steady_run.add(behind, pauses, per_epoch)
        if len(points):
            self.step_merge.forget_pauses(int(points.key[-1]))
        self.step_merge.closed = self.window_sum.done

    def _steps_per_epoch(self) -> int | None:
        text, _ = self.facts.get("steps_per_epoch", ("", 0))
        known = text.isdecimal() and len(text) < 12 and 0 < int(text) < MAX_PER_EPOCH
        return int(text) if known else None

    def finish(self) -> Reading:
        """The content of the log, once it has been read."""
        points = self.step_merge.finish()
        if self.window_sum is None:
            if len(points):
                self.head.append(points)
            points = self._decide()
        self._add_up(points)
        done, steady_run = self.in_steps_done, self.steady_run or self.window_sum
        if self.window_sum and not self.window_sum.done and done and done.done and done.steps:
            self.window_sum = done
        reason = why_no_window(
            self.window_sum,
            self.log_format,
            warmup=self.warmup,
            whole=self.whole,
            step_lines=self.step_lines,
            printed_every=self.printed_every,
        )
        if is_of_several := 2 * self.step_merge.apart > self.step_merge.merged:
            reason = (
                f"of {plural(self.step_merge.apart, 'step')} several lines print rates that differ by a factor of "
                f"{SEVERAL_RUNS} or more: they are of several runs or writers, and nothing says of which"
            )
        ends_early = self.window_sum is not None and not self.window_sum.done and self.window_sum.steps > 0
        window = None if reason else self._window(self.window_sum, self.remarks)
        short_window = (
            self._window(self.window_sum, self.remarks) if reason and ends_early and not is_of_several else None
        )
        steady_window = None if self.whole else window
        if steady_window and steady_run is not self.window_sum:
            steady_window = self._window(steady_run, [])
        end = np.inf if self.step_merge.back is None else self.step_merge.back.after
        if self.processes and max(self.processes) + 1 == len(self.processes):
            self.facts["processes"] = (str(len(self.processes)), max(self.processes.values()))
        facts = {name: fact for name, fact in self.facts.items() if fact[1] <= end}
        for name, (value, offset) in self.contradictions.items():
            if offset <= end:
                first = facts.pop(name)[0] if name in COUNTS else facts[name][0]
                taken = "neither is taken" if name in COUNTS else "the first counts"
                self.remarks.append(
                    remark("contradiction", name=name, value=first, other=value, byte=offset, taken=taken)
                )
        self.remarks += self._remarks()
        return Reading(
            log_format=self.log_format,
            facts={name: value for name, (value, _) in facts.items()},
            facts_at={name: offset for name, (_, offset) in facts.items()},
            window=window,
            reason=reason,
            remarks=tuple(self.remarks),
            step_lines=self.step_lines,
            last=epoch_and_step(self.step_merge.last) if self.step_merge.last >= 0 else None,
            records=tuple(self.records),
            steady_run=steady_window,
            short_window=short_window,
        )

    def _window(self, window_sum: WindowSum | None, remarks: list[CheckFinding]) -> Window:
        assert window_sum is not None and window_sum.begin is not None and window_sum.end is not None
        seconds = self._seconds(window_sum, remarks)
        rates, durations = window_sum.by_rates, window_sum.by_durations
        numbers = durations if self.log_format.printed == "durations" and durations.count else rates
        step_s, step_unit_s = self._step_s(window_sum, seconds, remarks)
        return Window(
            begin=window_sum.begin.step,
            end=window_sum.end.step,
            begin_epoch=window_sum.begin.epoch,
            end_epoch=window_sum.end.epoch,
            steps=window_sum.steps,
            seconds=seconds,
            resolution_s=window_sum.resolution_s if self.stamped else None,
            rate=1 / rates.seconds if rates.seconds else None,
            duration_s=durations.seconds,
            printed=numbers.count or durations.count,
            printed_every=self.printed_every,
            step_s=step_s,
            step_unit_s=step_unit_s,
            rounding=0.0 if rates.count and numbers is rates else self._rounding(window_sum.durations.values),
            ranks=tuple(
                sorted(rank for rank, key in self.step_merge.ranks.items() if rank >= 0 and key <= window_sum.end.key)
            ),
            begin_offset=window_sum.begin.offset,
            end_offset=window_sum.end.offset,
            pauses=tuple(window_sum.pauses),
            lines_per_step=self.lines_per_step,
            in_steps_done=window_sum is self.in_steps_done,
            mean_of_rates=rates.mean_of_rates,
            mean_steps_per_s=durations.mean_of_rates,
            mean_duration_s=window_sum.by_means.seconds,
            taken_in=window_sum.taken_in if window_sum.taken_in > 0 else None,
        )

    def _seconds(self, window_sum: WindowSum, remarks: list[CheckFinding]) -> float | None:
        if not self.stamped:
            return None
        if window_sum.backwards:
            begin, end = window_sum.backwards
            remarks.append(remark("stamps_go_back", begin=begin, end=end))
            return None
        if not window_sum.seconds > 0:
            remarks.append(remark("stamps_stand_still"))
            return None
        return window_sum.seconds

    def _step_s(
        self, window_sum: WindowSum, seconds: float | None, remarks: list[CheckFinding]
    ) -> tuple[Floats, float]:
        """Step times and their finest unit in s: by time stamps where these resolve them and no finer ones are printed,
        else as printed."""
        error_s = window_sum.error_of_means_s
        times, unit_s = window_sum.durations, max(window_sum.duration_unit_s, error_s)
        intervals = max(window_sum.times.count, 1)
        is_finer = unit_s < window_sum.resolution_s and 2 * times.count > intervals
        if seconds is not None and not is_finer:
            interval_s = seconds / intervals
            if interval_s >= RESOLVED * window_sum.resolution_s:
                times, unit_s = window_sum.times, window_sum.resolution_s
            elif not times.count:
                remarks.append(remark("coarse_stamps", resolution_s=window_sum.resolution_s, interval_s=interval_s))
        if times is window_sum.durations and len(times.values) and 2 * error_s > (mean_s := times.values.mean()):
            remarks.append(remark("coarse_means", error_s=error_s, mean_s=float(mean_s)))
            return np.empty(0), unit_s
        if times.count > len(times.values):
            remarks.append(remark("first_step_times", first=len(times.values), intervals=times.count))
        return times.values, unit_s

    def _rounding(self, times: Floats) -> float:
        """How far off the mean of printed times of a step may be by their rounding, as a share: by half a digit where
        all are alike, by little where they scatter over digits."""
        if not self.units or not len(times) or not (mean_s := float(times.mean())) > 0:
            return 0.0
        of_s, of_ms, of_rate = (self.units.get(name, 0.0) for name in ("duration_s", "duration_ms", "steps_per_s"))
        unit_s = max(of_s, of_ms * 1e-3, of_rate * mean_s**2)
        return unit_s / 2 / mean_s if times.std() < unit_s / 2 else 0.0

    def _remarks(self) -> Iterator[CheckFinding]:
        step_merge, window_sum = self.step_merge, self.window_sum
        assert window_sum is not None
        if back := step_merge.back:
            passed, to = epoch_and_step(back.passed), epoch_and_step(back.to)
            yield remark("another_run", passed=passed, to=to, byte=back.offset)
        if step_merge.unusable:
            yield remark("impossible_lines", lines=step_merge.unusable)
        if step_merge.late_lines:
            yield remark("late_lines", lines=step_merge.late_lines)
        if self.unstamped_points:
            yield remark("unstamped_steps", steps=self.unstamped_points)
        if window_sum.borders:
            yield remark("epochs_of_unknown_length", ends=window_sum.borders)
        if window_sum.more_pauses:
            yield remark("more_pauses", more=window_sum.more_pauses)
        if self.lines_per_step == 1 and window_sum.repeated:
            yield remark("repeated_steps", steps=window_sum.repeated)
        if not self.whole and self.first and self.first[1] > self.warmup + self.printed_every:
            yield remark("late_first_step", first=self.first, warmup=self.warmup)
        if self.dropped_records:
            yield remark("dropped_records", records=self.dropped_records, most=MAX_RECORDS)


def _from_zero(step: Integers, printed_every: int) -> bool:
    """Whether the first step is number 0: it is printed, or every k-th line has a number one below a multiple of k."""
    return bool((step == 0).any() or (printed_every > 1 and len(step) and ((step + 1) % printed_every == 0).all()))


def _pause(record: LogRecord) -> str:
    """Why the training pauses at this record; empty if it does not."""
    if record.kind == "pause":
        return record.values.get("reason") or "pause"
    if record.kind == "evaluation":
        return "validation"
    named = {"mllog": "key", "mark": "mark"}.get(record.kind, "")
    return STANDS_STILL.get(record.values.get(named, ""), "")
