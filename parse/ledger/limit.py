"""How late a rank would have to be to be named: in every step, and in one of ten. Found by trying: delays are put into
these very steps, whose ranks have exchanged their names, and it is asked whether the search names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from parse.ledger.who import MATERIAL, Bools, Ints, Named, Search, Window, lasting, passing

DRAWS, NAMED = 10, 9
"""A limit is the delay that is named in NAMED of DRAWS."""
SELDOM_IN = 0.1
"""The share of steps for which the limit of delays in some of them is given."""
DOUBLINGS, PRECISION = 10, 1.1


@dataclass(frozen=True)
class Limits:
    """Delays in ns that would have been named: in every step, and in SELDOM_IN of them; None where none would."""

    always: float | None
    seldom: float | None


def detection_limits(window: Window, bound_ns: float) -> Limits:
    """Those of a window in which nobody is named; no delay within the clocks' `bound_ns` is."""
    steps, ranks = len(window.late), len(window.compared)
    random = np.random.default_rng(steps * 1_000_003 + ranks)
    draws = [_shuffled(window, random) for _ in range(DRAWS)]
    columns = [int(each) for each in window.compared[np.linspace(0, ranks - 1, DRAWS).round().astype(int)]]
    every = [np.ones(steps, np.bool_)] * DRAWS
    some = [random.permuted(np.arange(steps) < round(SELDOM_IN * steps)) for _ in range(DRAWS)]

    def limit(ask: Callable[[Search], Named | None], its: list[Bools], least_ns: float) -> float | None:
        def is_named(delay_ns: float) -> bool:
            missed = 0
            for late, rank, at in zip(draws, columns, its, strict=True):
                delayed = late.copy()
                delayed[at, rank] += round(delay_ns)
                named = ask(Search(replace(window, late=delayed)))
                missed += named is None or rank not in named.ranks
                if missed > DRAWS - NAMED:
                    return False
            return True

        return _least(is_named, least_ns)

    always = limit(lasting, every, max(MATERIAL * window.step_ns, bound_ns))
    seldom = limit(passing, some, max(MATERIAL * window.step_ns / SELDOM_IN, bound_ns))
    return Limits(always=always, seldom=seldom)


def _shuffled(window: Window, random: np.random.Generator) -> Ints:
    """The cells with the names of peers exchanged, piece by piece."""
    late = window.late.copy()
    for piece in window.pieces():
        for role in np.unique(window.roles[window.compared]).tolist():
            its = np.flatnonzero(window.roles == role)
            late[piece, its] = late[piece][:, random.permutation(its)]
    return late


def _least(is_named: Callable[[float], bool], low: float) -> float | None:
    """The least delay from `low` on that is named, to PRECISION; None where none is."""
    high = low
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
