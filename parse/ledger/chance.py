"""What chance makes of equal ranks: peers exchange their names within pieces of the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import comb, exp, lgamma

import numpy as np

from hpc.model.trace import Bools, Floats, Ints
from parse.ledger.cells import CellWindow
from parse.rules import EVENTS, FEW, HALF
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


def chance_of_change(window: CellWindow, gaps: Floats, least: int) -> float:
    """How often ranks are late from a piece on, or until one, in `least` pieces or more, if pieces had no order and
    peers exchange their names: by their `gaps` to the others [piece], each of which is twice as large there as any
    elsewhere; 1: they are not."""
    pieces, ranks, chance = len(gaps), len(window.compared), 1.0
    peers = int(np.bincount(window.roles)[window.roles[window.compared]].min())
    for course in (gaps, gaps[::-1]):
        for count in range(least, pieces):
            rest, late = np.split(course, [pieces - count])
            if HALF * late.min() > np.abs(rest).max():
                ways = 2 * (pieces - 1)  # two ends, and as many counts
                chance = min(chance, ranks * float(peers) ** -count * ways / comb(pieces, count))
    return chance


# Delays that come round every so many steps: the period under which the worst steps of a rank fall into one phase.

MIN_PERIOD, MAX_PERIOD = 2, 200
TIMES = (1, 2)
"""As many of the worst steps are looked at as a phase has steps, and twice as many: some are of other origin."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recurrence:
    """One in `period` steps, where step mod period is `phase`: in `its` [step] it is late. `chance` is the probability
    of so many of the worst steps in any one phase of any period, if steps had no order."""

    period: int
    phase: int
    its: Bools
    chance: float


def recurrence(late_ns: Ints | Floats, steps: Ints) -> Recurrence | None:
    """The likeliest period of a delay; `late_ns` [step] is 0 where it is none, `steps` are the numbers of the steps,
    from 0 in each run. None where it is late in HALF of a phase or less.

    The worst steps are m of all N; in a phase of n steps h or more of them lie with the probability of the
    hypergeometric distribution.
    """
    worst = np.argsort(-late_ns, kind="stable")[: int(np.count_nonzero(late_ns > 0))]
    periods = range(MIN_PERIOD, min(MAX_PERIOD, (int(np.ptp(steps)) + 1) // FEW) + 1)
    best = min(_phases(worst, steps, periods), default=None)
    if best is None:
        return None
    log_chance, period, phase, hits = best
    in_phase = steps % period == phase
    usual_ns = float(np.median(np.sort(late_ns[in_phase])[-hits:]))
    its = in_phase & (late_ns > HALF * usual_ns)
    if its.sum() <= HALF * in_phase.sum():
        return None
    chance = min(1.0, exp(log_chance) * sum(periods) * len(TIMES))
    return Recurrence(period=period, phase=phase, its=its, chance=chance)


def _phases(worst: Ints, steps: Ints, periods: range) -> Iterator[tuple[float, int, int, int]]:
    """For each period the logarithm of the probability, the period, the phase with most of the worst steps, the number
    of these."""
    for period in periods:
        lengths = np.bincount(steps % period, minlength=period)
        for times in TIMES:
            tried = worst[: times * int(lengths.max())]
            hits = np.bincount(steps[tried] % period, minlength=period)
            phase = int(hits.argmax())
            if hits[phase] >= EVENTS:
                chance = _log_tail(len(steps), len(tried), int(lengths[phase]), int(hits[phase]))
                yield chance, period, phase, int(hits[phase])


def _log_tail(total: int, marked: int, drawn: int, hits: int) -> float:
    """The logarithm of the probability that of so many drawn out of a total `hits` or more are marked."""

    def log_ways(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    logs = [
        log_ways(marked, k) + log_ways(total - marked, drawn - k) - log_ways(total, drawn)
        for k in range(hits, min(marked, drawn) + 1)
        if drawn - k <= total - marked
    ]
    largest = max(logs, default=0.0)
    return min(0.0, largest + float(np.log(sum(exp(each - largest) for each in logs)))) if logs else 0.0
