"""The numbers of a line of a log, each with the name and the unit beside it, or with the name of its column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from parse.logs.engine.fields import TIME_STAMP, seconds_of
from parse.logs.infer.roles import EDGE, NO_ROLE, STAMP, STEP, NumberRole, phrase, role_of

MAX_NUMBERS, MAX_NAME = 200, 48
MIN_COLUMNS = 3
CLOCK = "clock"
EARLIEST_S = 1e9
"""Smaller numbers are no times since 1970."""


@dataclass(frozen=True, kw_only=True)
class NamedNumber:
    """A number of a line, or a time stamp, from `start` to `stop`. The name before it begins at `name_from`, the unit
    behind it ends at `unit_until`. A time in parts, as `1:02:34`, has no role."""

    start: int
    stop: int
    name: str
    name_from: int
    unit_until: int
    role: NumberRole


_STAMP = re.compile(rf"(?<![\d.:/-])(?:{TIME_STAMP.decode()})(?=(?:Z|[+-]\d\d:?\d\d)?(?![\d:]))")
_CLOCK = re.compile(r"(?<![\w.:/-])(?:(?:\d{1,4}:)?\d\d:\d\d(?![\d:.])|\d+[dhm](?: ?\d+(?:\.\d+)?[hms])+\b)")
_NUMBER = re.compile(
    r"(?<![\w.-])(?<!\d[:,])[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|\d+(?!,\d))(?:\.\d+(?!,\d))?(?:[eE][-+]?\d{1,3})?"
    r"(?![\d.:]*\d|\w*\d|[kKMB]\b)"
)
_UNIT = re.compile(r"(?P<blank> ?)(?P<unit>[A-Za-z]+(?:(?:/| per )[A-Za-z]+){0,2})(?![\w/])")
_SEPARATOR = re.compile(r"[=:,|;()\[\]{}<>\t\v]|  +| - ")
_ELAPSED_NAME = re.compile(r"(?<![a-z])(?:elapsed|eta|remaining|left|took|time|total)$")
_STAMP_NAME = re.compile(r"(?<![a-z])(?:time ?stamps?|time|ts|unix time)$")


def numbers_of(line: str) -> list[NamedNumber]:
    """The numbers of a line in their order, the first time stamp among them."""
    spans = list(_spans(line))[:MAX_NUMBERS]
    numbers: list[NamedNumber] = []
    before = 0
    for place, (start, stop, kind) in enumerate(spans):
        until = spans[place + 1][0] if place + 1 < len(spans) else len(line)
        if kind == STAMP:
            numbers.append(_stamp(start, stop))
            before = stop
            continue
        name, name_from = _name(line, before, start)
        if "|" in line[name_from + 1 : start] and role_of("", name, False).kind:
            name = ""  # the unit of the cell before, or the name of this one
        is_whole = line[start:stop].isdigit()
        role, unit_until = role_of(name, "", is_whole), stop
        unit, end = _unit(line, stop, until, is_named=bool(role.kind))
        if unit and (by_unit := role_of(name, phrase(unit), is_whole)).kind:
            role, unit_until = by_unit, end
        numbers.append(
            NamedNumber(
                start=start, stop=stop, name=name or phrase(unit), name_from=name_from, unit_until=unit_until,
                role=NO_ROLE if kind == CLOCK else role,
            )
        )  # fmt: skip
        before = unit_until
    return numbers


def _stamp(start: int, stop: int) -> NamedNumber:
    return NamedNumber(
        start=start, stop=stop, name="time stamps", name_from=start, unit_until=stop, role=NumberRole(kind=STAMP)
    )


def _spans(line: str) -> Iterator[tuple[int, int, str]]:
    """The places of the numbers, of times in parts, and of the first time stamp, with their kinds."""
    stamp = next((match for match in _STAMP.finditer(line) if _is_stamp(match[0], line[: match.start()])), None)
    at = 0
    while number := _NUMBER.search(line, at):
        clock = _CLOCK.search(line, at, number.end() + MAX_NAME)
        match, kind = (clock, CLOCK) if clock and clock.start() <= number.start() else (number, "")
        if stamp and match.end() > stamp.start() and at < stamp.end():
            match, kind = stamp, STAMP
        yield match.start(), match.end(), kind
        at = match.end()


def _is_stamp(text: str, before: str) -> bool:
    """Whether a text in the form of a time stamp is one: without a date its name must not say something else."""
    seconds = seconds_of(text.encode())
    name = phrase(before[-MAX_NAME:])
    if seconds is None:
        return False
    if ":" not in text:
        return bool(_STAMP_NAME.search(name)) and seconds >= EARLIEST_S
    return text[2:3] != ":" or not _ELAPSED_NAME.search(name)


def _name(line: str, before: int, start: int) -> tuple[str, int]:
    """The phrase before a number, and where its text begins: the last words behind a separator."""
    begin = max(before, start - MAX_NAME)
    inner = _SEPARATOR.split(line[begin:start].rstrip(EDGE + "[](){}|,"))[-1]
    words = re.search(r"(?<!\S)(?:[^\s\d]+ ){0,3}[^\s\d]+$", inner.strip(EDGE))
    return (phrase(words[0]), line.rindex(words[0], begin, start)) if words else ("", start)


def _unit(line: str, stop: int, until: int, *, is_named: bool) -> tuple[str, int]:
    """The unit behind a number and where it ends. A word before `:` or `=`, or all that is between two numbers of which
    the first has a name, names the next one."""
    match = _UNIT.match(line, stop, until)
    if match is None:
        return "", stop
    rest = line[match.end() : until]
    names_next = re.match(r"['\" ]*[:=]", rest) or (until < len(line) and is_named and not rest.strip(" "))
    return ("", stop) if match["blank"] and names_next else (match["unit"], match.end())


# Rows of tables, whose names are in a line above them.


@dataclass(frozen=True)
class HeadedColumns:
    """The names above a table's columns, and what is between its cells: `,`, a tab, `|`, or blanks where empty."""

    names: tuple[str, ...]
    separator: str

    def numbers_of(self, line: str) -> list[NamedNumber]:
        """The numbers of a row, each with the name of its column; a cell without a known name has no role."""
        numbers = []
        for head, (start, stop) in zip(self.names, cells(line, self.separator), strict=True):
            name, text = phrase(head), line[start:stop]
            if (stamp := _STAMP.match(text)) and stamp.end() == len(text) and _is_stamp(text, head):
                numbers.append(_stamp(start, stop))
            elif value := re.match(r"[-+]?\d[\d.eE+-]*", text):
                unit, is_whole, end = phrase(text[value.end() :]), value[0].isdigit(), start + value.end()
                role = next(
                    (each for each in (role_of(name, unit, is_whole), role_of(name, "", is_whole)) if each.kind),
                    NO_ROLE,
                )
                numbers.append(
                    NamedNumber(start=start, stop=end, name=name, name_from=start, unit_until=stop, role=role)
                )
        return numbers


def table_of(above: Sequence[str], row: str) -> HeadedColumns | None:
    """The table that a row is of: by the nearest line above it that is names alone, one of steps; None without one."""
    for heading, separator in product(reversed(above), ("|", ",", "\t", "")):
        names = [heading[start:stop] for start, stop in cells(heading, separator)]
        values = [row[start:stop] for start, stop in cells(row, separator)]
        is_heading = all(re.match(r"[^\W\d]|_", name) for name in names) and len(values) == len(names) >= MIN_COLUMNS
        has_step = any(role_of(phrase(name), "", True).kind == STEP for name in names)
        if is_heading and has_step and sum(value[:1].isdigit() for value in values) > 1:
            return HeadedColumns(tuple(names), separator)
    return None


def cells(line: str, separator: str) -> list[tuple[int, int]]:
    """The places of a line's cells, without the blanks and quotation marks around them."""
    if not separator:
        wide = list(re.finditer(r"\S+(?: \S+)*(?=  |\s*$)", line))
        return [match.span() for match in (wide if len(wide) >= MIN_COLUMNS else re.finditer(r"\S+", line))]
    spans, begin = [], 0
    for cell in line.strip().strip("|").split(separator) if separator == "|" else line.rstrip("\r\n").split(separator):
        begin = line.index(cell, begin) if cell else begin
        skipped, size = len(cell) - len(cell.lstrip(" \t\"'")), len(cell.rstrip(" \t\"'"))
        spans.append((begin + min(skipped, size), begin + size))
        begin += len(cell) + 1
    return spans
