"""Simulated ranks of which none is slower than another: the durations of their steps, and what makes a trace of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tools.simulation.cluster import (
    ENTRY_SKEW_NS,
    MS,
    ORIGIN_NS,
    SYNCHRONISATION_NS,
    Durations,
    Float64,
    Int64,
    Simulated,
    _recorded,
    _segments,
    draw_clocks,
    simulate,
)
from tools.simulation.cluster import NodeClock as Clock

__all__ = [
    "ENTRY_SKEW_NS", "JITTERS", "MS", "ORIGIN_NS", "SYNCHRONISATION_NS", "Clock", "Durations", "Int64", "Simulated",
    "_recorded", "_segments", "draw_clocks", "equal_ranks", "simulate",
]  # fmt: skip
JITTERS = ("normal", "exponential", "lognormal")


def equal_ranks(
    generator: np.random.Generator,
    ranks: int,
    steps: int,
    *,
    jitter: str = "normal",
    spread: float = 0.03,
    common: float = 0.05,
    memory: float = 0.0,
) -> Durations:
    """Ranks of which none is slower than another: each draws its durations from the same law.

    `spread` is the standard deviation of a phase as a share of it; `common` that of a factor that all ranks share in a
    step; `memory` the correlation of a rank's deviation with its last one.
    """
    together = np.exp(generator.normal(0, common, steps))

    def phase(typical_ns: int) -> Int64:
        deviation = spread * _deviations(generator, (ranks, steps), jitter, memory)
        return np.maximum(np.rint(typical_ns * together * (1 + deviation)), 1000).astype(np.int64)

    return Durations(
        data=phase(1 * MS), forward=phase(3 * MS), backward=phase(6 * MS), optimizer=phase(1 * MS),
        leave=generator.integers(0, 5_000, (ranks, steps)),
        communication=np.rint(2 * MS * together).astype(np.int64),
    )  # fmt: skip


def _deviations(
    generator: np.random.Generator, shape: tuple[int, int], jitter: str, memory: float
) -> npt.NDArray[np.float64]:
    """Of mean 0 and standard deviation 1, correlated along the steps."""
    if jitter == "normal":
        return _normal(generator, shape, memory)
    if jitter == "lognormal":
        values = np.exp(_normal(generator, shape, memory))
        values -= np.exp(0.5)
        values /= np.sqrt((np.e - 1) * np.e)
        return values
    if jitter == "exponential":  # half the sum of two squares of normal numbers is one
        first, second = _normal(generator, shape, memory), _normal(generator, shape, memory)
        return (first**2 + second**2) / 2 - 1
    raise ValueError(f"jitter {jitter!r} is not one of {', '.join(JITTERS)}")


def _normal(generator: np.random.Generator, shape: tuple[int, int], memory: float) -> Float64:
    values = generator.standard_normal(shape)
    if memory:
        fresh = np.sqrt(1 - memory**2)
        for before, after in pairwise(range(shape[1])):
            values[:, after] = memory * values[:, before] + fresh * values[:, after]
    return values
