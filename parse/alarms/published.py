"""Alarms about published figures: the rules that compare a document's statements with its own numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from hpc.model.findings import Figures
from parse.alarms.scaling import Neighbours
from parse.result import Figure, Result, size

RUNS_UNIT = 0.01
"""The unit of the last digit of a published speed of a single run."""
COPIED_CASES = 2
"""One figure can be the same by chance; two or more and all of a column are not."""


def as_published(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
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


def packed(result: Result, _: Neighbours) -> Iterator[Figures]:
    """Logs of several jobs on the same devices, which the document counts as runs, or has in the place of one."""
    if result.published and result.published.packed:
        yield {"logs": [{"log": name, "speed": speed} for name, speed in result.published.packed]}


def copied(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
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
    prints one, if that is 1, else the one on one device; None where the document does not tell."""
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
