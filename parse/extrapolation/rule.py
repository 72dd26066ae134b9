"""The rule that extrapolates time per sample and device, and how far it missed on public series.

intervals.json is made by `python -m benchmarks.forecast_intervals`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import combinations
from math import ceil, isclose, log2, sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpc.system.text import grouped
from parse.report.summary import requested_values, setting_name, telling
from parse.runs.result import Result, by_setting

MIN_SPEED, MAX_SPEED = 1e-30, 1e30
OUT_OF_MEMORY = re.compile(r"\boom\b|out.of.memory", re.IGNORECASE)
"""An outcome, or the word that a document has in place of a speed."""
SAME_BATCH = 1e-4
"""Batches per device that differ by less, as a share, are the same; tables print six digits."""
CONTRADICTION = 0.05
"""Two speeds of one size that are farther apart, as a share, contradict each other."""
RISE = 0.03
"""A speed per device that rises by more is an error or another setting, and is not extrapolated."""


class ScalingKind(Enum):
    """Series whose forecasts err alike."""

    WEAK = "weak"
    """One batch per device."""
    STRONG = "strong"
    """Batches per device that differ: one global batch, in public series also mixed ones."""


class Refusal(Enum):
    """Why a size cannot be forecast."""

    FEW_SIZES = "few_sizes"
    INSIDE_NODE = "inside_node"
    UNKNOWN_NODES = "unknown_nodes"
    CONTRADICTORY = "contradictory"
    RISING = "rising"
    DEPARTS = "departs"
    BELOW_SAMPLE = "below_sample"
    OUT_OF_MEMORY = "out_of_memory"
    SMALLER = "smaller"
    TOO_FAR = "too_far"
    TOO_WIDE = "too_wide"


@dataclass(frozen=True, kw_only=True)
class SizePoint:
    """A measured size. `speed` is of one device, in the unit of its series; `batch` the samples per device and step.

    `scatter` is half of the interval of its speed as a share of it; 0 where one run alone was measured. `nodes` is None
    where no input states them, `batch` as well.
    """

    devices: int
    speed: float
    batch: float | None = None
    nodes: int | None = None
    scatter: float = 0.0
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class ScalingSeries:
    """Points of one setting by size, smallest first. `base` is what efficiencies are against.

    `omitted` are sizes without a speed, each with the reason, `out_of_memory` the devices of those that ran out of
    memory; `stated_strong`: one global batch, where the batches themselves are not known.
    """

    name: str
    points: tuple[SizePoint, ...]
    base: SizePoint | None
    unit: str = "samples/s"
    omitted: tuple[str, ...] = ()
    out_of_memory: frozenset[int] = frozenset()
    simulated: str = ""
    stated_strong: bool = False

    @property
    def kind(self) -> ScalingKind:
        """Weak where the batch per device is the same at every size, or not known and not stated to fall."""
        batches = self.batches
        same = all(isclose(batch, batches[0], rel_tol=SAME_BATCH) for batch in batches)
        return ScalingKind.WEAK if same else ScalingKind.STRONG

    @property
    def batches(self) -> list[float]:
        """Samples per device at each point; where one is not known, up to a factor that no forecast depends on."""
        known = [point.batch for point in self.points if point.batch is not None]
        if len(known) == len(self.points):
            return known
        return [1 / point.devices if self.stated_strong else 1.0 for point in self.points]

    def batch_at(self, devices: int) -> float:
        """Samples per device at that size: the points of a setting share the batch per device, or the global batch."""
        shared = self.batches[0]
        return shared if self.kind is ScalingKind.WEAK else shared * self.points[0].devices / devices

    @property
    def comparable(self) -> ScalingSeries:
        """The points with as many devices per node as the largest, as a step from part of a node to several nodes is no
        doubling like others; all where nodes are not known, or one node is all."""
        largest = max(self.points, key=lambda point: point.devices, default=None)
        if largest is None or not largest.nodes or largest.nodes == 1:
            return self
        per_node = largest.devices / largest.nodes
        points = [point for point in self.points if point.nodes and point.devices / point.nodes == per_node]
        return replace(self, points=tuple(points))

    @property
    def contradiction(self) -> tuple[Refusal | None, tuple[SizePoint, ...]]:
        """Why these points show no scaling, and the points that show it."""
        for same in grouped((point.devices, point) for point in self.points).values():
            slowest, fastest = min(same, key=lambda point: point.speed), max(same, key=lambda point: point.speed)
            if fastest.speed / slowest.speed - 1 > CONTRADICTION + slowest.scatter + fastest.scatter:
                return Refusal.CONTRADICTORY, (slowest, fastest)
        if len({point.devices for point in self.points}) < 2:
            return Refusal.FEW_SIZES, self.points
        for smaller, larger in combinations(self.points, 2):
            if rises(smaller, larger):
                return Refusal.RISING, (smaller, larger)
        return None, ()


def rises(smaller: SizePoint, larger: SizePoint) -> bool:
    """Whether the larger size is faster per device by more than RISE and both scatters, with no larger batch per
    device."""
    grew = bool(smaller.batch and larger.batch and larger.batch > smaller.batch * (1 + SAME_BATCH))
    limit = 1 + RISE + smaller.scatter + larger.scatter
    return larger.devices > smaller.devices and not grew and larger.speed > smaller.speed * limit


def series_of_results(results: Sequence[Result]) -> list[ScalingSeries]:
    """A series of each setting of training, in their order."""
    settings = by_setting(result for result in results if not result.run.diagnostic)
    values = {setting: requested_values(points[0]) for setting, points in settings.items()}
    names = telling(list(values.values()))
    others = [name for name in names if name not in ("backend", "workload")]
    return [
        _series_of_setting(points, setting_name(values[setting], others) or f"setting {at}")
        for at, (setting, points) in enumerate(settings.items(), 1)
    ]


def _series_of_setting(results: Sequence[Result], name: str) -> ScalingSeries:
    points: list[SizePoint] = []
    omitted: list[str] = []
    out_of_memory: set[int] = set()
    for result in sorted(results, key=lambda result: (result.devices, result.run.nodes or 0)):
        case = result.requested.case
        if not result.devices:
            omitted.append(f"{case}: the number of devices is not known")
        elif result.median_speed is None or not MIN_SPEED <= result.median_speed <= MAX_SPEED:
            outcomes = " and ".join(dict.fromkeys(run.outcome_text for run in result.runs))
            if OUT_OF_MEMORY.search(outcomes):
                out_of_memory.add(result.devices)
            omitted.append(f"{case}: no speed ({outcomes or 'no run'})")
        elif result.contradiction:
            points += [_point_of(replace(result, interval=None), case, speed) for speed in result.contradiction]
        else:
            points.append(_point_of(result, case, result.median_speed))
    base = next((result.base for result in results if result.base), None)
    of_base = next((point for point in points if base and point.name == base.case), points[0] if points else None)
    return ScalingSeries(
        name=name, points=tuple(points), base=of_base, unit=results[0].unit, omitted=tuple(omitted),
        out_of_memory=frozenset(out_of_memory),
        simulated=next((result.nodes_simulated for result in results if result.nodes_simulated), ""),
        stated_strong=results[0].requested.strong or results[0].run.scaling == "strong",
    )  # fmt: skip


def _point_of(result: Result, case: str, speed: float) -> SizePoint:
    batch: float | None = result.run.batch_size
    if batch is not None and result.run.scaling == "strong":
        batch /= result.devices
    interval = result.interval
    return SizePoint(
        devices=result.devices, speed=speed / result.devices, batch=batch or None, nodes=result.run.nodes,
        name=case, scatter=(interval.high - interval.low) / 2 / speed if interval else 0.0,
    )  # fmt: skip


# The rule that extrapolates time per sample and device, and how far it missed on public series.


Floats = npt.NDArray[np.float64]
TABLE = Path(__file__).with_name("intervals.json")
DISTANCES = (2, 4, 8, 16)
"""Forecast size over the largest measured; a distance between two counts as the larger."""
NOMINAL = 0.9
"""The share of misses that an interval holds."""
SMOOTH = 0.005
"""A series of three sizes or more is smooth if it departs from the rule's fit by at most this share."""
SAME = 1e-9


class Fit(Enum):
    """How well the measured sizes decide a forecast."""

    TWO = "two sizes"
    SMOOTH = "smooth"
    ROUGH = "rough"


@dataclass(frozen=True, kw_only=True)
class Score:
    """How far the rule missed at one distance on public series of one kind.

    `median` and `p90` are errors as shares of the measured speed over `forecasts` of `family_count` (a document or a
    benchmark each); `held` is the share of measured speeds inside the intervals, each made without its own family, as
    the mean over families. `half_widths`: half of an interval as a log of speed, by `Fit` value.
    """

    kind: str
    distance: int
    median: float
    p90: float
    held: float
    family_count: int
    forecasts: int
    half_widths: dict[str, float]


@lru_cache(1)
def scores() -> dict[tuple[ScalingKind, int], Score]:
    """The table by kind and distance."""
    rows = [Score(**row) for row in json.loads(TABLE.read_text("utf-8"))]
    return {(ScalingKind(row.kind), row.distance): row for row in rows}


def distance_of(devices: float, largest: int) -> int | None:
    """The distance as one of DISTANCES; None beyond the last."""
    doublings = max(1, ceil(log2(devices / largest) - SAME))
    return 2**doublings if 2**doublings <= DISTANCES[-1] else None


def terms(series: ScalingSeries) -> tuple[str, ...]:
    """The unknowns that the points can tell apart: w, the work; f/b, what a step costs whatever its batch b; c·log₂ n,
    what every doubling of the devices costs.

    One batch: w and c, a line in log₂ n. Several: w and f of two sizes, all three of more.
    """
    batches = np.array(series.batches)
    if np.ptp(batches) <= SAME * batches.max():
        return ("w", "c")
    return ("w", "f") if len({point.devices for point in series.points}) < 3 else ("w", "f", "c")


def columns(names: Sequence[str], devices: Sequence[float], batches: Sequence[float]) -> Floats:
    """The terms [point, term], for a least squares fit."""
    n, b = np.array(devices, dtype=float), np.array(batches, dtype=float)
    of_name = {"w": np.ones_like(n), "f": 1 / b, "c": np.log2(n)}
    return np.stack([of_name[name] for name in names], axis=1)


def fitted(series: ScalingSeries) -> tuple[Floats, Floats]:
    """The terms of the series' points [point, term] and their values [term], none negative."""
    matrix = columns(terms(series), [point.devices for point in series.points], series.batches)
    return matrix, nonnegative(matrix, _times(series))


def _times(series: ScalingSeries) -> Floats:
    """Time per sample and device [point], in the inverse unit of the speed."""
    return np.array([1 / point.speed for point in series.points])


def nonnegative(matrix: Floats, values: Floats) -> Floats:
    """The least squares of these columns [value, term], no term below 0: the best of all subsets, exact for so few."""
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1
    scaled, terms_of = matrix / scale, range(matrix.shape[1])
    best, least = np.zeros(matrix.shape[1]), np.inf
    for count in range(1, matrix.shape[1] + 1):
        for chosen in map(list, combinations(terms_of, count)):
            solution = np.linalg.lstsq(scaled[:, chosen], values, rcond=None)[0]
            error = float(np.square(scaled[:, chosen] @ solution - values).sum())
            if (solution >= 0).all() and error < least * (1 - SAME):
                best, least = np.zeros(matrix.shape[1]), error
                best[chosen] = solution
    result: Floats = best / scale
    return result


def time_at(series: ScalingSeries, devices: int, batch: float) -> float:
    """Time per sample and device of so many devices with that batch each."""
    return float((columns(terms(series), [devices], [batch]) @ fitted(series)[1])[0])


def departure(series: ScalingSeries) -> float:
    """How far the measured sizes lie from the rule's fit, as a share: root of the mean square per degree of freedom."""
    matrix, solution = fitted(series)
    freedom = max(1, len(matrix) - int(np.count_nonzero(solution)))
    return sqrt(float(np.square(matrix @ solution / _times(series) - 1).sum()) / freedom)


def fit_of(series: ScalingSeries) -> Fit:
    """How the measured sizes lie about the rule's fit."""
    if len({point.devices for point in series.points}) < 3:
        return Fit.TWO
    return Fit.SMOOTH if departure(series) <= SMOOTH else Fit.ROUGH
