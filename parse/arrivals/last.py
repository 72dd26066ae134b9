"""Which calls of ranks are one collective, who comes last to it, and how long the others wait.

The kernel of a collective that waits for all runs from when its rank comes until all have come and the data is
through. It runs longest on the rank that comes first and shortest on the last one, whatever clocks of hosts show.
Kernels of one collective do not end in the same instant, but none ends before the last rank has come, and that one's
own time is what was left to do: within it all others end. That is the bound of what kernel times say: the last rank is
known where the second shortest kernel runs longer than the shortest by more than the shortest takes.

Where one clock stamps all ranks (one host, or hosts whose clocks agree as well as the caller says), begins are compared
too: the bound is by how much the ends of one collective lie apart, which holds the error of the stamps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse.arrivals.types import (
    ABSENT,
    Ints,
    RankCalls,
)

UNKNOWN = -1
"""In the place of a rank where it is not known who is last."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """The collectives that all ranks have: [collective, rank]; `ranks` are their numbers in the group. `uneven` counts
    those left out since ranks give different amounts: their kernels differ for that, too."""

    ranks: tuple[int, ...]
    duration_ns: Ints
    begin_ns: Ints
    uneven: int


@dataclass(frozen=True, kw_only=True, eq=False)
class LastOfEach:
    """Per collective: the place of the rank that is last, or -1; by which evidence; ns that each rank waits, how
    exactly that is known, and how long the others wait for the last one alone. `contradicted` counts those where a
    clock shows that the last one by kernel times came before another."""

    last: npt.NDArray[np.intp]
    by_clock: npt.NDArray[np.bool_]
    wait_ns: Ints
    bound_ns: Ints
    sole_ns: Ints
    contradicted: int


def match(calls_of: Mapping[int, RankCalls], size: int) -> tuple[Matched, int]:
    """The collectives that all ranks of a group of `size` have, with equal sizes; and how many any rank has."""
    ranks = tuple(sorted(calls_of))
    every = np.unique(np.concatenate([calls_of[rank].number for rank in ranks]))
    common = every
    for rank in ranks:
        common = np.intersect1d(common, calls_of[rank].number, assume_unique=True)
    if len(ranks) < size:
        common = common[:0]
    places = [np.searchsorted(calls_of[rank].number, common) for rank in ranks]
    columns = [
        np.stack([getattr(calls_of[rank], name)[at] for rank, at in zip(ranks, places, strict=True)], axis=1)
        for name in ("bytes", "duration_ns", "begin_ns")
    ]
    alike = (columns[0] == columns[0][:, :1]).all(axis=1)
    return Matched(
        ranks=ranks, duration_ns=columns[1][alike], begin_ns=columns[2][alike], uneven=int((~alike).sum())
    ), len(every)


def decide(matched: Matched, hosts: Sequence[str], resolution_ns: int, clock_bound_ns: int | None = None) -> LastOfEach:
    """Who is last, collective by collective."""
    duration, begin = matched.duration_ns, matched.begin_ns
    rows = np.arange(len(duration))
    if not len(duration):
        nothing = np.zeros(0, dtype=np.int64)
        return LastOfEach(
            last=np.zeros(0, dtype=np.intp), by_clock=np.zeros(0, dtype=np.bool_), wait_ns=np.zeros_like(duration),
            bound_ns=nothing, sole_ns=nothing, contradicted=0,
        )  # fmt: skip
    ordered = np.sort(duration, axis=1)
    shortest, gap = ordered[:, 0], ordered[:, 1] - ordered[:, 0]
    bound = shortest + resolution_ns
    last = np.where((gap > bound) & (shortest > 0), duration.argmin(axis=1), UNKNOWN)
    wait, sole = duration - shortest[:, None], gap.copy()

    timed = (begin != ABSENT).all(axis=1)
    contradicted = (last != UNKNOWN) & _earlier_by_its_host(begin, last, hosts)
    last[contradicted] = UNKNOWN

    by_clock = np.zeros(len(duration), dtype=np.bool_)
    one_clock = len({*hosts}) == 1 and hosts[0] != ""
    if one_clock or clock_bound_ns is not None:
        ends = begin + duration
        spread = ends.max(axis=1) - ends.min(axis=1) + resolution_ns + (0 if one_clock else clock_bound_ns or 0)
        begins = np.sort(begin, axis=1)
        between = begins[:, -1] - begins[:, -2]
        latest = begin.argmax(axis=1)
        agrees = (last == UNKNOWN) | (last == latest)
        known = timed & ~contradicted & agrees & (between > spread)
        by_clock = known & ((last == UNKNOWN) | (spread < bound))
        last[by_clock] = latest[by_clock]
        wait[by_clock] = (begins[:, -1:] - begin)[by_clock]
        bound, sole = np.where(by_clock, spread, bound), np.where(by_clock, between, sole)
    wait[rows, np.maximum(last, 0)] = 0
    return LastOfEach(
        last=last, by_clock=by_clock, wait_ns=wait, bound_ns=bound, sole_ns=sole, contradicted=int(contradicted.sum())
    )


def _earlier_by_its_host(begin: Ints, last: npt.NDArray[np.intp], hosts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Where the last rank began before another one, by the clock of the host that they share."""
    earlier = np.zeros(len(begin), dtype=np.bool_)
    for place, host in enumerate(hosts):
        beside = [other for other, its in enumerate(hosts) if its == host and host and other != place]
        if not beside:
            continue
        others = begin[:, beside].max(axis=1)
        timed = (begin[:, [place, *beside]] != ABSENT).all(axis=1)
        earlier |= (last == place) & timed & (begin[:, place] < others)
    return earlier
