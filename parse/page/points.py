"""The runs of each point along their steps: step times, who is waited for, telemetry; a panel for each point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpc.model.timestamps import ABSENT
from hpc.model.trace import TraceError
from hpc.system.text import capitalized, first_of, inflect
from parse.ledger.notes import notes
from parse.ledger.types import Ledger
from parse.page.figures import Axes, Line, heat_map, lines, steps_figure
from parse.page.readings import Course, DelayMap, Floats, RunReading, read_run, step_times
from parse.page.types import Chart, Listing, PageBlock, Panel, Paragraph, Section, Table
from parse.processes import each_in_processes, processes_for
from parse.report.ledger import place_tables
from parse.report.summary import Summary, named_ledgers, names_of_points
from parse.result import Result, Run

if TYPE_CHECKING:
    from parse.load_logs import Progress

MAX_PANELS = 24
"""Points with a panel: those with most devices. The tables have all points."""
MAX_RUNS = 20
"""Runs drawn in one chart."""
MAX_NODES = 8
"""Nodes drawn in one chart of telemetry."""
TOP_PERCENTILE = 99.5
"""Where the colours of a heat map end, so that a single late step does not make all others look alike."""
LEAST_TOP_MS = 0.01
"""The colours of a heat map cover at least so much."""


def points_section(
    summary: Summary, headline: Result | None, progress: Progress[Result] | None = None
) -> Section | None:
    """A panel for each point with a trace, that of the verdict open and first; None where no run has a trace.

    Reads the traces.
    """
    traced = [result for result in summary.results if any(run.trace for run in result.runs)]
    if not traced:
        return None
    shown = sorted(traced, key=lambda result: (result is not headline, -result.run.devices))[:MAX_PANELS]
    names = names_of_points(summary)
    ledgers = {ledger.result.requested.point: ledger for _, ledger in named_ledgers(summary)}
    blocks: list[PageBlock] = []
    if len(shown) < len(traced):
        blocks.append(
            Paragraph(text=f"Shown are {len(shown)} of {len(traced)} points with traces, those with most devices.")
        )
    processes = processes_for(run.trace for result in shown for run in result.runs if run.trace)
    points = [(result, ledgers.get(result.requested.point), number) for number, result in enumerate(shown)]
    drawn = each_in_processes(_blocks, points, processes)
    panels = [
        Panel(id=f"point-{number}", title=names[result.requested.point], blocks=its_blocks, is_open=not number)
        for number, (result, its_blocks) in enumerate(zip(progress(shown) if progress else shown, drawn, strict=True))
    ]
    return Section(id="runs", title="Step by step: the runs of each point", blocks=blocks, panels=panels)


def _blocks(point: tuple[Result, Ledger | None, int]) -> list[PageBlock]:
    return [*_of_point(*point)]


def _of_point(result: Result, ledger: Ledger | None, number: int) -> Iterator[PageBlock]:
    runs = [run for run in result.runs if run.trace]
    shown, detailed = runs[:MAX_RUNS], _typical(result)
    if detailed is not None and all(run is not detailed for run in shown):
        shown[-1] = detailed
    readings: dict[int, RunReading] = {}
    problems = []
    for at, run in enumerate(shown):
        try:
            readings[at] = _reading(run, with_ranks=run is detailed)
        except TraceError as error:
            problems.append(str(error))
    drawn = {at: reading for at, reading in readings.items() if len(reading.times.first)}
    if any(len(reading.times.first) > 1 for reading in drawn.values()):
        yield _step_times(shown, drawn, number, len(runs))
    elif drawn:
        yield Paragraph(text="No run of this point has more than two whole steps: its step times make no line.")
    else:
        yield Paragraph(text="No run of this point has two whole steps.")
    for at, reading in drawn.items():
        if shown[at] is detailed:
            name = _run_name(shown[at])
            yield from _delays(reading, name, number, result)
            yield from _places(ledger, number)
            yield from _telemetry(reading, name, number)
    if ledger is not None and (lines_of_notes := list(notes(ledger))):
        yield Listing(title="Notes", lines=lines_of_notes)
    if alarms := [alarm.text for alarm in result.alarms]:
        yield Listing(title="Warnings about this point", lines=alarms, warnings=True)
    if problems:
        yield Listing(title="Traces that cannot be drawn", lines=problems, warnings=True)


def _reading(run: Run, *, with_ranks: bool) -> RunReading:
    """Of the step times alone, those that the speed was computed from; the trace is read for what they lack."""
    measured = run.attempt.measured if run.attempt else None
    ends_ns = measured.latest_end_ns if measured else None
    if with_ranks or measured is None or ends_ns is None or (ends_ns == ABSENT).any():
        assert run.trace is not None
        return read_run(run.trace, with_ranks=with_ranks)
    return RunReading(times=step_times(ends_ns, measured.blocks), delays=None, courses=())


def _typical(result: Result) -> Run | None:
    """The ok run with a trace whose speed is nearest to the point's median."""
    median = result.median_speed
    ok = [(abs(run.measured.throughput - median), at) for at, run in enumerate(result.ok)
          if run.trace and run.measured and median is not None]  # fmt: skip
    return result.ok[min(ok)[1]] if ok else None


def _run_name(run: Run) -> str:
    return f"run {run.requested.run.repeat}"


def _step_times(runs: Sequence[Run], drawn: Mapping[int, RunReading], number: int, count: int) -> Chart:
    series, widths = [], set()
    blocks: tuple[tuple[int, int], ...] = ()
    for at, reading in drawn.items():
        times = reading.times
        ok = "" if runs[at].measured else f" ({runs[at].outcome_text})"
        series.append(Line(name=f"{_run_name(runs[at])}{ok}", x=times.first.tolist(), y=times.max_ms.tolist()))
        widths.add(times.width)
        blocks = max(blocks, times.blocks)
    width = max(widths)
    what = "step time (ms)" if width == 1 else f"longest of {width} steps (ms)"
    of = f" of {count}" if count > len(drawn) else ""
    means = "; ".join(
        f"{each.name} {np.mean(reading.times.mean_ms):.4g} ms"
        for each, reading in zip(series, drawn.values(), strict=True)
    )
    return Chart(
        id=f"chart-steps-{number}",
        title=f"Step times, {len(drawn)}{of} {inflect(count, 'run')}{_shaded(blocks)}",
        text=f"Step times along the run, from latest end to latest end. Mean, warm-up included: {means}.",
        figure=steps_figure(series, blocks, y_title=what),
    )


def _shaded(blocks: Sequence[tuple[int, int]]) -> str:
    """What the shaded steps are."""
    if not blocks:
        return ""
    return "; shaded: warm-up" if len(blocks) == 1 else "; shaded: warm-up, and between the measured blocks"


def _delays(reading: RunReading, name: str, number: int, result: Result) -> Iterator[PageBlock]:
    delays = reading.delays
    if result.run.devices == 1:
        return
    if delays is None:
        yield Paragraph(text="Who is waited for is not drawn: when ranks have their gradients ready was not recorded.")
        return
    warmup = reading.times.blocks[0][0] if reading.times.blocks else 0
    measured = delays.delay_ms[:, delays.first >= warmup]
    top = max(LEAST_TOP_MS, float(np.percentile(measured, TOP_PERCENTILE)) if measured.size else 0.0)
    rows, columns = delays.delay_ms.shape
    cell = "" if delays.width * delays.ranks_per_row == 1 else (
        f"; a cell has the largest of {delays.ranks_per_row} × {delays.width} (ranks × steps)"
    )  # fmt: skip
    late = delays.delay_ms.mean(axis=1)
    latest = int(late.argmax())
    yield Chart(
        id=f"chart-delays-{number}",
        title=f"Who is waited for, {name}: ms behind the median rank",
        text=(
            f"{rows} rows of ranks by {columns} columns of steps. The latest row is {_row_name(delays, latest)}, on "
            f"average {late[latest]:.4g} ms behind the median rank of the step{cell}. Colours end at {top:.4g} ms."
        ),
        figure=heat_map(
            [_row_name(delays, row) for row in range(rows)],
            delays.first.tolist(),
            delays.delay_ms.round(3).tolist(),
            top=top,
            unit="ms",
            warmup=warmup,
        ),
        height_px=min(560, 190 + 14 * max(6, rows)),
    )


def _row_name(delays: DelayMap, row: int) -> str:
    first = row * delays.ranks_per_row
    return f"rank {first}" if delays.ranks_per_row == 1 else f"ranks {first}–{first + delays.ranks_per_row - 1}"


def _places(ledger: Ledger | None, number: int) -> Iterator[PageBlock]:
    """Nodes and ranks with their terms, and how often each comes last."""
    if ledger is None:
        return
    for at, table in enumerate(place_tables(ledger)):
        yield Table.of(table, f"places-{number}-{at}", capitalized(table.caption.rstrip(":")))


def _telemetry(reading: RunReading, name: str, number: int) -> Iterator[PageBlock]:
    """A chart for each quantity that changes, and a line for each that does not."""
    flat = [course for course in reading.courses if all(np.ptp(values) == 0 for values in course.values)]
    if flat:
        lines_of_flat = [
            f"{capitalized(course.quantity.name)}: "
            + first_of([f"{host} {values[0]:.4g}" for host, values in _by_host(course)], MAX_NODES)
            + f" {course.quantity.unit}".rstrip()
            for course in flat
        ]
        yield Listing(title=f"Telemetry that stayed the same, {name}", lines=lines_of_flat)
    for at, course in enumerate(course for course in reading.courses if all(course is not each for each in flat)):
        quantity, shown = course.quantity, min(MAX_NODES, len(course.hosts))
        unit = f" ({quantity.unit})" if quantity.unit else ""
        of = f"; {shown} of {len(course.hosts)} nodes" if shown < len(course.hosts) else ""
        series = [
            Line(name=host, x=steps.round(1).tolist(), y=values.tolist())
            for host, steps, values in zip(course.hosts[:shown], course.steps, course.values, strict=False)
        ]
        yield Chart(
            id=f"chart-telemetry-{number}-{at}",
            title=f"{capitalized(quantity.name)}{unit}, {name}{of}",
            text="; ".join(f"{host}: mean {values.mean():.4g}" for host, values in _by_host(course)),
            figure=lines(
                series,
                Axes(x_title="step", y_title=quantity.unit or quantity.name, from_zero=False),
                hover="step %{x}: %{y}",
                marker_px=4,
            ),
            height_px=240,
        )


def _by_host(course: Course) -> Iterator[tuple[str, Floats]]:
    yield from zip(course.hosts[:MAX_NODES], course.values, strict=False)
