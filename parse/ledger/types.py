"""The figures of a point's ledger. All times are milliseconds per step; docs/ledger.md explains them to a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from parse.ledger.input import InputReading
from parse.ledger.telemetry import ConditionChange, TooFewSamples
from parse.result import Result

TERMS = ("data", "compute", "wait", "communication", "optimizer")
"""The terms of a step, in order; `communication` is its exposed part. `+` joins terms without a border between."""
CAUSES = ("release", "optimizer", "data", "compute")
"""Why a rank arrives late at the reduction: late release from the one before, its optimizer step, data, compute."""


class VerdictKind(StrEnum):
    """The kind of straggler: one rank or node, several in turn, one in some steps, none, or unknown."""

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
    ONE_RANK = "one rank waits for nobody"
    RUNS_DISAGREE = "the runs disagree"


class NoLoss(Enum):
    """Why a point has no loss."""

    IS_BASELINE = 1
    NO_BASELINE = 2
    BASELINE_NOT_OK = 3


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Why terms are one. `missing`: per time stamp the number absent and the number expected (ranks × steps)."""

    missing: tuple[tuple[str, int, int], ...] = ()
    not_reduced: bool = False
    early_collectives: tuple[str, ...] = ()


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
    """A mean with its 95 % interval (Student's t over runs, or over blocks of a single run); None: too few."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def resolved(self) -> bool:
        """Whether 0 lies outside its interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term of a point: its mean over ranks, steps and ok runs.

    `baseline` is that of the 1n1g point (under strong scaling divided by the devices), `loss` the difference; None
    without a baseline. `share` of the whole loss, 0…1, only where the whole loss is larger than its interval.
    """

    name: str
    mean: Mean
    baseline: float | None = None
    loss: Mean | None = None
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a run's straggler.

    `ranks` are the straggler's; `node` is its host name where a whole node is late, or the names of nodes that
    alternate. `steps` are those in which a transient straggler is late. `arrival_skew` is how much later than the
    median rank it arrives in the steps in which it is late, `cause` its parts, by CAUSES; `bound` is its uncertainty
    from the clocks. `share` of the window's steps, 0…1. `costs` is the mean time that it adds to a step of the
    window. `chance` is the probability of as much among equal ranks.
    """

    kind: VerdictKind
    because: Because | Merged | None = None
    ranks: tuple[int, ...] = ()
    node: str = ""
    steps: tuple[int, ...] = ()
    arrival_skew: float = 0.0
    cause: Mapping[str, float] = field(default_factory=dict)
    share: float = 0.0
    costs: float = 0.0
    bound: float = 0.0
    chance: float | None = None


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
class Incident:
    """A step in which a rank's delay after the median rank exceeds the usual one of the window."""

    step: int
    rank: int
    arrival_skew: float


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """One run of the point. `pauses` are those between its blocks, each in ms.

    `bound` is the uncertainty from the clocks about which of two ranks was first, for the two with the widest one; None
    if ranks are not compared.
    """

    run_id: str
    verdict: Verdict
    step: float
    pauses: tuple[float, ...]
    bound: float | None
    incidents: tuple[Incident, ...] = ()
    problems: StampErrors | None = None


@dataclass(frozen=True, kw_only=True)
class ComputeSplit:
    """The parts of the loss in compute. `contention` is the loss of the same ranks in the no-sync run,
    `interference` the loss added by concurrent reduction; None without such runs, and then all is `unexplained`."""

    contention: Mean | None
    interference: Mean | None
    unexplained: float


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
class Ledger:
    """A point's ledger. `terms` add up to `step`, their losses to `loss`.

    `median_step` is the median where `step` is the mean. `skew` is the excess of the throughput's step time over
    `step`: (end skew − start skew) / steps. `verdict` is that of all runs together, `telemetry` the differences from
    the baseline's clocks, power and load, `input` what is known of input that is read from files.
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
    split: ComputeSplit | None = None
    standalone: Standalone | None = None
    telemetry: tuple[ConditionChange | TooFewSamples, ...] = ()
    input: InputReading | None = None
    remarks: tuple[str, ...] = ()
