"""The recorded steps of a run as what ranks do between their meetings, and the replay of these.

A rank that has done its own work calls the next collective. It leaves it when all whom it waits for have called, after
its own exposed communication. Without a change, that gives back the recorded ends to the nanosecond.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from hpc.model.timestamps import BATCH_READY, END, GRADS_READY, REDUCED
from parse.ledger.arrivals import Ints
from parse.ledger.meetings import ARRIVES, ENDS, NO_MEETINGS, NO_ROOT, WAITS, MeetingKinds, clear_unawaited_calls

DATA, COMPUTE, OPTIMIZER = "data", "compute", "optimizer"


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """A rank's own work by phase, each in ns [rank, step], and the event behind it.

    At `calls` it calls that meeting, at `waits` it waits for its result, which it has `exposed` [rank, step] after the
    last whom it waits for; a stage may have both, or none. All wait for `root`, NO_ROOT: for everybody.
    """

    work: Mapping[str, Ints]
    calls: int | None = None
    waits: int | None = None
    root: int = NO_ROOT
    exposed: Ints | None = None


@dataclass(frozen=True)
class _Event:
    """A moment on each rank [rank, step], ns, and what happens then, as in Stage; `leaves` is when a wait is over."""

    when: Ints
    calls: int | None = None
    waits: int | None = None
    root: int = NO_ROOT
    leaves: Ints | None = None
    exposed: Ints | None = None


def stages(
    stamps_ns: Ints, terms: Set[str], meetings_ns: Ints | None = None, kinds: MeetingKinds = NO_MEETINGS
) -> list[Stage]:
    """From stamps on the global clock [rank, 1 + step, 6], of which the first step is there only for its end, and
    meetings [rank, step, meeting, 3]. `terms` are the names of the ledger's terms: what precedes a border that is not
    recorded is in the phase after it."""
    before, now = stamps_ns[:, :-1, END], stamps_ns[:, 1:]
    entered, end = now[:, :, GRADS_READY], now[:, :, END]
    last = np.broadcast_to(entered.max(axis=0), end.shape)
    edges = {
        DATA: (before, now[:, :, BATCH_READY] if "data" in terms else before),
        COMPUTE: (now[:, :, BATCH_READY] if "data" in terms else before, entered),
        OPTIMIZER: (now[:, :, REDUCED] if "communication" in terms else last, end),
    }
    reduced = edges[OPTIMIZER][0]
    reduction = _Event(entered, len(kinds), len(kinds), NO_ROOT, reduced, reduced - last)
    events, after = [], []
    for event in () if meetings_ns is None else _events(meetings_ns, kinds):
        if (event.when - entered).mean() < 0:
            events.append(event)
        elif (event.when - reduced).mean() >= 0:
            after.append(event)  # those between are a part of the reduction
    to_reduction = _stages(before, [*events, reduction], {phase: edges[phase] for phase in (DATA, COMPUTE)})
    return to_reduction + _stages(reduced, [*after, _Event(end)], {OPTIMIZER: edges[OPTIMIZER]})


def _stages(begin: Ints, events: Sequence[_Event], edges: Mapping[str, tuple[Ints, Ints]]) -> list[Stage]:
    """Those that end with these events; the last one ends the last phase."""
    result = []
    for event in events:
        if len(events) == 1:
            work = {phase: until - since for phase, (since, until) in edges.items()}
        else:
            work = {
                phase: np.clip(event.when, since, until) - np.clip(begin, since, until)
                for phase, (since, until) in edges.items()
            }
        result.append(Stage(work=work, calls=event.calls, waits=event.waits, root=event.root, exposed=event.exposed))
        begin = event.when if event.leaves is None else event.leaves
    return result


def _events(meetings_ns: Ints, kinds: MeetingKinds) -> list[_Event]:
    """The calls of the meetings and the waits for them, in their order; both at once where ranks wait at once."""
    events, awaited = [], meetings_ns.copy()
    clear_unawaited_calls(awaited, kinds, 0.0)
    for at, root in enumerate(kinds.roots):
        arrives, waits, ends = (meetings_ns[:, :, at, stamp] for stamp in (ARRIVES, WAITS, ENDS))
        for_all = root == NO_ROOT or (awaited[:, :, at, ARRIVES].max(axis=0) == arrives.max(axis=0)).mean() >= 0.5
        its_root = NO_ROOT if for_all else root
        exposed = ends - np.maximum(waits, arrives.max(axis=0) if for_all else arrives[root])
        if (arrives == waits).all():
            events.append(_Event(waits, at, at, its_root, ends, exposed))
        else:
            events += [_Event(arrives, at), _Event(waits, None, at, its_root, ends, exposed)]
    return sorted(events, key=lambda event: float((event.when - meetings_ns[:, :, 0, ARRIVES]).mean()))


def replay(ends: Ints, cases: Sequence[Sequence[Stage]]) -> Ints:
    """The end of each rank [case, rank] after these steps, from its end before them."""
    if len(cases[0]) == 2 and cases[0][0].root == NO_ROOT:
        return np.stack([_by_reductions(its, *case) for its, case in zip(ends, cases, strict=True)])
    steps = []
    for each in zip(*cases, strict=True):
        first = each[0]
        work = _by_step([_sum(stage) for stage in each])
        exposed = None if first.exposed is None else _by_step([_known(stage.exposed) for stage in each])
        steps.append((work, first, exposed))
    for step in range(len(steps[0][0])):
        called: dict[int, Ints] = {}
        for work, stage, exposed in steps:
            ends = ends + work[step]
            if stage.calls is not None:
                called[stage.calls] = ends
            if stage.waits is not None and exposed is not None:
                its = called.pop(stage.waits, ends)  # else its call is a part of the reduction
                needed = its.max(axis=1, keepdims=True) if stage.root == NO_ROOT else its[:, [stage.root]]
                at_once = stage.root == NO_ROOT and stage.calls == stage.waits  # nobody waits later than the last calls
                ends = (needed if at_once else np.maximum(ends, needed)) + exposed[step]
    return ends


def _by_reductions(ends: Ints, to_reduction: Stage, after: Stage) -> Ints:
    """As `replay`, of one case [rank], where ranks meet at the reduction alone: what they do from one on, until they
    call the next, moves that by as much as it takes the slowest."""
    work = _sum(to_reduction)
    rest = _known(to_reduction.exposed) + _sum(after)
    between = (rest[:, :-1] + work[:, 1:]).max(axis=0)
    last: Ints = (ends + work[:, 0]).max() + between.sum() + rest[:, -1]
    return last


def _sum(stage: Stage) -> Ints:
    """All of a rank's own work [rank, step]."""
    return functools.reduce(np.add, stage.work.values())


def _by_step(cases: Sequence[Ints]) -> Ints:
    """[step, case, rank] from the cases' [rank, step]: a step's values lie together."""
    return np.stack([np.ascontiguousarray(case.T) for case in cases], axis=1)


def _known(exposed: Ints | None) -> Ints:
    assert exposed is not None
    return exposed
