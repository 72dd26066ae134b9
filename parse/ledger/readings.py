"""What the ledger of a point is made of: its runs and its base's, each reduced from its trace."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc.model.trace import RankReport, Trace
from parse.ledger.background_writes import RunWrites
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.finding import Pacer, Paces
from parse.ledger.host_bound import HostReading, by_phase, host_record
from parse.ledger.input import InputReading
from parse.ledger.network_reading import NetworkReading
from parse.ledger.standalone import MeasuredCollectives
from parse.ledger.telemetry import Conditions
from parse.ledger.verdict import PERSISTENT, Straggler
from parse.ledger.verdicts import PointVerdicts
from parse.logs.benchmarks import Benchmarks
from parse.rules import HALF
from parse.runs.result import Result
from parse.stats import Mean
from parse.term_kinds import device_phases

Spans = Mapping[str, Mapping[str, float]]
"""Of a rank: `ms`, `idle_ms`, `host_ms` and `ahead_ms` by phase."""


def spans_of(trace: Trace) -> tuple[Spans, ...]:
    """Of each rank of a run how its host paced its device; empty unless all of them have it."""
    spans = tuple(_spans(report) for report in trace.reports)
    return spans if all(spans) else ()


def paces_of(verdict: Straggler, runs: Sequence[tuple[Spans, ...]], stragglers: Sequence[int]) -> Paces | None:
    """Who is slow where a persistent straggler loses most: its host or its device; None of one that trains on no
    device. `stragglers` are all ranks that are late; the others are what it is compared with."""
    cause = max(verdict.cause.items(), key=lambda part: part[1], default=("", 0.0))[0]
    phases = device_phases(cause)
    if verdict.kind is not PERSISTENT or not phases or not runs or not all(runs):
        return None
    others = [rank for rank in range(len(runs[0])) if rank not in stragglers]
    if not others:
        return None

    def mean(rank: int, quantity: str) -> float:
        return statistics.fmean(sum(run[rank][quantity][each] for each in phases) for run in runs)

    def its(quantity: str) -> float:
        return statistics.fmean(mean(rank, quantity) for rank in verdict.ranks)

    def usual(quantity: str) -> float:
        return statistics.median(mean(rank, quantity) for rank in others)

    least = HALF * verdict.cause[cause]
    pacer = Pacer.DEVICE
    if its("ms") - usual("ms") >= least:
        pacer = Pacer.HOST
    elif its("idle_ms") - usual("idle_ms") >= least:
        held = its("ahead_ms") >= max(least, HALF * usual("ahead_ms"))
        pacer = Pacer.UNKNOWN if held else Pacer.HOST
    return Paces(pacer=pacer, idle=its("idle_ms"), usual_idle=usual("idle_ms"), host=its("host_ms"))


def _spans(report: RankReport) -> Spans:
    record = host_record(report)
    spans = {name: by_phase(record.get(name)) for name in ("ms", "idle_ms", "host_ms", "ahead_ms")}
    return spans if all(spans.values()) else {}


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
