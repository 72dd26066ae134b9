"""From traces to the ledger of each point: means over its runs, against the base's, and what explains the loss."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpc.model.spec import COLLECTIVES
from hpc.model.trace import TraceError
from hpc.model.trace_file import open_trace
from parse import stats
from parse.ledger.arrivals import MATERIAL, Floats, LastArrivals, pooled
from parse.ledger.breakdown import StepBreakdown, merge, names, step_breakdown
from parse.ledger.detection import lowering
from parse.ledger.input import InputReading, input_of_point, input_of_ranks, reduce_input
from parse.ledger.network_reading import NetworkReading, network_of_point, reduce_network
from parse.ledger.standalone import beside_nccl_tests, standalone_reduction
from parse.ledger.straggler import stragglers, verdict
from parse.ledger.symptoms import contention, core_wait, explained, stragglers_part, symptoms
from parse.ledger.telemetry import Conditions, compare_conditions, reduce_telemetry
from parse.ledger.transient import incidents, rhythm
from parse.ledger.types import (
    CANNOT_TELL,
    NOTABLE_CAUSE,
    PERSISTENT,
    TRANSIENT,
    Because,
    ComputeSplit,
    Ledger,
    Mean,
    NoLoss,
    Place,
    Repeats,
    RunLedger,
    Standalone,
    StragglerAtBase,
    Term,
    Verdict,
)  # fmt: skip
from parse.ledger.what_if import without_straggler
from parse.logs.nccl_tests import NcclTest
from parse.processes import each_in_processes, processes_for
from parse.result import Result

Progress = Callable[[Sequence[Result]], Iterable[Result]]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The ok runs of a point; a remark for each without a step breakdown."""

    breakdowns: tuple[StepBreakdown, ...] = ()
    conditions: tuple[Conditions, ...] = ()
    inputs: tuple[InputReading, ...] = ()
    networks: tuple[NetworkReading, ...] = ()
    remarks: tuple[str, ...] = ()


def ledgers(
    results: Sequence[Result], diagnostics: Sequence[Result] = (), progress: Progress | None = None,
    nccl_tests: Sequence[NcclTest] = (),
) -> tuple[Ledger, ...]:  # fmt: skip
    """The ledger of every point that has an ok run with a trace. `diagnostics` are runs that explain others."""
    points = {result.requested.point: result for result in (*results, *diagnostics)}
    processes = processes_for(run.trace for result in points.values() for run in result.ok if run.trace)
    shown = progress(results) if progress else results
    if processes == 1:
        reader = _Reader(points, nccl_tests)
        return tuple(reader.ledger(result) for result in shown if reader.read(result).breakdowns)
    reads = each_in_processes(_read_runs, [*points.values()], processes)
    reader = _Reader(points, nccl_tests, dict(zip(points, reads, strict=True)))
    chosen = [result for result in results if reader.read(result).breakdowns]
    judged = each_in_processes(reader.ledger, chosen, processes)
    return tuple(
        dataclasses.replace(ledger, result=result)
        for result in shown
        if any(result is each for each in chosen)
        for ledger in [next(judged)]
    )


class _Reader:
    """Reads every trace once."""

    def __init__(
        self, points: Mapping[str, Result], nccl_tests: Sequence[NcclTest], read: Mapping[str, _Read] | None = None
    ) -> None:
        self.points = points
        self.nccl_tests = nccl_tests
        self.collectives = [result for result in points.values() if result.run.diagnostic == COLLECTIVES]
        self._read: dict[str, _Read] = dict(read or {})
        self._verdicts: dict[str, tuple[tuple[RunLedger, ...], tuple[Verdict, ...]]] = {}

    def read(self, result: Result) -> _Read:
        if result.requested.point not in self._read:
            self._read[result.requested.point] = _read_runs(result)
        return self._read[result.requested.point]

    def ledger(self, result: Result) -> Ledger:
        """The ledger of a point that has step breakdowns."""
        read = self.read(result)
        of_base = self._base(result)
        against = self.read(of_base) if of_base else _Read()
        base, scale = against.breakdowns, _scale(result)
        borders = _common_borders((*read.breakdowns, *base))
        ours, theirs = _samples(read.breakdowns, borders), scale * _samples(base, borders)
        loss = _difference(ours.sum(axis=1), theirs.sum(axis=1)) if base else None
        terms = _terms(names(borders), ours, theirs if base else None, loss)
        volume = _gradient_bytes(read.breakdowns)
        standalone, remarks = _standalone(result, volume, terms, self.collectives)
        beside, of_tests = beside_nccl_tests(result.run.devices, volume, standalone, self.nccl_tests if volume else ())
        network = network_of_point(
            result, read.networks, self._other_networks(result), float(ours.sum(axis=1).mean()),
            _exposed(terms), volume, self.collectives,
        )  # fmt: skip
        runs, (judged, *further) = self._judged(result)
        merged = dict.fromkeys(breakdown.merged for breakdown in (*read.breakdowns, *base))
        step = _mean(ours.sum(axis=1))
        ledger = Ledger(
            result=result, terms=terms, step=step, input=input_of_point(read.inputs, step.value),
            median_step=stats.mean([breakdown.median_step_ns / 1e6 for breakdown in read.breakdowns]),
            skew=stats.mean([breakdown.skew_ns / 1e6 for breakdown in read.breakdowns]),
            loss=loss, no_loss=None if base else _no_loss(result),
            merged=tuple(reason for reason in merged if reason), verdict=judged, further=tuple(further), runs=runs,
            ranks=_ranks(read.breakdowns, borders), nodes=_nodes(read.breakdowns, borders),
            split=self._split(result, of_base, borders, ours, theirs) if base and of_base else None,
            straggler_at_base=self._straggler_at(of_base, borders, scale, judged, ours, theirs)
            if base and of_base else StragglerAtBase(),
            telemetry=compare_conditions(read.conditions, against.conditions),
            contention=tuple(contention(against.conditions)),
            core_wait=core_wait(read.conditions, against.conditions),
            repeats=_repeats(read.breakdowns, base, ours, theirs, loss),
            standalone=standalone, nccl_tests=beside, network=network, remarks=(*read.remarks, *remarks, *of_tests),
        )  # fmt: skip
        ledger = dataclasses.replace(ledger, split=explained(ledger))
        try:
            return dataclasses.replace(
                ledger, without_straggler=without_straggler(ledger),
                symptoms=symptoms(ledger) if read.conditions else (),
                straggler_input=_straggler_input(ledger) if read.inputs else None,
            )  # fmt: skip
        except TraceError as error:  # it has changed since, or has numbers that only this goes into
            return dataclasses.replace(ledger, remarks=(*ledger.remarks, f"the straggler is not explained: {error}"))

    def _other_networks(self, result: Result) -> list[NetworkReading]:
        """The networks of the runs of other points on several nodes, of those whose segments were counted."""
        return [reading for point, reading in self._networks if point != result.requested.point]

    @cached_property
    def _networks(self) -> list[tuple[str, NetworkReading]]:
        """By point: the networks of runs on several nodes, of those whose segments were counted."""
        several = [each for each in self.points.values() if (each.run.nodes or 1) > 1 and not each.run.diagnostic]
        readings = ((each.requested.point, reading) for each in several for reading in self.read(each).networks)
        return [(point, reading) for point, reading in readings if reading.segments is not None]

    def _base(self, result: Result) -> Result | None:
        """The point that it is measured against; None where that is itself, or not here."""
        base = result.base
        return None if base is None or base.point == result.requested.point else self.points.get(base.point)

    def _judged(self, result: Result) -> tuple[tuple[RunLedger, ...], tuple[Verdict, ...]]:
        """The runs of a point and the verdicts on its stragglers, judged once."""
        point = result.requested.point
        if point not in self._verdicts:
            breakdowns = self.read(result).breakdowns
            runs = tuple(map(_run_ledger, breakdowns))
            self._verdicts[point] = runs, _together(breakdowns, runs)
        return self._verdicts[point]

    def _straggler_at(
        self, base: Result, borders: frozenset[str], scale: float, of_point: Verdict, ours: Floats, theirs: Floats
    ) -> StragglerAtBase:
        if base.run.ranks == 1:
            return StragglerAtBase()
        _, (judged, *_) = self._judged(base)
        compute = stragglers_part(judged, names(borders), _ranks(self.read(base).breakdowns, borders))
        both = judged.costs > 0 and of_point.costs > 0
        return StragglerAtBase(
            costs=scale * judged.costs, compute=scale * compute,
            together=_together_with_wait(names(borders), of_point, ours, theirs) if both else None,
        )  # fmt: skip

    def _split(
        self, result: Result, base: Result, borders: frozenset[str], ours: Floats, theirs: Floats
    ) -> ComputeSplit | None:
        if "compute" not in names(borders):
            return None
        at = names(borders).index("compute")
        unreduced = self._unreduced(result)
        # One rank reduces nothing; of several, reduction lengthens the compute of the base, too.
        of_base = theirs[:, at] if base.run.ranks == 1 else _scale(result) * self._unreduced(base)
        if not (len(unreduced) and len(of_base)):
            unexplained = float(ours[:, at].mean() - theirs[:, at].mean())
            return ComputeSplit(contention=None, interference=None, unexplained=unexplained)
        interference = _difference(ours[:, at], unreduced)
        if base.run.ranks != 1:
            interference = _less(interference, _difference(theirs[:, at], of_base))
        return ComputeSplit(contention=_difference(unreduced, of_base), interference=interference, unexplained=0.0)

    def _unreduced(self, result: Result) -> Floats:
        """Mean compute in ms of its no-sync runs; of one run, of every piece of its window."""
        no_sync = self._no_sync(result)
        return _samples(no_sync, _common_borders(no_sync))[:, 1] if no_sync else np.empty(0)

    def _no_sync(self, result: Result) -> tuple[StepBreakdown, ...]:
        """The runs of the same ranks and work with reduction switched off, where compute is a term of theirs."""
        requested = dataclasses.replace(result.requested, run=dataclasses.replace(result.run, reduction="off"))
        no_sync = self.points.get(requested.point)
        breakdowns = self.read(no_sync).breakdowns if no_sync else ()
        return tuple(breakdown for breakdown in breakdowns if names(breakdown.borders)[1:2] == ("compute",))


def _read_runs(result: Result) -> _Read:
    breakdowns, conditions, inputs, networks, remarks = [], [], [], [], []
    for run in result.ok:
        if run.trace is None:
            remarks.append(f"{run.requested.run_id}: read from a log, which has no stamps")
            continue
        try:
            with open_trace(run.trace) as trace:
                breakdowns.append(step_breakdown(trace))
                conditions.append(reduce_telemetry(trace))
                inputs.append(reduce_input(trace))
                networks.append(reduce_network(trace))
        except TraceError as error:
            remarks.append(str(error))
    return _Read(
        breakdowns=tuple(breakdowns),
        conditions=tuple(run_conditions for run_conditions in conditions if run_conditions is not None),
        inputs=tuple(reading for reading in inputs if reading is not None),
        networks=tuple(networks),
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


def _together_with_wait(of: Sequence[str], straggler: Verdict, ours: Floats, theirs: Floats) -> Term | None:
    """`wait` and the terms in which the straggler is late as one; None where one of them is no term."""
    notable = NOTABLE_CAUSE * straggler.arrival_skew
    late = [term for term in of if straggler.cause.get(term, 0.0) > notable]
    if not late or "wait" not in of:
        return None
    at = [of.index(term) for term in (*late, "wait")]
    our_sum, their_sum = (each[:, at].sum(axis=1, keepdims=True) for each in (ours, theirs))
    loss = _difference(ours.sum(axis=1), theirs.sum(axis=1))
    return _terms(["+".join((*late, "wait"))], our_sum, their_sum, loss)[0]


def _scale(result: Result) -> float:
    """What the base's times are multiplied by: under strong scaling its share of the devices."""
    base = result.base
    return base.devices / result.run.devices if base and result.run.scaling == "strong" else 1.0


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


def _less(mean: Mean, other: Mean) -> Mean:
    """The difference of two means that are independent of one another."""
    margins = [each.high - each.value for each in (mean, other) if each.high is not None]
    return _with_margin(mean.value - other.value, math.hypot(*margins) if len(margins) == 2 else None)


def _with_margin(value: float, margin: float | None) -> Mean:
    return Mean(value=value) if margin is None else Mean(value=value, low=value - margin, high=value + margin)


def _repeats(
    ours_read: Sequence[StepBreakdown], base: Sequence[StepBreakdown], ours: Floats, theirs: Floats, loss: Mean | None
) -> Repeats | None:
    """The runs behind the loss; None without one."""
    if loss is None:
        return None
    for_half = None
    if min(len(ours_read), len(base)) > 1 and loss.high is not None:  # the pieces of single runs do not repeat them
        margin = (loss.high - loss.value) / 2
        for_half = stats.repeats_within(ours.sum(axis=1).tolist(), theirs.sum(axis=1).tolist(), margin)
    return Repeats(point=len(ours_read), baseline=len(base), for_half=for_half)


def _no_loss(result: Result) -> NoLoss:
    if result.base is None:
        return NoLoss.NO_BASE
    return NoLoss.IS_BASE if result.base.point == result.requested.point else NoLoss.BASE_NOT_OK


def _gradient_bytes(breakdowns: Sequence[StepBreakdown]) -> int:
    """The bytes that a step reduces; 0 where they are not known, where runs differ, or where ranks communicate for more
    than that."""
    if any(breakdown.arrivals is not None and breakdown.arrivals.meetings for breakdown in breakdowns):
        return 0
    volumes = {breakdown.gradient_bytes for breakdown in breakdowns}
    return (volumes.pop() or 0) if len(volumes) == 1 else 0


def _standalone(
    result: Result, volume: int, terms: Sequence[Term], collectives: Sequence[Result]
) -> tuple[Standalone | None, tuple[str, ...]]:
    """The time of the gradients' all-reduce standalone, if its volume and its exposed part are known."""
    exposed = _exposed(terms)
    if not volume or exposed is None:
        return None, ()
    return standalone_reduction(result, volume, exposed, collectives)


def _exposed(terms: Sequence[Term]) -> float | None:
    """Exposed communication in ms; None where it is no term of its own."""
    return next((term.mean.value for term in terms if term.name == "communication"), None)


def _run_ledger(breakdown: StepBreakdown) -> RunLedger:
    return RunLedger(
        run_id=breakdown.run_id, verdict=verdict(breakdown), step=breakdown.step_ns / 1e6,
        pauses=tuple(pause / 1e6 for pause in breakdown.pauses_ns),
        bound=None if breakdown.arrivals is None else breakdown.arrivals.bound / 1e6,
        incidents=incidents(breakdown), problems=breakdown.problems,
    )  # fmt: skip


def _together(breakdowns: Sequence[StepBreakdown], runs: Sequence[RunLedger]) -> tuple[Verdict, ...]:
    """The verdicts by the evidence of all runs; where that names nobody, the one that most of the runs have."""
    verdicts = stragglers(breakdowns)
    if verdicts and (verdicts[0].ranks or len(runs) == 1):
        return (_with_lowering(verdicts[0], breakdowns), *verdicts[1:])
    return (_with_lowering(_of_most(runs, verdicts[0] if verdicts else None), breakdowns),)


def _straggler_input(ledger: Ledger) -> InputReading | None:
    """The input of the straggler's ranks, where files are read and data is most of what makes them late."""
    verdict = ledger.verdict
    largest = max(verdict.cause.items(), key=lambda part: part[1], default=("", 0.0))[0]
    if verdict.kind not in (PERSISTENT, TRANSIENT) or largest != "data":
        return None
    traces = [run.trace for run in ledger.result.ok if run.trace is not None]
    return input_of_ranks(traces, verdict.ranks, ledger.step.value)


def _with_lowering(verdict: Verdict, breakdowns: Sequence[StepBreakdown]) -> Verdict:
    """The verdict, where it has a detection limit with what would lower it."""
    arrivals = [breakdown.arrivals for breakdown in breakdowns if breakdown.arrivals is not None]
    if verdict.limit is None or not arrivals:
        return verdict
    least_ns = MATERIAL * stats.mean([breakdown.step_ns for breakdown in breakdowns])
    lower = lowering(pooled(arrivals), limit_ns=verdict.limit * 1e6, least_ns=least_ns, bound_ns=verdict.bound * 1e6)
    return dataclasses.replace(verdict, lowering=lower)


def _of_most(runs: Sequence[RunLedger], together: Verdict | None) -> Verdict:
    """The verdict that most of the runs have: of the same kind on the same ranks, else on the same node.

    Where it names nobody, that of all runs `together` stands for it; also where half of the runs at most name somebody,
    who costs less in a mean step of all of them than the limit that it states.
    """
    verdicts = [run.verdict for run in runs]
    by_rank = [(each.kind, each.because, each.ranks) for each in verdicts]
    by_node = [(each.kind, each.because, each.node or each.ranks) for each in verdicts]
    keys: Sequence[tuple[object, ...]]
    for keys in (by_rank, by_node):
        commonest, count = Counter(keys).most_common(1)[0]
        if 2 * count > len(runs):
            same = [each if key == commonest else None for each, key in zip(verdicts, keys, strict=True)]
            averaged = _averaged(same)
            return together if together and not averaged.ranks else averaged
    naming = [each for each in verdicts if each.ranks]
    costs = sum(each.costs for each in naming) / len(runs)
    if together and together.limit is not None and 2 * len(naming) <= len(runs) and costs < together.limit:
        return together
    return Verdict(kind=CANNOT_TELL, because=Because.RUNS_DISAGREE, bound=max(run.bound or 0.0 for run in runs))


def _averaged(by_run: Sequence[Verdict | None]) -> Verdict:
    """The first of the runs' verdicts that count, with their means; the steps of a transient one run by run."""
    verdicts = [each for each in by_run if each is not None]
    first = verdicts[0]
    averaged = ("arrival_skew", "share", "costs", "bound")
    means: dict[str, Any] = {name: stats.mean([getattr(each, name) for each in verdicts]) for name in averaged}
    chances = [each.chance for each in verdicts if each.chance is not None]
    return dataclasses.replace(
        first,
        steps=first.steps if all(each.steps == first.steps for each in verdicts) else (),
        run_steps=tuple(each.steps if each else () for each in by_run) if first.steps else (),
        in_runs=len(verdicts),
        of_runs=len(by_run),
        shape=rhythm([each.steps for each in verdicts]) if first.steps else first.shape,
        cause={
            name: stats.mean([each.cause[name] for each in verdicts])
            for name in first.cause
            if all(name in each.cause for each in verdicts)
        },
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
