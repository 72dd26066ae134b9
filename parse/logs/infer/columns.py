"""Tables of columns: a line of names above rows of figures, as CSV, with `|`, tabs, or blanks between."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from parse.logs.infer.vocabulary import STEP, phrase, role_of

MIN_COLUMNS, MIN_NAMES = 2, 3
"""Columns of a table, and of one with blanks between its names, whose heading may be a sentence."""
MAX_COLUMNS = 200
SEPARATORS = ("|", ",", ";", "\t", "")
"""What is between columns: the first that is in the heading; "" is blanks."""
_WIDE = re.compile(r" {2,}")
_WORD = re.compile(r"\S+")
_NAME = re.compile(r"[^\W\d]|#")
_FIGURES = re.compile(r"[-+]?(?:\d[\d.:eE+-]*|nan|inf|NaN|None|null|-+|n/a)(?: ?(?:ms|s|%))?")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True)
class Heading:
    """The names above a table's columns, and what is between these."""

    names: tuple[str, ...]
    separator: str

    def cells(self, line: str) -> tuple[tuple[int, int], ...]:
        """The places of the cells of a row of this table, without the blanks and quotation marks around them; none
        where the line is no such row."""
        spans = tuple(_spans(line, self.separator)) if any(map(str.isdigit, line)) else ()
        if len(spans) != len(self.names):
            return ()
        texts = [line[begin:stop] for begin, stop in spans]
        figures = sum(bool(_FIGURES.fullmatch(text) or _STAMP.fullmatch(text)) for text in texts)
        is_row = all(self.separator not in ("", "|") or text for text in texts)
        return spans if is_row and figures >= MIN_COLUMNS and texts != list(self.names) else ()


def heading_of(line: str) -> Heading | None:
    """The heading that a line is: names alone, one of them that of steps; None for others."""
    separator = next(each for each in SEPARATORS if not each or line.count(each) >= MIN_COLUMNS - 1)
    names = tuple(line[begin:stop] for begin, stop in _spans(line, separator))
    if not separator and len(apart := _WIDE.split(line.strip())) >= MIN_NAMES:
        names = tuple(apart)
    if not (MIN_NAMES if separator == "" else MIN_COLUMNS) <= len(names) <= MAX_COLUMNS:
        return None
    if not all(_NAME.search(name) for name in names if name) or any(_FIGURES.fullmatch(name) for name in names):
        return None
    roles = [role_of(phrase(name), "", True) for name in names]
    steps = [role for role in roles if role and role.kind == STEP]
    return Heading(names, separator) if steps else None


def _spans(line: str, separator: str) -> Iterator[tuple[int, int]]:
    """The places of a line's cells."""
    if not separator:
        yield from (match.span() for match in _WORD.finditer(line))
        return
    begin, stop = 0, len(line.rstrip())
    if separator == "|":
        begin += len(line) - len(line.lstrip())
        begin, stop = begin + (line[begin : begin + 1] == "|"), stop - (line[begin:stop][-1:] == "|")
    for cell in line[begin:stop].split(separator):
        skipped, size = len(cell) - len(cell.lstrip(" \t\"'")), len(cell.rstrip(" \t\"'"))
        yield begin + min(skipped, size), begin + size
        begin += len(cell) + 1
