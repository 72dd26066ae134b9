"""What makes ranks wait though none is later than its peers: uneven stages and experts, a bubble, a slow link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan

import numpy as np
import numpy.typing as npt

from hpc.model.groups import GROUP, MESSAGE, NAME, ROOT
from parse.graph.findings import Bubble, GraphFindings, SlowLink, StageImbalance, StageWork, UnevenExperts
from parse.graph.peers import Peers, Work
from parse.graph.roots import Compared
from parse.graph.step_graph import Bools, Ints

# By one typical step of each piece of the window, in which every rank takes as long as its peers in the median:
# replayed with stages, or experts, that all take the mean, and with links that are as fast as others.

Floats = npt.NDArray[np.float64]
COMPUTE = 1
"""In PHASES."""
PIPELINE = "pp"
WORTH_NAMING = 0.01
"""What costs a smaller share of a step is no finding."""
UNEVEN = 1.05
"""Stages or experts are uneven where one takes so many times as long as the others at least."""
SLOW = 1.5
"""A link is slow where its messages take so many times as long as those of the others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MessageLink:
    """Messages from one rank to another: their number in a step and, of those for which the receiver waits, the median
    time that each takes, ns."""

    pair: tuple[int, int]
    dimension: str
    takes: float
    messages: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PieceImbalance:
    """Of a piece of the window, ns: the median step, and what a typical step would be shorter by with even stages, even
    experts, and each link of `links` as fast as the others (`costs_of_links`). By stage and by position of experts the
    work, 0 of none; what ranks of pipelines wait for messages, in the mean of ranks and steps, and what they would with
    even stages."""

    steps: int
    step: float
    stages: Floats
    ranks_of_stages: tuple[tuple[int, ...], ...]
    costs_of_stages: float
    experts: Floats
    ranks_of_experts: tuple[tuple[int, ...], ...]
    costs_of_experts: float
    waits: float
    of_schedule: float
    links: tuple[MessageLink, ...]
    usual_link: float
    costs_of_links: float


def figures(steps: Compared) -> PieceImbalance:
    """Those of a piece."""
    peers, typical = steps.peers, steps.typical
    length = _repeated(peers, typical)[0]
    stages, of_stages, even = _even_stages(peers, typical)
    experts, of_experts, fair = _even_experts(peers, typical)
    in_pipeline = _of_pipeline(peers)
    many = max(1, len({*peers.graph.wait_rank[in_pipeline].tolist()}))
    of_even, waits_of_even = _repeated(peers, even)
    links = _links(steps, in_pipeline)
    usual = float(np.median([link.takes for link in links])) if links else 0.0
    return PieceImbalance(
        steps=steps.work.steps, step=float(np.median(steps.recorded.ends.max(axis=0) - steps.work.begins.max(axis=0))),
        stages=stages, ranks_of_stages=of_stages,
        costs_of_stages=length - of_even,
        experts=experts, ranks_of_experts=of_experts,
        costs_of_experts=length - _repeated(peers, fair)[0] if len(experts) else 0.0,
        waits=float(steps.recorded.waited[in_pipeline].sum(axis=0).mean()) / many,
        of_schedule=float(waits_of_even[in_pipeline].sum()) / many,
        links=links, usual_link=usual,
        costs_of_links=length - _repeated(peers, _even_links(peers, typical, links, usual))[0] if links else 0.0,
    )  # fmt: skip


def findings(
    runs: Sequence[PieceImbalance], microbatches: int = 0, exchanged: Sequence[Floats | None] = ()
) -> GraphFindings:
    """Those of all pieces of the runs of a point, which have the same ranks and roles, so many micro-batches a step, 0
    where that is not known, and the bytes of each all-to-all of a step [rank, call], None or empty likewise."""
    if not runs:
        return GraphFindings()
    weights = np.array([each.steps for each in runs], np.float64)

    def mean(of: Callable[[PieceImbalance], float | Floats]) -> Floats:
        whole: Floats = np.average([of(each) for each in runs], axis=0, weights=weights) / 1e6
        return whole

    step = float(mean(lambda each: each.step))
    first = runs[0]
    same = [each for each in runs if len(each.stages) == len(first.stages) and len(each.experts) == len(first.experts)]
    if len(same) < len(runs):
        return GraphFindings()
    waits = float(mean(lambda each: each.waits))
    bubble = Bubble(waits=waits, of_schedule=float(mean(lambda each: each.of_schedule)))
    return GraphFindings(
        stages=_stages(
            first, mean(lambda each: each.stages), float(mean(lambda each: each.costs_of_stages)), step, microbatches
        ),
        bubble=bubble if len(first.stages) > 1 and waits >= WORTH_NAMING * step else None,
        experts=_experts(
            first, mean(lambda each: each.experts), float(mean(lambda each: each.costs_of_experts)), step, exchanged
        ),
        slow_link=_slow_link(runs, float(mean(lambda each: each.costs_of_links)), step),
    )  # fmt: skip


def _stages(first: PieceImbalance, work: Floats, costs: float, step: float, microbatches: int) -> StageImbalance | None:
    if len(work) < 2 or costs < WORTH_NAMING * step:
        return None
    slowest = int(work.argmax())
    others = float(np.delete(work, slowest).mean())
    if work[slowest] < UNEVEN * others:
        return None
    return StageImbalance(
        stages=tuple(
            StageWork(stage=at, ranks=ranks, work=float(its))
            for at, (ranks, its) in enumerate(zip(first.ranks_of_stages, work, strict=True))
        ),
        slowest=slowest, microbatches=microbatches, others=others, runs_at=others / float(work[slowest]),
        costs=costs,
    )  # fmt: skip


def _experts(
    first: PieceImbalance, work: Floats, costs: float, step: float, exchanged: Sequence[Floats | None]
) -> UnevenExperts | None:
    if len(work) < 2 or costs < WORTH_NAMING * step or work.max() < UNEVEN * work.mean():
        return None
    largest = int(work.argmax())
    ranks = first.ranks_of_experts[largest]
    tokens = [_tokens(each, first.ranks_of_experts, largest) for each in exchanged if each is not None]
    if tokens and len(tokens) == len(exchanged) and min(tokens) >= UNEVEN:
        return UnevenExperts(ranks=ranks, times=float(np.mean(tokens)), by="tokens", costs=costs)
    return UnevenExperts(ranks=ranks, times=float(work[largest] / work.mean()), by="time", costs=costs)


def _tokens(exchanged: Floats, positions: Sequence[tuple[int, ...]], largest: int) -> float:
    """How many times the mean of all positions the tokens of one are: the sizes of an all-to-all show what comes to
    experts or, on the way back, what leaves them, so the most uneven call of a step counts."""
    by_position = np.array([exchanged[list(ranks)].mean(axis=0) for ranks in positions])
    mean = by_position.mean(axis=0)
    return float(np.divide(by_position[largest], mean, out=np.ones_like(mean), where=mean > 0).max())


def _slow_link(runs: Sequence[PieceImbalance], costs: float, step: float) -> SlowLink | None:
    """The slowest link, if it is so in most pieces."""
    if costs < WORTH_NAMING * step:
        return None
    slowest = [max(each.links, key=lambda link: link.takes) for each in runs if each.links]
    pairs = [link.pair for link in slowest]
    pair = max({*pairs}, key=pairs.count)
    its = [link for link in slowest if link.pair == pair]
    usual = float(np.median([each.usual_link for each in runs])) / 1e6
    takes = float(np.median([link.takes for link in its])) / 1e6
    if takes < SLOW * usual:
        return None
    return SlowLink(
        sender=pair[0], receiver=pair[1], dimension=its[0].dimension, takes=takes, usual=usual,
        messages=float(its[0].messages), costs=costs,
    )  # fmt: skip


# The typical step with all of a kind alike.

AGAIN = 3
"""So many typical steps follow one another until the next is as long: each rank begins where it ended."""


def _repeated(peers: Peers, typical: Work) -> tuple[float, Ints]:
    """How long a step of many alike is, ns, and what each wait waits in it [wait, 1]."""
    replayed = peers.replay(typical)
    for _ in range(AGAIN):
        before = replayed.ends
        replayed = peers.replay(replace(typical, begins=before))
    return float(replayed.ends.max() - before.max()), replayed.waited


def _scaled(peers: Peers, typical: Work, factor: Floats, which: Callable[[int], Bools]) -> Work:
    """With the pieces that `which` says of each role [event] times the factor of their rank."""
    less = np.zeros_like(typical.pieces)
    for number, role in enumerate(peers.roles):
        block = role.block(typical.pieces)
        its = np.rint(block * (1 - factor[role.ranks][:, None])).astype(np.int64)
        role.block(less)[:] = np.where(which(number)[:, None, None], its, 0)
    return peers.changed(typical, less)


def _totals(peers: Peers, typical: Work, which: Callable[[int], Bools]) -> Floats:
    """The work of each rank in these pieces [rank]."""
    total = np.zeros(peers.ranks)
    for number, role in enumerate(peers.roles):
        total[role.ranks] = role.block(typical.pieces)[which(number)].sum(axis=(0, 2))
    return total


def _even_stages(peers: Peers, typical: Work) -> tuple[Floats, tuple[tuple[int, ...], ...], Work]:
    """The compute of each stage, its ranks, and the step with all stages at their mean; unchanged without stages."""
    depths = peers.graph.calls.depths
    ranks = tuple(tuple(np.flatnonzero(depths == stage).tolist()) for stage in range(int(depths.max()) + 1))
    if len(ranks) < 2:
        return np.zeros(0), (), typical

    def computes(number: int) -> Bools:
        return np.array([event.phase == COMPUTE for event in peers.roles[number].events])

    total = _totals(peers, typical, computes)
    stages = np.array([total[list(its)].mean() for its in ranks])
    factor = np.ones(peers.ranks)
    for stage, its in enumerate(ranks):
        factor[list(its)] = stages.mean() / stages[stage] if stages[stage] > 0 else 1.0
    return stages, ranks, _scaled(peers, typical, factor, computes)


def _even_experts(peers: Peers, typical: Work) -> tuple[Floats, tuple[tuple[int, ...], ...], Work]:
    """The same of the positions of experts."""
    position = np.full(peers.ranks, -1)
    for role in peers.roles:
        if role.of_experts.any():
            position[role.ranks] = role.position
    count = int(position.max()) + 1
    if count < 2:
        return np.zeros(0), (), typical

    def of_experts(number: int) -> Bools:
        its = peers.roles[number]
        return its.of_experts if its.of_experts.any() else np.zeros(len(its.events), np.bool_)

    total = _totals(peers, typical, of_experts)
    ranks = tuple(tuple(np.flatnonzero(position == at).tolist()) for at in range(count))
    experts = np.array([total[list(its)].mean() for its in ranks])
    factor = np.ones(peers.ranks)
    for role in peers.roles:  # experts of one stage are balanced among themselves
        its = total[role.ranks]
        if role.of_experts.any() and its.min() > 0:
            factor[role.ranks] = its.mean() / its
    return experts, ranks, _scaled(peers, typical, factor, of_experts)


# Messages.


def _of_pipeline(peers: Peers) -> Bools:
    """Which waits [wait] are for messages between stages."""
    graph = peers.graph
    calls = graph.calls
    if int(calls.depths.max()) < 1 or MESSAGE not in calls.names:
        return np.zeros(len(graph.wait_rank), np.bool_)
    is_message = calls.calls[graph.wait_rank, peers.wait_call, NAME] == calls.names.index(MESSAGE)
    dimension = calls.call_dimension[graph.wait_rank, peers.wait_call]
    if PIPELINE in calls.dimensions:
        is_message &= dimension == calls.dimensions.index(PIPELINE)
    its: Bools = is_message
    return its


def _links(steps: Compared, in_pipeline: Bools) -> tuple[MessageLink, ...]:
    """Those for whose messages a receiver waits."""
    graph, calls, peers = steps.peers.graph, steps.peers.graph.calls, steps.peers
    its = calls.calls[graph.wait_rank, peers.wait_call]
    receives = np.flatnonzero(in_pipeline & (its[:, ROOT] != graph.wait_rank))
    receives = receives[np.argsort(its[receives, GROUP], kind="stable")]
    groups, first, messages = np.unique(its[receives, GROUP], return_index=True, return_counts=True)
    links = []
    for count in np.unique(messages).tolist():
        which = np.flatnonzero(messages == count)
        waits = receives[first[which][:, None] + np.arange(count)]  # [link, message]
        takes = _median_where(steps.work.communication[waits], steps.recorded.waited[waits] > 0)
        for link, its_waits, median in zip(which.tolist(), waits[:, 0].tolist(), takes.tolist(), strict=True):
            if not isnan(median):
                sender, receiver = calls.groups[groups[link]].ranks
                dimension = calls.dimensions[int(calls.call_dimension[receiver, peers.wait_call[its_waits]])]
                links.append(
                    (link, MessageLink(pair=(sender, receiver), dimension=dimension, takes=median, messages=count))
                )
    return tuple(link for _, link in sorted(links, key=lambda each: each[0]))


def _median_where(values: Ints, which: Bools) -> Floats:
    """The median of the values that are chosen of each link [link, message, step]; NaN of none."""
    links = len(values)
    in_order = np.where(which, values, np.iinfo(np.int64).max).reshape(links, -1)
    in_order.sort(axis=1)
    count, row = which.reshape(links, -1).sum(axis=1), np.arange(links)
    low, high = (in_order[row, np.maximum(0, at)].astype(np.float64) for at in ((count - 1) // 2, count // 2))
    return np.where(count > 0, (low + high) / 2, nan)


def _even_links(peers: Peers, typical: Work, links: Sequence[MessageLink], usual: float) -> Work:
    """The step with messages of slow links as fast as the usual ones."""
    slow = {link.pair: link.takes - usual for link in links if link.takes > SLOW * usual}
    if not slow:
        return typical
    communication = typical.communication.copy()
    graph, calls = peers.graph, peers.graph.calls
    its = calls.calls[graph.wait_rank, peers.wait_call]
    for pair, beyond in slow.items():
        of_pair = np.array([calls.groups[group].ranks == pair for group in range(len(calls.groups))])[its[:, GROUP]]
        waits = of_pair & (its[:, ROOT] != graph.wait_rank)
        communication[waits] = np.maximum(0, communication[waits] - round(beyond))
    return replace(typical, communication=communication)
