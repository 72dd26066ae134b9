"""From traces to the ledger of each point: means over its runs, held against the baseline's, and what explains them."""

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
from parse.ledger.arrivals import Floats
from parse.ledger.breakdown import StepBreakdown, merge, names, step_breakdown
from parse.ledger.standalone import beside
from parse.ledger.straggler import incidents, verdict
from parse.ledger.telemetry import Conditions, compare_conditions, reduce_telemetry
from parse.ledger.types import CANNOT_TELL, Alone, ComputeSplit, Ledger, Mean, Place, RunLedger, Term, Verdict
from parse.result import Result

Progress = Callable[[Sequence[Result]], Iterable[Result]]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The runs of a point: their accounts, what telemetry says of them, and a line for each ok run without account."""

    breakdowns: tuple[StepBreakdown, ...]
    conditions: tuple[Conditions, ...]
    remarks: tuple[str, ...] = ()


def ledgers(
    results: Sequence[Result], probes: Sequence[Result] = (), progress: Progress | None = None
) -> tuple[Ledger, ...]:
    """The ledger of every point that has an ok run with a trace. `probes` are runs that explain others."""
    reader = _Reader({result.requested.point: result for result in (*results, *probes)})
    collectives = [probe for probe in probes if probe.run.diagnostic == COLLECTIVES]
    shown = progress(results) if progress else results
    return tuple(reader.ledger(result, collectives) for result in shown if reader.read(result).breakdowns)


class _Reader:
    """Reads every trace once."""

    def __init__(self, points: Mapping[str, Result]) -> None:
        self.points = points
        self._read: dict[str, _Read] = {}

    def read(self, result: Result) -> _Read:
        """The accounts of the point's ok runs."""
        if result.requested.point not in self._read:
            self._read[result.requested.point] = _read_breakdowns(result)
        return self._read[result.requested.point]

    def ledger(self, result: Result, collectives: Sequence[Result]) -> Ledger:
        """The ledger of a point that has accounts."""
        read = self.read(result)
        baseline = self.points.get(result.requested.baseline_point)
        against = self.read(baseline) if baseline and baseline is not result else _Read(breakdowns=(), conditions=())
        base = against.breakdowns
        borders = frozenset.intersection(*(breakdown.borders for breakdown in (*read.breakdowns, *base)))
        ours, theirs = _samples(read.breakdowns, borders), _samples(base, borders)
        if result.run.scaling == "strong":
            theirs = theirs / result.run.devices
        loss = _difference(ours.sum(axis=1), theirs.sum(axis=1)) if base else None
        step = _mean(ours.sum(axis=1))
        terms = _terms(names(borders), ours, theirs if base else None, loss)
        standalone, remarks = _alone(result, read.breakdowns, terms, collectives)
        runs = tuple(_of_run(breakdown) for breakdown in read.breakdowns)
        return Ledger(
            result=result,
            terms=terms,
            step=step,
            median_step=stats.mean([breakdown.median_step_ns / 1e6 for breakdown in read.breakdowns]),
            skew=stats.mean([breakdown.skew_ns / 1e6 for breakdown in read.breakdowns]),
            loss=loss,
            no_loss="" if base else _no_loss(result, baseline),
            merged="; ".join(
                dict.fromkeys(breakdown.merged for breakdown in (*read.breakdowns, *base) if breakdown.merged)
            ),
            verdict=_together(runs),
            runs=runs,
            ranks=_ranks(read.breakdowns, borders),
            nodes=_nodes(read.breakdowns, borders),
            split=self._split(result, borders, ours, theirs) if base else None,
            telemetry=compare_conditions(read.conditions, against.conditions),
            alone=standalone,
            remarks=(*read.remarks, *remarks),
        )

    def _split(self, result: Result, borders: frozenset[str], ours: Floats, theirs: Floats) -> ComputeSplit | None:
        """What the loss in compute consists of, where compute is a term."""
        if "compute" not in names(borders):
            return None
        at = names(borders).index("compute")
        twin = self._twin(result)
        if not twin:
            return ComputeSplit(
                contention=None, interference=None, unexplained=float(ours[:, at].mean() - theirs[:, at].mean())
            )
        alone = _samples(twin, frozenset.intersection(*(breakdown.borders for breakdown in twin)))[:, 1]
        return ComputeSplit(
            contention=_difference(alone, theirs[:, at]),
            interference=_difference(ours[:, at], alone),
            unexplained=0.0,
        )

    def _twin(self, result: Result) -> tuple[StepBreakdown, ...]:
        """The runs of the same ranks at the same work with reduction switched off, where they tell compute apart."""
        requested = dataclasses.replace(result.requested, run=dataclasses.replace(result.run, reduction="off"))
        twin = self.points.get(requested.point)
        breakdowns_of_twin = self.read(twin).breakdowns if twin else ()
        return tuple(breakdown for breakdown in breakdowns_of_twin if names(breakdown.borders)[1:2] == ("compute",))


def _read_breakdowns(result: Result) -> _Read:
    breakdowns, conditions, remarks = [], [], []
    for run in result.ok:
        assert run.attempt is not None
        if run.attempt.trace is None:
            remarks.append(f"{run.requested.run_id}: read from a log, which has no stamps")
            continue
        try:
            with open_trace(run.attempt.trace) as trace:
                breakdowns.append(step_breakdown(trace))
                conditions.append(reduce_telemetry(trace))
        except TraceError as error:
            remarks.append(str(error))
    known = tuple(known_conditions for known_conditions in conditions if known_conditions is not None)
    return _Read(breakdowns=tuple(breakdowns), conditions=known, remarks=tuple(remarks))


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
    term_list = []
    for at, name in enumerate(of):
        mine = _mean(ours[:, at])
        if theirs is None or loss is None:
            term_list.append(Term(name=name, mean=mine))
            continue
        lost = _difference(ours[:, at], theirs[:, at])
        share = lost.value / loss.value if loss.resolved else None
        term_list.append(Term(name=name, mean=mine, baseline=float(theirs[:, at].mean()), loss=lost, share=share))
    return tuple(term_list)


def _mean(values: Floats) -> Mean:
    return _with_margin(float(values.mean()), stats.mean_margin(values.tolist()))


def _difference(values: Floats, others: Floats) -> Mean:
    margin = stats.difference_margin(values.tolist(), others.tolist())
    return _with_margin(float(values.mean() - others.mean()), margin)


def _with_margin(value: float, margin: float | None) -> Mean:
    return Mean(value=value) if margin is None else Mean(value=value, low=value - margin, high=value + margin)


def _no_loss(result: Result, baseline: Result | None) -> str:
    if baseline is result:
        return "it is the baseline"
    if baseline is None:
        return "no 1n1g baseline with all else equal is here"
    return "no run of its 1n1g baseline ended ok with a trace"


def _alone(
    result: Result, breakdowns: Sequence[StepBreakdown], terms: Sequence[Term], collectives: Sequence[Result]
) -> tuple[Alone | None, tuple[str, ...]]:
    """What the gradients' all-reduce costs by itself, where its volume and what is exposed of it are known."""
    volumes = {breakdown.gradient_bytes for breakdown in breakdowns}
    exposed = [term.mean.value for term in terms if term.name == "transfer"]
    volume = volumes.pop() if len(volumes) == 1 else None
    return beside(result, volume, exposed[0], collectives) if volume and exposed else (None, ())


def _of_run(breakdown: StepBreakdown) -> RunLedger:
    run_verdict = verdict(breakdown)
    return RunLedger(
        run_id=breakdown.run_id,
        verdict=run_verdict,
        step=breakdown.step_ns / 1e6,
        pauses=tuple(pause / 1e6 for pause in breakdown.pauses_ns),
        bound=None if breakdown.arrivals is None else breakdown.arrivals.bound / 1e6,
        incidents=incidents(breakdown),
        problems=breakdown.problems,
    )


def _together(runs: Sequence[RunLedger]) -> Verdict:
    """The verdict that most of the runs have: of the same kind on the same ranks, else on the same node."""
    verdicts = [run.verdict for run in runs]
    by_rank = [(each.kind, each.because, each.ranks) for each in verdicts]
    by_node = [(each.kind, each.because, each.node or each.ranks) for each in verdicts]
    of_runs: Sequence[tuple[object, ...]]
    for of_runs in (by_rank, by_node):
        commonest, count = Counter(of_runs).most_common(1)[0]
        if 2 * count > len(runs):
            return _averaged([each for each, its in zip(verdicts, of_runs, strict=True) if its == commonest])
    return Verdict(kind=CANNOT_TELL, because="the runs disagree", bound=max(run.bound or 0.0 for run in runs))


def _averaged(verdicts: Sequence[Verdict]) -> Verdict:
    """The first, with the means of all; the steps of a transient one only where all name the same."""
    first = verdicts[0]
    means: dict[str, Any] = {
        name: stats.mean([getattr(each, name) for each in verdicts]) for name in ("late", "share", "costs", "bound")
    }
    chances = [each.chance for each in verdicts if each.chance is not None]
    return dataclasses.replace(
        first,
        steps=first.steps if all(each.steps == first.steps for each in verdicts) else (),
        cause={name: stats.mean([each.cause[name] for each in verdicts]) for name in first.cause},
        chance=max(chances) if len(chances) == len(verdicts) else None,
        **means,
    )


def _ranks(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> tuple[Place, ...]:
    ns = np.mean([merge(breakdown.rank_ns, borders) for breakdown in breakdowns], axis=0)
    last = _last(breakdowns, "last", "gap", range(len(ns)))
    hosts = [{breakdown.hosts[rank] for breakdown in breakdowns} for rank in range(len(ns))]
    return tuple(
        Place(
            name=f"rank {rank} ({host})" if len(on) == 1 and (host := next(iter(on))) else f"rank {rank}",
            ranks=(rank,),
            terms=tuple((ns[rank] / 1e6).tolist()),
            last=None if last is None else last[rank],
        )
        for rank, on in enumerate(hosts)
    )


def _nodes(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> tuple[Place, ...]:
    """The nodes, where the runs agree on which rank lies on which."""
    nodes = breakdowns[0].nodes
    if any(breakdown.nodes != nodes for breakdown in breakdowns):
        return ()
    ns = np.mean([merge(breakdown.rank_ns, borders) for breakdown in breakdowns], axis=0)
    numbers = sorted(set(nodes))
    last = _last(breakdowns, "node_last", "node_gap", numbers)
    places = []
    for at, node in enumerate(numbers):
        ranks = tuple(rank for rank, on in enumerate(nodes) if on == node)
        hosts = {breakdown.hosts[ranks[0]] for breakdown in breakdowns}
        name = next(iter(hosts)) if len(hosts) == 1 else ""
        terms = tuple((ns[list(ranks)].mean(axis=0) / 1e6).tolist())
        places.append(
            Place(name=name or f"node {node}", ranks=ranks, terms=terms, last=None if last is None else last[at])
        )
    return tuple(places)


def _last(breakdowns: Sequence[StepBreakdown], who: str, gap: str, numbers: Sequence[int]) -> list[float] | None:
    """Of each of them the share of steps in which it is provably last; None where that cannot be told."""
    arrivals = [breakdown.arrivals for breakdown in breakdowns if breakdown.arrivals is not None]
    if len(arrivals) < len(breakdowns):
        return None
    shares = []
    for breakdown in arrivals:
        provable = getattr(breakdown, gap) > getattr(breakdown, f"{gap}_bound")
        shares.append([float((provable & (getattr(breakdown, who) == number)).mean()) for number in numbers])
    mean: list[float] = np.mean(shares, axis=0).tolist()
    return mean
