"""What the section says, as plain text: how it scales, a table for each unit, remarks on its rows, the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from hpc.system.text import plural
from parse.page.build import title
from parse.page.figures import Line
from parse.page.paper.method import method
from parse.page.scaling import cases_of, chosen_settings, notice_text, scaled_by_base, series_of
from parse.page.types import Table
from parse.page.verdict import as_sentence, headline
from parse.report.against import against_lines
from parse.report.conclusion import conclusion
from parse.report.notices import Notice, before_the_numbers, below_the_table, merged
from parse.report.points_table import PUBLISHED_COLUMNS, points_cells, points_tables
from parse.report.summary import Summary, by_unit, labels, names_of_points, varying
from parse.result import Result
from parse.text import Head, cut, numbered, shortened, with_settings_folded

COLUMNS = (
    "case",
    "nodes",
    "devices",
    "runs",
    "median",
    "interval",
    "coverage",
    "speedup",
    "efficiency",
    "MFU",
    *PUBLISHED_COLUMNS,
)
"""Columns of the scaling table that the section has, beside the settings in which its points differ."""
BARS = (
    "Bars are the intervals of the medians, divided by the median of the base; its own interval stands at its devices."
)
MAX_REMARKS = 12
"""More are counted; `parse.summarize --all-warnings` has them all."""
TEXT_WIDTH = 240
"""Cells of a text from outside, at most."""
NAME_WIDTH = 120
VALUE_WIDTH = 80
UNWRAPPED = 10**6
"""No line below a table is so long."""
MAX_SETTINGS = 3
"""With more settings that differ they are one column of numbers, and stand below the table."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A warning or a note: `mark` stands beside the rows that it is about; empty where it is about all."""

    mark: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MarkedTable:
    """The points of one unit, and for each row the marks of its remarks."""

    table: Table
    marks: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Speedup by devices against one base, with its devices: a series for each setting, the (devices, case) of the
    axis."""

    base: str
    base_devices: int
    series: Sequence[Line]
    cases: Sequence[tuple[int, str]]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A panel for each base, and the caption of all."""

    panels: Sequence[Panel]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """The whole section; no text in it is escaped. `curves` is None where no point has a speedup on several devices."""

    title: str
    opening: Sequence[str]
    tables: Sequence[MarkedTable]
    remarks: Sequence[Remark]
    curves: Curves | None
    method: Sequence[str]


def content(summary: Summary) -> Content:
    """The section of a summary; where nothing was measured it says so."""
    before = before_the_numbers(summary)
    notices = [*before, *below_the_table(summary)]
    remarks, marks = _remarks(summary, merged(before), merged(notices))
    tables, legends = _tables(summary, marks)
    opening = [cut(as_sentence(line), TEXT_WIDTH) for line in conclusion(summary, notices, NAME_WIDTH)]
    return Content(
        title=title(summary),
        opening=opening or ["Nothing here has a speed."],
        tables=tables,
        remarks=[*remarks, *(Remark(mark="", text=line) for line in legends)],
        curves=_curves(summary),
        method=method(summary),
    )


def _remarks(
    summary: Summary, before: Sequence[Notice], notices: Sequence[Notice]
) -> tuple[list[Remark], dict[str, list[str]]]:
    """The first remarks, those of published figures behind them; and by point the marks of its own."""
    names = names_of_points(summary)
    about = [(notice, _points(notice, summary.results, names)) for notice in notices]
    shown = [
        (notice, points) for notice, points in about
        if notice in before or (notice.is_warning and (points or not notice.labels))
    ]  # fmt: skip
    order = {result.requested.point: at for at, result in enumerate(summary.results)}
    shown.sort(key=lambda pair: min((order[point] for point in pair[1]), default=len(order)))
    remarks: list[Remark] = []
    marks: dict[str, list[str]] = {}
    for notice, points in shown[:MAX_REMARKS]:
        mark = ascii_lowercase[len({mark for each in marks.values() for mark in each})] if points else ""
        for point in points:
            marks.setdefault(point, []).append(mark)
        text = notice.text if points else notice_text(notice)
        remarks.append(Remark(mark=mark, text=cut(as_sentence(text), TEXT_WIDTH)))
    further = sum(notice.is_warning for notice, _ in about) - sum(
        notice.is_warning for notice, _ in shown[:MAX_REMARKS]
    )
    if further:
        text = f"{plural(further, 'further warning')}: python -m parse.summarize --all-warnings has them."
        remarks.append(Remark(mark="", text=text))
    if summary.against is not None:
        lines = against_lines(summary.against, summary.results, labels(summary.results))
        remarks += [Remark(mark="", text=cut(as_sentence(line), TEXT_WIDTH)) for line in lines]
    return remarks, marks


def _points(notice: Notice, results: Sequence[Result], names: dict[str, str]) -> list[str]:
    """The points that the notice is about: by their names, or because the alarm is theirs."""
    return [
        result.requested.point
        for result in results
        if notice.labels
        and (
            names[result.requested.point] in notice.labels or any(alarm.text == notice.text for alarm in result.alarms)
        )
    ]


def _tables(summary: Summary, marks: dict[str, list[str]]) -> tuple[list[MarkedTable], list[str]]:
    """A table for each unit, and the lines for the cells that are too long for it."""
    tables: list[MarkedTable] = []
    legends: list[str] = []
    differ = varying(summary.results)
    for number, of_unit in enumerate(points_tables(summary.results)):
        heads, rows = _chosen_columns(differ, *points_cells(of_unit, differ, summary.against))
        if len(differ) > MAX_SETTINGS:
            settings = [at for at, (name, _) in enumerate(heads) if name not in COLUMNS]
            legend, heads, rows = with_settings_folded(heads, rows, settings, UNWRAPPED)
        else:
            legend, rows = numbered([name for name, _ in heads], rows, UNWRAPPED)
        legends += filter(None, legend)
        several = f" ({of_unit[0].unit})" if number or len(by_unit(summary.results)) > 1 else ""
        interval = ", its interval and that interval's coverage" if any(name == "interval" for name, _ in heads) else ""
        table = Table(
            id=f"scaling-{number}" if number else "scaling",
            caption=f"Median speed of each case{several}{interval}{_against(of_unit)}",
            heads=heads,
            rows=rows,
        )
        tables.append(MarkedTable(table=table, marks=[marks.get(result.requested.point, []) for result in of_unit]))
    return tables, legends


def _against(results: Sequence[Result]) -> str:
    """`, speedup against 1n8g, and efficiency`; empty where no point has a speedup."""
    base = next((result.base for result in results if result.speedup is not None), None)
    return f", speedup against {base.case}, and efficiency" if base else ""


def _chosen_columns(
    differ: Sequence[str], heads: Sequence[Head], rows: Sequence[Sequence[str]]
) -> tuple[list[Head], list[list[str]]]:
    """The columns of the section: the case, the settings that differ, the numbers."""
    shown = {*COLUMNS, *differ}
    at = [place for place, (name, _) in enumerate(heads) if name in shown]
    at.sort(key=lambda place: heads[place][0] in ("nodes", "devices") or heads[place][0] in COLUMNS[3:])
    columns = [[row[place] for row in rows] for place in at]
    short = [shortened(column, VALUE_WIDTH) for column in columns]
    cells = [[of[cell] for cell in column] for of, column in zip(short, columns, strict=True)]
    return [heads[place] for place in at], [list(row) for row in zip(*cells, strict=True)]


def _curves(summary: Summary) -> Curves | None:
    chosen, settings = chosen_settings(
        [result for result in summary.results if result.median_speed is not None], headline(summary)
    )
    panels = [
        Panel(
            base=base.case, base_devices=base.devices,
            series=[series_of(name, setting, "speedup") for name, setting in of_base],
            cases=cases_of([result for _, setting in of_base for result in setting]),
        )
        for base, of_base in scaled_by_base(chosen)
    ]  # fmt: skip
    if not panels:
        return None
    left_out = f"; {len(chosen)} of {len(settings)} settings" if len(settings) > len(chosen) else ""
    bases = f"{' and '.join(panel.base for panel in panels)}{', a panel each,' if len(panels) > 1 else ''}"
    has_bars = any(any(each.intervals) for panel in panels for each in panel.series)
    return Curves(
        panels=panels,
        caption=f"Speedup against {bases} by the number of devices; both axes are logarithmic, dashed: the ideal"
        f"{left_out}.{f' {BARS}' if has_bars else ''}",
    )
