"""What can be wrong with published figures: the rules that compare what a document prints with its own numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from hpc.system.text import inflect, plural
from parse.alarms.scaling import Beside, baseline_of
from parse.result import Figure, Result

RUNS_UNIT = 0.01
"""To what the documents round the speeds of single runs."""
COPIED_CASES = 2
"""One figure can be the same by chance; two or more and all of a column are not."""


def as_published(result: Result, beside: Beside) -> Iterator[str]:
    """A printed figure is not what the numbers beside it give, beyond what rounding explains."""
    if result.published is None:
        return
    source = "its runs" if result.ok else "its own figures"
    if result.published.packed and result.ok:
        source = f"its {len(result.ok)} clean runs"
    wrong: dict[str, list[Figure]] = {}
    given = {"median": result.median_speed, "average": result.average_speed, "speedup": result.speedup}
    for figure in result.published.figures:
        value = given.get(figure.what)
        if value is not None and abs(figure.value - value) > _rounding(figure, result, beside):
            wrong.setdefault(figure.what, []).append(figure)
    if wrong:
        printed = ", ".join(f"{what} {_places(figures)}" for what, figures in wrong.items())
        right = ", ".join(f"{given[what]:.2f}" for what in wrong)
        yield f"its document prints {printed}; {source} give {right}"


def packed(result: Result, _: Beside) -> Iterator[str]:
    """Logs of several jobs on the same devices, which the document counts as runs, or puts in the place of one."""
    if result.published and result.published.packed:
        named = ", ".join(f"{name} ({speed:.2f})" for name, speed in result.published.packed)
        count = len(result.published.packed)
        yield (
            f"{plural(count, 'log')} of packed jobs, several on the same devices, set aside: {named}; "
            "the result is of the other runs"
        )


def copied(result: Result, beside: Beside) -> Iterator[str]:
    """The same speeds in all cases under two different things asked; said once for each of the two columns."""
    for twin in beside.twins:
        if differ := _differences(result, twin):
            yield (
                f"the same figures as {', '.join(differ)} in all {len(column(beside.setting))} cases: "
                "one of the two columns is a copy, no measurement"
            )


def column(setting: Sequence[Result]) -> tuple[tuple[int, int, float], ...]:
    """The speeds of a setting: devices, nodes, samples/s, by case; empty where chance could make two alike."""
    speeds = [
        (result.run.devices, result.run.nodes or 1, result.median_speed)
        for result in setting
        if result.median_speed is not None
    ]
    return tuple(sorted(speeds)) if len(speeds) >= COPIED_CASES else ()


def _places(figures: Sequence[Figure]) -> str:
    """Each value once, with the lines where it stands."""
    lines: dict[str, list[str]] = {}
    for figure in figures:
        lines.setdefault(figure.text, []).append(str(figure.line))
    return " and ".join(f"{text} ({inflect(len(where), 'line')} {', '.join(where)})" for text, where in lines.items())


def _rounding(figure: Figure, result: Result, beside: Beside) -> float:
    """How far a figure and what it should be may lie apart because both are printed rounded."""
    half_unit = 0.5 * 10.0**-figure.decimals * (1 + 1e-9)
    if figure.what != "speedup":
        return half_unit + (0.5 * RUNS_UNIT if result.ok else 0.0)
    baseline = baseline_of(result, beside)
    if baseline is None or not baseline.median_speed or not result.median_speed or result.speedup is None:
        return half_unit
    return (
        half_unit + result.speedup * (_unit(result) / result.median_speed + _unit(baseline) / baseline.median_speed) / 2
    )


def _unit(result: Result) -> float:
    """The last digit that its median has."""
    printed = result.published.all("median") if result.published and not result.ok else ()
    return 10.0 ** -printed[0].decimals if printed else RUNS_UNIT


def _differences(result: Result, other: Result) -> list[str]:
    """What is known of both, and not the same: the other's side of it."""
    own_setting, other_setting = _setting(result), _setting(other)
    return [
        f"{name} {other_setting[name]}"
        for name in own_setting
        if None not in (own_setting[name], other_setting[name]) and own_setting[name] != other_setting[name]
    ]


def _setting(result: Result) -> dict[str, Any]:
    size = ("nodes", "ranks_per_node", "gpus_per_node", "devices", "repeat", "is_numbered")
    return {name: value for name, value in dataclasses.asdict(result.run).items() if name not in size}
