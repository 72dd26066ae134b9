"""The figures of a point's ledger. All times are milliseconds per step; docs/ledger.md explains them to a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import ClassVar, TypeVar

from parse.graph.findings import Bubble, ChainLink, SlowLink, StageImbalance, UnevenExperts
from parse.ledger.host_bound import HostBound, SlowHosts
from parse.ledger.input import InputReading
from parse.ledger.network import Network, NetworkFinding
from parse.ledger.telemetry import ConditionChange, TooFewSamples
from parse.runs.result import Result
from parse.stats import Interval
from parse.term_kinds import COMMUNICATION, DATA, parts_of

WORTH_NAMING = 0.01
"""Of a loss that is a smaller share of the step no cause is named."""
SMALL = 0.05
"""What is a smaller share of the whole is left out."""
NOTABLE_CAUSE = 0.1
"""A smaller share of the arrival skew is not named beside the largest cause."""


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


class NoLoss(Enum):
    """Why a point has no loss."""

    IS_BASE = 1
    NO_BASE = 2
    BASE_NOT_OK = 3
    NO_SAMPLES = 4
    """How many samples its steps take is not known, or those of its base: whether these do the same work."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Why terms are one. `missing`: per time stamp the number absent and the number expected (ranks × steps)."""

    missing: tuple[tuple[str, int, int], ...] = ()
    not_reduced: bool = False
    early_collectives: tuple[str, ...] = ()
    ends_early: int = 0
    """Steps that a rank ends before another has begun them, where ranks are compared at the begin of a step."""


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
class Mean:
    """A mean with its interval (Student's t over runs, or over pieces of a single run) and what that covers, 0…1; None:
    too few."""

    value: float
    low: float | None = None
    high: float | None = None
    coverage: float | None = None

    @property
    def resolved(self) -> bool:
        """Whether 0 is outside its interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


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
    are what a replay without it takes out. It is late `in_runs` of `of_runs`.

    `arrival_skew` is how much later than the median of the others it arrives: on average of all steps, a transient one
    in the steps in which it is late; `cause` its parts, by CAUSES, `loader` what of its data the loaders of a script
    take, None where that is not known, `meetings` those of its parts that arise at the meetings of a step where ranks
    meet several times, the largest first; `bound` is its uncertainty from the clocks.
    `share` of the window's steps, 0…1. `costs` is the mean time that it adds to a step of the window, `shape` how it
    runs over the steps, None where that is not known. `chance` is the probability of as much among equal ranks, None
    where that was not tested. `unseen` is where ranks also meet and no hook sees it.

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
    meetings: Mapping[str, float] = field(default_factory=dict)
    share: float = 0.0
    costs: float = 0.0
    bound: float = 0.0
    shape: Shape | None = None
    chance: float | None = None
    unseen: Unseen | None = None
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


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank, or a node with several: the means of its terms over the steps of the ok runs, in the order of `terms`.

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
class RankPauses:
    """Pauses between the steps of a script that the same `ranks` make while the others wait for them; no ranks: that
    all make.

    `kinds` are those that hooks recorded (evaluation, checkpoint, another loader), `times` how many there are in a run,
    `length` by how many ms these ranks are away longer than the median rank, or how long all are. `costs` is what a
    step of the window takes more for them, `share` of the window with its pauses, 0…1.
    """

    ranks: tuple[int, ...]
    kinds: tuple[str, ...]
    times: float
    length: float
    costs: float
    share: float


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    """What these `ranks` do longer than usual in the first steps behind pauses of a script, or all (no ranks): by
    `length` ms, in so many `steps` behind a pause, after `times` of the pauses of a run. `cause` has the parts of that
    by CAUSES. `costs` is what a step of the window takes more for it; `chance` as in Verdict."""

    ranks: tuple[int, ...]
    steps: int
    times: float
    length: float
    cause: Mapping[str, float]
    costs: float
    chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """How many steps of the window of a run are in no block, since they follow on one of so many `pauses`, or cannot be
    compared before it."""

    steps: float
    of_steps: float
    pauses: float


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
class Evidence:
    """A quantity of the telemetry in which some ranks, or their nodes, differ from others: its mean, and the others'
    (`usual`), None where it is held against none. `explains` are ms of a delay, or of compute, at most all of it; None:
    not known. `detail` names what is behind it, where that is known: a thread, a process, ranks."""

    quantity: str
    unit: str
    value: float
    usual: float | None = None
    explains: float | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class FixedCompute:
    """What of compute does not shrink with the devices under strong scaling: at all these numbers of `devices` a step's
    compute is `fixed` + `shared` / devices, in ms. `of_loss` is what of it the point loses against its base."""

    fixed: Mean
    shared: float
    devices: tuple[int, ...]
    of_loss: float


@dataclass(frozen=True, kw_only=True)
class ComputeSplit:
    """The parts of the loss in compute. `contention` is the loss of the same ranks in the no-sync run,
    `interference` the loss added by concurrent reduction; None without such runs, of the base too where it has several
    ranks. `straggler` is what the straggler's ranks add to the mean beyond the median rank, less what they do at the
    base, 0 where there is none, `fixed` what comes of the compute that does not shrink with the devices, None where
    fewer than three sizes under strong scaling show it, `explanations` are what telemetry shows of all ranks, and
    `unexplained` is what none of these accounts for."""

    contention: Mean | None
    interference: Mean | None
    straggler: float = 0.0
    fixed: FixedCompute | None = None
    explanations: tuple[Evidence, ...] = ()
    unexplained: float

    @property
    def fixed_loss(self) -> float:
        """What of the loss does not shrink with the devices, ms."""
        return self.fixed.of_loss if self.fixed else 0.0


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
class SpeedRange:
    """Two speeds, in the point's unit."""

    low: float
    high: float


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
class Without:
    """The speed, in the point's unit, if the ranks of a finding were like the others, with its interval, and that of
    the `recorded` steps: medians over the runs; of a straggler of some of the runs alone those of their mean step,
    without an interval. `possible` as in WhatIf."""

    speed: float
    interval: Interval | None
    recorded: float
    possible: SpeedRange | None = None


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
class CoreLack:
    """Ranks that lack cores: how many `ms` of a step those that are ready to run wait for one; `base_ms` at the base,
    None without one. `quota_ms` is how long CPU quotas hold them back, where that is half of it or more; else None.
    `oversubscribed` says that there are more ranks than cores; empty: not so."""

    ms: float
    base_ms: float | None = None
    quota_ms: float | None = None
    oversubscribed: str = ""


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


class Pacer(StrEnum):
    """What is slow where a straggler on a device loses time."""

    HOST = "host"
    DEVICE = "device"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Paces:
    """Whether a straggler's host or its device is slow in the phase in which it loses most.

    ms a step: `idle` is the longest that its device can have waited for its host there, `usual_idle` the same of the
    median of the others, `host` what the host took, without waits that are seen.
    """

    pacer: Pacer
    idle: float
    usual_idle: float
    host: float


@dataclass(frozen=True, kw_only=True)
class UnevenWork:
    """Work that differs from step to step alike in all runs: `correlation` of how late ranks are; `stragglers`: others
    than these."""

    correlation: float
    stragglers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LostTerm:
    """A term that loses much, with what is known of it: of communication the `standalone` time of an all-reduce of the
    gradients, of wait the `scatter` of the ranks in a step; None: not known. ms."""

    name: str
    standalone: float | None = None
    scatter: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that makes a step of the point, or its training, longer.

    `what` is its record, by whose type it is worded (parse.say). `costs` are the ms by which a step is longer for it,
    None where that is not known. `evidence` is what explains it, the most first, `without` the speed without it, where
    the steps were replayed so.
    """

    what: (
        Straggler | FasterRanks | SharedDelay | RankPauses | FirstSteps | CoreLack | InputReading | ComputeSplit
        | FixedCompute | LostTerm | UnevenWork | StageImbalance | UnevenExperts | SlowLink | Bubble | NetworkFinding
        | SlowHosts
    )  # fmt: skip
    costs: float | None = None
    evidence: tuple[Evidence | Paces | InputReading, ...] = ()
    without: Without | None = None


Kind = TypeVar("Kind")


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
    are none; `left_out` are the steps that are in no other figure.
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
    contention: tuple[Evidence, ...] = ()
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

    def found(self, kind: type[Kind]) -> list[tuple[Finding, Kind]]:
        """Its findings of a kind, by the type of their records, with these."""
        return [(each, each.what) for each in self.findings if isinstance(each.what, kind)]

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        """Those of its findings, what costs most first."""
        return tuple(straggler for _, straggler in self.found(Straggler))

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
