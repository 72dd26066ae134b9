"""The figures of a point's ledger. All times are milliseconds per step; docs/ledger.md explains them to a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from parse.graph.findings import ChainLink, GraphFindings
from parse.ledger.host_bound import HostBound
from parse.ledger.input import InputReading
from parse.ledger.network import Network
from parse.ledger.telemetry import ConditionChange, TooFewSamples
from parse.runs.result import Result
from parse.stats import Interval
from parse.term_kinds import COMMUNICATION, DATA, parts_of

WORTH_NAMING = 0.01
"""Of a loss that is a smaller share of the step no cause is named."""
NOTABLE_CAUSE = 0.1
"""A smaller share of the arrival skew is not named beside the largest cause."""


class VerdictKind(StrEnum):
    """The kind of straggler: one rank or node, several in turn, one in some steps, none, or unknown; beside it ranks
    that are faster than all others, and steps that are longer on all ranks."""

    PERSISTENT = "persistent"
    ROTATING = "rotating"
    TRANSIENT = "transient"
    NONE = "none"
    CANNOT_TELL = "cannot tell"
    FASTER = "faster"
    SHARED = "shared"


PERSISTENT, ROTATING, TRANSIENT, NONE, CANNOT_TELL, FASTER, SHARED = VerdictKind


class Because(StrEnum):
    """The basis of a verdict without a straggler."""

    CLOCK = "clock"
    FEW_STEPS = "steps"
    ONE_RANK = "one rank waits for nobody"
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
class Verdict:
    """The verdict on a run's straggler.

    `ranks` are the straggler's; `node` is its host name where a whole node is late, or the names of nodes that
    alternate. `steps` are those in which a transient straggler is late, `run_steps` the same run by run; where runs
    differ in them, `steps` is empty. `cells` are what a replay without it takes out.

    A straggler is late `in_runs` of `of_runs`. `arrival_skew` is how much later than
    the median of the others it arrives: on average of all steps, a transient one in the steps in which it is late;
    `cause` its parts, by CAUSES, `loader` what of its data the loaders of a script take, None where that is not known,
    `meetings` those of its parts that arise at the meetings of a step where ranks meet several times, the largest
    first; `bound` is its uncertainty from the clocks. `share` of the window's steps, 0…1. `costs` is the mean time that
    it adds to a step of the window, `shape` how it runs over the steps, None where that is not known. `chance` is the
    probability of as much
    among equal ranks. `limit`, of kind NONE: a rank that is late by so much in every step would have been detected in
    nine of ten such measurements, and by `seldom_limit` in one of ten steps, None where no such delay would have been.
    `doubt` is the rank that costs as much in some steps, if only by chance,
    `scatter` the mean standard deviation of the ranks' arrivals in a step. `repeats` is the correlation between runs of
    how late ranks other than the straggler are, step by step, where the same are late in the same steps in all runs.

    Where ranks meet in several groups `arrival_skew` is by how much its own work exceeds that of its peers, the ranks
    that do the same in other replicas, and `chain` is who waits for it, and for whom these make wait in turn; else
    `chain` is empty.

    Raises ValueError for a transient one without steps.
    """

    kind: VerdictKind
    because: Because | Merged | Unseen | None = None
    ranks: tuple[int, ...] = ()
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
    limit: float | None = None
    seldom_limit: float | None = None
    doubt: Doubt | None = None
    scatter: float | None = None
    repeats: float | None = None
    chain: tuple[ChainLink, ...] = ()
    cells: tuple[LateCells, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is VerdictKind.TRANSIENT and not (self.steps or any(self.run_steps)):
            raise ValueError(f"ranks {self.ranks} are late in some steps, and none is named")

    def cells_of_run(self, run: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...] | None], ...]:
        """Its cells in a run, by its number in the point: ranks, and their steps, None for all."""
        cells = self.cells
        if not cells and self.ranks:
            cells = (LateCells(ranks=self.ranks, steps=self.run_steps or (self.steps or None,) * (run + 1)),)
        return tuple((each.ranks, each.steps[run]) for each in cells)

    @property
    def leaves_late(self) -> bool:
        """Whether most of its delay is that it leaves a meeting later, which is the network's until its counters say
        that it did not run."""
        return max(self.cause, key=lambda name: self.cause[name], default="").startswith(COMMUNICATION.cause)


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
class Explanation:
    """A quantity of the telemetry in which ranks that compute longer than the base's differ from it: its mean,
    `usual` at the base, and how many ms of compute it `explains` at most, None if unknown."""

    quantity: str
    unit: str
    value: float
    usual: float | None
    explains: float | None


@dataclass(frozen=True, kw_only=True)
class ComputeSplit:
    """The parts of the loss in compute. `contention` is the loss of the same ranks in the no-sync run,
    `interference` the loss added by concurrent reduction; None without such runs, of the base too where it has several
    ranks. `straggler` is what the straggler's ranks add to the mean beyond the median rank, less what they do at the
    base, 0 where there is none, `fixed` what comes of the compute that does not shrink with the devices under strong
    scaling, 0 where that is not known, `explanations` are what telemetry shows of all ranks, and `unexplained` is what
    none of these accounts for."""

    contention: Mean | None
    interference: Mean | None
    straggler: float = 0.0
    fixed: float = 0.0
    explanations: tuple[Explanation, ...] = ()
    unexplained: float


@dataclass(frozen=True, kw_only=True)
class FixedCompute:
    """What of compute does not shrink with the devices under strong scaling: at all these numbers of `devices` a step's
    compute is `fixed` + `shared` / devices, in ms. `of_loss` is what of it the point loses against its base."""

    fixed: Mean
    shared: float
    devices: tuple[int, ...]
    of_loss: float


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


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A quantity of the telemetry in which the straggler's ranks, or their nodes, differ from the others in the same
    runs: its mean, the others' median (`usual`), and how many ms of the arrival skew it `explains`, None if unknown.
    `detail` names what is behind it, where that is known: a thread, a process, ranks."""

    quantity: str
    unit: str
    value: float
    usual: float
    explains: float | None
    detail: str = ""


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
class WithoutStraggler:
    """The speed, in the point's unit, if the straggler's ranks were like the others, with its interval, and that of the
    `recorded` steps: medians over the runs; of a straggler of some of the runs alone those of their mean step, without
    an interval. `possible` as in WhatIf."""

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
class Contention:
    """A quantity of the base's telemetry that shows that it did not have its machine for itself."""

    quantity: str
    unit: str
    value: float


@dataclass(frozen=True, kw_only=True)
class CoreWait:
    """How many `ms` of a step ranks that are ready to run wait for a core; `base_ms` at the base, None without one.
    `quota_ms` is how long CPU quotas hold them back, where that is half of it or more; else None."""

    ms: float
    base_ms: float | None
    quota_ms: float | None = None


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
class Ledger:
    """A point's ledger. `terms` add up to `step`, their losses to `loss`.

    `median_step` is the median where `step` is the mean. `skew` is the excess of the throughput's step time over
    `step`: (end skew − start skew) / steps. `verdict` is that of all runs together, `further` are stragglers behind it,
    the latest first, `symptoms` what distinguishes its ranks in the telemetry, `further_symptoms` the same of each of
    those behind it, empty where that is not known, `paces` and `further_paces` whether their host or their device is
    slow, None and empty where nobody trains on a device, `straggler_input` their input, where data makes them late,
    `without_straggler` the speed without it, where that can be replayed, `straggler_at_base` what the base loses to one
    already. `fixed_compute` is None where fewer than three numbers of devices show it, `host_bound` where no device
    shows it.
    `telemetry` are the differences from the base's clocks, power and load, `contention`
    what shows that the base was disturbed, `core_wait` that the point's ranks lack cores, `shares_cores` whether
    what one rank no longer takes others get,
    `input` what is known of input that is read from files, `what_ifs` what changes would be worth, where that was
    requested. `dimensions` are the parts of `wait` and `communication` by the groups of the ranks, none where these
    have no groups. `nccl_tests` are of nccl-tests and of OSU on as many devices, `network` is None of one node.
    `repeats` are the runs behind the loss, `scale` is what the base's times are multiplied by: a device's work in a
    step, against that at the base. `rank_pauses` are a script's pauses, which are in no step, and
    `speed_with_pauses` is the speed with them, in the point's unit; None where there are none. `late_results` are
    ranks on several nodes that the reduction's result reaches later, which is the network's: the verdicts are by what
    ranks do themselves, then. `first_steps` are who is
    late in the steps behind them, `left_out` how many steps are in no other figure. `graph` are the findings
    of ranks that meet in several groups, None where they do not.
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
    scale: float = 1.0
    split: ComputeSplit | None = None
    fixed_compute: FixedCompute | None = None
    host_bound: HostBound | None = None
    standalone: Standalone | None = None
    further: tuple[Verdict, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    further_symptoms: tuple[tuple[Symptom, ...], ...] = ()
    paces: Paces | None = None
    further_paces: tuple[Paces | None, ...] = ()
    straggler_input: InputReading | None = None
    without_straggler: WithoutStraggler | None = None
    straggler_at_base: StragglerAtBase = StragglerAtBase()
    repeats: Repeats | None = None
    contention: tuple[Contention, ...] = ()
    core_wait: CoreWait | None = None
    shares_cores: bool = False
    telemetry: tuple[ConditionChange | TooFewSamples, ...] = ()
    input: InputReading | None = None
    remarks: tuple[str, ...] = ()
    what_ifs: tuple[WhatIf, ...] | None = None
    nccl_tests: tuple[BesideBenchmark, ...] = ()
    network: Network | None = None
    rank_pauses: tuple[RankPauses, ...] = ()
    speed_with_pauses: float | None = None
    late_results: tuple[Verdict, ...] = ()
    first_steps: tuple[FirstSteps, ...] = ()
    left_out: LeftOut | None = None
    graph: GraphFindings | None = None
    dimensions: tuple[DimensionTerms, ...] = ()

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
    def straggler_loss(self) -> float:
        """What the straggler costs a step more than one does at the base, ms."""
        return self.verdict.costs - self.straggler_at_base.costs
