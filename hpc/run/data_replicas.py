"""Which ranks of a script read the same batch: the samples of each data replica count once.

By the names of meshes and groups, what torch's classes say, and what a step calls in groups that nobody named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc.model.groups import MESSAGE
from hpc.observe.events import UNCLEAR, BatchRole, read_ranks, role_of, spelled_ranks
from hpc.observe.stamps import IN_FORWARD, CollectiveCall
from hpc.recovery.journal import name_ranks
from hpc.run.script_steps import RankSteps
from hpc.system.text import first_of

Ranks = tuple[int, ...]
_LAST_STEPS = 20
"""Of a rank so many of its last steps show what it calls."""
_SCALARS = 64
"""Bytes of a collective up to which it is no part of a batch: losses, counts, norms, sixteen numbers at most."""
_STRENGTH = [BatchRole.NONE, BatchRole.UNKNOWN, BatchRole.DATA, BatchRole.MODEL]
"""What one rank sees of a group is believed over what another does not."""
_NAMED = 3
_WAYS_OUT = (
    "name the dimensions of its meshes or its groups (mesh_dim_names, group_desc: dp, tp, pp, cp, ep), or state each "
    "rank's share of the samples of a step by --batch-size N"
)


@dataclass(frozen=True, kw_only=True)
class GroupRole:
    """A group of several ranks, what it is called, its role, and what is called in it."""

    ranks: Ranks
    dimension: str
    role: BatchRole
    calls: str = ""


@dataclass(frozen=True, kw_only=True)
class DataReplicas:
    """The data replicas of several ranks each, and the dimensions in which these differ; or why it is not known which
    ranks read the same batch."""

    replicas: tuple[Ranks, ...] = ()
    dimensions: tuple[str, ...] = ()
    reason: str = ""


def group_roles(recorded: RankSteps, world: Sequence[int], ranks: int) -> list[GroupRole]:
    """As far as one rank knows; its calls have the ranks of the run, its facts those of its `world` of torch."""
    known: dict[Ranks, GroupRole] = {}
    for spelled, dimension, role in recorded.facts.get("known_roles", ()):
        its = _of_run(read_ranks(spelled), world)
        known[its] = GroupRole(ranks=its, dimension=dimension, role=BatchRole(role))
    for pipeline in recorded.facts.get("pipelines", ()):
        its = _of_run(pipeline["ranks"] or range(len(world)), world)
        known[its] = GroupRole(ranks=its, dimension="pp", role=BatchRole.MODEL)
    steps = recorded.steps[-_LAST_STEPS:]
    calls: dict[tuple[Ranks, str], list[CollectiveCall]] = {}
    for call in (call for step in steps for call in step.collectives):
        is_unclear = call.group is None and (call.root == UNCLEAR or MESSAGE in call.name)
        members = tuple(range(ranks)) if call.group is None else tuple(sorted(call.group.ranks))
        if len(members) > 1 and not is_unclear:
            calls.setdefault((members, "" if call.group is None else call.group.dimension), []).append(call)
    roles = [each for each in known.values() if len(each.ranks) > 1]
    reduced = [{*each.ranks} for each in roles if each.role is BatchRole.DATA]
    gradient_bytes = float(recorded.facts.get("gradient_bytes") or 0) * len(steps)
    for (members, dimension), called in calls.items():
        role = role_of(dimension)
        if not role and members not in known:
            role = _role_by_calls(called, gradient_bytes, is_reduced=any({*members} <= each for each in reduced))
        if role:
            names = ", ".join(dict.fromkeys(call.name for call in called))
            roles.append(GroupRole(ranks=members, dimension=dimension, role=role, calls=names))
    return roles


def _of_run(ranks: Sequence[int], world: Sequence[int]) -> Ranks:
    """The ranks of the run; none where some are of another world, as of processes that a script starts itself."""
    return tuple(world[rank] for rank in ranks) if max(ranks, default=0) < len(world) else ()


def _role_by_calls(calls: Sequence[CollectiveCall], gradient_bytes: float, *, is_reduced: bool) -> BatchRole:
    """What the calls of a group of which nobody says what it is for show.

    Messages within forward and backward carry parts of a batch, others parameters or gradients. What sums in the
    forward sums parts of one batch, unless all gradients are summed, too (`is_reduced`: by DDP or FSDP).
    """
    inside = [call for call in calls if call.phase]
    if any(call.name == MESSAGE for call in calls):
        return BatchRole.MODEL if inside else BatchRole.DATA
    if is_reduced:
        return BatchRole.DATA
    sums = [call for call in calls if "all-reduce" in call.name or "reduce-scatter" in call.name]
    forward = sum(call.bytes for call in sums if call.phase == IN_FORWARD and call.bytes > _SCALARS)
    later = sum(call.bytes for call in sums if call.phase != IN_FORWARD and call.bytes > _SCALARS)
    if forward:
        return BatchRole.DATA if 0 < 0.9 * gradient_bytes <= later - forward else BatchRole.MODEL
    if later:
        return BatchRole.DATA
    return BatchRole.UNKNOWN if any(call.bytes > _SCALARS for call in inside) else BatchRole.NONE


def may_share(roles: Sequence[GroupRole], ranks: int) -> bool:
    """Whether a rank may read the same batch as others, as far as it knows itself."""
    return any(
        each.role is BatchRole.MODEL or (each.role is BatchRole.UNKNOWN and len(each.ranks) < ranks) for each in roles
    )


def roles_as_text(roles: Sequence[GroupRole]) -> str:
    """How a rank tells rank 0 what it knows."""
    return json.dumps([[spelled_ranks(each.ranks), each.dimension, each.role, each.calls] for each in roles])


def replicas_of(texts: Sequence[str]) -> DataReplicas:
    """From all ranks' `roles_as_text`. A group of all ranks whose role is not known reads batches of their own."""
    roles: dict[Ranks, GroupRole] = {}
    for ranks, dimension, role, calls in (its for text in texts for its in json.loads(text)):
        its = GroupRole(ranks=read_ranks(ranks), dimension=dimension, role=BatchRole(role), calls=calls)
        before = roles.setdefault(its.ranks, its)
        if _STRENGTH.index(its.role) > _STRENGTH.index(before.role):
            roles[its.ranks] = its
    replica = list(range(len(texts)))  # of each rank, the first rank of its replica

    def first(rank: int) -> int:
        while replica[rank] != rank:
            rank = replica[rank]
        return rank

    dimensions: dict[str, None] = {}
    for each in roles.values():
        if each.role is BatchRole.MODEL:
            dimensions[each.dimension or each.calls] = None
            for rank in each.ranks:
                low, high = sorted((first(each.ranks[0]), first(rank)))
                replica[high] = low
    unclear = [
        f"{each.calls} of {name_ranks(each.ranks)}{f' ({each.dimension})' if each.dimension else ''}"
        for each in roles.values()
        if each.role is BatchRole.UNKNOWN
        and len(each.ranks) < len(texts)
        and len({first(rank) for rank in each.ranks}) > 1
    ]
    if unclear:
        text = f"nothing says what these groups are for: {first_of(unclear, _NAMED)}"
        return DataReplicas(reason=f"which ranks read the same batch is not known; {text}; {_WAYS_OUT}")
    members: dict[int, list[int]] = {}
    for rank in range(len(texts)):
        members.setdefault(first(rank), []).append(rank)
    return DataReplicas(
        replicas=tuple(tuple(its) for its in members.values() if len(its) > 1), dimensions=tuple(dimensions)
    )


def count_once(samples: npt.NDArray[np.int32], known: DataReplicas | None, stated: int) -> None:
    """Changes the samples of all ranks, [rank, step]: those of a replica's batch count at its first rank alone. Where
    the replicas are not known they are as `stated`, 0: not at all. None: each rank reads its own batch."""
    if known is None:
        return
    if known.reason:
        samples[:] = stated
    for its in known.replicas:
        ranks = list(its)
        samples[its[0]] = samples[ranks].max(axis=0)
        samples[ranks[1:]] = 0
