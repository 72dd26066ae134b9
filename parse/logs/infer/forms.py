"""The lines that a log prints again and again with a step that grows, and what their fields are, as columns.

A column is read by the pattern that would be suggested for it: what a pattern cannot read is no column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parse.logs.engine.fields import LARGEST, seconds_of
from parse.logs.engine.reader import ANSI, sample
from parse.logs.infer.words import (
    BATCH_SIZE,
    EPOCH,
    PACE,
    RATE,
    STAMP,
    STEP,
    TIME,
    WORK,
    HeadedColumns,
    NamedNumber,
    as_utf_8,
    cells,
    numbers_of,
    table_of,
)
from parse.logs.line_pattern import CONTINUED, FIELDS, LINES, MAX_GAP, LinePattern, PatternError, pattern_format

JOINT = "\v"
"""Stands for a line end behind which a line goes on."""
MAX_WIDTH = 3
"""Words before a field that are part of its pattern at most."""
_BLANKS = re.compile(r"\s+")
_SPECS = {"step": ":d", "epoch": ":d", "time": ""}


@dataclass(frozen=True, kw_only=True)
class StepForm:
    """Lines that differ in numbers alone: one of them, what its numbers are, and which of these counts steps.

    A character of `line` and of `others` is a byte of the log. `count` is how many lines the log has of it; `table`
    names the columns of a row; `others` are lines of no training, which no pattern may read.
    """

    line: str
    numbers: tuple[NamedNumber, ...]
    step: NamedNumber
    count: int
    table: HeadedColumns | None = None
    others: tuple[str, ...] = ()

    @property
    def epoch(self) -> NamedNumber | None:
        """The number that counts epochs."""
        return next((number for number in self.numbers if number.role.kind == EPOCH), None)

    def pattern_of(self, fields: Mapping[NamedNumber, str]) -> LinePattern | None:
        """The pattern with the step, the epoch and these fields, by the names that `--pattern` has for them; None where
        none reads them and nothing else."""
        wanted = {**fields, self.step: "step"} | ({self.epoch: "epoch"} if self.epoch else {})
        for width in range(1, MAX_WIDTH + 1):
            try:
                pattern = LinePattern(_row(self, wanted) if self.table else _text(self, wanted, width))
            except PatternError:
                continue
            if self._is_read(pattern, wanted):
                return pattern
        return None

    def _is_read(self, pattern: LinePattern, wanted: Mapping[NamedNumber, str]) -> bool:
        form = pattern_format((pattern,)).steps[0].pattern
        match = form.search(searched(self.line))
        if match is None or any(match.start(FIELDS[name].group) != number.start for number, name in wanted.items()):
            return False
        return not any(form.search(searched(line)) for line in self.others)


def searched(line: str) -> bytes:
    """The line as the engine reads it."""
    return line.replace(JOINT, " ").encode("latin-1")


def _text(form: StepForm, wanted: Mapping[NamedNumber, str], width: int) -> str:
    line, before = form.line, 0
    parts: list[str] = []
    for number in sorted(wanted, key=lambda each: each.start):
        begin = max(before, _begin_of_label(line, number, before, width))
        label = line[begin : number.start]
        if label.endswith(" ") and label.rstrip()[-1:] in ("[", "(", "|"):
            label = label.rstrip()  # blanks that pad the number
        parts += [_between(form, before, begin)] if parts else []
        parts.append(f"{_literal(label.lstrip())}{{{wanted[number]}{_SPECS.get(wanted[number], ':f')}}}")
        goes_on = re.compile(r"[^\s.](?=[.\d])").match(line, number.stop)  # as of `5/500`
        before = max(number.unit_until, goes_on.end() if goes_on else number.stop)
        parts.append(_literal(line[number.stop : before]))
    return "".join(parts)


def _begin_of_label(line: str, number: NamedNumber, before: int, width: int) -> int:
    begin = number.name_from
    while begin > before and line[begin - 1] in "'\"[(":
        begin -= 1
    for _ in range(width - 1):
        earlier = re.search(r"\S+\s*$", line[before:begin])
        if earlier is None or re.search(r"\d", earlier[0]):
            break
        begin = before + earlier.start()
    return begin


def _between(form: StepForm, before: int, begin: int) -> str:
    """The gap between two fields; where it is longer than that of a pattern, with names of numbers in it."""
    text = form.line[before:begin]
    if JOINT in text:
        return f" … {LINES} "
    names = []
    for number in form.numbers if len(text) > MAX_GAP else ():
        if before + MAX_GAP // 2 < number.name_from < number.start < begin:
            names.append(f" … {_literal(form.line[number.name_from : number.start])}")
            before = number.start
    return "".join(names) + (" … " if not text or text.endswith(" ") or form.line[begin] == " " else " …")


def _row(form: StepForm, wanted: Mapping[NamedNumber, str]) -> str:
    """The pattern by a row of a table: of all columns."""
    separator = form.table.separator if form.table else ""
    by_start = {number.start: number for number in wanted}
    blank, before = "" if separator == "," else " ", 0
    parts: list[str] = []
    for start, stop in cells(form.line, separator):
        number = by_start.get(start)
        name = f"{wanted[number]}{_SPECS.get(wanted[number], ':f')}" if number else "_"
        unit_at = number.stop if number else start + len(form.line[start:stop].partition(" ")[0])
        unit = re.sub(r"\S*\d\S*", "{_}", _literal(form.line[unit_at:stop]))
        parts.append(_BLANKS.sub(blank, form.line[before:start]) + f"{{{name}}}{unit}")
        before = stop
    return "".join((*parts, _BLANKS.sub(blank, form.line[before:]))).strip()


def _literal(text: str) -> str:
    return re.sub(r"…|\.{3,}", "", as_utf_8(text)).replace("{", "{{").replace("}", "}}").replace("\t", " ")


# The lines that a log prints again and again with a step that grows, and what their fields are, as columns.


Floats = npt.NDArray[np.float64]
Cells = dict[tuple[float, float], tuple[float, float]]  # by epoch and step a value, and the worth of its last digit
MAX_LINES, MAX_LINE = 4000, 4096
"""Lines of each part, and characters of a line, that are looked at."""
MAX_SHAPES, MAX_FORMS, MAX_FIELDS, MAX_ABOVE, MAX_OTHERS, MAX_HEADER = 32, 8, 12, 3, 100, 200
MIN_STEPS, MOST = 5, 0.9
"""Printed steps that are enough to compare fields; and the share of them that are larger than the one before."""
MAX_LINES_OF_STEP = 80
_NUMBERS = re.compile(r"\d[\d.:,]*(?:e[+-]?\d+)?")
_NO_TRAINING = re.compile(
    r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|evaluating|test|testing|inference|sav(?:ed?|ing)|checkpoint"
    r"|generat(?:ed?|ing)|tokeni[sz](?:ed?|ing)|preprocess(?:ed|ing)?|(?:down)?load(?:ed|ing)|warm ?up)(?![a-z])"
)
"""Words before a step that say that it is none of the training."""
BEFORE_STEP = 40


@dataclass(frozen=True, kw_only=True)
class FieldColumn:
    """A field at every printed step, NaN where absent: its values as printed, and the worth of their last digits."""

    number: NamedNumber
    values: Floats
    digits: Floats


@dataclass(frozen=True, kw_only=True)
class StepSeries:
    """The printed steps of a form in ascending order, and its fields. `pace` and `stated` are steps per second and work
    that lines without a step print, by the names of these numbers."""

    form: StepForm
    steps: Floats
    columns: tuple[FieldColumn, ...]
    pace: Mapping[str, float]
    stated: Mapping[str, float]

    @property
    def gaps(self) -> Floats:
        """The steps from each printed step to the next; NaN where numbers begin again at an epoch."""
        gaps = np.diff(self.steps)
        return np.where(gaps > 0, gaps, np.nan)


def series_of(path: Path) -> list[StepSeries]:
    """The step lines of the log by their forms, the most frequent first. Raises LogError where it cannot be read."""
    parts = [part for part in sample(path) if b"\0\0\0\0" not in part]
    joined = [CONTINUED.sub(JOINT.encode(), part) for part in parts if CONTINUED.search(part)]
    texts = (parts, [text for text in joined if text.count(JOINT.encode()) < MAX_LINES_OF_STEP * text.count(b"\n")])
    candidates = [_series([_lines(part) for part in text]) for text in texts]
    return max(candidates, key=lambda each: max((len(series.columns) for series in each), default=0))


def _lines(part: bytes) -> list[str]:
    return [raw[:MAX_LINE].decode("latin-1") for raw in ANSI.sub(b"", part).split(b"\n")[:MAX_LINES]]


def _shape(line: str) -> str:
    return re.sub(r"\s+", " ", _NUMBERS.sub("0", line)).strip()


def _series(parts: Sequence[Sequence[str]]) -> list[StepSeries]:
    """The forms with their fields, each by the part of the text that has most lines of it."""
    shapes = [[_shape(line) for line in lines] for lines in parts]
    counts = Counter(shape for each in shapes for shape in each if "0" in shape)
    forms: dict[tuple[str, ...], tuple[StepForm, Sequence[str]]] = {}
    no_training: list[str] = []
    paces: dict[str, float] = {}
    for shape, count in counts.most_common(MAX_SHAPES):
        place = max(range(len(parts)), key=lambda at: shapes[at].count(shape))
        of_shape = [line for line, its in zip(parts[place], shapes[place], strict=True) if its == shape]
        first = shapes[place].index(shape)
        above = [*parts[0][:1], *parts[place][max(first - MAX_ABOVE, 0) : first]]
        table = table_of(above, line := of_shape[len(of_shape) // 2])
        numbers = tuple(table.numbers_of(line) if table else numbers_of(line))
        steps = [number for number in numbers if number.role.kind == STEP]
        key = tuple(number.name for number in numbers if number.role.kind)
        if steps and _NO_TRAINING.search(line[max(steps[0].start - BEFORE_STEP, 0) : steps[0].start]):
            no_training += of_shape[:MAX_OTHERS]
        elif steps and key not in forms and len(forms) < MAX_FORMS:
            step = next((number for number in steps if "global" in number.name), steps[0])
            sizes = {number: replace(number, role=BATCH_SIZE) for number in steps if number != step}
            numbers = tuple(sizes.get(number, number) for number in numbers)
            forms[key] = StepForm(line=line, numbers=numbers, step=step, count=count, table=table), parts[place]
        elif not steps and numbers and numbers[0].role.kind == PACE:
            values = [numbers_of(line)[0] for line in of_shape]
            texts = [line[number.start : number.stop] for line, number in zip(of_shape, values, strict=True)]
            paces[numbers[0].name] = float(np.median([_value(text) for text in texts]))
    stated = {
        number.name: _value(line[number.start : number.stop])
        for lines in parts[:1] for line in lines[:MAX_HEADER] for number in numbers_of(line) if number.role.kind == WORK
    }  # fmt: skip
    read = [_read(replace(form, others=tuple(no_training)), lines, paces, stated) for form, lines in forms.values()]
    return [series for series in read if series]


def _read(
    form: StepForm, lines: Sequence[str], pace: Mapping[str, float], stated: Mapping[str, float]
) -> StepSeries | None:
    """The printed steps with their fields; None where they are too few, or go back as no steps do."""
    wanted = [each for each in form.numbers if each.role.kind in (STAMP, TIME, PACE, RATE, WORK)]
    read = {number: _cells(form, number, lines) for number in wanted[:MAX_FIELDS]}
    order = max((list(each) for each in read.values()), key=len, default=[])
    ups = sum(after > before for before, after in pairwise(order))
    if len(order) < MIN_STEPS or ups < MOST * (len(order) - 1):
        return None
    keys = sorted(order)
    columns = []
    for number, values in read.items():
        table = np.array([values.get(key, (np.nan, np.nan)) for key in keys])
        finest = np.nanmin(table[:, 1], initial=np.inf)  # a program that prints 2.5 for 2.500 has as many digits
        digits = np.where(table[:, 1] > 1, table[:, 1], finest)
        if number.role is not BATCH_SIZE or np.nanmin(table[:, 0]) == np.nanmax(table[:, 0]):  # else it counts batches
            columns.append(FieldColumn(number=number, values=table[:, 0], digits=digits))
    steps = np.array([step for _, step in keys])
    return StepSeries(form=form, steps=steps, columns=tuple(columns), pace=pace, stated=stated)


def _cells(form: StepForm, number: NamedNumber, lines: Sequence[str]) -> Cells:
    """A field as a pattern for it reads the lines, of several of a step the first; empty where no pattern reads it."""
    name = "time" if number.role.kind == STAMP else "seconds"
    values: Cells = {}
    if pattern := form.pattern_of({number: name}):
        expression, group = pattern_format((pattern,)).steps[0].pattern, FIELDS[name].group
        for line in lines:
            if match := expression.search(searched(line)):
                epoch, text = float(match["epoch"]) if form.epoch else -1.0, match[group].decode()
                value = _value(text) if name == "seconds" else seconds_of(text.encode())
                values.setdefault((epoch, float(match["step"])), (np.nan if value is None else value, _digit(text)))
    return values


def _value(text: str) -> float:
    value = float(text.replace(",", ""))
    return value if value <= LARGEST else np.nan


def _digit(text: str) -> float:
    """The worth of the last digit."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = re.search(r"[.,](\d{1,9})$", mantissa) if ":" in mantissa or "." in mantissa else None
    return float(10.0 ** (float(exponent or 0) - (len(decimals[1]) if decimals else 0)))
