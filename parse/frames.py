"""A summary for Python: its points, runs, terms and findings as columns, the steps of a run, and HTML for a notebook.

`rankwise.load` calls this; the names and numbers are those of the JSON page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace_file import open_trace
from hpc.system.regular_file import existing
from hpc.system.sanitize import plain
from parse.arrow import ArrowColumns, column
from parse.report.export import content_of, rows_of
from parse.report.notices import warnings
from parse.report.summary import Summary, read_ledgers, read_summary

INTEGERS = (
    "nodes", "ranks_per_node", "devices", "batch_size_per_device", "global_batch_size", "runs_requested",
    "base_devices", "attempt", "steps_completed", "begin_unix_s",
)  # fmt: skip
NUMBERS = (
    "median_speed", "average_speed", "interval_coverage", "interval_low", "interval_high", "cv", "speedup",
    "scaling_efficiency", "throughput", "mean_of_rates", "mean_low", "mean_high", "baseline", "loss", "loss_low",
    "loss_high", "share", "costs", "speed_without",
)  # fmt: skip
"""Columns that may have no value at all, by their type; others are texts then."""
ROWS_SHOWN = 50
"""Rows that a notebook shows of a table."""
STYLE = "border:1px solid;border-radius:6px;padding:6px;margin:4px;width:24em;display:inline-block;vertical-align:top"


def read(paths: Sequence[str], base: str = "") -> tuple[Summary, dict[str, Any]]:
    """The summary of traces, logs, or a JSON page, and what its JSON page has. Raises FileNotFoundError where a path is
    not there, and ValueError where nothing was read, or no point has the case `base`."""
    if missing := existing([*map(Path, paths)])[1]:
        raise FileNotFoundError("; ".join(missing))
    summary, _ = read_summary([*map(Path, paths)], base=base)
    if summary.empty:
        raise ValueError("\n".join([f"nothing to read in {', '.join(paths)}", *warnings(summary)]))
    return summary, content_of(summary)


def add_ledgers(summary: Summary) -> tuple[Summary, list[dict[str, Any]]]:
    """The summary with its ledgers, and these as the JSON page has them; reads the traces once more."""
    summary = read_ledgers(summary, summary.results)
    return summary, content_of(summary)["ledgers"]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> ArrowColumns:
    """The rows as columns, one for every name that any of them has; an empty text is none of a number."""
    types = dict.fromkeys(INTEGERS, int) | dict.fromkeys(NUMBERS, float)
    names = dict.fromkeys(name for row in rows for name in row)
    cells = {name: [row.get(name) for row in rows] for name in names}
    for name in {*types} & {*names}:
        cells[name] = [None if value == "" else value for value in cells[name]]
    return {name: column(values, types.get(name, str)) for name, values in cells.items()}


def table_columns(table: str, records: Iterable[Mapping[str, Any]]) -> ArrowColumns:
    """`points` (the columns of the CSV page) or `runs` of results, or `terms` or `findings` of ledgers, in ms per step:
    a row for each."""
    return columns_of(rows_of(table, records))


def step_columns(path: str) -> ArrowColumns:
    """A row per rank and step of a trace: the stamps in ns since the first begin, on the clock of all ranks. Raises
    TraceError where the trace cannot be read, or its ranks not be compared."""
    with open_trace(Path(path)) as trace:
        stamps = trace.globally(trace.stamps[:, :])
        samples, losses = trace.samples[:, :], trace.losses[:, :]
        measured = np.zeros(stamps.shape[:2], bool)
        for first, stop in trace.blocks:
            measured[:, first:stop] = True
    absent = stamps == ABSENT
    since = stamps - np.min(stamps, where=~absent, initial=np.iinfo(np.int64).max)
    ranks, steps = np.indices(stamps.shape[:2])
    columns = {"rank": ranks, "step": steps, "measured": measured}
    columns |= {f"{name}_ns": np.ma.MaskedArray(since[..., at], absent[..., at]) for at, name in enumerate(STAMPS)}
    columns |= {"samples": samples.astype(np.int64), "loss": np.ma.masked_invalid(losses)}
    return {name: np.ma.asarray(values).reshape(-1) for name, values in columns.items()}


def table_html(heads: Sequence[str], rows: Sequence[Sequence[str]], of: int) -> str:
    """A table, and below it how many rows it has `of` all."""
    head = "".join(f"<th>{_escaped(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = f"<p>{len(rows):,} of {of:,} rows</p>" if len(rows) < of else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def columns_html(columns: ArrowColumns) -> str:
    """The first rows of columns as a table; a number in six digits."""
    of = len(next(iter(columns.values()), ()))
    shown = [[_cell(value) for value in values[:ROWS_SHOWN].tolist()] for values in columns.values()]
    return table_html([*columns], [*zip(*shown, strict=True)], of)


def summary_html(summary: Summary) -> str:
    """The three cards of the page and the table of points."""
    from parse.page.scaling import verdict
    from parse.report.table import points_tables
    from parse.text import with_units

    cards = "".join(
        f'<div style="{STYLE}"><b>{_escaped(card.question)}</b><br><big>{_escaped(card.figure)}</big><br>'
        f"{_escaped(card.of)}{''.join(f'<br>{_escaped(text)}' for text in card.sentences)}</div>"
        for card in verdict(summary)
    )
    tables = (table_html(with_units(table.heads), table.rows, len(table.rows)) for table in points_tables(summary))
    return f"<div>{cards}</div>{''.join(tables)}"


def chart_svg(summary: Summary, name: str) -> str:
    """A chart of the page as an SVG file: `speed`, `speedup`, `efficiency`, `ledger`. Raises ValueError, with the names
    of those that are there, where the summary has none of that name."""
    from parse.page.build import ledger_section
    from parse.page.figures import Chart, Choice
    from parse.page.html import draw_alone
    from parse.page.scaling import scaling_section, verdict_point

    charts = dict[str, Chart]()
    point = verdict_point(summary)
    for block in (*scaling_section(summary, point).blocks, *ledger_section(summary, point).blocks):
        named = block.charts if isinstance(block, Choice) else {"ledger": block} if isinstance(block, Chart) else {}
        for short, chart in named.items():
            number = sum(short.lower() == each.partition(" #")[0] for each in charts)
            charts[f"{short.lower()} #{number + 1}" if number else short.lower()] = chart
    if name not in charts:
        raise ValueError(f"no chart {name!r} of this: {', '.join(charts) or 'a single point has none'}")
    return draw_alone(charts[name])


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return html.escape(plain(text))
