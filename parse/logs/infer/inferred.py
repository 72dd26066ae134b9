"""What a log of no declared format comes to: a pattern that two of its fields confirm, patterns to choose from, or why
there is none.

Every field that says how long steps take must say the same. Each field has readings, what its number may be; a rate is
a time as soon as the work of a step is known. A reading that is equal to one of another field is believed; one that no
other field speaks of is a suggestion; two fields of which no readings are equal contradict each other. Who suggests a
pattern runs it first, and shows what it makes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpc.system.text import grouped
from parse.logs.infer.forms import FieldColumn, Floats, StepForm, StepSeries, series_of
from parse.logs.infer.words import (
    ALL,
    DEVICE,
    ELAPSED,
    INTERVAL,
    MEAN,
    MILLISECOND,
    PACE,
    RATE,
    SINGLE,
    STAMP,
    TIME,
    WORK,
    NamedNumber,
    role_of,
)
from parse.logs.line_pattern import LinePattern, pattern_format
from parse.logs.window import Protocol, read_log

TOLERANCE = 0.01
"""Two readings are equal within this share, beside what their digits leave open."""
COARSE = 0.05
"""A reading whose digits leave more of a time open says nothing."""
PAUSE, MAX_PAUSES = 0.2, 0.2
"""Intervals that are so far apart are pauses, at most that share of all."""
MIN_INTERVALS = 3
VARIES = 4.0
"""A product is the same where its factors vary so many times more."""
EXACT, MAX_CHANCE = 1e-3, 0.1
"""The work of a step is a rate's over so many devices within EXACT, beside what digits leave open; by chance in a share
of MAX_CHANCE of cases at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TimeReading:
    """The seconds between printed steps by one field, NaN where unknown, and how far off each may be; `ends`: errors do
    not add up, as those of a clock that is read at both ends.

    `field` is its name in `--pattern`, empty where that has none; `number` is None for one in lines of its own. Of a
    rate `per_step` is the work of a step that makes it a time, `work` what prints that, `counter` if in step lines.
    """

    name: str
    number: NamedNumber | None
    field: str
    seconds: Floats
    errors: Floats
    ends: bool = False
    how: str = SINGLE
    per_step: float | None = None
    work: str = ""
    counter: FieldColumn | None = None

    def total(self, among: npt.NDArray[np.bool_]) -> tuple[float, float]:
        """Seconds of those intervals, and how far off they may be."""
        errors = self.errors[among]
        return float(self.seconds[among].sum()), float(errors.max() if self.ends else errors.sum())

    @property
    def open_share(self) -> float:
        """The share of the whole time that its digits leave open."""
        seconds, error = self.total(np.isfinite(self.seconds))
        return error / seconds if seconds > 0 else np.inf

    @property
    def has_open_unit(self) -> bool:
        """Whether nothing says if it is in s or in ms."""
        return self.number is not None and len(self.number.role.factors) > 1

    @property
    def text(self) -> str:
        """Its name, of a rate with the work of a step."""
        return self.name if self.per_step is None else f"{self.name} ({self.per_step:.6g} a step by {self.work})"


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What the fields of a form come to: `equal` are readings that say the same, `counter` a work of all steps so far
    that grows by as much in every step, `against` the fields that contradict each other. `unconfirmed` are
    readings of times, `rates` fields of rates, of which no more is known than `support` says."""

    series: StepSeries
    equal: tuple[TimeReading, ...]
    counter: FieldColumn | None
    against: str
    unconfirmed: tuple[TimeReading, ...]
    rates: tuple[FieldColumn, ...]
    support: str

    @property
    def is_confirmed(self) -> bool:
        """Whether two fields say the same and none something else."""
        return bool(self.equal) and not self.against

    @property
    def checks(self) -> str:
        """What confirms it."""
        return f"{' and '.join(each.text for each in self.equal)} agree"

    @property
    def step_s(self) -> float:
        """The seconds of a step."""
        return _each(self.series, self.equal[0].seconds)


@np.errstate(all="ignore")
def conclusion_of(series: StepSeries) -> Conclusion:
    """Holds all fields of a form against one another."""
    times = [reading for column in series.columns for reading in _times(series, column)]
    times += [
        TimeReading(name=name, number=None, field="", seconds=series.gaps / pace, errors=0 * series.gaps)
        for name, pace in series.pace.items()
    ]
    times = [each for each in times if np.nansum(each.seconds) > 0]
    rates = tuple(each for each in series.columns if each.number.role.kind == RATE and (each.values[1:] > 0).all())
    of_rates = [reading for column in rates for time in times for reading in _rate_as_time(series, column, time)]
    readings = times + of_rates
    equal = _equal(readings)
    if all(each.has_open_unit for each in equal):
        equal = []
    return Conclusion(
        series=series, equal=tuple(equal), against=_against(series, readings, equal), rates=rates,
        counter=next((column for column in series.columns if _is_total(series, column)), None),
        unconfirmed=tuple(each for each in times if each.field and each.how != MEAN),
        support=_support(series, rates, times),
    )  # fmt: skip


def _each(series: StepSeries, totals: Floats) -> float:
    """The mean of a step by what is between printed steps."""
    among = np.isfinite(totals) & np.isfinite(series.gaps)
    return float(totals[among].sum() / series.gaps[among].sum())


def _times(series: StepSeries, column: FieldColumn) -> Iterator[TimeReading]:
    """All that a field may say of the time between printed steps."""
    gaps, role, values, digits = series.gaps, column.number.role, column.values, column.digits[1:]
    if role.kind not in (STAMP, TIME, PACE):
        return

    def reading(field: str, seconds: Floats, errors: Floats, how: str) -> TimeReading:
        return TimeReading(
            name=column.number.name, number=column.number, field=field, errors=errors, ends=how in (ELAPSED, MEAN),
            seconds=np.where(np.isfinite(gaps), seconds, np.nan), how=how,
        )  # fmt: skip

    if role.kind == STAMP:
        yield reading("time", np.diff(values), digits, ELAPSED)
        return
    if role.kind == PACE:
        seconds = gaps / values[1:]
        yield reading("steps_per_s", seconds, seconds * digits / values[1:] / 2, SINGLE)
        yield reading("", np.diff(series.steps / values), digits / values[1:] ** 2 * series.steps[1:], MEAN)
        return
    for factor in role.factors:
        unit, each, digit = "ms" if factor == MILLISECOND else "s", values * factor, digits * factor
        if role.hint in ("", ELAPSED) and (np.nan_to_num(np.diff(each)[np.isfinite(gaps)], nan=1) >= 0).all():
            yield reading(f"elapsed_{unit}", np.diff(each), digit, ELAPSED)
        if role.hint != ELAPSED:
            yield reading("ms" if unit == "ms" else "seconds", each[1:] * gaps, digit / 2 * gaps, SINGLE)
        if role.hint == "" and np.nanmax(gaps, initial=1) > 1:
            yield reading("interval_s" if unit == "s" else "", each[1:], digit / 2, INTERVAL)
        if role.hint in ("", MEAN):
            steps = series.steps + (series.steps[0] == 0)
            yield reading(f"mean_{unit}" if role.hint else "", np.diff(each * steps), digit * steps[1:], MEAN)


def _rate_as_time(series: StepSeries, column: FieldColumn, time: TimeReading) -> Iterator[TimeReading]:
    """A rate as a time by the work of a step, over a whole number of devices if it is that of one: by a field of step
    lines, or by a number of other lines that is rate × that time."""
    role, rates, gaps = column.number.role, column.values[1:], series.gaps
    per_step, share = _product(series, column, time)
    if role.hint == MEAN or not per_step > 0:
        return
    works = [each for each in series.columns if each.number.role.kind == WORK and each.number.role.unit == role.unit]
    known = [(each.number.name, _each(series, _work(series, each)), each) for each in works]
    stated = [(name, value, None) for name, value in series.stated.items()]
    for name, value, work in (*known, *stated):
        devices = max(round(value / per_step), 1) if role.scope == DEVICE else 1
        is_near = abs(per_step * devices / value - 1) <= EXACT + share <= MAX_CHANCE / devices
        if is_near or (work and devices == 1):
            seconds = value / devices * gaps / rates
            yield TimeReading(
                name=column.number.name, number=column.number, field=f"{role.unit}_per_s", seconds=seconds,
                errors=seconds * column.digits[1:] / 2 / rates, per_step=value / devices, work=name, counter=work,
            )  # fmt: skip


def _product(series: StepSeries, column: FieldColumn, time: TimeReading) -> tuple[float, float]:
    """What a step takes in by a rate and a time, NaN where that is not known; and the share that digits leave open."""
    rates = column.values[1:]
    among = np.isfinite(rates * time.seconds)
    if among.sum() < MIN_INTERVALS or time.how == MEAN:
        return np.nan, np.inf
    seconds, error = time.total(among)
    share = error / seconds + float((column.digits[1:] / 2 / rates)[among].mean())
    return _each(series, rates * time.seconds), share


def _support(series: StepSeries, rates: Sequence[FieldColumn], times: Sequence[TimeReading]) -> str:
    """A rate × a time that is the same in every step while both vary: they belong together, whatever the work is."""
    for column, time in product(rates, times):
        per_step, share = _product(series, column, time)
        pace = np.log(time.seconds / series.gaps)
        spread, varies = float(np.nanstd(np.log(column.values[1:]) + pace)), float(np.nanstd(pace))
        if spread <= TOLERANCE / 2 + share and varies > VARIES * spread and share < COARSE:
            return f"{column.number.name} × {time.name} is the same in every step, {per_step:.6g}"
    return ""


def _work(series: StepSeries, column: FieldColumn) -> Floats:
    """What the steps between printed ones take in by a field of work: of all so far, or of each."""
    return np.diff(column.values) if _grows(column.values) else column.values[1:] * series.gaps


def _grows(values: Floats) -> bool:
    known = values[np.isfinite(values)]
    return len(known) > 1 and bool((np.diff(known) > 0).all())


def _is_total(series: StepSeries, column: FieldColumn) -> bool:
    """Whether it is work of all steps so far: it grows by as much in every one."""
    each = np.diff(column.values) / series.gaps
    is_work = column.number.role.kind == WORK and _grows(column.values)
    return is_work and bool(np.nanstd(each) <= TOLERANCE * np.nanmean(each))


def _apart(first: TimeReading, other: TimeReading) -> float | None:
    """How far two readings are apart beyond what their digits leave open, as a share; None where that cannot be said.
    Single intervals that are apart, as pauses are, do not count."""
    among = np.isfinite(first.seconds) & np.isfinite(other.seconds)
    if among.sum() < MIN_INTERVALS:
        return None
    open_share = (first.errors + other.errors) / np.maximum(first.seconds, other.seconds)
    differs = ~(np.abs(np.log(first.seconds / other.seconds)) < PAUSE + open_share)
    if (differs & among).sum() <= MAX_PAUSES * among.sum():
        among &= ~differs
    (seconds, error), (other_s, other_error) = first.total(among), other.total(among)
    largest = max(seconds, other_s)
    if not largest > 0 or error + other_error > COARSE * largest:
        return None
    return max(abs(seconds - other_s) - error - other_error, 0.0) / largest


def _may_agree(first: TimeReading, other: TimeReading) -> bool:
    """Whether what their digits leave open, however much that is, has one time in it."""
    among = np.isfinite(first.seconds) & np.isfinite(other.seconds)
    (seconds, error), (other_s, other_error) = first.total(among), other.total(among)
    return seconds + other_s > 0 and abs(seconds - other_s) <= error + other_error


def _equal(readings: Sequence[TimeReading]) -> list[TimeReading]:
    """The readings that are equal to the one that most fields are equal to, one of each field, finest first; none where
    no two fields are."""
    groups = [
        [each, *(other for other in readings if other.name != each.name and (_apart(each, other) or 0) <= TOLERANCE
                 and _apart(each, other) is not None)]
        for each in readings
    ]  # fmt: skip
    best = max(groups, key=lambda group: (len({each.name for each in group}), group[0].how != MEAN), default=[])
    best.sort(key=lambda each: (each.how == MEAN, not each.field, each.open_share))
    finest = list({each.name: each for each in reversed(best)}.values())[::-1]
    return finest if len(finest) > 1 else []


def _against(series: StepSeries, readings: Sequence[TimeReading], equal: Sequence[TimeReading]) -> str:
    """Two fields that contradict each other: of no field are all readings another time than those that are equal, or
    where none are, than all of another field. Empty where there are none."""
    by_name = grouped((each.name, each) for each in readings)
    agreed = {each.name for each in equal}
    pairs = [(by_name[name], equal[:1]) for name in by_name if name not in agreed] if equal else [
        (by_name[first], by_name[other]) for first, other in combinations(by_name, 2)
    ]  # fmt: skip
    is_sampled = bool(np.nanmax(series.gaps, initial=1) > 1)
    for ours, theirs in pairs:
        if any(_may_agree(reading, other) for reading in ours for other in theirs):
            continue
        compared = [
            (share - (PAUSE if is_sampled and SINGLE in (reading.how, other.how) else TOLERANCE), place, reading, other)
            for place, (reading, other) in enumerate((reading, other) for reading in ours for other in theirs)
            if (share := _apart(reading, other)) is not None
        ]  # fmt: skip
        if compared and (nearest := min(compared))[0] > 0:
            _, _, reading, other = nearest
            return " and ".join(
                f"{each.text} makes {_each(series, each.seconds):.4g} s a step" for each in (reading, other)
            )
    return ""


# What a log comes to.


TIME_OF_UNIT = re.compile(r"\d ?(?:m?s|m?secs?)(?![\w/])")
MAX_SUGGESTED = 4
"""Fields that are suggested."""
MIN_SHARE = 0.2
"""A form of line that the log has less often than this share of the first is no other program's."""


@dataclass(frozen=True, kw_only=True)
class FieldPattern:
    """A pattern that reads one field of the step lines: `field` by its name in the log, `name` by that in the pattern,
    of a rate `per_step`, what a step takes in. `open_share` is the share of times that digits leave open."""

    pattern: LinePattern
    field: str
    name: str
    per_step: float | None = None
    open_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How a log of no declared format may be read: by the `pattern`, where the `witnesses` say the same; else by one of
    the `suggestions`. Beside a pattern these are of its rate, of one device or of all. `checks` is what speaks for
    it."""

    pattern: LinePattern | None = None
    checks: str = ""
    witnesses: tuple[FieldPattern, ...] = ()
    suggestions: tuple[FieldPattern, ...] = ()


def infer(path: Path) -> Inference | str:
    """How the log of no declared format may be read, or why not; an empty text where no line of it counts steps and has
    a time. Raises LogError where it cannot be read."""
    concluded = [conclusion_of(series) for series in series_of(path)]
    if not concluded:
        return ""
    concluded.sort(key=lambda each: (not each.is_confirmed, -each.series.form.count))
    first, *others = concluded
    others = [each for each in others if each.series.form.count >= MIN_SHARE * first.series.form.count]
    counts = f"its lines count {first.series.form.step.name or 'steps'!r}"
    for each in concluded[: len(others) + 1]:
        if each.against:
            return f"{counts}, and its fields contradict each other: {each.against}"
    if not first.is_confirmed:
        suggestions = tuple(_suggestions(first))
        fields = [*dict.fromkeys(each.field for each in suggestions)][:MAX_SUGGESTED]
        suggestions = tuple(each for each in suggestions if each.field in fields)
        reason = f"{counts}, and nothing that --pattern can time"
        return Inference(suggestions=suggestions, checks=first.support) if suggestions else reason
    for each in others:
        if each.is_confirmed and abs(each.step_s / first.step_s - 1) > 2 * TOLERANCE:
            return f"two kinds of lines count steps, of {first.step_s:.4g} s and of {each.step_s:.4g} s"
    return _confirmed(first) or f"{counts}, and no --pattern reads what confirms them: {first.checks}"


def _suggestions(conclusion: Conclusion) -> Iterator[FieldPattern]:
    """The patterns of single fields, rates first."""
    form = conclusion.series.form
    for column in conclusion.rates:
        yield from _of_rate(form, column.number)
    has_parts = len(TIME_OF_UNIT.findall(form.line)) > 1
    for reading in conclusion.unconfirmed:
        its_name = reading.number.name if reading.number and reading.field != "time" else "time"
        if has_parts and not role_of(its_name, "", False).kind:
            continue  # `data 0.1 s model 0.2 s`: it may be a part of a step
        if reading.number and (pattern := form.pattern_of({reading.number: reading.field})):
            yield FieldPattern(pattern=pattern, field=reading.name, name=reading.field)


def _of_rate(form: StepForm, number: NamedNumber, work: str = "") -> Iterator[FieldPattern]:
    """The patterns that read a rate of that work: what it is of, one device or all, may be open."""
    name, scope = f"{number.role.unit}_per_s", number.role.scope or (ALL if "global" in work.casefold() else "")
    of_device, of_mean = f"{name}_per_device", (f"mean_{name}",) if number.role.hint == MEAN else ()
    for field in {DEVICE: (of_device,), "": (name, of_device, *of_mean)}.get(scope, (name, *of_mean)):
        if pattern := form.pattern_of({number: field}):
            yield FieldPattern(pattern=pattern, field=number.name, name=field)


def _confirmed(conclusion: Conclusion) -> Inference | None:
    """The pattern with what is confirmed: a rate, or a time with a counter of work; None where none reads it."""
    form, equal = conclusion.series.form, [each for each in conclusion.equal if each.number and each.field]
    rate = next((each for each in equal if each.per_step), None)
    times = [each for each in equal if not each.per_step]
    rates = tuple(_of_rate(form, rate.number, rate.work)) if rate and rate.number else ()
    fields = {rate.number: rates[0].name} if rate and rate.number and rates else {}
    counter = conclusion.counter if rate is None or rate.counter is conclusion.counter else None
    if times and (counter or not rate):
        stamps = [each for each in times[1:] if each.field == "time" and times[0].how != ELAPSED]
        fields |= {each.number: each.field for each in (times[0], *stamps) if each.number}
        fields |= {counter.number: f"total_{counter.number.role.unit}"} if counter else {}
    witnesses = [dataclasses.replace(rates[0], per_step=rate.per_step)] if rate and rates else []
    for each in times:
        if each.number and each.how != MEAN and (read := form.pattern_of({each.number: each.field})):
            witnesses.append(FieldPattern(pattern=read, field=each.name, name=each.field, open_share=each.open_share))
    if not fields or not (pattern := form.pattern_of(fields)):
        return None
    open_rates = rates if len(rates) > 1 else ()
    return Inference(pattern=pattern, checks=conclusion.checks, witnesses=tuple(witnesses), suggestions=open_rates)


def why_doubtful(path: Path, inference: Inference, protocol: Protocol) -> str:
    """Why the number is not believed: the fields that confirm each other make other times in the window that counts;
    empty where they are equal there, too."""
    times: list[tuple[FieldPattern, float]] = []
    for witness in inference.witnesses:
        reading = read_log(path, pattern_format((witness.pattern,)), protocol)
        window = reading.window or reading.short_window
        if window is None:
            return ""
        by_clock = window.seconds / window.steps if window.seconds and window.steps else window.duration_s
        if seconds := witness.per_step / window.rate if witness.per_step and window.rate else by_clock:
            times.append((witness, seconds))
    for (first, first_s), (other, other_s) in pairwise(times):
        if abs(other_s / first_s - 1) > TOLERANCE + first.open_share + other.open_share:
            return f"in its window {first.field} makes {first_s:.4g} s a step, and {other.field} {other_s:.4g} s"
    return ""
