"""Speed, speedup and efficiency against the ideal, with intervals; the table of all points and their warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.system.text import first_of, plural
from parse.page.figures import Axes, Line, lines
from parse.page.types import Chart, Listing, PageBlock, Paragraph, Section, Table
from parse.report.conclusion import setting_names
from parse.report.nodes import nodes_tables
from parse.report.notices import Notice, all_notices
from parse.report.summary import Summary, by_unit, names_of_points, varying
from parse.report.table import of_tables, points_tables
from parse.result import Base, Result, by_setting
from parse.text import covers

NAMING = ("document", "backend", "workload", "batch_size", "precision")
"""Settings in front of the speeds in the table of points: the source, and what was measured."""
NAMED = 6
"""Points named before a warning that is about several."""
LINE_PX, LINES = 20, 2
"""Names in a narrow chart are written one below the other: beyond so many lines each makes the chart higher."""
MAX_SERIES = 6
"""Settings in one chart; the tables have all."""


def scaling_section(summary: Summary, point: Result | None) -> Section:
    """The charts and tables by unit; `point` is that of the verdict, whose setting is always drawn."""
    blocks: list[PageBlock] = []
    units = by_unit([result for result in summary.results if result.median_speed is not None])
    for number, of_unit in enumerate(units):
        blocks += _charts(of_unit, point, f"-{number}" if number else "")
    blocks += _tables(summary)
    for table, left_out in nodes_tables(summary):
        blocks.append(Table.of(table, f"nodes-{len(blocks)}", "; ".join([table.caption, *left_out])))
    notices = all_notices(summary)
    remarks = [notice_text(notice) for notice in notices if not notice.is_warning]
    blocks += [Listing(title="Remarks", lines=remarks)] if remarks else []
    return Section(id="scaling", title="Speed, speedup and efficiency", blocks=blocks or [Paragraph(text="No point.")])


def warnings_section(summary: Summary) -> Section | None:
    """All warnings, those that must be known before any number first; None if there is none."""
    notices = all_notices(summary)
    warnings = [notice_text(notice) for notice in notices if notice.is_warning]
    if not warnings:
        return None
    listing = Listing(title=plural(len(warnings), "warning"), lines=warnings, warnings=True)
    return Section(id="warnings", title="Warnings", blocks=[listing])


def notice_text(notice: Notice, max_named: int = NAMED) -> str:
    """The notice with the names of the first of its points, and the number of the others."""
    return f"{first_of(notice.labels, max_named)}: {notice.text}" if notice.labels else notice.text


def chosen_settings(
    results: Sequence[Result], point: Result | None
) -> tuple[list[tuple[str, list[Result]]], list[list[Result]]]:
    """The names and points of the settings that one chart has, that of `point` among them; and all settings."""
    settings = list(by_setting(results).values())
    names = setting_names([setting[0] for setting in settings])
    largest = sorted(
        range(len(settings)),
        key=lambda at: (
            all(each is not point for each in settings[at]),
            -len(settings[at]),
            -settings[at][-1].run.devices,
            at,
        ),
    )
    return [(names[at], settings[at]) for at in sorted(largest[:MAX_SERIES])], settings


def scaled_by_base(
    settings: Sequence[tuple[str, Sequence[Result]]],
) -> list[tuple[Base, list[tuple[str, list[Result]]]]]:
    """The settings whose points have speedups against the same case, few devices first: no axis has two bases. None
    where there is no point but the bases themselves, which are no scaling."""
    bases: dict[tuple[int, str], Base] = {}
    by_base: dict[tuple[int, str], list[tuple[str, list[Result]]]] = {}
    for name, setting in settings:
        points = [result for result in setting if result.speedup]
        if points and (base := points[0].base):
            key = base.devices, base.case
            bases.setdefault(key, base)
            by_base.setdefault(key, []).append((name, points))
    return [
        (bases[key], of_base)
        for key, of_base in sorted(by_base.items())
        if any(not is_base(result) for _, points in of_base for result in points)
    ]


def is_base(result: Result) -> bool:
    """Whether it is what its setting is measured against."""
    return result.base is not None and result.base.point == result.requested.point


def are_drawn(settings: Sequence[tuple[str, Sequence[Result]]]) -> bool:
    """Whether a line of any setting has two ends: the table has what single points say."""
    return any(
        len({result.run.devices for result in setting if result.median_speed is not None}) > 1
        for _, setting in settings
    )


def _charts(results: Sequence[Result], point: Result | None, suffix: str) -> Iterator[PageBlock]:
    chosen, settings = chosen_settings(results, point)
    if not are_drawn(chosen):
        return
    if len(settings) > len(chosen):
        yield Paragraph(
            text=f"The charts have {len(chosen)} of {len(settings)} settings, those with most cases; the table has all."
        )
    cases = cases_of([result for _, setting in chosen for result in setting])
    unit = results[0].unit
    yield Chart(
        id=f"chart-speed{suffix}", title=f"Speed ({unit})", text=_described(chosen, "speed"),
        height_px=_height_px(len(chosen)),
        figure=lines(
            [series_of(name, setting, "speed") for name, setting in chosen],
            Axes(x_title="devices", y_title=unit, categories=cases, log_y=True),
            ideal=_ideal_speed(chosen, cases), hover="%{x} devices: %{y} " + unit,
        ),
    )  # fmt: skip
    names = [name for name, _ in chosen]
    scaled = [(base, of_base) for base, of_base in scaled_by_base(chosen) if are_drawn(of_base)]
    for number, (base, of_base) in enumerate(scaled):
        yield from _scaling_charts(base, of_base, names, f"{suffix}-base-{number}" if number else suffix)
    if scaled:
        yield Paragraph(
            text=f"Bars are the exact intervals of the medians, over the runs of a point{covered(chosen)}; in speedup "
            "and efficiency they are divided by the median of the base, whose own interval is at its devices. "
            "Dashed: the ideal. Both axes of speed and speedup are logarithmic."
        )


def covered(settings: Sequence[tuple[str, Sequence[Result]]]) -> str:
    """What the intervals of the settings' points cover; empty where there are none."""
    intervals = [result.interval for _, setting in settings for result in setting if result.interval]
    return f" ({covers(each.coverage for each in intervals)})" if intervals else ""


def _scaling_charts(
    base: Base, scaled: Sequence[tuple[str, Sequence[Result]]], names: Sequence[str], suffix: str
) -> Iterator[Chart]:
    """Speedup and efficiency of the settings that are measured against this case; `names` are those of all settings, by
    whose order each has its colour."""
    cases = cases_of([result for _, setting in scaled for result in setting])
    devices = [device for device, _ in cases]
    yield Chart(
        id=f"chart-speedup{suffix}", title=f"Speedup against {base.case}", text=_described(scaled, "speedup"),
        height_px=_height_px(len(scaled)),
        figure=lines(
            [series_of(name, setting, "speedup", names.index(name)) for name, setting in scaled],
            Axes(x_title="devices", y_title=f"speedup against {base.case}", categories=cases, log_y=True),
            ideal=Line(name="ideal", x=devices, y=[device / base.devices for device in devices]),
            hover="%{x} devices: %{y} ×",
        ),
    )  # fmt: skip
    yield Chart(
        id=f"chart-efficiency{suffix}", title=f"Efficiency against {base.case}",
        text=_described(scaled, "efficiency"), height_px=_height_px(len(scaled)),
        figure=lines(
            [series_of(name, setting, "efficiency", names.index(name)) for name, setting in scaled],
            Axes(x_title="devices", y_title=f"% of ideal against {base.case}", categories=cases),
            ideal=Line(name="ideal", x=devices, y=[100] * len(devices)), hover="%{x} devices: %{y} %",
        ),
    )  # fmt: skip


def _height_px(lines_drawn: int) -> int:
    return Chart.height_px + LINE_PX * max(0, lines_drawn - LINES)


def cases_of(results: Sequence[Result]) -> list[tuple[int, str]]:
    """The marks of the axis: every number of devices with its first case."""
    cases: dict[int, str] = {}
    for result in results:
        cases.setdefault(result.run.devices, result.requested.case)
    return sorted(cases.items())


def by_devices(results: Sequence[Result]) -> list[Result]:
    """Few devices first; of equally many those on fewer nodes."""
    return sorted(results, key=lambda result: (result.run.devices, result.run.nodes or 1))


def _factor(result: Result, quantity: str) -> float:
    """What a speed of the point is multiplied with to become the quantity."""
    if quantity == "speed" or not result.speedup or not result.median_speed:
        return 1.0
    factor = result.speedup / result.median_speed
    return factor if quantity == "speedup" else factor * 100 / (result.ideal or 1.0)


def series_of(name: str, setting: Sequence[Result], quantity: str, number: int | None = None) -> Line:
    """The `speed`, `speedup` or `efficiency` (in %) of a setting by devices, with the intervals of the medians; in all
    charts with the colour and the symbol of this number."""
    ordered = by_devices(setting)
    factors = [_factor(result, quantity) for result in ordered]
    return Line(
        name=name,
        number=number,
        x=[result.run.devices for result in ordered],
        y=[None if r.median_speed is None else r.median_speed * f for r, f in zip(ordered, factors, strict=True)],
        intervals=[
            (result.interval.low * factor, result.interval.high * factor) if result.interval else None
            for result, factor in zip(ordered, factors, strict=True)
        ],
    )


def _ideal_speed(chosen: Sequence[tuple[str, Sequence[Result]]], cases: Sequence[tuple[int, str]]) -> Line | None:
    """That of the only setting, through its base; several have different ones, which speedup and efficiency show."""
    if len(chosen) != 1:
        return None
    base = next((result for result in chosen[0][1] if is_base(result)), None)
    if base is None or base.median_speed is None:
        return None
    devices = [device for device, _ in cases]
    return Line(name="ideal", x=devices, y=[base.median_speed * device / base.run.devices for device in devices])


def _described(chosen: Sequence[tuple[str, Sequence[Result]]], quantity: str) -> str:
    parts = []
    for name, setting in chosen:
        series = series_of(name, setting, quantity)
        values = (
            f"{result.requested.case} {value:.4g}"
            for result, value in zip(by_devices(setting), series.y, strict=True)
            if value is not None
        )  # fmt: skip
        parts.append(f"{name}: {', '.join(values)}")
    return f"{quantity} by case. {'; '.join(parts)}."


def _tables(summary: Summary) -> Iterator[Table]:
    """A row per point; the last column counts its warnings."""
    names = names_of_points(summary)
    notices = all_notices(summary)
    counts = {
        name: sum(notice.is_warning and name in notice.labels for notice in notices) for name in {*names.values()}
    }
    differ = varying(summary.results)
    for number, (table, of_unit) in enumerate(zip(points_tables(summary), of_tables(summary.results), strict=True)):
        counted = [str(counts[names[result.requested.point]] or "-") for result in of_unit]
        shown = _order([name for name, _ in table.heads], differ)
        yield Table(
            id=f"points-{number}" if number else "points",
            caption="All points; median and average over the runs, the interval of the median with its coverage",
            heads=[table.heads[at] if at >= 0 else ("warnings", "") for at in shown],
            rows=[[row[at] if at >= 0 else n for at in shown] for row, n in zip(table.rows, counted, strict=True)],
        )


def _order(names: Sequence[str], settings: Sequence[str]) -> list[int]:
    """The columns in their order, -1 for the warnings: settings beyond NAMING come last; the case has the nodes."""
    last = [at for at, name in enumerate(names) if name in settings and name not in NAMING]
    return [*(at for at, name in enumerate(names) if at not in last and name != "nodes"), -1, *last]
