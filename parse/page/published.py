"""Published values beside those measured here, and the same work measured more than once side by side."""

from __future__ import annotations

from collections.abc import Iterator

from parse.page.figures import Axes, Series, lines
from parse.page.types import Block, Chart, Listing, Panel, Section, Table
from parse.report.against import against_lines
from parse.report.side_by_side import SideBySide, compare
from parse.report.summary import Summary, labels
from parse.report.table import comparison_cells, comparison_title

MAX_SERIES = 6


def published_section(summary: Summary) -> Section | None:
    """A table and a chart of each work that several backends, documents or measurements have; None without any."""
    blocks: list[Block] = []
    if summary.against is not None:
        about = list(against_lines(summary.against, summary.results, labels(summary.results)))
        blocks.append(Listing(title="Published values, beside the points in the table above", lines=about))
        blocks += _ratios(summary)
    panels = [
        Panel(
            id=f"compared-{number}",
            title=comparison_title(comparison, summary),
            blocks=[*_side_by_side(comparison, number)],
            is_open=not number,
        )
        for number, comparison in enumerate(compare(summary.results))
    ]
    title = "Published values" if summary.against else "Side by side"
    return Section(id="published", title=title, blocks=blocks, panels=panels) if blocks or panels else None


def _ratios(summary: Summary) -> Iterator[Chart]:
    """Own speeds and the published ones by devices, where any point has one."""
    against = summary.against
    pairs = [(result, beside) for result in summary.results if against and (beside := against.beside(result))]
    pairs = [(result, beside) for result, beside in pairs if result.median_speed is not None and beside.speed]
    if not pairs:
        return
    pairs.sort(key=lambda pair: pair[0].run.devices)
    devices = [result.run.devices for result, _ in pairs]
    cases = {result.run.devices: result.requested.case for result, _ in pairs}
    words = ", ".join(
        f"{result.requested.case} {result.median_speed:.4g} against {beside.speed:.4g}" for result, beside in pairs
    )
    yield Chart(
        id="chart-against", title="Measured here and published (samples/s)",
        text=f"Measured here against published: {words}",
        figure=lines(
            [
                Series(
                    name="here", x=devices, y=[result.median_speed for result, _ in pairs],
                    intervals=[(r.interval.low, r.interval.high) if r.interval else None for r, _ in pairs],
                ),
                Series(name="published", x=devices, y=[beside.speed for _, beside in pairs]),
            ],
            Axes(x_title="devices", y_title="samples/s", categories=sorted(cases.items()), log_y=True),
            hover="%{x} devices: %{y}",
        ),
    )  # fmt: skip


def _side_by_side(comparison: SideBySide, number: int) -> Iterator[Block]:
    measured = [column for column in comparison.columns if any(r.median_speed for r in column.points.values())]
    series = []
    for column in measured[:MAX_SERIES]:
        points = [r for r in column.points.values() if r.median_speed is not None]
        points.sort(key=lambda result: (result.run.devices, result.run.nodes or 1))
        series.append(
            Series(
                name=column.name,
                x=[result.run.devices for result in points],
                y=[result.median_speed for result in points],
                intervals=[(r.interval.low, r.interval.high) if r.interval else None for r in points],
            )
        )
    cases = {r.run.devices: case for column in measured for case, r in column.points.items()}
    if series:
        of = f"; {MAX_SERIES} of {len(measured)}" if len(measured) > MAX_SERIES else ""
        axes = Axes(x_title="devices", y_title=comparison.unit, categories=sorted(cases.items()), log_y=True)
        yield Chart(
            id=f"chart-compare-{number}",
            title=f"Speed ({comparison.unit}){of}",
            text=f"Speed by case of {', '.join(each.name for each in series)}; the table below has the figures.",
            figure=lines(series, axes, hover="%{x} devices: %{y}"),
        )
    heads, rows = comparison_cells(comparison)
    yield Table(
        id=f"compare-{number}",
        caption="Speed and speedup by case",
        heads=[(head.removesuffix(f" ({comparison.unit})"), comparison.unit * head.endswith(")")) for head in heads],
        rows=rows,
    )
    if comparison.apart:
        yield Listing(title="More differs than the backend", lines=comparison.apart, warnings=True)
