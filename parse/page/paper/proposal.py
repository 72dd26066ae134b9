"""What a proposal for compute time asks beside the scaling: which size, why it, and how many node hours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpc.system.text import capitalized, first_of, grouped, plural
from parse import stats
from parse.extrapolation.outlook import ForecastBasis, Outlook, Range, SizeForecast, SizeRequest, open_series, outlooks
from parse.extrapolation.series import series_of_results
from parse.extrapolation.text import count_text, open_text, range_text
from parse.page.figures import Line
from parse.page.forecast import COVERAGE, FORECAST, Forecasts
from parse.page.paper.parts import Part
from parse.page.scaling import as_sentence
from parse.page.types import Table
from parse.report.costs import hours_text
from parse.report.summary import Summary
from parse.runs.cost import node_hours_of_work, spent
from parse.runs.result import Result, by_setting
from parse.text import covers

DEFAULT_EFFICIENCY = 0.7
"""The share of ideal scaling that a recommended size has at least."""
MAX_SETTINGS = 4
MAX_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class ProposedWork:
    """The work in the unit of the speeds, the least efficiency as a share, and the equal periods that node hours are
    divided into, (name, number); None without."""

    work: float
    efficiency: float = DEFAULT_EFFICIENCY
    periods: tuple[str, int] | None = None
    devices_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProposedSize:
    """A size in the unit of its setting. `speed` is of all devices, `speedup` and `efficiency` against the smallest
    size, `hours` unit hours and `wall_hours` hours for the work. `result` is None of a forecast."""

    size: int
    devices: int
    speed: Range
    speedup: Range
    efficiency: Range
    hours: Range
    wall_hours: float
    result: Result | None = None

    @property
    def least_efficiency(self) -> float:
        """The lower end of its interval; the efficiency itself of a single run."""
        return self.efficiency.value if self.efficiency.low is None else self.efficiency.low


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What a setting lets request. `unit` is `node`, or `device` inside a node and where nobody says how many it has.
    `recommended` is the largest measured size that is efficient enough; None with a `reason`. `unused` are cases of
    other devices per node, `failed` those without a speed."""

    name: str
    unit: str
    measured: Sequence[ProposedSize]
    ahead: Sequence[ProposedSize]
    recommended: ProposedSize | None
    reason: str
    unused: Sequence[str]
    failed: Sequence[str]
    results: Sequence[Result]

    def text(self, size: ProposedSize) -> str:
        """`4 nodes`."""
        return plural(size.size, self.unit)


def proposals(summary: Summary, request: ProposedWork, forecasts: Forecasts | None = None) -> list[Proposal]:
    """One for each setting of training. Raises RequestError as `outlooks`."""
    settings = by_setting(result for result in summary.results if not result.run.diagnostic).values()
    measured = outlooks(series_of_results(summary.results), SizeRequest(devices_per_node=request.devices_per_node))
    return [_proposal(results, of, forecasts, request) for results, of in zip(settings, measured, strict=True)]


def _proposal(results: Sequence[Result], of: Outlook, forecasts: Forecasts | None, request: ProposedWork) -> Proposal:
    nodes = [point.nodes for point in of.used]
    in_nodes = bool(nodes) and all(nodes) and (len(nodes) == 1 or {*nodes} != {1})
    by_case = grouped((result.requested.case, result) for result in results if result.median_speed is not None)
    sizes: list[ProposedSize] = []
    base: Range | None = None
    for point in of.used:
        its = by_case[point.name]
        result = its.pop(0) if len(its) > 1 else its[0]  # contradictory rows of a document are one result
        interval = result.interval
        speed = Range(value=point.speed * point.devices)
        if interval:
            speed = Range(value=speed.value, low=interval.low, high=interval.high)
        base = base or speed
        first = sizes[0].devices if sizes else point.devices
        size = (point.nodes if in_nodes else None) or point.devices
        sizes.append(replace(_sized(size, point.devices, speed, base, first, request.work), result=result))
    further: list[ProposedSize] = []
    for each in forecasts.beyond(results) if forecasts else ():
        if base and sizes and each.devices and each.speed:
            size = (each.nodes if in_nodes else None) or each.devices
            further.append(_sized(size, each.devices, each.speed, base, sizes[0].devices, request.work))
    reason = _reason(of, sizes)
    enough = [size for size in sizes if size.least_efficiency >= request.efficiency]
    return Proposal(
        name=of.series.name, unit="node" if in_nodes else "device", measured=sizes, ahead=further,
        recommended=None if reason else max(enough, key=lambda size: size.size), reason=reason,
        unused=[point.name for point in of.series.points if point not in of.used], failed=of.series.omitted,
        results=results,
    )  # fmt: skip


def _sized(size: int, devices: int, speed: Range, base: Range, base_devices: int, work: float) -> ProposedSize:
    """The size with its figures; the lower end of a speed is held against the upper end of the base's, and the
    reverse."""
    is_base = speed is base
    low = None if is_base or speed.low is None else speed.low / (base.high or base.value)
    high = None if is_base or speed.high is None else speed.high / (base.low or base.value)
    speedup = Range(value=speed.value / base.value, low=low, high=high)
    ideal = devices / base_devices

    def hours(at: float | None) -> float | None:
        return None if at is None else node_hours_of_work(size, at, work)

    return ProposedSize(
        size=size, devices=devices, speed=speed, speedup=speedup,
        efficiency=Range(value=speedup.value / ideal, low=low and low / ideal, high=high and high / ideal),
        hours=Range(value=node_hours_of_work(size, speed.value, work), low=hours(speed.high), high=hours(speed.low)),
        wall_hours=node_hours_of_work(1, speed.value, work),
    )  # fmt: skip


def _reason(of: Outlook, sizes: Sequence[ProposedSize]) -> str:
    """Why no size can be recommended; empty where one can."""
    wrong, points = open_series(of.used)
    if wrong is not None:
        shown = SizeForecast(nodes=None, devices=None, basis=ForecastBasis.OPEN, reason=wrong, points=points)
        return open_text(shown, of, SizeRequest())
    not_real = next((size.result.no_scaling for size in sizes if size.result and size.result.no_scaling), "")
    return as_sentence(f"These are no speeds of a machine: {not_real}") if not_real else ""


# In words and tables.


def proposal_parts(made: Sequence[Proposal], request: ProposedWork) -> list[Part]:
    """A part for each setting, the first ones of many."""
    parts = [_part(each, request, made) for each in made[:MAX_SETTINGS]]
    if len(made) > MAX_SETTINGS:
        text = f"{plural(len(made) - MAX_SETTINGS, 'further setting')} not shown: --where NAME=VALUE chooses."
        parts.append(Part(title="Further settings", tables=[], paragraphs=[[text]]))
    return parts


def _part(its: Proposal, request: ProposedWork, among: Sequence[Proposal]) -> Part:
    number = [each is its for each in among].index(True)
    suffix = f"-{number}" if number else ""
    title = f"Requested resources: {its.name}" if len(among) > 1 else "Requested resources"
    if not its.measured:
        return Part(title=title, tables=[], paragraphs=[[its.reason, *_failed(its)]])
    tables = [_sizes(its, request, f"request{suffix}"), *_runtimes(its, f"runtime{suffix}")]
    tables += _periods(its, request, f"periods{suffix}")
    paragraphs = [
        [*_recommended(its, request)], [*_no_larger(its, request), *_no_smaller(its)],
        [*_way(its, among)],
        [*_runtime_words(its), *_input(its)], [*_evidence(its)],
    ]  # fmt: skip
    return Part(title=title, tables=tables, paragraphs=[each for each in paragraphs if each])


def _sizes(its: Proposal, request: ProposedWork, table_id: str) -> Table:
    heads = [(f"{its.unit}s", ""), ("devices", ""), ("speed", its.results[0].unit), ("speedup", ""),
             ("efficiency", "%"), (f"{its.unit} hours", ""), ("wall hours", ""), ("basis", "")]  # fmt: skip
    rows = [
        [
            str(size.size), str(size.devices), range_text(size.speed), range_text(size.speedup),
            range_text(size.efficiency, 100), range_text(size.hours), hours_text(size.wall_hours),
            FORECAST if size.result is None else f"measured{', recommended' if size is its.recommended else ''}",
        ]
        for size in (*its.measured, *its.ahead)
    ]  # fmt: skip
    intervals = [size.result.interval for size in its.measured if size.result and size.result.interval]
    brackets = [f"the interval that {covers(each.coverage for each in intervals)}"] if intervals else []
    brackets += [f"of forecasts that of {COVERAGE}"] if its.ahead else []
    caption = (
        f"Speedup and efficiency against {its.text(its.measured[0])}, the smallest size measured, and what "
        f"{_work(its, request)} take{'; in brackets ' if brackets else ''}{', '.join(brackets)}"
    )
    return Table(id=table_id, caption=caption, heads=heads, rows=rows, label_columns=0)


def _work(its: Proposal, request: ProposedWork) -> str:
    return f"{count_text(request.work)} {its.results[0].run.unit}"


def _efficiency(size: ProposedSize) -> str:
    low = size.efficiency.low
    end = "no interval" if low is None else f"lower end {100 * low:.1f} %"
    return f"{100 * size.efficiency.value:.1f} % ({end})"


def _recommended(its: Proposal, request: ProposedWork) -> Iterator[str]:
    size = its.recommended
    if size is None or size.result is None:
        yield f"No size is recommended. {its.reason}"
        return
    share = f"{100 * request.efficiency:g} %"
    if size is its.measured[0]:
        yield (
            f"Recommended: {its.text(size)}, the smallest size measured, as no larger one has an efficiency whose "
            f"interval is above {share}."
        )
    else:
        yield (
            f"Recommended: {its.text(size)}, the largest size measured whose efficiency is at least {share}"
            f"{', lower end of its interval included' if size.efficiency.low is not None else ''}: {_efficiency(size)}."
        )
    yield (
        f"There {_work(its, request)} take {range_text(size.hours)} {its.unit} hours in {hours_text(size.wall_hours)} "
        "hours of wall-clock time, by the speed of the main loop alone: start, evaluation and checkpoints come on top."
    )
    if its.unit != "node":
        yield (
            "Hours are of devices, as all sizes are inside one node."
            if size.result.run.nodes
            else "Hours are of devices, as nobody says how many a node has: --devices-per-node N does."
        )
    rates = size.result.requested.rates
    price = rates.price(size.hours.value) if its.unit == "node" else None
    if price is not None:
        yield f"At the price that the site states they cost {price}."
    if size.efficiency.low is not None:
        yield (
            "The lower end of an efficiency is the lower end of the size's speed against the upper end of the smallest "
            "size's."
        )


def _no_larger(its: Proposal, request: ProposedWork) -> Iterator[str]:
    if its.recommended is None:
        return
    larger = [size for size in its.measured if size.size > its.recommended.size]
    yield (
        f"Why no larger size: on {its.text(larger[0])} the efficiency is {_efficiency(larger[0])}."
        if larger
        else "No larger size was measured."
    )
    if its.ahead:
        share = f"{100 * request.efficiency:g} %"
        known = ", ".join(f"{its.text(size)} {_efficiency(size)}" for size in its.ahead)
        hold = [its.text(size) for size in its.ahead if (size.efficiency.low or 0) >= request.efficiency]
        which = f"of these {' and '.join(hold)} would hold {share}" if hold else f"none of these surely holds {share}"
        yield f"By forecast, not measured: {known}; {which}."


def _no_smaller(its: Proposal) -> Iterator[str]:
    size, base = its.recommended, its.measured[0]
    smaller = [each for each in its.measured if size and each.size < size.size]
    if size and smaller:
        other = smaller[-1]
        share = other.hours.value / size.hours.value - 1
        yield (
            f"Why no smaller size: on {its.text(other)} the same work takes {hours_text(other.wall_hours)} hours in "
            f"place of {hours_text(size.wall_hours)}, for {100 * abs(share):.1f} % {'more' if share > 0 else 'fewer'} "
            f"{its.unit} hours."
        )
    yield from _failed(its)
    if its.unused:
        cases = first_of(its.unused, MAX_LISTED)
        yield f"Not in the table, as they have other devices per node than the largest size: {cases}."
    if not its.failed and not its.unused and base.size > 1:
        yield f"Nothing below {its.text(base)} was measured: whether less is feasible is not known."


def _failed(its: Proposal) -> Iterator[str]:
    if its.failed:
        yield f"Without a speed: {first_of(its.failed, MAX_LISTED, '; ')}."


def _way(its: Proposal, among: Sequence[Proposal]) -> Iterator[str]:
    ways = {id(each): _scaling(each) for each in among}
    meanings = {"weak": "the same batch on each device", "strong": "the same batch over all devices"}
    way = ways[id(its)]
    if way not in meanings:
        yield "Nobody says whether scaling is weak or strong."
        return
    yield f"Scaling is {way}: {meanings[way]}."
    for other in meanings:
        if other not in ways.values():
            yield f"{capitalized(other)} scaling was not measured: a sweep with --scaling {other} does."


def _scaling(its: Proposal) -> str:
    result = its.results[0]
    return "strong" if result.requested.strong else result.run.scaling or ""


def _times(result: Result) -> list[tuple[float, float]]:
    """Seconds of the measured steps and of the whole attempt, of each ok run that has both."""
    return [
        (run.measured.samples / run.measured.throughput, elapsed_s)
        for run in result.ok
        if run.measured and run.record and run.trace and run.measured.throughput > 0
        if (elapsed_s := run.record.elapsed_s) is not None
    ]


def _runtimes(its: Proposal, table_id: str) -> list[Table]:
    rows = []
    for size in its.measured:
        if size.result and (times := _times(size.result)):
            loop, whole = (stats.median([time[at] for time in times]) for at in (0, 1))
            rows.append([str(size.size), str(len(times)), f"{loop:.4g}", f"{whole:.4g}", f"{whole - loop:.4g}"])
    heads = [(f"{its.unit}s", ""), ("runs", ""), ("main loop", "s"), ("whole run", "s"), ("outside the loop", "s")]
    caption = "Time in the main loop and of the whole run, medians over runs"
    return [Table(id=table_id, caption=caption, heads=heads, rows=rows, label_columns=0)] if rows else []


def _runtime_words(its: Proposal) -> Iterator[str]:
    without = [its.text(size) for size in its.measured if not (size.result and _times(size.result))]
    if len(without) < len(its.measured):
        yield (
            "The main loop is the measured steps; a whole run is from its launch to its end, in whole seconds, with "
            "start, checks, warm-up, pauses and the writing of results. It is that of a measurement: a longer training "
            "has the same start, and more steps."
        )
    if without:
        names = first_of(without, MAX_LISTED)
        yield f"No total runtime is recorded of {names}: the time outside the main loop is not known."


def _input(its: Proposal) -> Iterator[str]:
    results = [size.result for size in its.measured if size.result]
    for source in sorted({result.run.data or "" for result in results}):
        if not source:
            yield "Nobody says what the input was, nor whether reading it is in these times."
        elif source == "synthetic":
            yield "Input was synthetic: reading files is not in these times."
        elif any(result.run.data_cache == "device" for result in results):
            yield f"Input was {source}, kept on the devices: reading it is not in the main loop."
        else:
            yield f"Input was {source}, read in the main loop."
    if any(result.run.epochs for result in results):
        yield "Whole trainings were run: evaluation and checkpoints are in the whole run, between the epochs."
    elif any(run.trace for result in results for run in result.ok):
        yield "No evaluation and no checkpoint is in the main loop, and none was measured."


def _evidence(its: Proposal) -> Iterator[str]:
    results = [size.result for size in its.measured if size.result]
    runs = sum(len(result.ok) for result in results)
    yield (
        f"Evidence: {plural(runs, 'run')} of {plural(len(results), 'size')} ended ok; the settings, the days and the "
        "machine are in the method."
        if runs
        else "Evidence: figures that a document prints; no run of them is here."
    )
    taken = spent(its.results)
    if taken.attempts:
        failed = f", {hours_text(taken.failed_node_hours)} of them failed attempts" if taken.failed else ""
        yield f"All attempts took {hours_text(taken.node_hours)} node hours{failed}."
    if warned := [its.text(size) for size in its.measured if size.result and size.result.alarms]:
        yield f"Warnings above are about {first_of(warned, MAX_LISTED)}."


def _periods(its: Proposal, request: ProposedWork, table_id: str) -> list[Table]:
    """Unit hours of the recommended size in equal parts."""
    if request.periods is None or its.recommended is None:
        return []
    name, number = request.periods
    whole = its.recommended.hours.value
    rows = [[str(at), hours_text(whole / number)] for at in range(1, number + 1)]
    caption = f"{capitalized(its.unit)} hours by {name}: {hours_text(whole)} divided evenly"
    return [
        Table(id=table_id, caption=caption, heads=[(name, ""), (f"{its.unit} hours", "")], rows=rows, label_columns=0)
    ]


def by_unit_lines(its: Proposal) -> tuple[Line, Line | None]:
    """Speedup by size, measured and continued by the forecast."""
    measured = Line(
        name=its.name, number=0, x=[size.size for size in its.measured],
        y=[size.speedup.value for size in its.measured],
        intervals=[_ends(size.speedup) for size in its.measured],
    )  # fmt: skip
    if not its.ahead:
        return measured, None
    last = its.measured[-1]
    return measured, Line(
        name=FORECAST, number=0, x=[last.size, *(size.size for size in its.ahead)],
        y=[last.speedup.value, *(size.speedup.value for size in its.ahead)],
        intervals=[(last.speedup.value, last.speedup.value), *(_ends(size.speedup) for size in its.ahead)],
    )  # fmt: skip


def _ends(of: Range) -> tuple[float, float] | None:
    return None if of.low is None or of.high is None else (of.low, of.high)
