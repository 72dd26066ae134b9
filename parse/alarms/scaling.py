"""Alarms about how the points of one setting scale: the rules that compare cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpc.model.findings import FigureValues
from hpc.system.text import grouped, plural
from parse.result import Figure, Result, by_setting, size
from parse.stats import Interval

SINGLE_FIGURE = 0.01
"""A published speed without its runs has no scatter: it is taken to this share either way, so two of them to 2 %."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The results that a result is compared with. `setting`: those that differ in size only, itself among them;
    `same_speeds`: the first result of each other setting that has the same speeds in all cases."""

    setting: tuple[Result, ...]
    same_speeds: tuple[Result, ...] = ()


def speed_interval(result: Result) -> Interval | None:
    """Returns the interval of the median of its runs; of a single published figure its margin, else None."""
    if result.interval or result.published is None or result.median_speed is None:
        return result.interval
    return Interval(result.median_speed * (1 - SINGLE_FIGURE), result.median_speed * (1 + SINGLE_FIGURE), 0.0)


def _basis(result: Result, other: Result) -> FigureValues:
    """Whether a speed of the two is a single published figure; else what both of their intervals cover at least."""
    if result.interval is None or other.interval is None:
        return {"single_figures": True}
    return {"single_figures": False, "coverage": min(result.interval.coverage, other.interval.coverage)}


def base_of(result: Result, neighbours: Neighbours) -> Result | None:
    """Returns the point that its speedup is measured against."""
    point = result.base.point if result.base else None
    return next((other for other in neighbours.setting if other.requested.point == point), None)


def superlinear(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """The least speedup over one device that the intervals allow is above the number of devices."""
    of_base = base_of(result, neighbours)
    if of_base is None or result is of_base or result.speedup is None or of_base.run.devices > 1:
        return
    interval, base = speed_interval(result), speed_interval(of_base)
    if interval and base and (speedup_low := interval.low / base.high) > result.run.devices:
        yield {
            "speedup": result.speedup,
            "speedup_low": speedup_low,
            "devices": result.run.devices,
            **_basis(result, of_base),
        }


def rising(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """Speed per device is higher than in a smaller case, beyond both intervals; `superlinear` compares with a base of
    one device."""
    if (interval := speed_interval(result)) is None or result.median_speed is None:
        return
    devices, base = result.run.devices, result.base
    smaller = [
        (its.high / other.run.devices, other)
        for other in neighbours.setting
        if other.run.devices < devices
        and (other.run.devices > 1 or not base or base.devices > 1)
        and (its := speed_interval(other))
        and its.high / other.run.devices < interval.low / devices
    ]
    high, other = min(smaller, key=lambda pair: pair[0], default=(0.0, result))
    if smaller and other.median_speed:
        yield {
            "per_device_low": interval.low / devices,
            "smaller_case": other.requested.case,
            "smaller_per_device_high": high,
            "speed_ratio": result.median_speed / other.median_speed,
            "device_ratio": devices / other.run.devices,
            **_basis(result, other),
        }


def falling(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """Fewer devices are faster together, beyond both intervals."""
    if (interval := speed_interval(result)) is None:
        return
    faster = [
        (its.low, other)
        for other in neighbours.setting
        if other.run.devices < result.run.devices and (its := speed_interval(other)) and interval.high < its.low
    ]
    if faster:
        low, other = max(faster, key=lambda pair: pair[0])
        yield {
            "speed_high": interval.high,
            "devices": result.run.devices,
            "smaller_case": other.requested.case,
            "smaller_devices": other.run.devices,
            "smaller_speed_low": low,
            **_basis(result, other),
        }


def baseline_elsewhere(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """The base met another device, driver or version, so the speedup compares more than the scale."""
    of_base = base_of(result, neighbours)
    if of_base is None or of_base is result:
        return
    facts, base_facts = result.facts, of_base.facts
    for name in sorted(facts.keys() & base_facts.keys()):
        if name != "transport" and not facts[name] & base_facts[name]:
            yield {"fact": name, "values": sorted(facts[name]), "baseline": sorted(base_facts[name]),
                   "base": of_base.requested.case}  # fmt: skip


# Alarms about nested runs: smaller cases must run on some of the nodes of larger ones, block by block.


def not_nested(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """A smaller case of the same block ran on a node that this one did not run on."""
    outside: list[FigureValues] = [
        {"run": repeat, "case": other.requested.case, "outside": sorted(smaller - nodes), "nodes": sorted(nodes)}
        for other, repeat, smaller, nodes in _pairs(result, neighbours.setting)
        if smaller - nodes
    ]
    if outside:
        yield {"outside": outside}


def other_nodes(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """The blocks of the largest nested case ran on different nodes: in several jobs, or after a requeue."""
    largest = max(other.run.nodes or 0 for other in neighbours.setting)
    if result.run.placement != "nested" or (result.run.nodes or 0) < largest:
        return
    runs_by_nodes = grouped((" ".join(sorted(hosts)), repeat) for repeat, hosts in _hosts(result).items())
    if len(runs_by_nodes) > 1:
        yield {"runs": runs_by_nodes}


def nested_summary(results: Sequence[Result]) -> str:
    """Returns the line on nested points for the head of a summary; empty if there are none, or not all are nested."""
    nested = [result for result in results if result.run.placement == "nested"]
    if not nested or any(alarm.name == "not_nested" for result in nested for alarm in result.alarms):
        return ""
    settings = by_setting(nested)
    if any(result.run.nodes != 1 and result.ok and not _hosts(result) for result in nested):
        return "placement nested: the order of the runs was shuffled; their nodes have no names of their own"
    pairs = [pair for result in nested for pair in _pairs(result, settings[result.requested.setting])]
    if not pairs:
        return "placement nested: no block has two cases with known nodes, so nesting cannot be checked"
    hosts = {host for _, _, smaller, nodes in pairs for host in smaller | nodes}
    blocks = {repeat for _, repeat, _, _ in pairs}
    return (
        f"placement nested (same nodes): in {plural(len(blocks), 'block')} every smaller case ran on nodes of the "
        f"larger ones; {plural(len(hosts), 'node')} in all"
    )


def _pairs(result: Result, setting: Iterable[Result]) -> Iterator[tuple[Result, int, frozenset[str], frozenset[str]]]:
    """Yields each run of a smaller case in the same block: the case, the block, its nodes and those of `result`."""
    if result.run.placement != "nested":
        return
    size, hosts = (result.run.nodes or 0, result.run.devices), _hosts(result)
    for other in setting:
        if (other.run.nodes or 0, other.run.devices) < size:
            smaller = _hosts(other)
            yield from ((other, at, smaller[at], hosts[at]) for at in sorted(smaller.keys() & hosts.keys()))


def _hosts(result: Result) -> dict[int, frozenset[str]]:
    """Returns the nodes of each ok run by its repeat, without runs whose nodes have no names of their own."""
    return {
        run.requested.run.repeat: frozenset(run.attempt.machine.hosts)
        for run in result.ok
        if run.attempt and run.attempt.machine and len(run.attempt.machine.hosts) == run.requested.run.nodes
    }


# Alarms about published figures: the rules that compare a document's statements with its own numbers.

RUNS_UNIT = 0.01
"""The unit of the last digit of a published speed of a single run."""
COPIED_CASES = 2
"""One figure can be the same by chance; two or more and all of a column are not."""


def as_published(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """A printed figure differs from the one computed of the numbers beside it by more than rounding."""
    if result.published is None:
        return
    base = printed_base(neighbours.setting)
    speedup = result.median_speed / base.median_speed if result.median_speed and base and base.median_speed else None
    computed = {"median": result.median_speed, "average": result.average_speed, "speedup": speedup}
    printed: dict[str, dict[str, list[int]]] = {}
    for figure in result.published.figures:
        value = computed.get(figure.what)
        if value is not None and abs(figure.value - value) > _rounding(figure, result, base):
            printed.setdefault(figure.what, {}).setdefault(figure.text, []).append(figure.line)
    if printed:
        source = "document" if not result.ok else "clean runs" if result.published.packed else "runs"
        values = {name: value for name in printed if (value := computed[name]) is not None}
        yield {"printed": printed, "computed": values, "source": source, "runs": len(result.ok)}


def packed(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """Logs of several jobs on the same devices, which the document counts as runs, or has in the place of one."""
    if result.published and result.published.packed:
        yield {"logs": [{"log": name, "speed": speed} for name, speed in result.published.packed]}


def copied(result: Result, neighbours: Neighbours) -> Iterator[FigureValues]:
    """Two settings have the same speeds in all cases; both columns get the alarm."""
    for other in neighbours.same_speeds:
        if differences := _differences(result, other):
            yield {"differences": differences, "cases": len(column(neighbours.setting))}


def column(setting: Sequence[Result]) -> tuple[tuple[int, int, float], ...]:
    """Returns (devices, nodes, samples/s) of each case; empty if two settings could have the same by chance."""
    speeds = [
        (result.run.devices, result.run.nodes or 1, result.median_speed)
        for result in setting
        if result.median_speed is not None
    ]
    return tuple(sorted(speeds)) if len(speeds) >= COPIED_CASES else ()


def printed_base(setting: Sequence[Result]) -> Result | None:
    """Returns the point that the speedups which a document prints for a setting are against: the smallest for which it
    prints one, if that is 1, else the one on one device; None where the document does not say."""
    ordered = sorted(setting, key=size)
    printing = (each for each in ordered if each.published and each.published.speedup is not None)
    first = next(printing, None)
    if first and first.published and first.published.speedup == 1:
        return first
    return next((each for each in ordered if each.run.devices == 1), None)


def _rounding(figure: Figure, result: Result, base: Result | None) -> float:
    """Returns the largest difference between a printed and a computed figure that rounding alone explains."""
    half_unit = 0.5 * 10.0**-figure.decimals * (1 + 1e-9)
    if figure.what != "speedup":
        return half_unit + (0.5 * RUNS_UNIT if result.ok else 0.0)
    if base is None or not base.median_speed or not result.median_speed:
        return half_unit
    relative = _unit(result) / result.median_speed + _unit(base) / base.median_speed
    return half_unit + result.median_speed / base.median_speed * relative / 2


def _unit(result: Result) -> float:
    """Returns the unit of the last digit of the median."""
    printed = result.published.all("median") if result.published and not result.ok else ()
    return 10.0 ** -printed[0].decimals if printed else RUNS_UNIT


def _differences(result: Result, other: Result) -> dict[str, Any]:
    """Returns the settings of `other` that are known of both and differ."""
    excluded = {"nodes", "ranks_per_node", "gpus_per_node", "devices", "repeat", "is_numbered"}
    values, other_values = dataclasses.asdict(result.run), dataclasses.asdict(other.run)
    return {
        name: other_values[name]
        for name, value in values.items()
        if name not in excluded and None not in (value, other_values[name]) and other_values[name] != value
    }
