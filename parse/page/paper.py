"""The scaling section of a paper or a proposal, as LaTeX or Markdown, with its figure.

What it says: how it scales, a table for each unit, remarks, the curves, the method, and which size a proposal requests.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpc.model.spec import USUAL
from hpc.system.atomic import open_output, write_output
from hpc.system.import_guard import install_command
from hpc.system.sanitize import plain
from hpc.system.text import first_of, grouped, plural
from parse.extrapolation.outlook import Outlook, Range, RequestError, SizeForecast, SizeRequest, outlooks
from parse.extrapolation.rule import series_of_results
from parse.extrapolation.text import count_text, range_text, refusal_text, short_number
from parse.page.build import environment_table, title
from parse.page.figures import Line, Listing, PageBlock, Paragraph, Section, Table
from parse.page.forecast import FORECAST, Forecasts
from parse.page.scaling import (
    as_sentence,
    cases_of,
    chosen_settings,
    continued,
    covered,
    notice_text,
    scaled_by_base,
    series_of,
    verdict_point,
)
from parse.report.against import against_lines
from parse.report.costs import hours_text
from parse.report.notices import all_notices, conclusion
from parse.report.summary import Summary, labels, provenance, shared, varying
from parse.report.table import PUBLISHED_COLUMNS, of_tables, points_tables
from parse.runs.cost import node_hours_of_work, spent
from parse.runs.result import Result, by_setting, ideal_text
from parse.text import TableData, cut, latex_text, markdown_text, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = (
    "case", "nodes", "devices", "runs", "median", "interval", "speedup", "efficiency", "MFU",
    *PUBLISHED_COLUMNS,
)  # fmt: skip
"""Columns of the scaling table that the section has, beside the settings in which its points differ."""
BARS = "Bars are the intervals of the medians{}, divided by the median of the base; its own interval is at its devices."
MAX_REMARKS = 12
"""More are counted; `rankwise summarize --verbose` has them all."""
MAX_FACTS = 40
NAMED = 4
"""Points, windows or values named, at most."""
TEXT_WIDTH, NAME_WIDTH, VALUE_WIDTH = 240, 120, 80
"""Cells of a sentence, a setting's name and a value from outside, at most."""
CELL_WIDTH = 28
IN_PROTOCOL = ("warmup_steps", "measured_steps", "block_steps", "scaling", "unit")
"""Settings that other sentences have."""


@dataclass(frozen=True, kw_only=True)
class SpeedupPanel:
    """Speedup by devices against one base, with its devices: a series for each setting, the `forecasts` that follow
    them, the (devices, case) of the axis."""

    base: str
    base_devices: int
    series: Sequence[Line]
    cases: Sequence[tuple[int, str]]
    forecasts: Sequence[Line] = ()


@dataclass(frozen=True, kw_only=True)
class Content:
    """The whole section; no text in it is escaped. The figure stands behind the first of `parts`, which has no title:
    a panel for each base, none where no point has a speedup on several devices, and the caption of all."""

    title: str
    parts: Sequence[Section]
    panels: Sequence[SpeedupPanel] = ()
    caption: str = ""


def content(summary: Summary, forecasts: Forecasts | None = None, request: ProposedWork | None = None) -> Content:
    """The section of a summary, with forecasts and with what a proposal asks where requested; where nothing was
    measured it says so. Raises RequestError as `outlooks`."""
    opening = [cut(as_sentence(line), TEXT_WIDTH) for line in conclusion(summary, all_notices(summary), NAME_WIDTH)]
    blocks: list[PageBlock] = [Paragraph(text=" ".join(opening) or "Nothing here has a speed."), *_tables(summary)]
    if remarks := _remarks(summary):
        blocks.append(Listing(title="Remarks", lines=remarks))
    parts = [Section(id="scaling", title="", blocks=blocks)]
    if sentences := method(summary):
        recorded = [replace(table, caption="Recorded of the runs") for table in environment_table(summary)]
        parts.append(Section(id="method", title="Method", blocks=[Paragraph(text=" ".join(sentences)), *recorded]))
    parts += proposal_sections(summary, request) if request else []
    if forecasts:
        parts.append(replace(forecasts.section(), title="Forecast"))
    panels, caption = _figure(summary, forecasts)
    return Content(title=title(summary), parts=parts, panels=panels, caption=caption)


def _tables(summary: Summary) -> Iterator[Table]:
    """A table for each unit and base: the case, the settings that differ, the numbers."""
    differ = varying(summary.results)
    for number, (table, of_unit) in enumerate(zip(points_tables(summary), of_tables(summary.results), strict=True)):
        names = [name for name, _ in table.heads]
        at = [place for place, name in enumerate(names) if name in {*COLUMNS, *differ}]
        at.sort(key=lambda place: names[place] in ("nodes", "devices") or names[place] in COLUMNS[3:])
        chosen = TableData(heads=[table.heads[place] for place in at],
                           rows=[[row[place] for place in at] for row in table.rows])  # fmt: skip
        for place, (name, _) in enumerate(chosen.heads):
            chosen = chosen if name == "interval" else chosen.shortened(place, CELL_WIDTH)
        interval = ", its interval" if "interval" in names else ""
        base = next((result.base for result in of_unit if result.speedup is not None), None)
        against = f", speedup against {base.case}, and efficiency" if base else ""
        caption = f"Median speed of each case ({of_unit[0].unit}){interval}{against}"
        yield Table.of(chosen, f"scaling-{number}" if number else "scaling", caption)


def _remarks(summary: Summary) -> list[str]:
    """The first notices, warnings before notes, and what differs from published figures."""
    notices = sorted(all_notices(summary), key=lambda notice: notice.weight.value)
    lines = [notice_text(notice) for notice in notices[:MAX_REMARKS]]
    if further := len(notices) - len(lines):
        lines.append(f"{plural(further, 'further remark')}: rankwise summarize --verbose has them")
    if summary.against is not None:
        lines += against_lines(summary.against, summary.results, labels(summary.results))
    return [cut(as_sentence(line), TEXT_WIDTH) for line in lines]


def _figure(summary: Summary, forecasts: Forecasts | None) -> tuple[list[SpeedupPanel], str]:
    chosen, settings = chosen_settings(
        [result for result in summary.results if result.median_speed is not None], verdict_point(summary)
    )
    panels = [
        SpeedupPanel(
            base=base.case, base_devices=base.devices,
            series=[series_of(name, setting, "speedup") for name, setting in of_base],
            cases=cases_of([result for _, setting in of_base for result in setting], forecasts),
            forecasts=continued(of_base, [name for name, _ in of_base], "speedup", forecasts),
        )
        for base, of_base in scaled_by_base(chosen)
    ]  # fmt: skip
    left_out = f"; {len(chosen)} of {len(settings)} settings" if len(settings) > len(chosen) else ""
    bases = f"{' and '.join(panel.base for panel in panels)}{', a panel each,' if len(panels) > 1 else ''}"
    drawn = f" Open marks: {FORECAST}." if any(panel.forecasts for panel in panels) else ""
    has_bars = any(any(each.intervals) for panel in panels for each in panel.series)
    drawn_points = [result for _, setting in chosen for result in setting]
    return panels, (
        f"Speedup against {bases} by the number of devices; both axes are logarithmic, dashed: the ideal{left_out}."
        f"{f' {BARS.format(covered(drawn_points))}' if has_bars else ''}{drawn}"
    )


# How the numbers came to be, in sentences of what is recorded; what is not recorded is not written.


def method(summary: Summary) -> list[str]:
    """The sentences; empty where nothing has a speed."""
    measured = [result for result in summary.results if result.median_speed is not None]
    if not measured:
        return []
    return [*_speeds(measured), *_intervals(measured), *_speedups(measured), *_settings(summary)]


def _speeds(measured: Sequence[Result]) -> Iterator[str]:
    """Warm-up and measured steps, what a speed is, and where those are from that we did not measure."""
    traced = [result for result in measured if any(run.trace for run in result.ok)]
    protocols = {
        f"{plural(run.warmup_steps, 'warm-up step')} and {plural(run.measured_steps, 'measured step')}"
        f"{f' in blocks of {run.block_steps}' if run.block_steps else ''}": None
        for run in (result.run for result in traced)
        if run.warmup_steps is not None and run.measured_steps is not None
    }
    if protocols:
        yield f"Each run is a launch of its own with {_first(protocols, ' or ')}."
    counts = sorted({len(result.ok) for result in measured if result.ok})
    if counts:
        runs = plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs"
        yield f"A point is the median over its {runs} that ended ok."
    if traced:
        units = " or ".join(sorted({result.run.unit for result in traced}))
        paused = any(run.measured and run.measured.pauses_s for result in traced for run in result.ok)
        yield (
            f"A speed is the {units} of the measured steps divided by their wall-clock time, from the latest end over "
            "all ranks of the step before to the latest end of the last step"
            f"{'; pauses between blocks are left out' if paused else ''}."
        )
    logs = [run.log for result in measured if not result.published for run in result.ok if run.log]
    if logs:
        formats, windows = sorted({log.log_format for log in logs}), [log.window for log in logs]
        yield f"The speeds of {plural(len(logs), 'run')} are read from logs ({_first(formats)}; {_first(windows)})."
    if printed := [result.published.document.name for result in measured if result.published]:
        yield f"The speeds of {plural(len(printed), 'point')} are those that documents print ({_first(printed)})."


def _intervals(measured: Sequence[Result]) -> Iterator[str]:
    """What the intervals are, by the number of runs."""
    intervals = [result.interval for result in measured if result.interval]
    if not all(interval.of_few_runs for interval in intervals):
        yield (
            "Intervals of 95 % are the exact order-statistic intervals of the median, which assume no distribution "
            "(93.75 % with five runs)."
        )
    if any(interval.of_few_runs for interval in intervals):
        yield "Of fewer than five runs the range is given, from the slowest to the fastest."
    if single := sum(result.interval is None for result in measured if result.ok):
        yield f"{plural(single, 'point')} with one run {'has' if single == 1 else 'have'} no interval."


def _speedups(measured: Sequence[Result]) -> Iterator[str]:
    bases = {result.base.case: result.base for result in measured if result.speedup is not None and result.base}
    if bases:
        ideal = ideal_text(base.devices for base in bases.values())
        yield (
            f"Speedup is the median divided by that of {' or '.join(bases)}, with all else equal; efficiency is "
            f"speedup divided by {ideal}."
        )
        sizes = {"strong": "the same batch size over all devices", "weak": "the same batch size on each device"}
        ways = {result.run.scaling for result in measured if result.speedup is not None}
        yield from (f"Scaling is {way}: {size}." for way, size in sizes.items() if way in ways)


def _settings(summary: Summary) -> Iterator[str]:
    """What all points have in common, and the days."""
    alike = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    pairs = [f"{cut(name, VALUE_WIDTH)}={cut(value, VALUE_WIDTH)}" for name, value in alike.items()
             if name not in IN_PROTOCOL]  # fmt: skip
    if pairs:
        yield f"Settings of all points: {first_of(pairs, MAX_FACTS)}."
    if date := provenance([run for result in summary.results for run in result.runs])["date"]:
        yield f"Measured on {date} (UTC)."


def _first(texts: Iterable[str], between: str = ", ") -> str:
    return first_of([cut(text, VALUE_WIDTH) for text in dict.fromkeys(texts)], NAMED, between)


# What a proposal for compute time asks beside the scaling: which size, why it, and how many node hours.

MAX_LISTED = 10
DEFAULT_EFFICIENCY = 0.7
"""The share of ideal scaling that a recommended size has at least."""


@dataclass(frozen=True, kw_only=True)
class ProposedWork:
    """The work in the unit of the speeds, and the least efficiency as a share."""

    work: float
    efficiency: float = DEFAULT_EFFICIENCY
    devices_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProposedSize:
    """A size in the unit of its setting. `speed` is of all devices, `speedup` and `efficiency` against the smallest
    size, `hours` unit hours for the work; the lower end of a speed is held against the upper end of the base's."""

    size: int
    devices: int
    speed: Range
    speedup: Range
    efficiency: Range
    hours: Range
    result: Result

    @property
    def wall_hours(self) -> float:
        return self.hours.value / self.size

    @property
    def efficiency_text(self) -> str:
        low = self.efficiency.low
        end = "no interval" if low is None else f"lower end {100 * low:.1f} %"
        return f"{100 * self.efficiency.value:.1f} % ({end})"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What a setting lets request. `unit` is `node`, or `device` inside a node and where nobody says how many it has.
    `recommended` is the largest measured size that is efficient enough; None with a `reason`."""

    outlook: Outlook
    unit: str
    measured: Sequence[ProposedSize]
    recommended: ProposedSize | None
    reason: str
    results: Sequence[Result]

    def text(self, size: ProposedSize) -> str:
        """`4 nodes`."""
        return plural(size.size, self.unit)


def proposals(summary: Summary, request: ProposedWork) -> list[Proposal]:
    """One for each setting of training. Raises RequestError as `outlooks`."""
    settings = by_setting(result for result in summary.results if not result.run.diagnostic).values()
    measured = outlooks(series_of_results(summary.results), SizeRequest(devices_per_node=request.devices_per_node))
    return [_proposal(results, of, request) for results, of in zip(settings, measured, strict=True)]


def _proposal(results: Sequence[Result], of: Outlook, request: ProposedWork) -> Proposal:
    nodes = [point.nodes for point in of.used.points]
    in_nodes = bool(nodes) and all(nodes) and (len(nodes) == 1 or {*nodes} != {1})
    by_case = grouped((result.requested.case, result) for result in results if result.median_speed is not None)
    sizes: list[ProposedSize] = []
    for point in of.used.points:
        its = by_case[point.name]
        result = its.pop(0) if len(its) > 1 else its[0]  # contradictory rows of a document are one result
        ends = (result.interval.low, result.interval.high) if result.interval else (None, None)
        speed, speedup = Range(value=point.speed * point.devices, low=ends[0], high=ends[1]), Range(value=1.0)
        if sizes:
            base = sizes[0].speed
            speedup = Range(
                value=speed.value / base.value, low=speed.low and speed.low / (base.high or base.value),
                high=speed.high and speed.high / (base.low or base.value),
            )  # fmt: skip
        size = (point.nodes if in_nodes else None) or point.devices
        sizes.append(ProposedSize(
            size=size, devices=point.devices, speed=speed, speedup=speedup, result=result,
            efficiency=speedup.times((sizes[0].devices if sizes else point.devices) / point.devices),
            hours=Range(
                value=node_hours_of_work(size, speed.value, request.work),
                low=speed.high and node_hours_of_work(size, speed.high, request.work),
                high=speed.low and node_hours_of_work(size, speed.low, request.work),
            ),
        ))  # fmt: skip
    reason = _reason(of, sizes)
    enough = [size for size in sizes if (size.efficiency.low or size.efficiency.value) >= request.efficiency]
    return Proposal(
        outlook=of, unit="node" if in_nodes else "device", measured=sizes, results=results, reason=reason,
        recommended=None if reason else max(enough, key=lambda size: size.size),
    )  # fmt: skip


def _reason(of: Outlook, sizes: Sequence[ProposedSize]) -> str:
    """Why no size can be recommended; empty where one can."""
    wrong, points = of.used.contradiction
    if wrong is not None:
        return refusal_text(SizeForecast(nodes=None, devices=None, reason=wrong, points=points), of)
    not_real = next((size.result.no_scaling for size in sizes if size.result.no_scaling), "")
    return as_sentence(f"These are no speeds of a machine: {not_real}") if not_real else ""


def proposal_sections(summary: Summary, request: ProposedWork) -> Iterator[Section]:
    """A section for each setting: a table of the sizes, which is recommended and why. Raises RequestError as
    `outlooks`."""
    made = proposals(summary, request)
    for number, its in enumerate(made):
        name = f"request-{number}" if number else "request"
        paragraphs = [[*_recommended(its, request)], [*_others(its)]]
        blocks: list[PageBlock] = [_sizes(its, request, name)] if its.measured else []
        blocks += [Paragraph(text=" ".join(sentences)) for sentences in paragraphs if sentences]
        title = f"Requested resources: {its.outlook.series.name}" if len(made) > 1 else "Requested resources"
        yield Section(id=name, title=title, blocks=blocks)


def _sizes(its: Proposal, request: ProposedWork, table_id: str) -> Table:
    heads = [(f"{its.unit}s", ""), ("devices", ""), ("speed", its.results[0].unit), ("speedup", ""),
             ("efficiency", "%"), (f"{its.unit} hours", ""), ("wall hours", ""), ("", "")]  # fmt: skip
    rows = [
        [
            str(size.size), str(size.devices), range_text(size.speed), range_text(size.speedup),
            range_text(size.efficiency, 100), range_text(size.hours), hours_text(size.wall_hours),
            "recommended" if size is its.recommended else "",
        ]
        for size in its.measured
    ]  # fmt: skip
    of = covered([size.result for size in its.measured])
    brackets = f"; in brackets the interval{of}" if of else ""
    caption = (
        f"Speedup and efficiency against {its.text(its.measured[0])}, the smallest size measured, and what "
        f"{count_text(request.work)} {its.results[0].run.unit} take{brackets}"
    )
    return Table(id=table_id, caption=caption, heads=heads, rows=rows, label_columns=0)


def _recommended(its: Proposal, request: ProposedWork) -> Iterator[str]:
    size = its.recommended
    if size is None:
        yield f"No size is recommended. {its.reason}"
        return
    yield (
        f"Recommended: {its.text(size)}, the largest size measured whose efficiency is at least "
        f"{100 * request.efficiency:g} %, lower end of its interval included: {size.efficiency_text}."
    )
    yield (
        f"There {count_text(request.work)} {its.results[0].run.unit} take {range_text(size.hours)} {its.unit} hours in "
        f"{hours_text(size.wall_hours)} hours of wall-clock time, by the speed of the main loop alone: start, "
        "evaluation and checkpoints come on top."
    )
    if its.unit != "node":
        yield (
            "Hours are of devices, as all sizes are inside one node."
            if size.result.run.nodes
            else "Hours are of devices, as no input says how many a node has: --devices-per-node N does."
        )


def _others(its: Proposal) -> Iterator[str]:
    """Why no larger and no smaller size, what is not in the table, and what the measurement itself took."""
    if size := its.recommended:
        larger = next((each for each in its.measured if each.size > size.size), None)
        smaller = next((each for each in reversed(its.measured) if each.size < size.size), None)
        yield (
            f"Why no larger size: on {its.text(larger)} the efficiency is {larger.efficiency_text}."
            if larger
            else "No larger size was measured."
        )
        if smaller:
            share = smaller.hours.value / size.hours.value - 1
            yield (
                f"Why no smaller size: on {its.text(smaller)} the same work takes {hours_text(smaller.wall_hours)} "
                f"hours in place of {hours_text(size.wall_hours)}, for {100 * abs(share):.1f} % "
                f"{'more' if share > 0 else 'fewer'} {its.unit} hours."
            )
    series = its.outlook.series
    if series.omitted:
        yield f"Without a speed: {first_of(series.omitted, MAX_LISTED, '; ')}."
    if unused := [point.name for point in series.points if point not in series.comparable.points]:
        cases = first_of(unused, MAX_LISTED)
        yield f"Not in the table, as they have other devices per node than the largest size: {cases}."
    if (taken := spent(its.results)).attempts:
        failed = f", {hours_text(taken.failed_node_hours)} of them failed attempts" if taken.failed else ""
        yield f"All attempts took {hours_text(taken.node_hours)} node hours{failed}."


# The figure of the section as PDF or SVG. The only file that imports matplotlib.

NO_MATPLOTLIB = f"matplotlib, which draws the figure, is not installed here: {install_command('report')}"
SIZE_INCHES = (4.6, 3.2)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Those of Okabe and Ito, which people with any colour vision can distinguish, in print and on white."""
MARKERS = ("o", "s", "D", "^", "X", "*")
"""Beside the colours, so that no series is known by its colour alone."""
LEGEND_WIDTH = 48
MAX_MARKS = 10


def draw(panels: Sequence[SpeedupPanel], form: str) -> bytes | None:
    """The figure as a file of that form, `pdf` or `svg`: the same bytes for the same panels and version of matplotlib;
    None where that is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return None
    with mpl.rc_context():
        mpl.rcdefaults()  # a matplotlibrc may hand texts to TeX
        mpl.rcParams["font.size"] = 9
        mpl.rcParams["pdf.fonttype"] = 42  # publishers refuse fonts of type 3
        mpl.rcParams["svg.hashsalt"] = "rankwise"  # else ids are drawn by chance
        width, height = SIZE_INCHES
        figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
            _draw_panel(axes, panel)
        written = io.BytesIO()
        figure.savefig(written, format=form, metadata={"CreationDate" if form == "pdf" else "Date": None})
        return written.getvalue()


def _draw_panel(axes: Axes, panel: SpeedupPanel) -> None:
    """The speedups against one base, and the ideal through it."""
    names = _names([each.name for each in panel.series])
    handles = [_draw_line(axes, series, at, "-") for at, series in enumerate(panel.series)]
    forecasts = [_draw_line(axes, series, series.number or 0, "--") for series in panel.forecasts]
    handles, names = handles + forecasts[:1], names + [FORECAST] * bool(forecasts)
    devices = [device for device, _ in panel.cases]
    (ideal,) = axes.plot(
        devices, [device / panel.base_devices for device in devices], "--", color="#808890", linewidth=1, zorder=0
    )
    marks = _marks(devices)
    for set_scale, axis, unit in (
        (axes.set_xscale, axes.xaxis, 1), (axes.set_yscale, axes.yaxis, panel.base_devices),
    ):  # fmt: skip
        set_scale("log", base=2)
        axis.set_ticks([mark / unit for mark in marks], labels=[short_number(mark / unit) for mark in marks])
        axis.set_ticks([], minor=True)
    axes.set_xlabel("devices")
    axes.set_ylabel(f"speedup against {panel.base}")
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    legend = axes.legend([*handles, ideal], ["series"] * len(handles) + ["ideal"], frameon=False, fontsize=8)
    for text, name in zip(legend.get_texts(), names, strict=False):
        text.set_parse_math(False)  # before the text: a $ in a name is no formula
        text.set_text(name)


def _draw_line(axes: Axes, series: Line, number: int, style: str) -> Any:
    """A line with its marks and intervals; a dashed one has open marks. Returns what the legend shows."""
    colour = COLOURS[number % len(COLOURS)]
    return axes.errorbar(
        [float(device or 0) for device in series.x], [math.nan if y is None else y for y in series.y],
        yerr=_errors(series), color=colour, marker=MARKERS[number % len(MARKERS)], markersize=5, linewidth=1.2,
        capsize=3, linestyle=style, markerfacecolor=colour if style == "-" else "white",
    )  # fmt: skip


def _errors(series: Line) -> list[list[float]]:
    """How far the intervals reach below and above the values; 0 where there is none."""
    pairs = [
        (y - interval[0], interval[1] - y) if y is not None and interval else (0.0, 0.0)
        for y, interval in zip(series.y, series.intervals, strict=True)
    ]
    return [[max(0.0, low) for low, _ in pairs], [max(0.0, high) for _, high in pairs]]


def _marks(devices: Sequence[int]) -> list[int]:
    """The numbers of devices on an axis; of many the powers of two."""
    if len(devices) <= MAX_MARKS:
        return [*devices]
    return [2**power for power in range(devices[-1].bit_length()) if 2**power >= devices[0]]


def _names(names: Sequence[str]) -> list[str]:
    """The names cut to the width of the legend; characters that the font lacks as their escapes."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont("DejaVu Sans")).get_charmap()
    short = shortened(names, LEGEND_WIDTH)
    return ["".join(c if ord(c) in known else ascii(c)[1:-1] for c in short[name]) for name in names]


# The section in LaTeX that needs plain packages only, pure ASCII, and in Markdown; every text in it is escaped.

TEMPLATES = Path(__file__).parent / "templates"
MAX_ROWS = 36
"""Rows of a table that fit on a page; the others follow in further tables."""
SECTIONS = {"latex": "scaling.tex", "markdown-report": "scaling.md"}
"""Names of the section by format."""
FIGURES = {"latex": "scaling.pdf", "markdown-report": "scaling.svg"}
ESCAPED: dict[str, Callable[[str], str]] = {"latex": latex_text, "markdown-report": markdown_text}


def rendered(content: Content, form: str, figure: str = "") -> str:
    """The section with every text escaped; `figure` is the file name of its figure, empty where there is none.

    The marks of the templates are other than jinja's, whose braces are LaTeX's.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=False, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, block_start_string="<%", block_end_string="%>",
        variable_start_string="<<", variable_end_string=">>", comment_start_string="<#", comment_end_string="#>",
        finalize=lambda value: value if isinstance(value, Markup) else ESCAPED[form](str(value)),
    )  # fmt: skip
    environment.filters["table"] = lambda table: Markup(table.markdown())
    figure = Markup(figure if content.panels else "")
    return environment.get_template(f"{SECTIONS[form]}.j2").render(content=content, figure=figure, max_rows=MAX_ROWS)


def outputs(out: Path, form: str) -> tuple[Path, Path]:
    """The files of the section and of its figure: the section is `out`, or the usual name in it where that is a folder
    or has no ending."""
    is_folder = out.is_dir() or (not out.suffix and not out.exists())
    section = out / SECTIONS[form] if is_folder else out
    return section, section.with_name(FIGURES[form])


def requested(
    summary: Summary, options: argparse.Namespace, parser: argparse.ArgumentParser, forecasts: Forecasts | None
) -> list[str]:
    """Writes the section with what the options request, and beside it its figure; returns a line for each file, and one
    where there is no figure. Ends the command where an option contradicts what was read.

    Raises OSError with the file that cannot be written.
    """
    form = options.format
    path, figure = outputs(options.out or Path(), form)
    work = options.samples and ProposedWork(
        work=options.samples, efficiency=options.efficiency or DEFAULT_EFFICIENCY,
        devices_per_node=options.devices_per_node,
    )  # fmt: skip
    try:
        section = content(summary, forecasts, work)
    except RequestError as error:
        parser.error(plain(str(error)))
    drawn, reason = None, "no point has a speedup against another case"
    if path.exists() and not path.is_file():
        reason = f"{path} is no regular file; a figure is written beside a regular file only"
    elif section.panels:
        drawn, reason = draw(section.panels, figure.suffix.removeprefix(".")), NO_MATPLOTLIB
    path.parent.mkdir(parents=True, exist_ok=True)
    if drawn is not None:
        with open_output(figure) as file:
            file.write(drawn)
    write_output(path, rendered(section, form, figure.name if drawn else ""))
    return [f"{path}: written", f"{figure}: written" if drawn else f"no figure: {reason}"]
