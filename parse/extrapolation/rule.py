"""The rule that extrapolates time per sample and device, and how far it missed on public series.

intervals.json is made by `python -m benchmarks.forecast_intervals`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import combinations
from math import ceil, log2, sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parse.extrapolation.series import ScalingKind, ScalingSeries

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
