"""What a step consists of at sizes that were not measured: from the traces of those that were.

Ranks that meet once a step, at the reduction of their gradients, take for a step what the slowest takes from leaving
the reduction before to having its gradients, and what communication adds. The first is `slowest`'s; the second is
fitted to the measured sizes, by what the collectives cost alone where that was measured. Ranks leave a reduction one
after another: that is communication, as it grows with the network, and no rank's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations, product
from math import ceil, log2, sqrt

import numpy as np

from hpc.model.collective_plan import ALL_REDUCE
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT, BATCH_READY, END, GRADS_READY, REDUCED
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import open_trace, read_trace
from hpc.system.text import grouped
from parse import stats
from parse.extrapolation.outlook import ForecastBasis, Open, Outlook, Range
from parse.extrapolation.rules import nonnegative
from parse.extrapolation.series import ScalingKind
from parse.extrapolation.slowest import (
    DRAWS,
    MIDDLE,
    MIN_STEPS,
    Floats,
    Population,
    RunWork,
    TwoLevels,
    WorkError,
    block_error,
    population,
    slowest,
)
from parse.faults import fault
from parse.ledger.breakdown import BORDERS, known_borders
from parse.ledger.meetings import NO_MEETINGS, meeting_kinds, read_pieces
from parse.ledger.network import hockney
from parse.ledger.standalone import curves, matching
from parse.ledger.types import Change
from parse.runs.result import Result

MAX_STAMPS = 4_000_000
"""Ranks × steps of a run that are looked at; the first ones of its window."""
USED = (BATCH_READY, GRADS_READY, REDUCED, END)
PROVEN_TIMES = 64
"""The slowest of more times the ranks was never held against a truth."""
SAME_FIT = 2.0
"""A growth that misses the measured sizes by as many times the best one's miss, or less, may be the right one."""
LEAST_MISS = 0.05
"""A miss that is a smaller share of the communication tells no growth from another."""

OTHER_BATCH = (
    "the batch per device differs between sizes, and what a step computes with another one does not follow from its "
    "parts; the rule above is used"
)


class Growth(Enum):
    """How a part of the communication grows with the nodes N."""

    BYTES = "1 - 1/N, the bytes of a ring over each link"
    DOUBLINGS = "⌈log₂ N⌉, rounds of messages to twice as many nodes"
    MESSAGES = "N - 1, messages one after another in a ring"

    def at(self, nodes: float) -> float:
        return {Growth.BYTES: 1 - 1 / nodes, Growth.DOUBLINGS: ceil(log2(nodes)), Growth.MESSAGES: nodes - 1}[self]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunTerms:
    """A run: its `work` and, of that, `data` [rank, step]; what communication `added` to the slowest rank's [step];
    mean `compute`, and mean time from the first rank's `leaving` the reduction to the last one's; all in ms. `done` is
    that of a step, in the unit of its speed."""

    work: RunWork
    data: Floats
    added: Floats
    compute: float
    leaving: float
    done: float

    @property
    def hidden(self) -> float:
        """Of the communication, what the wait for the slowest rank may hide: others that leave later have less to
        wait."""
        return min(self.leaving, float((self.work.work.max(axis=0) - self.work.work.mean(axis=0)).mean()))


@dataclass(frozen=True, kw_only=True)
class StandaloneParts:
    """What the reductions of a step take alone on so many nodes, ms: what their bytes take, and the rest."""

    nodes: int
    latency: float
    bandwidth: float


@dataclass(frozen=True, kw_only=True)
class WhatIfThere:
    """A change, and by which share it would make that size faster."""

    change: Change
    gain: float


@dataclass(frozen=True, kw_only=True)
class StepForecast:
    """A step at so many nodes, in ms, and the speed of all devices. `what_ifs`: the one that pays most first.

    `communication` is what it adds to the slowest rank's time. `proven`: not farther than was held against a truth.
    """

    nodes: int
    devices: int
    step: Range
    data: float
    compute: float
    wait: Range
    communication: Range
    optimizer: float
    speed: Range
    what_ifs: tuple[WhatIfThere, ...]
    proven: bool

    @property
    def overheads(self) -> Mapping[str, float]:
        """The terms beside compute, the largest first."""
        return _largest_first({"wait": self.wait.value, "communication": self.communication.value, "data": self.data,
                               "optimizer": self.optimizer})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StepTerms:
    """The steps of a series by their terms, or the `reason` why they are not known. `case` is the measured size that
    ranks were compared at, `measured` its wait and communication in ms; `collectives` the sizes with these."""

    case: str = ""
    reason: str = ""
    runs: int = 0
    nodes: int = 0
    measured: Mapping[str, float] | None = None
    two: TwoLevels | None = None
    growths: tuple[Growth, ...] = ()
    collectives: tuple[int, ...] = ()
    sizes: tuple[StepForecast, ...] = ()


def step_terms(of: Outlook, diagnostics: Sequence[Result]) -> StepTerms | None:
    """The requested sizes that the series forecasts, if with too wide an interval, by their terms; None where it
    forecasts none, or has no traces."""
    try:
        return _step_terms(of, diagnostics)
    except Exception as error:  # noqa: BLE001 - the line says which
        return StepTerms(reason=fault(error, f"terms of a step of {of.series.name}"))


def _step_terms(of: Outlook, diagnostics: Sequence[Result]) -> StepTerms | None:
    none = (ForecastBasis.MEASURED, ForecastBasis.OPEN)
    wanted = [size for size in of.sizes if (size.basis not in none or size.reason is Open.TOO_WIDE) and size.nodes]
    used = {point.name for point in of.used}
    measured = [each for each in of.series.results if each.requested.case in used and any(run.trace for run in each.ok)]
    if not wanted or not measured:
        return None
    if replace(of.series, points=of.used).group not in (ScalingKind.WEAK, ScalingKind.CROSSING):
        return StepTerms(reason=OTHER_BATCH)
    largest = max(measured, key=lambda each: each.run.nodes or 0)
    try:
        terms = {each.requested.case: [*_runs(each)] for each in measured}
        its = terms[largest.requested.case]
        shown = population([run.work for run in its])
        free = None if largest.run.backend == SCRIPT else population([_without_data(run) for run in its])
    except (TraceError, WorkError) as error:
        return StepTerms(case=largest.requested.case, reason=str(error))
    standalone = [each for result in measured for each in _standalone(result, diagnostics)]
    by_nodes = {each.run.nodes or 1: terms[each.requested.case] for each in measured}
    network = _Network.of(
        {nodes: [run.added for run in runs] for nodes, runs in by_nodes.items()},
        {nodes: stats.mean([run.hidden for run in runs]) for nodes, runs in by_nodes.items()}, standalone,
    )  # fmt: skip
    sizes = (
        _forecast(size.nodes or 0, shown, free, its, network)
        for size in wanted if (size.nodes or 0) > (largest.run.nodes or 0)
    )  # fmt: skip
    return StepTerms(
        case=largest.requested.case, runs=len(its), nodes=shown.nodes, two=shown.two, growths=network.growths,
        measured={name: _overheads(its)[name] for name in ("wait", "communication")},
        collectives=tuple(sorted({each.nodes for each in standalone})) if network.is_standalone else (),
        sizes=tuple(sizes),
    )  # fmt: skip


def measured_overheads(result: Result) -> Mapping[str, float] | None:
    """The terms of a measured step beside compute, ms, the largest first; None where no run of the point has a trace.
    Raises TraceError, WorkError."""
    runs = [*_runs(result)]
    return _largest_first(_overheads(runs)) if runs else None


def _overheads(runs: Sequence[RunTerms]) -> Mapping[str, float]:
    """As of a StepForecast, means over runs."""

    def mean(of_run: Callable[[RunTerms], Floats]) -> float:
        return stats.mean([float(of_run(run).mean()) for run in runs])

    data = mean(lambda run: run.data)
    return {
        "wait": mean(lambda run: run.work.work.max(axis=0) - run.work.work.mean(axis=0)),
        "communication": mean(lambda run: run.added),
        "data": data,
        "optimizer": mean(lambda run: run.work.work - run.compute) - data,
    }


def _largest_first(terms: Mapping[str, float]) -> Mapping[str, float]:
    return dict(sorted(terms.items(), key=lambda term: -term[1]))


def _runs(result: Result) -> Iterator[RunTerms]:
    """The terms of each run of a point. Raises TraceError, WorkError."""
    for run in result.ok:
        if run.trace is not None and run.measured is not None:
            with open_trace(run.trace) as trace:
                yield run_terms(trace, run.measured.throughput)


def run_terms(trace: Trace, speed: float) -> RunTerms:
    """What the ranks of a run do in each step, and what they wait for the network. Raises WorkError where they meet
    more often than once a step, or where a moment of it is not recorded; TraceError where clocks cannot be compared."""
    if trace.calls is not None or len(meeting_kinds(trace)):
        raise WorkError(f"{trace.run_id}: ranks meet more than once a step")
    if {*BORDERS} - known_borders(trace, {})[0]:
        raise WorkError(f"{trace.run_id}: where its ranks meet, or wait, is not recorded")
    room = max(1, MAX_STAMPS // len(trace.stamps))
    work, data, added, compute, leaving = [], [], [], [], []
    for first, stop in trace.blocks.tolist():
        count = min(stop - first, room)
        room -= count
        for piece in read_pieces(trace, NO_MEETINGS, [(first, first + count)]) if count else ():
            absent = piece.local_ns == ABSENT
            if absent[:, 1:, USED].any() or absent[:, 0, REDUCED:].any():
                raise WorkError(f"{trace.run_id}: a rank lacks time stamps of a step")
            now, before = piece.stamps_ns[:, 1:] / 1e6, piece.stamps_ns[:, :-1] / 1e6
            ready, released = now[:, :, GRADS_READY], before[:, :, REDUCED]
            work.append(ready - released)
            leaving.append(np.ptp(released, axis=0))
            data.append(now[:, :, BATCH_READY] - before[:, :, END])
            compute.append(ready - now[:, :, BATCH_READY])
            added.append(now[:, :, REDUCED].min(axis=0) - released.min(axis=0) - work[-1].max(axis=0))
    if not work:
        raise WorkError(f"{trace.run_id}: it has no measured block")
    nodes = [(report.hostname or "", report.node_rank or 0) for report in trace.reports]
    are_hosts = len({host for host, _ in nodes}) == len({*nodes})
    of_run = RunWork(
        work=np.concatenate(work, axis=1),
        nodes=tuple(host if are_hosts else f"node {number}" for host, number in nodes),
    )
    if (count := of_run.work.shape[1]) < MIN_STEPS:
        raise WorkError(f"a run has {count} steps; the scatter of ranks needs {MIN_STEPS}")
    waits = np.concatenate(added)
    step_ms = float(of_run.work.max(axis=0).mean() + waits.mean())
    return RunTerms(
        work=of_run, data=np.concatenate(data, axis=1), added=waits,
        compute=float(np.concatenate(compute, axis=1).mean()), leaving=float(np.concatenate(leaving).mean()),
        done=speed * step_ms / 1e3,
    )  # fmt: skip


def _without_data(run: RunTerms) -> RunWork:
    return replace(run.work, work=run.work.work - run.data)


def _standalone(result: Result, diagnostics: Sequence[Result]) -> Iterator[StandaloneParts]:
    """What the reductions of a point's steps take alone, by each run of collectives of the very ranks that has them."""
    trace_path = next(run.trace for run in result.ok if run.trace is not None)
    with open_trace(trace_path) as trace:
        volume, buckets = (trace.reports[0].backend_fact(name) for name in ("gradient_bytes", "parameters_per_bucket"))
    if not isinstance(volume, int) or volume <= 0:
        return
    parts = [part for part in buckets if isinstance(part, int)] if isinstance(buckets, Sequence) else []
    sizes = [round(volume * part / sum(parts)) for part in parts] or [volume]
    for run in (run for each in matching(result, diagnostics) for run in each.ok):
        try:
            curve = curves(read_trace(run.trace)).get(ALL_REDUCE) if run.trace is not None else None
        except TraceError:
            continue
        times = [curve.time_ms(size) for size in sizes] if curve is not None and len(curve.sizes) > 1 else [None]
        if curve is None or any(ms is None for ms in times):
            continue
        each = [hockney(curve.sizes, curve.ms, size, ms or 0.0) for size, ms in zip(sizes, times, strict=True)]
        yield StandaloneParts(
            nodes=result.run.nodes or 1, latency=sum(part.latency_ms for part in each),
            bandwidth=sum(part.bandwidth_ms for part in each),
        )  # fmt: skip


GrowingPart = tuple[tuple[Mapping[int, float], ...], tuple[tuple[Growth, ...], ...]]
"""Values by nodes, ms, each of which may be right, and the growths that may be."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Network:
    """What communication added by nodes: means in ms with their variances [size], and what it is concluded from.

    `parts` has what grows: that itself, without and with what a wait for the slowest rank may hide of it, or what
    collectives alone take for their latency and for their bytes.
    """

    nodes: Floats
    added: Floats
    squares: Floats
    parts: tuple[GrowingPart, ...]
    is_standalone: bool

    @classmethod
    def of(
        cls, added: Mapping[int, Sequence[Floats]], hidden: Mapping[int, float], standalone: Sequence[StandaloneParts]
    ) -> _Network:
        nodes = sorted(added)
        runs = {each: np.array([float(run.mean()) for run in added[each]]) for each in nodes}
        squares = [
            float(runs[each].var(ddof=1)) / len(runs[each]) if len(runs[each]) > 1
            else float(np.mean([block_error(run[None]) for run in added[each]]))
            for each in nodes
        ]  # fmt: skip
        by_nodes = grouped((each.nodes, each) for each in standalone)
        is_standalone = max(by_nodes, default=1) > 1
        if is_standalone:
            latency = {number: stats.mean([each.latency for each in its]) for number, its in by_nodes.items()}
            bandwidth = {number: stats.mean([each.bandwidth for each in its]) for number, its in by_nodes.items()}
            parts: list[GrowingPart] = [
                ((latency,), _growths(latency, (Growth.DOUBLINGS, Growth.MESSAGES))),
                ((bandwidth,), _growths(bandwidth, (Growth.BYTES, Growth.DOUBLINGS))),
            ]
        else:
            values = {each: float(runs[each].mean()) for each in nodes}
            whole = {each: ms + hidden[each] for each, ms in values.items()}
            parts = [((values, whole), _growths(values, tuple(Growth)))]
        return cls(
            nodes=np.array(nodes, float), added=np.array([runs[each].mean() for each in nodes]),
            squares=np.array(squares), parts=tuple(parts), is_standalone=is_standalone,
        )  # fmt: skip

    @property
    def growths(self) -> tuple[Growth, ...]:
        return tuple(dict.fromkeys(growth for _, sets in self.parts for growths in sets for growth in growths))

    def at(self, nodes: int, generator: np.random.Generator) -> Floats:
        """What it adds on so many nodes, ms [growths that may be right, draw]: as at the largest size, and what it
        grows by from there; what compute hides stays hidden, and no more."""
        largest = int(self.nodes[-1])
        errors = np.sqrt(self.squares) * generator.standard_normal((DRAWS, len(self.squares)))
        of_parts = []
        for possible, growths in self.parts:
            of_part = []
            for values in possible:
                drawn = np.atleast_2d(np.array([*values.values()]) + (0.0 if self.is_standalone else errors))
                of_part += [_grows(chosen, [*values], drawn, (largest, nodes)) for chosen in growths]
            of_parts.append(of_part)
        grows = np.array([sum(chosen) for chosen in product(*of_parts)])
        added: Floats = np.maximum(0.0, self.added[-1] + errors[:, -1] + grows)
        return added


def _grows(growths: Sequence[Growth], measured: Sequence[int], drawn: Floats, sizes: tuple[int, int]) -> Floats:
    """By how much more on the second of the sizes than on the first, for each draw [draw, measured size]."""
    columns = _growth_columns(growths, measured, len(measured) > 1)
    first, second = _growth_columns(growths, sizes, len(measured) > 1)
    return np.array([(second - first) @ nonnegative(columns, values) for values in drawn])


def _growth_columns(growths: Sequence[Growth], nodes: Sequence[int], with_fixed: bool) -> Floats:
    """What is fixed, and what grows, on so many nodes [size, term]; one size alone shows nothing fixed."""
    fixed = [1.0] if with_fixed else []
    return np.array([[*fixed, *(growth.at(each) for growth in growths)] for each in nodes])


def _growths(values: Mapping[int, float], possible: Sequence[Growth]) -> tuple[tuple[Growth, ...], ...]:
    """Those of the growths, and of what any two of them add up to, that miss the measured sizes hardly, or hardly more
    than the best does."""
    ms = np.array([*values.values()])
    missed = {}
    for growths in (*combinations(possible, 1), *combinations(possible, 2)):
        columns = _growth_columns(growths, [*values], len(values) > 1)
        missed[growths] = sqrt(float(np.square(columns @ nonnegative(columns, ms) - ms).mean()))
    limit = max(SAME_FIT * min(missed.values()), LEAST_MISS * float(ms.max()))
    return tuple(growths for growths, miss in missed.items() if miss <= limit)


def _forecast(
    nodes: int, shown: Population, free: Population | None, runs: Sequence[RunTerms], network: _Network
) -> StepForecast:
    """The step on so many nodes. `free` is the population with input always ready, None where that is not known.

    Others that leave a reduction later have less to wait for a slow rank: as long as they need for that the wait may be
    hidden, or nothing of it.
    """
    its = slowest(shown, nodes)
    generator = np.random.default_rng((1, nodes))
    leaving = stats.mean([run.leaving for run in runs])
    waits = network.at(nodes, generator)
    waits = np.concatenate([waits, waits - np.clip(its.draws - its.mean, 0.0, leaving)])
    step = its.draws + waits
    step[step <= 0] = np.nan  # two nodes that differ much leave it so open; a time is above 0
    done = stats.mean([run.done for run in runs]) / (len(runs[0].work.nodes)) * its.ranks
    changed = {Change.MEDIAN: its.mean + waits, Change.COMMUNICATION: its.draws}
    if free is not None:
        changed[Change.INPUT] = slowest(free, nodes).draws + waits
    if shown.two is not None:
        changed[Change.STRAGGLER] = slowest(replace(shown, two=None), nodes).draws + waits
    gains = {change: float(np.nanmedian(step) / np.median(ms)) - 1 for change, ms in changed.items()}
    data, compute = (
        stats.mean([float(of) for of in each])
        for each in zip(*((run.data.mean(), run.compute) for run in runs), strict=True)
    )
    work = stats.mean([float(run.work.work.mean()) for run in runs])
    return StepForecast(
        nodes=nodes, devices=its.ranks, step=_range(step), data=data, compute=compute,
        wait=_range(its.draws - its.mean), communication=_range(waits), optimizer=work - data - compute,
        speed=_range(done * 1e3 / step),
        what_ifs=tuple(
            WhatIfThere(change=change, gain=gain) for change, gain in sorted(gains.items(), key=lambda each: -each[1])
        ),
        proven=nodes <= PROVEN_TIMES * shown.nodes,
    )  # fmt: skip


def _range(draws: Floats) -> Range:
    """The median of all draws [possibility, draw], and the interval that holds that of each possibility; those that are
    NaN cannot be."""
    low, high = np.nanquantile(draws, [(1 - MIDDLE) / 2, (1 + MIDDLE) / 2], axis=-1)
    return Range(value=float(np.nanmedian(draws)), low=float(low.min()), high=float(high.max()))
