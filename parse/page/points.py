"""The runs of each point along their steps, read and drawn: step times, who is waited for, telemetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpc.model.timestamps import ABSENT, BEGIN, END, GRADS_READY
from hpc.model.trace import Floats, Ints, Telemetry, Trace, TraceError
from hpc.model.trace_file import open_trace
from hpc.system.text import capitalized, first_of, inflect
from parse.faults import fault
from parse.graph.mesh import rank_mesh
from parse.graph.peers import lower_median
from parse.graph.step_graph import ENDS, NONE, WAITS, StepCalls, step_calls
from parse.graph.terms import read_calls
from parse.ledger.telemetry import QUANTITIES, Quantity, series_of
from parse.ledger.types import Ledger
from parse.page.figures import (
    Chart,
    HeatMap,
    Line,
    Lines,
    LineStyle,
    Listing,
    PageBlock,
    Panel,
    Paragraph,
    Section,
    Table,
)
from parse.report.ledger import place_tables
from parse.report.summary import Summary, named_ledgers, names_of_points
from parse.runs.processes import each_in_processes, processes_for
from parse.runs.result import Result, Run
from parse.say.notes import notes

if TYPE_CHECKING:
    from parse.runs.load_logs import Progress


# Step times, delays and telemetry of a run, aggregated.


BINS = 250
"""At most so many points of a run along its steps; of more steps, several make one."""
ROWS = 128
"""At most so many rows of a heat map; of more ranks, several that follow on one another make one."""
COURSES = 6
"""Quantities of the telemetry that are drawn, at most: the likeliest causes first."""
PIECE_STAMPS = 1_000_000
"""Stamps that are read at once; it bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTimes:
    """Step times of a run along its steps, warm-up included, from latest end to latest end.

    Per bin [bin]: its `first` step, the mean, the minimum and the maximum in ms; `width` steps make a bin. `blocks` are
    the measured steps, (first, stop); `steps` is their number with those that are not measured.
    """

    first: Ints
    mean_ms: Floats
    min_ms: Floats
    max_ms: Floats
    width: int
    blocks: tuple[tuple[int, int], ...]
    steps: int


@dataclass(frozen=True, kw_only=True, eq=False)
class DelayMap:
    """By how many ms ranks have their gradients ready after the median rank of the step, [row, bin]: the largest delay
    in a cell, which holds `ranks_per_row` ranks and `width` steps. `first` [bin] is the first step of a bin.

    `names` [row] is the rank of a row or the first of several, `in_groups` whether it is by how much their own work
    takes longer than their peers'.
    """

    delay_ms: Floats
    first: Ints
    width: int
    ranks_per_row: int
    names: tuple[str, ...]
    in_groups: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Course:
    """A quantity of the telemetry along the steps of a run: by node its host, and [sample] the step (a part of one is
    the time gone of it) and the value."""

    quantity: Quantity
    hosts: tuple[str, ...]
    steps: tuple[Floats, ...]
    values: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunReading:
    """What the page shows of a run: `delays` is None where ranks' arrivals are not recorded or cannot be compared."""

    times: StepTimes
    delays: DelayMap | None
    courses: tuple[Course, ...]


def read_run(path: Path, *, with_ranks: bool) -> RunReading:
    """Step times of the run in a trace; `with_ranks` its delays and telemetry, too.

    Raises TraceError where it cannot be read or has no common clock.
    """
    with open_trace(path) as trace:
        steps = int(trace.steps_completed.min())
        ends_ns, delay_ns = _read(trace, steps, with_ranks=with_ranks)
        if (ends_ns == ABSENT).any():
            raise TraceError(f"{path}: steps of its {steps} whole ones have no end")
        times = step_times(ends_ns, [(begin, stop) for begin, stop in trace.blocks.tolist()])
        if not with_ranks:
            return RunReading(times=times, delays=None, courses=())
        courses = tuple(_courses(trace))
        if (groups := read_groups(trace, steps)) is not None:
            beyond_ns, of_ranks = groups
            delay_ns = beyond_ns[[*of_ranks]].astype(np.float64)
            beyond = _binned(delay_ns, times.width, [*of_ranks.values()], in_groups=True)
            return RunReading(times=times, delays=beyond, courses=courses)
        names = [f"rank {rank}" for rank in range(len(trace.stamps))]
        delays = None if delay_ns is None else _binned(delay_ns, times.width, names)
        return RunReading(times=times, delays=delays, courses=courses)


def step_times(ends_ns: Ints, blocks: Sequence[tuple[int, int]]) -> StepTimes:
    """From the latest end of each step [step], none absent, and the measured steps."""
    width = max(1, -(-len(ends_ns) // BINS))
    first = np.arange(1, len(ends_ns), width)
    times_ms = np.diff(ends_ns) / 1e6
    mean_ms, min_ms, max_ms = (
        np.array([of(times_ms[at : at + width]) for at in first - 1]) for of in (np.mean, np.min, np.max)
    )
    return StepTimes(
        first=first,
        mean_ms=mean_ms,
        min_ms=min_ms,
        max_ms=max_ms,
        width=width,
        blocks=tuple(blocks),
        steps=len(ends_ns),
    )


def _read(trace: Trace, steps: int, *, with_ranks: bool) -> tuple[Ints, Floats | None]:
    """The latest end of each step [step], and the delay of each rank in ns [rank, step], None where a stamp is absent
    or there is one rank."""
    if not steps:
        return np.empty(0, np.int64), None
    ranks = len(trace.stamps)
    length = max(1, PIECE_STAMPS // ranks)
    ends_ns, delays = [], []
    for first in range(0, steps, length):
        stop = min(first + length, steps)
        ends_ns.append(trace.globally(trace.stamps[:, first:stop, END]).max(axis=0))
        if with_ranks and ranks > 1:
            ready_ns = trace.stamps[:, first:stop, GRADS_READY]
            if (ready_ns == ABSENT).any():
                with_ranks = False
                continue
            global_ns = trace.globally(ready_ns)
            delays.append((global_ns - lower_median(global_ns, axis=0)).astype(np.float64))
    return np.concatenate(ends_ns), np.concatenate(delays, axis=1) if with_ranks and delays else None


def _binned(delay_ns: Floats, width: int, names: Sequence[str], *, in_groups: bool = False) -> DelayMap:
    """The largest delay of each cell of at most ROWS × BINS; steps are counted as those of StepTimes."""
    ranks, steps = delay_ns.shape
    rows = -(-ranks // ROWS)
    by_row = np.maximum.reduceat(delay_ns[:, 1:], np.arange(0, ranks, rows), axis=0)
    first = np.arange(1, steps, width)
    return DelayMap(
        delay_ms=np.maximum.reduceat(by_row, first - 1, axis=1) / 1e6, first=first, width=width, ranks_per_row=rows,
        names=tuple(names[::rows]), in_groups=in_groups,
    )  # fmt: skip


def _courses(trace: Trace) -> Iterator[Course]:
    """The first COURSES quantities of the telemetry with a sample in some step."""
    telemetry, count = trace.telemetry, 0
    if telemetry is None:
        return
    ends_ns = trace.stamps[:, :, END][telemetry.ranks]
    for quantity in QUANTITIES:
        course = None if count == COURSES else _course(trace, telemetry, quantity, ends_ns)
        if course is not None:
            count += 1
            yield course


def _course(trace: Trace, telemetry: Telemetry, quantity: Quantity, ends_ns: Ints) -> Course | None:
    """The quantity on the nodes that have it, where it is other than 0 in some sample."""
    read = series_of(quantity, telemetry)
    if read is None:
        return None
    hosts, steps, values = [], [], []
    for node, rank in enumerate(telemetry.ranks.tolist()):
        its_ends = ends_ns[node][ends_ns[node] != ABSENT]
        at_ns, value = telemetry.local_ns[node], read[node]
        shown = (at_ns != ABSENT) & np.isfinite(value)
        if len(its_ends) > 1:
            shown &= (at_ns >= its_ends[0]) & (at_ns <= its_ends[-1])
        if len(its_ends) < 2 or not shown.any():
            continue
        hosts.append(trace.reports[rank].hostname or f"rank {rank}")
        thinned = np.flatnonzero(shown)[:: max(1, -(-int(shown.sum()) // BINS))]
        # Differences from the first end keep whole nanoseconds in a float.
        gone = (its_ends - its_ends[0]).astype(np.float64)
        steps.append(np.interp((at_ns[thinned] - its_ends[0]).astype(np.float64), gone, np.arange(len(its_ends))))
        values.append(value[thinned])
    if not any(each.any() for each in values):
        return None
    return Course(quantity=quantity, hosts=tuple(hosts), steps=tuple(steps), values=tuple(values))


MAX_PANELS = 24
"""Points with a panel: those with most devices. The tables have all points."""
MAX_RUNS = 6
"""Runs drawn in one chart."""
MAX_NODES = 8
"""Nodes drawn in one chart of telemetry."""
TOP_PERCENTILE = 99.5
"""Where the colours of a heat map end, so that a single late step does not make all others look alike."""
LEAST_TOP_MS = 0.01
"""The colours of a heat map cover at least so much."""


def points_section(
    summary: Summary, verdict_point: Result | None, progress: Progress[Result] | None = None
) -> Section | None:
    """A panel for each point with a trace, that of the verdict first; None where no run has a trace.

    Reads the traces.
    """
    traced = [result for result in summary.results if any(run.trace for run in result.runs)]
    if not traced:
        return None
    shown = sorted(traced, key=lambda result: (result is not verdict_point, -result.devices))[:MAX_PANELS]
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
        Panel(id=f"point-{number}", title=names[result.requested.point], blocks=its_blocks)
        for number, (result, its_blocks) in enumerate(zip(progress(shown) if progress else shown, drawn, strict=True))
    ]
    return Section(id="runs", title="Step by step", blocks=blocks, panels=panels)


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
        except Exception as error:  # noqa: BLE001 - the line says which
            problems.append(fault(error, run.trace))
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
            for place, table in enumerate(place_tables(ledger) if ledger else ()):
                yield Table.of(table, f"places-{number}-{place}", capitalized(table.caption.rstrip(":")))
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
    """A line for each run, of many steps their means, around it a band from the shortest to the longest. The scale is
    that of the measured steps."""
    series, measured_ms = [], [0.0]
    blocks: tuple[tuple[int, int], ...] = ()
    for at, reading in drawn.items():
        times = reading.times
        ok = "" if runs[at].measured else f" ({runs[at].outcome_text})"
        ends = zip(times.min_ms.tolist(), times.max_ms.tolist(), strict=True) if times.width > 1 else ()
        series.append(
            Line(
                name=f"{_run_name(runs[at])}{ok}", x=times.first.tolist(), y=times.mean_ms.tolist(),
                intervals=[*ends], style=LineStyle.STEPS,
            )
        )  # fmt: skip
        warmup = times.blocks[0][0] if times.blocks else 0
        measured_ms += times.max_ms[times.first >= warmup].tolist()
        blocks = max(blocks, times.blocks)
    width = max(reading.times.width for reading in drawn.values())
    of = f" of {count}" if count > len(drawn) else ""
    band = "" if width == 1 else f"; a line is the mean of {width} steps, the band their shortest and longest"
    means = "; ".join(
        f"{each.name} {np.mean(reading.times.mean_ms):.4g} ms"
        for each, reading in zip(series, drawn.values(), strict=True)
    )
    begins = [0, *(stop - 0.5 for _, stop in blocks)]
    shades = [(begin, first - 0.5, "") for begin, (first, _) in zip(begins, blocks, strict=False) if first]
    top_ms = max(measured_ms)
    return Chart(
        id=f"chart-steps-{number}",
        title=f"Step times in ms, {len(drawn)}{of} {inflect(count, 'run')}{_shaded(blocks)}{band}",
        text=f"Step times along the run, from latest end to latest end. Mean, warm-up included: {means}.",
        figure=Lines(series=series, x_title="step", unit="ms", scale=(0.0, top_ms) if top_ms else None, shades=shades),
    )


def _shaded(blocks: Sequence[tuple[int, int]]) -> str:
    """What the shaded steps are."""
    if not blocks:
        return ""
    between = "" if len(blocks) == 1 else ", and between the measured blocks"
    return f"; shaded: warm-up, outside the scale{between}" if blocks[0][0] else ""


def _delays(reading: RunReading, name: str, number: int, result: Result) -> Iterator[PageBlock]:
    delays = reading.delays
    if result.devices == 1:
        return
    if delays is None:
        yield Paragraph(text="Who is waited for is not drawn: when ranks have their gradients ready was not recorded.")
        return
    warmup = reading.times.blocks[0][0] if reading.times.blocks else 0
    measured = delays.delay_ms[:, delays.first >= warmup]
    top = max(LEAST_TOP_MS, float(np.percentile(measured, TOP_PERCENTILE)) if measured.size else 0.0)
    rows, columns = delays.delay_ms.shape
    if measured.size and measured.max() < LEAST_TOP_MS:
        yield Paragraph(text=f"Nobody is waited for: no rank is {LEAST_TOP_MS} ms late in a measured step of {name}.")
        return
    cell = "" if delays.width * delays.ranks_per_row == 1 else (
        f"; a cell has the largest of {delays.ranks_per_row} × {delays.width} (ranks × steps)"
    )  # fmt: skip
    late = delays.delay_ms.mean(axis=1)
    latest = int(late.argmax())
    whom = "median" if result.devices > 2 else "other"
    title, than = f"Who is waited for, {name}: ms behind the {whom} rank", f"behind the {whom} rank of the step"
    if delays.in_groups:
        title = f"Whose own work is long, {name}: ms more than in the ranks that do the same (without any: its own)"
        than = (
            "more than in the median of the ranks that do the same in other replicas; of a rank without any, than its "
            "own median"
        )
    yield Chart(
        id=f"chart-delays-{number}",
        title=title,
        text=(
            f"{rows} rows of ranks by {columns} columns of steps. The latest row is {_row_name(delays, latest)}, on "
            f"average {late[latest]:.4g} ms {than}{cell}. Colours end at {top:.4g} ms."
        ),
        figure=HeatMap(
            rows=[_row_name(delays, row) for row in range(rows)], x=delays.first.tolist(), z=delays.delay_ms.tolist(),
            top=top, unit="ms", warmup=warmup, titles=[
                f"{_row_name(delays, row)}: {late[row]:.4g} ms on average, at most {of_row.max():.4g} ms in step "
                f"{delays.first[of_row.argmax()]}"
                for row, of_row in enumerate(delays.delay_ms)
            ],
        ),
    )  # fmt: skip


def _row_name(delays: DelayMap, row: int) -> str:
    if delays.ranks_per_row == 1:
        return delays.names[row]
    if delays.in_groups:
        return f"from {delays.names[row].rpartition(': ')[2]}"
    first = row * delays.ranks_per_row
    return f"ranks {first}–{first + delays.ranks_per_row - 1}"


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
            Line(name=host, x=steps.tolist(), y=values.tolist(), style=LineStyle.STEPS)
            for host, steps, values in zip(course.hosts[:shown], course.steps, course.values, strict=False)
        ]
        yield Chart(
            id=f"chart-telemetry-{number}-{at}",
            title=f"{capitalized(quantity.name)}{unit}, {name}{of}",
            text="; ".join(f"{host}: mean {values.mean():.4g}" for host, values in _by_host(course)),
            figure=Lines(series=series, x_title="step", unit=quantity.unit, from_zero=quantity.unit.startswith("%")),
        )


def _by_host(course: Course) -> Iterator[tuple[str, Floats]]:
    yield from zip(course.hosts[:MAX_NODES], course.values, strict=False)


# Ranks in groups: whose own work is long, in the mesh's order.


def read_groups(trace: Trace, steps: int) -> tuple[Ints, dict[int, str]] | None:
    """How much longer the own work of each rank takes than the median of its peers in the step, ns [rank, step], of a
    rank without peers than its own median; and the names of the ranks, in the order of their mesh where they have one.
    Of the first steps of a trace; None where its ranks have no groups, or one lacks a begin or an end."""
    if trace.calls is None or not steps:
        return None
    calls = step_calls(trace)
    own_ns = _own_work(trace, calls, steps)
    if own_ns is None:
        return None
    beyond_ns = np.empty_like(own_ns)
    for role in np.unique(calls.roles).tolist():
        its = np.flatnonzero(calls.roles == role)
        usual = lower_median(own_ns[its], axis=0) if len(its) > 1 else lower_median(own_ns[its[0]], axis=0)
        beyond_ns[its] = own_ns[its] - usual
    if (mesh := rank_mesh(calls)) is None:
        return beyond_ns, {rank: f"rank {rank}" for rank in range(len(own_ns))}
    names = {}
    for row, column in np.argwhere(mesh.ranks != NONE).tolist():
        rank = int(mesh.ranks[row, column])
        names[rank] = f"rank {rank}: {', '.join(filter(None, (mesh.rows[row], mesh.columns[column])))}"
    return beyond_ns, names


def _own_work(trace: Trace, calls: StepCalls, steps: int) -> Ints | None:
    """The steps of each rank without what it waits for, ns [rank, step]; None where a begin or an end is absent."""
    ranks, width = calls.meeting.shape
    length = max(1, PIECE_STAMPS // (3 * ranks * width))
    own_ns = []
    for first in range(0, steps, length):
        stop = min(first + length, steps)
        stamps_ns = trace.globally(np.ascontiguousarray(trace.stamps[:, first:stop]))
        begin, end = stamps_ns[..., BEGIN], stamps_ns[..., END]
        if (begin == ABSENT).any() or (end == ABSENT).any():
            return None
        its = read_calls(trace, calls, stamps_ns, first, stop)
        own_ns.append(end - begin - _covered(its[..., WAITS], its[..., ENDS], begin.T, end.T).T)
    return np.concatenate(own_ns, axis=1)


def _covered(waits: Ints, ends: Ints, begin: Ints, end: Ints) -> Ints:
    """How much of steps, [step, rank] from `begin` to `end`, is in waits [step, rank, call]; ABSENT is before all."""
    order = np.argsort(ends, axis=2)
    waits, ends = (np.take_along_axis(each, order, axis=2) for each in (waits, ends))
    low, high = begin[..., None], end[..., None]
    ends = np.clip(ends, low, high)
    before = np.concatenate([low, np.maximum.accumulate(ends, axis=2)[..., :-1]], axis=2)
    covered: Ints = np.maximum(0, ends - np.maximum(np.clip(waits, low, high), before)).sum(axis=2)
    return covered
