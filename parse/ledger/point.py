"""From traces to the ledger of each point: means over its runs, against the baseline's, and what explains the loss."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc.model.spec import COLLECTIVES
from hpc.model.trace import TraceError
from hpc.model.trace_file import open_trace
from parse import stats
from parse.ledger.arrivals import Floats, LastArrivals
from parse.ledger.breakdown import StepBreakdown, merge, names, step_breakdown
from parse.ledger.input import InputReading, input_of_point, reduce_input
from parse.ledger.standalone import standalone_reduction
from parse.ledger.straggler import incidents, verdict
from parse.ledger.telemetry import Conditions, compare_conditions, reduce_telemetry
from parse.ledger.types import (
    CANNOT_TELL,
    Because,
    ComputeSplit,
    Ledger,
    Mean,
    NoLoss,
    Place,
    RunLedger,
    Standalone,
    Term,
    Verdict,
)  # fmt: skip
from parse.result import Result

Progress = Callable[[Sequence[Result]], Iterable[Result]]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The ok runs of a point; a remark for each without a step breakdown."""

    breakdowns: tuple[StepBreakdown, ...] = ()
    conditions: tuple[Conditions, ...] = ()
    inputs: tuple[InputReading, ...] = ()
    remarks: tuple[str, ...] = ()


def ledgers(
    results: Sequence[Result], diagnostics: Sequence[Result] = (), progress: Progress | None = None
) -> tuple[Ledger, ...]:
    """The ledger of every point that has an ok run with a trace. `diagnostics` are runs that explain others."""
    reader = _Reader({result.requested.point: result for result in (*results, *diagnostics)})
    collectives = [result for result in diagnostics if result.run.diagnostic == COLLECTIVES]
    shown = progress(results) if progress else results
    return tuple(reader.ledger(result, collectives) for result in shown if reader.read(result).breakdowns)


class _Reader:
    """Reads every trace once."""

    def __init__(self, points: Mapping[str, Result]) -> None:
        self.points = points
        self._read: dict[str, _Read] = {}

    def read(self, result: Result) -> _Read:
        if result.requested.point not in self._read:
            self._read[result.requested.point] = _read_runs(result)
        return self._read[result.requested.point]

    def ledger(self, result: Result, collectives: Sequence[Result]) -> Ledger:
        """The ledger of a point that has step breakdowns."""
        read = self.read(result)
        baseline = self.points.get(result.requested.baseline_point)
        against = self.read(baseline) if baseline and baseline is not result else _Read()
        base = against.breakdowns
        borders = _common_borders((*read.breakdowns, *base))
        ours, theirs = _samples(read.breakdowns, borders), _samples(base, borders)
        if result.run.scaling == "strong":
            theirs = theirs / result.run.devices
        loss = _difference(ours.sum(axis=1), theirs.sum(axis=1)) if base else None
        terms = _terms(names(borders), ours, theirs if base else None, loss)
        standalone, remarks = _standalone(result, read.breakdowns, terms, collectives)
        runs = tuple(map(_run_ledger, read.breakdowns))
        merged = dict.fromkeys(breakdown.merged for breakdown in (*read.breakdowns, *base))
        step = _mean(ours.sum(axis=1))
        return Ledger(
            result=result, terms=terms, step=step, input=input_of_point(read.inputs, step.value),
            median_step=stats.mean([breakdown.median_step_ns / 1e6 for breakdown in read.breakdowns]),
            skew=stats.mean([breakdown.skew_ns / 1e6 for breakdown in read.breakdowns]),
            loss=loss, no_loss=None if base else _no_loss(result, baseline),
            merged=tuple(reason for reason in merged if reason), verdict=_together(runs), runs=runs,
            ranks=_ranks(read.breakdowns, borders), nodes=_nodes(read.breakdowns, borders),
            split=self._split(result, borders, ours, theirs) if base else None,
            telemetry=compare_conditions(read.conditions, against.conditions),
            standalone=standalone, remarks=(*read.remarks, *remarks),
        )  # fmt: skip

    def _split(self, result: Result, borders: frozenset[str], ours: Floats, theirs: Floats) -> ComputeSplit | None:
        if "compute" not in names(borders):
            return None
        at = names(borders).index("compute")
        no_sync = self._no_sync(result)
        if not no_sync:
            unexplained = float(ours[:, at].mean() - theirs[:, at].mean())
            return ComputeSplit(contention=None, interference=None, unexplained=unexplained)
        unreduced = _samples(no_sync, _common_borders(no_sync))[:, 1]
        return ComputeSplit(
            contention=_difference(unreduced, theirs[:, at]),
            interference=_difference(ours[:, at], unreduced),
            unexplained=0.0,
        )

    def _no_sync(self, result: Result) -> tuple[StepBreakdown, ...]:
        """The runs of the same ranks and work with reduction switched off, where compute is a term of theirs."""
        requested = dataclasses.replace(result.requested, run=dataclasses.replace(result.run, reduction="off"))
        no_sync = self.points.get(requested.point)
        breakdowns = self.read(no_sync).breakdowns if no_sync else ()
        return tuple(breakdown for breakdown in breakdowns if names(breakdown.borders)[1:2] == ("compute",))


def _read_runs(result: Result) -> _Read:
    breakdowns, conditions, inputs, remarks = [], [], [], []
    for run in result.ok:
        if run.trace is None:
            remarks.append(f"{run.requested.run_id}: read from a log, which has no stamps")
            continue
        try:
            with open_trace(run.trace) as trace:
                breakdowns.append(step_breakdown(trace))
                conditions.append(reduce_telemetry(trace))
                inputs.append(reduce_input(trace))
        except TraceError as error:
            remarks.append(str(error))
    return _Read(
        breakdowns=tuple(breakdowns),
        conditions=tuple(run_conditions for run_conditions in conditions if run_conditions is not None),
        inputs=tuple(reading for reading in inputs if reading is not None),
        remarks=tuple(remarks),
    )


def _common_borders(breakdowns: Sequence[StepBreakdown]) -> frozenset[str]:
    return frozenset.intersection(*(breakdown.borders for breakdown in breakdowns))


def _samples(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> Floats:
    """Mean terms in ms of every run, [run, term]; where there is one run, of every piece of its window."""
    if len(breakdowns) == 1:
        # Pieces differ in length by a step: their plain mean is not the run's.
        single = breakdowns[0]
        return merge(single.piece_ns + (single.mean_ns - single.piece_ns.mean(axis=0)), borders) / 1e6
    if not breakdowns:
        return np.empty((0, len(names(borders))))
    return merge(np.stack([breakdown.mean_ns for breakdown in breakdowns]), borders) / 1e6


def _terms(of: Sequence[str], ours: Floats, theirs: Floats | None, loss: Mean | None) -> tuple[Term, ...]:
    if theirs is None or loss is None:
        return tuple(Term(name=name, mean=_mean(values)) for name, values in zip(of, ours.T, strict=True))
    terms = []
    for name, values, others in zip(of, ours.T, theirs.T, strict=True):
        lost = _difference(values, others)
        share = lost.value / loss.value if loss.resolved else None
        terms.append(Term(name=name, mean=_mean(values), baseline=float(others.mean()), loss=lost, share=share))
    return tuple(terms)


def _mean(values: Floats) -> Mean:
    return _with_margin(float(values.mean()), stats.mean_margin(values.tolist()))


def _difference(values: Floats, others: Floats) -> Mean:
    margin = stats.difference_margin(values.tolist(), others.tolist())
    return _with_margin(float(values.mean() - others.mean()), margin)


def _with_margin(value: float, margin: float | None) -> Mean:
    return Mean(value=value) if margin is None else Mean(value=value, low=value - margin, high=value + margin)


def _no_loss(result: Result, baseline: Result | None) -> NoLoss:
    if baseline is None:
        return NoLoss.NO_BASELINE
    return NoLoss.IS_BASELINE if baseline is result else NoLoss.BASELINE_NOT_OK


def _standalone(
    result: Result, breakdowns: Sequence[StepBreakdown], terms: Sequence[Term], collectives: Sequence[Result]
) -> tuple[Standalone | None, tuple[str, ...]]:
    """The time of the gradients' all-reduce standalone, if its volume and its exposed part are known."""
    volumes = {breakdown.gradient_bytes for breakdown in breakdowns}
    volume = volumes.pop() if len(volumes) == 1 else None
    exposed = next((term.mean.value for term in terms if term.name == "communication"), None)
    if not volume or exposed is None:
        return None, ()
    return standalone_reduction(result, volume, exposed, collectives)


def _run_ledger(breakdown: StepBreakdown) -> RunLedger:
    return RunLedger(
        run_id=breakdown.run_id, verdict=verdict(breakdown), step=breakdown.step_ns / 1e6,
        pauses=tuple(pause / 1e6 for pause in breakdown.pauses_ns),
        bound=None if breakdown.arrivals is None else breakdown.arrivals.bound / 1e6,
        incidents=incidents(breakdown), problems=breakdown.problems,
    )  # fmt: skip


def _together(runs: Sequence[RunLedger]) -> Verdict:
    """The verdict that most of the runs have: of the same kind on the same ranks, else on the same node."""
    verdicts = [run.verdict for run in runs]
    by_rank = [(each.kind, each.because, each.ranks) for each in verdicts]
    by_node = [(each.kind, each.because, each.node or each.ranks) for each in verdicts]
    keys: Sequence[tuple[object, ...]]
    for keys in (by_rank, by_node):
        commonest, count = Counter(keys).most_common(1)[0]
        if 2 * count > len(runs):
            return _averaged([each for each, key in zip(verdicts, keys, strict=True) if key == commonest])
    return Verdict(kind=CANNOT_TELL, because=Because.RUNS_DISAGREE, bound=max(run.bound or 0.0 for run in runs))


def _averaged(verdicts: Sequence[Verdict]) -> Verdict:
    """The first, with the means of all; the steps of a transient one only where all name the same."""
    first = verdicts[0]
    averaged = ("arrival_skew", "share", "costs", "bound")
    means: dict[str, Any] = {name: stats.mean([getattr(each, name) for each in verdicts]) for name in averaged}
    chances = [each.chance for each in verdicts if each.chance is not None]
    return dataclasses.replace(
        first,
        steps=first.steps if all(each.steps == first.steps for each in verdicts) else (),
        cause={name: stats.mean([each.cause[name] for each in verdicts]) for name in first.cause},
        chance=max(chances) if len(chances) == len(verdicts) else None,
        **means,
    )


def _ranks(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> tuple[Place, ...]:
    groups = {}
    for rank in range(len(breakdowns[0].nodes)):
        host = _host(breakdowns, rank)
        groups[rank] = (f"rank {rank} ({host})" if host else f"rank {rank}", (rank,))
    return _places(breakdowns, borders, groups, [each.arrivals.ranks if each.arrivals else None for each in breakdowns])


def _nodes(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> tuple[Place, ...]:
    """The nodes, where the runs agree on which rank lies on which."""
    nodes = breakdowns[0].nodes
    if any(breakdown.nodes != nodes for breakdown in breakdowns):
        return ()
    groups = {}
    for node in sorted({*nodes}):
        ranks = tuple(rank for rank, on in enumerate(nodes) if on == node)
        groups[node] = (_host(breakdowns, ranks[0]) or f"node {node}", ranks)
    return _places(breakdowns, borders, groups, [each.arrivals.nodes if each.arrivals else None for each in breakdowns])


def _host(breakdowns: Sequence[StepBreakdown], rank: int) -> str:
    """The host name of a rank; empty where the runs differ."""
    first, *others = {breakdown.hosts[rank] for breakdown in breakdowns}
    return "" if others else first


def _places(
    breakdowns: Sequence[StepBreakdown], borders: frozenset[str], groups: Mapping[int, tuple[str, tuple[int, ...]]],
    arrivals: Sequence[LastArrivals | None],
) -> tuple[Place, ...]:  # fmt: skip
    """A place for each group of ranks, by the number that it has in `arrivals`, one of each run."""
    ms = np.mean([merge(breakdown.rank_ns, borders) for breakdown in breakdowns], axis=0) / 1e6
    places = []
    for number, (name, ranks) in groups.items():
        shares = [float((each.provable & (each.last == number)).mean()) for each in arrivals if each is not None]
        last = stats.mean(shares) if len(shares) == len(breakdowns) else None
        places.append(Place(name=name, ranks=ranks, terms=tuple(ms[list(ranks)].mean(axis=0).tolist()), last=last))
    return tuple(places)
