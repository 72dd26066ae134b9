"""Ranks that do the same in a step, their own work piece by piece, and what it is in the median of such peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from hpc.model.groups import GROUP, NAME
from hpc.model.timestamps import ABSENT, END
from hpc.model.trace import Bools, Floats, Ints
from parse.graph.step_graph import ARRIVES, ENDS, NONE
from parse.graph.terms import PHASES, GraphSteps
from parse.term_kinds import COMPUTE, WORK

# Between two events of a rank (a call, a wait, a border of phases) lies a piece of its own work. Ranks of one role have
# the same events, so their pieces can be compared one by one. All steps of a graph have the same events.

ALL_TO_ALL = "all-to-all"
"""How the names of collectives begin that bring tokens to experts, and back."""
_BORDERS = tuple(kind.stamp for kind in WORK[:-1])
"""The stamps between two of PHASES."""
LONG_AGO = np.iinfo(np.int64).min // 4
ByRow = TypeVar("ByRow", Ints, Floats)


@dataclass(frozen=True)
class RoleEvent:
    """What ends a piece of own work, by the number of its call, or by that of the time stamp that is a border; `phase`
    is the piece's, of `parse.graph.terms.PHASES`."""

    call: int
    border: int
    is_wait: bool
    phase: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Role:
    """Ranks that do the same, and their events. `first` is the row of the first event of the first rank; those of the
    other ranks follow, then those of the next event. `position` [rank] is each one's in its groups of all-to-alls,
    0 without any; only ranks of one position do the same in the pieces `of_experts` [event].
    """

    ranks: Ints
    events: tuple[RoleEvent, ...]
    first: int
    position: Ints
    of_experts: Bools

    @property
    def computes(self) -> Bools:
        """Which pieces are compute [event]."""
        return np.array([PHASES[event.phase] == COMPUTE.name for event in self.events])

    def block(self, by_row: ByRow) -> ByRow:
        """Its part of what is given by row, [event, rank, …]; a view."""
        rows = by_row[self.first : self.first + len(self.events) * len(self.ranks)]
        return rows.reshape(len(self.events), len(self.ranks), *by_row.shape[1:])


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """What ranks did in some steps, ns, each [n, step].

    `pieces` [row] are its own work before each event. From the last wait before it, or from the `begins` [rank] of the
    step, it takes a rank so long until each arrival (`until_call`), each wait (`until_wait`), and the end of its step
    (`until_end` [rank]). `communication` [wait] is what a wait takes after the last whom it depends on.
    """

    pieces: Ints
    begins: Ints
    until_call: Ints
    until_wait: Ints
    until_end: Ints
    communication: Ints

    @property
    def steps(self) -> int:
        return len(self.begins[0])

    def total(self) -> Work:
        """One step that is the sum of these, which begin when the first rank does."""
        its = {**vars(self), "begins": self.begins - self.begins.min(axis=0)}
        return Work(**{name: each.sum(axis=1, keepdims=True) for name, each in its.items()})


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """When each wait is over, and how long it waits [wait, step]; when each rank ends [rank, step]."""

    over: Ints
    ends: Ints
    waited: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Slack:
    """How much later each event could be [row, step], and how late each rank could begin [rank, step], with the latest
    end of the step where it is; and how long each event waits [row, step]."""

    events: Ints
    waited: Ints
    begins: Ints


class Peers:
    """The roles of a graph, and how their rows belong to its arrivals and waits."""

    def __init__(self, steps: GraphSteps) -> None:
        """The borders of phases are where they are in the mean of these steps."""
        self.graph = graph = steps.graph
        self.ranks, self.width = graph.present.shape
        self.roles = tuple(self._roles(steps))
        self.role_of = np.empty(self.ranks, np.int64)
        for number, role in enumerate(self.roles):
            self.role_of[role.ranks] = number
        last = self.roles[-1]
        self.rows = last.first + len(last.events) * len(last.ranks)
        waits = len(graph.wait_rank)
        self.before = np.where(graph.wait_before == NONE, waits + graph.wait_rank, graph.wait_before)
        self.behind = np.where(graph.arrival_behind == NONE, waits + graph.arrival_rank, graph.arrival_behind)
        self.last = np.where(graph.last_wait == NONE, waits + np.arange(self.ranks), graph.last_wait)
        self.arrival_call = graph.events[graph.arrival_rank, graph.arrival_event]
        self.wait_call = graph.events[graph.wait_rank, graph.wait_event] - self.width
        self.arrival_row, self.wait_row, self.end_row = self._rows_of()

    def _roles(self, steps: GraphSteps) -> Iterator[Role]:
        first, stamps_ns = 0, steps.stamps_ns[:, 1:].swapaxes(0, 1)
        graph, waits = self.graph, np.zeros((self.ranks, self.width), np.bool_)
        waits[graph.wait_rank, graph.events[graph.wait_rank, graph.wait_event] - self.width] = True
        numbers = np.unique(np.column_stack([graph.calls.roles, waits]), axis=0, return_inverse=True)[1].ravel()
        for number in range(int(numbers.max()) + 1):
            ranks = np.flatnonzero(numbers == number)
            begins = steps.begin_ns[:, ranks, None]
            events = self._events(ranks, stamps_ns[:, ranks] - begins, steps.calls_ns[:, ranks] - begins[..., None])
            position, of_experts = self._experts(ranks, events)
            yield Role(ranks=ranks, events=events, first=first, position=position, of_experts=of_experts)
            first += len(events) * len(ranks)

    def _events(self, ranks: Ints, stamps: Ints, calls: Ints) -> tuple[RoleEvent, ...]:
        """Those that most of the ranks have, with the borders where they are in the mean; stamps [step, rank, 6] and
        calls [step, rank, call, 3] since the begins of steps."""
        orders, counts = np.unique(self.graph.events[ranks], axis=0, return_counts=True)
        order = [event for event in orders[counts.argmax()].tolist() if event != NONE]
        since = calls[..., [ARRIVES, ENDS]].mean(axis=(0, 1))
        borders = [(float(stamps[:, :, border].mean()), border) for border in _BORDERS]
        events: list[RoleEvent] = []
        for event in order:
            call, is_wait = event % self.width, event >= self.width
            # What is called at a border is behind it, and a wait that ends there before it.
            while borders and (borders[0][0], is_wait) <= (since[call, int(is_wait)], False):
                events.append(RoleEvent(NONE, borders.pop(0)[1], False, _phase(events)))
            events.append(RoleEvent(call, NONE, is_wait, _phase(events)))
        for border in (*(each for _, each in borders), END):
            events.append(RoleEvent(NONE, border, False, _phase(events)))
        return tuple(events)

    def _experts(self, ranks: Ints, events: Sequence[RoleEvent]) -> tuple[Ints, Bools]:
        """The position of each of these ranks in its groups of all-to-alls, and which pieces it computes behind the
        first of them: each has its own experts. All have one position where it is recorded that they get as much."""
        calls = self.graph.calls
        its = calls.calls[ranks]
        exchanges = [event for event in events if event.call != NONE
                     and calls.names[its[0, event.call, NAME]].startswith(ALL_TO_ALL)]  # fmt: skip
        even = calls.exchanged is not None and not np.ptp(calls.exchanged[ranks], axis=0).any()
        of_experts = np.zeros(len(events), np.bool_)
        if even or not exchanges:
            return np.zeros(len(ranks), np.int64), of_experts
        first = next(place for place, event in enumerate(events) if event in exchanges and event.is_wait)
        of_experts[first + 1 :] = [PHASES[event.phase] == COMPUTE.name for event in events[first + 1 :]]
        places = [
            [calls.groups[group].ranks.index(rank) for group in of_rank]
            for rank, of_rank in zip(ranks, its[:, [event.call for event in exchanges], GROUP].tolist(), strict=True)
        ]
        position: Ints = np.unique(places, axis=0, return_inverse=True)[1].ravel()
        return position, of_experts

    def _rows_of(self) -> tuple[Ints, Ints, Ints]:
        """The rows of the graph's arrivals, of its waits, and of each rank's end."""
        row = np.full((self.ranks, 2 * self.width), NONE)
        ends = np.empty(self.ranks, np.int64)
        for role in self.roles:
            block = role.block(np.arange(self.rows))
            for place, event in enumerate(role.events):
                if event.call != NONE:
                    row[role.ranks, event.call + self.width * event.is_wait] = block[place]
            ends[role.ranks] = block[-1]
        graph = self.graph
        return (
            row[graph.arrival_rank, self.arrival_call], row[graph.wait_rank, self.wait_call + self.width], ends
        )  # fmt: skip

    def work(self, recorded: GraphSteps) -> Work:
        """That of steps of the same graph; a call without an arrival arrives when its rank begins to wait."""
        graph = self.graph
        begins_ns = np.ascontiguousarray(recorded.stamps_ns[:, :-1, END])  # [rank, step], as all of what follows
        stamps_ns = np.ascontiguousarray(recorded.stamps_ns[:, 1:].transpose(2, 0, 1))
        calls_ns = np.ascontiguousarray(recorded.calls_ns.transpose(3, 2, 1, 0))  # [stamp, call, rank, step]
        arrives_ns, waits_ns, ends_ns = calls_ns
        np.copyto(arrives_ns, waits_ns, where=arrives_ns == ABSENT)
        steps = begins_ns.shape[1]
        pieces = np.empty((self.rows, steps), np.int64)
        for role in self.roles:
            block, after = role.block(pieces), begins_ns[role.ranks]
            for place, event in enumerate(role.events):
                if event.call == NONE:
                    at = leaves = stamps_ns[event.border, role.ranks]
                elif event.is_wait:
                    at, leaves = waits_ns[event.call, role.ranks], ends_ns[event.call, role.ranks]
                else:
                    at = leaves = arrives_ns[event.call, role.ranks]
                np.subtract(at, after, out=block[place])
                after = leaves
        arrives = arrives_ns[self.arrival_call, graph.arrival_rank]
        begin_waits, over = (each[self.wait_call, graph.wait_rank] for each in (waits_ns, ends_ns))
        state = np.concatenate([over, begins_ns])
        latest = np.full((len(graph.need_starts) + 1, steps), LONG_AGO)
        if len(graph.need_starts):
            latest[:-1] = np.maximum.reduceat(arrives, graph.need_starts, axis=0)
        return Work(
            pieces=pieces, begins=state[len(over) :], until_call=arrives - state[self.behind],
            until_wait=begin_waits - state[self.before], until_end=stamps_ns[END] - state[self.last],
            communication=over - np.maximum(begin_waits, latest[graph.wait_need]),
        )  # fmt: skip

    def replay(self, work: Work) -> Replayed:
        """The steps once more, each from the begins of its own."""
        graph, waits = self.graph, len(self.graph.wait_rank)
        state = np.empty((waits + self.ranks, work.steps), np.int64)
        state[waits:] = work.begins
        waited = np.zeros((waits, work.steps), np.int64)
        latest = np.full((len(graph.need_starts) + 1, work.steps), LONG_AGO)
        for level in graph.levels:
            arrivals, its = level.arrivals, level.waits
            if arrivals.stop > arrivals.start:
                moments = state[self.behind[arrivals]] + work.until_call[arrivals]
                starts = graph.need_starts[level.needs] - arrivals.start
                latest[level.needs] = np.maximum.reduceat(moments, starts, axis=0)
            begin = state[self.before[its]] + work.until_wait[its]
            needed = np.maximum(begin, latest[graph.wait_need[its]])
            np.subtract(needed, begin, out=waited[its])
            np.add(needed, work.communication[its], out=state[its])
        return Replayed(over=state[:waits], ends=state[self.last] + work.until_end, waited=waited)

    def replay_in_turn(self, cases: Sequence[Work], begins: Ints) -> Ints:
        """The ends of the last of these steps [rank, case]: in each case they follow one another from `begins`.

        Without a change that gives back the recorded ends to the nanosecond.
        """
        names = ("until_call", "until_wait", "until_end", "communication")
        by_step = [np.stack([getattr(case, name).T for case in cases], axis=-1) for name in names]
        for of_step in zip(*by_step, strict=True):
            its = dict(zip(names, of_step, strict=True))
            begins = self.replay(Work(pieces=begins[:0], begins=begins, **its)).ends
        return begins

    def with_pieces(self, work: Work, of_role: Callable[[Role, Ints], Ints]) -> Work:
        """The same with what this makes of the pieces of each role, both [event, rank, step]."""
        less = np.empty_like(work.pieces)
        for role in self.roles:
            its = role.block(work.pieces)
            role.block(less)[:] = its - of_role(role, its)
        return self.changed(work, less)

    def changed(self, work: Work, less: Ints) -> Work:
        """The same where pieces of own work are shorter by so much [row, step]."""
        since = np.zeros_like(less)  # the last wait
        for role in self.roles:
            its = role.block(less)
            ranks = np.flatnonzero(its.any(axis=(0, 2)))
            its = its[:, ranks]
            total = np.zeros_like(its[0])
            for place, event in enumerate(role.events):
                total += its[place]
                role.block(since)[place, ranks] = total
                if event.is_wait:
                    total[:] = 0
        return replace(
            work, pieces=work.pieces - less, until_call=work.until_call - since[self.arrival_row],
            until_wait=work.until_wait - since[self.wait_row], until_end=work.until_end - since[self.end_row],
        )  # fmt: skip

    def median(self, by_row: Ints) -> list[Ints]:
        """By role, of each event, [event, 1, step] or, where experts have a position, [event, rank, step]: the median
        of the ranks of the role, of work of experts that of their position; the lower one of an even number."""
        result = []
        for role in self.roles:
            block = role.block(by_row)
            median = _lower(block)
            if role.position.any():
                median = np.repeat(median, block.shape[1], axis=1)
                for position in np.unique(role.position):
                    its = np.ix_(role.of_experts, role.position == position)
                    median[its] = _lower(block[its])
            result.append(median)
        return result

    @cached_property
    def sizes(self) -> Ints:
        """How many ranks the role of each rank has [rank]."""
        sizes: Ints = np.bincount(self.role_of)[self.role_of]
        return sizes

    def typical(self, work: Work, medians: Sequence[Ints]) -> Work:
        """One step in which every rank takes as long as its peers in the median of these steps: `medians` are those of
        `pieces`, by role."""
        pieces = np.empty((self.rows, 1), np.int64)
        communication = np.zeros((self.rows, work.steps), np.int64)
        communication[self.wait_row] = work.communication
        by_row = np.empty((self.rows, 1), np.int64)
        begins = np.empty((self.ranks, 1), np.int64)
        since = work.begins - work.begins.min(axis=0)
        its_communication = self.median(communication)
        for role, of_role, exposed in zip(self.roles, medians, its_communication, strict=True):
            role.block(pieces)[:] = lower_median(of_role, axis=-1)[..., None]
            role.block(by_row)[:] = lower_median(exposed, axis=-1)[..., None]
            begins[role.ranks] = lower_median(since[role.ranks].reshape(1, -1), axis=-1)
        empty = Work(
            pieces=np.zeros_like(pieces), begins=begins, until_call=np.zeros((len(self.arrival_row), 1), np.int64),
            until_wait=np.zeros((len(self.wait_row), 1), np.int64), until_end=np.zeros((self.ranks, 1), np.int64),
            communication=by_row[self.wait_row],
        )  # fmt: skip
        return replace(self.changed(empty, -pieces), pieces=pieces)

    def slack(self, work: Work, lead: Ints) -> Slack:
        """That of each event where the end of a rank counts from its `lead` [rank, step] on alone."""
        graph, replayed = self.graph, self.replay(work)
        waits, steps = len(graph.wait_rank), work.steps
        state = np.concatenate([replayed.over, work.begins])
        far = np.iinfo(np.int64).max // 4
        may_be = np.full((waits + self.ranks, steps), far)  # the latest moments for the ends of waits
        of_need = np.full((len(graph.need_starts) + 1, steps), far)
        latest_end = (replayed.ends - lead).max(axis=0) + lead
        np.minimum.at(may_be, self.last, latest_end - work.until_end)
        of_call, of_wait = (np.empty((len(rows), steps), np.int64) for rows in (self.arrival_row, self.wait_row))
        for level in reversed(graph.levels):
            its, arrivals = level.waits, level.arrivals
            may = may_be[its] - work.communication[its]
            before = self.before[its]
            of_wait[its] = may - state[before] - work.until_wait[its]
            may_be[before] = np.minimum(may_be[before], may - work.until_wait[its])
            needs = graph.wait_need[its]
            np.minimum.at(of_need, needs[needs != NONE], may[needs != NONE])
            if arrivals.stop > arrivals.start:
                sizes = np.diff(graph.need_starts[level.needs], append=arrivals.stop)
                may = np.repeat(of_need[level.needs], sizes, axis=0)
                behind = self.behind[arrivals]
                of_call[arrivals] = may - state[behind] - work.until_call[arrivals]
                np.minimum.at(may_be, behind, may - work.until_call[arrivals])
        slack = np.full((self.rows, steps), far)
        np.minimum.at(slack, self.arrival_row, of_call)
        slack[self.wait_row] = of_wait
        slack[self.end_row] = latest_end - replayed.ends
        waited = np.zeros((self.rows, steps), np.int64)
        waited[self.wait_row] = replayed.waited
        for role in self.roles:
            block = role.block(slack)
            for place in range(len(role.events) - 2, -1, -1):
                if not role.events[place].is_wait:
                    block[place] = np.minimum(block[place], block[place + 1])
        return Slack(events=slack, waited=waited, begins=may_be[waits:])


def _phase(events: Sequence[RoleEvent]) -> int:
    """That of own work after these events."""
    return len({event.border for event in events}.intersection(_BORDERS))


def _lower(block: Ints) -> Ints:
    """The lower median over ranks [event, 1, step]."""
    count = block.shape[1]
    if count < 2:
        return block
    if count == 2:
        return np.minimum(block[:, :1], block[:, 1:])
    return lower_median(block, axis=1)[:, None]


def lower_median(values: Ints, axis: int) -> Ints:
    """The median over an axis, the lower one of an even number."""
    middle = (values.shape[axis] - 1) // 2
    median: Ints = np.partition(values, middle, axis=axis).take(middle, axis=axis)
    return median
