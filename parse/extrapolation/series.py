"""Scaling series: speeds of a setting by size, from results, from a CSV file, and the public ones that are shipped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import combinations
from math import isclose, isfinite
from pathlib import Path
from statistics import fmean

from hpc.system.regular_file import read_text
from hpc.system.text import grouped
from parse.report.summary import named, requested_values, telling
from parse.runs.result import Result, by_setting

SHIPPED = Path(__file__).with_name("series.csv")
"""Public series with their sources; intervals and scores are made from it (docs/forecast.md)."""
SPEED_COLUMNS = ("speed_per_device", "speed_per_device_any_unit")
MAX_ROWS = 100_000
MAX_DEVICES = 100_000_000
MIN_SPEED, MAX_SPEED = 1e-30, 1e30
LIMITS = {"batch_per_device": (1e-9, 1e12), "spread_percent": (0.0, 200.0)}
"""Columns whose numbers outside are an error, not a measurement."""
OUT_OF_MEMORY = re.compile(r"\boom\b|out.of.memory", re.IGNORECASE)
"""In an outcome, or in the word that a document prints in the place of a speed."""
SIZE_SETTINGS = ("case", "nodes", "ranks_per_node", "devices", "folder", "date")
"""Settings in which the points of one series of a summary differ."""
SAME_BATCH = 1e-4
"""Batches per device that differ by less, as a share, are the same; tables print six digits."""


class SeriesError(ValueError):
    """A CSV file is no table of series; the text names the file, the line and what is missing."""


class ScalingKind(Enum):
    """Series whose forecasts err alike."""

    WEAK = "weak"
    """One batch per device, and several sizes on the highest level of the network."""
    CROSSING = "crossing"
    """One batch per device on one node and on several: one size alone tells of the network between nodes."""
    INSIDE = "inside"
    """One batch per device, all on one node."""
    STRONG = "strong"
    """Batches per device that differ: one global batch, or mixed."""


@dataclass(frozen=True, kw_only=True)
class SizePoint:
    """A measured size. `speed` is of one device, in the unit of its series; `batch` the samples per device and step.

    `scatter` is half of the interval of its speed as a share of it; 0 where one run alone was measured. `nodes` is None
    where nobody states them, `batch` as well.
    """

    devices: int
    speed: float
    batch: float | None = None
    nodes: int | None = None
    scatter: float = 0.0
    name: str = ""

    @property
    def time(self) -> float:
        """Time per sample and device, in the inverse unit of the speed."""
        return 1 / self.speed


@dataclass(frozen=True, kw_only=True)
class TooLarge:
    """A size that ran out of memory, with its samples per device and step; None where they are not known."""

    name: str
    devices: int
    batch: float | None


@dataclass(frozen=True, kw_only=True)
class ScalingSeries:
    """Points of one setting by size, smallest first. `base` is what efficiencies are against.

    `family` names what its errors are like: the document, or the benchmark, that it is of. `omitted` are sizes without
    a speed, each with the reason; `stated_strong`: one global batch, where the batches themselves are not known;
    `too_large`: sizes that memory is too small for.
    """

    name: str
    points: tuple[SizePoint, ...]
    base: SizePoint | None
    family: str
    unit: str = "samples/s"
    omitted: tuple[str, ...] = ()
    simulated: str = ""
    stated_strong: bool = False
    too_large: tuple[TooLarge, ...] = ()

    @property
    def is_weak(self) -> bool:
        """Whether the batch per device is the same at every size, or not known and not stated to fall."""
        batches = self.batches
        return all(isclose(batch, batches[0], rel_tol=SAME_BATCH) for batch in batches)

    @property
    def total_batch(self) -> float | None:
        """The one global batch of strong scaling; None where there is none."""
        totals = [batch * point.devices for batch, point in zip(self.batches, self.points, strict=True)]
        return totals[0] if totals and all(isclose(each, totals[0], rel_tol=SAME_BATCH) for each in totals) else None

    @property
    def batches(self) -> list[float]:
        """Samples per device at each point; where one is not known, up to a factor that no forecast depends on."""
        known = [point.batch for point in self.points if point.batch is not None]
        if len(known) == len(self.points):
            return known
        return [1 / point.devices if self.stated_strong else 1.0 for point in self.points]

    def failed(self, devices: int, batch: float | None) -> list[TooLarge]:
        """The sizes that ran out of memory with no more devices and no larger batch of each."""
        return [
            size for size in self.too_large
            if size.devices <= devices and (not size.batch or not batch or batch >= size.batch * (1 - SAME_BATCH))
        ]  # fmt: skip

    @property
    def merged(self) -> ScalingSeries:
        """The series with sizes that are there several times, with one batch, as one: their mean, and half of how far
        they are apart as its scatter."""
        same = grouped(((point.devices, point.nodes, point.batch), point) for point in self.points).values()
        return replace(self, points=tuple(map(_mean_point, same)))

    def first(self, count: int) -> ScalingSeries:
        """The series of its smallest points."""
        return replace(self, points=self.points[:count])

    @property
    def knows_batches(self) -> bool:
        return all(point.batch is not None for point in self.points)

    @property
    def group(self) -> ScalingKind:
        """How its points are extrapolated."""
        if not self.is_weak:
            return ScalingKind.STRONG
        single = [point.nodes == 1 for point in self.points]
        if all(single):
            return ScalingKind.INSIDE
        return ScalingKind.CROSSING if single == [True, False] and self.points[1].nodes else ScalingKind.WEAK

    @property
    def comparable(self) -> tuple[SizePoint, ...]:
        """The points with as many devices per node as the largest, as a step from part of a node to several nodes is no
        doubling like others; all where nodes are not known, or one node is all."""
        largest = max(self.points, key=lambda point: point.devices, default=None)
        if largest is None or not largest.nodes or largest.nodes == 1:
            return self.points
        per_node = largest.devices / largest.nodes
        return tuple(point for point in self.points if point.nodes and point.devices / point.nodes == per_node)


def _mean_point(same: Sequence[SizePoint]) -> SizePoint:
    speeds = [point.speed for point in same]
    apart = (max(speeds) - min(speeds)) / 2 / fmean(speeds)
    return replace(same[0], speed=fmean(speeds), scatter=max(apart, *(point.scatter for point in same)))


def series_of_results(results: Sequence[Result]) -> list[ScalingSeries]:
    """A series of each setting of training, in their order."""
    settings = by_setting(result for result in results if not result.run.diagnostic)
    values = {setting: requested_values(points[0]) for setting, points in settings.items()}
    names = telling(list(values.values()))
    bare = [name for name in names if name in ("backend", "workload")]
    others = [name for name in names if name not in bare]
    return [
        _series_of_setting(points, named(values[setting], bare, others) or f"setting {at}")
        for at, (setting, points) in enumerate(settings.items(), 1)
    ]


def _series_of_setting(results: Sequence[Result], name: str) -> ScalingSeries:
    points: list[SizePoint] = []
    omitted: list[str] = []
    too_large: list[TooLarge] = []
    for result in sorted(results, key=lambda result: (result.devices, result.run.nodes or 0)):
        case = result.requested.case
        if not result.devices:
            omitted.append(f"{case}: the number of devices is not known")
        elif result.median_speed is None or not MIN_SPEED <= result.median_speed <= MAX_SPEED:
            outcomes = " and ".join(dict.fromkeys(run.outcome_text for run in result.runs))
            omitted.append(f"{case}: no speed ({outcomes or 'no run'})")
            if OUT_OF_MEMORY.search(outcomes):
                too_large.append(TooLarge(name=case, devices=result.devices, batch=_batch_of(result)))
        elif result.contradiction:
            points += [_point_of(replace(result, interval=None), case, speed) for speed in result.contradiction]
        else:
            points.append(_point_of(result, case, result.median_speed))
    base = next((result.base for result in results if result.base), None)
    of_base = next((point for point in points if base and point.name == base.case), points[0] if points else None)
    return ScalingSeries(
        name=name, points=tuple(points), base=of_base, family=name, unit=results[0].unit, omitted=tuple(omitted),
        simulated=next((result.nodes_simulated for result in results if result.nodes_simulated), ""),
        stated_strong=results[0].requested.strong or results[0].run.scaling == "strong", too_large=tuple(too_large),
    )  # fmt: skip


def _batch_of(result: Result) -> float | None:
    """Samples per device and step."""
    batch: float | None = result.run.batch_size
    if batch is not None and result.run.scaling == "strong":
        batch /= result.devices
    return batch or None


def _point_of(result: Result, case: str, speed: float) -> SizePoint:
    interval = result.interval
    return SizePoint(
        devices=result.devices, speed=speed / result.devices, batch=_batch_of(result), nodes=result.run.nodes,
        name=case, scatter=(interval.high - interval.low) / 2 / speed if interval else 0.0,
    )  # fmt: skip


@lru_cache(1)
def shipped_series() -> tuple[ScalingSeries, ...]:
    """The public series that come with the project."""
    return read_series(SHIPPED)


def read_series(path: Path) -> tuple[ScalingSeries, ...]:
    """The series of a CSV file with a row per size, or of one that parse.summarize writes. Raises SeriesError, and
    OSError as `read_text`.

    Columns: series, kind (weak, strong or mixed), devices, speed_per_device; where known batch_per_device, nodes, runs,
    spread_percent (of the runs' speeds), source (repository@commit:path). Others are not read.
    """
    try:
        rows = [*csv.DictReader(io.StringIO(read_text(path)))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise SeriesError(f"{path}: no CSV text ({error})") from None
    if rows and "point_id" in rows[0]:
        try:
            rows = [*_of_summary(rows)]
        except (ValueError, KeyError, AttributeError, TypeError, ZeroDivisionError) as error:
            raise SeriesError(f"{path}: a point_id, but no CSV of parse.summarize ({error!r:.60})") from None
    missing = [name for name in ("series", "devices") if not rows or name not in rows[0]]
    speed_column = next((name for name in SPEED_COLUMNS if rows and name in rows[0]), None)
    if missing or speed_column is None or len(rows) > MAX_ROWS:
        raise SeriesError(
            f"{path}: no table of series: columns series, devices and speed_per_device are needed, in 1 to "
            f"{MAX_ROWS:,} rows"
        )
    points = grouped(
        ((row["series"] or "", row.get("kind") or ""), _read_row(row, speed_column, f"{path}: line {line}"))
        for line, row in enumerate(rows, 2)
    )
    return tuple(_read_points(path, name, kind, parts) for (name, kind), parts in points.items())


def _of_summary(rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """The rows of a summary's CSV as those of a table of series; points without a speed are left out."""
    settings = [
        "; ".join(part for part in row["requested"].split("; ") if part.partition("=")[0] not in SIZE_SETTINGS)
        for row in rows
    ]
    short = [f"{row['backend']} {row['workload']}" for row in rows]
    for row, setting, name in zip(rows, settings, short, strict=True):
        speed_name = next((each for each in row if each == "median_speed" or each.startswith("median_speed_")), "")
        if not row.get(speed_name) or not row["devices"]:
            continue
        speed = float(row[speed_name])
        is_single = len({settings[at] for at, each in enumerate(short) if each == name}) == 1
        low, high = (float(row.get(end) or speed) for end in ("interval_low", "interval_high"))
        yield {
            "series": name if is_single else setting, "kind": row["scaling"], "devices": row["devices"],
            "nodes": row["nodes"], "speed_per_device": repr(speed / float(row["devices"])),
            "batch_per_device": row["batch_size_per_device"],
            "spread_percent": repr(min(200.0, 100 * (high - low) / speed)),
        }  # fmt: skip


def _read_points(path: Path, name: str, kind: str, parts: Sequence[tuple[SizePoint, str]]) -> ScalingSeries:
    points = tuple(sorted((point for point, _ in parts), key=lambda point: point.devices))
    if None in (batches := {point.batch for point in points}) and len(batches) > 2:
        raise SeriesError(f"{path}: {name}: batch_per_device differs between sizes, and some state none")
    source = next((source for _, source in parts if source), "")
    return ScalingSeries(
        name=name, points=points, base=points[0], family=family_of(source) or name, unit="units/s",
        stated_strong=kind == "strong",
    )  # fmt: skip


def family_of(source: str) -> str:
    """MLPerf's benchmark, whatever its round; else the document of any version; empty where none is named."""
    repository, _, path = source.partition(":")
    if repository.startswith("mlcommons/training_results_"):
        return f"MLPerf {path.rpartition('/')[2]}"
    return f"{repository.partition('@')[0]}:{path}" if path else ""


def _read_row(row: Mapping[str, str | None], speed_column: str, where: str) -> tuple[SizePoint, str]:
    devices = _number(row, "devices", where)
    speed = _number(row, speed_column, where)
    if devices is None or speed is None or devices != int(devices) or not 1 <= devices <= MAX_DEVICES:
        raise SeriesError(f"{where}: devices must be a whole number from 1 to {MAX_DEVICES:,}, the speed a number")
    nodes, spread = _number(row, "nodes", where), _number(row, "spread_percent", where)
    if not MIN_SPEED <= speed <= MAX_SPEED or (nodes is not None and (nodes != int(nodes) or nodes > devices)):
        raise SeriesError(f"{where}: a speed of {speed:.4g}, or {nodes} nodes for {devices:.0f} devices, cannot be")
    point = SizePoint(
        devices=int(devices), speed=speed, batch=_number(row, "batch_per_device", where),
        nodes=None if nodes is None else int(nodes), scatter=(spread or 0.0) / 200, name=f"{int(devices)}g",
    )  # fmt: skip
    return point, row.get("source") or ""


def _number(row: Mapping[str, str | None], name: str, where: str) -> float | None:
    """The positive number in that column; None where it is empty. A spread may be 0."""
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0 or (value == 0 and name != "spread_percent"):
        raise SeriesError(f"{where}: {name} is {text[:40]!r}, not a positive number")
    least, largest = LIMITS.get(name, (0.0, value))
    if not least <= value <= largest:
        raise SeriesError(f"{where}: {name} is {text[:40]!r}, not a number from {least:g} to {largest:g}")
    return value


def rises(points: Sequence[SizePoint], share: float) -> Iterator[tuple[SizePoint, SizePoint]]:
    """Pairs of sizes of which the larger is faster per device by more than that share and both scatters, with no larger
    batch per device."""
    for smaller, larger in combinations(points, 2):
        grew = bool(smaller.batch and larger.batch and larger.batch > smaller.batch * (1 + SAME_BATCH))
        limit = 1 + share + smaller.scatter + larger.scatter
        if larger.devices > smaller.devices and not grew and larger.speed > smaller.speed * limit:
            yield smaller, larger
