"""Reads the tables of a file: those of Markdown, or the one of a CSV file."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.system.regular_file import read_text

MAX_LINE = 20_000
MAX_HEADS = 200
"""A table with more columns is no report."""
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"<[^>]*>|\*\*|~~|`|\\(?=[|*_<])")


class DocumentError(ValueError):
    """A file has no results or cannot be read; the text has the path and the reason."""


@dataclass(frozen=True, kw_only=True)
class DocumentTable:
    """A table: `line` is the line of its heads, counted from 1; each row has its line and as many cells as heads."""

    line: int
    heads: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


def read_tables(path: Path) -> list[DocumentTable]:
    """Returns the tables of a document. Raises DocumentError if it cannot be read, is too large or no text."""
    try:
        text = read_text(path, errors="replace")
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror or error})") from None
    if "\0" in text:
        raise DocumentError(f"{path}: not a text (it has zero bytes)")
    lines = text.splitlines()
    try:
        return [*(_of_csv(lines) if path.suffix.lower() == ".csv" else _of_markdown(lines))]
    except csv.Error as error:
        raise DocumentError(f"{path}: no CSV ({error})") from None


def _of_csv(lines: Sequence[str]) -> Iterator[DocumentTable]:
    """The table below the first line that is not empty; `;` or tabs may be between its columns."""
    begin = next((at for at, line in enumerate(lines) if line.strip()), len(lines))
    delimiter = max(",;\t", key=lines[begin].count) if begin < len(lines) else ","
    reader = csv.reader((line[:MAX_LINE] for line in lines[begin:]), delimiter=delimiter)
    if heads := tuple(next(reader, ())):
        rows = []
        for row in filter(any, reader):
            line = begin + reader.line_num
            if any(row[len(heads) :]):
                raise csv.Error(f"line {line}: {len(row)} cells below {len(heads)} heads: quote numbers with commas")
            rows.append((line, _filled(row, len(heads))))
        yield DocumentTable(line=begin + 1, heads=heads, rows=tuple(rows))


def _of_markdown(lines: Sequence[str]) -> Iterator[DocumentTable]:
    """The tables in GitHub's Markdown, with or without pipes at the ends of a row."""
    at = 0
    while at < len(lines):
        end = at + 1
        if _begins_table(lines, at):
            heads = _cells(lines[at])
            end = at + 2
            while end < len(lines) and "|" in lines[end] and not _begins_table(lines, end):
                end += 1
            rows = ((row + 1, _filled(_cells(lines[row]), len(heads))) for row in range(at + 2, end))
            yield DocumentTable(line=at + 1, heads=heads, rows=tuple(row for row in rows if any(row[1])))
        at = end


def _begins_table(lines: Sequence[str], at: int) -> bool:
    """Whether a line of heads and one of dashes are there."""
    rule = lines[at + 1].strip() if at + 1 < len(lines) else ""
    return "|" in lines[at] and "|" in rule and "-" in rule and len(rule) < MAX_LINE and set(rule) <= set(" \t|:-")


def _cells(line: str) -> tuple[str, ...]:
    text = line[:MAX_LINE].strip().removeprefix("|")
    text = text.removesuffix("|") if not text.endswith("\\|") else text
    return tuple(map(plain_text, re.split(r"(?<!\\)\|", text)))


def _filled(cells: Sequence[str], count: int) -> tuple[str, ...]:
    return (*cells[:count], *("",) * (count - len(cells)))


def plain_text(markdown: str) -> str:
    """Returns the text without links, emphasis and tags, with full-width signs as ASCII."""
    text = _MARKUP.sub(" ", _LINK.sub(r"\1", markdown))
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()
