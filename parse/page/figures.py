"""What a page is made of: texts, tables, and charts as what they show; `parse.page.svg` draws them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

from parse.text import TableData

PATH = re.compile(r"(?<![\w.~/:<-])~?/(?!(?:dev|proc|sys)/)(?:[\w.@+~=%-]+/)*([\w.@+~=%-]{2,})/?")
PROCESS = re.compile(r"(?:(?<=\()|(?<=, )|(?<=: ))[^,(]* \(pid \d+\)|\bpid \d+")
"""A process with its name; other punctuation is before none of them."""
NAMELESS = re.compile(r" \((?:another process [\d.]+(?:, )?)+(?:load average [\d.]+)?\)")
"""A list of processes and what each takes, of which nothing is left to know without their names."""


def shareable(text: str) -> str:
    """The text for people elsewhere: of an absolute path its last name, no name and number of a process."""
    return NAMELESS.sub("", PROCESS.sub("another process", PATH.sub(r"\1", text)))


Number = float | int | None
"""A number that is absent or not finite is not drawn."""


class LineStyle(Enum):
    """How a line is drawn: with marks and bars for its intervals; dashed in grey; dashed in its colour, with open marks
    and its intervals as a band; thin along steps, its intervals as a band; as grey open marks alone; as a thick line in
    orange."""

    MEASURED = auto()
    IDEAL = auto()
    FORECAST = auto()
    STEPS = auto()
    RUNS = auto()
    LEVEL = auto()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line: its name, its points, and the intervals of their values, (low, high), None where there is none.

    `number` is that of its colour and symbol, where several charts have it; None: its place in the chart. `titles` are
    what the pointer shows of each point; without them its numbers.
    """

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    intervals: Sequence[tuple[float, float] | None] = ()
    number: int | None = None
    style: LineStyle = LineStyle.MEASURED
    titles: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over one axis, in the order in which they are drawn, and how its axes run.

    `categories` are the (value, name) of marks on the axis of the devices, which then is logarithmic; with `are_dates`
    it is in ms since 1970, UTC. With `log_y` the other is logarithmic, too, where all values are above 0; with
    `from_zero` it begins at 0; `scale` is what it covers where that is not all. `shades` are (begin, end, text).
    """

    kind: ClassVar[str] = "lines"
    series: Sequence[Line]
    x_title: str = ""
    unit: str = ""
    categories: Sequence[tuple[int, str]] = ()
    log_y: bool = False
    from_zero: bool = True
    scale: tuple[float, float] | None = None
    are_dates: bool = False
    shades: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a bar: its length, how much of it is `lost`, and what the pointer shows."""

    value: float
    lost: float = 0.0
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A bar for each of `names`, from top to bottom, with a note beside its name, made of parts: by their name one for
    each bar, None where it has none."""

    kind: ClassVar[str] = "bars"
    names: Sequence[str]
    notes: Sequence[str]
    parts: Mapping[str, Sequence[Part | None]]
    x_title: str
    lost: str = ""
    """What the marked lengths are, in the legend."""


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Values [row, x] as shades of a colour from 0 to `top`; what is beyond has the last one. `rows` are names, `x` the
    first step of each column, those before `warmup` are marked off. `titles` are what the pointer shows of each row."""

    kind: ClassVar[str] = "map"
    x_title: ClassVar[str] = "step"
    rows: Sequence[str]
    x: Sequence[int]
    z: Sequence[Sequence[Number]]
    top: float
    unit: str
    warmup: int
    titles: Sequence[str] = ()


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
    figure: Lines | Bars | HeatMap


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Charts of which a switch shows one, by their short names; paper has all."""

    kind: ClassVar[str] = "choice"
    id: str
    charts: Mapping[str, Chart]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a finding costs: in words, as a share of the whole, 0…1, None where that is not known, and its sentences."""

    cost: str
    share: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Findings with a bar for what each costs, between what they are of and how sure that is."""

    kind: ClassVar[str] = "costs"
    title: str
    conclusion: str
    costs: Sequence[Cost]
    remarks: Sequence[str]


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


PageBlock = Paragraph | Listing | Chart | Choice | Costs | Table


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
