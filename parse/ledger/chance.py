"""What chance makes of equal ranks: peers exchange their names within pieces of the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from parse.ledger.cells import CellWindow, Floats
from parse.stats import binomial_tail

SHUFFLES, LEAST_SHUFFLES, SHUFFLED = 400, 24, 200_000
"""Shuffles tried; fewer where more values would be shuffled. Gumbel's law of maxima continues them."""
MOST_WAYS = 4096
"""So many ways in which two ranks can exchange their names are all tried."""
SIZES = 2
"""Events are counted from so many sizes on: half of the largest, and half of that. Small ones of others hide no large
ones, and each size more makes any of them likelier by chance."""


Statistic = Callable[[Floats], Floats]
"""A figure of pieces [..., piece, rank]."""


def chance_of(window: CellWindow, pieces: Floats, statistic: Statistic, allowed: float) -> float | None:
    """The probability of a statistic as large as that of these pieces [piece, rank], by the shuffles, continued by
    Gumbel's law through them where they are not all that there are (Coles, An Introduction to Statistical Modeling of
    Extreme Values, 2001, 3.1). None where it is more than `allowed`: as soon as so many shuffles show it."""
    value, values, as_large = float(statistic(pieces)), list[Floats](), 0
    total, batches = _batches(window, pieces)
    for batch in batches:
        values.append(statistic(batch))
        as_large += int(np.count_nonzero(values[-1] >= value * (1 - 1e-12)))
        if as_large > allowed * total:
            return None
    scale, mode = _gumbel(np.concatenate(values))
    chance = max(as_large / total, float(-np.expm1(-np.exp(-min((value - mode) / scale, 700.0)))))
    return chance if chance <= allowed else None


def exceeded_by_chance(window: CellWindow, pieces: Floats, statistic: Statistic) -> float:
    """What the statistic of pieces [piece, rank] exceeds with the window's `max_chance`, as `chance_of` has it."""
    values = np.concatenate([statistic(batch) for batch in _batches(window, pieces)[1]])
    scale, mode = _gumbel(values)
    largest = float(np.sort(values)[max(0, int((1 - window.max_chance) * len(values)) - 1)])
    return max(mode - scale * float(np.log(-np.log1p(-window.max_chance))), largest)


def _batches(window: CellWindow, pieces: Floats) -> tuple[int, Iterator[Floats]]:
    """How many shuffles there are, and these: pieces [shuffle, piece, rank] in which peers have exchanged their names,
    piece by piece; of two ranks in all ways, if they are few."""
    count, ranks = pieces.shape
    if ranks == 2 and 2**count <= MOST_WAYS:
        ways = np.arange(2**count)[:, None] >> np.arange(count) & 1
        return len(ways), iter([np.take_along_axis(pieces[None], np.stack([ways, 1 - ways], axis=2), axis=2)])
    at_once = max(1, SHUFFLED // pieces.size)
    batches = -(-max(LEAST_SHUFFLES, min(SHUFFLES, at_once)) // at_once)
    random = np.random.default_rng(ranks * 1_000_003 + count)
    roles = window.roles[window.compared]
    of_roles = [np.flatnonzero(roles == role) for role in np.unique(roles)]

    def shuffled() -> Floats:
        copies = np.broadcast_to(pieces, (at_once, count, ranks)).copy()
        if len(of_roles) == 1:
            return random.permuted(copies, axis=2, out=copies)
        for its in of_roles:
            copies[:, :, its] = random.permuted(copies[:, :, its], axis=2)
        return copies

    return at_once * batches, (shuffled() for _ in range(batches))


def _gumbel(values: Floats) -> tuple[float, float]:
    """The scale and the mode of the law with the same mean and standard deviation."""
    scale = max(float(values.std()) * 6**0.5 / np.pi, 1e-12)
    return scale, float(values.mean()) - scale * float(np.euler_gamma)


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
        * binomial_tail(
            int(np.count_nonzero(worst > size / 2)), int(np.count_nonzero(who[worst > size / 2] == column)), 1 / ranks
        )
        for size in sizes.tolist()
    ]
    least = int(pieces.sum(axis=0).argmin())
    wins, losses = (
        int(np.count_nonzero(its))
        for its in (pieces[:, column] > pieces[:, least], pieces[:, column] < pieces[:, least])
    )
    return float(min(1.0, *chances, ranks * (ranks - 1) * binomial_tail(wins + losses, wins, 0.5)))
