"""How late each rank is in each step, and what made it late: at the one reduction of a step, or at all its meetings.

Where ranks meet several times in a step, what a rank is late by adds up over the meetings in which somebody waits for
it. What it did since the others last held it, or waited for it, is what made it late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from hpc.model.timestamps import ABSENT, BATCH_READY, END, GRADS_READY, REDUCED
from parse.ledger.meetings import ARRIVES, ENDS, WAITS, Bools, Ints, MeetingKinds
from parse.ledger.types import CAUSES

_RELEASE = 0
"""The place in CAUSES of what a rank left a meeting later by."""
REDUCTION = "reduction of the gradients"


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSkews:
    """All ns. `late` [rank, step] is the arrival of each rank, less a number that all ranks of the step have in common;
    `work` [rank, step] is its optimizer step, data and compute. `parts` gives of ranks [n] in steps [n], or of all by
    slices, what adds up to `late`, an array for each of CAUSES, less numbers that all ranks of the step have in common.

    Of several meetings, None of one: `held_up` [rank, step] is the time by which a rank, and nobody else, makes the
    others wait, `held_up_by_node` [node, step] that of a node's ranks; `meetings` [meeting, rank, step] is `late`, less
    that of the median rank, meeting by meeting, the reduction last.
    """

    late: Ints
    parts: Callable[[Ints | slice, Ints | slice], Sequence[Ints]]
    work: Ints
    held_up: Ints | None = None
    held_up_by_node: Ints | None = None
    meetings: Ints | None = None


def at_the_reduction(stamps: Ints, borders: frozenset[str]) -> StepSkews:
    """From stamps on the global clock [rank, 1 + step, 6]: at the reduction, where ranks do not meet before."""
    before, now = stamps[:, :-1], stamps[:, 1:]
    ends = before[:, :, END]
    reduced = before[:, :, REDUCED] if "reduced" in borders else ends
    ready = now[:, :, BATCH_READY] if "batch_ready" in borders else ends
    late = now[:, :, GRADS_READY]
    edges = reduced, ends, ready, late

    def parts(ranks: Ints | slice, steps: Ints | slice) -> Sequence[Ints]:
        moments = [edge[ranks, steps] for edge in edges]
        return [moments[0], *(end - begin for begin, end in pairwise(moments))]

    return StepSkews(late=late, parts=parts, work=late - reduced)


def at_all_meetings(stamps: Ints, meetings: Ints, nodes: Ints) -> StepSkews:
    """From stamps [rank, 1 + step, 6] and meetings [rank, 1 + step, meeting, 3] on the global clock, all there, their
    calls cleared by `clear_unawaited_calls`; `nodes` [rank] numbers nodes from 0."""
    course = _Course(stamps, nodes, meetings.shape[2])
    for event, at, times in _events(stamps, meetings):
        if event == ARRIVES:
            course.arrive(at, times[..., ARRIVES])
        else:
            course.meet(at, times)
    return course.skews()


def _events(stamps: Ints, meetings: Ints) -> list[tuple[int, int, Ints]]:
    """What ranks do from one reduction to the end of the next, in its order: (ARRIVES or WAITS, number of the meeting,
    its times [step, rank, 3]). The reduction comes last.

    Those that begin within a reduction are a part of it; those after a reduction belong to the step that follows.
    """
    grads, reduced = stamps[:, 1:, GRADS_READY], stamps[:, 1:, REDUCED]
    events = []
    for at in range(meetings.shape[2]):
        its = meetings[:, 1:, at]
        after_grads = float((its[..., WAITS] - grads).mean()) >= 0
        if after_grads and float((its[..., WAITS] - reduced).mean()) < 0:
            continue
        if after_grads:
            its = meetings[:, :-1, at]
        times, when = its.swapaxes(0, 1), -inf
        for event in (ARRIVES, WAITS):
            moment = np.where(its[..., event] == ABSENT, its[..., WAITS], its[..., event])
            when = max(when, float((moment - grads).mean()))  # whatever is recorded, it calls before it waits
            events.append((when, event, at, times))
    ordered = sorted(events, key=lambda each: each[:3])
    reduction = np.stack([grads.T, grads.T, reduced.T], axis=2)
    last = [(event, meetings.shape[2], reduction) for event in (ARRIVES, WAITS)]
    return [(event, at, times) for _, event, at, times in ordered] + last


class _Course:
    """The ranks on their way through the meetings of their steps; all arrays [step, rank], of parts [step, rank, 4].

    `parts` add up to `now`, less a number that all ranks of a step have in common.
    """

    def __init__(self, stamps: Ints, nodes: Ints, meetings: int) -> None:
        before, now = stamps[:, :-1], stamps[:, 1:]
        self._edges = [edge.T for edge in (before[:, :, REDUCED], before[:, :, END], now[:, :, BATCH_READY])]
        self._edges.append(now[:, :, GRADS_READY].T)
        self.now = self._edges[0]
        steps, ranks = self.now.shape
        self.nodes, self.row = nodes, np.arange(steps)
        self.parts = np.zeros((steps, ranks, len(CAUSES)), np.int64)
        self.parts[..., _RELEASE] = self.now - self.now.min(axis=1, keepdims=True)
        self.done = np.zeros_like(self.parts)
        self.called: dict[int, tuple[Ints, Ints]] = {}
        self.late_at = np.zeros((meetings + 1, steps, ranks), np.int64)
        self.caused = np.zeros_like(self.parts)
        self.held_up = np.zeros((steps, ranks), np.int64)
        self.held_up_by_node = np.zeros((steps, int(nodes.max()) + 1), np.int64)

    def _work_until(self, until: Ints) -> None:
        """Adds a rank's own work up to a moment, by the phases in which it lies."""
        for part, (begin, end) in enumerate(zip(self._edges[:-1], self._edges[1:], strict=True), _RELEASE + 1):
            done = np.clip(until, begin, end) - np.clip(self.now, begin, end)
            self.parts[..., part] += done
            self.done[..., part] += done
        self.now = until

    def arrive(self, at: int, arrives: Ints) -> None:
        self._work_until(arrives)
        self.called[at] = self.parts.copy(), self.done.copy()

    def meet(self, at: int, times: Ints) -> None:
        """Everybody waits for the result of a meeting, and has it."""
        self._work_until(times[..., WAITS])
        parts, done = self.called.pop(at)
        median = self._judge(at, parts, times[..., ARRIVES], times[..., WAITS])
        self._leave(times, median, self.done - done)

    def _judge(self, at: int, called: Ints, arrives: Ints, waits: Ints) -> Ints:
        """Adds how late the ranks are at this meeting, and why; returns the median rank [step]."""
        late = np.maximum(arrives, waits.min(axis=1, keepdims=True))  # before anybody waits all are in time
        nobody_waits_for = arrives == ABSENT
        median = _median(late, nobody_waits_for)
        late -= late[self.row, median][:, None]
        late[nobody_waits_for] = 0
        parts = called - called[self.row, median][:, None]
        in_all = parts.sum(axis=2)
        counted = (late == 0) | ((late > 0) & (late < in_all))  # called in part before anybody waited
        share = np.divide(late, in_all, out=np.zeros(late.shape), where=counted & (late > 0))
        parts[counted] = np.rint(parts[counted] * share[counted][:, None]).astype(np.int64)
        parts[..., _RELEASE] += late - parts.sum(axis=2)
        self.caused += parts
        self.late_at[at] = late
        self._hold_up(arrives, waits)
        return median

    def _hold_up(self, arrives: Ints, waits: Ints) -> None:
        """Adds the time by which a rank, or node, alone makes all others wait."""
        last = arrives.argmax(axis=1)
        its_arrival = arrives[self.row, last]
        least = np.iinfo(np.int64).min
        is_last = np.arange(arrives.shape[1]) == last[:, None]
        next_to_wait = np.where(is_last, least, waits).max(axis=1)
        self.held_up[self.row, last] += np.maximum(0, its_arrival - next_to_wait)
        elsewhere = np.where(self.nodes == self.nodes[last][:, None], least, waits).max(axis=1)
        gap = np.where(elsewhere == least, 0, np.maximum(0, its_arrival - np.maximum(elsewhere, least // 2)))
        self.held_up_by_node[self.row, self.nodes[last]] += gap

    def _leave(self, times: Ints, median: Ints, since_call: Ints) -> None:
        """What ranks did before counts no more for those who were held; for the one who held them counts what it did
        since it called."""
        arrives, waits, ends = (times[..., stamp] for stamp in (ARRIVES, WAITS, ENDS))
        last = arrives.max(axis=1, keepdims=True)
        holds = arrives == last
        held: Bools = (last > waits) & ~holds
        holds &= held.any(axis=1, keepdims=True)
        self.parts -= self.parts[self.row, median][:, None]
        self.parts[held] = 0
        self.parts[holds] = since_call[holds]
        late = ends - ends[self.row, median][:, None]
        self.parts[..., _RELEASE] += late - self.parts.sum(axis=2)
        self.now = ends

    def skews(self) -> StepSkews:
        caused = self.caused.swapaxes(0, 1)
        return StepSkews(
            late=self.late_at.sum(axis=0).T,
            parts=lambda ranks, steps: [caused[ranks, steps, cause] for cause in range(len(CAUSES))],
            work=self.done.sum(axis=2).T, held_up=self.held_up.T, held_up_by_node=self.held_up_by_node.T,
            meetings=self.late_at.swapaxes(1, 2),
        )  # fmt: skip


def _median(times: Ints, without: Bools) -> Ints:
    """The median rank of each step, the lower one of an even number, `without` some [step, rank]."""
    ranks = times.shape[1]
    if not without.any():
        middle = (ranks - 1) // 2
        median: Ints = np.argpartition(times, middle, axis=1)[:, middle]
        return median
    order = np.argsort(np.where(without, np.iinfo(np.int64).max, times), axis=1)
    median = order[np.arange(len(times)), (ranks - without.sum(axis=1) - 1) // 2]
    return median


def labels_of(kinds: MeetingKinds) -> Sequence[str]:
    """The names of `StepSkews.meetings`."""
    return (*kinds.labels, REDUCTION)
