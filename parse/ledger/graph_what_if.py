"""What a change is worth where ranks meet in several groups: the recorded steps replayed; and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpc.model.groups import GROUP, ROOT
from hpc.model.trace import Bools, Floats, Ints, Trace
from hpc.model.trace_file import open_trace
from parse import stats
from parse.graph.chain import chain
from parse.graph.findings import Bubble, ChainLink, SlowLink
from parse.graph.imbalance import (
    GraphRun,
    RunImbalance,
    for_messages,
    slow_links,
    uneven_experts,
    uneven_stages,
)
from parse.graph.peers import Peers, Role, Work
from parse.graph.reading import GraphReader
from parse.graph.roots import compared
from parse.graph.step_graph import NONE
from parse.graph.terms import PHASES, GraphSteps
from parse.ledger.finding import Finding
from parse.ledger.types import Change, Ledger
from parse.rules import WORTH_NAMING
from parse.term_kinds import DATA

SETTLED = 3
"""So many equal steps follow one another until the next takes as long: each rank begins where it ended."""
SHOWN = 48
"""Steps by which it is judged who waits for whom."""
StragglerCells = Sequence[tuple[tuple[int, ...], tuple[int, ...] | None]]
"""Ranks and the steps in which they are late, None for all."""
LoaderTimes = Callable[[int, int], Mapping[str, Ints]]
"""Of these steps (first, stop) by phase what a script's loaders took of it, ns [rank, step]."""


@dataclass(frozen=True, kw_only=True)
class ReplayCase:
    """A change; communication is free in a `dimension`, empty: in all, or as usual in `links`; the first `count`
    stragglers are taken out."""

    change: Change
    dimension: str = ""
    links: tuple[SlowLink, ...] = ()
    count: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Replays:
    """How long the steps of each half of a run take, ns: as `recorded` [half], and in cases [half, case]."""

    recorded: Ints
    durations: Ints


def replays(
    run: GraphRun, cases: Sequence[ReplayCase], delays: Sequence[StragglerCells] = (),
    loaders_ns: LoaderTimes | None = None,
) -> Replays:  # fmt: skip
    """The steps of a run with each of these changes. `delays` are the cells of stragglers; `loaders_ns` gives what a
    script's loaders took of steps (first, stop) [rank, step], None: all of the data's time."""
    recorded, durations = np.zeros(2, np.int64), np.zeros((2, len(cases)), np.int64)
    for is_first, half, of_graphs in run.parts(len(cases)):
        begin = of_graphs[0].begin_ns[0]
        if is_first:
            ends = np.repeat(begin[:, None], len(cases), axis=1)
        latest = ends.max(axis=0)
        for steps in of_graphs:
            ends = _replayed(_Changes(run, steps, delays, loaders_ns), cases, ends)
        recorded[half] += of_graphs[-1].end_ns[-1].max() - begin.max()
        durations[half] += ends.max(axis=0) - latest
    return Replays(recorded=recorded, durations=durations)


def _replayed(changes: _Changes, cases: Sequence[ReplayCase], ends: Ints) -> Ints:
    """The ends of the ranks after these steps [rank, case], from those before them."""
    result = np.empty_like(ends)
    for no_bubble in (False, True):
        its = [at for at, case in enumerate(cases) if (case.change is Change.BUBBLE) == no_bubble]
        if its:
            peers = _without_messages(changes.peers) if no_bubble else changes.peers
            result[:, its] = peers.replay_in_turn([changes.work_of(cases[at]) for at in its], ends[:, its])
    return result


def _without_messages(peers: Peers) -> Peers:
    """The same where nobody waits for messages between stages."""
    its = copy(peers)
    its.graph = replace(peers.graph, wait_need=np.where(for_messages(peers), NONE, peers.graph.wait_need))
    return its


def _waits_of_schedule(run: GraphRun) -> float:
    """What ranks of a pipeline wait for messages, ms in their mean, where each step is as the mean of all, with even
    stages."""
    waited = 0
    for graph, mean in run.means.items():
        peers, work = mean.peers, mean.work
        work = peers.with_pieces(work, partial(_even_stages, run, graph))
        for _ in range(SETTLED):
            replayed = peers.replay(work)
            work = replace(work, begins=replayed.ends)
        waited += int(replayed.waited[for_messages(peers)].sum()) * mean.steps
    return waited / sum(mean.steps for mean in run.means.values()) / run.imbalance.waiting / 1e6


class _Changes:
    """The work of recorded steps with a change."""

    def __init__(
        self, run: GraphRun, steps: GraphSteps, delays: Sequence[StragglerCells] = (),
        loaders_ns: LoaderTimes | None = None,
    ) -> None:  # fmt: skip
        self.run, self.steps, self.delays, self.loaders_ns = run, steps, delays, loaders_ns
        self.peers = run.reader.peers(steps)
        self.work = self.peers.work(steps)

    def work_of(self, case: ReplayCase) -> Work:
        """With this change; as recorded where only the graph changes."""
        if case.change is Change.BUBBLE:
            return self.work
        if case.change is Change.COMMUNICATION:
            return replace(self.work, communication=self._communication(case))
        medians = iter(self.peers.median(self.work.pieces)) if case.change is Change.MEDIAN else None
        of_role: dict[Change, Callable[[Role, Ints], Ints]] = {
            Change.MEDIAN: lambda _, pieces: np.broadcast_to(next(medians or iter(())), pieces.shape),
            Change.STRAGGLER: partial(self._like_peers, case.count), Change.INPUT: self._input_ready,
            Change.STAGES: partial(_even_stages, self.run, id(self.steps.graph)), Change.EXPERTS: self._even_experts,
        }  # fmt: skip
        return self.peers.with_pieces(self.work, of_role[case.change])

    def _communication(self, case: ReplayCase) -> Ints:
        graph, calls, its = self.peers.graph, self.peers.graph.calls, self.work.communication
        if case.links:
            of_wait = calls.calls[graph.wait_rank, self.peers.wait_call]
            beyond: dict[tuple[int, ...], int] = {
                (link.sender, link.receiver): round((link.takes - link.usual) * 1e6) for link in case.links
            }
            of_groups = np.array([beyond.get(group.ranks, 0) for group in calls.groups])
            less = np.where(of_wait[:, ROOT] != graph.wait_rank, of_groups[of_wait[:, GROUP]], 0)
            return np.maximum(np.minimum(its, 0), its - less[:, None])
        chosen = np.ones(len(its), np.bool_)
        if case.dimension:
            chosen = calls.call_dimension[graph.wait_rank, self.peers.wait_call] == calls.dimensions.index(
                case.dimension
            )
        return np.where(chosen[:, None], np.minimum(its, 0), its)

    def _like_peers(self, count: int, role: Role, pieces: Ints) -> Ints:
        """The work of the first stragglers as long as that of one of their peers who is none, by turns."""
        result, named = pieces.copy(), [rank for cells in self.delays for ranks, _ in cells for rank in ranks]
        others = ~np.isin(role.ranks, named)
        for ranks, steps in (each for cells in self.delays[:count] for each in cells):
            late, its_others = np.flatnonzero(_late_in(self.steps, steps)), ~np.isin(role.ranks, ranks)
            for at in np.flatnonzero(~its_others).tolist():
                for which, same in ((~role.of_experts, True), (role.of_experts, role.position == role.position[at])):
                    places, peers = np.flatnonzero(which), np.flatnonzero(others & same)
                    peers = peers if len(peers) else np.flatnonzero(its_others & same)
                    if len(peers):
                        by_turns = peers[(late + at) % len(peers)]
                        result[np.ix_(places, np.array([at]), late)] = pieces[places][:, None, by_turns, late]
        return result

    def _input_ready(self, role: Role, pieces: Ints) -> Ints:
        """Without what ranks wait for data, piece by piece of it."""
        phases = np.array([event.phase for event in role.events])
        if self.loaders_ns is None:
            return np.where((phases == PHASES.index(DATA.name))[:, None, None], 0, pieces)
        result = pieces.copy()
        fetches_ns = self.loaders_ns(self.steps.first, self.steps.first + self.work.steps)
        for name, its in fetches_ns.items():
            remaining = its[role.ranks]
            for place in np.flatnonzero(phases == PHASES.index(name)).tolist():
                waited = np.clip(remaining, 0, np.maximum(0, result[place]))
                result[place] -= waited
                remaining = remaining - waited
        return result

    def _even_experts(self, role: Role, pieces: Ints) -> Ints:
        """With each piece of work behind all-to-alls at the mean of all positions, as it is in the whole run."""
        mean = role.block(self.run.means[id(self.steps.graph)].work.pieces[:, 0])
        of_positions = [mean[:, role.position == at].mean(axis=1) for at in range(int(role.position.max()) + 1)]
        more = np.mean(of_positions, axis=0)[:, None] - np.stack(of_positions, axis=1)[:, role.position]
        return _longer(pieces, np.where(role.of_experts[:, None], more, 0))


def _even_stages(run: GraphRun, graph: int, role: Role, pieces: Ints) -> Ints:
    """With the compute of each stage at the mean of all, as it is in the whole run, its pieces in proportion."""
    its = run.imbalance
    of_stages = np.array([its.compute[ranks].mean() for ranks in its.stages])
    more = np.zeros(len(its.compute))
    for ranks, of_stage in zip(its.stages, of_stages.tolist(), strict=True):
        more[ranks] = of_stages.mean() / of_stage - 1 if of_stage > 0 else 0.0
    mean = role.block(run.means[graph].work.pieces[:, 0])
    return _longer(pieces, np.where(role.computes[:, None], mean * more[role.ranks], 0))


def _longer(pieces: Ints, more: Floats) -> Ints:
    """Pieces [event, rank, step] that are longer by so much [event, rank] in every step, and scatter as they do."""
    longer: Ints = np.maximum(np.minimum(pieces, 0), pieces + np.rint(more).astype(np.int64)[..., None])
    return longer


def pipeline_findings(ledger: Ledger) -> Iterator[Finding]:
    """What makes ranks of several groups wait though none is later than its peers, and what it costs by replay: what a
    step would be shorter by with stages, or experts, at the mean of all, or a link as fast as others. Reads the traces.

    Found is what costs WORTH_NAMING of a step and in both halves of each run; a bubble, which any pipeline has, has no
    cost.
    """
    traces = [run.trace for run in ledger.result.for_ledger if run.trace is not None]
    runs, replayed, schedule = list[RunImbalance](), list[Replays](), list[float]()
    for path in traces:
        with open_trace(path) as trace:
            run = GraphRun(trace)
            if not run.may_be_uneven:
                return
            runs.append(run.imbalance)
            possible = {
                Change.STAGES: len(run.imbalance.stages) > 1, Change.EXPERTS: run.imbalance.positions.any(),
            }  # fmt: skip
            cases = [change for change, is_possible in possible.items() if is_possible]
            if not cases:
                return
            replayed.append(replays(run, [ReplayCase(change=change) for change in cases]))
            if Change.STAGES in cases:
                schedule.append(_waits_of_schedule(run))
    tables = [(run.calls.groups, run.calls.roles.tolist(), run.positions.tolist()) for run in runs]
    if not runs or any(table != tables[0] for table in tables):
        return
    step = ledger.step.value
    if Change.STAGES in cases:
        costs = _saved(replayed, cases.index(Change.STAGES), step)
        if costs is not None and (stages := uneven_stages(runs, costs)) is not None:
            yield Finding(what=stages, costs=costs)
        waits = stats.mean([run.waits for run in runs])
        if waits >= WORTH_NAMING * step:
            yield Finding(what=Bubble(waits=waits, of_schedule=stats.mean(schedule)))
    if Change.EXPERTS in cases:
        costs = _saved(replayed, cases.index(Change.EXPERTS), step)
        if costs is not None and (experts := uneven_experts(runs, costs)) is not None:
            yield Finding(what=experts, costs=costs)
    if links := slow_links(runs):
        case, of_links = ReplayCase(change=Change.COMMUNICATION, links=links), []
        for path in traces:
            with open_trace(path) as trace:
                of_links.append(replays(GraphRun(trace), [case]))
        if (costs := _saved(of_links, 0, step)) is not None:
            yield Finding(what=replace(links[0], further=len(links) - 1, costs=costs), costs=costs)


def _saved(runs: Sequence[Replays], case: int, step: float) -> float | None:
    """What a step of the point is shorter by in a case, ms; None where that is not worth naming."""
    recorded = [1 / float(run.recorded.sum()) for run in runs]
    costs = saved(step, recorded, [1 / float(run.durations[:, case].sum()) for run in runs])
    in_all = all((run.durations[:, case] < run.recorded)[run.recorded > 0].all() for run in runs)
    return costs if in_all and costs >= WORTH_NAMING * step else None


def saved(step: float, recorded: Sequence[float], speeds: Sequence[float]) -> float:
    """What a step of this length is shorter by where runs have these speeds, not the recorded ones."""
    return step * (1 - stats.median(recorded) / stats.median(speeds))


def chain_of(trace: Trace, ranks: Sequence[int], late_steps: Sequence[int] | None) -> tuple[ChainLink, ...]:
    """Who waits for these ranks, by the first of the steps in which they are late."""
    reader, (first, stop) = GraphReader(trace), trace.blocks[0].tolist()
    begin = first if late_steps is None else min((step for step in late_steps if first <= step < stop), default=first)
    begin = max(first, begin - 1)
    steps = max(
        reader.steps(begin, min(begin + SHOWN, stop)), key=lambda each: _late_in(each, late_steps).sum(),
    )  # fmt: skip
    late = _late_in(steps, late_steps)
    return chain(compared(reader.peers(steps), steps), ranks, late) if late.any() else ()


def _late_in(steps: GraphSteps, late_steps: Sequence[int] | None) -> Bools:
    """Which of these steps are late ones; None: all."""
    numbers = np.arange(steps.first, steps.first + len(steps.calls_ns))
    return np.ones(len(numbers), np.bool_) if late_steps is None else np.isin(numbers, late_steps)
