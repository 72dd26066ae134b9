"""Lines and columns, for a terminal and in Markdown: returns strings, prints nothing.

Widths are in terminal cells: a CJK character takes two, a combining mark none.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from hpc.system.command_line import PIPE_WIDTH
from hpc.system.sanitize import plain

LONG = 28
"""Cells that are longer, or longer than a quarter of the page, are numbered in the table and written above it."""
ELLIPSIS = "…"
GAP = "  "
"""Between columns."""

Head = tuple[str, str]
"""A column's name and its unit."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The room that text has, in cells. `wide` tables have all columns, whatever the width; `all_warnings` are given in
    full length and point by point; `charts` are drawn where somebody looks."""

    width: int = PIPE_WIDTH
    wide: bool = False
    all_warnings: bool = False
    charts: bool = False

    @property
    def table_width(self) -> int | None:
        """The room of a table; None where it has no limit."""
        return None if self.wide else self.width


def covers(coverages: Iterable[float]) -> str:
    """`covers 75 %`, or `covers 50-75 %` where intervals differ in it."""
    known = sorted({round(coverage * 100) for coverage in coverages})
    return f"covers {'-'.join(map(str, dict.fromkeys((known[0], known[-1]))))} %"


def number(value: float | None, factor: float = 1, decimals: int = 2) -> str:
    """A cell; `-` where there is no number."""
    return "-" if value is None else f"{value * factor:.{decimals}f}"


def wrapped(lines: Iterable[str], width: int, indent: str = "") -> list[str]:
    """The lines cut to `width` cells, what goes on moved in by two more than `indent`."""
    return [part for line in lines for part in _wrap(plain(line), width, indent)]


def _wrap(line: str, width: int, indent: str) -> list[str]:
    parts: list[str] = []
    current = ""
    for token in line.split():
        rest = token
        while rest:
            start = f"{current} " if current.strip() else current or (f"{indent}  " if parts else indent)
            room = width - cell_len(start)
            if cell_len(rest) <= room:
                current, rest = start + rest, ""
            elif current.strip():
                parts.append(current)
                current = ""
            else:
                head = _prefix(rest, room)
                parts.append(start + head)
                rest = rest[len(head) :]
                current = ""
    return [*parts, current] if current else parts


def _prefix(text: str, cells: int) -> str:
    """The longest beginning that fits; one character at least."""
    end = taken = 0
    for character in text:
        taken += cell_len(character)
        if taken > cells:
            break
        end += 1
    return text[: max(1, end)]


def cut(text: str, width: int) -> str:
    """The text in one line of `width` cells at most; `…` in the place of what is cut off its end."""
    text = plain(text)
    return text if cell_len(text) <= width else _prefix(text, width - 1).rstrip() + ELLIPSIS


def shortened(names: Iterable[str], width: int) -> dict[str, str]:
    """Each name in `width` cells at most, cut in the middle; different names stay different.

    Names that are equal at both ends are numbered in the place of the cut.
    """
    distinct = [*dict.fromkeys(names)]
    for head_share in (0.5, 0.3, 0.7, 0.1, 0.9):
        short = {name: _without_middle(name, width, head_share, ELLIPSIS) for name in distinct}
        if len({*short.values()}) == len(distinct):
            return short
    return {name: _without_middle(name, width, 0.5, f"{ELLIPSIS}{at}{ELLIPSIS}") for at, name in enumerate(distinct, 1)}


def _without_middle(name: str, width: int, head_share: float, mark: str) -> str:
    name = plain(name)
    if cell_len(name) <= width:
        return name
    room = width - cell_len(mark)
    head = _prefix(name, max(1, int(room * head_share)))
    tail = _prefix(name[::-1], max(1, room - cell_len(head)))[::-1]
    return f"{head}{mark}{tail}"


def distinct(names: Iterable[str], form: str) -> list[str]:
    """The names; of equal ones each in the `form`, from name and number."""
    names = list(names)
    counts = Counter(names)
    return [
        form.format(name, names[: at + 1].count(name)) if counts[name] > 1 else name for at, name in enumerate(names)
    ]


def aligned(rows: Sequence[Sequence[str]], label_columns: int = 1) -> list[str]:
    """Columns of equal width; the first `label_columns` of them to the left, numbers and all others to the right."""
    safe = [[plain(cell) for cell in row] for row in rows]
    widths = column_widths(safe)
    return [
        GAP.join(
            padded(cell, width, align_left=at < label_columns)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in safe
    ]


def padded(cell: str, width: int, *, align_left: bool) -> str:
    """The cell with blanks to `width` cells."""
    blanks = " " * (width - cell_len(cell))
    return cell + blanks if align_left else blanks + cell


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column, in cells."""
    return [max(cell_len(plain(cell)) for cell in column) for column in zip(*rows, strict=True)]


def table_width(widths: Sequence[int]) -> int:
    """The width of columns with their gaps."""
    return sum(widths) + len(GAP) * max(0, len(widths) - 1)


def in_blocks(rows: Sequence[Sequence[str]], label_columns: int, keys: int, width: int | None) -> list[str]:
    """Columns as `aligned` makes them; where they are too wide, in blocks below one another that each begin with the
    first `keys` columns and leave out the rows that have nothing in theirs."""
    widths = column_widths(rows)
    if width is None or table_width(widths) <= width:
        return aligned(rows, label_columns)
    repeated = [*range(keys)]
    blocks: list[list[int]] = [[]]
    for at in range(keys, len(widths)):
        if blocks[-1] and table_width([widths[column] for column in (*repeated, *blocks[-1], at)]) > width:
            blocks.append([])
        blocks[-1].append(at)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        shown_rows = [row for row in rows if any(row[at] for at in block)]
        lines += aligned([[row[at] for at in (*repeated, *block)] for row in shown_rows], label_columns)
    return lines


def numbered(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """A line for each long cell, and the rows with its number in its place; `width` is that of the page."""
    columns: list[Sequence[str]] = []
    legend: list[str] = []
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        distinct = list(dict.fromkeys(column))
        if name != "interval" and max(cell_len(plain(cell)) for cell in distinct) > min(LONG, width // 4):
            distinct = [cell for cell in distinct if cell]
            legend += [f"{name} [{place}]: {cell}" for place, cell in enumerate(distinct, 1)]
            columns.append([f"[{distinct.index(cell) + 1}]" if cell else "" for cell in column])
        else:
            columns.append(column)
    return [*wrapped(legend, width), ""] if legend else [], [list(row) for row in zip(*columns, strict=True)]


def with_settings_folded(
    heads: Sequence[Head], rows: Sequence[Sequence[str]], settings: Collection[int], width: int
) -> tuple[list[str], list[Head], list[list[str]]]:
    """The columns at `settings` as one behind the first: a line for each setting in full, and for each row
    its number there, empty where the row has nothing in any of the columns."""
    texts = [" ".join(f"{heads[at][0]}={row[at]}" for at in settings if row[at]) for row in rows]
    distinct = [text for text in dict.fromkeys(texts) if text]
    legend = [f"setting [{place}]: {text}" for place, text in enumerate(distinct, 1)]
    numbers = [f"[{distinct.index(text) + 1}]" if text else "" for text in texts]
    others = [at for at in range(1, len(heads)) if at not in settings]
    return (
        [*wrapped(legend, width), ""],
        [heads[0], ("setting", ""), *(heads[at] for at in others)],
        [[row[0], number, *(row[at] for at in others)] for row, number in zip(rows, numbers, strict=True)],
    )


_FORMULA = re.compile(r"[=@\t\r＝＠]|[-+－＋](?!(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?: ?%)?)?\Z)")
"""How a text begins that a spreadsheet calculates, as page.js has it; numbers and signs alone are none."""


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """The rows as CSV: texts on one line, with an apostrophe before those that a spreadsheet would calculate."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


def _csv_cell(text: str) -> str:
    return f"'{plain(text)}" if _FORMULA.match(text) else plain(text)


def markdown_text(text: str) -> str:
    """The text as Markdown that shows it and does nothing."""
    return re.sub(r"([\\|<`*$]|(?<=\])[(:])", r"\\\1", plain(text))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right."""
    table = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(markdown_text(cell) for cell in row)} |" for row in table)


def with_units(heads: Iterable[Head]) -> list[str]:
    """Heads of columns from pairs of name and unit: `step (ms)`; the name where there is no unit."""
    return [f"{name} ({unit})" if unit else name for name, unit in heads]


def markdown_list(lines: Iterable[str]) -> str:
    """A bullet for each line."""
    return "\n".join(f"* {markdown_text(line)}" for line in lines)


@dataclass(frozen=True, kw_only=True)
class TableData:
    """Heads as (name, unit) and rows; the first `label_columns` hold words, the first `keys` identify rows and are
    repeated where a narrow page cuts the table into blocks; None: it is never cut."""

    heads: Sequence[Head]
    rows: Sequence[Sequence[str]]
    label_columns: int = 1
    keys: int | None = None

    def lines(self, width: int | None) -> list[str]:
        """For a terminal; units have a line where there are any."""
        names, units = zip(*self.heads, strict=True)
        rows = [names, *([units] if any(units) else []), *self.rows]
        return in_blocks(rows, self.label_columns, self.keys or 0, None if self.keys is None else width)

    def markdown(self) -> str:
        return markdown_table(with_units(self.heads), self.rows)


TextBlock = str | list[str] | TableData
"""Of what is shown: a paragraph (an empty one is a blank line), a list, a table."""


def block_lines(blocks: Iterable[TextBlock], page: Page) -> list[str]:
    """The blocks for a terminal."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, TableData):
            lines += block.lines(page.table_width)
        else:
            lines += wrapped(block, page.width) if isinstance(block, list) else wrapped([block], page.width) or [""]
    return lines


def block_markdown(blocks: Iterable[TextBlock]) -> list[str]:
    """The blocks as Markdown, some of them empty."""
    return [
        block.markdown() if isinstance(block, TableData)
        else markdown_list(block) if isinstance(block, list) else markdown_text(block)
        for block in blocks
    ]  # fmt: skip
