"""Intervals of a ratio by other methods than parse.comparison.types, where both sides do not scatter alike:
`python -m tests.truth.interval_methods`.

An interval is a test turned round, so it covers the true ratio where the test does not reject it: that is counted.
Mann and Whitney (1947), as in the product; Brunner and Munzel (2000), by all orders of the runs (Neubert and Brunner
2007) or by Student's distribution; Welch (1947) on log speeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from parse import stats
from parse.comparison.types import CONFIDENCE, rank_and_coverage

Floats = npt.NDArray[np.float64]
MAX_ORDERS = 20_000
"""With more orders of the runs the distribution of Brunner and Munzel's statistic is taken as Student's."""


def normal(generator: np.random.Generator, *shape: int) -> Floats:
    """Log speeds [point, run], median 0."""
    return generator.standard_normal(shape)


def skewed(generator: np.random.Generator, *shape: int) -> Floats:
    """Most runs near the best, few far below; median 0."""
    return 1 - np.exp(0.7 * generator.standard_normal(shape))


def two_modes(generator: np.random.Generator, *shape: int) -> Floats:
    """Three runs in ten far below; median 0."""
    median = -0.3 * 0.5660  # of the upper mode, that its quantile 2/7 is: half of all runs lie above
    return 0.3 * generator.standard_normal(shape) - 3 * (generator.random(shape) < 0.3) - median


KINDS: dict[str, Callable[..., Floats]] = {"normal": normal, "skewed": skewed, "two modes": two_modes}


def mann_whitney(base: Floats, new: Floats) -> npt.NDArray[np.bool_]:
    """Whether a ratio of 1 is in the interval, [point], of sides [point, run]."""
    k, _ = rank_and_coverage(base.shape[1], new.shape[1])
    below = (base[:, None, :] < new[:, :, None]).sum((1, 2))
    return (below >= k) & (below <= base.shape[1] * new.shape[1] - k)


def brunner_munzel(base: Floats, new: Floats) -> npt.NDArray[np.bool_]:
    """As mann_whitney."""
    n, m = base.shape[1], new.shape[1]
    statistic, freedom = _brunner_munzel(base, new)
    limit = _limit(n, m) if comb(n + m, n) <= MAX_ORDERS else _student(freedom)
    return np.abs(statistic) <= limit + 1e-9


def _brunner_munzel(base: Floats, new: Floats) -> tuple[Floats, Floats]:
    n, m = base.shape[1], new.shape[1]
    below = (new[:, None, :] < base[:, :, None]).sum(2) / m
    above = (base[:, None, :] < new[:, :, None]).sum(2) / n
    parts = below.var(1, ddof=1) / n, above.var(1, ddof=1) / m
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = (above.mean(1) - 0.5) / np.sqrt(parts[0] + parts[1])
        return statistic, _freedom(parts, n, m)


def welch(base: Floats, new: Floats) -> npt.NDArray[np.bool_]:
    """As mann_whitney; of the ratio of geometric means."""
    n, m = base.shape[1], new.shape[1]
    parts = base.var(1, ddof=1) / n, new.var(1, ddof=1) / m
    statistic = (new.mean(1) - base.mean(1)) / np.sqrt(parts[0] + parts[1])
    return np.abs(statistic) <= _student(_freedom(parts, n, m))


def _freedom(parts: tuple[Floats, Floats], n: int, m: int) -> Floats:
    """Degrees of freedom by Welch and Satterthwaite; 1 where nothing scatters."""
    freedom = (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
    return np.nan_to_num(freedom, nan=1.0)


def _student(freedom: Floats) -> Floats:
    """Quantiles between whole degrees of freedom, by interpolation."""
    whole = np.arange(1, int(freedom.max()) + 2)
    return np.interp(freedom, whole, [stats.student(CONFIDENCE, int(each)) for each in whole])


@cache
def _limit(n: int, m: int) -> float:
    """The least limit that the statistic stays within for 95 % of all orders of n and m runs."""
    orders = np.array(list(combinations(range(n + m), n)), np.float64)
    others = np.array([sorted({*range(n + m)} - {*map(int, order)}) for order in orders], np.float64)
    sizes = np.sort(np.abs(_brunner_munzel(orders, others)[0]))
    return float(sizes[int(np.ceil(CONFIDENCE * len(sizes))) - 1])


METHODS: dict[str, Callable[[Floats, Floats], npt.NDArray[np.bool_]]] = {
    "Mann-Whitney": mann_whitney, "Brunner-Munzel": brunner_munzel, "Welch": welch,
}  # fmt: skip


def coverage(method: str, kind: str, runs: tuple[int, int], scatter: float, points: int) -> float:
    """The share of points whose interval has the true ratio of medians; the new side scatters that many times more."""
    generator = np.random.default_rng(7)
    base, new = (KINDS[kind](generator, points, count) for count in runs)
    return float(METHODS[method](base, scatter * new).mean())


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the coverage in percent of each method."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth.interval_methods")
    parser.add_argument("--points", type=int, default=10_000)
    points = parser.parse_args(argv).points
    for kind in KINDS:
        for runs in ((5, 5), (6, 6), (7, 7), (8, 8), (12, 12), (12, 5)):
            for scatter in (1, 3, 5):
                shares = [f"{method} {100 * coverage(method, kind, runs, scatter, points):.1f}" for method in METHODS]
                print(f"{kind}, {runs[0]} and {runs[1]} runs, scatter 1 and {scatter}: {', '.join(shares)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
