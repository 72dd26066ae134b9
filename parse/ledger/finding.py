"""What makes a step, or a training, longer: the record of each kind of finding, and what explains it. Times are ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from parse.graph.findings import Bubble, SlowLink, StageImbalance, UnevenExperts
from parse.ledger.host_bound import SlowHosts
from parse.ledger.input import InputReading
from parse.ledger.network import NetworkFinding
from parse.ledger.verdict import FasterRanks, SharedDelay, Straggler
from parse.stats import Interval, Mean


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
class LateResult:
    """Ranks on one of several nodes that the result of a meeting reaches later than others, named as a `straggler` is:
    that is the network's. Who is a straggler is judged by what ranks do between leaving a meeting and the next then."""

    straggler: Straggler


@dataclass(frozen=True, kw_only=True)
class BackgroundWrites:
    """Checkpoints that are written while a script trains on: `times` in a run, `steps` of its measured ones, each of
    which takes `longer` ms than those before."""

    times: float
    steps: float
    of_steps: float
    longer: Mean


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """How many steps of the window of a run are in no block, since they follow on one of so many `pauses`, or cannot be
    compared before it."""

    steps: float
    of_steps: float
    pauses: float


@dataclass(frozen=True, kw_only=True)
class Symptom:
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
    explanations: tuple[Symptom, ...] = ()
    unexplained: float

    @property
    def fixed_loss(self) -> float:
        """What of the loss does not shrink with the devices, ms."""
        return self.fixed.of_loss if self.fixed else 0.0


@dataclass(frozen=True, kw_only=True)
class SpeedRange:
    """Two speeds, in the point's unit."""

    low: float
    high: float


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
class CoreLack:
    """Ranks that lack cores: how many `ms` of a step those that are ready to run wait for one; `base_ms` at the base,
    None without one. `quota_ms` is how long CPU quotas hold them back, where that is half of it or more; else None.
    `oversubscribed` says that there are more ranks than cores; empty: not so."""

    ms: float
    base_ms: float | None = None
    quota_ms: float | None = None
    oversubscribed: str = ""


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
        Straggler | LateResult | FasterRanks | SharedDelay | RankPauses | FirstSteps | BackgroundWrites | CoreLack
        | InputReading | ComputeSplit | FixedCompute | LostTerm | UnevenWork | StageImbalance | UnevenExperts | SlowLink
        | Bubble | NetworkFinding | SlowHosts
    )  # fmt: skip
    costs: float | None = None
    evidence: tuple[Symptom | Paces | InputReading, ...] = ()
    without: Without | None = None
