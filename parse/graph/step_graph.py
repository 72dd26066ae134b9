"""The calls of a step as a graph: which of them meet, in which order a rank makes them, what each wait depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hpc.model.groups import GROUP, MESSAGE, NAME, NO_CALL, NUMBER, ROOT, RankGroup
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Bools, Floats, Ints, Trace, TraceError
from hpc.system.text import first_of

# A step of a rank is its own work, cut by what it calls and what it waits for. A call arrives at its meeting; a wait is
# over when all have arrived whom it depends on. The order of these events is that of their times on the rank, which one
# clock took, so that the clocks of others cannot contradict it: the graph of what really ran has no circle.

ARRIVES, WAITS, ENDS = range(3)
NO_ROOT, UNCLEAR = -1, -2
"""Roots of a meeting in which everybody waits for everybody, and of one in which that is not known."""
NONE = -1
REDUCTION = "reduction of the gradients"
ALL_RANKS = "all ranks"
DIMENSIONS = ("dp", "dp_replicate", "dp_shard", "tp", "pp", "ep", "cp")
"""The usual ones, in the order in which they are shown; others follow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepCalls:
    """The calls of a step of all ranks and the meetings that they are.

    `calls` [rank, call, 4] are those of a trace and behind them, of ranks that have one, the wrapper's reduction of
    their gradients (`reduces` [rank]); `by_calls` [rank] are those whose calls reduce them. `meeting` [rank, call] is
    the number of a call's meeting, NONE for no call; `members` are the calls, as rank × calls + call, meeting by
    meeting, whose first ones are at `starts`. Of meetings: `root` and the number of its `dimension`, `is_whole` where
    all of its group have such a call.
    """

    names: tuple[str, ...]
    groups: tuple[RankGroup, ...]
    calls: Ints
    reduces: Bools
    by_calls: Bools
    meeting: Ints
    members: Ints
    starts: Ints
    root: Ints
    dimension: Ints
    is_whole: Bools
    dimensions: tuple[str, ...]
    exchanged: Floats | None = None

    @cached_property
    def sizes(self) -> Ints:
        """How many call each meeting."""
        return np.diff(self.starts, append=len(self.members))

    @cached_property
    def call_dimension(self) -> Ints:
        """The dimension of each call [rank, call], NONE for no call."""
        its: Ints = np.append(self.dimension, NONE)[self.meeting]
        return its

    @cached_property
    def roles(self) -> Ints:
        """A number for each rank [rank]; ranks of one role call the same in the same order, as far along a chain of
        messages: they are replicas of one another."""
        sizes = np.array([len(group.ranks) for group in self.groups], np.int64)
        dimensions = {name: number for number, name in enumerate(self.dimensions)}
        of_group = np.array([dimensions.get(dimension_of(group, len(self.calls)), NONE) for group in self.groups])
        its = self.calls
        message = self.names.index(MESSAGE) if MESSAGE in self.names else NONE
        sends = ((its[..., ROOT] == np.arange(len(its))[:, None]) & (its[..., NAME] == message)).astype(np.int64)
        signature = np.stack([its[..., NAME], of_group[its[..., GROUP]], sizes[its[..., GROUP]], sends], axis=2)
        signature[its[..., NAME] == NO_CALL] = NONE
        rows = np.column_stack([self.depths, signature.reshape(len(its), -1)])
        roles: Ints = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        return roles

    @cached_property
    def depths(self) -> Ints:
        """How many messages each rank [rank] is behind those that send before they receive; 0 without messages.

        Between two ranks, the first message of a step goes down; a rank is one below the nearest that sends it one.
        """
        depths = np.full(len(self.calls), NONE)
        name = self.names.index(MESSAGE) if MESSAGE in self.names else None
        below: dict[int, list[int]] = {}
        receives: set[int] = set()
        pairs: set[frozenset[int]] = set()
        for rank, its in enumerate(self.calls):
            messages = its[its[:, NAME] == name]
            if len(messages) and messages[0, ROOT] != rank:
                receives.add(rank)
            for group in messages[:, GROUP].tolist():
                sender, receiver = self.groups[group].ranks
                if frozenset((sender, receiver)) not in pairs:
                    pairs.add(frozenset((sender, receiver)))
                    below.setdefault(sender, []).append(receiver)
        reached, depth = [rank for rank in range(len(self.calls)) if rank not in receives], 0
        while reached:
            depths[reached] = depth
            reached = [each for each in dict.fromkeys(to for rank in reached for to in below.get(rank, ()))
                       if depths[each] == NONE]  # fmt: skip
            depth += 1
        return depths

    def complete(self, present: Bools) -> Bools:
        """The meetings [meeting] to which all of their group come, in steps that have these calls [rank, call]."""
        its: Bools = np.logical_and(self.is_whole, self.comers(present) == self.sizes)
        return its

    def comers(self, present: Bools) -> Ints:
        """How many come to each meeting."""
        return np.bincount(self.meeting[present], minlength=len(self.starts))

    def label(self, meeting: int) -> str:
        """A meeting in words: `all-gather 3 of ranks 0, 1 (tp)`."""
        name, group, _, number = self.calls.reshape(-1, 4)[self.members[self.starts[meeting]]].tolist()
        ranks, dimension = self.groups[group].ranks, self.dimensions[self.dimension[meeting]]
        if self.names[name] == MESSAGE:
            return f"{MESSAGE} {number + 1} of rank {ranks[0]} to rank {ranks[1]} ({dimension})"
        if dimension == ALL_RANKS:
            return f"{self.names[name]} {number + 1} of {ALL_RANKS}"
        return f"{self.names[name]} {number + 1} of ranks {first_of([*map(str, ranks)], 8)} ({dimension})"


def dimension_of(group: RankGroup, ranks: int) -> str:
    """The dimension's name, or the pattern of its ranks; of a group of all `ranks` without a name that."""
    if group.dimension:
        return group.dimension
    return ALL_RANKS if len(group.ranks) == ranks else f"groups of {len(group.ranks)}"


def step_calls(trace: Trace) -> StepCalls:
    """Those of a trace that has a table of calls, with the reductions of wrappers, which its ranks state."""
    table = trace.calls
    assert table is not None
    ranks, width = table.calls.shape[:2]
    names, groups = [*table.names, REDUCTION], [*table.groups]
    calls = np.full((ranks, width + 1, 4), NO_CALL, np.int64)
    calls[:, :width] = table.calls
    numbers = {group: number for number, group in enumerate(groups)}
    by_calls = np.zeros(ranks, np.bool_)
    for rank, report in enumerate(trace.reports):
        group = reduction_group(report.backend_fact("reduction"), rank, ranks)
        if group is None or trace.run.reduction == "off":
            by_calls[rank] = True
            continue
        number = numbers.setdefault(group, len(numbers))
        if number == len(groups):
            groups.append(group)
        calls[rank, width] = len(names) - 1, number, NO_ROOT, 0
    return replace(_matched(names, groups, calls, ~by_calls, by_calls), exchanged=_exchanged(trace))


def _exchanged(trace: Trace) -> Floats | None:
    by_rank = [report.script.get("exchanged_bytes") for report in trace.reports]
    known = [its for its in by_rank if isinstance(its, list) and its]
    if len(known) < len(by_rank) or len({*map(len, known)}) > 1:
        return None
    try:
        exchanged = np.array(known, np.float64)
    except (TypeError, ValueError):  # no numbers
        return None
    return exchanged if exchanged.ndim == 2 and np.isfinite(exchanged).all() and exchanged.min() >= 0 else None


def reduction_group(fact: Any, rank: int, ranks: int) -> RankGroup | None:
    """The group in which a wrapper reduces the gradients of this rank, by the backend's fact; None where calls do.

    All ranks where nothing is stated, as DDP does.
    """
    if isinstance(fact, Mapping) and fact.get("by") == "calls":
        return None
    if isinstance(fact, Mapping) and fact.get("by") == "wrapper":
        its, dimension = fact.get("ranks"), fact.get("dimension")
        if isinstance(its, list | tuple) and {*its} <= {*range(ranks)} and rank in its:
            return RankGroup(ranks=tuple(its), dimension=dimension if isinstance(dimension, str) else "")
    return RankGroup(ranks=tuple(range(ranks)))


def _matched(
    names: Sequence[str], groups: Sequence[RankGroup], calls: Ints, reduces: Bools, by_calls: Bools
) -> StepCalls:
    """The calls that are equal in all columns, as meetings."""
    ranks, width = calls.shape[:2]
    flat = calls.reshape(-1, 4)
    has = np.flatnonzero(flat[:, NAME] != NO_CALL)
    its = flat[has]
    key = its[:, NAME] * len(groups) + its[:, GROUP]
    key = (key * (ranks - UNCLEAR) + its[:, ROOT] - UNCLEAR) * width + its[:, NUMBER]
    first, inverse = np.unique(key, return_index=True, return_inverse=True)[1:]
    meeting = np.full(len(flat), NONE)
    meeting[has] = inverse
    order = np.argsort(inverse, kind="stable")
    sizes = np.bincount(inverse, minlength=len(first))
    by_group = [dimension_of(group, ranks) for group in groups]
    used = {by_group[number] for number in np.unique(its[:, GROUP]).tolist()}
    dimensions = (*(name for name in DIMENSIONS if name in used), *sorted(used.difference(DIMENSIONS)))
    numbers = np.array([dimensions.index(name) if name in used else NONE for name in by_group], np.int64)
    group_of = its[first, GROUP]
    return StepCalls(
        names=tuple(names), groups=tuple(groups), calls=calls, reduces=reduces, by_calls=by_calls,
        meeting=meeting.reshape(ranks, width), members=has[order], starts=np.cumsum(sizes) - sizes,
        root=its[first, ROOT], dimension=numbers[group_of],
        is_whole=sizes == np.array([len(group.ranks) for group in groups], np.int64)[group_of], dimensions=dimensions,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphLevel:
    """What can be done at once, behind all levels before: `needs` are complete and then `waits` are over, as ranges of
    StepGraph's arrays; `arrivals` is the range of the calls that the needs are made of."""

    needs: slice
    arrivals: slice
    waits: slice


@dataclass(frozen=True, kw_only=True, eq=False)
class StepGraph:
    """The order of events of the steps that have the same calls, and what each wait depends on.

    `events` [rank, event] are the calls (number of the call) and waits (calls + number of the call) of each rank in
    their order, NONE behind the last. `present` [rank, call] are the calls that the steps have, `complete` [meeting]
    the meetings to which all of the group come, `is_partial` [meeting] those to which some of it do. By level:
    `wait_rank`, `wait_event` (places in `events`), `wait_before`, the number of the wait before it on the rank or NONE,
    and `wait_need`, the number of the need, or NONE where it depends on nobody; `arrival_rank`, `arrival_event`,
    `arrival_behind`, the number of the last wait before the call, and `need_starts`, the first arrival of each need.
    `last_wait` [rank] is the number of a rank's last wait, NONE without one.
    """

    calls: StepCalls
    events: Ints
    present: Bools
    complete: Bools
    is_partial: Bools
    levels: tuple[GraphLevel, ...]
    wait_rank: Ints
    wait_event: Ints
    wait_before: Ints
    wait_need: Ints
    arrival_rank: Ints
    arrival_event: Ints
    arrival_behind: Ints
    need_starts: Ints
    last_wait: Ints

    @cached_property
    def missing(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The meetings to which only some of their group come, each with the ranks that do not."""
        calls, width = self.calls, self.present.shape[1]
        result = []
        for meeting in np.flatnonzero(self.is_partial).tolist():
            its = calls.members[calls.starts[meeting] : calls.starts[meeting] + calls.sizes[meeting]]
            come = {*(its // width)[self.present.ravel()[its]].tolist()}
            group = int(calls.calls.reshape(-1, 4)[its[0], GROUP])
            result.append((meeting, tuple(rank for rank in calls.groups[group].ranks if rank not in come)))
        return tuple(result)

    @cached_property
    def wait_order(self) -> Ints | None:
        """The calls of each rank in the order in which they are waited for [rank, call], those that are not last; None
        where that is the order of the calls."""
        ranks, width = self.present.shape
        is_wait = self.events >= width
        place = np.full((ranks, width), self.events.shape[1])
        rank, event = np.nonzero(is_wait)
        place[rank, self.events[rank, event] - width] = event
        order: Ints = np.argsort(place, axis=1, kind="stable")
        return None if (order == np.arange(width)).all() else order


def step_graph(calls: StepCalls, calls_ns: Ints, begin_ns: Ints, open_ns: float) -> StepGraph:
    """From steps that have the same calls: `calls_ns` [step, rank, call, 3] and their begins [step, rank] on the global
    clock, of which that leaves `open_ns` open. Raises TraceError where waits depend on one another in a circle."""
    present = calls_ns[0, :, :, ARRIVES] != ABSENT
    waited = calls_ns[0, :, :, ENDS] != ABSENT
    complete = calls.complete(present)
    senders = _senders_that_wait(calls, calls_ns, complete, open_ns)
    # Where steps differ in their order, that of their means may be none that could run: that of the first did.
    for steps in (slice(None), slice(1)):
        events = _events(calls_ns[steps], begin_ns[steps], present, waited)
        # Who would wait in a circle for a receiver did not wait for it.
        for waiting in (senders, np.zeros_like(senders)):
            order = _Order(calls, events, present, complete, waiting)
            if not order.stuck:
                return order.graph((calls.comers(present) > 0) & ~complete)
    raise TraceError(f"calls wait for one another in a circle: {first_of(order.stuck, 3)}")


def _events(calls_ns: Ints, begin_ns: Ints, present: Bools, waited: Bools) -> Ints:
    """The calls and waits of each rank [rank, event] in the order of their mean times; a wait is where it ends, so that
    what is called meanwhile is before it."""
    ranks, width = present.shape
    arrives, waits, ends = ((calls_ns[..., at] - begin_ns[:, :, None]).mean(axis=0) for at in (ARRIVES, WAITS, ENDS))
    when = np.concatenate([np.where(present, arrives, np.inf), np.where(waited, ends, np.inf)], axis=1)
    begins = np.concatenate([arrives, waits], axis=1)
    number = np.tile(np.concatenate([np.arange(width) * 2, np.arange(width) * 2 + 1]), (ranks, 1))
    events: Ints = np.lexsort((number, begins, when), axis=1)
    events[np.isinf(np.take_along_axis(when, events, axis=1))] = NONE
    last = int((events != NONE).sum(axis=1).max(initial=0))
    return events[:, :last]


def _senders_that_wait(calls: StepCalls, calls_ns: Ints, complete: Bools, open_ns: float) -> Bools:
    """Which members of meetings with a root wait for all, as their ends show: in half of the steps in which another
    comes later than they begin to wait they have the result only then."""
    waiting = np.zeros(len(calls.members), np.bool_)
    chosen, starts = _members(calls, complete & (calls.root >= 0))
    if not len(chosen):
        return waiting
    its = calls.members[chosen]
    arrives, waits, ends = (np.ascontiguousarray(calls_ns.reshape(len(calls_ns), -1, 3)[:, its, at]) for at in range(3))
    sizes = np.diff(starts, append=len(its))
    from_root = its // calls.calls.shape[1] == np.repeat(calls.root[complete & (calls.root >= 0)], sizes)
    last, last_other = (
        np.repeat(np.maximum.reduceat(moments, starts, axis=1), sizes, axis=1)
        for moments in (arrives, np.where(from_root, ABSENT, arrives))
    )
    later = (last > waits) & (last == last_other) & (ends != ABSENT)
    shown = later & (last <= ends + int(open_ns))
    waiting[chosen] = (shown.sum(axis=0) * 2 >= later.sum(axis=0)) & later.any(axis=0)
    return waiting


def _members(calls: StepCalls, which: Bools) -> tuple[Ints, Ints]:
    """The places in `members` of some meetings, one behind the other, and the first of each among these."""
    sizes = calls.sizes[which]
    return _ranges(calls.starts[which], calls.starts[which] + sizes), np.cumsum(sizes) - sizes


class _Order:
    """The waits level by level; `stuck` names those that depend on one another in a circle."""

    def __init__(self, calls: StepCalls, events: Ints, present: Bools, complete: Bools, senders: Bools) -> None:
        self.calls, self.events, self.present, self.complete = calls, events, present, complete
        width = present.shape[1]
        rank, event = np.nonzero(events >= width)  # rank by rank, in order
        self.rank, self.event = rank, event
        call = events[rank, event] - width
        count = len(rank)
        self.before = np.where(np.diff(rank, prepend=NONE) == 0, np.arange(count) - 1, NONE)
        node_of = np.full(present.size, NONE)
        node_of[rank * width + call] = np.arange(count)
        self.need = np.full(count, NONE)
        place = np.full(present.size, NONE)
        its_rank, its_event = np.nonzero((events >= 0) & (events < width))
        place[its_rank * width + events[its_rank, its_event]] = its_event
        self.arrivals, self.need_starts = self._needs(node_of, senders)
        self.arrival_rank, self.arrival_event = self.arrivals // width, place[self.arrivals]
        # The last wait of its rank before a call: among all events, how many are waits until there.
        waits_until = np.cumsum(events >= width, axis=1)
        first_of_rank = np.searchsorted(rank, np.arange(len(events)))
        so_many = waits_until[self.arrival_rank, self.arrival_event]
        self.behind = np.where(so_many > 0, first_of_rank[self.arrival_rank] + so_many - 1, NONE)
        per_rank = np.bincount(rank, minlength=len(events))
        self.last = np.where(per_rank > 0, first_of_rank + per_rank - 1, NONE)
        self.stuck = self._by_level()

    def _needs(self, node_of: Ints, senders: Bools) -> tuple[Ints, Ints]:
        """What waits depend on: the calls of each need, one need behind the other, and their first ones; sets `need`.

        All of a meeting without a root are the need of all; the root that of the others, and all that of who waits for
        all.
        """
        calls, width = self.calls, self.present.shape[1]
        of_member = np.repeat(np.arange(len(calls.starts)), calls.sizes)
        from_root = calls.members // width == calls.root[of_member]
        of_all = self.complete & (calls.root == NO_ROOT)
        of_all[of_member[senders]] = True
        of_root = self.complete & (calls.root >= 0)
        chosen, starts = _members(calls, of_all)
        roots = np.flatnonzero(from_root & of_root[of_member])
        number_all, number_root = np.full((2, len(calls.starts)), NONE)
        number_all[of_all] = np.arange(of_all.sum())
        number_root[of_member[roots]] = len(starts) + np.arange(len(roots))
        need = np.where(senders | (calls.root == NO_ROOT)[of_member], number_all[of_member], number_root[of_member])
        need[from_root & ~senders] = NONE
        nodes = node_of[calls.members]
        self.need[nodes[nodes != NONE]] = need[nodes != NONE]
        arrivals = np.concatenate([calls.members[chosen], calls.members[roots]])
        return arrivals, np.concatenate([starts, len(chosen) + np.arange(len(roots))])

    def _by_level(self) -> list[str]:
        """Sets `level` of waits and `need_level`; returns the calls of those that are in no level."""
        count, needs = len(self.rank), len(self.need_starts)
        sizes = np.diff(self.need_starts, append=len(self.arrivals))
        need_of = np.repeat(np.arange(needs), sizes)
        by_behind = np.argsort(self.behind, kind="stable")
        first_behind = np.searchsorted(self.behind[by_behind], np.arange(count + 1))
        remaining = sizes - np.bincount(need_of[self.behind == NONE], minlength=needs)
        # One more each for NONE, which is never missing.
        level_of, need_level = np.append(np.full(count, NONE), 0), np.append(np.full(needs, NONE), 0)
        by_need = np.argsort(self.need, kind="stable")
        first_by_need = np.searchsorted(self.need[by_need], np.arange(needs + 1))
        need_level[:-1][remaining == 0] = 0
        candidates = np.flatnonzero(self.before == NONE)
        level = 0
        while len(candidates):
            is_ready = (level_of[self.before[candidates]] != NONE) & (need_level[self.need[candidates]] != NONE)
            ready = candidates[is_ready & (level_of[candidates] == NONE)]
            level_of[ready] = level
            level += 1
            unlocked = need_of[by_behind[_ranges(first_behind[ready], first_behind[ready + 1])]]
            np.subtract.at(remaining, unlocked, 1)
            complete = np.unique(unlocked)
            complete = complete[remaining[complete] == 0]
            need_level[complete] = level
            followers = ready + 1
            followers = followers[followers < count]
            followers = followers[self.before[followers] != NONE]
            waiting = by_need[_ranges(first_by_need[complete], first_by_need[complete + 1])]
            candidates = np.unique(np.concatenate([followers, waiting]))
        width = self.present.shape[1]
        self.level, self.need_level = level_of[:-1], need_level[:-1]
        stuck = np.flatnonzero((self.level == NONE) & (level_of[self.before] != NONE))
        meetings = self.calls.meeting[self.rank[stuck], self.events[self.rank[stuck], self.event[stuck]] - width]
        return [
            f"rank {rank} in {self.calls.label(meeting)}"
            for rank, meeting in zip(self.rank[stuck].tolist(), meetings.tolist(), strict=True)
        ]

    def graph(self, is_partial: Bools) -> StepGraph:
        """The graph, its waits and needs in the order of the levels."""
        waits = np.lexsort((np.arange(len(self.level)), self.level))
        number = np.full(len(waits) + 1, NONE)
        number[waits] = np.arange(len(waits))
        used = np.unique(self.need[self.need != NONE])
        needs = used[np.argsort(self.need_level[used], kind="stable")]
        need_number = np.full(len(self.need_starts) + 1, NONE)
        need_number[needs] = np.arange(len(needs))
        sizes = np.diff(self.need_starts, append=len(self.arrivals))[needs]
        arrivals = _ranges(self.need_starts[needs], self.need_starts[needs] + sizes)
        starts = np.cumsum(sizes) - sizes
        levels = int(self.level.max(initial=NONE)) + 1
        wait_edges = np.searchsorted(self.level[waits], np.arange(levels + 1)).tolist()
        need_edges = np.searchsorted(self.need_level[needs], np.arange(levels + 1)).tolist()
        arrival_edges = np.append(starts, len(arrivals))[need_edges].tolist()
        return StepGraph(
            calls=self.calls, events=self.events, present=self.present, complete=self.complete,
            is_partial=is_partial,
            levels=tuple(
                GraphLevel(needs=slice(*its_needs), arrivals=slice(*its_arrivals), waits=slice(*its_waits))
                for its_needs, its_arrivals, its_waits in zip(
                    pairwise(need_edges), pairwise(arrival_edges), pairwise(wait_edges), strict=True
                )
            ),
            wait_rank=self.rank[waits], wait_event=self.event[waits], wait_before=number[self.before[waits]],
            wait_need=need_number[self.need[waits]],
            arrival_rank=self.arrival_rank[arrivals], arrival_event=self.arrival_event[arrivals],
            arrival_behind=number[self.behind[arrivals]], need_starts=starts, last_wait=number[self.last],
        )  # fmt: skip


def _ranges(starts: Ints, stops: Ints) -> Ints:
    """All numbers from each start to its stop, one range behind the other."""
    sizes = stops - starts
    offsets = np.cumsum(sizes) - sizes
    numbers: Ints = np.arange(int(sizes.sum())) + np.repeat(starts - offsets, sizes)
    return numbers
