"""Conformal intervals: how far the rule missed at the same distance on public series, each family counted alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import ceil, inf, isclose, log, log2, sqrt

import numpy as np

from hpc.system.text import grouped
from parse.extrapolation.rules import OUR_RULES, Floats, fitted, terms
from parse.extrapolation.series import SAME_BATCH, ScalingKind, ScalingSeries, rises, shipped_series

DISTANCES = (2, 4, 8, 16)
"""Forecast size over the largest measured; a distance between two counts as the larger."""
PROVEN = 8
"""Beyond, few families were measured."""
NOMINAL = 0.9
SMOOTH = 0.005
"""A series of three sizes or more is smooth if it departs from the rule's fit by at most this share."""
MIN_OF_CLASS, MIN_FAMILIES = 5, 4
"""Misses of fewer families at a distance are too few for an interval of that fit by themselves, or for any."""
MAX_DEPARTURE = 0.25
"""Sizes that depart farther from the fit have no interval: of 175 public series one does (0.33)."""
RISE = 0.03
"""A speed per device that rises by more is an error or another setting, and is not extrapolated."""


class Fit(Enum):
    """How well the measured sizes decide a forecast."""

    TWO = "two sizes"
    SMOOTH = "smooth"
    ROUGH = "rough"


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A size of a public series, forecast from smaller ones: log of measured over forecast speed."""

    family: str
    series: str
    group: ScalingKind
    distance: int
    fit: Fit
    log_ratio: float


@dataclass(frozen=True, kw_only=True)
class HalfWidth:
    """Half of an interval as a log of speed, and the number of families that it comes from."""

    width: float
    families_used: int


def distance_of(devices: float, largest: int) -> int | None:
    """The distance as one of DISTANCES; None beyond the last."""
    doublings = max(1, ceil(log2(devices / largest) - 1e-9))
    return 2**doublings if 2**doublings <= DISTANCES[-1] else None


def arrays(series: ScalingSeries) -> tuple[Floats, Floats, Floats]:
    """Devices, batches per device and times [point]."""
    return (
        np.array([float(point.devices) for point in series.points]),
        np.array(series.batches, dtype=float),
        np.array([point.time for point in series.points]),
    )


def fit_of(series: ScalingSeries) -> Fit:
    """How the measured sizes lie about the rule's fit."""
    if len({point.devices for point in series.points}) < 3:
        return Fit.TWO
    return Fit.SMOOTH if departure(series) <= SMOOTH else Fit.ROUGH


def departure(series: ScalingSeries) -> float:
    """How far the measured sizes lie from the rule's fit, as a share: root of the mean square per degree of freedom."""
    devices, batches, times = arrays(series)
    names = terms(devices, batches)
    solution = fitted(names, devices, batches, times)
    columns = {"w": np.ones_like(devices), "f": 1 / batches, "c": np.log2(devices)}
    expected = sum(value * columns[name] for name, value in zip(names, solution, strict=True))
    freedom = max(1, len(devices) - int(np.count_nonzero(solution)))
    return sqrt(float(np.square(expected / times - 1).sum()) / freedom)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A measured size `at` of a series that its `count` smallest points forecast; `distance` is one of DISTANCES."""

    count: int
    at: int
    distance: int


def trials(series: ScalingSeries) -> Iterator[Trial]:
    """Every size that two or more smaller ones forecast: not where these rise or one is there twice, nor with a batch
    per device that differs from the one they all have, which no rule knows the cost of."""
    points, batches = series.points, series.batches
    for count in range(2, len(points)):
        known = series.first(count)
        if any(rises(known.points, RISE)) or len({point.devices for point in known.points}) < count:
            return
        for at in range(count, len(points)):
            distance = distance_of(points[at].devices, points[count - 1].devices)
            same = not known.is_weak or isclose(batches[at], batches[0], rel_tol=SAME_BATCH)
            if distance is not None and same and points[at].devices > points[count - 1].devices:
                yield Trial(count=count, at=at, distance=distance)


def misses(series: ScalingSeries) -> Iterator[Miss]:
    """The trials of a series, each with its error."""
    devices, batches, times = arrays(series)
    for trial in trials(series):
        known, at = series.first(trial.count), trial.at
        forecast = OUR_RULES[known.group](*arrays(known), devices[at], batches[at])
        yield Miss(
            family=series.family, series=series.name, group=known.group, distance=trial.distance, fit=fit_of(known),
            log_ratio=log(forecast / times[at]),
        )  # fmt: skip


@lru_cache(1)
def shipped_misses() -> tuple[Miss, ...]:
    """Those of the public series that come with the project."""
    return tuple(miss for series in shipped_series() for miss in misses(series))


def half_width(
    pool: Sequence[Miss], *, group: ScalingKind, fit: Fit, distance: int, without: str = ""
) -> HalfWidth | None:
    """Within how much NOMINAL of the misses at that distance are, each family counted alike; None where few are known.

    `without` is a family whose misses are left out: that of the series which is forecast. Nearer distances count where
    they are wider, as an interval does not get narrower with distance.
    """
    others = [miss for miss in pool if miss.group is group and miss.family != without]
    widths = [width for step in DISTANCES if step <= distance and (width := _at(others, fit, step))]
    if len({miss.family for miss in others if miss.distance == distance}) < MIN_FAMILIES or not widths:
        return None
    return max(widths, key=lambda each: each.width)


def _at(pool: Sequence[Miss], fit: Fit, distance: int) -> HalfWidth | None:
    """From the misses of series of that fit; where few families have any, from all misses if that is wider."""
    at = [miss for miss in pool if miss.distance == distance]
    of_fit = _quantile([miss for miss in at if miss.fit is fit])
    if of_fit is not None and of_fit.families_used >= MIN_OF_CLASS:
        return of_fit
    return max((half for half in (of_fit, _quantile(at)) if half), key=lambda half: half.width, default=None)


def _quantile(chosen: Sequence[Miss]) -> HalfWidth | None:
    by_family = grouped((miss.family, abs(miss.log_ratio)) for miss in chosen)
    if not by_family:
        return None
    weighted = sorted((size, 1 / len(sizes)) for sizes in by_family.values() for size in sizes)
    level = NOMINAL * (len(by_family) + 1)  # the family that is forecast is one more, beyond all of them
    total, width = 0.0, inf
    for size, weight in weighted:
        total, width = total + weight, size
        if total >= level - 1e-9:
            break
    return HalfWidth(width=width, families_used=len(by_family))
