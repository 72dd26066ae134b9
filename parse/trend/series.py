"""A history: every folder read as a measurement, its points put in order of time and judged.

Where the level of a series changes: E-divisive, made deterministic by Student's t-test. The method is that of Apache
Otava, formerly Hunter (Fleming et al., Hunter: Using Change Point Detection to Hunt for Performance Regressions, ICPE
2023): candidates by the divergence of E-divisive (Matteson and James, A Nonparametric Approach for Multiple Change
Point Analysis of Multivariate Data, JASA 2014), accepted by a t-test in place of permutations, first weakly in
overlapping windows, then merged by significance and magnitude. No random number is drawn.

Otava tests a candidate against all that follows up to the next change, in which a loss that was made good again cancels
out: it does not see half of the steps of 5 % that last for 10 of 30 measurements. Here the values up to the end that
E-divisive itself chooses are tested too, by a stricter limit (`temporary`).
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import inf, sqrt
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

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

Floats = npt.NDArray[np.float64]
TestOfMeans = Callable[[Floats, Floats], float]

MAX_P_VALUE = 0.001
WEAK = 10
"""Weak change points may have a p-value so many times larger: the series around them is not yet divided."""
STRICT = 10
"""A change that only a temporary level shows needs a p-value so many times smaller: there are many such levels."""
MIN_LEVEL = 3
"""The least number of values of a temporary level and before it: fewer are outliers."""
WINDOW = 50
"""Values that are divided together. Windows overlap by half, so that old changes do not hide new ones."""


@dataclass(frozen=True, kw_only=True)
class LevelChange:
    """The level of a series changes: `at` is the position of the first value of the new level.

    `before` and `after` are the means up to the neighbouring changes, `p_value` that of their t-test.
    """

    at: int
    before: float
    after: float
    p_value: float

    @property
    def size(self) -> float:
        """The relative change of the level, negative for a fall."""
        return self.after / self.before - 1

    @property
    def magnitude(self) -> float:
        """The relative change, seen from the level from which it is larger."""
        return max(abs(self.size), abs(self.before / self.after - 1))


def t_test(values: Floats, others: Floats) -> float:
    """The two-sided p-value of Student's t-test with pooled variance; 1 for fewer than three values, and for equal
    means without scatter."""
    freedom = len(values) + len(others) - 2
    difference = float(others.mean() - values.mean())
    if freedom < 1 or difference == 0:
        return 1.0
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (values, others))
    error = sqrt(squares / freedom * (1 / len(values) + 1 / len(others)))
    return stats.student_p(abs(difference) / error if error else inf, freedom)


def changes(
    values: Sequence[float], min_magnitude: float = 0.0, *, test: TestOfMeans = t_test, temporary: bool = True
) -> tuple[LevelChange, ...]:
    """The changes of level of positive values [n], ascending. Each has a p-value below MAX_P_VALUE and a magnitude
    above `min_magnitude`. Without `temporary` the method is Otava's."""
    series = np.asarray(values, np.float64)
    return _merged(series, weak_changes(series, test, temporary=temporary), min_magnitude, test)


def weak_changes(series: Floats, test: TestOfMeans, *, temporary: bool) -> list[int]:
    """The positions of the weak changes of all windows, before they are merged. A window begins half a window after the
    one before it, or at that window's last change, where this is later."""
    positions: set[int] = set()
    start = 0
    while start < len(series):
        divided = [start + at for at in _divided(series[start : start + WINDOW], test, temporary)]
        positions.update(divided)
        start = max([start + WINDOW // 2, *divided[-1:]])
    return sorted(positions)


def _divided(series: Floats, test: TestOfMeans, temporary: bool) -> list[int]:
    """Divides where the divergence is largest, as long as both sides of that position differ."""
    positions: list[int] = []
    while True:
        edges = [0, *positions, len(series)]
        candidates = [
            (*most_divergent(series[start:stop]), start, stop) for start, stop in pairwise(edges) if stop - start > 1
        ]
        if not candidates:
            return positions
        _, at, end, start, stop = max(candidates, key=lambda candidate: candidate[0])
        before, after = series[start : start + at], series[start + at : stop]
        level = series[start + at : start + end]
        is_temporary = (
            temporary and min(len(before), len(level)) >= MIN_LEVEL and test(before, level) <= MAX_P_VALUE / STRICT
        )
        if not is_temporary and test(before, after) > WEAK * MAX_P_VALUE:
            return positions
        positions = sorted([*positions, start + at])


def most_divergent(series: Floats) -> tuple[float, int, int]:
    """The largest divergence between values [:at] and [at:stop], with that `at` and `stop`.

    With n and m values in the two parts, it is n·m / (n + m) times (2 × the mean distance between the parts − the
    mean distances within each), Matteson and James, equations 5 and 7.
    """
    count = len(series)
    total = np.zeros((count + 1, count + 1))  # [i, j]: the distances between series[:i] and series[:j]
    total[1:, 1:] = np.abs(series[:, None] - series[None, :]).cumsum(axis=0).cumsum(axis=1)
    at, stop = np.arange(1, count)[:, None], np.arange(2, count + 1)[None, :]
    inside = total[at, at] / 2
    between = total[at, stop] - total[at, at]
    behind = total[stop, stop] / 2 - inside - between
    n, m = at, stop - at
    divergence = 2 / (n + m) * (between - m * inside / np.maximum(n - 1, 1) - n * behind / np.maximum(m - 1, 1))
    divergence[np.broadcast_to(m < 1, divergence.shape)] = -np.inf
    best = int(np.argmax(divergence))
    return float(divergence.flat[best]), best // (count - 1) + 1, best % (count - 1) + 2


def _merged(series: Floats, positions: list[int], min_magnitude: float, test: TestOfMeans) -> tuple[LevelChange, ...]:
    """Removes the weakest change, by p-value and then by magnitude, until all are significant and large enough."""
    while True:
        edges = [0, *positions, len(series)]
        parts = [series[start:stop] for start, stop in pairwise(edges)]
        remaining = [
            LevelChange(at=at, before=float(before.mean()), after=float(after.mean()), p_value=test(before, after))
            for at, before, after in zip(positions, parts, parts[1:], strict=False)
        ]
        if not remaining:
            return ()
        weakest = max(remaining, key=lambda change: change.p_value)
        if weakest.p_value < MAX_P_VALUE:
            weakest = min(remaining, key=lambda change: change.magnitude)
            if weakest.magnitude > min_magnitude:
                return tuple(remaining)
        positions = [at for at in positions if at != weakest.at]


# From folders to a history.


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
    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """The levels between the changes: positions of the first sample and behind the last one, mean of the medians;
        none without a verdict."""
        if self.verdict is Trend.TOO_FEW:
            return ()
        edges = [0, *(change.change.at for change in self.changes), len(self.samples)]
        return tuple(
            (start, stop, fmean(sample.median for sample in self.samples[start:stop]))
            for start, stop in pairwise(edges)
        )

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
    """The history of the points of these folders; `where` is that of `rankwise summarize`, `ignored` those of
    `rankwise compare`. A folder that cannot be read is left out with its reason.

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
