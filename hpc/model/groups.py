"""Groups of ranks that call collectives or exchange messages, and which call of a rank meets which of others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.typed import TypeMismatchError, read_fields

MESSAGE = "message"
"""The name of a meeting of two: the first rank of its group, its root, sends to the second."""
ALL_RANKS = "all ranks"
"""The dimension of a group of all ranks that has no name."""
NAME, GROUP, ROOT, NUMBER = range(4)
"""Columns of a call: the numbers of its name and group; the rank that sends to the others, or as CollectiveCall has it;
how many of the same name, group and root the step has before it."""
NO_CALL = -1
"""In all columns where a rank has fewer calls than others."""


class GroupsError(ValueError):
    """Groups or calls that cannot be; the text says which."""


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """`ranks` of the world in the order in which the group numbers them, two in a group of messages: sender, receiver.

    `dimension` is the mesh dimension that it belongs to (`dp`, `tp`, …) or, where none has a name, the pattern of its
    ranks; of messages, `tag` tells them apart.
    """

    ranks: tuple[int, ...]
    dimension: str = ""
    tag: int = 0


@dataclass(frozen=True)
class Call:
    """What a rank calls: a collective by its name, the rank of the world that sends to the others (or NO_ROOT, UNCLEAR)
    and its group, None for all ranks."""

    name: str
    root: int
    group: RankGroup | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CallTable:
    """The calls of a step of each rank, in their order: int64 [rank, call, 4], NAME to NUMBER, NO_CALL behind a rank's
    last one. Calls of different ranks that are equal in all columns are one meeting.

    Raises GroupsError where numbers are of no name, group or rank, a rank calls in a group that it is not in, or
    twice the same, and where a message is not sent by the first of two.
    """

    names: tuple[str, ...]
    groups: tuple[RankGroup, ...]
    calls: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        calls = self.calls
        if calls.ndim != 3 or calls.shape[2] != 4 or calls.dtype != np.int64:
            raise GroupsError(f"calls are {calls.dtype} {list(calls.shape)}; they must be int64 [rank, call, 4]")
        ranks = len(calls)
        for group in self.groups:
            if len({*group.ranks}) != len(group.ranks) or not all(0 <= rank < ranks for rank in group.ranks):
                raise GroupsError(f"group {group.ranks[:8]} has a rank twice, or one that is not among {ranks}")
        has = (calls != NO_CALL).any(axis=2)
        if (has[:, 1:] & ~has[:, :-1]).any():
            raise GroupsError("a rank has calls behind none")
        its = calls[has]
        for column, limit in ((NAME, len(self.names)), (GROUP, len(self.groups)), (NUMBER, calls.shape[1])):
            if its.size and not (its[:, column].min() >= 0 and its[:, column].max() < limit):
                raise GroupsError(f"calls have a number outside 0 to {limit - 1} in column {column}")
        if its.size and not (its[:, ROOT].min() >= -2 and its[:, ROOT].max() < ranks):
            raise GroupsError(f"a call is sent by a rank that is not among {ranks}")
        inside = {(number, rank) for number, group in enumerate(self.groups) for rank in group.ranks}
        rank_of = np.nonzero(has)[0]
        pairs = np.unique(np.stack([its[:, GROUP], rank_of], axis=1), axis=0)
        for number, rank in pairs.tolist():
            if (number, rank) not in inside:
                raise GroupsError(f"rank {rank} calls in a group of ranks {self.groups[number].ranks[:8]}")
        message = self.names.index(MESSAGE) if MESSAGE in self.names else None
        for number, root in {*map(tuple, its[its[:, NAME] == message][:, [GROUP, ROOT]].tolist())}:
            if len(self.groups[number].ranks) != 2 or self.groups[number].ranks[0] != root:
                raise GroupsError(
                    f"a message is sent by rank {root} in a group of ranks {self.groups[number].ranks[:8]}"
                )
        if len(np.unique(np.column_stack([rank_of, its]), axis=0)) < len(its):
            raise GroupsError("a rank calls the same meeting twice in a step")

    @classmethod
    def of(cls, by_rank: Sequence[Sequence[Call]]) -> CallTable:
        """From the calls of a step of each rank, in their order."""
        everyone = RankGroup(ranks=tuple(range(len(by_rank))), dimension=ALL_RANKS)
        names: dict[str, int] = {}
        groups: dict[RankGroup, int] = {}
        width = max(map(len, by_rank), default=0)
        calls = np.full((len(by_rank), width, 4), NO_CALL, np.int64)
        for rank, its in enumerate(by_rank):
            before: Counter[Call] = Counter()
            for at, call in enumerate(its):
                group = groups.setdefault(call.group or everyone, len(groups))
                calls[rank, at] = names.setdefault(call.name, len(names)), group, call.root, before[call]
                before[call] += 1
        return cls(names=tuple(names), groups=tuple(groups), calls=calls)

    def groups_as_json(self) -> list[dict[str, Any]]:
        return [asdict(group) for group in self.groups]


def groups_of_json(values: Iterable[Any]) -> tuple[RankGroup, ...]:
    """The groups of `groups_as_json`. Raises GroupsError for anything else."""
    try:
        return tuple(RankGroup(**read_fields(RankGroup, value, "a group", later=True)) for value in values)
    except TypeMismatchError as error:
        raise GroupsError(str(error)) from None


def calls_as_json(calls: Sequence[Call] | None) -> str:
    """As a rank tells others what it calls in a step; None: nothing is known of it."""
    numbers: dict[RankGroup, int] = {}
    for group in () if calls is None else (call.group for call in calls):
        if group is not None:
            numbers.setdefault(group, len(numbers))
    its = None if calls is None else [[call.name, call.root, call.group and numbers[call.group]] for call in calls]
    return json.dumps([[asdict(group) for group in numbers], its])


def calls_of_json(text: str) -> list[Call] | None:
    """What another rank told by `calls_as_json`."""
    described, its = json.loads(text)
    groups = groups_of_json(described)
    if its is None:
        return None
    return [Call(name, root, None if group is None else groups[group]) for name, root, group in its]
