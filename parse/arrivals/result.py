"""All that the recorded collectives of a run show: who comes last to each, by rank, by group, and what is lost.

The kernel of a collective that waits for all runs from when its rank comes until all have come and the data is
through. It runs longest on the rank that comes first and shortest on the last one, whatever clocks of hosts show.
Kernels of one collective do not end in the same instant, but none ends before the last rank has come, and that one's
own time is what was left to do: within it all others end. That is the bound of what kernel times say: the last rank is
known where the second shortest kernel runs longer than the shortest by more than the shortest takes.

Where one clock stamps all ranks (one host, or hosts whose clocks agree as well as the caller says), begins are compared
too: the bound is by how much the ends of one collective lie apart, which holds the error of the stamps.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hpc.system.text import plural

Ints = npt.NDArray[np.int64]
MAX_KERNEL_NS = 1 << 46
"""No kernel runs 19 hours."""
MAX_RANKS = 1 << 20
"""No communicator has more."""
RESOLUTION_NS = 1000
"""Times have nanoseconds, but devices' clocks may tick once in a microsecond."""
MAX_CALLS = 20_000_000
MAX_COUNT = 1 << 51
"""No collective has more bytes, or a higher number."""
ABSENT = -1
"""In the place of a time that was not recorded."""
WAIT_FOR_ALL = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"})
"""Operations that no rank can end before the last one has come."""


class RecordingError(ValueError):
    """What was recorded cannot be read; the text says why."""


@dataclass(frozen=True, kw_only=True)
class CallGroup:
    """Ranks that call collectives together, `size` of them; `id` is the same on all of them, `name` what people call
    it, empty where nobody did."""

    id: str
    size: int
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Member:
    """The process that is a rank of a group: its host, empty where not recorded, and what tells it apart there."""

    host: str
    process: str


@dataclass(frozen=True, kw_only=True, eq=False)
class RankCalls:
    """The calls of one operation by one rank of a group, ascending by `number`, which is the same on all ranks.

    `bytes` are the larger of what the rank gives and gets; `duration_ns` is how long its kernel ran, `begin_ns` when
    that began by the clock of its host, each ABSENT where not recorded.
    """

    number: Ints
    bytes: Ints
    duration_ns: Ints
    begin_ns: Ints


CallsKey = tuple[str, str, int]
"""Id of the group, operation, rank."""


CallColumns = tuple["array[int]", ...]
"""The calls that are read of one rank and operation, call by call: number, bytes, duration and begin in ns."""


def _columns() -> dict[CallsKey, CallColumns]:
    return defaultdict(lambda: tuple(array("q") for _ in range(4)))


@dataclass(kw_only=True, eq=False)
class CollectiveRecording:
    """What `source` recorded, filled file by file. `members` are by group and rank. `remarks` say how it was read,
    `left_out` what was not, with how often."""

    source: str
    files: int
    groups: dict[str, CallGroup] = field(default_factory=dict)
    members: dict[tuple[str, int], Member] = field(default_factory=dict)
    columns: dict[CallsKey, CallColumns] = field(default_factory=_columns)
    remarks: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    count: int = 0

    def add(self, key: CallsKey, *call: int) -> None:
        """Adds number, bytes, duration_ns, begin_ns of a call. Raises RecordingError where there are too many."""
        if self.count >= MAX_CALLS:
            raise RecordingError(f"more than {MAX_CALLS} collectives; give the files of fewer communicators")
        self.count += 1
        for column, value in zip(self.columns[key], call, strict=True):
            column.append(value)

    @cached_property
    def calls(self) -> Mapping[CallsKey, RankCalls]:
        """All that were read, by number; those whose number a rank has more than once are `left_out`."""
        return {key: self._by_number(columns) for key, columns in self.columns.items()}

    def _by_number(self, columns: CallColumns) -> RankCalls:
        number, *others = (np.frombuffer(column, dtype=np.int64) for column in columns)
        unique, first, count = np.unique(number, return_index=True, return_counts=True)
        size, duration, begin = (column[first[count == 1]] for column in others)
        if twice := int((count > 1).sum()):
            self.left_out[f"{plural(twice, 'collective')} that a rank has twice"] += 1
        return RankCalls(number=unique[count == 1], bytes=size, duration_ns=duration, begin_ns=begin)


class ArrivalEvidence(StrEnum):
    """By what the last rank of a collective is known."""

    KERNELS = "kernel times"
    CLOCK = "clock"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Collectives of a group that a rank has no record of, and others have: how many, the first numbers. `all` where it
    has none of that operation."""

    group: str
    operation: str
    rank: str
    count: int
    numbers: tuple[int, ...]
    all: bool


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """The collectives of one operation in a group: all that some rank has, those that all have, those of them whose
    last rank is known, by evidence, and those where a clock contradicts. ms: medians of the shortest and the longest
    kernel; None without any that all ranks have with times."""

    group: str
    operation: str
    ranks: int
    collectives: int
    complete: int
    decided: Mapping[str, int]
    contradicted: int
    shortest: float | None
    longest: float | None


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What is known of a rank: to how many of the `complete` collectives of its groups it comes `last`; ms: how long
    the others then wait (mean over them: median and maximum over those collectives), how exactly that is known (median
    bound), how long in all they wait for it alone, not for the second last; how long in all it waits itself, and
    mostly for whom."""

    rank: str
    host: str
    last: int
    complete: int
    wait: float | None
    longest_wait: float | None
    bound: float | None
    sole: float
    waits_itself: float
    waits_for: str


@dataclass(frozen=True, kw_only=True)
class ArrivalsResult:
    """All of it; ranks that cost most come first."""

    source: str
    files: int
    hosts: int
    clock_bound: float | None
    ranks: tuple[RankResult, ...]
    groups: tuple[GroupResult, ...]
    lost: tuple[Lost, ...]
    remarks: tuple[str, ...] = field(default=())


# All that the recorded collectives of a run show: who comes last to each, by rank, by group, and what is lost.


MS = 1e6
NAMED_NUMBERS = 8
"""Numbers of lost collectives that are named."""
UNKNOWN = -1
"""In the place of a rank where it is not known who is last."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """The collectives that all ranks have: [collective, rank]; `ranks` are their numbers in the group. `uneven` are
    those in which ranks have different amounts: their kernels differ for that, too, and end apart."""

    ranks: tuple[int, ...]
    duration_ns: Ints
    begin_ns: Ints
    uneven: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class LastOfEach:
    """Per collective: the place of the rank that is last, or -1; by which evidence; ns that each rank waits, how
    exactly that is known, and how long the others wait for the last one alone. `contradicted` counts those where a
    clock shows that the last one by kernel times came before another."""

    last: npt.NDArray[np.intp]
    by_clock: npt.NDArray[np.bool_]
    wait_ns: Ints
    bound_ns: Ints
    sole_ns: Ints
    contradicted: int


def match(calls_of: Mapping[int, RankCalls], size: int) -> tuple[Matched, int]:
    """The collectives that all ranks of a group of `size` have; and how many any rank has."""
    ranks = tuple(sorted(calls_of))
    every = np.unique(np.concatenate([calls_of[rank].number for rank in ranks]))
    common = every
    for rank in ranks:
        common = np.intersect1d(common, calls_of[rank].number, assume_unique=True)
    if len(ranks) < size:
        common = common[:0]
    places = [np.searchsorted(calls_of[rank].number, common) for rank in ranks]
    columns = [
        np.stack([getattr(calls_of[rank], name)[at] for rank, at in zip(ranks, places, strict=True)], axis=1)
        for name in ("bytes", "duration_ns", "begin_ns")
    ]
    uneven = (columns[0] != columns[0][:, :1]).any(axis=1)
    return Matched(ranks=ranks, duration_ns=columns[1], begin_ns=columns[2], uneven=uneven), len(every)


def decide(matched: Matched, hosts: Sequence[str], clock_bound_ns: int | None = None) -> LastOfEach:
    """Who is last, collective by collective."""
    duration, begin = matched.duration_ns, matched.begin_ns
    rows = np.arange(len(duration))
    if not len(duration):
        nothing = np.zeros(0, dtype=np.int64)
        return LastOfEach(
            last=np.zeros(0, dtype=np.intp), by_clock=np.zeros(0, dtype=np.bool_), wait_ns=np.zeros_like(duration),
            bound_ns=nothing, sole_ns=nothing, contradicted=0,
        )  # fmt: skip
    ordered = np.sort(duration, axis=1)
    shortest, gap = ordered[:, 0], ordered[:, 1] - ordered[:, 0]
    bound = shortest + RESOLUTION_NS
    last = np.where((gap > bound) & (shortest > 0) & ~matched.uneven, duration.argmin(axis=1), UNKNOWN)
    wait, sole = duration - shortest[:, None], gap.copy()

    timed = (begin != ABSENT).all(axis=1) & (shortest > 0)
    contradicted = (last != UNKNOWN) & _earlier_by_its_host(begin, last, hosts)
    last[contradicted] = UNKNOWN

    by_clock = np.zeros(len(duration), dtype=np.bool_)
    one_clock = len({*hosts}) == 1 and hosts[0] != ""
    if one_clock or clock_bound_ns is not None:
        ends = begin + duration
        spread = ends.max(axis=1) - ends.min(axis=1) + RESOLUTION_NS + (0 if one_clock else clock_bound_ns or 0)
        begins = np.sort(begin, axis=1)
        between = begins[:, -1] - begins[:, -2]
        latest = begin.argmax(axis=1)
        agrees = (last == UNKNOWN) | (last == latest)
        known = timed & ~contradicted & agrees & (between > spread)
        by_clock = known & ((last == UNKNOWN) | (spread < bound))
        last[by_clock] = latest[by_clock]
        wait[by_clock] = (begins[:, -1:] - begin)[by_clock]
        bound, sole = np.where(by_clock, spread, bound), np.where(by_clock, between, sole)
    wait[rows, np.maximum(last, 0)] = 0
    return LastOfEach(
        last=last, by_clock=by_clock, wait_ns=wait, bound_ns=bound, sole_ns=sole, contradicted=int(contradicted.sum())
    )


def _earlier_by_its_host(begin: Ints, last: npt.NDArray[np.intp], hosts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Where the last rank began before another one, by the clock of the host that they share."""
    earlier = np.zeros(len(begin), dtype=np.bool_)
    for place, host in enumerate(hosts):
        beside = [other for other, its in enumerate(hosts) if its == host and host and other != place]
        if not beside:
            continue
        others = begin[:, beside].max(axis=1)
        timed = (begin[:, [place, *beside]] != ABSENT).all(axis=1)
        earlier |= (last == place) & timed & (begin[:, place] < others)
    return earlier


# The result.


@dataclass
class _OfRank:
    """What is known of one process, over all of its groups; `waits_for` has ns by the last rank."""

    host: str
    complete: int = 0
    waits: list[float] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    sole: int = 0
    waits_for: Counter[str] = field(default_factory=Counter)


def arrivals(recording: CollectiveRecording, clock_bound_ns: int | None = None) -> ArrivalsResult:
    """All that is known. With `clock_bound_ns`, the clocks of all hosts agree within as much."""
    labels = rank_labels(recording)
    by_group: dict[tuple[str, str], dict[int, RankCalls]] = defaultdict(dict)
    for (of_group, of_operation, number), its_calls in recording.calls.items():
        by_group[of_group, of_operation][number] = its_calls
    groups: list[GroupResult] = []
    ranks: dict[str, _OfRank] = {}
    lost: list[Lost] = []
    remarks = [*recording.remarks]
    for reason, count in recording.left_out.items():
        remarks.append(f"left out: {reason}" + (f" ({count} times)" if count > 1 else ""))
    for (group_id, operation), calls_of in sorted(by_group.items()):
        group = recording.groups[group_id]
        if group.size < 2 or operation not in WAIT_FOR_ALL:
            continue
        name = _name(recording, group_id)
        matched, collectives = match(calls_of, group.size)
        label_of = {rank: labels.get((group_id, rank), f"its rank {rank}") for rank in range(group.size)}
        lost += _lost(calls_of, name, operation, label_of)
        if uneven := int(matched.uneven.sum()):
            remarks.append(
                f"in {uneven} × {operation} of {name} amounts differ by rank: there kernel times show nothing"
            )
        hosts = [recording.members[group_id, rank].host for rank in matched.ranks]
        decided = decide(matched, hosts, clock_bound_ns)
        for place, rank in enumerate(matched.ranks):
            its = ranks.setdefault(label_of[rank], _OfRank(host=hosts[place]))
            _add(its, decided, place, [label_of[each] for each in matched.ranks])
        groups.append(_group_result(name, operation, group.size, collectives, matched, decided))
    of_ranks = [_rank_result(label, each) for label, each in ranks.items()]
    return ArrivalsResult(
        source=recording.source, files=recording.files,
        hosts=len({member.host for member in recording.members.values()}),
        clock_bound=None if clock_bound_ns is None else clock_bound_ns / MS,
        # Who makes others wait, and waits least itself, comes first.
        ranks=tuple(sorted(of_ranks, key=lambda rank: (rank.waits_itself - rank.sole, len(rank.rank), rank.rank))),
        groups=tuple(groups), lost=tuple(lost), remarks=tuple(remarks),
    )  # fmt: skip


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


def _add(of_rank: _OfRank, decided: LastOfEach, place: int, labels: Sequence[str]) -> None:
    """Adds the collectives of one operation in one group to those of the rank at this place; `labels` are of all."""
    its = decided.last == place
    of_rank.complete += len(decided.last)
    of_rank.waits += (decided.wait_ns[its].astype(float).sum(axis=1) / max(len(labels) - 1, 1)).tolist()
    of_rank.bounds += decided.bound_ns[its].tolist()
    of_rank.sole += int(decided.sole_ns[its].sum())
    for other, label in enumerate(labels):
        if other != place:
            of_rank.waits_for[label] += int(decided.wait_ns[decided.last == other, place].sum())


def _rank_result(label: str, of_rank: _OfRank) -> RankResult:
    waits = np.array(of_rank.waits) / MS
    mostly = of_rank.waits_for.most_common(1)
    return RankResult(
        rank=label, host=of_rank.host, last=len(waits), complete=of_rank.complete,
        wait=float(np.median(waits)) if len(waits) else None,
        longest_wait=float(waits.max()) if len(waits) else None,
        bound=float(np.median(of_rank.bounds)) / MS if of_rank.bounds else None,
        sole=of_rank.sole / MS, waits_itself=of_rank.waits_for.total() / MS,
        waits_for=mostly[0][0] if mostly and mostly[0][1] else "",
    )  # fmt: skip


def _group_result(
    group: str, operation: str, size: int, collectives: int, matched: Matched, decided: LastOfEach
) -> GroupResult:
    known = decided.last != UNKNOWN
    by_clock = int((known & decided.by_clock).sum())
    durations = matched.duration_ns[(matched.duration_ns > 0).all(axis=1)] / MS
    return GroupResult(
        group=group, operation=operation, ranks=size, collectives=collectives, complete=len(known),
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
