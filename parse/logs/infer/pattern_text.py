"""The pattern for a form of step line, in the words of `--pattern`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc.system.text import plural
from parse.logs.infer.agreement import STAMPS, FieldAgreement, FieldColumn, FieldTimes, shown
from parse.logs.infer.columns import Heading
from parse.logs.infer.forms import JOINT, CountingLine, StepForm
from parse.logs.infer.vocabulary import DEVICE, ELAPSED, EPOCH, MEAN, PACE, RATE, SINGLE, STEP, TIME, WORK
from parse.logs.infer.words import LineWords, NamedNumber
from parse.logs.line_pattern import LINES, MAX_GAP, LinePattern, PatternError, pattern_format

MAX_TRIED, MAX_OTHERS = 400, 2000
"""Lines of a form, and of other forms, that a pattern is tried on."""
MAX_UNREAD = 0.02
"""Share of a form's lines that its pattern need not read."""
MAX_ZONE = 6


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A field of the pattern: its name there, and what of a line it is; None: the time stamp."""

    name: str
    kind: str
    field: str
    of: bool = False


def pattern_of(form: StepForm, lines: Sequence[CountingLine]) -> LinePattern | str:
    """The pattern that reads what is believed, tried on all `lines`; or why there is none."""
    agreement = form.agreement
    places = []
    if agreement.speed is not None:
        if not agreement.speed.column.plain:
            return f"it does not read numbers as those of {agreement.speed.column.name}"
        places.append(_rate_place(agreement.speed.column))
    counter = agreement.counter
    if counter is not None and counter.plain and _counts_all(agreement, counter):
        places.append(_Place(name=f"total_{counter.role.unit}", kind=WORK, field=counter.name))
    rated = agreement.speed is not None
    times = [(name, each) for each in agreement.times if (name := _time_name(each, rated=rated))]
    if not times and not rated:
        return f"it does not read {' and '.join(shown(each.field) for each in agreement.times)}"
    if times:
        name, first = times[0]
        places.append(_Place(name=name, kind=first.role.kind if first.role else STAMPS, field=first.field))
        if any(each.field == STAMPS for _, each in times[1:]) and not name.startswith("elapsed"):
            places.append(_Place(name="time", kind=STAMPS, field=STAMPS))
    return _written(form, places, lines)


def _rate_place(column: FieldColumn) -> _Place:
    device = "_per_device" if column.role.scope == DEVICE else ""
    return _Place(name=f"{column.role.unit}_per_s{device}", kind=RATE, field=column.name)


def _counts_all(agreement: FieldAgreement, counter: FieldColumn) -> bool:
    """Whether the counter has what all devices took in: it makes the number where no rate does, and beside a rate of
    one device."""
    speed = agreement.speed
    if speed is None:
        return True
    role = speed.column.role
    return role.scope == DEVICE and speed.devices is not None and counter.role.unit == role.unit


def candidate(form: StepForm) -> str:
    """A pattern for what the lines say, where nothing confirms it; empty where there is none."""
    plain_columns = [column for column in form.series.columns if column.plain]
    places = [_rate_place(column) for column in plain_columns if column.role.kind == RATE][:1]
    rated = bool(places)
    if np.isfinite(form.series.stamps).any():
        places.append(_Place(name="time", kind=STAMPS, field=STAMPS))
    timed = next((column for column in plain_columns if column.role.kind in (TIME, PACE)), None)
    if timed is not None and not (rated and len(places) > 1):
        name = _name_of_column(timed)
        if name and not (name.startswith("elapsed") and any(place.name == "time" for place in places)):
            places.append(_Place(name=name, kind=timed.role.kind, field=timed.name))
    pattern = _written(form, places, form.lines) if places else ""
    return "" if isinstance(pattern, str) else pattern.text


def _name_of_column(column: FieldColumn) -> str:
    """The field of --pattern that a time is by its words alone; empty where there is none."""
    if column.is_time:
        return "elapsed"
    if column.role.kind == PACE:
        return "steps_per_s"
    return _unit_name({ELAPSED: "elapsed", MEAN: "mean"}.get(column.role.hint, ""), column.role.factors[0])


def _time_name(times: FieldTimes, *, rated: bool) -> str:
    """The field of --pattern that a reading is; empty where there is none."""
    if times.field == STAMPS:
        return "time"
    if not times.plain or times.role is None:
        return ""
    if times.is_time:
        return "elapsed"
    if times.role.kind == PACE:
        return "steps_per_s" if times.how == SINGLE else ""
    what = {ELAPSED: "elapsed", SINGLE: "", MEAN: "mean"}.get(times.how)
    return "" if what is None or (what == "mean" and rated) else _unit_name(what, times.factor)


def _unit_name(what: str, factor: float) -> str:
    unit = {1.0: "s", 1e-3: "ms"}.get(factor)
    if unit is None:
        return ""
    return f"{what}_{unit}" if what else {"s": "seconds", "ms": "ms"}[unit]


def _written(form: StepForm, places: Sequence[_Place], lines: Sequence[CountingLine]) -> LinePattern | str:
    """The pattern with these fields, tried on all lines: with as little text as tells them from others."""
    sample = form.lines[len(form.lines) // 2]
    wanted = [*places, _Place(name="step", kind=STEP, field=form.step)]
    epoch = next((number for number in sample.words.numbers if number.role and number.role.kind == EPOCH), None)
    if epoch is not None:
        wanted.append(_Place(name="epoch", kind=EPOCH, field=epoch.name))
        step = _number_of(sample.words, STEP, form.step)
        if step and step.of and epoch.start < step.start:
            wanted.append(_Place(name="epoch_steps", kind=STEP, field=form.step, of=True))
    reason = "no text of the lines names their fields"
    for width in (1, 2, 3):
        try:
            pattern = LinePattern(_text(sample, wanted, width))
        except PatternError as error:
            reason = str(error)
            continue
        if not (wrong := _misread(pattern, wanted, form, lines)):
            return pattern
        reason = wrong
    return reason


def _number_of(words: LineWords, kind: str, field: str) -> NamedNumber | None:
    return next(
        (number for number in words.numbers if number.role and number.role.kind == kind and number.name == field), None
    )


def _span(line: CountingLine, place: _Place) -> tuple[int, int] | None:
    """Where the field is in a line."""
    if place.kind == STAMPS:
        return (line.words.stamp.start, line.words.stamp.stop) if line.words.stamp else None
    number = _number_of(line.words, place.kind, place.field)
    if number is None:
        return None
    return number.of if place.of else (number.start, number.stop)


def _text(line: CountingLine, wanted: Sequence[_Place], width: int) -> str:
    """The pattern by one line; `width`: how many words before a field are part of it."""
    placed = sorted(((span, place) for place in wanted if (span := _span(line, place))), key=lambda each: each[0])
    if line.words.heading is not None:
        return _row_text(line.text, line.words.heading, {start: place for (start, _), place in placed})
    parts: list[str] = []
    before = 0
    for (start, stop), place in placed:
        number = None if place.kind == STAMPS else _number_of(line.words, place.kind, place.field)
        if place.of:
            parts.append(_literal(line.text[before:start]) + "{epoch_steps:d}")
            before = stop
            continue
        begin = start if number is None else max(before, _begin_of_name(line.text, number.named_from, before, width))
        label = line.text[begin:start]
        if label.endswith(" ") and label.rstrip()[-1:] in ("[", "(", "|"):
            label = label.rstrip()  # blanks that pad the number
        joint = _between_gaps(line, before, begin) + _gap(line.text[before:begin], label) if parts else ""
        spec = _SPECS.get(place.name, ":f")
        unit = (
            ""
            if number is None
            else _unit_text(line.text, number, place.kind == STEP and any(each.of for each in wanted))
        )
        parts.append(f"{joint}{_literal(label.lstrip())}{{{place.name}{spec}}}{_literal(unit)}")
        before = stop + len(unit)
    return "".join(parts)


def _row_text(text: str, heading: Heading, wanted: Mapping[int, _Place]) -> str:
    """The pattern by a row of a table, all columns of it."""
    parts, before = [], 0
    for start, stop in heading.cells(text):
        place = wanted.get(start)
        unit = re.sub(r"[-+.,\deE:]+", "", text[start:stop]) if place and place.kind != STAMPS else ""
        field = f"{{{place.name}{_SPECS.get(place.name, ':f')}}}{_literal(unit)}" if place else "{_}"
        parts.append(_between(text[before:start], heading.separator) + field)
        before = stop
    return "".join(parts) + _between(text[before:].rstrip(), heading.separator)


def _between(text: str, separator: str) -> str:
    """What is between two cells: without blanks beside a comma, where they pad."""
    return re.sub(r"\s+", "" if separator in (",", ";") else " ", text)


_SPECS = {"step": ":d", "epoch": ":d", "time": "", "elapsed": ""}


def _unit_text(text: str, number: NamedNumber, total_is_read: bool) -> str:
    """The text behind a number that is part of the pattern: its unit, or the stroke before its total."""
    if number.of is not None:
        return "/" if text[number.stop] == "/" and not total_is_read else ""
    return text[number.stop : number.unit_until] if number.unit and number.unit_until > number.stop else ""


def _between_gaps(line: CountingLine, before: int, begin: int) -> str:
    """The names of numbers between two fields that are further apart than a gap of a pattern is long."""
    names = []
    is_far = begin - before > MAX_GAP and JOINT.decode() not in line.text[before:begin]
    for number in line.words.numbers if is_far else ():
        if before + MAX_GAP // 2 < number.named_from < number.start < begin:
            names.append(f" … {_literal(line.text[number.named_from : number.start])}")
            before = number.start
    return "".join(names)


def _gap(gap: str, label: str) -> str:
    if JOINT.decode() in gap + label:
        return f" … {LINES} "
    return " … " if (not gap or gap.endswith(" ") or label[:1] == " ") else " …"


def _begin_of_name(text: str, named_from: int, before: int, width: int) -> int:
    begin = named_from
    while begin > before and text[begin - 1] in "'\"[(":
        begin -= 1
    for _ in range(width - 1):
        earlier = re.search(r"\S+\s*$", text[before:begin])
        if earlier is None or re.search(r"\d", earlier[0]):
            break
        begin = before + earlier.start()
    return begin


def _literal(text: str) -> str:
    return re.sub(r"…|\.{3,}", "", text).replace("{", "{{").replace("}", "}}").replace("\t", " ")


def _misread(pattern: LinePattern, wanted: Sequence[_Place], form: StepForm, lines: Sequence[CountingLine]) -> str:
    """Why the pattern does not read the lines as they were read; empty where it does."""
    groups = pattern_format((pattern,)).steps[0].pattern
    names = {place.name: place for place in wanted}
    by_group = {
        field.group: names[name] for name, field in zip(pattern.names, pattern.fields, strict=True) if name in names
    }
    tried = form.lines[:MAX_TRIED]
    unread = 0
    for line in tried:
        match = groups.search(plain(line.text))
        if match is None:
            unread += 1
        elif not all(_is_at(match.span(group), _span(line, place)) for group, place in by_group.items()):
            return f"{pattern.text!r} takes another number of {line.text[:80]!r}"
    if unread > MAX_UNREAD * len(tried):
        return f"{pattern.text!r} does not read {unread} of {plural(len(tried), 'line')}"
    mine = {id(line) for line in form.lines}
    strange = sum(
        1 for line in lines[:MAX_OTHERS]
        if id(line) not in mine and groups.search(plain(line.text))
        and (line.evaluates or not all(_span(line, place) for place in wanted))
    )  # fmt: skip
    return f"{pattern.text!r} reads {plural(strange, 'line')} of another kind, too" if strange else ""


def _is_at(read: tuple[int, int], span: tuple[int, int] | None) -> bool:
    """Whether a field was read where it is; a time stamp's zone is not read."""
    return span is not None and read[0] == span[0] and span[1] - MAX_ZONE <= read[1] <= span[1]


def plain(text: str) -> bytes:
    """The line as the engine reads it."""
    return text.encode("latin-1").replace(JOINT, b" ")
