"""Rules that extrapolate time per sample and device: that of the forecasts, and its rivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from parse.extrapolation.series import ScalingKind

Floats = npt.NDArray[np.float64]
SizeRule = Callable[[Floats, Floats, Floats, float, float], float]
"""From devices, batches per device and times [point] to the time at so many devices and that batch per device."""
SAME = 1e-9


def terms(devices: Floats, batches: Floats) -> tuple[str, ...]:
    """The unknowns that the points can tell apart: w, the work; f/b, what a step costs whatever its batch b; c·log₂ n,
    what every doubling of the devices costs.

    One batch: w and c, a line in log₂ n. Several: w and f of two sizes, all three of more.
    """
    if np.ptp(batches) <= SAME * batches.max():
        return ("w", "c")
    return ("w", "f") if len(np.unique(devices)) < 3 else ("w", "f", "c")


def unknowns(devices: Floats, batches: Floats) -> int:
    """How many unknowns the rule has at all; `terms` are those that the points decide."""
    return 2 if np.ptp(batches) <= SAME * batches.max() else 3


def _columns(names: Sequence[str], devices: Floats, batches: Floats) -> Floats:
    column = {"w": np.ones_like(devices), "f": 1 / batches, "c": np.log2(devices), "n": devices - 1,
              "n²": devices * (devices - 1)}  # fmt: skip
    return np.stack([column[name] for name in names], axis=1)


def fitted(names: Sequence[str], devices: Floats, batches: Floats, times: Floats) -> Floats:
    """The least squares of the terms, none of them negative."""
    return nonnegative(_columns(names, devices, batches), times)


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


def _by_terms(names: Sequence[str]) -> SizeRule:
    def rule(devices: Floats, batches: Floats, times: Floats, at: float, batch: float) -> float:
        solution = fitted(names, devices, batches, times)
        return float((_columns(names, np.array([float(at)]), np.array([batch])) @ solution)[0])

    return rule


def work_overhead_doublings(devices: Floats, batches: Floats, times: Floats, at: float, batch: float) -> float:
    """w + f/b + c·log₂ n of non-negative terms, as far as the points tell them apart: the rule of the forecasts."""
    return _by_terms(terms(devices, batches))(devices, batches, times, at, batch)


def hold(devices: Floats, batches: Floats, times: Floats, at: float, batch: float) -> float:
    """The time of the largest size: its efficiency stays."""
    return float(times[-1])


line = _by_terms(("w", "c"))
"""a + b·log₂ n, b ≥ 0."""


def last_slope(devices: Floats, batches: Floats, times: Floats, at: float, batch: float) -> float:
    """As much per doubling as between the two largest sizes, and not less than nothing."""
    logs = np.log2(devices)
    slope = max(0.0, (times[-1] - times[-2]) / (logs[-1] - logs[-2]))
    return float(times[-1] + slope * (np.log2(at) - logs[-1]))


def mean_with_last_slope(devices: Floats, batches: Floats, times: Floats, at: float, batch: float) -> float:
    """The mean of the line and the last slope."""
    given = (devices, batches, times, at, batch)
    return (line(*given) + last_slope(*given)) / 2


def ring_over_nodes(devices: Floats, batches: Floats, times: Floats, at: float, batch: float) -> float:
    """w + c·(1 − 1/nodes), c ≥ 0, from one node and several: what a ring over the nodes moves over each link."""
    shares = 1 - devices[0] / np.array([*devices, at])
    slope = max(0.0, float(times[-1] - times[0]) / float(shares[-2]))
    return float(times[-1] + slope * (shares[-1] - shares[-2]))


OUR_RULE = "forecast"
OUR_RULES: Mapping[ScalingKind, SizeRule] = {
    ScalingKind.WEAK: work_overhead_doublings,
    ScalingKind.INSIDE: work_overhead_doublings,
    ScalingKind.STRONG: work_overhead_doublings,
    ScalingKind.CROSSING: ring_over_nodes,
}
"""The rule of the forecasts of each group."""
RIVALS: Mapping[str, SizeRule] = {
    "hold": hold,
    "line in log₂ n": line,
    "mean with last slope": mean_with_last_slope,
    "Amdahl": _by_terms(("w", "n")),
    "USL": _by_terms(("w", "n", "n²")),
}
"""Other rules, by name."""
