"""Who waits for a straggler, for whom these make wait in turn, and so on: from what it no longer costs by replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpc.model.trace import Bools, Floats, Ints
from parse.graph.findings import ChainLink
from parse.graph.peers import Replayed
from parse.graph.roots import Compared, without
from parse.graph.step_graph import NONE
from parse.rules import NOTABLE

# Each wait of the recorded steps is compared with the same wait where the straggler takes no longer than its peers.
# What it is shorter by is caused by the straggler; whom it waits for is the last of those whom it depends on.

LONGEST = 4
"""A chain has at most so many links."""


def chain(steps: Compared, ranks: Sequence[int], late: Bools) -> tuple[ChainLink, ...]:
    """The chain behind these ranks in the steps in which they are `late` [step]; empty where nobody waits for them."""
    peers, graph = steps.peers, steps.peers.graph
    whose = np.isin(np.arange(peers.ranks), ranks)[:, None] & late
    shorter = _shorter(steps, whose, late)
    caused = np.flatnonzero((graph.wait_need != NONE) & (shorter > 0))
    if not len(caused):
        return ()
    last = last_of_needs(steps, late)[graph.wait_need[caused]]
    who, dimension = graph.wait_rank[caused], graph.calls.call_dimension[graph.wait_rank, peers.wait_call][caused]
    when = (steps.recorded.over - steps.work.begins.min(axis=0))[caused][:, late].mean(axis=1)
    by_rank = np.bincount(who, weights=shorter[caused], minlength=peers.ranks)
    by_rank[list(ranks)] = 0
    part = shorter[caused] / np.maximum(1, by_rank[who])
    counted = by_rank >= NOTABLE * by_rank.max()
    links: list[ChainLink] = []
    reached = np.isin(np.arange(peers.ranks), ranks)
    while len(links) < LONGEST:
        open_ = np.flatnonzero(reached[last] & ~reached[who] & counted[who])
        first = _first(who[open_] * len(graph.calls.dimensions) + dimension[open_], when[open_], part[open_])
        if first is None:
            break
        its_dimension = int(dimension[open_[first]])
        of_pair = np.bincount(who[open_], weights=part[open_] * (dimension[open_] == its_dimension))
        following = np.flatnonzero(of_pair >= NOTABLE)
        its = np.isin(who, following) & (dimension == its_dimension)
        links.append(
            ChainLink(
                ranks=tuple(following.tolist()), dimension=graph.calls.dimensions[its_dimension],
                waits=float(shorter[caused][its].sum()) / len(following) / 1e6,
            )
        )  # fmt: skip
        reached[following] = True
    return tuple(links)


def _shorter(steps: Compared, whose: Bools, late: Bools) -> Floats:
    """By how much each wait is shorter without the delays of these ranks [rank, step], in the mean of the steps in
    which they are `late` [wait].

    Who ends a step late is waited for in the next: where that is most of it, the waits are those without the delays of
    the steps before, too.
    """
    replayed = without(steps, whose)
    within, begins = _mean(steps, replayed, late), steps.work.begins.copy()
    begins[:, 1:] -= (steps.recorded.ends - replayed.ends)[:, :-1]
    following = _mean(steps, without(replace(steps, work=replace(steps.work, begins=begins)), whose), late)
    return following if following.max(initial=0) > 2 * within.max(initial=0) else within


def _mean(steps: Compared, replayed: Replayed, late: Bools) -> Floats:
    shorter: Floats = (steps.recorded.waited - replayed.waited)[:, late].mean(axis=1)
    return shorter


def _first(pairs: Ints, when: Floats, part: Floats) -> int | None:
    """The place of the wait with which those of a pair of rank and dimension, in the order of time, add up to a NOTABLE
    part of what its rank waits; of the pair that comes to it first. None where none does."""
    total: dict[int, float] = {}
    order: list[int] = np.argsort(when, kind="stable").tolist()
    for at in order:
        pair = int(pairs[at])
        total[pair] = total.get(pair, 0.0) + float(part[at])
        if total[pair] >= NOTABLE:
            return at
    return None


def last_of_needs(steps: Compared, late: Bools) -> Ints:
    """The rank that arrives last of those on whom a need depends, in the mean of these steps [need]."""
    peers, graph = steps.peers, steps.peers.graph
    state = np.concatenate([steps.recorded.over, steps.work.begins])[:, late]
    begins = steps.work.begins[:, late].min(axis=0)
    moments = (state[peers.behind] + steps.work.until_call[:, late] - begins).mean(axis=1)
    sizes = np.diff(graph.need_starts, append=len(moments))
    order = np.lexsort((moments, np.repeat(np.arange(len(sizes)), sizes)))
    last: Ints = graph.arrival_rank[order[np.append(graph.need_starts[1:], len(moments)) - 1]]
    return last
