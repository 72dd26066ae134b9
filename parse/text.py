"""Lines and columns, for a terminal and in Markdown: returns strings, prints nothing.

Widths are in terminal cells: a CJK character takes two, a combining mark none.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import Any, TypeVar

from rich.cells import cell_len

from hpc.system.command_line import PIPE_WIDTH
from hpc.system.sanitize import plain
from hpc.system.text import inflect

T = TypeVar("T")

LONG = 28
"""Cells that are longer, or longer than a quarter of the page, are numbered in the table and written above it."""
ELLIPSIS = "…"
GAP = "  "
"""Between columns."""

Head = tuple[str, str]
"""A column's name and its unit."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The room that text has, in cells. `wide` tables have all columns, whatever the width. `verbose` text has all
    that is known, warnings in full length and point by point, else what decides."""

    width: int = PIPE_WIDTH
    wide: bool = False
    verbose: bool = False


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
    widths = _column_widths(safe)
    return [
        GAP.join(
            _padded(cell, width, align_left=at < label_columns)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in safe
    ]


def _padded(cell: str, width: int, *, align_left: bool) -> str:
    """The cell with blanks to `width` cells."""
    blanks = " " * (width - cell_len(cell))
    return cell + blanks if align_left else blanks + cell


def _column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(plain(cell)) for cell in column) for column in zip(*rows, strict=True)]


def _width(widths: Sequence[int]) -> int:
    """The width of columns with their gaps."""
    return sum(widths) + len(GAP) * max(0, len(widths) - 1)


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


def gauge_text(name: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> str:
    """A gauge as OpenMetrics text, and as Prometheus' text format: a line for each of the samples, with its labels."""
    lines = [f"# TYPE {name} gauge\n", f"# HELP {name} {meaning}\n"]
    for labels, value in samples:
        shown = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{shown}}} {value:.10g}\n")
    return "".join(lines)


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by their names."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def json_value(value: Any, members: Callable[[Any], Any] = fields_of) -> Any:
    """A value as JSON has it: a dataclass by its `members`, numbers with nine digits, which is more than any clock here
    resolves, None in the place of those that are not finite."""
    if is_dataclass(value):
        value = members(value)
    if isinstance(value, Mapping):
        return {name: json_value(item, members) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [json_value(item, members) for item in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value.value if isinstance(value, Enum) else value


def markdown_text(text: str) -> str:
    """The text as Markdown that shows it and does nothing."""
    return re.sub(r"([\\|<`*$]|(?<=\])[(:])", r"\\\1", plain(text))


LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}", "`": r"\textasciigrave{}",
    **{special: f"\\{special}" for special in "{}$&#_%"},
    # Behind a line's end `[` and `*` would be read as its arguments.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "…": r"\dots{}", "–": "--", "—": "---", "−": "$-$",
    "‘": "{`}", "’": "{'}", "“": "{``}", "”": "{''}", "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$",
    "µ": r"\textmu{}", "μ": r"\textmu{}", "°": r"\textdegree{}", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "→": r"$\rightarrow$", "Σ": r"$\Sigma$", "Δ": r"$\Delta$", "σ": r"$\sigma$", "²": r"$^2$", "³": r"$^3$",
    "₂": r"$_2$",
    "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ł": r"\l{}", "Ł": r"\L{}",
    "®": r"\textregistered{}", "™": r"\texttrademark{}", "©": r"\textcopyright{}",
}  # fmt: skip
"""What a character is written as; a table so that nothing depends on the encoding of the document."""
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip
"""LaTeX's accents by the combining character."""
LIGATURES = "-',"
"""Two of these in a row would become another character."""


def latex_text(text: str) -> str:
    """The text as LaTeX that shows it and does nothing. A character that plain packages lack is written as U+4E2D."""
    parts: list[str] = []
    before = ""
    for character in plain(text):
        if character == before and character in LIGATURES:
            parts.append("{}")
        parts.append(_latex_character(character))
        before = character
    return "".join(parts)


def _latex_character(character: str) -> str:
    if character in LATEX:
        return LATEX[character]
    if character.isascii():
        return character
    base, accent = unicodedata.normalize("NFD", character)[:1], unicodedata.normalize("NFD", character)[1:]
    if base.isascii() and base.isalpha() and accent in ACCENTS:
        letter = f"\\{base}" if base in "ij" else base  # without its dot
        return f"\\{ACCENTS[accent]}{{{letter}}}"
    return f"U+{ord(character):04X}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right."""
    table = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(markdown_text(cell) for cell in row)} |" for row in table)


def with_units(heads: Iterable[Head]) -> list[str]:
    """Heads of columns from pairs of name and unit: `step (ms)`; the name where there is no unit."""
    return [f"{name} ({unit})" if unit else name for name, unit in heads]


def unitless(names: Iterable[str]) -> list[Head]:
    """Heads of columns without units."""
    return [(name, "") for name in names]


def markdown_list(lines: Iterable[str]) -> str:
    """A bullet for each line."""
    return "\n".join(f"* {markdown_text(line)}" for line in lines)


@dataclass(frozen=True, kw_only=True)
class TableData:
    """Heads as (name, unit), where a name may have several lines, and rows; the first `label_columns` hold words.

    On a narrow page the columns at `settings` become one; those in `dispensable` are left out, the first first; and the
    table is cut into blocks, each of which begins with the first `keys` columns; without `keys` it is not. Where
    `settings` is not None, long cells are numbered.
    """

    heads: Sequence[Head]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    label_columns: int = 1
    keys: int = 0
    settings: Collection[int] | None = None
    dispensable: Sequence[str] = ()

    def lines(self, page: Page, indent: int = 0) -> list[str]:
        """For a terminal; units have a line where there are any."""
        width, omitted = page.width - indent, list[str]()
        legend, shown = ([], self) if self.settings is None else self.numbered(width)
        if not page.wide and shown._is_crowded(width):
            legend, shown = self.folded(width)
        for name in shown.dispensable if not page.wide else ():
            if shown.width() <= width:
                break
            if any(name == head for head, _ in shown.heads):
                shown = shown._without(name)
                omitted.append(name)
        lines = [*legend, *shown._in_blocks(None if page.wide else width)]
        if omitted and page.verbose:
            left_out = f"{inflect(len(omitted), 'column')} left out for lack of room: {', '.join(omitted)}"
            lines += wrapped([f"{left_out}; --wide or --format csv has all"], width)
        return [f"{' ' * indent}{line}" if line else "" for line in lines]

    def markdown(self) -> str:
        return markdown_table(with_units(self.heads), self.rows)

    def shortened(self, at: int, room: int) -> TableData:
        """The table with the cells of a column cut in their middle to `room` cells."""
        short = shortened((row[at] for row in self.rows), room)
        return replace(self, rows=[[*row[:at], short[row[at]], *row[at + 1 :]] for row in self.rows])

    def width(self, columns: Iterable[int] | None = None) -> int:
        """The width of all columns, or of some."""
        widths = _column_widths(self._lines)
        return _width(widths if columns is None else [widths[at] for at in columns])

    def numbered(self, width: int) -> tuple[list[str], TableData]:
        """A line for each long cell, and the table with its number in its place; `width` is that of the page."""
        columns: list[Sequence[str]] = []
        legend: list[str] = []
        for (name, _), column in zip(self.heads, zip(*self.rows, strict=True), strict=True):
            distinct = list(dict.fromkeys(column))
            if name != "interval" and max(cell_len(plain(cell)) for cell in distinct) > min(LONG, width // 4):
                distinct = [cell for cell in distinct if cell]
                legend += [f"{name} [{place}]: {cell}" for place, cell in enumerate(distinct, 1)]
                columns.append([f"[{distinct.index(cell) + 1}]" if cell else "" for cell in column])
            else:
                columns.append(column)
        rows = [*map(list, zip(*columns, strict=True))]
        return [*wrapped(legend, width), ""] if legend else [], replace(self, rows=rows)

    def folded(self, width: int) -> tuple[list[str], TableData]:
        """The settings as one column behind the first: a line for each in full, and for each row its number there,
        empty where the row has nothing in any of the columns."""
        settings = self.settings or ()
        texts = [" ".join(f"{self.heads[at][0]}={row[at]}" for at in settings if row[at]) for row in self.rows]
        distinct = [text for text in dict.fromkeys(texts) if text]
        legend = [f"setting [{place}]: {text}" for place, text in enumerate(distinct, 1)]
        numbers = [f"[{distinct.index(text) + 1}]" if text else "" for text in texts]
        others = [at for at in range(1, len(self.heads)) if at not in settings]
        return [*wrapped(legend, width), ""], replace(
            self, settings=(), label_columns=min(2, self.label_columns),
            keys=self.keys and self.keys - len(settings) + 1,
            heads=[self.heads[0], ("setting", ""), *(self.heads[at] for at in others)],
            rows=[[row[0], cell, *(row[at] for at in others)] for row, cell in zip(self.rows, numbers, strict=True)],
        )  # fmt: skip

    def _is_crowded(self, width: int) -> bool:
        """Whether the columns that identify rows take half of the page, or leave too little for those that stay."""
        keys = [*range(self.keys)] or [0, *(self.settings or ())]
        stay = [at for at, (name, _) in enumerate(self.heads) if at in keys or name not in self.dispensable]
        return bool(self.settings) and (
            self.width(keys) > width // 2 or (bool(self.dispensable) and self.width(stay) > width)
        )

    def _without(self, name: str) -> TableData:
        at = [head for head, _ in self.heads].index(name)
        return replace(self, heads=_but(self.heads, at), rows=[_but(row, at) for row in self.rows])

    @property
    def _lines(self) -> list[Sequence[str]]:
        """The rows below those of the heads."""
        names = zip_longest(*(name.split("\n") for name, _ in self.heads), fillvalue="")
        units = [unit for _, unit in self.heads]
        return [*names, *([units] if any(units) else []), *self.rows]

    def _in_blocks(self, width: int | None) -> list[str]:
        """The columns; where they are too wide, in blocks below one another, which leave out the rows that have nothing
        in theirs."""
        rows = self._lines
        widths = _column_widths(rows)
        if width is None or not self.keys or _width(widths) <= width:
            return aligned(rows, self.label_columns)
        repeated = [*range(self.keys)]
        blocks: list[list[int]] = [[]]
        for at in range(self.keys, len(widths)):
            if blocks[-1] and _width([widths[column] for column in (*repeated, *blocks[-1], at)]) > width:
                blocks.append([])
            blocks[-1].append(at)
        lines: list[str] = []
        for block in blocks:
            lines += [""] if lines else []
            shown = [row for row in rows if any(row[at] for at in block)]
            lines += aligned([[row[at] for at in (*repeated, *block)] for row in shown], self.label_columns)
        return lines


def _but(items: Sequence[T], at: int) -> list[T]:
    return [*items[:at], *items[at + 1 :]]


TextBlock = str | list[str] | TableData
"""Of what is shown: a paragraph (an empty one is a blank line), a list, a table below its caption."""


def block_lines(blocks: Iterable[TextBlock], page: Page) -> list[str]:
    """The blocks for a terminal."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, TableData):
            lines += [*wrapped(filter(None, [block.caption]), page.width), *block.lines(page)]
        else:
            lines += wrapped(block, page.width) if isinstance(block, list) else wrapped([block], page.width) or [""]
    return lines


def text_of(blocks: Iterable[TextBlock], width: int) -> str:
    """The blocks as a text for a terminal."""
    return "\n".join(map(str.rstrip, block_lines(blocks, Page(width=width)))) + "\n"


def markdown_of(blocks: Iterable[TextBlock]) -> str:
    """The blocks in Markdown."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, TableData):
            parts += [markdown_text(block.caption), block.markdown()]
        else:
            parts.append(markdown_list(block) if isinstance(block, list) else markdown_text(block))
    return "\n\n".join(filter(None, parts)) + "\n"
