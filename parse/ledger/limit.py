"""How late a rank would have to be to be named: in every step, and in one of ten. Found by trying: a delay is put into
these very steps, whose ranks have exchanged their names, and it is asked whether the search would name it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpc.model.trace import Floats, Ints
from parse.ledger.cells import CellWindow
from parse.ledger.chance import chance_of_events, exceeded_by_chance
from parse.ledger.who import (
    beyond_usual,
    event_pieces,
    gap_score,
    limit_ns_of,
    total_beyond_least,
    typical_ns,
    widest_gap,
)
from parse.rules import MATERIAL, NOTABLE

DRAWS, FEW_DRAWS, MANY = 16, 3, 200_000
"""A limit is the delay that is named in all of so many draws: in nine of ten other measurements. Few of more than MANY
cells: of so many ranks one is like the other."""
DOUBLINGS, PRECISION = 12, 1.1


def detection_limits(window: CellWindow, bound_ns: float) -> tuple[float | None, float | None]:
    """Delays in ms that would have been named, in every step and in NOTABLE of them, None where none would: those of a
    window in which nobody is named; no delay within the clocks' `bound_ns` is."""
    random = np.random.default_rng(len(window.late) * 1_000_003 + len(window.compared))
    draws = [_Draw(window, at, random) for at in np.linspace(0, 1, DRAWS if window.late.size <= MANY else FEW_DRAWS)]
    least_ns = MATERIAL * window.step_ns
    always_ns = _least(lambda delay_ns: _all_named(draws, delay_ns, _Draw.lasts), max(least_ns, bound_ns))
    seldom_ns = _least(lambda delay_ns: _all_named(draws, delay_ns, _Draw.passes), max(least_ns / NOTABLE, bound_ns))
    return always_ns and always_ns / 1e6, seldom_ns and seldom_ns / 1e6


def _all_named(draws: list[_Draw], delay_ns: float, ask: Callable[[_Draw, float, float | None], float | None]) -> bool:
    """Whether all draws name a delay; what chance shows is that of the first one."""
    critical: float | None = None
    for draw in draws:
        critical = ask(draw, delay_ns, critical)
        if critical is None:
            return False
    return True


class _Draw:
    """The cells of a window whose peers have exchanged their names, piece by piece, and a rank to be delayed."""

    def __init__(self, window: CellWindow, place: float, random: np.random.Generator) -> None:
        late = _exchanged(window, random)
        self.window = replace(window, late=late)
        self.column = round(place * (len(window.compared) - 1))
        self.steps = random.permuted(np.arange(len(late)) < round(NOTABLE * len(late)))
        self.typical = typical_ns(self.window, late)
        beyond = beyond_usual(self.window, late)
        self.limit_ns = limit_ns_of(beyond, window)
        self.beyond, self.events = beyond[:, self.column], event_pieces(beyond, window, self.limit_ns)
        compared = window.of_compared(late)
        self.its, self.latest = compared[:, self.column], np.delete(compared, self.column, axis=1).max(axis=1)

    def lasts(self, delay_ns: float, critical: float | None) -> float | None:
        """What the widest gap must exceed, where a delay of the rank in every step is named; None where it is not."""
        typical = self.typical.copy()
        typical[:, self.column] += delay_ns
        _, place, order = widest_gap(typical)
        if order[place + 1 :].tolist() != [self.column] or not self._saves(delay_ns, np.ones(len(self.steps))):
            return None
        critical = critical or exceeded_by_chance(self.window, typical, gap_score)
        return critical if float(gap_score(typical)) > critical else None

    def passes(self, delay_ns: float, critical: float | None) -> float | None:
        """The same where it is delayed in some of the steps."""
        pieces, delayed = self.events.copy(), self.beyond + np.where(self.steps, delay_ns, 0)
        pieces[:, [self.column]] = event_pieces(delayed[:, None], self.window, self.limit_ns)
        if int(pieces.sum(axis=0).argmax()) != self.column or not self._saves(delay_ns, self.steps):
            return None
        if chance_of_events(pieces, self.column) <= self.window.max_chance:
            return critical or 0.0
        critical = critical or exceeded_by_chance(self.window, pieces, total_beyond_least)
        return critical if float(total_beyond_least(pieces)) > critical else None

    def _saves(self, delay_ns: float, steps: Floats | Ints) -> bool:
        longer = np.maximum(self.latest, self.its + delay_ns * steps) - np.maximum(self.latest, self.its)
        return bool(longer.mean() >= MATERIAL * self.window.step_ns)


def _exchanged(window: CellWindow, random: np.random.Generator) -> Ints:
    late = window.late.copy(order="K")
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
