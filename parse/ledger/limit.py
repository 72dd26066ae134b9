"""How late a rank would have to be to be named: in every step, and in one of ten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parse.ledger.arrivals import MATERIAL, Arrivals
from parse.ledger.meetings import Floats, Ints
from parse.ledger.pool import Pool
from parse.ledger.transient import standing_out
from parse.ledger.types import Floor, Lowering

SIGMAS_OF_POWER = 1.2816 * 2**0.5
"""Standard errors above a critical value at which nine of ten other measurements are beyond it: the limit is itself
measured, with the same error (normal distribution)."""
RANKS = 8
"""As many ranks are tried in the role of the late one, spread over all."""
LIMIT_SHUFFLED = 1_000_000
"""So many values are shuffled, or more where 1 in `chance` shuffles take them."""
MANY, OF_MANY = 5_000, 100
"""Of more values (ranks × pieces) so many shuffles show how the largest mean scatters; it bounds time and memory."""
FEW = 4096
"""So many permutations are all tried."""
HALVINGS = 30
MAX_TIMES = 100.0
"""More runs or steps than so many times as many are no advice."""


def detection_limit_ns(
    arrivals: Arrivals, *, least_ns: float, bound_ns: float, chance: float, shuffles: int
) -> float | None:
    """The delay in every step, in ns, from which a rank is named persistent in nine of ten measurements like this one.

    As in the test, the rank must be beyond what permuted names of ranks show with probability `chance`, beyond the
    clocks' bounds `bound_ns`, and typically late by `least_ns` and cost as much. None where no delay would be enough.
    """
    roles = np.array(arrivals.roles or (0,) * len(arrivals.ranks.typical))
    of_roles = [arrivals.ranks.typical[roles == role] for role in np.unique(roles)]
    needed = [_beyond_chance_ns(each, chance, shuffles) for each in of_roles if len(each) > 1 or len(of_roles) == 1]
    if not needed or None in needed:
        return None
    by_chance_ns = max(each for each in needed if each is not None)
    usual, runs = arrivals.usual, arrivals.piece_run
    late_ns = (
        max(by_chance_ns, least_ns, bound_ns) - float(usual.mean()) + SIGMAS_OF_POWER * _standard_error(usual, runs)
    )
    return max(late_ns, _costing_ns(arrivals, least_ns))


def lowering(arrivals: Arrivals, *, limit_ns: float, least_ns: float, bound_ns: float) -> Lowering:
    """How many times as many runs or steps would halve the limit of `detection_limit_ns`, which had these arguments.

    The scatter of what permuted names show and all standard errors fall with the square root of the number; the clocks'
    bounds, the least delay and the costs that make a straggler do not.
    """
    usual, typical = float(arrivals.usual.mean()), float(arrivals.ranks.typical.mean())
    error_ns = SIGMAS_OF_POWER * _standard_error(arrivals.usual, arrivals.piece_run)
    by_chance_ns = limit_ns + usual - error_ns  # or less, where the costs make the limit

    def limit(times: float) -> float:
        falls_by = float(times**0.5)
        chance_ns = typical + (by_chance_ns - typical) / falls_by
        late_ns = max(chance_ns, least_ns, bound_ns) - usual + error_ns / falls_by
        return float(max(late_ns, _costing_ns(arrivals, least_ns, times)))

    floor_ns = limit(float("inf"))
    by_clock = bound_ns > max(least_ns, typical) and bound_ns - usual >= floor_ns
    floor = Floor.CLOCK if by_clock else Floor.SHARE
    low, high = 1.0, MAX_TIMES
    if limit(high) > limit_ns / 2:
        return Lowering(times=None, least=floor_ns / 1e6, floor=floor)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if limit(middle) > limit_ns / 2 else (low, middle)
    return Lowering(times=high, least=floor_ns / 1e6, floor=floor)


def _costing_ns(arrivals: Arrivals, cost_ns: float, times: float = 1.0) -> float:
    """How late a rank must be to add `cost_ns` to a step on average, beyond what one of the others does, in nine of ten
    windows of `times` as many steps."""
    margin, others = arrivals.margin, max(1, len(arrivals.late_steps) - 1)

    def costs(delay: float) -> float:
        of_others = np.clip(-margin - delay, 0, arrivals.ranks.gap)  # where the rank is not last yet
        lost = np.maximum(margin + delay, 0) - of_others / others
        return float(lost.mean() - SIGMAS_OF_POWER * lost.std() / (times * len(lost)) ** 0.5)

    low, high = 0.0, cost_ns + float(-margin.min(initial=0)) + float(np.ptp(margin))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if costs(middle) < cost_ns else (low, middle)
    return high


def _beyond_chance_ns(typical: Floats, chance: float, shuffles: int) -> float | None:
    """The mean that a late rank needs to exceed those of permuted names: the median over ranks in that role."""
    ranks, pieces = typical.shape
    shuffles = max(round(1 / chance), min(shuffles, LIMIT_SHUFFLED // typical.size))
    random = np.random.default_rng(ranks * 1_000_003 + pieces)
    if typical.size > MANY:  # of so many ranks none is dealt several of the late one's pieces
        largest = [float(random.permuted(typical, axis=0).mean(axis=1).max()) for _ in range(OF_MANY)]
        return _exceeded_by(chance, largest)
    exchanges = all_exchanges(ranks, pieces)
    if exchanges is not None:
        order, allowed = np.stack([exchanges < 0, exchanges > 0], axis=1).astype(np.int64), int(chance * len(exchanges))
    else:
        order = random.permuted(np.broadcast_to(np.arange(ranks)[:, None], (shuffles, ranks, pieces)), axis=1)
        allowed = int(chance * (1 + shuffles)) - 1
    shuffled = np.take_along_axis(typical[None], order, axis=1).mean(axis=2)
    limits = []
    for late in {*np.linspace(0, ranks - 1, min(RANKS, ranks)).round().astype(int).tolist()}:
        takes = (order == late).mean(axis=2)
        limit = _exceeding(shuffled - float(typical[late].mean()) * takes, takes, allowed)
        if limit is not None:
            limits.append(limit)
    return float(np.median(limits)) if limits else None


def _exceeded_by(chance: float, maxima: Sequence[float]) -> float:
    """What maxima of many values, of which these are some, exceed with this probability.

    By Gumbel's distribution with their mean and standard deviation (Coles, An Introduction to Statistical Modeling of
    Extreme Values, 2001, 3.1). Means of several values reach it slowly: for these it is a few per cent too large.
    """
    scale = float(np.std(maxima, ddof=1)) * 6**0.5 / np.pi
    return float(np.mean(maxima)) - scale * (np.euler_gamma + float(np.log(-np.log1p(-chance))))


def all_exchanges(ranks: int, pieces: int) -> Ints | None:
    """Of two ranks all ways to permute their names in every piece, none changed first: [way, piece] 1 or, changed, -1;
    None where there are more ranks, or more ways than FEW."""
    if ranks != 2 or pieces > FEW.bit_length() - 1:
        return None
    return 1 - 2 * (np.arange(2**pieces)[:, None] >> np.arange(pieces) & 1)


def _exceeding(shuffled: Floats, takes: Floats, allowed: int) -> float | None:
    """The delay in ns that exceeds the largest mean of all but `allowed` of the shuffles [shuffle, rank], of which each
    rank `takes` a share of the delay with it; None if none does."""

    def is_beyond(delay: float) -> bool:
        return int(((shuffled + delay * takes).max(axis=1) >= delay).sum()) <= allowed

    low, high = 0.0, max(float(shuffled.max()), 1.0)
    for _ in range(HALVINGS):
        if is_beyond(high):
            break
        low, high = high, 2 * high
    else:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high


def _standard_error(values: Floats, runs: Ints) -> float:
    """That of the mean over pieces [piece]; where there are three runs the larger one, of pieces or of runs."""
    errors = [float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0]
    means = [float(values[runs == run].mean()) for run in np.unique(runs)]
    if len(means) > 2:
        errors.append(float(np.std(means, ddof=1)) / len(means) ** 0.5)
    return max(errors)


SELDOM_IN = 0.1
"""The share of steps for which the limit of delays in some of them is given."""
TRIALS, NAMED = 10, 9
"""So many of the trials name the rank that is delayed in them."""
DOUBLINGS, PRECISION = 8, 1.2


def seldom_limit_ns(pool: Pool) -> float | None:
    """The delay in SELDOM_IN of the steps, in ns, from which a rank is named in NAMED of TRIALS, found by trying: ranks
    spread over all are delayed in steps drawn by chance. None where no delay would be enough."""
    ranks, steps = len(pool.nodes), len(pool.arrivals.steps)
    random = np.random.default_rng(steps * 1_000_003 + ranks)
    late = np.linspace(0, ranks - 1, TRIALS).round().astype(int).tolist()
    its = [random.permuted(np.arange(steps) < round(SELDOM_IN * steps)) for _ in late]

    def is_named(delay: float) -> bool:
        missed = 0
        for rank, in_steps in zip(late, its, strict=True):
            named = standing_out(pool.with_delay(rank, np.where(in_steps, delay, 0)))
            missed += named is None or rank not in named.suspect.ranks
            if missed > TRIALS - NAMED:
                return False
        return True

    low = high = MATERIAL * pool.step_ns / SELDOM_IN
    for _ in range(DOUBLINGS):
        if is_named(high):
            break
        low, high = high, 2 * high
    else:
        return None
    while high > PRECISION * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_named(middle) else (middle, high)
    return high
