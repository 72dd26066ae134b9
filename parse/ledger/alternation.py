"""Whether ranks alternate in taking long: the longest work of each step, against work that is dealt out by chance."""

from __future__ import annotations

from math import ceil, expm1

import numpy as np

from parse.ledger.meetings import Floats, Ints

NEVER = 41.0
"""Probabilities below e to the minus this are left out: less than a double resolves beside 1."""
POOL = 1_000_000
"""The maximum of (ranks × steps) that are shuffled together; it bounds the memory."""


class Alternation:
    """Whether ranks alternate in taking long, so that each step has exactly one that does.

    Compares the longest work of each step with that of work dealt out to ranks and steps by chance. The longest
    1 / (2 · ranks) of all work counts as long as the rest's maximum: half of the work of ranks that alternate is in it,
    and a few far longer delays, which anybody has, would hide the rest.
    """

    def __init__(self) -> None:
        self.pool: list[Ints] = []
        self.sums = np.zeros(3)  # over all pools: the longest work of the steps, its expectation, its variance

    def add(self, work: Ints) -> None:
        """Adds a piece [rank, step]."""
        if self.pool and sum(work_of_pool.size for work_of_pool in self.pool) + work.size > POOL:
            self._shuffle()
        self.pool.append(work)

    def _shuffle(self) -> None:
        ranks = len(self.pool[0])
        longest = np.concatenate([work.max(axis=0) for work in self.pool])
        work = np.concatenate([work.ravel() for work in self.pool])
        self.pool = []
        order_largest(work, ranks)
        maximum = work[-1 - work.size // (2 * ranks)]
        longest = np.minimum(longest, maximum)
        expected, variance = longest_of(np.minimum(work, maximum, out=work), ranks)
        steps = len(longest)
        self.sums += (float((longest - int(work[0])).sum()), steps * expected, steps * variance)

    def finish(self) -> Floats:
        """The longest work of the steps added up, its expectation by chance, and the variance of that."""
        if self.pool:
            self._shuffle()
        return self.sums


def order_largest(pool: Ints, ranks: int) -> None:
    """Brings the least to the begin, and those to the end, in order, that `longest_of` looks at."""
    looked_at = _looked_at(len(pool), ranks)
    pool.partition((0, len(pool) - looked_at))
    pool[-looked_at:].sort()


def _looked_at(n: int, ranks: int) -> int:
    return min(n - ranks + 1, ceil(n * -expm1(-NEVER / ranks)) + 1)  # below these F is less than e^-NEVER


def longest_of(pool: Ints, ranks: int) -> tuple[float, float]:
    """Mean and variance of the largest of `ranks` values drawn without replacement from a pool, less its least; after
    `order_largest`.

    It is among the j smallest of n with probability F(j) = C(j, ranks) / C(n, ranks); F(j−1) = F(j) · (j−ranks) / j.
    """
    n = len(pool)
    tried = _looked_at(n, ranks)
    j = np.arange(n, n - tried + 1, -1)
    among = np.exp(np.concatenate([[0.0], np.cumsum(np.log1p(-ranks / j))]))
    chance = -np.diff(among, append=0.0)
    values = (pool[n - tried :][::-1] - pool[0]).astype(np.float64)
    mean = float((chance * values).sum())  # `@` would start threads
    return mean, float((chance * (values - mean) ** 2).sum())
