"""Collectives as profilers recorded them, rank by rank, and what they show of who comes last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
MAX_KERNEL_NS = 1 << 46
"""No kernel runs 19 hours."""
MAX_RANKS = 1 << 20
"""No communicator has more."""
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

    `duration_ns` is how long the rank's kernel ran, `begin_ns` when that began by the clock of its host, or ABSENT.
    """

    number: Ints
    bytes: Ints
    duration_ns: Ints
    begin_ns: Ints


CallsKey = tuple[str, str, int]
"""Id of the group, operation, rank."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectiveRecording:
    """What `source` recorded. `members` are by group and rank; times are exact to `resolution_ns`. `remarks` name what
    was left out."""

    source: str
    files: int
    groups: Mapping[str, CallGroup]
    members: Mapping[tuple[str, int], Member]
    calls: Mapping[CallsKey, RankCalls]
    resolution_ns: int
    remarks: tuple[str, ...] = ()


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
    kernel; None without any that all ranks have."""

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
    bound), how long in all they wait for it alone, not for the second last; of this at most how much it passes on, as
    it had waited itself before, None where that is not known; how long in all it waits itself, and mostly for whom."""

    rank: str
    host: str
    last: int
    complete: int
    wait: float | None
    longest_wait: float | None
    bound: float | None
    sole: float
    passed_on: float | None
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
