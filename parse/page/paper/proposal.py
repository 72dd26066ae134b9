"""What a proposal for compute time asks beside the scaling: which size, why it, and how many node hours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc.system.text import first_of, grouped, plural
from parse.extrapolation.outlook import Outlook, Range, SizeForecast, SizeRequest, outlooks
from parse.extrapolation.series import series_of_results
from parse.extrapolation.text import count_text, range_text, refusal_text
from parse.page.scaling import as_sentence
from parse.page.types import PageBlock, Paragraph, Section, Table
from parse.report.costs import hours_text
from parse.report.summary import Summary
from parse.runs.cost import node_hours_of_work, spent
from parse.runs.result import Result, by_setting
from parse.text import covers

DEFAULT_EFFICIENCY = 0.7
"""The share of ideal scaling that a recommended size has at least."""
MAX_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class ProposedWork:
    """The work in the unit of the speeds, and the least efficiency as a share."""

    work: float
    efficiency: float = DEFAULT_EFFICIENCY
    devices_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProposedSize:
    """A size in the unit of its setting. `speed` is of all devices, `speedup` and `efficiency` against the smallest
    size, `hours` unit hours and `wall_hours` hours for the work."""

    size: int
    devices: int
    speed: Range
    speedup: Range
    efficiency: Range
    hours: Range
    wall_hours: float
    result: Result

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
        speed = Range(value=point.speed * point.devices)
        if result.interval:
            speed = Range(value=speed.value, low=result.interval.low, high=result.interval.high)
        size = (point.nodes if in_nodes else None) or point.devices
        sizes.append(_sized(result, size, point.devices, speed, sizes[0] if sizes else None, request.work))
    reason = _reason(of, sizes)
    enough = [size for size in sizes if (size.efficiency.low or size.efficiency.value) >= request.efficiency]
    return Proposal(
        outlook=of, unit="node" if in_nodes else "device", measured=sizes, results=results, reason=reason,
        recommended=None if reason else max(enough, key=lambda size: size.size),
    )  # fmt: skip


def _sized(
    result: Result, size: int, devices: int, speed: Range, base: ProposedSize | None, work: float
) -> ProposedSize:
    """The size with its figures; the lower end of a speed is held against the upper end of the base's, and the
    reverse. None is the base itself."""
    speedup = Range(value=1.0)
    if base is not None:
        low, high = (base.speed.low or base.speed.value, base.speed.high or base.speed.value)
        ends = (speed.low and speed.low / high, speed.high and speed.high / low)
        speedup = Range(value=speed.value / base.speed.value, low=ends[0], high=ends[1])

    def hours(at: float) -> float:
        return node_hours_of_work(size, at, work)

    return ProposedSize(
        size=size, devices=devices, speed=speed, speedup=speedup,
        efficiency=speedup.times((base.devices if base else devices) / devices),
        hours=Range(
            value=hours(speed.value), low=speed.high and hours(speed.high), high=speed.low and hours(speed.low)
        ),
        wall_hours=node_hours_of_work(1, speed.value, work), result=result,
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
    intervals = [size.result.interval for size in its.measured if size.result.interval]
    brackets = f"; in brackets the interval that {covers(each.coverage for each in intervals)}" if intervals else ""
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
