"""What a page is made of; its charts as plain dicts for Plotly: lines with intervals, stacked bars, heat maps.

Colours are names of the page's stylesheet, which has them for the light and the dark theme, after Okabe and Ito: people
with any colour vision can distinguish them. Text, grid and background are left to the page.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, groupby
from math import ceil, floor, isfinite, log10
from typing import Any, ClassVar

from parse.term_kinds import TERMS, parts_of
from parse.text import TableData, cut, shortened

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


# Charts as plain dicts for Plotly, from numbers: lines with intervals, values over time, stacked bars, heat maps.


BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY = (
    f"var(--{name})" for name in ("blue", "orange", "green", "vermilion", "sky", "purple", "grey")
)
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
"""Beside the colours, so that no series is known by its colour alone."""
TERM_COLOURS = {name: f"var(--{name})" for name in TERMS}
LABEL_WIDTH = 48
"""Cells of a name in a chart."""
HOVER_LINES = 10
"""Lines of a name that the pointer shows."""
MAX_NAMES = 11
"""Of sizes, at equal distances."""
MAX_MARKS = 10
"""With more marks on a logarithmic axis only the powers of ten have one."""
MAX_LEVEL = 5
"""With more marks the names of an axis are turned, all alike."""
DIGITS = 5
"""Significant digits of numbers in charts."""
MOMENT = "%Y-%m-%d %H:%M"
"""How a chart writes a time."""
ROWS, ROW_HEIGHT = 3, 0.07
"""Rows of texts at the top of a chart, and the share of its height that each takes."""
MARGIN, LEAST_HEIGHT = 0.05, 0.01
"""The share of a chart's height that stays free below and above the values; the height of equal ones, as a share."""

BAND_OPACITY = 0.22

Number = float | int | None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line: its name, its points, and the intervals of their values, (low, high), None where there is none.

    `number` is that of its colour and symbol, where several charts have it; None: its place in the chart.
    """

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    intervals: Sequence[tuple[float, float] | None] = ()
    number: int | None = None


def label(text: str, width: int = LABEL_WIDTH) -> str:
    """A text from outside as Plotly shows it: in one line, cut, nothing in it markup or the place of a value."""
    return _escaped(cut(text, width))


def labels_of(names: Sequence[str], width: int = LABEL_WIDTH) -> list[str]:
    """As `label`, cut in the middle so that different names stay different."""
    short = shortened(names, width)
    return [_escaped(short[name]) for name in names]


def _whole(name: str) -> str:
    """The name for the pointer, in lines of LABEL_WIDTH characters; cut only beyond HOVER_LINES of them."""
    text = cut(name, HOVER_LINES * LABEL_WIDTH)
    return "<br>".join(_escaped(text[at : at + LABEL_WIDTH]) for at in range(0, len(text), LABEL_WIDTH))


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("%{", "%&#123;")


def finite(value: Number) -> Number:
    """The number with DIGITS significant digits; None for one that is not finite."""
    if value is None or not isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def numbers(values: Sequence[Number]) -> list[Number]:
    return [finite(value) for value in values]


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The titles of both axes, and how they run.

    `categories` are the (value, name) of marks on the axis of the devices, which then is logarithmic. With `log_y` the
    other is logarithmic, too, where all values are above 0; with `from_zero` it begins at 0.
    """

    x_title: str
    y_title: str
    categories: Sequence[tuple[int, str]] = ()
    log_y: bool = False
    from_zero: bool = True


def lines(
    series: Sequence[Line],
    axes: Axes,
    *,
    hover: str = "%{y}",
    ideal: Line | None = None,
    marker_px: int = 8,
    forecasts: Sequence[Line] = (),
    band: str = "",
) -> PlotlyFigure:
    """Lines with markers and intervals, and a dashed one for the ideal; `forecasts` are dashed, too, with open marks
    and with their intervals as a `band` of that name."""
    traces: list[dict[str, Any]] = []
    if ideal is not None:
        dashes = {"mode": "lines", "line": {"color": GREY, "dash": "dash", "width": 1.5}}
        traces.append(_line(ideal, ideal.name, GREY, "circle", hover) | dashes)
    names = labels_of([each.name for each in series])
    for at, (each, name) in enumerate(zip(series, names, strict=True)):
        number = at if each.number is None else each.number
        line = _line(each, name, COLOURS[number % len(COLOURS)], SYMBOLS[number % len(SYMBOLS)], hover)
        traces.append(line | {"marker": line["marker"] | {"size": marker_px}})
    for at, each in enumerate(forecasts):
        traces += _forecast(each, hover, "" if at else band)
    x_axis: dict[str, Any] = {"title": {"text": axes.x_title}}
    y_axis: dict[str, Any] = {"title": {"text": axes.y_title}} | ({"rangemode": "tozero"} if axes.from_zero else {})
    if axes.categories:
        values = [value for value, _ in axes.categories]
        named = _named(values)
        text = [label(name, 16) if value in named else "" for value, name in axes.categories]
        x_axis |= {"type": "log", "tickvals": values, "ticktext": text}
        if len(values) > MAX_LEVEL:
            x_axis["tickangle"] = -40  # else the last name, turned the other way, has no room at the edge
    if axes.log_y and (marks := _marks([*series, *forecasts, *([ideal] if ideal else [])])):
        ticks = {"tickvals": marks, "ticktext": [f"{mark:,.0f}" if mark >= 1 else f"{mark:g}" for mark in marks]}
        y_axis = {"title": {"text": axes.y_title}, "type": "log", **ticks}
    return {"data": traces, "layout": {"xaxis": x_axis, "yaxis": y_axis, "showlegend": len(traces) > 1}}


def _named(values: Sequence[float]) -> list[float]:
    """Those of a logarithmic axis whose names have room: the ends, and between them what is not too near another."""
    first, last = min(values), max(values)
    gap = log10(last / first) / MAX_NAMES
    named = [first]
    for value in sorted(values):
        if log10(value / named[-1]) > gap * 0.99 and log10(last / value) > gap * 0.99:
            named.append(value)
    return [*named, last]


def _marks(series: Sequence[Line]) -> list[float]:
    """1, 2, 5, 10, … around all values and intervals of a logarithmic axis; none where a value is not above 0."""
    drawn = [value for each in series for value in each.y if value is not None]
    drawn += [end for each in series for interval in each.intervals if interval for end in interval]
    values = [value for value in drawn if isfinite(value)]
    if not values or min(values) <= 0:
        return []
    exponents = range(floor(log10(min(values))) - 1, ceil(log10(max(values))) + 2)
    marks = [step * 10.0**exponent for exponent in exponents for step in (1, 2, 5)]
    below = [mark for mark in marks if mark <= min(values)]
    above = [mark for mark in marks if mark >= max(values)]
    inside = [mark for mark in marks if below[-1] <= mark <= above[0]]
    return inside if len(inside) <= MAX_MARKS else [mark for mark in inside if f"{mark:e}".startswith("1")]


def _line(series: Line, name: str, colour: str, symbol: str, hover: str) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": numbers(series.x),
        "y": numbers(series.y), "line": {"color": colour, "width": 2}, "marker": {"symbol": symbol, "size": 8},
        "hovertemplate": f"{hover}<extra>{_whole(series.name)}</extra>",
    }  # fmt: skip
    if any(series.intervals):
        pairs = [
            (None, None) if interval is None or y is None else (interval[1] - y, y - interval[0])
            for interval, y in zip(series.intervals, series.y, strict=True)
        ]
        trace["error_y"] = {
            "type": "data", "symmetric": False, "array": numbers([above for above, _ in pairs]),
            "arrayminus": numbers([below for _, below in pairs]), "thickness": 1.2, "width": 5,
        }  # fmt: skip
    return trace


def _forecast(series: Line, hover: str, band: str) -> list[dict[str, Any]]:
    """The dashed line and its band, one for each part that has intervals; `band` names it in the legend, if any."""
    number = series.number or 0
    colour, symbol = COLOURS[number % len(COLOURS)], f"{SYMBOLS[number % len(SYMBOLS)]}-open"
    line = _line(replace(series, intervals=()), labels_of([series.name])[0], colour, symbol, hover)
    line |= {"line": {"color": colour, "width": 2, "dash": "dash"}}
    first = {"marker": line["marker"] | {"opacity": [0, *([1] * (len(series.x) - 1))]}}  # where the measured one ends
    outline: list[tuple[Number, Number]] = []
    for known, part in groupby(zip(series.x, series.intervals, strict=True), lambda pair: pair[1] is not None):
        ends = [(x, interval) for x, interval in part if interval]
        if known and len(ends) > 1:
            outline += [(x, high) for x, (_, high) in ends] + [(x, low) for x, (low, _) in reversed(ends)]
            outline.append((None, None))
    if not outline:
        return [line | first]
    shape = {
        "type": "scatter", "mode": "lines", "name": label(band), "showlegend": bool(band), "fill": "toself",
        "x": numbers([x for x, _ in outline]), "y": numbers([y for _, y in outline]), "fillcolor": colour,
        "opacity": BAND_OPACITY, "line": {"color": colour, "width": 0}, "hoverinfo": "skip",
    }  # fmt: skip
    return [shape, line | first]


def _band(begin: float, until: float) -> dict[str, Any]:
    """Shaded steps, behind the lines."""
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": finite(begin), "x1": finite(until), "y0": 0, "y1": 1,
        "fillcolor": GREY, "opacity": 0.18, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def steps_figure(series: Sequence[Line], blocks: Sequence[tuple[int, int]], *, y_title: str) -> PlotlyFigure:
    """Thin lines along the steps of a run; what is before and between its `blocks`, (first, stop), is shaded."""
    figure = lines(series, Axes(x_title="step", y_title=y_title), hover="step %{x}: %{y}")
    data = [trace | {"mode": "lines", "line": trace["line"] | {"width": 1.3}} for trace in figure["data"]]
    begins = [0, *(stop - 0.5 for _, stop in blocks)]
    shapes = [_band(begin, first - 0.5) for begin, (first, _) in zip(begins, blocks, strict=False)]
    return {"data": data, "layout": figure["layout"] | {"shapes": shapes}}


@dataclass(frozen=True, kw_only=True)
class OverTime:
    """A value over time; every time is in ms since 1970, UTC.

    `medians` have their intervals, `names` say what each is of. `scatter` are single runs, each the position of its
    measurement and a value; `levels` (begin, end, value); `changes` (last time before it, first time after it, text).
    """

    medians: Line
    names: Sequence[str]
    scatter: Sequence[tuple[int, float]]
    levels: Sequence[tuple[int, int, float]]
    changes: Sequence[tuple[int, int, str]]


def over_time(course: OverTime, *, y_title: str) -> PlotlyFigure:
    """Medians with their intervals over dates, single runs in grey behind them, each level as a line, and at each
    change the time in which it came about shaded, with its text."""
    figure = lines([course.medians], Axes(x_title="", y_title=y_title, from_zero=False), marker_px=7)
    medians, names = dict(figure["data"][0]), labels_of(course.names)
    medians |= {
        "line": medians["line"] | {"width": 1}, "customdata": names,
        "hovertemplate": f"%{{x|{MOMENT}}}: %{{y}}<br>%{{customdata}}<extra></extra>",
    }  # fmt: skip
    runs = {
        "type": "scatter", "mode": "markers", "name": "runs", "x": [course.medians.x[at] for at, _ in course.scatter],
        "y": numbers([value for _, value in course.scatter]), "customdata": [names[at] for at, _ in course.scatter],
        "marker": {"color": GREY, "size": 6, "symbol": "circle-open"},
        "hovertemplate": f"a run, %{{x|{MOMENT}}}: %{{y}}<br>%{{customdata}}<extra></extra>",
    }  # fmt: skip
    levels = {
        "type": "scatter", "mode": "lines", "name": "level", "line": {"color": ORANGE, "width": 3},
        "x": [time for begin, end, _ in course.levels for time in (begin, end, None)],
        "y": numbers([each for _, _, value in course.levels for each in (value, value, None)]),
        "hoverinfo": "skip",  # it is drawn over the medians
    }  # fmt: skip
    axes = figure["layout"]
    layout = axes | {
        "xaxis": {"type": "date"},
        "yaxis": axes["yaxis"] | {"range": _range(course)},
        "showlegend": True,
        "shapes": [_band(before, first) for before, first, _ in course.changes],
        "annotations": [_at_change(number, *change) for number, change in enumerate(course.changes)],
    }
    return {"data": [runs, levels, medians] if course.levels else [runs, medians], "layout": layout}


def _range(course: OverTime) -> list[Number]:
    """The range of the values, with a margin, and above them room for the texts at the changes."""
    values = [value for _, value in course.scatter] + [value for value in course.medians.y if value is not None]
    values += [end for interval in course.medians.intervals if interval for end in interval]
    low, high = min(values), max(values)
    room = MARGIN + ROW_HEIGHT * min(ROWS, len(course.changes))
    height = ((high - low) or abs(high) * LEAST_HEIGHT or 1.0) / (1 - MARGIN - room)
    return numbers([low - MARGIN * height, low + (1 - MARGIN) * height])


def _at_change(number: int, before: int, first: int, text: str) -> dict[str, Any]:
    """The text at the top of a change; of neighbouring ones at different heights."""
    return {
        "x": (before + first) // 2, "xref": "x", "y": 1 - ROW_HEIGHT * (number % ROWS), "yref": "paper",
        "yanchor": "top", "text": label(text), "showarrow": False,
    }  # fmt: skip


def stacked(
    names: Sequence[str],
    parts: Mapping[str, Sequence[Number]],
    *,
    x_title: str,
    shown: Mapping[str, Sequence[str]] | None = None,
) -> PlotlyFigure:
    """A horizontal bar for each name, from top to bottom, made of parts; `shown` are the texts for the pointer."""
    traces = []
    other = cycle((GREEN, GREY))
    for part, values in parts.items():
        colour = TERM_COLOURS.get(part) or TERM_COLOURS.get(parts_of(part)[0]) or next(other)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label(part),
                "y": labels_of(names),
                "x": numbers(values),
                "marker": {"color": colour, "line": {"color": "var(--ground)", "width": 1}},
                "customdata": [label(text) for text in shown[part]] if shown else [""] * len(names),
                "hovertemplate": f"%{{y}}: {label(part)} %{{x}}%{{customdata}}<extra></extra>",
            }
        )
    layout = {
        "barmode": "relative", "xaxis": {"title": {"text": x_title}},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True}, "showlegend": len(parts) > 1,
        "bargap": 0.35,
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def heat_map(
    rows: Sequence[str],
    x: Sequence[int],
    z: Sequence[Sequence[Number]],
    *,
    top: float,
    unit: str,
    warmup: int,
) -> PlotlyFigure:
    """A heat map [row, x]; colours run from 0 to `top`, what is beyond has the last one. Steps before `warmup` are
    marked off by a line."""
    trace = {
        "type": "heatmap", "x": list(x), "y": labels_of(rows, 30), "z": [numbers(row) for row in z],
        "zmin": 0, "zmax": finite(top), "colorscale": "Cividis", "hoverongaps": False,
        "colorbar": {"title": {"text": unit}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"%{{y}}, step %{{x}}: %{{z}} {unit}<extra></extra>",
    }  # fmt: skip
    line = {"type": "line", "xref": "x", "yref": "paper", "x0": warmup - 0.5, "x1": warmup - 0.5, "y0": 0, "y1": 1,
            "line": {"color": "#FFFFFF", "width": 1, "dash": "dot"}}  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True, "nticks": 12},
        "shapes": [line],
    }
    return {"data": [trace], "layout": layout}
