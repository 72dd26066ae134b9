"""A summary for people, as text or Markdown: returns strings, prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len

from hpc.system.groups import grouped
from hpc.system.sanitize import plain
from hpc.system.text import plural
from parse.alarms.placement import nested_summary
from parse.report.against import against_lines
from parse.report.bandwidths import bandwidths_markdown, bandwidths_text
from parse.report.chart import speedup_chart
from parse.report.conclusion import conclusion
from parse.report.export import as_json, comma_separated, dlperf
from parse.report.largest import largest_markdown, largest_text
from parse.report.ledger import ledger_markdown, ledger_text
from parse.report.nodes import nodes_markdown, nodes_text
from parse.report.notices import before_the_numbers, below_the_table, notice_lines
from parse.report.points_table import points_cells, points_tables, points_text
from parse.report.side_by_side import Column, SideBySide, compare, outcomes
from parse.report.summary import USUAL, Summary, against_text, knowing, labels, shared, varying
from parse.report.trainings import trainings_markdown, trainings_text
from parse.result import Result
from parse.text import (
    Page,
    markdown_list,
    markdown_table,
    markdown_text,
    number,
    padded,
    shortened,
    with_units,
    wrapped,
)

COLUMN_GAP = "   "
"""Between backends."""


def text(summary: Summary, page: Page | None = None) -> str:
    """For a terminal: conclusion, shared settings, backends side by side, a row per point, warnings, and the ledgers if
    requested; no line is wider than the page, except tables of a `wide` one."""
    page = page or Page()
    before, below = before_the_numbers(summary), below_the_table(summary)
    first, first_cut = notice_lines(before, page.width, all_warnings=page.all_warnings)
    last, last_cut = notice_lines(below, page.width, all_warnings=page.all_warnings)
    if cut_short := first_cut + last_cut:
        cut = plural(cut_short, "warning")
        hint = f"{cut} shortened: --warnings or --format markdown gives all in full length"
        last += wrapped([hint], page.width)
    blocks = [
        [*wrapped(conclusion(summary, [*before, *below], page.width), page.width), *first],
        wrapped(_shared_lines(summary, _hidden_env(summary.results)), page.width),
    ]
    for comparison in compare(summary.results):
        blocks.append(wrapped([comparison_title(comparison, summary), *comparison.apart], page.width))
        blocks += _side_by_side(comparison, page)
    blocks += [points_text(summary.results, page, summary.against)] if summary.results else []
    blocks += [speedup_chart(summary.results, page)] if page.charts else []
    blocks += [wrapped(_against_lines(summary), page.width)]
    blocks += [trainings_text(summary, page), largest_text(summary, page), nodes_text(summary, page)]
    blocks += [bandwidths_text(summary, page), last]
    blocks += [ledger_text(summary, page)] if summary.ledgers is not None else []
    lines = [line for block in blocks if block for line in (*block, "")]
    return "\n".join(plain(line).rstrip() for line in lines).strip("\n") + "\n"


def markdown(summary: Summary) -> str:
    """The results as Markdown tables and lists, with every warning in full length."""
    first = [*(notice.line for notice in before_the_numbers(summary)), *_shared_lines(summary)]
    parts = [markdown_list(first)]
    for comparison in compare(summary.results):
        parts += [markdown_text(line) for line in (comparison_title(comparison, summary), *comparison.apart)]
        parts += [markdown_table(*comparison_cells(comparison))]
    for part in points_tables(summary.results):
        heads, rows = points_cells(part, varying(summary.results), summary.against)
        parts += [markdown_table(with_units(heads), rows)]
    parts += [markdown_list(_against_lines(summary))]
    parts += [*trainings_markdown(summary), *largest_markdown(summary), *nodes_markdown(summary)]
    parts += bandwidths_markdown(summary)
    parts += [markdown_list(notice.line for notice in below_the_table(summary))]
    if summary.ledgers is not None:
        parts += ledger_markdown(summary)
    return "\n\n".join(part for part in parts if part) + "\n"


FORMATS: Mapping[str, Callable[[Summary], str]] = {
    "table": text,
    "markdown": markdown,
    "csv": comma_separated,
    "json": as_json,
    "dlperf": dlperf,
}


def _shared_lines(summary: Summary, omitted: frozenset[str] = frozenset()) -> list[str]:
    """The settings that all points share, without the names in `omitted`."""
    if not summary.results:
        return []
    requested = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    if nested := nested_summary(summary.results):
        requested.pop("placement", None)
    if omitted and "site" in requested:
        requested["site"] += f" (sets {plural(len(omitted), 'environment variable')})"
    known = grouped((knowing(summary.results, name), name) for name in requested if name not in omitted)
    lines = [nested] if nested else []
    known = {(): known.pop((), []), **known}  # those of all points first, also where there is none
    for of, names in known.items():
        env = [f"{name.removeprefix('env.')}={requested[name]}" for name in names if name.startswith("env.")]
        constant = [f"{name} {requested[name]}" for name in names if not name.startswith("env.")]
        whose = f"known of {', '.join(of)} only: " if of else ""
        lines += [f"{whose}{', '.join(constant)}"] if constant or not of else []
        lines += [f"{whose}environment set: {', '.join(env)}"] if env else []
    return lines


def _hidden_env(results: Sequence[Result]) -> frozenset[str]:
    """Names, as in requested_values, of the environment variables that the target sets for every point."""
    values = [(result.run.env, result.requested.target_env) for result in results if not result.requested.partly]
    names = {name for env, _ in values for name in env}
    return frozenset(
        f"env.{name}"
        for name in names
        if all(name in target and env.get(name) == target[name] for env, target in values)
    )


def _against_lines(summary: Summary) -> list[str]:
    """What the published figures are and how far they are comparable, if any were requested."""
    if summary.against is None:
        return []
    return list(against_lines(summary.against, summary.results, labels(summary.results)))


def comparison_title(comparison: SideBySide, summary: Summary) -> str:
    """The work that is compared, and whatever else is not the same in all of the summary."""
    named = ["workload", "batch_size", "precision", *varying(summary.results)]
    return ", ".join(f"{name} {comparison.same[name]}" for name in dict.fromkeys(named) if name in comparison.same)


def _side_by_side(comparison: SideBySide, page: Page) -> list[list[str]]:
    """Two columns for each backend; in blocks below one another where they are wider than the page."""
    width = max(cell_len(plain(case)) for case in ("case", *comparison.cases))
    room = page.table_width
    name_parts = [part for column in comparison.columns for part in column.words]
    short = shortened(name_parts, page.width - width - len(COLUMN_GAP)) if room is not None else {}
    pillars = [_pillar(column, comparison, short) for column in comparison.columns]
    blocks: list[list[list[str]]] = [[]]
    taken = width
    for pillar in pillars:
        needed = len(COLUMN_GAP) + cell_len(pillar[-1])
        if room is not None and blocks[-1] and taken + needed > room:
            blocks.append([])
            taken = width
        blocks[-1].append(pillar)
        taken += needed
    return [_block(block, comparison.cases, width) for block in blocks]


def _block(pillars: Sequence[Sequence[str]], cases: Sequence[str], width: int) -> list[str]:
    """Pillars side by side, their last lines level, behind the cases."""
    depth = max(map(len, pillars))
    filled = [[*pillar[: -len(cases) - 1], *[""] * (depth - len(pillar)), *pillar[-len(cases) - 1 :]]
              for pillar in pillars]  # fmt: skip
    widths = [max(cell_len(line) for line in pillar) for pillar in filled]
    begin = [*[""] * (depth - len(cases) - 1), "case", *cases]
    return [
        COLUMN_GAP.join(
            [padded(plain(first), width, align_left=True)]
            + [padded(line, wide, align_left=False) for line, wide in zip(row, widths, strict=True)]
        )
        for first, *row in zip(begin, *filled, strict=True)
    ]


def _pillar(column: Column, comparison: SideBySide, short: Mapping[str, str]) -> list[str]:
    """Lines of equal width: the column's name in several, units, and a line for each case."""
    pairs = [(comparison.unit, _speedup_head(column)), *(_cell(column, case) for case in comparison.cases)]
    widths = [max(map(cell_len, side)) for side in zip(*pairs, strict=True)]
    lines = [plain(short.get(part, part)) for part in column.words]
    lines += [f"{speed.rjust(widths[0])}  {speedup.rjust(widths[1])}" for speed, speedup in pairs]
    width = max(map(cell_len, lines))
    return [padded(line, width, align_left=False) for line in lines]


def _speedup_head(column: Column) -> str:
    """`speedup`, and what it is against where that is not one device: the points of a column have one base."""
    base = next((text for result in column.points.values() if (text := against_text(result))), "")
    return f"speedup {base}".strip()


def _cell(column: Column, case: str) -> tuple[str, str]:
    """Speed and speedup; the outcome where there is no speed, with a sign where runs ended in several ways."""
    if case not in column.points:
        return "", ""
    result = column.points[case]
    if result.median_speed is None:
        outcome, *others = outcomes(result)
        return f"{outcome}, …" if others else outcome, ""
    return number(result.median_speed), number(result.speedup)


def comparison_cells(comparison: SideBySide) -> tuple[list[str], list[list[str]]]:
    pairs = [(f"{column.name} ({comparison.unit})", _speedup_head(column)) for column in comparison.columns]
    heads = ["case", *(head for pair in pairs for head in pair)]
    return heads, [
        [case, *(cell for column in comparison.columns for cell in _cell(column, case))] for case in comparison.cases
    ]
