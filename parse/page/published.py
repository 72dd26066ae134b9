"""Published values beside those measured here, and the same work measured more than once side by side."""

from __future__ import annotations

from collections.abc import Iterator

from parse.page.figures import Axes, Line, lines
from parse.page.scaling import MAX_SERIES, are_drawn, by_devices, cases_of, chosen_settings, series_of
from parse.page.types import Block, Chart, Listing, Panel, Section, Table
from parse.report.against import against_lines
from parse.report.side_by_side import SideBySide, compare
from parse.report.summary import Summary, labels
from parse.report.table import comparison_cells, comparison_title


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
    """Own speeds and the published ones by devices, where any point has one; two lines for each setting."""
    against = summary.against
    beside = {
        id(result): published.speed
        for result in summary.results
        if against and (published := against.beside(result)) and published.speed and result.median_speed is not None
    }
    settings, _ = chosen_settings([result for result in summary.results if id(result) in beside], None)
    if not are_drawn(settings):
        return
    words, series = [], []
    for name, setting in settings:
        of = f"{name}, " if len(settings) > 1 else ""
        here = series_of(f"{of}here", setting, "speed")
        published_speeds = [beside[id(result)] for result in by_devices(setting)]
        series += [here, Line(name=f"{of}published", x=here.x, y=published_speeds)]
        words += [
            f"{of}{result.requested.case} {result.median_speed:.4g} against {beside[id(result)]:.4g}"
            for result in by_devices(setting)
        ]
    cases = cases_of([result for _, setting in settings for result in setting])
    yield Chart(
        id="chart-against", title="Measured here and published (samples/s)",
        text=f"Measured here against published: {'; '.join(words)}",
        figure=lines(
            series, Axes(x_title="devices", y_title="samples/s", categories=cases, log_y=True),
            hover="%{x} devices: %{y}",
        ),
    )  # fmt: skip


def _side_by_side(comparison: SideBySide, number: int) -> Iterator[Block]:
    measured = [
        (column.name, points)
        for column in comparison.columns
        if (points := [result for result in column.points.values() if result.median_speed is not None])
    ]
    shown = measured[:MAX_SERIES]
    if are_drawn(shown):
        cases = cases_of([result for _, points in shown for result in points])
        of = f"; {MAX_SERIES} of {len(measured)}" if len(measured) > MAX_SERIES else ""
        axes = Axes(x_title="devices", y_title=comparison.unit, categories=cases, log_y=True)
        yield Chart(
            id=f"chart-compare-{number}",
            title=f"Speed ({comparison.unit}){of}",
            text=f"Speed by case of {', '.join(name for name, _ in shown)}; the table below has the figures.",
            figure=lines(
                [series_of(name, points, "speed") for name, points in shown], axes, hover="%{x} devices: %{y}"
            ),
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
