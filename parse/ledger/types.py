"""What a ledger says of a point. All times are milliseconds per step; docs/ledger.md explains them to a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parse.result import Result

TERMS = ("data", "compute", "wait", "transfer", "update")
"""What a step consists of, in order; where a border between two is missing or means nothing they are one term,
`compute+communication` (communication is wait and transfer)."""
CAUSES = ("release", "update", "data", "compute")
"""Why a rank comes late to the reduction: it left the one before later, its previous update, its data, its compute."""
PERSISTENT, ROTATING, TRANSIENT, NONE, CANNOT_TELL = "persistent", "rotating", "transient", "none", "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean with its 95 % interval (Student's t over runs, or over blocks where there is one run); None: too few."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def resolved(self) -> bool:
        """Whether it is larger than its interval: 0 lies outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term of a point: its mean over ranks, steps and ok runs.

    `baseline` is the same of the 1n1g point (under strong scaling divided by the devices), `loss` the difference, both
    None without a baseline. `share` of the whole loss, 0…1, is there only where the whole loss is larger than its
    interval.
    """

    name: str
    mean: Mean
    baseline: float | None = None
    loss: Mean | None = None
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Who is waited for in a run. `kind` is `persistent`, `rotating`, `transient`, `none` or `cannot tell`.

    `because` says what cannot be told and why: `clock`, `steps` (too few) or what else stands in the way. `ranks` are
    the straggler's; `node` is its host name where a whole node is late, or the names of nodes that take turns. `steps`
    are those in which a transient straggler is late. `late` is how much later than the median rank it comes in
    the steps in which it is late, `cause` what that consists of, by CAUSES; `bound` is how far the clocks leave it
    open. `share` of the window's steps, 0…1. `costs` is what a step of the window lasts longer for it on average.
    `chance` is how often equal ranks would show as much.
    """

    kind: str
    because: str = ""
    ranks: tuple[int, ...] = ()
    node: str = ""
    steps: tuple[int, ...] = ()
    late: float = 0.0
    cause: Mapping[str, float] = field(default_factory=dict)
    share: float = 0.0
    costs: float = 0.0
    bound: float = 0.0
    chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank, or a node with several: the means of its terms over the steps of the ok runs, in the order of `terms`.

    `last` is the share of steps in which it came last to the reduction, beyond the clocks' bounds.
    """

    name: str
    ranks: tuple[int, ...]
    terms: tuple[float, ...]
    last: float | None


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A step in which a rank came later than the median rank beyond all that is usual in the window, by `late`."""

    step: int
    rank: int
    late: float


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """What one run of the point says. `pauses` are those between its blocks, each in ms.

    `bound` is how far the clocks leave open which of two ranks was first, of those it is widest for; None where ranks
    are not compared.
    """

    run_id: str
    verdict: Verdict
    step: float
    pauses: tuple[float, ...]
    bound: float | None
    incidents: tuple[Incident, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComputeSplit:
    """What the loss in compute consists of. `contention` is what the same ranks lose with reduction switched off (the
    twin), `interference` what reducing beside it adds; both None without a twin, and then all is `unexplained`."""

    contention: Mean | None
    interference: Mean | None
    unexplained: float


@dataclass(frozen=True, kw_only=True)
class Alone:
    """What an all-reduce of the gradients costs by itself, from a run of hpc.collectives on the same ranks.

    `hidden` is what of it lies behind compute; negative where more is exposed than it takes alone. `run_id` names the
    run that was measured.
    """

    gradient_bytes: int
    alone: float
    exposed: float
    run_id: str

    @property
    def hidden(self) -> float:
        """Milliseconds of it that no rank waits for."""
        return self.alone - self.exposed


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A point's ledger. `terms` add up to `step`, their losses to `loss`.

    `merged` says why terms are one; `no_loss` why there is no baseline to lose against; `median_step` is the median
    where `step` is the mean. `skew` is what the step time of the throughput has more than `step`: (end skew − start
    skew) / steps. `verdict` is that of all runs together, `telemetry` lines on clocks, power and load beside the
    baseline's.
    """

    result: Result
    terms: tuple[Term, ...]
    step: Mean
    median_step: float
    skew: float
    loss: Mean | None
    no_loss: str
    merged: str
    verdict: Verdict
    runs: tuple[RunLedger, ...]
    ranks: tuple[Place, ...]
    nodes: tuple[Place, ...]
    split: ComputeSplit | None = None
    alone: Alone | None = None
    telemetry: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the measurement itself, over all runs."""
        return tuple(f"{run.run_id}: {problem}" for run in self.runs for problem in run.problems)
