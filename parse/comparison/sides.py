"""The measurements that are compared, read as `parse.summarize` reads them; a point of one of them as a side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from hpc.system.text import plural
from parse import stats
from parse.comparison.types import ComparisonError, Reason, Side
from parse.load import load
from parse.measurements import days
from parse.published.documents import published
from parse.report.summary import choose, labels
from parse.result import Result, results
from parse.text import distinct


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The results of training of a folder or file; `name` is its path with the runs, points and days that it has.
    `diagnostics` are those of runs that are no training."""

    name: str
    results: tuple[Result, ...]
    diagnostics: tuple[Result, ...] = ()
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def read_measurement(path: Path, kind: str, where: Mapping[str, Sequence[str]]) -> Measurement:
    """Reads a folder or file; `kind` and `where` are those of `parse.summarize`.

    Raises ComparisonError where it holds no point, and TableError for a name in `where` that none has.
    """
    if kind == "table":
        printed = published([path])
        every, remarks, refusals = printed.results, printed.remarks, printed.refusals
    else:
        loaded = load([path], kind=kind)
        every, remarks, refusals = results(loaded), loaded.remarks, loaded.refusals
    trainings = tuple(result for result in every if not result.run.diagnostic)
    if not trainings:
        read = "; ".join((*refusals[:3], *remarks[:3])) or "nothing is there"
        raise ComparisonError(f"{path}: no point to compare: {read}")
    chosen = choose(trainings, where)
    if not chosen:
        raise ComparisonError(f"{path}: no point has all that --where asks for")
    ok = sum(len(result.ok) for result in chosen)
    dates = days(run.attempt.begin_unix_s for result in chosen for run in result.ok if run.attempt)
    name = f"{path}, {plural(len(chosen), 'point')}, {plural(ok, 'run')} ok{f', {dates}' if dates else ''}"
    diagnostics = tuple(result for result in every if result.run.diagnostic)
    return Measurement(name=name, results=chosen, diagnostics=diagnostics, remarks=remarks, refusals=refusals)


def distinct_labels(results_of_points: Sequence[Result]) -> list[str]:
    """The names of points as tables have them; equal ones are numbered."""
    return distinct(labels(results_of_points), "{} ({})")


def side_of(result: Result) -> Side:
    """The speeds of a measured point."""
    runs = [(run.measured.throughput, run.requested.run.repeat) for run in result.ok if run.measured]
    speeds, repeats = tuple(speed for speed, _ in runs), tuple(repeat for _, repeat in runs)
    usable = all(map(_is_speed, speeds))
    outlying = stats.outlying(speeds) if usable else ()
    return Side(
        median=stats.median(speeds) if speeds and usable else None,
        speeds=speeds,
        repeats=repeats,
        outcomes=tuple(Counter(run.outcome_text for run in result.runs).most_common()),
        outlying=tuple(repeats[at] for at in outlying),
    )


def without_speed(side: Side) -> tuple[Reason, str] | None:
    """Why a side has no median, with the details; None if it has one."""
    if side.median is not None:
        return None
    if not side.speeds:
        return Reason.NOT_OK, ", ".join(f"{count} {outcome}" for outcome, count in side.outcomes)
    runs = [pair for pair in zip(side.repeats, side.speeds, strict=True) if not _is_speed(pair[1])]
    return Reason.NO_SPEED, ", ".join(f"run {repeat}: {speed}" for repeat, speed in runs)


def _is_speed(value: float) -> bool:
    return isfinite(value) and value > 0
