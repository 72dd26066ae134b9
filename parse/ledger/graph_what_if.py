"""What a change would be worth where ranks meet in several groups: the graph replayed; and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpc.model.groups import MESSAGE, NAME
from hpc.model.timestamps import END
from hpc.model.trace import Trace
from parse.graph.chain import chain
from parse.graph.findings import ChainLink
from parse.graph.imbalance import COMPUTE, PIPELINE
from parse.graph.peers import Peers
from parse.graph.reading import GraphReader
from parse.graph.replay import Pieces, recorded_pieces, replay
from parse.graph.roots import compared
from parse.graph.step_graph import NONE, Bools, Ints, StepGraph
from parse.graph.terms import GraphSteps
from parse.ledger.types import Change

AT_ONCE = 8_000_000
"""Ranks × steps × events × cases that are replayed at once; it bounds the memory."""
SHOWN = 48
"""Steps by which it is told who waits for whom."""
DATA = 0
"""In the phases of own work."""
StragglerCells = Sequence[tuple[tuple[int, ...], tuple[int, ...] | None]]
"""Ranks and the steps in which they are late, None for all."""
LoaderTimes = Callable[[int, int], Sequence[Ints]]
"""Of these steps what a script's loaders took of their data, and of their compute, ns [rank, step]."""


@dataclass(frozen=True, kw_only=True)
class ReplayCase:
    """A change; communication is free in a `dimension`, empty: in all; the first `count` stragglers are taken out."""

    change: Change
    dimension: str = ""
    count: int = 1


def graph_durations(
    trace: Trace, cases: Sequence[ReplayCase], delays: Sequence[StragglerCells], stages: Sequence[float],
    loaders_ns: LoaderTimes | None,
) -> list[float]:  # fmt: skip
    """How long the blocks of a run take with each of these changes, ns. `delays` are the cells of stragglers, `stages`
    is the work of each stage, `loaders_ns` gives what a script's loaders took of steps (first, stop) [rank, step],
    None: all of the data's time."""
    reader = GraphReader(trace)
    duration = np.zeros(len(cases))
    width = 2 * reader.calls.calls.shape[1] + 1
    length = max(1, AT_ONCE // (len(trace.stamps) * width * max(1, len(cases))))
    for first, stop in trace.blocks.tolist():
        ends: Ints | None = None
        for begin in range(first, stop, length):
            stamps_ns = trace.global_stamps(begin - 1, min(begin + length, stop))
            if ends is None:
                ends = np.repeat((stamps_ns[:, 0, END] - stamps_ns[:, 0, END].max())[None], len(cases), axis=0)
            for steps in reader.read(begin, stamps_ns):
                ends = _replayed(steps, ends, cases, _Changes(steps, delays, stages, loaders_ns))
        if ends is not None:
            duration += ends.max(axis=1)
    return [float(its) for its in duration]


def _replayed(steps: GraphSteps, ends: Ints, cases: Sequence[ReplayCase], changes: _Changes) -> Ints:
    """The ends of the ranks after these steps [case, rank], from those before them."""
    result = np.empty_like(ends)
    for no_bubble in (False, True):
        its = [at for at, case in enumerate(cases) if (case.change is Change.BUBBLE) == no_bubble]
        if its:
            graph = _without_messages(steps.graph) if no_bubble else steps.graph
            result[its] = replay(graph, ends[its], [changes.pieces(cases[at]) for at in its])[:, -1]
    return result


def _without_messages(graph: StepGraph) -> StepGraph:
    """The same where nobody waits for messages between stages."""
    calls = graph.calls
    call = graph.events[graph.wait_rank, graph.wait_event] - graph.present.shape[1]
    is_message = calls.calls[graph.wait_rank, call, NAME] == calls.names.index(MESSAGE)
    if PIPELINE in calls.dimensions:
        is_message &= calls.call_dimension[graph.wait_rank, call] == calls.dimensions.index(PIPELINE)
    return replace(graph, wait_need=np.where(is_message, NONE, graph.wait_need))


class _Changes:
    """The pieces of recorded steps with a change."""

    def __init__(
        self, steps: GraphSteps, delays: Sequence[StragglerCells], stages: Sequence[float],
        loaders_ns: LoaderTimes | None,
    ) -> None:  # fmt: skip
        self.steps, self.graph, self.recorded = steps, steps.graph, recorded_pieces(steps)
        self.delays, self.stages, self.loaders_ns = delays, stages, loaders_ns
        # Peers with another order of events are none: their pieces are others.
        alike = np.unique(np.column_stack([self.graph.calls.roles, self.graph.events]), axis=0, return_inverse=True)[1]
        self.alike = alike.ravel()

    def pieces(self, case: ReplayCase) -> Pieces:
        """With this change; as recorded without one, and where only the graph changes."""
        work = self.recorded.work
        match case.change:
            case Change.BUBBLE:
                return self.recorded
            case Change.COMMUNICATION:
                return replace(self.recorded, exposed=self._free(case.dimension))
            case Change.STRAGGLER:
                work = self._without_stragglers(work.copy(), case.count)
            case Change.MEDIAN:
                work = work.copy()
                for its in self._roles():
                    middle = (len(its) - 1) // 2
                    work[:, :, its] = np.partition(work[:, :, its], middle, axis=2)[:, :, middle : middle + 1]
            case Change.INPUT:
                work = self._input_ready(work.copy())
            case Change.STAGES:
                work = work.copy()
                mean = float(np.mean(self.stages))
                for stage, its_work in enumerate(self.stages):
                    ranks = np.flatnonzero(self.graph.calls.depths == stage)
                    work[COMPUTE][:, ranks] = np.rint(work[COMPUTE][:, ranks] * (mean / its_work)).astype(np.int64)
            case Change.EXPERTS:
                work = self._even_experts(work.copy())
        return replace(self.recorded, work=work)

    def _roles(self) -> Iterator[Ints]:
        for number in range(int(self.alike.max()) + 1):
            yield np.flatnonzero(self.alike == number)

    def _free(self, dimension: str) -> Ints:
        """What is exposed, without that of a dimension; empty: of all."""
        exposed = self.recorded.exposed
        its: Bools | bool = True
        if dimension:
            its = self.graph.calls.call_dimension == self.graph.calls.dimensions.index(dimension)
        return np.where(its, np.minimum(exposed, 0), exposed)

    def _without_stragglers(self, work: Ints, count: int) -> Ints:
        """With the work of the first stragglers as long as that of one of their peers who is none, by turns."""
        numbers = np.arange(self.steps.first, self.steps.first + work.shape[1])
        named = [rank for cells in self.delays for ranks, _ in cells for rank in ranks]
        for cells in self.delays[:count]:
            for ranks, steps in cells:
                late = np.arange(len(numbers)) if steps is None else np.flatnonzero(np.isin(numbers, steps))
                for rank in ranks:
                    peers = np.setdiff1d(np.flatnonzero(self.alike == self.alike[rank]), ranks)
                    peers = free if len(free := np.setdiff1d(peers, named)) else peers
                    if len(peers):
                        work[:, late, rank] = self.recorded.work[:, late, peers[(late + rank) % len(peers)]]
        return work

    def _input_ready(self, work: Ints) -> Ints:
        """Without what ranks wait for data, piece by piece of it."""
        if self.loaders_ns is None:
            work[DATA] = 0
            return work
        fetches_ns = self.loaders_ns(self.steps.first, self.steps.first + work.shape[1])
        for phase, its in zip((DATA, COMPUTE), fetches_ns, strict=True):
            remaining = its.T
            for event in range(work.shape[3]):
                waited = np.clip(remaining, 0, np.maximum(0, work[phase, ..., event]))
                work[phase, ..., event] -= waited
                remaining = remaining - waited
        return work

    def _even_experts(self, work: Ints) -> Ints:
        """With the work of experts at the mean of their role."""
        for role in Peers(self.steps).roles:
            if not role.of_experts.any():
                continue
            of_events = [
                bool(its) for event, its in zip(role.events, role.of_experts, strict=True) if event.call != NONE
            ]
            inside = np.flatnonzero(of_events)
            its = work[COMPUTE][:, role.ranks][..., inside].astype(np.float64)
            total = its.sum(axis=(0, 2))
            if total.min() > 0:
                even = np.rint(its * (total.mean() / total)[None, :, None]).astype(np.int64)
                work[COMPUTE][np.ix_(np.arange(len(its)), role.ranks, inside)] = even
        return work


def chain_of(trace: Trace, ranks: Sequence[int], late_steps: Sequence[int] | None) -> tuple[ChainLink, ...]:
    """Who waits for these ranks, by the first of the steps in which they are late."""
    first, stop = trace.blocks[0].tolist()
    begin = first if late_steps is None else min((step for step in late_steps if first <= step < stop), default=first)
    begin = max(first, begin - 1)
    steps = max(
        GraphReader(trace).read(begin, trace.global_stamps(begin - 1, min(begin + SHOWN, stop))),
        key=lambda each: len(each.calls_ns) if late_steps is None else _late_in(each, late_steps).sum(),
    )
    late = np.ones(len(steps.calls_ns), np.bool_) if late_steps is None else _late_in(steps, late_steps)
    return chain(compared(Peers(steps), steps), ranks, late) if late.any() else ()


def _late_in(steps: GraphSteps, late_steps: Sequence[int]) -> Bools:
    return np.isin(np.arange(steps.first, steps.first + len(steps.calls_ns)), late_steps)
