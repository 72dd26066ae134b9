"""What a page is made of: the verdict, and sections of paragraphs, lists, charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from parse.text import TableData

PlotlyFigure = Mapping[str, Any]
"""A chart as Plotly takes it: `data`, a list of its traces, and `layout`. Plain values; a number that is not finite is
None; texts from outside are those of `parse.page.figures.label`."""


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Sentences in one paragraph."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Lines of one kind. `warnings` are marked as such; of many lines the first are shown, the others folded."""

    kind: ClassVar[str] = "listing"
    title: str
    lines: Sequence[str]
    warnings: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart; `text` says in words what it shows, for those who do not see it."""

    kind: ClassVar[str] = "chart"
    id: str
    title: str
    text: str
    figure: PlotlyFigure
    height_px: int = 340


@dataclass(frozen=True, kw_only=True)
class Table(TableData):
    """A table of the page, or of a paper; `marked` are the numbers of rows that differ from what the others have in
    common."""

    kind: ClassVar[str] = "table"
    id: str
    marked: frozenset[int] = frozenset()

    @classmethod
    def of(cls, table: TableData, table_id: str, caption: str) -> Table:
        """The table with an id and this caption."""
        return cls(**{**vars(table), "id": table_id, "caption": caption})

    @property
    def word_columns(self) -> frozenset[int]:
        """The columns that are set to the left: labels, and those without a unit in which some cell has letters."""
        return frozenset(
            at
            for at, (_, unit) in enumerate(self.heads)
            if at < self.label_columns or (not unit and any(_has_letter(row[at]) for row in self.rows))
        )


def _has_letter(cell: str) -> bool:
    return any(character.isalpha() for character in cell)


PageBlock = Paragraph | Listing | Chart | Table


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A part of a section that can be folded; the first of a section is open."""

    id: str
    title: str
    blocks: Sequence[PageBlock]
    is_open: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section with its blocks, and below them its panels."""

    id: str
    title: str
    blocks: Sequence[PageBlock]
    panels: Sequence[Panel] = ()


@dataclass(frozen=True, kw_only=True)
class Statement:
    """The answer to a question: a figure with what it is of, sentences, and the place on the page that shows it.

    `doubt`: the figure is unreliable, or there is none.
    """

    question: str
    figure: str
    of: str
    sentences: Sequence[str]
    link: str
    link_text: str
    doubt: bool = False


@dataclass(frozen=True, kw_only=True)
class HtmlPage:
    """A whole page; `subtitle` says when, where and on what it was measured, `source` what the page was made of,
    `command` by what."""

    title: str
    subtitle: str
    source: str
    command: str
    verdict: Sequence[Statement]
    sections: Sequence[Section]
