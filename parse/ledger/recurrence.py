"""Delays that recur: the period under which the worst steps of a rank fall into one phase, if not by chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, lgamma

import numpy as np
import numpy.typing as npt

from parse.ledger.arrivals import Floats, Ints

MIN_EVENTS = 4
MIN_PERIOD, MAX_PERIOD = 2, 200
OFTEN = 3
"""A period comes round so often in a run at least."""
TIMES = (1, 2)
"""As many of the worst steps are looked at as a phase has steps, and twice as many: some are of other origin."""
REGULAR = 0.5
"""A rank is late in more than this share of the steps of its phase."""
AS_LATE = 0.5
"""In these it is late by this part of what it mostly is in the worst of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recurrence:
    """One in `period` steps, where step mod period is `phase`: in `its` [step] it comes last. `chance` is the
    probability of so many of the worst steps in any one phase, over all periods tried, if steps had no order."""

    period: int
    phase: int
    its: npt.NDArray[np.bool_]
    chance: float


def recurrence(
    late_ns: Ints | Floats, steps: Ints, period: int | None = None, regular: float = REGULAR
) -> Recurrence | None:
    """The likeliest period of a delay; `late_ns` [step] is 0 where it is none, `steps` are the numbers of the steps,
    from 0 in each run. With `period` that one alone is tried. None where it is late in `regular` of a phase or less.

    The worst steps are m of all N; in a phase of n steps h or more of them lie with the probability of the
    hypergeometric distribution.
    """
    worst = np.argsort(-late_ns, kind="stable")[: int(np.count_nonzero(late_ns > 0))]
    span = int(steps.max() - steps.min()) + 1
    periods = range(MIN_PERIOD, min(MAX_PERIOD, span // OFTEN) + 1) if period is None else (period,)
    tests = sum(periods) * len(TIMES)
    best = min(_phases(worst, steps, periods), default=None)
    if best is None:
        return None
    log_chance, its_period, phase, hits = best
    in_phase = steps % its_period == phase
    usual_ns = float(np.median(np.sort(late_ns[in_phase])[-hits:]))
    its = in_phase & (late_ns > AS_LATE * usual_ns)
    if its.sum() <= regular * in_phase.sum():
        return None
    return Recurrence(period=its_period, phase=phase, its=its, chance=min(1.0, exp(log_chance) * tests))


def _phases(worst: Ints, steps: Ints, periods: range | tuple[int]) -> Iterator[tuple[float, int, int, int]]:
    """For each period the logarithm of the probability, the period, the phase with most of the worst steps, the number
    of these."""
    for period in periods:
        lengths = np.bincount(steps % period, minlength=period)
        for times in TIMES:
            tried = worst[: times * int(lengths.max())]
            hits = np.bincount(steps[tried] % period, minlength=period)
            phase = int(hits.argmax())
            if hits[phase] >= MIN_EVENTS:
                yield (
                    _log_tail(len(steps), len(tried), int(lengths[phase]), int(hits[phase])),
                    period,
                    phase,
                    int(hits[phase]),
                )


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
