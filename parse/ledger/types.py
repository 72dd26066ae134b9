"""The ledger of a point: terms, findings, who is waited for. All times are milliseconds per step; docs/ledger.md
explains them to a user."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeVar

from parse.ledger.finding import ComputeSplit, Finding, LeftOut, RankPauses, SpeedRange, Symptom
from parse.ledger.host_bound import HostBound
from parse.ledger.input import InputReading
from parse.ledger.network import Network
from parse.ledger.telemetry import ConditionChange, TooFewSamples
from parse.ledger.verdict import Merged, Straggler, Verdict
from parse.rules import WORTH_NAMING
from parse.runs.result import Result
from parse.stats import Interval, Mean
from parse.term_kinds import COMMUNICATION, DATA, parts_of


class NoLoss(Enum):
    """Why a point has no loss."""

    IS_BASE = 1
    NO_BASE = 2
    BASE_NOT_OK = 3
    NO_SAMPLES = 4
    """How many samples its steps take is not known, or those of its base: whether these do the same work."""


@dataclass(frozen=True, kw_only=True)
class StampErrors:
    """Time stamps, among `total` (ranks × steps), that cannot be right.

    `disordered`: before an earlier one of the same step; `gaps`: steps that do not begin at the end of the one before;
    `early`: reduced before the last rank's gradients are ready, by up to `early_ms` more than the clocks' bounds.
    """

    total: int
    disordered: int = 0
    gaps: int = 0
    early: int = 0
    early_ms: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.disordered or self.gaps or self.early)


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term of a point: its mean over ranks, steps and ok runs.

    `baseline` is that of the base (times `scale`), `loss` the difference; None
    without a base. `share` of the whole loss, 0…1, only where the whole loss is larger than its interval.
    """

    name: str
    mean: Mean
    baseline: float | None = None
    loss: Mean | None = None
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank, or a node or role with several: the means of its terms over the steps of the ok runs, in the order of
    `terms`.

    `last` is the share of steps in which it arrived last at the reduction, beyond the clocks' bounds.
    """

    name: str
    ranks: tuple[int, ...]
    terms: tuple[float, ...]
    last: float | None


@dataclass(frozen=True, kw_only=True)
class DimensionPart:
    """What of `wait` and of `communication` a rank has in the groups of one dimension."""

    wait: float
    communication: float


@dataclass(frozen=True, kw_only=True)
class DimensionTerms:
    """What of the terms `wait` and `communication` is in the groups of one `dimension`: `dp`, `tp`, `pp`, …, or the
    pattern of their ranks; empty: not known. Means over ranks, steps and ok runs, and those of each rank."""

    dimension: str
    wait: Mean
    communication: Mean
    ranks: tuple[DimensionPart, ...]


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A step in which a rank's delay after the median rank exceeds the usual one of the window."""

    step: int
    rank: int
    arrival_skew: float


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """One run of the point. `pauses` are those between its blocks, each in ms, `rank_pauses` who makes them.

    `bound` is the uncertainty from the clocks about which of two ranks was first, for the two with the widest one; None
    if ranks are not compared.
    """

    run_id: str
    verdict: Verdict
    step: float
    pauses: tuple[float, ...]
    bound: float | None
    incidents: tuple[Incident, ...] = ()
    rank_pauses: tuple[RankPauses, ...] = ()
    problems: StampErrors | None = None


@dataclass(frozen=True, kw_only=True)
class Standalone:
    """The time of a standalone all-reduce of the gradients, from the run `run_id` of collectives on the same ranks."""

    gradient_bytes: int
    standalone: float
    exposed: float
    run_id: str

    @property
    def overlapped(self) -> float:
        """Milliseconds of it behind compute; negative where more is exposed than it takes standalone."""
        return self.standalone - self.exposed


class Change(StrEnum):
    """What is changed in a run's recorded steps before they are replayed."""

    STRAGGLER = "without the straggler"
    MEDIAN = "every rank at the median"
    COMMUNICATION = COMMUNICATION.free
    INPUT = DATA.free
    STAGES = "stages balanced"
    EXPERTS = "experts balanced"
    BUBBLE = "no pipeline bubble"


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The speed, in the point's unit, with a change: the median of the replayed runs with its interval, and the `gain`
    over the recorded steps, 0.1 for 10 %. `possible`, where ranks share cores: what it would be, since others get, or
    need, what one no longer takes. `dimension` is that whose communication is for free, empty: of all."""

    change: Change
    speed: float
    interval: Interval | None
    gain: float
    possible: SpeedRange | None = None
    dimension: str = ""

    @property
    def name(self) -> str:
        """The change in words: `communication in tp for free`."""
        return f"communication in {self.dimension} for free" if self.dimension else str(self.change)


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The runs behind a loss: those of the point, and of its base. As many of each as `for_half` would give an
    interval half as wide, if they scatter as these; None where that is not known."""

    point: int
    baseline: int
    for_half: int | None


@dataclass(frozen=True, kw_only=True)
class StragglerAtBase:
    """What the straggler of a base of several ranks `costs` a step there, and what its ranks add to the mean `compute`
    beyond the median rank, in ms (times `scale`); 0 where there is none.

    `together`, where the point has a straggler, too: `wait` and the terms in which that is late as one term. The same
    lateness is less of these and more of `wait` in a mean over more ranks, which is no loss.
    """

    costs: float = 0.0
    compute: float = 0.0
    together: Term | None = None


@dataclass(frozen=True, kw_only=True)
class BesideBenchmark:
    """An all-reduce of the gradients as a benchmark (`program`) measured it on as many devices, its time in ms; bus
    bandwidths in GB/s, that of the standalone all-reduce None where there is none."""

    file: str
    program: str = "nccl-tests"
    case: str
    gradient_bytes: int
    time: float
    bus_bandwidth: float
    standalone_bus_bandwidth: float | None


Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A point's ledger. `terms` add up to `step`, their losses to `loss`; `findings` are what makes a step longer, what
    costs most first; `verdict` is who is waited for by all runs together, or what would have been detected.

    `median_step` is the median where `step` is the mean. `skew` is the excess of the throughput's step time over
    `step`: (end skew − start skew) / steps. `straggler_at_base` is what the base loses to a straggler already.
    `telemetry` are the differences from the base's clocks, power and load, `contention`
    what shows that the base was disturbed, `shares_cores` whether what one rank no longer takes others get,
    `input` what is known of input that is read from files, `host_bound` how far devices wait for their hosts,
    `what_ifs` what changes would be worth, where that was requested. `dimensions` are the parts of `wait` and
    `communication` by the groups of the ranks, none where these have no groups. `nccl_tests` are of
    nccl-tests and of OSU on as many devices, `network` is None of one node. `repeats` are the runs behind the loss,
    `scale` is what the base's times are multiplied by: a device's work in a step, against that at the base.
    `speed_with_pauses` is the speed with a script's pauses, which are in no step, in the point's unit; None where there
    are none; `left_out` are the steps that are in no other figure. `roles` are the ranks that do the same, none where
    all do, or each does something else.
    """

    result: Result
    terms: tuple[Term, ...]
    step: Mean
    median_step: float
    skew: float
    loss: Mean | None
    no_loss: NoLoss | None
    merged: tuple[Merged, ...]
    verdict: Verdict
    runs: tuple[RunLedger, ...]
    ranks: tuple[Place, ...]
    nodes: tuple[Place, ...]
    findings: tuple[Finding, ...] = ()
    scale: float = 1.0
    split: ComputeSplit | None = None
    host_bound: HostBound | None = None
    standalone: Standalone | None = None
    straggler_at_base: StragglerAtBase = StragglerAtBase()
    repeats: Repeats | None = None
    contention: tuple[Symptom, ...] = ()
    shares_cores: bool = False
    telemetry: tuple[ConditionChange | TooFewSamples, ...] = ()
    input: InputReading | None = None
    remarks: tuple[str, ...] = ()
    what_ifs: tuple[WhatIf, ...] | None = None
    nccl_tests: tuple[BesideBenchmark, ...] = ()
    network: Network | None = None
    speed_with_pauses: float | None = None
    left_out: LeftOut | None = None
    dimensions: tuple[DimensionTerms, ...] = ()
    roles: tuple[Place, ...] = ()

    def findings_of(self, kind: type[Record]) -> list[tuple[Finding, Record]]:
        """Its findings of a kind, by the type of their records, with these."""
        return [(each, each.what) for each in self.findings if isinstance(each.what, kind)]

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        """Those of its findings, what costs most first."""
        return tuple(straggler for _, straggler in self.findings_of(Straggler))

    @property
    def causes(self) -> tuple[Term, ...]:
        """The terms as causes of the loss: those that are `together` are one, behind the others."""
        together = self.straggler_at_base.together
        if together is None:
            return self.terms
        joined = {*parts_of(together.name)}
        return (*(term for term in self.terms if not {*parts_of(term.name)} <= joined), together)

    @property
    def loses_little(self) -> bool:
        """Whether what a step loses is less than WORTH_NAMING of it."""
        return self.loss is not None and 0 < self.loss.value < WORTH_NAMING * self.step.value

    @property
    def is_resolved(self) -> bool:
        """Whether the loss is no scatter of the runs, as far as that is known."""
        return self.loss is not None and (self.loss.low is None or self.loss.resolved)

    def lost_to(self, finding: Finding) -> float:
        """What is lost to a finding more than at the base, ms; −1: not known."""
        what, at_base = finding.what, self.straggler_at_base.costs
        is_first = isinstance(what, Straggler) and what.ranks == self.verdict.ranks
        return -1.0 if finding.costs is None else max(0.0, finding.costs - (at_base if is_first else 0.0))
