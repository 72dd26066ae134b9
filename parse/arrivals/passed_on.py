"""Lateness that a rank passes on: it comes last to one collective since it waited for others in collectives before.

Between two collectives of one group each rank works, and waits in other groups. By its own clock alone it is known
how long it waited there. A rank that comes last by some time, and waited longer in between than the second last one, is
late by as much less for its own sake. Waits in kernels that ran beside others may have cost it nothing: it is the most.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parse.arrivals.last import UNKNOWN, LastOfEach, Matched
from parse.arrivals.types import ABSENT, Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """The collectives of one operation in a group; `labels` are what the processes are called, by place."""

    labels: tuple[str, ...]
    matched: Matched
    decided: LastOfEach


@dataclass(frozen=True, eq=False)
class _Waits:
    """When a rank began to wait, ascending, and how long it had waited before each of these, and in all."""

    begin_ns: Ints
    before_ns: Ints

    def until(self, time_ns: Ints) -> Ints:
        """How long it waited in collectives that it came to before these times."""
        return self.before_ns[np.searchsorted(self.begin_ns, time_ns)]


def waits_for(judged: Sequence[Judged]) -> Mapping[str, Counter[str]]:
    """How long each rank waits for each other one, ns, in collectives whose last rank is known."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for each in judged:
        last, wait = each.decided.last, each.decided.wait_ns
        for of_last, label_of_last in enumerate(each.labels):
            its = wait[last == of_last]
            if len(its):
                for place, label in enumerate(each.labels):
                    totals[label][label_of_last] += int(its[:, place].sum()) if place != of_last else 0
    return totals


def passed_on_ns(judged: Sequence[Judged]) -> list[Ints | None]:
    """Of each of them, per collective whose last rank is known: ns by which that one is late at most for what it waited
    before; None where it was not recorded when kernels began."""
    waits = _waits(judged)
    return [_passed_on(each, waits) for each in judged]


def _waits(judged: Sequence[Judged]) -> Mapping[str, _Waits]:
    begins: dict[str, list[Ints]] = defaultdict(list)
    lengths: dict[str, list[Ints]] = defaultdict(list)
    for each in judged:
        last, begin = each.decided.last, each.matched.begin_ns
        for place, label in enumerate(each.labels):
            waits = (last != UNKNOWN) & (last != place) & (begin[:, place] != ABSENT)
            begins[label].append(begin[waits, place])
            lengths[label].append(each.decided.wait_ns[waits, place])
    made = {}
    for label, parts in begins.items():
        begin, length = np.concatenate(parts), np.concatenate(lengths[label])
        order = np.argsort(begin, kind="stable")
        made[label] = _Waits(begin[order], np.concatenate([[0], np.cumsum(length[order])]))
    return made


def _passed_on(judged: Judged, waits: Mapping[str, _Waits]) -> Ints | None:
    begin, duration, decided = judged.matched.begin_ns, judged.matched.duration_ns, judged.decided
    known = decided.last != UNKNOWN
    if not known.any() or (begin[known] == ABSENT).any():
        return None
    ended = np.vstack([np.zeros_like(begin[:1]), (begin + duration)[:-1]])
    waited = np.stack(
        [
            waits[label].until(begin[:, place]) - waits[label].until(ended[:, place])
            for place, label in enumerate(judged.labels)
        ],
        axis=1,
    )
    second = np.where(decided.by_clock, np.argsort(begin, axis=1)[:, -2], np.argsort(duration, axis=1)[:, 1])
    rows = np.arange(len(begin))
    more = waited[rows, np.maximum(decided.last, 0)] - waited[rows, second]
    return np.where(known, np.clip(more, 0, decided.sole_ns), 0)
