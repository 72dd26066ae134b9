"""Whose delay it was in the first place: each rank's own work against that of its peers, as far as it delays a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpc.model.trace import Bools, Ints
from parse.graph.peers import Peers, Replayed, Role, RoleEvent, Slack, Work, lower_median
from parse.graph.terms import PHASES, GraphSteps

# A rank is late by what its own work takes longer than the median of its peers in that step, less the slack that its
# role has there: what it waits for others anyway. Who waits for a rank that waits itself is so never late.


@dataclass(frozen=True, kw_only=True, eq=False)
class Roots:
    """Of some steps, ns: how late each rank is [rank, step], its own work beyond its peers' by PHASES [phase, rank,
    step], where it has no slack."""

    late: Ints
    parts: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """The work of some steps beside that of peers: `medians` of own pieces by role as Peers.median has them, one
    `typical` step in which nobody differs from its peers with the slack in it, and what happened, by replay. `lead`
    [rank, 1] is how late a rank may begin a step, after the first one does: so late may it end one, too."""

    peers: Peers
    work: Work
    medians: Sequence[Ints]
    typical: Work
    recorded: Replayed
    slack: Slack
    lead: Ints


def compared(peers: Peers, recorded: GraphSteps) -> Compared:
    """That of these steps."""
    work = peers.work(recorded)
    medians = peers.median(work.pieces)
    typical = peers.typical(work, medians)
    lead = peers.slack(typical, np.zeros_like(typical.begins)).begins
    return Compared(
        peers=peers, work=work, medians=medians, typical=typical, recorded=peers.replay(work),
        slack=peers.slack(typical, lead), lead=lead,
    )  # fmt: skip


def roots(steps: Compared) -> Roots:
    """Who is late in these steps."""
    peers, work = steps.peers, steps.work
    late = np.zeros((peers.ranks, work.steps), np.int64)
    parts = np.zeros((len(PHASES), peers.ranks, work.steps), np.int64)
    for role, median in zip(peers.roles, steps.medians, strict=True):
        if len(role.ranks) > 1:
            beyond = role.block(work.pieces) - median
            its_late, by_phase = _late(
                beyond, role.block(steps.slack.events), role.block(steps.slack.waited), role.events
            )
            late[role.ranks], parts[:, role.ranks] = its_late, by_phase
    return Roots(late=late, parts=parts)


def _late(beyond: Ints, slack: Ints, waited: Ints, events: Sequence[RoleEvent]) -> tuple[Ints, Ints]:
    """How late ranks of one role are [rank, step], and their work beyond their peers' by phase [phase, rank, step];
    from that piece by piece [event, rank, step], the slack of each event and how long it waits there [event, rank, 1]
    where all are as long as their peers.

    What a rank is late by goes on to its next event; a wait takes up what the role waits there anyway, but not what has
    delayed the step already: others come as much later.
    """
    behind = np.zeros(beyond.shape[1:], np.int64)
    delays = np.full(beyond.shape[1:], np.iinfo(np.int64).min // 2)
    parts = np.zeros((len(PHASES), *beyond.shape[1:]), np.int64)
    for place, event in enumerate(events):
        its = beyond[place]
        behind = behind + its
        counted = np.abs(its) + np.maximum(behind, 0) > slack[place]
        parts[event.phase] += np.where(counted, its, 0)
        np.maximum(delays, behind - slack[place], out=delays)
        if event.is_wait:
            behind = np.maximum(behind - waited[place], np.maximum(delays, 0))
    return delays - lower_median(delays, axis=0), parts


def without(steps: Compared, whose: Bools) -> Replayed:
    """The steps with the work of these ranks [rank, step] as long as the median of their peers."""
    medians = iter(steps.medians)

    def at_median(role: Role, pieces: Ints) -> Ints:
        return np.where(whose[role.ranks], next(medians), pieces)

    return steps.peers.replay(steps.peers.with_pieces(steps.work, at_median))
