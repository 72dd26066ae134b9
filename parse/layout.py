"""Lines and columns, for a terminal and in Markdown: returns strings, prints nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap

from hpc.outside import plain

WIDTH = 140
"""Of a terminal, in characters."""
LONG = 28
"""Cells that are longer are numbered in the table and stand above it."""


def number(value: float | None, factor: float = 1, decimals: int = 2) -> str:
    """A cell; `-` where there is no number."""
    return "-" if value is None else f"{value * factor:.{decimals}f}"


def wrapped(lines: Iterable[str], indent: str = "") -> list[str]:
    """The lines cut to WIDTH, what goes on moved in by two more than `indent`."""
    return [
        part
        for line in lines
        for part in wrap(plain(line), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")
    ]


def aligned(rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """Columns of equal width; the first `words` of them to the left, numbers and all others to the right."""
    safe = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*safe, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at >= words else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in safe
    ]


def numbered(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """A line for each long cell, and the rows with its number in its place."""
    columns: list[Sequence[str]] = []
    legend: list[str] = []
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        told = list(dict.fromkeys(column))
        if name != "interval" and max(map(len, told)) > LONG:
            told = [cell for cell in told if cell]
            legend += [f"{name} [{place}]: {cell}" for place, cell in enumerate(told, 1)]
            columns.append([f"[{told.index(cell) + 1}]" if cell else "" for cell in column])
        else:
            columns.append(column)
    return [*legend, ""] if legend else [], [list(row) for row in zip(*columns, strict=True)]


def markdown_text(text: str) -> str:
    """The text as Markdown that shows it and does nothing."""
    return re.sub(r"([\\|<`*]|(?<=\])[(:])", r"\\\1", plain(text))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right."""
    table = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(markdown_text(cell) for cell in row)} |" for row in table)
