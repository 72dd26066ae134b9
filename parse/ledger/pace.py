"""Loaders that set the pace: their batches come when they come, however early a rank is ready for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc.model.timestamps import ABSENT, END
from hpc.model.trace import Bools, Floats, Ints, Trace
from parse import stats
from parse.rules import ENOUGH, HALF, NOTABLE, OF_ONE_RUN, READ_AT_ONCE
from parse.term_kinds import DATA

AHEAD = 2
"""So many batches a worker of a loader reads ahead: the least that lets it read on, and torch's `prefetch_factor`."""
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class LoaderPace:
    """From how many ns on each rank waits for a batch that comes when it comes [rank], NEVER where that is not shown;
    and how many batches its loader has ready when it stands still [rank]."""

    from_ns: Ints
    ahead: Ints


def pace_of(trace: Trace) -> LoaderPace | None:
    """The loaders that set the pace; None where none is shown to.

    A loader beside the step has a rhythm of its own: what a rank works longer since its last batch it waits shorter
    for the next. Over the batches that take NOTABLE of a step, the slope of that wait on the work before it is then
    −1, and 0 of a loader that reads on demand. It is shown where an interval is all nearer to −1 that by chance
    would be so in less than OF_ONE_RUN of the trainings. Workers that begin together give their batches together:
    compared are waits as many batches apart as most are.
    """
    ranks = len(trace.stamps)
    from_ns, apart = np.full(ranks, NEVER), np.ones(ranks, np.int64)
    waits, works = ([list[float]() for _ in range(ranks)] for _ in range(2))
    for ends_ns, ready_ns, data_ns, least_ns in _pieces(trace):
        for rank in range(ranks):
            at = np.flatnonzero(data_ns[rank] >= least_ns)
            if len(at) > 1:
                batches = np.diff(at)
                apart[rank] = np.bincount(batches).argmax()
                usual = np.flatnonzero(batches == apart[rank]) + 1
                waits[rank] += data_ns[rank, at[usual]].tolist()
                works[rank] += (ends_ns[rank, at[usual]] - ready_ns[rank, 1 + at[usual - 1]]).tolist()
    for rank, (its, before) in enumerate(zip(waits, works, strict=True)):
        if len(its) >= ENOUGH and _is_rhythm(np.array(its), np.array(before), OF_ONE_RUN / ranks):
            from_ns[rank] = least_ns
    return None if (from_ns == NEVER).all() else LoaderPace(from_ns=from_ns, ahead=AHEAD * apart)


def may_set_pace(trace: Trace) -> bool:
    """Whether loaders may set the pace though waits scatter too much to show it: NOTABLE of a step or more is waited
    for HALF of the batches, and some batch is there at once, as a loader has it that reads ahead."""
    pieces = [(data_ns, least_ns) for _, _, data_ns, least_ns in _pieces(trace)]
    if not pieces:
        return False
    data_ns = np.concatenate([data_ns for data_ns, _ in pieces], axis=1)
    waited = np.concatenate([data_ns >= least_ns for data_ns, least_ns in pieces], axis=1)
    at_once = data_ns <= NOTABLE * np.median(data_ns, axis=1, keepdims=True)
    return bool(waited.mean() >= HALF and at_once.any())


def _pieces(trace: Trace) -> list[tuple[Ints, Ints, Ints, int]]:
    """Of each block's first steps their ends and batches, with those of the step before, what they wait for data
    [rank, step], and NOTABLE of a step, ns; none where a stamp is absent."""
    pieces, ranks = [], len(trace.stamps)
    for first, end in trace.blocks.tolist():
        stop = min(end, first + max(ENOUGH, READ_AT_ONCE // (ranks * len(trace.blocks))))
        ends_ns, ready_ns = (np.asarray(trace.stamps[:, first - 1 : stop, at], np.int64) for at in (END, DATA.stamp))
        if (ends_ns == ABSENT).any() or (ready_ns[:, 1:] == ABSENT).any():
            return []
        least_ns = round(NOTABLE * float((ends_ns[:, -1] - ends_ns[:, 0]).mean()) / (stop - first))
        pieces.append((ends_ns, ready_ns, ready_ns[:, 1:] - ends_ns[:, :-1], least_ns))
    return pieces


def _is_rhythm(waits: Floats, works: Floats, chance: float) -> bool:
    """Whether the slope of these waits on the work before them is nearer to −1 than to 0, its interval included."""
    works, free = works - works.mean(), len(waits) - 2
    if not (spread := float(works @ works)):
        return False
    slope = float(works @ waits) / spread
    rest = waits - waits.mean() - slope * works
    return slope + stats.student(1 - chance, free) * float(np.sqrt(rest @ rest / free / spread)) < -HALF


@dataclass(frozen=True, eq=False)
class PacedSteps:
    """Steps behind which a replayed rank waits until its loader is as far as it was. `ends` are the recorded ones,
    `waits` those behind which a batch is waited for, `restarts` those behind which the loader may have stood still, all
    [step, rank]; `keeps` are the ranks whose loaders keep their pace in a case [case, rank]."""

    ends: Ints
    waits: Bools
    restarts: Bools
    keeps: Bools

    def begin_after(self, step: int, ends: Ints, ahead: Ints) -> tuple[Ints, Ints]:
        """When ranks [case, rank] that end this step so begin to wait as long as they did, and their loaders' lead."""
        recorded = self.ends[step]
        ahead = np.where(self.restarts[step], ends - recorded, ahead)
        return np.where(self.waits[step] & self.keeps, np.maximum(ends, recorded + ahead), ends), ahead


def paced_steps(pace: LoaderPace, ends_ns: Ints, data_ns: Ints, keeps: Bools) -> PacedSteps:
    """Those of recorded ends and times for data [rank, step]."""
    waits = data_ns >= pace.from_ns[:, None]
    waits = np.concatenate([waits[:, 1:], waits[:, -1:]], axis=1)
    steps = np.arange(waits.shape[1])
    ready = steps - np.maximum.accumulate(np.where(waits, steps, -1), axis=1)
    return PacedSteps(ends=ends_ns.T, waits=waits.T, restarts=(ready >= pace.ahead[:, None]).T, keeps=keeps)
