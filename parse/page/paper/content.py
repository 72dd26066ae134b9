"""What the section says, as plain text: how it scales, a table for each unit, remarks on its rows, the curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

from hpc.system.text import capitalized, first_of, grouped, plural
from parse.page.build import ALL, NODES, Fact, environment, title
from parse.page.figures import Line
from parse.page.forecast import DRAWN, Forecasts
from parse.page.paper.parts import Part, forecast_part
from parse.page.paper.proposal import MAX_SETTINGS as MAX_PROPOSED
from parse.page.paper.proposal import Proposal, ProposedWork, by_unit_lines, proposal_parts, proposals
from parse.page.scaling import (
    as_sentence,
    cases_of,
    chosen_settings,
    continued,
    covered,
    headline,
    notice_text,
    scaled_by_base,
    series_of,
)
from parse.page.types import Table
from parse.report.against import against_lines
from parse.report.notices import Notice, before_the_numbers, below_the_table, conclusion, merged
from parse.report.summary import USUAL, Summary, by_unit, labels, names_of_points, provenance, shared, varying
from parse.report.table import PUBLISHED_COLUMNS, of_tables, points_tables
from parse.runs.attempt import COMMIT
from parse.runs.result import Result, ideal_text
from parse.text import TableData, cut

# How the numbers came to be, in sentences of what is recorded; what is not recorded is not written.

SPEED = (
    "A speed is the {unit} of the measured steps divided by their wall-clock time, from the latest end over all ranks "
    "of the step before to the latest end of the last step"
)
NAMED = 4
"""Points, windows or values named, at most."""
MAX_FACTS = 40
VALUE_WIDTH = 80
"""Cells of a value, at most."""
NODES_WIDTH = 160
IN_PROTOCOL = ("warmup_steps", "measured_steps", "block_steps", "scaling", "unit")
"""Settings that other sentences have."""
NAMES = {COMMIT: "commit of Rankwise", "cpu": "CPU"}


def method(summary: Summary) -> list[str]:
    """The sentences; empty where nothing has a speed."""
    measured = [result for result in summary.results if result.median_speed is not None]
    if not measured:
        return []
    return [
        *_protocol(summary, measured),
        *_speeds(measured),
        *_intervals(measured),
        *_speedups(measured),
        *_utilisation(measured),
        *_settings(summary),
        *_environment(summary),
    ]


def _traced(result: Result) -> bool:
    return any(run.trace for run in result.ok)


def _protocol(summary: Summary, measured: Sequence[Result]) -> Iterator[str]:
    """Warm-up and measured steps of the runs that were traced, by point where they differ."""
    names = {id(result): name for result, name in zip(summary.results, labels(summary.results), strict=True)}
    protocols: dict[str, list[str]] = {}
    for result in measured:
        run = result.run
        if _traced(result) and run.warmup_steps is not None and run.measured_steps is not None:
            blocks = f" in blocks of {run.block_steps}" if run.block_steps else ""
            text = (
                f"{plural(run.warmup_steps, 'warm-up step')} and {plural(run.measured_steps, 'measured step')}{blocks}"
            )
            protocols.setdefault(text, []).append(names[id(result)])
    if len(protocols) == 1:
        yield f"Each run is a launch of its own with {next(iter(protocols))}."
    elif protocols:
        of_each = "; ".join(f"{text} ({_first(points)})" for text, points in protocols.items())
        yield f"Each run is a launch of its own; the numbers of steps differ: {of_each}."
    counts = sorted({len(result.ok) for result in measured if result.ok})
    if counts:
        runs = plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs"
        yield f"A point is the median over its {runs} that ended ok."


def _speeds(measured: Sequence[Result]) -> Iterator[str]:
    traced = [result for result in measured if _traced(result)]
    if traced:
        units = " or ".join(sorted({result.run.unit for result in traced}))
        paused = any(run.measured and run.measured.pauses_s for result in traced for run in result.ok)
        yield SPEED.format(unit=units) + ("; pauses between blocks are left out." if paused else ".")
    logs = [run.log for result in measured if not result.published for run in result.ok if run.log]
    if logs:
        windows = _first(list(dict.fromkeys(log.window for log in logs)))
        formats = _first(sorted({log.log_format for log in logs}))
        yield f"The speeds of {plural(len(logs), 'run')} are read from logs ({formats}; {windows})."
    printed = [result for result in measured if result.published]
    if printed:
        documents = _first(list(dict.fromkeys(r.published.document.name for r in printed if r.published)))
        yield f"The speeds of {plural(len(printed), 'point')} are those that documents print ({documents})."


def _intervals(measured: Sequence[Result]) -> Iterator[str]:
    """The coverage that the intervals really have, by the number of runs."""
    coverages = {len(result.ok): result.interval.coverage for result in measured if result.interval}
    if coverages:
        of_each = ", ".join(
            f"{coverage * 100:.4g} % with {plural(runs, 'run')}" for runs, coverage in sorted(coverages.items())
        )
        yield (
            "Intervals are the exact order-statistic intervals of the median, which assume no distribution; their "
            f"coverage is {of_each}."
        )
    single = sum(result.interval is None for result in measured if result.ok)
    if single:
        yield f"{plural(single, 'point')} with one run {'has' if single == 1 else 'have'} no interval."


def _speedups(measured: Sequence[Result]) -> Iterator[str]:
    scaled = [result for result in measured if result.speedup is not None]
    if not scaled:
        return
    bases = {result.base.case: result.base for result in scaled if result.base}
    of_base = f"that of {' or '.join(bases)}"
    if any(base.devices > 1 for base in bases.values()):
        how = "chosen" if all(base.chosen for base in bases.values()) else "the smallest case"
        several = " of each setting" if len(bases) > 1 else ""
        of_base = f"{of_base}, {how}{several}"
    ideal = ideal_text(base.devices for base in bases.values())
    yield f"Speedup is the median divided by {of_base}, with all else equal; efficiency is speedup divided by {ideal}."
    sizes = {"weak": "the same batch size on each device", "strong": "the same batch size over all devices"}
    ways = {result.run.scaling for result in scaled if result.run.scaling}
    for way in sorted(ways & {*sizes}):
        only = " (where the table says so)" if len(ways) > 1 else ""
        yield f"Scaling is {way}{only}: {sizes[way]}."


def _utilisation(measured: Sequence[Result]) -> Iterator[str]:
    """The formula of the MFU, and its peaks; each has a remark, too."""
    by_unit = grouped(
        (result.run.unit, run.measured.utilisation)
        for result in measured
        if result.mfu is not None
        for run in result.ok
        if run.measured and run.measured.utilisation.peak_tflops
    )
    for unit, used in by_unit.items():
        peaks = {f"{its.peak_tflops:g} TFLOPS in {its.precision} ({its.source})" for its in used}
        ways = {its.flops_by for its in used if its.flops_by}
        how = f" ({first_of(sorted(ways), MAX_FACTS, '; ')})" if ways else ""
        yield (
            f"MFU is {unit}/s times the model FLOPs of a {unit.removesuffix('s')}{how} over the dense peak of the "
            f"devices, {first_of(sorted(peaks), MAX_FACTS)} each."
        )


def _settings(summary: Summary) -> Iterator[str]:
    """What all points have in common; what differs has a column of its own."""
    alike = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    pairs = [f"{cut(name, VALUE_WIDTH)}={cut(value, VALUE_WIDTH)}" for name, value in alike.items()
             if name not in IN_PROTOCOL]  # fmt: skip
    if pairs:
        yield f"Settings of all points: {first_of(pairs, MAX_FACTS)}."


def _environment(summary: Summary) -> Iterator[str]:
    """The days, what all runs have in common, and each fact that differs or that only some runs have."""
    if date := provenance([run for result in summary.results for run in result.runs])["date"]:
        yield f"Measured on {date} (UTC)."
    facts = environment(summary)
    for fact in facts:
        if fact.name == NODES:
            of = "" if fact.runs == ALL else f" of {cut(fact.runs, VALUE_WIDTH)}"
            yield f"The nodes{of} were {cut(fact.values, NODES_WIDTH)}."
    facts = [fact for fact in facts if fact.name != NODES]
    alike = [fact for fact in facts if fact.runs == ALL and not fact.differs]
    if alike:
        yield f"Recorded of all runs: {first_of([_pair(fact) for fact in alike], MAX_FACTS, '; ')}."
    some = [_of_runs(fact) for fact in facts if fact.runs != ALL and not fact.differs]
    if some:
        yield f"Recorded of some runs only: {first_of(some, MAX_FACTS, '; ')}."
    apart = [_of_runs(fact) for fact in facts if fact.differs]
    if apart:
        yield f"Not the same everywhere: {first_of(apart, MAX_FACTS, '; ')}."


def _of_runs(fact: Fact) -> str:
    """The fact with its runs; ranks of one run may have several values, too."""
    return f"{_pair(fact)} ({'all runs' if fact.runs == ALL else cut(fact.runs, VALUE_WIDTH)})"


def _pair(fact: Fact) -> str:
    return f"{cut(NAMES.get(fact.name, fact.name), VALUE_WIDTH)}: {cut(fact.values, VALUE_WIDTH)}"


def _first(texts: Sequence[str]) -> str:
    return first_of([cut(text, VALUE_WIDTH) for text in texts], NAMED)


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
BARS = "Bars are the intervals of the medians{}, divided by the median of the base; its own interval is at its devices."
MAX_REMARKS = 12
"""More are counted; `parse.summarize --warnings` has them all."""
TEXT_WIDTH = 240
"""Cells of a text from outside, at most."""
NAME_WIDTH = 120
UNWRAPPED = 10**6
"""No line below a table is so long."""
MAX_SETTINGS = 3
"""With more settings that differ they are one column of numbers, and are listed below the table."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A warning or a note: `mark` is beside the rows that it is about; empty where it is about all."""

    mark: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MarkedTable:
    """The points of one unit, and for each row the marks of its remarks."""

    table: Table
    marks: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class SpeedupPanel:
    """Speedup by devices against one base, with its devices: a series for each setting, the `forecasts` that follow
    them, the (devices, case) of the axis. With another `unit` than devices these are numbers of that."""

    base: str
    base_devices: int
    series: Sequence[Line]
    cases: Sequence[tuple[int, str]]
    forecasts: Sequence[Line] = ()
    unit: str = "devices"


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A panel for each base, and the caption of all."""

    panels: Sequence[SpeedupPanel]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """The whole section; no text in it is escaped. `curves` is None where no point has a speedup on several devices;
    `parts` are those that were requested."""

    title: str
    opening: Sequence[str]
    tables: Sequence[MarkedTable]
    remarks: Sequence[Remark]
    curves: Curves | None
    method: Sequence[str]
    parts: Sequence[Part] = ()


def content(summary: Summary, forecasts: Forecasts | None = None, request: ProposedWork | None = None) -> Content:
    """The section of a summary, with forecasts and with what a proposal asks where requested; where nothing was
    measured it says so. Raises RequestError as `outlooks`."""
    proposed = proposals(summary, request, forecasts) if request else []
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
        curves=_curves(summary, forecasts) if request is None else _curves_of_units(proposed),
        method=method(summary),
        parts=[
            *(proposal_parts(proposed, request) if request else ()),
            *([forecast_part(forecasts)] if forecasts else ()),
        ],
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
        text = f"{plural(further, 'further warning')}: python -m parse.summarize --warnings has them."
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
    for number, (table, of_unit) in enumerate(zip(points_tables(summary), of_tables(summary.results), strict=True)):
        chosen = _chosen_columns(differ, table)
        legend, shown = chosen.folded(UNWRAPPED) if len(differ) > MAX_SETTINGS else chosen.numbered(UNWRAPPED)
        legends += filter(None, legend)
        several = f" ({of_unit[0].unit})" if number or len(by_unit(summary.results)) > 1 else ""
        has_interval = any(name == "interval" for name, _ in shown.heads)
        interval = ", its interval and that interval's coverage" if has_interval else ""
        caption = f"Median speed of each case{several}{interval}{_against(of_unit)}"
        its_marks = [marks.get(result.requested.point, []) for result in of_unit]
        named = Table.of(shown, f"scaling-{number}" if number else "scaling", caption)
        tables.append(MarkedTable(table=named, marks=its_marks))
    return tables, legends


def _against(results: Sequence[Result]) -> str:
    """`, speedup against 1n8g, and efficiency`; empty where no point has a speedup."""
    base = next((result.base for result in results if result.speedup is not None), None)
    return f", speedup against {base.case}, and efficiency" if base else ""


def _chosen_columns(differ: Sequence[str], table: TableData) -> TableData:
    """The columns of the section: the case, the settings that differ, the numbers."""
    names = [name for name, _ in table.heads]
    at = [place for place, name in enumerate(names) if name in {*COLUMNS, *differ}]
    at.sort(key=lambda place: names[place] in ("nodes", "devices") or names[place] in COLUMNS[3:])
    chosen = replace(
        table, heads=[table.heads[place] for place in at], rows=[[row[place] for place in at] for row in table.rows],
        settings=[to for to, place in enumerate(at) if names[place] not in COLUMNS],
    )  # fmt: skip
    for place in range(len(at)):
        chosen = chosen.shortened(place, VALUE_WIDTH)
    return chosen


def _curves(summary: Summary, forecasts: Forecasts | None) -> Curves | None:
    chosen, settings = chosen_settings(
        [result for result in summary.results if result.median_speed is not None], headline(summary)
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
    if not panels:
        return None
    left_out = f"; {len(chosen)} of {len(settings)} settings" if len(settings) > len(chosen) else ""
    bases = f"{' and '.join(panel.base for panel in panels)}{', a panel each,' if len(panels) > 1 else ''}"
    drawn = f" {capitalized(DRAWN)}." if any(panel.forecasts for panel in panels) else ""
    has_bars = any(any(each.intervals) for panel in panels for each in panel.series)
    return Curves(
        panels=panels,
        caption=f"Speedup against {bases} by the number of devices; both axes are logarithmic, dashed: the ideal"
        f"{left_out}.{f' {BARS.format(covered(chosen))}' if has_bars else ''}{drawn}",
    )


def _curves_of_units(proposed: Sequence[Proposal]) -> Curves | None:
    """The speedups by nodes, against the smallest size of each setting, a panel each."""
    panels = [
        SpeedupPanel(
            base=each.text(each.measured[0]), base_devices=each.measured[0].size, unit=f"{each.unit}s",
            series=[measured], forecasts=[ahead] if ahead else [],
            cases=[(size.size, str(size.size)) for size in (*each.measured, *each.ahead)],
        )
        for each in proposed[:MAX_PROPOSED]
        if len(each.measured) > 1
        for measured, ahead in [by_unit_lines(each)]
    ]  # fmt: skip
    if not panels:
        return None
    names = " and ".join(f"{panel.base} ({panel.series[0].name})" for panel in panels)
    drawn = f" {capitalized(DRAWN)}." if any(panel.forecasts for panel in panels) else ""
    return Curves(
        panels=panels,
        caption=f"Speedup against {names}{', a panel each' if len(panels) > 1 else ''}; both axes are logarithmic, "
        f"dashed in grey: the ideal.{drawn}",
    )
