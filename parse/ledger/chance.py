"""What chance makes of equal ranks: peers exchange their names within pieces of the window."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, lgamma, log, log1p

import numpy as np

from parse.ledger.cells import CellWindow, Floats

SHUFFLES, LEAST_SHUFFLES, SHUFFLED = 400, 24, 200_000
"""Shuffles tried; fewer where more values would be shuffled. Gumbel's law of maxima continues them."""
MOST_WAYS = 4096
"""So many ways in which two ranks can exchange their names are all tried."""
SIZES = 2
"""Events are counted from so many sizes on: half of the largest, and half of that. Small ones of others hide no large
ones, and each size more makes any of them likelier by chance."""


def shuffled(window: CellWindow, pieces: Floats, statistic: Callable[[Floats], Floats]) -> Floats:
    """The statistic of pieces [piece, rank] in which peers have exchanged their names, piece by piece [shuffle]; of two
    ranks in all ways, if they are few."""
    count, ranks = pieces.shape
    if ranks == 2 and 2**count <= MOST_WAYS:
        ways = np.arange(2**count)[:, None] >> np.arange(count) & 1
        return statistic(np.take_along_axis(pieces[None], np.stack([ways, 1 - ways], axis=2), axis=2))
    shuffles = max(LEAST_SHUFFLES, min(SHUFFLES, SHUFFLED // pieces.size))
    random = np.random.default_rng(ranks * 1_000_003 + count)
    roles = window.roles[window.compared]
    of_roles = [np.flatnonzero(roles == role) for role in np.unique(roles)]
    values = []
    for _ in range(0, shuffles, batch := max(1, SHUFFLED // pieces.size)):
        copies = np.broadcast_to(pieces, (batch, count, ranks)).copy()
        for its in of_roles:
            copies[:, :, its] = random.permuted(copies[:, :, its], axis=2)
        values.append(statistic(copies))
    return np.concatenate(values)


def chance_of_maximum(value: float, shuffled: Floats) -> float:
    """The probability of a maximum as large, by the shuffles, continued by Gumbel's law through them where they are not
    all that there are (Coles, An Introduction to Statistical Modeling of Extreme Values, 2001, 3.1)."""
    as_large = float((shuffled >= value * (1 - 1e-12)).mean())
    scale, mode = _gumbel(shuffled)
    return max(as_large, float(-np.expm1(-np.exp(-min((value - mode) / scale, 700.0)))))


def exceeded_with(chance: float, shuffled: Floats) -> float:
    """What a maximum exceeds with this probability, as `chance_of_maximum` has it."""
    scale, mode = _gumbel(shuffled)
    largest = float(np.sort(shuffled)[max(0, int((1 - chance) * len(shuffled)) - 1)])
    return max(mode - scale * float(np.log(-np.log1p(-chance))), largest)


def _gumbel(shuffled: Floats) -> tuple[float, float]:
    """The scale and the mode of the law with the same mean and standard deviation."""
    scale = max(float(shuffled.std()) * 6**0.5 / np.pi, 1e-12)
    return scale, float(shuffled.mean()) - scale * float(np.euler_gamma)


def chance_of_events(pieces: Floats, column: int) -> float:
    """How often one of the ranks is the latest in as many of the pieces [piece, rank] in which somebody is late, at the
    best of several sizes, each half as large as the next; or later than the least late rank, piece by piece, which all
    ranks that are late in turn do not hide."""
    ranks = pieces.shape[1]
    worst, who = pieces.max(axis=1), pieces.argmax(axis=1)
    sizes = worst.max() / 2.0 ** np.arange(SIZES)
    chances = [
        len(sizes)
        * ranks
        * _tail(
            int(np.count_nonzero(worst > size / 2)), int(np.count_nonzero(who[worst > size / 2] == column)), 1 / ranks
        )
        for size in sizes.tolist()
    ]
    least = int(pieces.sum(axis=0).argmin())
    wins, losses = (
        int(np.count_nonzero(its))
        for its in (pieces[:, column] > pieces[:, least], pieces[:, column] < pieces[:, least])
    )
    return float(min(1.0, *chances, ranks * (ranks - 1) * _tail(wins + losses, wins, 0.5)))


def _tail(trials: int, hits: int, chance: float) -> float:
    """The probability of so many hits or more (binomial law)."""
    ways: float = lgamma(trials + 1)
    total = 0.0
    for each in range(hits, trials + 1):
        log_ways = ways - lgamma(each + 1) - lgamma(trials - each + 1)
        total += exp(log_ways + each * log(chance) + (trials - each) * log1p(-chance))
    return min(1.0, total) if hits else 1.0
