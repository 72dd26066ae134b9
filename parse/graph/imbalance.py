"""Stages, experts and links of a run beside the others of their kind: what each takes in the mean of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc.model.groups import GROUP, MESSAGE, NAME, ROOT
from hpc.model.timestamps import END
from hpc.model.trace import Bools, Floats, Ints, RankReport, Trace
from parse.graph.findings import SlowLink, StageImbalance, StageWork, UnevenExperts
from parse.graph.peers import ALL_TO_ALL, Peers, Work
from parse.graph.reading import GraphReader
from parse.graph.step_graph import StepCalls
from parse.graph.terms import GraphSteps
from parse.rules import MANIFOLD

PIPELINE = "pp"
UNEVEN = 1.05
"""Tokens are uneven where an all-to-all brings so many times the mean at least."""
OTHERS = 2
"""Within a host a link is compared with so many others of its kind at least: ranks that share cores differ."""
AT_ONCE = 1_000_000
"""Ranks × steps × events × cases that are read or replayed at once; it bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunImbalance:
    """Of a mean step of a run, ms: what each rank computes [rank], and that of it behind all-to-alls (`of_experts`);
    what ranks wait for messages of pipelines, in the mean of the `waiting` that do. Of links [half of the run, group]
    how long a message takes where its receiver waits, NaN of none; of groups the `messages` of a step. `positions`
    [rank] are those among experts, `layers` [rank] those of its stages (0: not known)."""

    calls: StepCalls
    compute: Floats
    of_experts: Floats
    positions: Ints
    waits: float
    waiting: int
    links: Floats
    messages: Floats
    hosts: tuple[object, ...]
    layers: tuple[int, ...]
    microbatches: int

    @property
    def stages(self) -> list[list[int]]:
        """The ranks of each stage; a single one without a pipeline."""
        depths = self.calls.depths
        return [np.flatnonzero(depths == stage).tolist() for stage in range(int(depths.max()) + 1)]


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanStep:
    """The mean of so many steps, as one."""

    peers: Peers
    steps: int
    work: Work


class GraphRun:
    """A trace whose ranks meet in groups, read part by part."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.reader = trace, GraphReader(trace)
        self._totals: dict[int, tuple[Peers, int, Work]] = {}

    @property
    def may_be_uneven(self) -> bool:
        """Whether there are stages, or experts."""
        calls = self.reader.calls
        return bool(calls.depths.max() > 0) or any(name.startswith(ALL_TO_ALL) for name in calls.names)

    def parts(self, cases: int = 1) -> Iterator[tuple[bool, int, list[GraphSteps]]]:
        """The measured steps, of so many cases at once: whether they do not follow on those before, as where a block
        begins, which half of the run it is."""
        total, done, reached = int(np.diff(self.trace.blocks).sum()), 0, -1
        width = len(self.trace.stamps) * (2 * self.reader.calls.calls.shape[1] + 1)
        length = max(1, min(-(-total // 2), AT_ONCE // (width * max(1, cases))))
        for first, stop in self.trace.blocks.tolist():
            for begin in range(first, stop, length):
                end = min(begin + length, stop)
                for its in self.reader.segments(begin, end):
                    yield its[0].first != reached, int(2 * done >= total), its
                    reached = its[-1].first + len(its[-1].calls_ns)
                done += end - begin

    @cached_property
    def whole_ns(self) -> int:
        """How long all of its steps take, those that lack stamps too."""
        ends = [
            [int(self.trace.global_stamps(at - 1, at)[:, 0, END].max()) for at in block]
            for block in self.trace.blocks.tolist()
        ]
        return sum(end - begin for begin, end in ends)

    @cached_property
    def means(self) -> dict[int, MeanStep]:
        """By graph a step that is the mean of all of its."""
        _ = self.imbalance  # reads the steps
        means = {}
        for graph, (peers, steps, total) in self._totals.items():
            its = {name: np.rint(each / steps).astype(np.int64) for name, each in vars(total).items()}
            means[graph] = MeanStep(peers=peers, steps=steps, work=Work(**its))
        return means

    @cached_property
    def imbalance(self) -> RunImbalance:
        """What its steps show."""
        calls, ranks, waited = self.reader.calls, len(self.trace.stamps), 0
        compute, of_experts, positions = np.zeros((3, ranks), np.int64)
        takes, awaited, (messages, *_) = np.zeros((3, 2, len(calls.groups)))
        in_pipeline = np.zeros(ranks, np.bool_)
        for _, half, of_graphs in self.parts():
            for its in of_graphs:
                peers, graph = self.reader.peers(its), its.graph
                work = peers.work(its)
                total = work.total()
                pieces = total.pieces[:, 0]
                if (known := self._totals.get(id(graph))) is not None:
                    total = Work(**{name: each + vars(known[2])[name] for name, each in vars(total).items()})
                self._totals[id(graph)] = peers, work.steps + (known[1] if known else 0), total
                for role in peers.roles:
                    compute[role.ranks] += role.block(pieces)[role.computes].sum(axis=0)
                    of_experts[role.ranks] += role.block(pieces)[role.of_experts].sum(axis=0)
                    positions[role.ranks] = role.position
                waits = np.flatnonzero(for_messages(peers))
                in_pipeline[graph.wait_rank[waits]] = True
                its_waited = peers.replay(work).waited[waits]
                waited += int(its_waited.sum())
                of_wait = calls.calls[graph.wait_rank, peers.wait_call][waits]
                receives = of_wait[:, ROOT] != graph.wait_rank[waits]
                link, late = of_wait[receives, GROUP], its_waited[receives] > 0
                np.add.at(takes[half], link, (work.communication[waits][receives] * late).sum(axis=1) / 1e6)
                np.add.at(awaited[half], link, late.sum(axis=1))
                np.add.at(messages, link, work.steps)
        reports, waiting = self.trace.reports, max(1, int(in_pipeline.sum()))
        steps = sum(count for _, count, _ in self._totals.values())
        counts = {its.get("microbatches") for report in reports for its in _pipelines(report)}
        return RunImbalance(
            calls=calls, compute=compute / steps / 1e6, of_experts=of_experts / steps / 1e6, positions=positions,
            waits=waited / waiting / steps / 1e6, waiting=waiting, messages=messages / steps,
            links=np.divide(takes, awaited, out=np.full_like(takes, np.nan), where=awaited > 0),
            hosts=tuple(report.hostname or report.node_rank for report in reports),
            layers=tuple(max(_count(its.get("layers")) for its in _pipelines(report)) for report in reports),
            microbatches=_count(counts.pop()) if len(counts) == 1 else 0,
        )  # fmt: skip


def _pipelines(report: RankReport) -> list[Mapping[str, object]]:
    """The shapes of a script's pipelines; one without figures where the rank states none."""
    facts = report.script.get("facts")
    shapes = facts.get("pipelines") if isinstance(facts, Mapping) else None
    return [its if isinstance(its, Mapping) else {} for its in shapes] if isinstance(shapes, list) and shapes else [{}]


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def for_messages(peers: Peers) -> Bools:
    """Which waits [wait] are for messages between stages."""
    graph, calls = peers.graph, peers.graph.calls
    if int(calls.depths.max()) < 1:
        return np.zeros(len(graph.wait_rank), np.bool_)
    its: Bools = calls.calls[graph.wait_rank, peers.wait_call, NAME] == calls.names.index(MESSAGE)
    if PIPELINE in calls.dimensions:
        its &= calls.call_dimension[graph.wait_rank, peers.wait_call] == calls.dimensions.index(PIPELINE)
    return its


# Of the runs of a point, whose ranks have the same groups. What evening saves is measured by replay.


def uneven_stages(runs: Sequence[RunImbalance], costs: float) -> StageImbalance | None:
    """The stages of a pipeline, whose evening saves so much; None where the slowest is none of the slow ones of a
    run."""
    compute, first = np.mean([each.compute for each in runs], axis=0), runs[0]
    stages = tuple(
        StageWork(
            stage=at, ranks=tuple(ranks), work=float(compute[ranks].mean()),
            layers=min(each.layers[rank] for each in runs for rank in ranks),
        )
        for at, ranks in enumerate(first.stages)
    )  # fmt: skip
    work = [stage.work for stage in stages]
    slowest, mean = int(np.argmax(work)), float(np.mean(work))
    if not _beyond([[each.compute[ranks] for ranks in first.stages] for each in runs], slowest):
        return None
    counts = {each.microbatches for each in runs}
    return StageImbalance(
        stages=stages, slowest=slowest, microbatches=counts.pop() if len(counts) == 1 else 0, mean=mean,
        runs_at=mean / work[slowest], costs=costs,
    )  # fmt: skip


def _beyond(runs: Sequence[Sequence[Floats]], place: int) -> bool:
    """Whether in each run the ranks at this place of several sets take longer than the mean of all sets."""
    means = [[its.mean() for its in sets] for sets in runs]
    return all(of_run[place] > np.mean(of_run) for of_run in means)


def uneven_experts(runs: Sequence[RunImbalance], costs: float) -> UnevenExperts | None:
    """The ranks of the position that computes most among those who share experts, whose evening saves so much; the
    all-to-all that is most uneven shows their tokens. None where they do not in each run."""
    work, first = np.mean([each.of_experts for each in runs], axis=0), runs[0]
    roles, positions = first.calls.roles, first.positions
    sharing = np.isin(roles, roles[positions > 0])
    ranks_of = [np.flatnonzero(sharing & (positions == at)) for at in range(int(positions.max()) + 1)]
    of_positions = [float(work[ranks].mean()) for ranks in ranks_of]
    place = int(np.argmax(of_positions))
    if not _beyond([[each.of_experts[ranks] for ranks in ranks_of] for each in runs], place):
        return None
    ranks, brought, usual = ranks_of[place], 0.0, 0.0
    known = [each.calls.exchanged for each in runs if each.calls.exchanged is not None]
    if len(known) == len(runs):
        exchanged = np.mean(known, axis=0)
        its, of_all = exchanged[ranks].mean(axis=0), exchanged[sharing].mean(axis=0)
        call = int(np.divide(its, of_all, out=np.zeros_like(its), where=of_all > 0).argmax())
        if its[call] >= UNEVEN * of_all[call] > 0:
            brought, usual = float(its[call]), float(of_all[call])
    return UnevenExperts(
        ranks=tuple(ranks.tolist()), work=of_positions[place], mean=float(np.mean(of_positions)), bytes=brought,
        mean_bytes=usual, costs=costs,
    )  # fmt: skip


def slow_links(runs: Sequence[RunImbalance]) -> tuple[SlowLink, ...]:
    """The links that are slow in both halves of all runs, the slowest first, without what they cost.

    A link is compared with those of its kind: that join hosts or do not, in the same direction. One that joins hosts
    and has none of its kind is compared with all.
    """
    first, takes = runs[0], np.concatenate([each.links for each in runs])
    depths = first.calls.depths
    links = np.flatnonzero(~np.isnan(takes).any(axis=0)).tolist()
    kinds = {}
    for link in links:
        sender, receiver = first.calls.groups[link].ranks
        joins = any(each.hosts[sender] != each.hosts[receiver] for each in runs)
        kinds[link] = joins, bool(depths[sender] < depths[receiver])
    slow = []
    for link, kind in kinds.items():
        others = [other for other in links if other != link and kinds[other] == kind]
        if not others and kind[0]:
            others = [other for other in links if other != link]
        if len(others) >= (1 if kind[0] else OTHERS):
            usual = np.median(takes[:, others], axis=1)
            if (takes[:, link] >= MANIFOLD * usual).all():
                slow.append(_link(first, link, float(takes[:, link].mean()), float(usual.mean())))
    return tuple(sorted(slow, key=lambda each: -each.takes))


def _link(run: RunImbalance, link: int, takes: float, usual: float) -> SlowLink:
    sender, receiver = run.calls.groups[link].ranks
    call = np.argwhere(run.calls.calls[receiver, :, GROUP] == link)[0, 0]
    return SlowLink(
        sender=sender, receiver=receiver, dimension=run.calls.dimensions[run.calls.call_dimension[receiver, call]],
        takes=takes, usual=usual, messages=float(run.messages[link]), further=0, costs=0.0,
    )  # fmt: skip
