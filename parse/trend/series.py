"""A history: every folder read as a measurement, its points put in order of time and judged."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from hpc.system.text import grouped, plural
from parse import stats
from parse.comparison.pairs import (
    Measurement,
    by_identity,
    check_ignored,
    differences,
    distinct_labels,
    files_of,
    read_measurement,
    side_of,
    without_speed,
)
from parse.comparison.types import ComparisonError, Difference, RatioInterval, ratio_interval
from parse.faults import has_fault
from parse.report.summary import TableError
from parse.runs.measurements import days
from parse.runs.result import Result
from parse.trend.divisive import LevelChange, changes

MIN_MEASUREMENTS = 10
"""A verdict needs so many: with them a step of 5 % in their middle is seen in 97 % of the series that scatter by 1 %,
with eight in 78 % (simulated, docs/results.md)."""


class Trend(StrEnum):
    """What the latest change of a point is."""

    SLOWER = "slower"
    FASTER = "faster"
    STEADY = "steady"
    TOO_FEW = "too few"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A point in one measurement. `begin_unix_s` is when the first of its ok runs began, `speeds` are those of the ok
    runs; `interval` is that of the median, None for one run."""

    folder: str
    begin_unix_s: int
    date: str
    median: float
    speeds: tuple[float, ...]
    interval: stats.Interval | None


@dataclass(frozen=True, kw_only=True)
class DatedChange:
    """A change of level, from the sample `previous` to `first`, and what differs between the environments of both.

    `interval` is that of the ratio of the medians after it to those before it, up to the neighbouring changes; None for
    too few of them.
    """

    change: LevelChange
    interval: RatioInterval | None
    previous: Sample
    first: Sample
    differences: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A measurement that has the point without a speed or a date."""

    folder: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Series:
    """A point over time. Speeds are in its `unit`; samples and changes are in order of time."""

    name: str
    unit: str
    samples: tuple[Sample, ...]
    changes: tuple[DatedChange, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def verdict(self) -> Trend:
        """By the latest change."""
        if len(self.samples) < MIN_MEASUREMENTS:
            return Trend.TOO_FEW
        if not self.changes:
            return Trend.STEADY
        return Trend.SLOWER if self.changes[-1].change.size < 0 else Trend.FASTER


@dataclass(frozen=True, kw_only=True)
class History:
    """All points over time. `folders` are those that were read; smaller changes than `threshold`, a share, are none.

    `remarks` and `refusals` are of reading.
    """

    folders: tuple[str, ...]
    threshold: float
    series: tuple[Series, ...]
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()

    def with_verdict(self, verdict: Trend) -> tuple[Series, ...]:
        """The points with this verdict."""
        return tuple(series for series in self.series if series.verdict is verdict)

    @property
    def status(self) -> int:
        """The exit status: 1 where the latest change of a point is a slowdown, 2 where no point has enough
        measurements or a run was lost by a fault of this program, else 0."""
        if self.with_verdict(Trend.SLOWER):
            return 1
        few = len(self.with_verdict(Trend.TOO_FEW)) == len(self.series)
        return 2 if few or has_fault(self.refusals) else 0


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A sample with the result and the files, resolved, that it is taken from."""

    sample: Sample
    result: Result
    files: frozenset[Path]


def read_history(
    paths: Sequence[Path],
    threshold: float,
    *,
    where: Mapping[str, Sequence[str]] | None = None,
    ignored: Collection[str] = (),
) -> History:
    """The history of the points of these folders; `where` is that of `parse.summarize`, `ignored` those of
    `parse.compare`. A folder that cannot be read is left out with its reason.

    Raises ComparisonError where no folder has a point, or an ignored name is unknown.
    """
    distinct = {os.path.realpath(path): path for path in reversed(paths)}  # Path.resolve raises on a loop of links
    measurements: dict[str, Measurement] = {}
    refusals: list[str] = []
    for path in reversed(distinct.values()):
        try:
            measurements[str(path)] = read_measurement(path, "auto", where or {})
        except (ComparisonError, TableError) as error:
            text = str(error)
            refusals.append(text if text.startswith(f"{path}:") else f"{path}: {text}")
    if not measurements:
        raise ComparisonError("nothing to compare: no folder holds a point\n" + "\n".join(refusals))
    repeated = len(paths) - len(distinct)
    history = history_of(
        {folder: measurement.results for folder, measurement in measurements.items()}, threshold, ignored
    )
    return dataclasses.replace(
        history,
        remarks=(
            *([f"{plural(repeated, 'folder')} named more than once: read once"] if repeated else []),
            *history.remarks,
            *(line for measurement in measurements.values() for line in measurement.remarks),
        ),
        refusals=(
            *refusals,
            *history.refusals,
            *(line for measurement in measurements.values() for line in measurement.refusals),
        ),
    )


def history_of(
    measurements: Mapping[str, Sequence[Result]], threshold: float, ignored: Collection[str] = ()
) -> History:
    """The history of the results by their folders. Raises ComparisonError where an ignored name is unknown."""
    check_ignored(ignored, [result for results in measurements.values() for result in results])
    read: list[tuple[tuple[str, str], tuple[str, Result]]] = []
    refusals = []
    for folder, results in measurements.items():
        try:
            of_folder = by_identity(results, ignored, folder)
            read += (((result.unit, key), (folder, result)) for key, result in of_folder.items())
        except ComparisonError as error:
            refusals.append(str(error))
    points = grouped(read)
    names = distinct_labels([members[-1][1] for members in points.values()])
    copies: Counter[tuple[str, str]] = Counter()
    series = tuple(
        _series(name, unit, members, threshold, ignored, copies)
        for name, ((unit, _), members) in zip(names, points.items(), strict=True)
    )
    remarks = [
        f"{folder}: {plural(count, 'point')} of it are runs that {original} has too: counted once"
        for (folder, original), count in copies.items()
    ]
    return History(
        folders=tuple(measurements),
        threshold=threshold,
        series=series,
        remarks=tuple(remarks),
        refusals=tuple(refusals),
    )


def _series(
    name: str,
    unit: str,
    members: Sequence[tuple[str, Result]],
    threshold: float,
    ignored: Collection[str],
    copies: Counter[tuple[str, str]],
) -> Series:
    """The point's samples by time, with their changes; counts the samples that are copies, by folder and original."""
    placed: list[_Placed] = []
    gaps = []
    for folder, result in members:
        sample = _sample(folder, result)
        if isinstance(sample, Gap):
            gaps.append(sample)
            continue
        new = _Placed(sample=sample, result=result, files=frozenset(files_of(result)))
        if (original := next((other for other in placed if _is_copy(new, other)), None)) is not None:
            copies[folder, original.sample.folder] += 1
        else:
            placed.append(new)
    placed.sort(key=lambda each: (each.sample.begin_unix_s, each.sample.folder))
    medians = [each.sample.median for each in placed]
    levels = changes(medians, threshold) if len(placed) >= MIN_MEASUREMENTS else ()
    edges = [0, *(change.at for change in levels), len(medians)]
    parts = [medians[start:stop] for start, stop in pairwise(edges)]
    return Series(
        name=name,
        unit=unit,
        samples=tuple(each.sample for each in placed),
        changes=tuple(
            DatedChange(
                change=change,
                interval=ratio_interval(before, after),
                previous=placed[change.at - 1].sample,
                first=placed[change.at].sample,
                differences=differences({name: (placed[change.at - 1].result, placed[change.at].result)}, ignored),
            )
            for change, before, after in zip(levels, parts, parts[1:], strict=False)
        ),
        gaps=tuple(gaps),
    )


def _sample(folder: str, result: Result) -> Sample | Gap:
    side = side_of(result)
    if (problem := without_speed(side)) is not None:
        return Gap(folder=folder, reason=f"{problem[0].value} ({problem[1]})")
    begins = [
        begin for run in result.ok if run.attempt and (begin := run.attempt.begin_unix_s) is not None and days([begin])
    ]
    if not begins:
        return Gap(folder=folder, reason="none of its ok runs has a date: no exit or begin record is beside it")
    assert side.median is not None
    return Sample(
        folder=folder,
        begin_unix_s=min(begins),
        date=days([min(begins)]),
        median=side.median,
        speeds=side.speeds,
        interval=stats.median_interval(side.speeds),
    )


def _is_copy(new: _Placed, other: _Placed) -> bool:
    """Whether both have a file in common, or began in the same second with equal speeds."""
    content = [(each.sample.begin_unix_s, each.sample.speeds) for each in (new, other)]
    return content[0] == content[1] or bool(new.files & other.files)
