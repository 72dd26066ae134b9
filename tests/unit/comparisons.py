"""Measurements of points with known speeds, as folders of traces, for parse.compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc.model.spec import RunSpec
from parse.result import Result
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
