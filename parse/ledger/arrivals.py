"""When ranks arrive at the reduction, step by step: the last one, its arrival skew, and what made it late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT, BATCH_READY, END, GRADS_READY, REDUCED
from parse.ledger.alternation import Alternation
from parse.ledger.meetings import ARRIVES, ENDS, WAITS, Bools, Floats, Ints, MeetingKinds
from parse.ledger.types import CAUSES

# How late each rank is in each step, and what made it late: at the one reduction of a step, or at all its meetings.
#
# Where ranks meet several times in a step, what a rank is late by adds up over the meetings in which somebody waits for
# it. What it did since the others last held it, or waited for it, is what made it late.

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
    """From stamps [rank, 1 + step, 6] and meetings [rank, 1 + step, meeting, 3] on the global clock, of
    `awaited_calls`; one that is absent on all ranks is none of that step's. `nodes` [rank] numbers nodes from 0.

    Steps are looked at together with those that have the same meetings.
    """
    present = meetings[0, :, :, ENDS] != ABSENT
    placed = [_place(stamps, meetings[:, :, at], present[:, at]) for at in range(meetings.shape[2])]
    whole = _Course(stamps[:, :-1], stamps[:, 1:], nodes, meetings.shape[2])
    if present.all():
        whole.go(_events(stamps[:, 1:], meetings[:, :-1], meetings[:, 1:], placed))
        return whole.skews()
    has = np.stack(
        [present[:-1, at] if place == _AFTER else present[1:, at] for at, place in enumerate(placed)], axis=1
    )
    patterns, numbers = np.unique(has, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        steps = np.flatnonzero(numbers.ravel() == number)
        before, now = stamps[:, steps], stamps[:, steps + 1]
        its = [place if its_has else _WITHIN for place, its_has in zip(placed, pattern.tolist(), strict=True)]
        course = _Course(before, now, nodes, meetings.shape[2])
        course.go(_events(now, meetings[:, steps], meetings[:, steps + 1], its))
        whole.take(steps, course)
    return whole.skews()


def at_the_begin(stamps: Ints, borders: frozenset[str]) -> StepSkews:
    """As `at_the_reduction`, where nothing is known of a step but when a rank begins it with its batch, or without."""
    ends = stamps[:, :-1, END]
    ready = stamps[:, 1:, BATCH_READY] if "batch_ready" in borders else ends
    none = np.zeros_like(ends)

    def parts(ranks: Ints | slice, steps: Ints | slice) -> Sequence[Ints]:
        its = ends[ranks, steps], none[ranks, steps], ready[ranks, steps] - ends[ranks, steps], none[ranks, steps]
        return [*its]

    return StepSkews(late=ready, parts=parts, work=ready - ends)


_BEFORE, _WITHIN, _AFTER = range(3)
"""Where a meeting is: before a rank's own gradients; within their reduction, of which it is a part; after that."""


def _place(stamps: Ints, meeting: Ints, present: Bools) -> int:
    """Of a meeting [rank, 1 + step, 3], in the mean of the steps in which it is `present` [1 + step]."""
    steps = slice(1, None) if present.all() else present
    waits, grads, reduced = (
        each[:, steps] for each in (meeting[..., WAITS], stamps[..., GRADS_READY], stamps[..., REDUCED])
    )
    if not waits.size or float((waits - grads).mean()) < 0:
        return _BEFORE
    return _WITHIN if float((waits - reduced).mean()) < 0 else _AFTER


def _events(now: Ints, before_ns: Ints, now_ns: Ints, placed: Sequence[int]) -> list[tuple[int, int, Ints]]:
    """What ranks do from one reduction to the end of the next, in its order: (ARRIVES or WAITS, number of the meeting,
    its times [step, rank, 3]). The reduction comes last.

    `now` are the stamps of the steps, `before_ns` and `now_ns` the meetings of the steps before them and of themselves.
    Those after a reduction belong to the step that follows.
    """
    grads, reduced = now[:, :, GRADS_READY], now[:, :, REDUCED]
    events = []
    for at, place in enumerate(placed):
        if place == _WITHIN:
            continue
        its = (before_ns if place == _AFTER else now_ns)[:, :, at]
        times, when = its.swapaxes(0, 1), -inf
        for event in (ARRIVES, WAITS):
            moment = np.where(its[..., event] == ABSENT, its[..., WAITS], its[..., event])
            when = max(when, float((moment - grads).mean()))  # whatever is recorded, it calls before it waits
            events.append((when, event, at, times))
    ordered = sorted(events, key=lambda each: each[:3])
    reduction = np.stack([grads.T, grads.T, reduced.T], axis=2)
    last = [(event, len(placed), reduction) for event in (ARRIVES, WAITS)]
    return [(event, at, times) for _, event, at, times in ordered] + last


class _Course:
    """The ranks on their way through the meetings of their steps; all arrays [step, rank], of parts [step, rank, 4].

    `parts` add up to `now`, less a number that all ranks of a step have in common.
    """

    def __init__(self, before: Ints, now: Ints, nodes: Ints, meetings: int) -> None:
        """`before` and `now` are stamps [rank, step, 6] of the steps before these, and of these."""
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

    def go(self, events: Sequence[tuple[int, int, Ints]]) -> None:
        """Through all of `_events`."""
        for event, at, times in events:
            if event == ARRIVES:
                self.arrive(at, times[..., ARRIVES])
            else:
                self.meet(at, times)

    def take(self, steps: Ints, other: _Course) -> None:
        """Has of these steps what another, of these alone, has come to."""
        self.late_at[:, steps] = other.late_at
        for mine, its in (
            (self.done, other.done), (self.caused, other.caused), (self.held_up, other.held_up),
            (self.held_up_by_node, other.held_up_by_node),
        ):  # fmt: skip
            mine[steps] = its

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


MATERIAL = 0.01
"""A straggler costs at least this share of the step: no rank equals another to the ns."""
LATE_IN = 0.6
"""A rank that is typically late is so in at least this share of the steps of a piece."""
OFTEN_IN = 0.3
"""One that is often late, in this share."""
LATEST = 8
"""As many of a step's latest ranks are kept: behind a straggler that is taken out stand others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LastArrivals:
    """The last to arrive, among ranks or among nodes, each with its latest rank.

    Per step [step]: its number (`last`), its delay after the next latest (`gap`, ns) and the sum of the two clocks'
    bounds. `typical` [rank, piece]: the delay after the median rank of a rank, or of a node's earliest, in LATE_IN of
    a piece's steps; where ranks meet several times what that adds up to over the meetings, less that of the median
    rank. `often` is the same in OFTEN_IN of a piece's steps. `alternation`: the longest work of the steps added up, its
    expectation by chance, its variance.
    """

    last: Ints
    gap: Ints
    gap_bound: Floats
    typical: Floats
    often: Floats
    alternation: Floats

    @property
    def exclusive(self) -> float:
        """The tendency not to be late in the same step, in standard deviations; 0 where nothing can be permuted."""
        longest, expected, variance = self.alternation
        return float((longest - expected) / variance**0.5) if variance > 0 else 0.0

    @property
    def provable(self) -> npt.NDArray[np.bool_]:
        """In which steps the gap is beyond the clocks' bounds."""
        return self.gap > self.gap_bound


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrivals:
    """All times in ns. Per step [step]: its number; `margin`, the delay of rank step mod ranks, as of any, after the
    last of the others. `usual` [piece]: the delay of such a rank after the median of the others, in LATE_IN of a
    piece's steps. The median rank is the lower one of an even number.

    `latest` [step, LATEST] are the latest ranks of a step, the last one first; `late` [step, LATEST] is their delay
    after the median rank, `late_bound` the sum of the two clocks' bounds, `parts` [step, LATEST, 4] the parts of the
    delay, named by `causes`.

    `late_steps` [rank] counts the steps in which a rank is provably later than the median rank, by MATERIAL of a step
    at least; `rank_meetings` [rank, meeting] are the mean parts of its delay in these that arise at each meeting, named
    by `meetings`; without any where ranks meet at the reduction alone. `rank_cause` [rank, 4] are the mean parts of its
    delay after the median of the others in all steps. `bound` is the mean uncertainty from the clocks about which of
    two ranks was first, for the two with the widest one; 0 if all read one clock. `scatter` is the mean standard
    deviation of the ranks' arrivals in a step. `run` [step] and `piece_run` [piece] number the runs, where several are
    pooled. `roles` [rank] are numbers of what ranks do: only those of one role can be compared; none: all do the same.
    """

    causes: tuple[str, ...]
    run: Ints
    piece_run: Ints
    steps: Ints
    ranks: LastArrivals
    nodes: LastArrivals
    latest: Ints
    late: Ints
    late_bound: Floats
    parts: Ints
    margin: Ints
    usual: Floats
    late_steps: Ints
    rank_cause: Floats
    bound: float
    scatter: float = 0.0
    meetings: tuple[str, ...] = ()
    rank_meetings: Floats = field(default_factory=lambda: np.empty((0, 0)))
    roles: tuple[int, ...] = ()

    @property
    def layout(self) -> tuple[object, ...]:
        """What those of runs have in common that can be put together."""
        return self.causes, self.meetings, self.roles

    @property
    def skew(self) -> Ints:
        """The delay of the last rank after the median rank [step]."""
        return self.late[:, 0]

    @property
    def skew_bound(self) -> Floats:
        """What the clocks leave open about it [step]."""
        return self.late_bound[:, 0]

    @property
    def cause(self) -> Ints:
        """Its parts [step, 4]."""
        return self.parts[:, 0]


class ArrivalCollector:
    """Makes Arrivals from pieces of steps, in little memory.

    `nodes` [rank] numbers each rank's node; ranks of equal `domains` [rank] read one clock, so that the only
    uncertainty between them is that of their devices' time stamps, `device_ns` [rank]. `roles` are as in Arrivals.
    """

    def __init__(
        self, nodes: Sequence[int], domains: Sequence[str], device_ns: Sequence[float], borders: frozenset[str],
        kinds: MeetingKinds, roles: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.domains = np.unique(domains, return_inverse=True)[1]
        self.device_ns = np.array(device_ns, np.float64)
        self.order = np.argsort(nodes, kind="stable")
        self.starts = np.flatnonzero(np.diff(np.array(nodes)[self.order], prepend=-1))
        self.names = np.array(nodes)[self.order][self.starts]
        self.numbers = np.searchsorted(self.names, nodes)
        self.borders, self.kinds, self.roles = borders, kinds, tuple(roles)
        sizes = Counter(self.roles)
        compared = [rank for rank, role in enumerate(self.roles) if sizes[role] > 1]
        self.compared = np.array(compared or [*range(len(nodes))])
        self.columns: list[tuple[npt.NDArray[np.generic], ...]] = []
        self.typical: list[tuple[Floats, Floats, Floats, Floats]] = []
        self.usual: list[Floats] = []
        self.late_steps = np.zeros(len(nodes), np.int64)
        self.cause_sum = np.zeros((len(nodes), len(CAUSES)))
        self.meeting_sum = np.zeros((len(nodes), len(kinds) + 1))
        self.steps = 0
        self.bounds, self.scatter_sum = np.zeros(len(nodes)), 0.0
        self.alternation, self.node_alternation = Alternation(), Alternation()

    def skews(self, stamps_ns: Ints, bounds_ns: Floats, meetings_ns: Ints | None) -> tuple[StepSkews, Floats]:
        """How late ranks are in a piece, and what clocks leave open of that [step, rank]: of stamps on the global clock
        [rank, 1 + step, 6], bounds of t3 [rank, step], and meetings [rank, 1 + step, meeting, 3]."""
        if meetings_ns is None:
            return at_the_reduction(stamps_ns, self.borders), np.ascontiguousarray(bounds_ns.T)
        bound = np.ascontiguousarray(bounds_ns).T * (1 + len(self.kinds))  # clocks err by the same at each
        return at_all_meetings(stamps_ns, meetings_ns, self.numbers), bound

    def add_skews(self, first: int, stamps_ns: Ints, bound: Floats, skews: StepSkews) -> None:
        """Adds a piece from step `first` on; the stamps [rank, 1 + step, 6] begin with the step before."""
        arrive = np.ascontiguousarray(skews.late.T)
        steps, ranks = arrive.shape
        row, middle = np.arange(steps), (ranks - 1) // 2
        count = min(LATEST, ranks)
        places = {middle + at for at in (-1, 0, 1)} | {ranks - count, ranks - 2, ranks - 1}
        order = np.argpartition(arrive, sorted(place for place in places if place >= 0), axis=1)
        median, second, last = order[:, middle], order[:, ranks - 2], order[:, ranks - 1]
        latest = order[:, : -count - 1 : -1]
        latest = np.take_along_axis(latest, np.argsort(-np.take_along_axis(arrive, latest, 1), 1, kind="stable"), 1)
        sampled = self.compared[row % len(self.compared)]
        self.steps += steps
        self.scatter_sum += float(arrive.std(axis=1).sum())
        self.bounds += bound.sum(axis=0)
        skew = skews.late - arrive[row, median]
        ends = stamps_ns[:, :, END]
        least_ns = MATERIAL * float((ends[:, -1] - ends[:, 0]).mean()) / steps
        self._add_late(skews, skew, bound, median, least_ns)
        self._add_causes(skews, skew, order)
        at, of_median = row[:, None], np.stack(skews.parts(median, row), axis=-1)
        gap = arrive[row, last] - arrive[row, second] if skews.held_up is None else skews.held_up[last, row]
        self.columns.append(
            (
                first + row, latest, skew[latest, at],
                self._between(bound[at, latest], latest, bound[row, median][:, None], median[:, None]),
                np.stack(skews.parts(latest, at), axis=-1) - of_median[:, None],
                arrive[row, sampled] - arrive[row, np.where(sampled == last, second, last)], last,
                gap, self._between(bound[row, last], last, bound[row, second], second),
                *self._last_nodes(skews, bound, row),
            )
        )  # fmt: skip
        work = np.ascontiguousarray(skews.work)  # a rank's steps together
        if skews.meetings is None:
            next_late = arrive[row, order[:, middle + 1]] - arrive[row, median]
            self._add_typical([(np.ascontiguousarray(skew), next_late)], sampled)
        else:
            at_each = (np.ascontiguousarray(its) for its in skews.meetings)
            self._add_typical([(its, np.partition(its, middle + 1, axis=0)[middle + 1]) for its in at_each], sampled)
        self.alternation.add(work)
        self.node_alternation.add(self._by_node(np.maximum, work))

    def _add_typical(self, skews: Sequence[tuple[Ints, Ints]], sampled: Ints) -> None:
        """Adds what ranks are typically late by at each meeting, and `sampled` [step] as any other; `skews` are the
        delays [rank, step] after the median rank, and that of the next after it [step].

        What they add up to is compared with the median rank's: what comes and goes at other meetings hides no delay.
        """
        ranks, steps = skews[0][0].shape
        at, row = [int((1 - share) * steps) for share in (LATE_IN, OFTEN_IN)], np.arange(steps)
        of_ranks, of_nodes, usual = np.zeros((2, ranks)), np.zeros((2, len(self.starts))), np.zeros(1)
        for skew, next_late in skews:
            of_ranks += _smallest(skew, at)
            of_nodes += _smallest(self._by_node(np.minimum, skew), at)
            of_sampled = skew[sampled, row]
            usual += _smallest((of_sampled - np.where(of_sampled > 0, 0, next_late))[None], at)[0]
        centre = np.sort(of_ranks)[:, [(ranks - 1) // 2]] if len(skews) > 1 else np.zeros((2, 1))
        self.typical.append((*(of_ranks - centre), *(of_nodes - centre)))
        self.usual.append(usual - centre[0])

    def _add_late(self, skews: StepSkews, skew: Ints, bound: Floats, median: Ints, least_ns: float) -> None:
        """Adds where ranks are later than the median rank, provably and by `least_ns`, and before which meetings;
        `skew` [rank, step] is by how much."""
        of_others = bound[np.arange(len(median)), median][:, None]
        open_ns = self._between(bound, np.arange(len(skew)), of_others, median[:, None])
        by_step = skew.T
        late = (by_step > least_ns) & (by_step > open_ns)
        self.late_steps += late.sum(axis=0)
        for meeting, ns in enumerate(() if skews.meetings is None else skews.meetings):
            self.meeting_sum[:, meeting] += np.where(late, ns.T, 0).sum(axis=0)

    def _add_causes(self, skews: StepSkews, skew: Ints, order: Ints) -> None:
        """Adds the parts of the delays `skew` [rank, step] after the median of the other ranks, the mean of the middle
        two of an even number; `order` [step, rank] has the ranks in the order of their arrival about the middle."""
        ranks, row = len(skew), np.arange(skew.shape[1])
        middle = (ranks - 1) // 2
        below, median, above = (
            np.stack(skews.parts(order[:, place], row), axis=1)
            for place in (max(0, middle - 1), middle, min(ranks - 1, middle + 1))
        )
        later, earlier = (skew > 0).astype(np.int64), (skew < 0).astype(np.int64)
        is_median = 1 - later - earlier  # whoever is as late as it counts as the median rank
        if ranks % 2:
            twice = later @ (below + median) + is_median @ (below + above) + earlier @ (median + above)
        else:
            twice = 2 * (later @ median + (is_median + earlier) @ above)
        of_ranks = np.stack([ns.sum(axis=1) for ns in skews.parts(slice(None), slice(None))], axis=1)
        self.cause_sum += of_ranks - twice / 2

    def _by_node(self, reduce: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[node, step] from [rank, step]."""
        reduced: npt.NDArray[Any] = reduce.reduceat(values[self.order], self.starts, axis=0)
        return reduced

    def _between(self, bound: Floats, ranks: Ints, its: Floats, others: Ints) -> Floats:
        """The uncertainty of the order in ns between `ranks`, with these bounds, and `others`."""
        same = self.domains[ranks] == self.domains[others]
        return np.where(same, self.device_ns[ranks] + self.device_ns[others], bound + its)

    def _widest(self) -> float:
        """The sum of the two widest mean bounds of different clocks; of devices' stamps where there is but one."""
        of_clocks = np.zeros(self.domains.max() + 1)
        np.maximum.at(of_clocks, self.domains, self.bounds / self.steps)
        return float(np.sort(of_clocks if len(of_clocks) > 1 else self.device_ns)[-2:].sum())

    def _last_nodes(self, skews: StepSkews, bound: Floats, row: Ints) -> tuple[npt.NDArray[np.generic], ...]:
        """The node whose latest rank is the last of all, by how much more than that of the next node, and the bound."""
        latest, widest = (
            np.ascontiguousarray(self._by_node(np.maximum, np.ascontiguousarray(each)).T)
            for each in (skews.late, bound.T)
        )
        nodes = latest.shape[1]
        if nodes == 1:
            none = np.zeros(len(row), np.int64)
            return none, none, none.astype(np.float64)
        order = np.argpartition(latest, (nodes - 2, nodes - 1), axis=1)
        second, last = order[:, -2], order[:, -1]
        held_up = skews.held_up_by_node
        gap = latest[row, last] - latest[row, second] if held_up is None else held_up[last, row]
        return self.names[last], gap, widest[row, last] + widest[row, second]

    def arrivals(self) -> Arrivals:
        """The collected arrivals."""
        steps, latest, late, late_bound, parts, margin, *others = (
            np.concatenate(column) for column in zip(*self.columns, strict=True)
        )
        levels = [np.stack(level, axis=1) for level in zip(*self.typical, strict=True)]
        groups = [
            LastArrivals(
                last=last, gap=gap, gap_bound=gap_bound, typical=typical, often=often, alternation=alternation.finish()
            )
            for (last, gap, gap_bound), (typical, often), alternation in zip(
                (others[:3], others[3:]), (levels[:2], levels[2:]), (self.alternation, self.node_alternation),
                strict=True,
            )
        ]  # fmt: skip
        return Arrivals(
            causes=_names(self.borders), run=np.zeros_like(steps), piece_run=np.zeros(len(self.typical), np.int64),
            steps=steps, ranks=groups[0], nodes=groups[1], latest=latest, late=late, late_bound=late_bound, parts=parts,
            margin=margin, usual=np.concatenate(self.usual),
            late_steps=self.late_steps, rank_cause=self.cause_sum / max(1, self.steps),
            bound=self._widest(), scatter=self.scatter_sum / max(1, self.steps),
            meetings=tuple(labels_of(self.kinds)) if len(self.kinds) else (),
            rank_meetings=self.meeting_sum / np.maximum(1, self.late_steps)[:, None], roles=self.roles,
        )  # fmt: skip


_BY_STEP = ("steps", "latest", "late", "late_bound", "parts", "margin")


def pooled(runs: Sequence[Arrivals]) -> Arrivals:
    """The arrivals of several runs of equal ranks with the same time stamps, one run after the other."""
    if len(runs) == 1:
        return runs[0]

    def joined(name: str, of: Sequence[Any], axis: int = 0) -> Any:
        return np.concatenate([getattr(each, name) for each in of], axis=axis)

    groups = [
        LastArrivals(
            **{name: joined(name, of) for name in ("last", "gap", "gap_bound")},
            **{name: joined(name, of, axis=1) for name in ("typical", "often")},
            alternation=np.sum([each.alternation for each in of], axis=0),
        )
        for of in ([each.ranks for each in runs], [each.nodes for each in runs])
    ]  # fmt: skip
    late_steps = np.sum([each.late_steps for each in runs], axis=0)
    cause_sum = np.sum([each.rank_cause * len(each.steps) for each in runs], axis=0)
    meeting_sum = np.sum([each.rank_meetings * each.late_steps[:, None] for each in runs], axis=0)
    run = [np.full(len(each.steps), number) for number, each in enumerate(runs)]
    piece_run = [np.full(len(each.piece_run), number) for number, each in enumerate(runs)]
    return Arrivals(
        causes=runs[0].causes, run=np.concatenate(run), piece_run=np.concatenate(piece_run), ranks=groups[0],
        nodes=groups[1], late_steps=late_steps,
        **{name: joined(name, runs) for name in _BY_STEP}, usual=joined("usual", runs),
        rank_cause=cause_sum / sum(len(each.steps) for each in runs),
        bound=max(each.bound for each in runs),
        scatter=sum(each.scatter * len(each.steps) for each in runs) / sum(len(each.steps) for each in runs),
        meetings=runs[0].meetings,
        rank_meetings=meeting_sum / np.maximum(1, late_steps)[:, None], roles=runs[0].roles,
    )  # fmt: skip


def _smallest(values: npt.NDArray[Any], at: Sequence[int]) -> Floats:
    """The values of each row [row] that have so many values `at` [place] below or equal to them: [place, row]."""
    values_at: Floats = np.partition(values, at, axis=1)[:, at].T.astype(np.float64)
    return values_at


def _names(borders: frozenset[str]) -> tuple[str, ...]:
    """CAUSES; two that no stamp separates have one name, in the place of one, and the other is empty."""
    names = list(CAUSES)
    if "reduced" not in borders:
        names[0], names[1] = "release+optimizer", ""
    if "batch_ready" not in borders:
        names[2], names[3] = "", "data+compute"
    return tuple(names)
