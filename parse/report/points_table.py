"""The scaling table: a row for each point, in as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Sequence

from hpc.system.text import inflect
from parse.report.against import ONE_DEVICE, Against
from parse.report.notices import runs_ok
from parse.report.summary import against_text, by_base, by_unit, of_logs, requested_values, varying
from parse.result import Result
from parse.text import (
    Head,
    Page,
    aligned,
    column_widths,
    number,
    numbered,
    table_width,
    with_settings_folded,
    wrapped,
)

LOG_SPEEDS = {"wall_clock": "wall clock", "printed": "printed"}
"""A log's two speeds, side by side; the median is of those that count."""
OPTIONAL = ("average", "interval", "coverage", "CV", "MFU", "step p50", "step p95", *LOG_SPEEDS.values())
"""Columns that are left out where no row has anything in them."""
PUBLISHED_COLUMNS = ("published", "ratio", "published speedup")
FIRST_LEFT_OUT = (
    "nodes", "devices", "coverage", "average", "step p95", "step p50", "printed", "wall clock", "CV", "MFU", "interval",
    "runs",
)  # fmt: skip
"""Columns that a narrow page leaves out, the least important first. The case implies nodes and devices."""


def points_text(results: Sequence[Result], page: Page, beside: Against | None = None) -> list[str]:
    """The table as lines of at most `page.width` cells, and a line for the columns left out; one for each unit and for
    each base that speedups are against."""
    differ = varying(results)
    tables = [_table_text(part, differ, page, beside) for part in points_tables(results)]
    return [line for table in tables for line in (*table, "")][:-1]


def _table_text(results: Sequence[Result], differ: Sequence[str], page: Page, beside: Against | None) -> list[str]:
    """One of these tables."""
    heads, rows = points_cells(results, differ, beside)
    keys = ["case", *differ]
    names = [name for name, _ in heads]
    legend, rows = numbered(names, rows, page.width)
    if page.table_width is None:
        return [*legend, *aligned([*zip(*heads, strict=True), *rows])]
    columns = _as_columns(heads, rows)
    if len(keys) > 1 and _needs_folding(columns, keys, page.width):
        heads, rows = points_cells(results, differ, beside)
        settings = [at for at, (name, _) in enumerate(heads) if name in keys[1:]]
        legend, heads, rows = with_settings_folded(heads, rows, settings, page.width)
        columns = _as_columns(heads, rows)
    omitted: list[str] = []
    for name in FIRST_LEFT_OUT:
        if _width(columns) <= page.width:
            break
        if head := next((head for head in columns if head[0] == name), None):
            cells = columns.pop(head)
            omitted.append(name)
            if name == "coverage":
                _level_in_head(columns, cells[2:])
    lines = [*legend, *aligned([list(row) for row in zip(*columns.values(), strict=True)])]
    if omitted:
        columns_left_out = f"{inflect(len(omitted), 'column')} left out for lack of room: {', '.join(omitted)}"
        lines += wrapped([f"{columns_left_out}; --wide or --format csv has all"], page.width)
    return lines


def points_tables(results: Sequence[Result]) -> list[list[Result]]:
    """The results of each table: of one unit, and with speedups against one base."""
    return [of_base for of_unit in by_unit(results) for of_base in by_base(of_unit)]


def points_cells(
    results: Sequence[Result], differ: Sequence[str], beside: Against | None = None
) -> tuple[list[Head], list[list[str]]]:
    """Heads as (name, unit), and a row of texts per result of one table, published figures `beside` its own. The
    settings that `differ`, in any of the tables, have columns."""
    (unit,) = {result.unit for result in results}
    heads = [("case", ""), ("nodes", ""), ("devices", ""), *((name, "") for name in differ)]
    heads += [("runs", "ok/total"), ("median", unit)]
    heads += [(name, unit) for name in LOG_SPEEDS.values()]
    heads += [("average", unit), ("interval", unit)]
    base = next((text for result in results if (text := against_text(result))), "")
    heads += [("coverage", "%"), ("CV", "%"), ("speedup", base), ("efficiency", f"% {base}".strip()), ("MFU", "%")]
    heads += [("step p50", "ms"), ("step p95", "ms")]
    rows = [_row(result, differ) for result in results]
    if beside is not None:
        bases = _published_bases(beside, results)
        speed, ratio, speedup = PUBLISHED_COLUMNS
        heads += [(speed, "samples/s"), (ratio, ""), *((speedup, _against(each, base)) for each in bases)]
        rows = [[*row, *_published(beside, result, bases)] for row, result in zip(rows, results, strict=True)]
    empty = {name for at, (name, _) in enumerate(heads) if name in OPTIONAL and all(row[at] == "-" for row in rows)}
    remaining = [at for at, (name, _) in enumerate(heads) if name not in empty]
    return [heads[at] for at in remaining], [[row[at] for at in remaining] for row in rows]


def _row(result: Result, differ: Sequence[str]) -> list[str]:
    requested, interval = requested_values(result), result.interval
    return [
        *(requested.get(name, "-") for name in ("case", "nodes", "devices", *differ)),
        runs_ok(result),
        number(result.median_speed),
        *(number(of_logs(result, name)) for name in LOG_SPEEDS),
        number(result.average_speed),
        f"[{interval.low:.2f}, {interval.high:.2f}]" if interval else "-",
        number(interval.coverage if interval else None, 100),
        number(result.cv, 100),
        number(result.speedup),
        number(result.scaling_efficiency, 100, decimals=1),
        number(result.mfu, 100, decimals=1),
        number(result.step_time_ms.get(50)),
        number(result.step_time_ms.get(95)),
    ]


def _published_bases(of: Against, results: Sequence[Result]) -> list[str]:
    """The cases that the published speedups of these results are against: a column for each."""
    bases = dict.fromkeys(its.base for result in results if (its := of.beside(result)) and its.speedup is not None)
    return list(bases) or [ONE_DEVICE]


def _against(base: str, beside: str) -> str:
    """What the head of a published speedup says; `beside` is what that of the measured one says."""
    return "" if base == ONE_DEVICE and not beside else f"against {base}" if base else "base not stated"


def _published(of: Against, result: Result, bases: Sequence[str]) -> list[str]:
    """The published speed, the ratio, in brackets where settings differ, and the published speedup, by its base."""
    beside = of.beside(result)
    if beside is None:
        return ["-"] * (2 + len(bases))
    ratio = number(beside.ratio(result), decimals=3)
    bracketed = f"({ratio})" if beside.differences and beside.ratio(result) is not None else ratio
    speedups = [number(beside.speedup if beside.base == base else None) for base in bases]
    return [number(beside.speed), bracketed, *speedups]


def _level_in_head(columns: dict[Head, list[str]], coverages: Sequence[str]) -> None:
    """Puts `covers 75 %`, or `covers 50-75 %`, in the place of the intervals' unit, which the median has, too: without
    a level they are taken for those of 95 %."""
    known = sorted({round(float(each)) for each in coverages if each != "-"})
    for (name, _), cells in columns.items():
        if name == "interval":
            cells[1] = f"covers {'-'.join(map(str, dict.fromkeys((known[0], known[-1]))))} %"


def _as_columns(heads: Sequence[Head], rows: Sequence[Sequence[str]]) -> dict[Head, list[str]]:
    """By head, each column's cells with its head above them."""
    cells = zip(*rows, strict=True)
    return {(name, unit): [name, unit, *column] for (name, unit), column in zip(heads, cells, strict=True)}


def _width(columns: dict[Head, list[str]]) -> int:
    return table_width(column_widths([*zip(*columns.values(), strict=True)]))


def _needs_folding(columns: dict[Head, list[str]], keys: Sequence[str], width: int) -> bool:
    """Whether the columns that identify the points take half of the page, or leave too little for the speeds."""
    names = {head: cells for head, cells in columns.items() if head[0] in keys}
    always = {head: cells for head, cells in columns.items() if head[0] in keys or head[0] not in FIRST_LEFT_OUT}
    return _width(names) > width // 2 or _width(always) > width
