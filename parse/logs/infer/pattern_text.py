"""The text of `--pattern` for fields of a line: with as much of the line as tells them from others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from parse.logs.infer.words import EPOCH, HeadedColumns, NamedNumber, as_utf_8, cells
from parse.logs.line_pattern import FIELDS, LINES, MAX_GAP, LinePattern, PatternError, pattern_format

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
    names the columns of a row; `others` are lines of evaluations, which no pattern may read.
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
