"""Measurements of points with known speeds, as folders of traces, for parse.compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc.model.spec import RunSpec
from parse.comparison.pairs import compare_measurements
from parse.comparison.types import Comparison
from parse.runs.result import Result
from tests.unit.traces import judged, make_run, point, put

FIVE = (100.0, 100.5, 101.0, 99.5, 99.0)


def measured(*points: tuple[RunSpec, Sequence[float]], **changes: Any) -> tuple[Result, ...]:
    """The results of runs with those speeds."""
    return judged([trace for run, speeds in points for trace in point(run, speeds, **changes)])


def folder(path: Path, *points: tuple[RunSpec, Sequence[float]], **changes: Any) -> Path:
    """A folder of traces of runs with those speeds."""
    path.mkdir(parents=True)
    for run, speeds in points:
        for trace in point(run, speeds, **changes):
            put(path, trace)
    return path


def times(factor: float, speeds: Sequence[float] = FIVE) -> list[float]:
    """The speeds, multiplied."""
    return [factor * speed for speed in speeds]


SIZES = {f"1n{count}g": make_run(ranks_per_node=count) for count in (1, 2, 4)}
ONE, TWO, FOUR = SIZES["1n1g"], SIZES["1n2g"], SIZES["1n4g"]
OTHER = {"software": {"numpy": "2.0", "torch": "2.14"}, "backend": {"transport": "nccl"}}


def compared(base: tuple[Result, ...], new: tuple[Result, ...], **more: Any) -> Comparison:
    return compare_measurements(base, new, ("a", "b"), more.pop("threshold", 0.03), **more)


def only(comparison: Comparison) -> Any:
    (point,) = comparison.points
    return point
