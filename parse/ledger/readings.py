"""What the ledger of a point is made of: its runs and its base's, each reduced from its trace."""

from __future__ import annotations

from dataclasses import dataclass

from parse.ledger.background_writes import RunWrites
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.host_bound import HostReading
from parse.ledger.input import InputReading
from parse.ledger.network_reading import NetworkReading
from parse.ledger.paces import Spans
from parse.ledger.standalone import MeasuredCollectives
from parse.ledger.telemetry import Conditions
from parse.ledger.verdict import Straggler
from parse.ledger.verdicts import PointVerdicts
from parse.logs.benchmarks import Benchmarks
from parse.runs.result import Result
from parse.stats import Mean


@dataclass(frozen=True, kw_only=True)
class PointRuns:
    """The ok runs of a point, each reduced from its trace; a remark for each without a step breakdown, and the
    faults of this program. `called` is what
    a step calls by torch's own record, empty without one; `spans` has of each run what its hosts took beside their
    devices, `step_samples` the samples of all ranks in a measured step; `shares_batch`: some ranks of a run have
    none of their own; `writes` are checkpoints that runs write while they train on."""

    breakdowns: tuple[StepBreakdown, ...] = ()
    conditions: tuple[Conditions, ...] = ()
    inputs: tuple[InputReading, ...] = ()
    networks: tuple[NetworkReading, ...] = ()
    hosts: tuple[HostReading, ...] = ()
    spans: tuple[tuple[Spans, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    called: str = ""
    step_samples: tuple[float, ...] = ()
    shares_batch: bool = False
    writes: tuple[RunWrites, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PointEvidence:
    """What a point is judged by: its runs and its base's, the runs of both with reduction switched off, and what other
    points measured of the same ranks and network.

    `base` has no runs where there is none, or where the point is its own; `base_verdicts` is None where it has no runs
    or one rank. `compute_by_devices` is mean compute at each size of its setting, under strong scaling alone.
    `no_collectives` are remarks on those that there should be.
    `late_results` are ranks that only leave meetings late, which the network does (`parse.ledger.finding.LateResult`).
    """

    result: Result
    runs: PointRuns
    verdicts: PointVerdicts
    no_sync: tuple[StepBreakdown, ...] = ()
    base: PointRuns
    late_results: tuple[Straggler, ...] = ()
    base_ranks: int | None = None
    base_verdicts: PointVerdicts | None = None
    base_no_sync: tuple[StepBreakdown, ...] = ()
    compute_by_devices: tuple[tuple[int, Mean], ...] = ()
    collectives: tuple[MeasuredCollectives, ...]
    no_collectives: tuple[str, ...] = ()
    benchmarks: Benchmarks
    other_networks: tuple[NetworkReading, ...]
