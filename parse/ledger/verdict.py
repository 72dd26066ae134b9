"""Who is waited for: stragglers with who, when, why and how sure; or nobody, or that it is not known. Times are ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from parse.graph.findings import ChainLink
from parse.term_kinds import COMMUNICATION


class VerdictKind(StrEnum):
    """Ranks that are late all the time, by turns, or in some steps; nobody; or that it is not known."""

    PERSISTENT = "persistent"
    ROTATING = "rotating"
    TRANSIENT = "transient"
    NONE = "none"
    CANNOT_TELL = "cannot tell"


PERSISTENT, ROTATING, TRANSIENT, NONE, CANNOT_TELL = VerdictKind


class Because(StrEnum):
    """The basis of a verdict without a straggler."""

    CLOCK = "clock"
    FEW_STEPS = "steps"
    RUNS_DISAGREE = "the runs disagree"
    UNMATCHED = "some collectives cannot be matched between ranks"
    SOME_STEPS = "in some steps"
    NO_PEERS = "no rank has another that does the same"
    INSIDE = "no rank begins its steps late, and who takes longer inside of one is not seen"


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """Who else is late is not known: ranks also meet in these `ways`, which no hook sees, or may, since the main thread
    of one sleeps `asleep` ms of a step for no reason that hooks see. Any two are alike, whatever the names."""

    ways: tuple[str, ...] = field(default=(), compare=False)
    asleep: float = field(default=0.0, compare=False)


@dataclass(frozen=True, kw_only=True)
class UnsplitSteps:
    """So many steps are in no term: they lack the stamps of these `borders`, which most steps have. `mean` is how long
    they take, `others` how long those do that are in the terms, ms."""

    borders: tuple[str, ...]
    steps: int
    of_steps: int
    mean: float
    others: float


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Why terms are one, in all steps or in the `unsplit` ones. `missing`: per time stamp the number absent and the
    number expected (ranks × steps)."""

    missing: tuple[tuple[str, int, int], ...] = ()
    not_reduced: bool = False
    early_collectives: tuple[str, ...] = ()
    unsplit: UnsplitSteps | None = None
    ends_early: int = 0
    """Steps that a rank ends before another has begun them, where ranks are compared at the begin of a step."""


class Paced(StrEnum):
    """Whether a loader sets the pace, so that steps are no shorter without a straggler. PERHAPS: what it costs is the
    most possible."""

    YES = "yes"
    PERHAPS = "perhaps"
    NO = "no"


class ShapeKind(StrEnum):
    """How a delay runs over the steps of the window."""

    CONSTANT = "constant"
    GROWING = "growing"
    FALLING = "falling"
    BEGINS = "begins"
    ENDS = "ends"
    PERIODIC = "periodic"
    BLOCKS = "blocks"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a delay: by how many ms it changes `per_100_steps`, the `step` from which on it is there or is gone,
    the `period` in steps, or after how many steps, its `period`, another is late."""

    kind: ShapeKind
    per_100_steps: float | None = None
    step: int | None = None
    period: int | None = None


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A rank that `costs` as many ms a step as would have been detected, beyond the median rank, half of it in `steps`
    of the steps: too few, or too irregular, to tell it from chance."""

    rank: int
    costs: float
    steps: int
    of_steps: int


@dataclass(frozen=True, kw_only=True)
class LateCells:
    """Cells of a finding: these ranks in the `steps` of each run, None for all of a run's; `are_all`: unless they are
    looked for in some of its steps alone."""

    ranks: tuple[int, ...]
    steps: tuple[tuple[int, ...] | None, ...]
    are_all: bool = True


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """Ranks that the others wait for.

    `node` is the host name where a whole node is late, or the names of nodes that alternate. `steps` are those in which
    a transient straggler is late, `run_steps` the same run by run; where runs differ in them, `steps` is empty. `cells`
    are what a replay without it takes out. It is late `in_runs` of `of_runs`. With `peers` ranks it is compared, those
    that do the same; 0: not known.

    `arrival_skew` is how much later than the median of the others it arrives: on average of all steps, a transient one
    in the steps in which it is late; `cause` its parts, by CAUSES, `loader` what of its data the loaders of a script
    take, `after_update` what of its optimizer is after that one's call, each None where that is not known; `meetings`
    those of its parts that arise at the meetings of a step where ranks meet several times, the largest first; `bound`
    is its uncertainty from the clocks.
    `share` of the window's steps, 0…1. `costs` is the mean time that it adds to a step of the window, `shape` how it
    runs over the steps, None where that is not known. `chance` is the probability of as much among equal ranks, None
    where that was not tested. `unseen` is where ranks also meet and no hook sees it, `paced` whether a loader sets the
    pace.

    Where ranks meet in several groups `arrival_skew` is by how much its own work exceeds that of its peers, the ranks
    that do the same in other replicas, and `chain` is who waits for it, and for whom these make wait in turn; else
    `chain` is empty.

    Raises ValueError for a transient one without steps.
    """

    kind: VerdictKind
    ranks: tuple[int, ...]
    node: str = ""
    steps: tuple[int, ...] = ()
    run_steps: tuple[tuple[int, ...], ...] = ()
    in_runs: int = 1
    of_runs: int = 1
    arrival_skew: float = 0.0
    cause: Mapping[str, float] = field(default_factory=dict)
    loader: float | None = None
    after_update: float | None = None
    peers: int = 0
    meetings: Mapping[str, float] = field(default_factory=dict)
    share: float = 0.0
    costs: float = 0.0
    bound: float = 0.0
    shape: Shape | None = None
    chance: float | None = None
    unseen: Unseen | None = None
    paced: Paced = Paced.NO
    chain: tuple[ChainLink, ...] = ()
    cells: tuple[LateCells, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is VerdictKind.TRANSIENT and not (self.steps or any(self.run_steps)):
            raise ValueError(f"ranks {self.ranks} are late in some steps, and none is named")

    def cells_of_run(self, run: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...] | None], ...]:
        """Its cells in a run, by its number in the point: ranks, and their steps, None for all."""
        cells = self.cells or (LateCells(ranks=self.ranks, steps=self.run_steps or (self.steps or None,) * (run + 1)),)
        return tuple((each.ranks, each.steps[run]) for each in cells)

    @property
    def leaves_late(self) -> bool:
        """Whether most of its delay is that it leaves a meeting later, which is the network's until its counters say
        that it did not run."""
        return max(self.cause, key=lambda name: self.cause[name], default="").startswith(COMMUNICATION.cause)


@dataclass(frozen=True, kw_only=True)
class Nobody:
    """No rank is late more than equal ranks would be.

    A rank that is late by `limit` in every step would have been detected in nine of ten such measurements, and by
    `seldom_limit` in one of ten steps; None where no such delay would have been. `doubt` is the rank that costs as much
    in some steps, if only by chance, `scatter` the mean standard deviation of the ranks' arrivals in a step, None of
    one rank; `bound` what the clocks leave open. All ms.
    """

    limit: float | None = None
    seldom_limit: float | None = None
    scatter: float | None = None
    doubt: Doubt | None = None
    bound: float = 0.0
    kind: ClassVar[VerdictKind] = NONE
    ranks: ClassVar[tuple[int, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class CannotTell:
    """Who is waited for is not known, and why; `bound` is what the clocks leave open, ms, `doubt` the rank that costs
    as much as would have been detected, if only by chance."""

    because: Because | Merged | Unseen
    bound: float = 0.0
    doubt: Doubt | None = None
    kind: ClassVar[VerdictKind] = CANNOT_TELL
    ranks: ClassVar[tuple[int, ...]] = ()


Verdict = Straggler | Nobody | CannotTell


@dataclass(frozen=True, kw_only=True)
class FasterRanks:
    """Ranks that are earlier than all others by so many ms a step, or all of a `node`."""

    ranks: tuple[int, ...]
    node: str = ""
    by: float


@dataclass(frozen=True, kw_only=True)
class SharedDelay:
    """Steps that are `longer` on all ranks together, ms: a `share` of them, 0…1, in such a `shape`; `costs` ms a step
    of the window."""

    longer: float
    share: float
    costs: float
    shape: Shape
