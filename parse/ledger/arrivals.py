"""When ranks arrive at the reduction, step by step: the last one, its arrival skew, and what made it late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT, END, GRADS_READY, REDUCED, STAMPS
from hpc.model.trace import Bools, Floats, Ints
from parse.graph.step_graph import ARRIVES, ENDS, WAITS
from parse.ledger.meetings import MeetingKinds
from parse.rules import WORTH_NAMING
from parse.term_kinds import BORDERS, CAUSE_KINDS, CAUSES, COMMUNICATION, COMPUTE, DATA, TERM_KINDS, causes_between

# How late each rank is in each step, and what made it late: at the one reduction of a step, or at all its meetings.
#
# Where ranks meet several times in a step, what a rank is late by adds up over the meetings in which somebody waits for
# it. What it did since the others last held it, or waited for it, is what made it late.

_RELEASE = CAUSES.index(COMMUNICATION.cause)
"""The place of what a rank left a meeting later by."""
REDUCTION = "reduction of the gradients"


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSkews:
    """All ns. `late` [rank, step] is the arrival of each rank, less a number that all ranks of the step have in common.
    `parts` gives of ranks [n] in steps [n], or of all by slices, what adds up to `late`, an array for each of CAUSES,
    less numbers that all ranks of the step have in common.

    Where ranks meet `several` times in a step, what they are late by is added up over the meetings; `meetings`
    [meeting, rank, step] is `late`, less that of the median rank, meeting by meeting, the reduction last; None where it
    is not known of each.
    """

    late: Ints
    parts: Callable[[Ints | slice, Ints | slice], Sequence[Ints]]
    several: bool = False
    meetings: Ints | None = None


def at_the_reduction(stamps: Ints, borders: frozenset[str]) -> StepSkews:
    """From stamps on the global clock [rank, 1 + step, 6]: at the reduction, where ranks do not meet before."""
    late = stamps[:, 1:, GRADS_READY]
    return _between(_edges(stamps[:, :-1], stamps[:, 1:], {*borders, COMPUTE.ends_at}), late)


def _edges(before: Ints, now: Ints, borders: Collection[str]) -> list[Ints | None]:
    """When each of CAUSES ends [rank, step], by stamps [rank, step, 6] of the steps before these and of these; None
    where that is not among the borders."""
    first = CAUSE_KINDS.index(TERM_KINDS[0])
    return [
        (before if at < first else now)[:, :, kind.stamp] if kind.ends_at in {*borders, STAMPS[END]} else None
        for at, kind in enumerate(CAUSE_KINDS)
    ]


def _between(edges: Sequence[Ints | None], late: Ints) -> StepSkews:
    """What is between these edges; what ends at none is a part of the next, and 0."""

    def parts(ranks: Ints | slice, steps: Ints | slice) -> Sequence[Ints]:
        its = list[Ints]()
        begin: Ints | None = None
        for edge in edges:
            if edge is None:
                its.append(np.zeros_like(late[ranks, steps]))
                continue
            end: Ints = edge[ranks, steps]
            its.append(end if begin is None else end - begin)
            begin = end
        return its

    return StepSkews(late=late, parts=parts)


def at_all_meetings(stamps: Ints, meetings: Ints) -> StepSkews:
    """From stamps [rank, 1 + step, 6] and meetings [rank, 1 + step, meeting, 3] on the global clock, of
    `awaited_calls`; one that is absent on all ranks is none of that step's.

    Steps are looked at together with those that have the same meetings.
    """
    present = meetings[0, :, :, ENDS] != ABSENT
    placed = [_place(stamps, meetings[:, :, at], present[:, at]) for at in range(meetings.shape[2])]
    whole = _Course(stamps[:, :-1], stamps[:, 1:], meetings.shape[2])
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
        course = _Course(before, now, meetings.shape[2])
        course.go(_events(now, meetings[:, steps], meetings[:, steps + 1], its))
        whole.take(steps, course)
    return whole.skews()


def at_the_begin(stamps: Ints, borders: frozenset[str]) -> StepSkews:
    """As `at_the_reduction`, where nothing is known of a step but when a rank begins it with its batch, or without."""
    ready = stamps[:, 1:, DATA.stamp] if DATA.ends_at in borders else stamps[:, :-1, END]
    return _between(_edges(stamps[:, :-1], stamps[:, 1:], borders & {DATA.ends_at}), ready)


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

    def __init__(self, before: Ints, now: Ints, meetings: int) -> None:
        """`before` and `now` are stamps [rank, step, 6] of the steps before these, and of these."""
        self._edges = [edge.T for edge in _edges(before, now, BORDERS) if edge is not None]
        self.now = self._edges[0]
        steps, ranks = self.now.shape
        self.row = np.arange(steps)
        self.parts = np.zeros((steps, ranks, len(CAUSES)), np.int64)
        self.parts[..., _RELEASE] = self.now - self.now.min(axis=1, keepdims=True)
        self.done = np.zeros_like(self.parts)
        self.called: dict[int, tuple[Ints, Ints]] = {}
        self.late_at = np.zeros((meetings + 1, steps, ranks), np.int64)
        self.caused = np.zeros_like(self.parts)

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
        self.caused[steps] = other.caused

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
        return median

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
            several=True, meetings=self.late_at.swapaxes(1, 2),
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


MOST_CELLS = 8_000_000
"""Of a run with more cells (ranks × steps) pieces spread over its window are kept; it bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrivals:
    """When the ranks of a run arrive. All times in ns.

    `steps` [step] are the numbers of its steps, those of pieces spread over its window where all `of_steps` have too
    many cells, `late` [step, rank] the delay of each rank after the median rank, the
    lower one of an even number, `parts` [step, rank, 4] the parts of that, named by `causes`; where two that no stamp
    separates are one, the other is 0. `level` [step] is the own work of the median rank. `open_ns` [rank, rank] is what
    the clocks leave open of the order of two ranks: of one clock what their devices' stamps do. `last` and `last_node`
    are the share of the steps in which a rank, or one of a node's, arrives last beyond that, by numbers.

    `rank_meetings` [rank, meeting] are the mean parts of a rank's delay that arise at each meeting, named by
    `meetings`, in the `late_steps` [rank] in which it is late; none where ranks meet at the reduction alone. `roles`
    [rank] are numbers of what ranks do: only those of one role can be compared; none: all do the same.
    """

    causes: tuple[str, ...]
    steps: Ints
    late: Ints
    parts: npt.NDArray[np.float32]
    level: Ints
    clock_ns: Floats
    domains: Ints
    device_ns: Floats
    last: Mapping[int, float]
    last_node: Mapping[int, float]
    late_steps: Ints
    of_steps: int = 0
    meetings: tuple[str, ...] = ()
    rank_meetings: Floats = field(default_factory=lambda: np.empty((0, 0)))
    roles: tuple[int, ...] = ()

    def by_own_work(self, but: Sequence[int] = ()) -> Arrivals:
        """The same if all ranks, `but` these, left their meetings at the same time; itself where it is not known when
        they do."""
        if self.causes[_RELEASE] != CAUSES[_RELEASE]:
            return self
        parts = self.parts.copy()
        others = np.setdiff1d(np.arange(parts.shape[1]), but)
        late = self.late.copy()
        late[:, others] -= np.rint(parts[:, others, _RELEASE]).astype(np.int64)
        parts[:, others, _RELEASE] = 0
        row, median = np.arange(len(late)), _median(late, np.zeros((1, 1), np.bool_))
        return replace(self, late=late - late[row, median][:, None], parts=parts - parts[row, median][:, None])

    @property
    def layout(self) -> tuple[object, ...]:
        """What those of runs have in common that can be put together."""
        return self.causes, self.meetings, self.roles

    @property
    def bound(self) -> float:
        """What the clocks leave open of two ranks' order at most: of the two with the widest bounds."""
        of_clocks = np.zeros(int(self.domains.max()) + 1)
        np.maximum.at(of_clocks, self.domains, self.clock_ns)
        return float(np.sort(of_clocks if len(of_clocks) > 1 else self.device_ns)[-2:].sum())

    def open_ns(self, ranks: Ints, others: Ints) -> Floats:
        """What the clocks leave open of the order of these ranks and these others, each with each."""
        same = self.domains[ranks] == self.domains[others]
        return np.where(
            same, self.device_ns[ranks] + self.device_ns[others], self.clock_ns[ranks] + self.clock_ns[others]
        )


class ArrivalCollector:
    """Makes Arrivals from pieces of a run's steps.

    `nodes` [rank] numbers each rank's node; ranks of equal `domains` [rank] read one clock, so that the only
    uncertainty between them is that of their devices' time stamps, `device_ns` [rank]. `roles` are as in Arrivals;
    `steps` is the number of the run's.
    """

    def __init__(
        self, nodes: Sequence[int], domains: Sequence[str], device_ns: Sequence[float], borders: frozenset[str],
        kinds: MeetingKinds, steps: int, roles: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.nodes, self.domains = np.array(nodes), np.unique(domains, return_inverse=True)[1].ravel()
        self.device_ns = np.array(device_ns, np.float64)
        self.borders, self.kinds, self.roles = borders, kinds, tuple(roles)
        self.keep_every, self.pieces = -(-len(nodes) * steps // MOST_CELLS), 0
        self.columns: tuple[list[npt.NDArray[Any]], ...] = ([], [], [], [])
        self.late_steps, self.bounds = np.zeros(len(nodes), np.int64), np.zeros(len(nodes))
        self.meeting_sum = np.zeros((len(nodes), len(kinds) + 1))
        self.last, self.last_node = Counter[int](), Counter[int]()
        self.steps = 0

    def skews(self, stamps_ns: Ints, bounds_ns: Floats, meetings_ns: Ints | None) -> tuple[StepSkews, Floats]:
        """How late ranks are in a piece, and what clocks leave open of that [rank, step]: of stamps on the global clock
        [rank, 1 + step, 6], bounds of t3 [rank, step], and meetings [rank, 1 + step, meeting, 3]."""
        if meetings_ns is None:
            return at_the_reduction(stamps_ns, self.borders), bounds_ns
        return at_all_meetings(stamps_ns, meetings_ns), bounds_ns * (1 + len(self.kinds))  # clocks err by it at each

    def add(self, first: int, bounds_ns: Floats, skews: StepSkews, own_ns: Ints, step_ns: float) -> None:
        """Adds a piece from step `first` on, of so long steps; `own_ns` [rank, step] is the ranks' own work."""
        late = np.array(skews.late.T, order="C")
        steps, ranks = late.shape
        row, middle = np.arange(steps), (ranks - 1) // 2
        late -= np.partition(late, middle, axis=1)[:, middle, None]
        median = (late == 0).argmax(axis=1)
        self.steps += steps
        self.bounds += bounds_ns.sum(axis=1)
        self._add_last(late, late.argmax(axis=1), bounds_ns.mean(axis=1))
        is_late = late > WORTH_NAMING * step_ns
        self.late_steps += is_late.sum(axis=0)
        for meeting, ns in enumerate(() if skews.meetings is None else skews.meetings):
            self.meeting_sum[:, meeting] += np.where(is_late, ns.T, 0).sum(axis=0)
        self.pieces += 1
        if (self.pieces - 1) % self.keep_every:
            return
        parts = np.empty((steps, len(CAUSES), ranks), np.float32)
        for cause, ns in enumerate(skews.parts(slice(None), slice(None))):
            np.subtract(ns.T, ns[median, row][:, None], out=parts[:, cause], casting="unsafe")
        level = np.partition(own_ns.T, middle, axis=1)[:, middle]
        these: tuple[npt.NDArray[Any], ...] = (first + row, late, parts, level)
        for column, piece in zip(self.columns, these, strict=True):
            column.append(piece)

    def _add_last(self, late: Ints, last: Ints, bounds: Floats) -> None:
        """Counts the ranks and nodes that are last beyond what the clocks leave open, by mean `bounds` [rank]."""
        row = np.arange(len(late))
        for numbers, counts in ((np.arange(len(self.nodes)), self.last), (self.nodes, self.last_node)):
            others = np.where(numbers[None] == numbers[last][:, None], np.iinfo(np.int64).min, late)
            second = others.argmax(axis=1)
            same = self.domains[last] == self.domains[second]
            open_ns = np.where(same, self.device_ns[last] + self.device_ns[second], bounds[last] + bounds[second])
            has_second = others[row, second] > np.iinfo(np.int64).min
            gap = np.where(has_second, late[row, last] - np.where(has_second, others[row, second], 0), 0)
            counts.update(numbers[last[gap > open_ns]].tolist())

    def arrivals(self) -> Arrivals | None:
        """The collected arrivals; None where there is no step in which ranks could be compared."""
        if not self.columns[0]:
            return None
        steps, late, parts, level = map(_joined, self.columns)
        share = 1 / max(1, self.steps)
        return Arrivals(
            causes=causes_between(self.borders), steps=steps, late=late, parts=parts.swapaxes(1, 2), level=level,
            clock_ns=self.bounds * share, domains=self.domains, device_ns=self.device_ns,
            last={number: count * share for number, count in self.last.items()},
            last_node={number: count * share for number, count in self.last_node.items()},
            late_steps=self.late_steps, of_steps=self.steps,
            meetings=tuple(labels_of(self.kinds)) if len(self.kinds) else (),
            rank_meetings=self.meeting_sum / np.maximum(1, self.late_steps)[:, None], roles=self.roles,
        )  # fmt: skip


def _joined(pieces: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """All in one; the list is empty then, so that they take memory once."""
    its = np.concatenate(pieces)
    pieces.clear()
    return its
