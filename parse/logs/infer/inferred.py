"""What a log of no declared format comes to: a pattern that two of its fields confirm, patterns to choose from, or why
there is none.

A pattern without confirmation is a suggestion. Who suggests it runs it first, and shows what it makes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from parse.logs.infer.equations import TOLERANCE, Conclusion, conclusion_of
from parse.logs.infer.forms import series_of
from parse.logs.infer.pattern_text import StepForm
from parse.logs.infer.words import DEVICE, ELAPSED, MEAN, NamedNumber
from parse.logs.line_pattern import LinePattern, pattern_format
from parse.logs.window import Protocol, read_log

MAX_SUGGESTED = 4
MIN_SHARE = 0.2
"""A form of line that the log has less often than this share of the first is no other program's."""


@dataclass(frozen=True, kw_only=True)
class FieldPattern:
    """A pattern that reads one field of the step lines: `field` by its name in the log, of a rate `name` in the pattern
    and `per_step`, what a step takes in. `open_share` is the share of times that digits leave open."""

    pattern: LinePattern
    field: str
    name: str = ""
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
        suggestions = tuple(_suggestions(first))[:MAX_SUGGESTED]
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
    for reading in conclusion.unconfirmed:
        if reading.number and (pattern := form.pattern_of({reading.number: reading.field})):
            yield FieldPattern(pattern=pattern, field=reading.name)


def _of_rate(form: StepForm, number: NamedNumber) -> Iterator[FieldPattern]:
    """The patterns that read a rate: what it is of, one device or all, may be open."""
    name = f"{number.role.unit}_per_s"
    of_device, of_mean = f"{name}_per_device", (f"mean_{name}",) if number.role.hint == MEAN else ()
    for field in {DEVICE: (of_device,), "": (name, of_device, *of_mean)}.get(number.role.scope, (name, *of_mean)):
        if pattern := form.pattern_of({number: field}):
            yield FieldPattern(pattern=pattern, field=number.name, name=field)


def _confirmed(conclusion: Conclusion) -> Inference | None:
    """The pattern with what is confirmed: a rate, or a time with a counter of work; None where none reads it."""
    form, equal = conclusion.series.form, [each for each in conclusion.equal if each.number and each.field]
    rate = next((each for each in equal if each.per_step), None)
    times = [each for each in equal if not each.per_step]
    rates = tuple(_of_rate(form, rate.number)) if rate and rate.number else ()
    fields = {rate.number: rates[0].name} if rate and rate.number and rates else {}
    counter = conclusion.counter if rate is None or rate.counter is conclusion.counter else None
    if times and (counter or not rate):
        stamps = [each for each in times[1:] if each.field == "time" and times[0].how != ELAPSED]
        fields |= {each.number: each.field for each in (times[0], *stamps) if each.number}
        fields |= {counter.number: f"total_{counter.number.role.unit}"} if counter else {}
    witnesses = [dataclasses.replace(rates[0], per_step=rate.per_step)] if rate and rates else []
    for each in times:
        if each.number and each.how != MEAN and (read := form.pattern_of({each.number: each.field})):
            witnesses.append(FieldPattern(pattern=read, field=each.name, open_share=each.open_share))
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
