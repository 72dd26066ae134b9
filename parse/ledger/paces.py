"""Whether a straggler's host or its device is slow: by how long the device can have waited for its host.

By the hooks' events on the device, of which the ranks' reports have means (hpc.run.script_steps.host_bound).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hpc.model.trace import RankReport, Trace
from parse.ledger.finding import Pacer, Paces
from parse.ledger.host_bound import by_phase, host_record
from parse.ledger.verdict import PERSISTENT, Straggler
from parse.rules import HALF
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
