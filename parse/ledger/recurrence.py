"""Delays that come round every so many steps: the period under which the worst steps of a rank fall into one phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, lgamma

import numpy as np

from parse.ledger.cells import Bools, Floats, Ints
from parse.rules import EVENTS, FEW, HALF

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
