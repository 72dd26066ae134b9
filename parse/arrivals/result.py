"""All that the recorded collectives of a run show: by rank, by group, and what is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parse.arrivals.last import UNKNOWN, LastOfEach, Matched, decide, match
from parse.arrivals.passed_on import Judged, passed_on_ns, waits_for
from parse.arrivals.types import (
    WAIT_FOR_ALL,
    ArrivalEvidence,
    ArrivalsResult,
    CollectiveRecording,
    GroupResult,
    Ints,
    Lost,
    RankCalls,
    RankResult,
)

MS = 1e6
NAMED_NUMBERS = 8
"""Numbers of lost collectives that are named."""


@dataclass
class _OfRank:
    """What is known of one process, over all of its groups; `passed_on` is None where it is not known of all."""

    host: str
    complete: int = 0
    waits: list[float] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    sole: int = 0
    passed_on: int | None = 0
    itself: int = 0


def arrivals(recording: CollectiveRecording, clock_bound_ns: int | None = None) -> ArrivalsResult:
    """All that is known. With `clock_bound_ns`, the clocks of all hosts agree within as much."""
    labels = rank_labels(recording)
    by_group: dict[tuple[str, str], dict[int, RankCalls]] = defaultdict(dict)
    for (of_group, of_operation, number), its_calls in recording.calls.items():
        by_group[of_group, of_operation][number] = its_calls
    groups: list[GroupResult] = []
    judged: list[Judged] = []
    lost: list[Lost] = []
    remarks = [*recording.remarks]
    for (group_id, operation), calls_of in sorted(by_group.items()):
        group = recording.groups[group_id]
        if group.size < 2 or operation not in WAIT_FOR_ALL:
            continue
        name = _name(recording, group_id)
        matched, collectives = match(calls_of, group.size)
        label_of = {rank: labels.get((group_id, rank), f"its rank {rank}") for rank in range(group.size)}
        lost += _lost(calls_of, name, operation, label_of)
        if matched.uneven:
            remarks.append(f"left out: {matched.uneven} × {operation} of {name} to which ranks give different amounts")
        hosts = [recording.members[group_id, rank].host for rank in matched.ranks]
        decided = decide(matched, hosts, recording.resolution_ns, clock_bound_ns)
        judged.append(Judged(labels=tuple(label_of[rank] for rank in matched.ranks), matched=matched, decided=decided))
        groups.append(_group_result(name, operation, group.size, collectives, matched, decided))
    hosts_of = {labels[key]: member.host for key, member in recording.members.items()}
    return ArrivalsResult(
        source=recording.source, files=recording.files,
        hosts=len({member.host for member in recording.members.values()}),
        clock_bound=None if clock_bound_ns is None else clock_bound_ns / MS,
        ranks=_ranks(judged, hosts_of), groups=tuple(groups), lost=tuple(lost), remarks=tuple(remarks),
    )  # fmt: skip


def _ranks(judged: Sequence[Judged], hosts_of: Mapping[str, str]) -> tuple[RankResult, ...]:
    """Those that cost most by their own lateness first."""
    ranks: dict[str, _OfRank] = {}
    for each, passed_on in zip(judged, passed_on_ns(judged), strict=True):
        for place, label in enumerate(each.labels):
            _add(ranks.setdefault(label, _OfRank(host=hosts_of[label])), each.decided, passed_on, place)
    waits = waits_for(judged)
    results = [_rank_result(label, of_rank, waits.get(label, Counter())) for label, of_rank in ranks.items()]
    return tuple(sorted(results, key=_costliest))


def rank_labels(recording: CollectiveRecording) -> Mapping[tuple[str, int], str]:
    """By group and rank what its process is called: `rank 3`, by the group that has them all; else host and process."""
    members = recording.members
    processes = Counter(members.values())
    per_group = Counter((group, member) for (group, _), member in members.items())
    if any(count > 1 for count in per_group.values()):  # one process drives several devices: no telling them apart
        return {(group, rank): f"rank {rank} of {_name(recording, group)}" for group, rank in members}
    for largest in sorted(recording.groups.values(), key=lambda group: -group.size):
        ranks = {member: rank for (of, rank), member in members.items() if of == largest.id}
        if ranks.keys() == processes.keys():
            return {key: f"rank {ranks[member]}" for key, member in members.items()}
    return {key: " ".join(filter(None, (member.host, member.process))) for key, member in members.items()}


def _name(recording: CollectiveRecording, group: str) -> str:
    return recording.groups[group].name or group


def _add(of_rank: _OfRank, decided: LastOfEach, passed_on: Ints | None, place: int) -> None:
    """Adds the collectives of one operation in one group to those of a rank."""
    known = decided.last != UNKNOWN
    its = decided.last == place
    of_rank.complete += len(decided.last)
    others = decided.wait_ns.shape[1] - 1
    of_rank.waits += (decided.wait_ns[its].astype(float).sum(axis=1) / max(others, 1)).tolist()
    of_rank.bounds += decided.bound_ns[its].tolist()
    of_rank.sole += int(decided.sole_ns[its].sum())
    of_rank.itself += int(decided.wait_ns[known & ~its, place].sum())
    if passed_on is None and its.any():
        of_rank.passed_on = None
    elif passed_on is not None and of_rank.passed_on is not None:
        of_rank.passed_on += int(passed_on[its].sum())


def _rank_result(label: str, of_rank: _OfRank, waits_by_last: Counter[str]) -> RankResult:
    waits = np.array(of_rank.waits) / MS
    mostly = waits_by_last.most_common(1)
    return RankResult(
        rank=label, host=of_rank.host, last=len(waits), complete=of_rank.complete,
        wait=float(np.median(waits)) if len(waits) else None,
        longest_wait=float(waits.max()) if len(waits) else None,
        bound=float(np.median(of_rank.bounds)) / MS if of_rank.bounds else None,
        sole=of_rank.sole / MS, passed_on=None if of_rank.passed_on is None else of_rank.passed_on / MS,
        waits_itself=of_rank.itself / MS, waits_for=mostly[0][0] if mostly and mostly[0][1] else "",
    )  # fmt: skip


def _costliest(rank: RankResult) -> tuple[float, int, str]:
    return (rank.passed_on or 0.0) - rank.sole, len(rank.rank), rank.rank


def _group_result(
    group: str, operation: str, size: int, collectives: int, matched: Matched, decided: LastOfEach
) -> GroupResult:
    known = decided.last != UNKNOWN
    by_clock = int((known & decided.by_clock).sum())
    durations = matched.duration_ns / MS
    return GroupResult(
        group=group, operation=operation, ranks=size, collectives=collectives, complete=len(matched.duration_ns),
        decided={ArrivalEvidence.KERNELS: int(known.sum()) - by_clock, ArrivalEvidence.CLOCK: by_clock},
        contradicted=decided.contradicted,
        shortest=float(np.median(durations.min(axis=1))) if len(durations) else None,
        longest=float(np.median(durations.max(axis=1))) if len(durations) else None,
    )  # fmt: skip


def _lost(calls_of: Mapping[int, RankCalls], group: str, operation: str, labels: Mapping[int, str]) -> list[Lost]:
    """What each rank lacks of what others have."""
    every = np.unique(np.concatenate([calls.number for calls in calls_of.values()]))
    lost = []
    for rank, label in labels.items():
        calls = calls_of.get(rank)
        missing = every if calls is None else np.setdiff1d(every, calls.number, assume_unique=True)
        if len(missing):
            lost.append(
                Lost(
                    group=group, operation=operation, rank=label, count=len(missing),
                    numbers=tuple(missing[:NAMED_NUMBERS].tolist()), all=calls is None,
                )
            )  # fmt: skip
    return lost
