"""From traces to the ledger of each point, stage by stage, each a function of what the ones before it return.

a run's trace              ─▶ its terms, arrivals, telemetry, input, network  PointRuns      (_read_runs)
the runs of several points ─▶ what one point is judged by                     PointEvidence  (_Points)
runs, and those of a base  ─▶ terms with intervals and losses                 PointTerms     (terms.py)
the arrivals of the runs   ─▶ who is waited for                               PointVerdicts  (verdicts.py)
all of these               ─▶ findings                                        Ledger         (_ledger, _explained)
Ledger                     ─▶ sentences                                       str            (sentence.py)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from hpc.model.spec import COLLECTIVES
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import open_trace
from hpc.system.text import first_of
from parse import stats
from parse.faults import fault
from parse.graph.findings import GraphFindings
from parse.ledger.breakdown import StepBreakdown, gradient_bytes, step_breakdown
from parse.ledger.first_steps import first_steps_of_point, left_out_of_point
from parse.ledger.garbage import garbage_remarks
from parse.ledger.graph_what_if import with_graph_findings
from parse.ledger.host_bound import HostReading, host_bound_of_point, reduce_host_bound
from parse.ledger.input import InputReading, input_of_point, input_of_ranks, reduce_input
from parse.ledger.loaders import with_loaders
from parse.ledger.network_reading import NetworkReading, network_of_point, reduce_network
from parse.ledger.paces import Spans, paces_of, spans_of
from parse.ledger.pauses import of_point, speed_with_pauses
from parse.ledger.standalone import beside_benchmarks, recorded_collectives, standalone_reduction
from parse.ledger.symptoms import DID_NOT_RUN, contention, core_wait, explained, shares_cores, stragglers_part, symptoms
from parse.ledger.telemetry import Conditions, compare_conditions, reduce_telemetry
from parse.ledger.terms import PointTerms, compute_split, fixed_compute, mean_compute, point_terms, together_with_wait
from parse.ledger.types import PERSISTENT, TRANSIENT, Ledger, Mean, NoLoss, Paces, StragglerAtBase, Symptom, Verdict
from parse.ledger.verdicts import PointVerdicts, point_verdicts
from parse.ledger.what_if import with_costs
from parse.logs.benchmarks import NO_BENCHMARKS, Benchmarks
from parse.runs.processes import each_in_processes, processes_for
from parse.runs.result import Result, by_setting
from parse.term_kinds import DATA

if TYPE_CHECKING:
    from parse.runs.load_logs import Progress


def ledgers(
    results: Sequence[Result], diagnostics: Sequence[Result] = (), progress: Progress[Result] | None = None,
    benchmarks: Benchmarks = NO_BENCHMARKS, faults: list[str] | None = None,
) -> tuple[Ledger, ...]:  # fmt: skip
    """The ledger of every point that has an ok run with a trace. `diagnostics` are runs that explain others.

    A fault of this program loses a run or a point and adds a line to `faults`; raises RuntimeError without that.
    """
    by_point = {result.requested.point: result for result in (*results, *diagnostics)}
    processes = processes_for(run.trace for result in by_point.values() for run in result.for_ledger if run.trace)
    read = each_in_processes(_read_runs, [*by_point.values()], processes)
    shown = progress([*by_point.values()]) if progress else by_point.values()
    runs = {result.requested.point: its_runs for result, its_runs in zip(shown, read, strict=True)}
    points = _Points(by_point, benchmarks, runs)
    chosen = [result for result in results if points.runs(result).breakdowns]
    judged = iter(each_in_processes(points.ledger, chosen, processes))
    made: list[Ledger] = []
    lines = [line for result in by_point.values() for line in points.runs(result).faults]
    for result in results:
        if any(result is each for each in chosen):
            ledger = next(judged)
            if isinstance(ledger, Ledger):
                made.append(dataclasses.replace(ledger, result=result))
            else:
                lines.append(ledger)
    if lines and faults is None:
        raise RuntimeError("; ".join(lines))
    if faults is not None:
        faults += lines
    return tuple(made)


@dataclass(frozen=True, kw_only=True)
class PointRuns:
    """The ok runs of a point, each reduced from its trace; a remark for each without a step breakdown, and the
    faults of this program. `called` is what
    a step calls by torch's own record, empty without one; `spans` has of each run what its hosts took beside their
    devices, `step_samples` the samples of all ranks in a measured step; `shares_batch`: some ranks of a run have
    none of their own."""

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


@dataclass(frozen=True, kw_only=True)
class PointEvidence:
    """What a point is judged by: its runs and its base's, the runs of both with reduction switched off, and what other
    points measured of the same ranks and network.

    `base` has no runs where there is none, or where the point is its own; `base_verdicts` is None where it has no runs
    or one rank. `compute_by_devices` is mean compute at each size of its setting, under strong scaling alone.
    """

    result: Result
    runs: PointRuns
    verdicts: PointVerdicts
    no_sync: tuple[StepBreakdown, ...] = ()
    base: PointRuns
    base_ranks: int | None = None
    base_verdicts: PointVerdicts | None = None
    base_no_sync: tuple[StepBreakdown, ...] = ()
    compute_by_devices: tuple[tuple[int, Mean], ...] = ()
    collectives: tuple[Result, ...]
    benchmarks: Benchmarks
    other_networks: tuple[NetworkReading, ...]


def _read_runs(result: Result) -> PointRuns:
    read, remarks, faults = [], [], []
    for run in result.for_ledger:
        if run.trace is None:
            remarks.append(f"{run.run_id}: read from a log, which has no stamps")
            continue
        try:
            with open_trace(run.trace) as trace:
                read.append(_read_run(trace))
                remarks += garbage_remarks(trace, read[-1].breakdowns[0].step_ns / 1e6)
        except TraceError as error:
            remarks.append(str(error))
        except Exception as error:  # noqa: BLE001 - the line says which
            faults.append(fault(error, run.trace))
    every = {
        name: tuple(chain.from_iterable(getattr(each, name) for each in read))
        for name in ("breakdowns", "conditions", "inputs", "networks", "hosts", "spans", "step_samples")
    }
    called = next((each.called for each in read if each.called), "")
    shares_batch = any(each.shares_batch for each in read)
    return PointRuns(**every, remarks=tuple(remarks), faults=tuple(faults), called=called, shares_batch=shares_batch)


def _read_run(trace: Trace) -> PointRuns:
    """The same of a single run."""
    conditions, reading, hosts = reduce_telemetry(trace), reduce_input(trace), reduce_host_bound(trace)
    samples = np.concatenate([trace.samples[:, first:stop] for first, stop in trace.blocks], axis=1)
    return PointRuns(
        breakdowns=(step_breakdown(trace),), conditions=() if conditions is None else (conditions,),
        inputs=() if reading is None else (reading,), networks=(reduce_network(trace),),
        hosts=() if hosts is None else (hosts,), spans=(spans_of(trace),), called=recorded_collectives(trace),
        step_samples=(float(samples.sum(axis=0).mean()),),
        shares_batch=bool(samples.any()) and not samples.any(axis=1).all(),
    )  # fmt: skip


class _Points:
    """The points, each read and judged once: where the evidence on one of them is taken from."""

    def __init__(self, by_point: Mapping[str, Result], benchmarks: Benchmarks, runs: Mapping[str, PointRuns]) -> None:
        self._results, self._benchmarks = by_point, benchmarks
        self._collectives = tuple(result for result in by_point.values() if result.run.diagnostic == COLLECTIVES)
        self._runs = runs
        self._verdicts: dict[str, PointVerdicts] = {}

    def runs(self, result: Result) -> PointRuns:
        return self._runs[result.requested.point]

    def ledger(self, result: Result) -> Ledger | str:
        """That of a point that has step breakdowns; where there is a fault, the line on its runs."""
        try:
            return _ledger(self.evidence(result))
        except Exception as error:  # noqa: BLE001 - the line says which
            return fault(error, f"the ledger of {first_of([str(run.trace) for run in result.for_ledger], 2)}")

    def evidence(self, result: Result) -> PointEvidence:
        """That on a point that has step breakdowns."""
        base = self._base(result)
        several = base if base is not None and base.run.ranks != 1 else None
        return PointEvidence(
            result=result, runs=self.runs(result), verdicts=self._judged(result),
            no_sync=self._no_sync(result) if base else (),
            base=self.runs(base) if base else PointRuns(), base_ranks=base.run.ranks if base else None,
            base_verdicts=self._judged(several) if several else None,
            base_no_sync=self._no_sync(several) if several else (),
            compute_by_devices=tuple(self._compute_by_devices(result)),
            collectives=self._collectives, benchmarks=self._benchmarks,
            other_networks=tuple(network for point, network in self._networks if point != result.requested.point),
        )  # fmt: skip

    def _base(self, result: Result) -> Result | None:
        """The point that it is measured against; None where that is itself, is not here or has no step breakdown."""
        if result.base is None or result.base.point == result.requested.point:
            return None
        base = self._results.get(result.base.point)
        return base if base and base.ok and result.ok and self.runs(base).breakdowns else None

    def _judged(self, result: Result) -> PointVerdicts:
        point = result.requested.point
        if point not in self._verdicts:
            self._verdicts[point] = point_verdicts(self.runs(result).breakdowns)
        return self._verdicts[point]

    def _no_sync(self, result: Result) -> tuple[StepBreakdown, ...]:
        """The runs of the same ranks and work with reduction switched off."""
        requested = dataclasses.replace(result.requested, run=dataclasses.replace(result.run, reduction="off"))
        no_sync = self._results.get(requested.point)
        return self.runs(no_sync).breakdowns if no_sync else ()

    def _compute_by_devices(self, result: Result) -> Iterator[tuple[int, Mean]]:
        if result.run.scaling == "strong":
            for each in self._by_setting[result.requested.setting]:
                if (mean := mean_compute(self.runs(each).breakdowns)) is not None:
                    yield each.devices, mean

    @cached_property
    def _by_setting(self) -> dict[str, list[Result]]:
        return by_setting(result for result in self._results.values() if not result.run.diagnostic)

    @cached_property
    def _networks(self) -> list[tuple[str, NetworkReading]]:
        """By point: the networks of runs on several nodes, of those whose segments were counted."""
        several = [each for each in self._results.values() if (each.run.nodes or 1) > 1 and not each.run.diagnostic]
        readings = ((each.requested.point, reading) for each in several for reading in self.runs(each).networks)
        return [(point, reading) for point, reading in readings if reading.segments is not None]


def _ledger(evidence: PointEvidence) -> Ledger:
    """The ledger of a point that has step breakdowns."""
    result, runs, base, verdicts = evidence.result, evidence.runs, evidence.base, evidence.verdicts
    terms = point_terms(runs.breakdowns, base.breakdowns, _scale(result, runs, base))
    volume = gradient_bytes(runs.breakdowns)
    standalone, remarks = standalone_reduction(result, volume, terms.exposed, evidence.collectives)
    beside, of_tests = beside_benchmarks(result.devices, volume, standalone, evidence.benchmarks)
    split = compute_split(terms, evidence.no_sync, evidence.base_no_sync, evidence.base_ranks) if terms.loss else None
    ledger = Ledger(
        result=result, scale=terms.scale, terms=terms.terms, step=terms.step, loss=terms.loss,
        repeats=terms.repeats, merged=terms.merged,
        ranks=terms.ranks, nodes=terms.nodes, dimensions=terms.dimensions,
        no_loss=None if terms.loss else _no_loss(result),
        median_step=stats.mean([breakdown.median_step_ns / 1e6 for breakdown in runs.breakdowns]),
        skew=stats.mean([breakdown.skew_ns / 1e6 for breakdown in runs.breakdowns]),
        verdict=verdicts.verdict, further=verdicts.further, runs=verdicts.runs,
        straggler_at_base=_straggler_at_base(evidence, terms), split=split,
        fixed_compute=fixed_compute(evidence.compute_by_devices, terms.scale) if split else None,
        telemetry=compare_conditions(runs.conditions, base.conditions, terms.scale),
        core_wait=core_wait(runs.conditions, base.conditions, terms.scale),
        contention=tuple(contention(base.conditions)), shares_cores=shares_cores(result, runs.conditions),
        input=input_of_point(runs.inputs, terms.step.value),
        host_bound=host_bound_of_point(runs.hosts), standalone=standalone, nccl_tests=beside,
        network=network_of_point(
            result, runs.networks, evidence.other_networks, terms.step.value, terms.exposed, volume,
            evidence.collectives,
        ),
        graph=GraphFindings() if terms.dimensions else None,
        rank_pauses=of_point([breakdown.paused for breakdown in runs.breakdowns]),
        speed_with_pauses=_speed_with_pauses(result, runs.breakdowns),
        first_steps=first_steps_of_point(runs.breakdowns), left_out=left_out_of_point(runs.breakdowns),
        remarks=(*runs.remarks, *_unmatched(runs), *remarks, *of_tests, *filter(None, (runs.called,))),
    )  # fmt: skip
    return _explained(ledger, runs)


def _explained(ledger: Ledger, runs: PointRuns) -> Ledger:
    """The ledger with what explains its loss and its straggler; reads the traces again where they show it."""
    paces, *further_paces = _paces(ledger, runs.spans)
    ledger = dataclasses.replace(
        ledger, split=explained(ledger), paces=paces, further_paces=tuple(further_paces),
    )  # fmt: skip
    try:
        ledger = _with_symptoms(ledger, runs)
        if late := _late_results(ledger):
            by_own_work = _by_own_work(ledger, runs, late)
            ledger = dataclasses.replace(_with_symptoms(by_own_work, runs), late_results=late)
        return ledger
    except TraceError as error:  # it has changed since, or has numbers that only this goes into
        return dataclasses.replace(ledger, remarks=(*ledger.remarks, f"the straggler is not explained: {error}"))


def _with_symptoms(ledger: Ledger, runs: PointRuns) -> Ledger:
    """The ledger with what its stragglers cost, and what explains them."""
    ledger = with_loaders(with_costs(ledger))
    if ledger.graph is not None:
        ledger = with_graph_findings(ledger)
    return dataclasses.replace(
        ledger,
        symptoms=symptoms(ledger) if runs.conditions else (),
        further_symptoms=_further_symptoms(ledger) if runs.conditions else (),
        straggler_input=_straggler_input(ledger) if runs.inputs else None,
    )  # fmt: skip


def _late_results(ledger: Ledger) -> tuple[Verdict, ...]:
    """The stragglers of several nodes that leave the reduction late, and whose counters do not say that they did not
    run: the network's."""
    if ledger.network is None or ledger.graph is not None:
        return ()
    named = zip((ledger.verdict, *ledger.further), (ledger.symptoms, *ledger.further_symptoms), strict=False)
    return tuple(
        verdict
        for verdict, shown in named
        if verdict.ranks and verdict.leaves_late and all(each.quantity not in DID_NOT_RUN for each in shown)
    )


def _by_own_work(ledger: Ledger, runs: PointRuns, late: Sequence[Verdict]) -> Ledger:
    """The ledger with verdicts by what ranks do between leaving a meeting and the next, but those that did not run."""
    others = [each for each in (ledger.verdict, *ledger.further) if each.leaves_late and each not in late]
    but = [rank for each in others for rank in each.ranks]
    verdicts = point_verdicts([
        dataclasses.replace(run, arrivals=run.arrivals and run.arrivals.by_own_work(but)) for run in runs.breakdowns
    ])  # fmt: skip
    changed = dataclasses.replace(
        ledger, verdict=verdicts.verdict, further=verdicts.further, runs=verdicts.runs, without_straggler=None
    )
    paces, *further_paces = _paces(changed, runs.spans)
    return dataclasses.replace(changed, paces=paces, further_paces=tuple(further_paces))


def _paces(ledger: Ledger, runs: Sequence[tuple[Spans, ...]]) -> list[Paces | None]:
    """Of each straggler whether its host or its device is slow."""
    verdicts = (ledger.verdict, *ledger.further)
    late = [rank for each in verdicts for rank in each.ranks]
    return [paces_of(each, runs, late) for each in verdicts]


def _further_symptoms(ledger: Ledger) -> tuple[tuple[Symptom, ...], ...]:
    """Those of each further straggler, compared with the ranks that are none."""
    by_straggler = []
    for at, each in enumerate(ledger.further):
        others = (ledger.verdict, *ledger.further[:at], *ledger.further[at + 1 :])
        by_straggler.append(symptoms(dataclasses.replace(ledger, verdict=each, further=others)))
    return tuple(by_straggler)


def _unmatched(runs: PointRuns) -> tuple[str, ...]:
    return tuple(
        f"{breakdown.run_id}: {', '.join(breakdown.unmatched)} steps not matched between ranks: who is late there is "
        "not known"
        for breakdown in runs.breakdowns
        if breakdown.unmatched
    )


def _speed_with_pauses(result: Result, breakdowns: Sequence[StepBreakdown]) -> float | None:
    speeds = {run.run_id: run.measured.throughput for run in result.ok if run.measured is not None}
    if not speeds:
        return None
    return speed_with_pauses(
        [breakdown.paused for breakdown in breakdowns], [speeds[breakdown.run_id] for breakdown in breakdowns]
    )


def _straggler_at_base(evidence: PointEvidence, terms: PointTerms) -> StragglerAtBase:
    if evidence.base_verdicts is None:
        return StragglerAtBase()
    of_point, of_base = evidence.verdicts.verdict, evidence.base_verdicts.verdict
    compute = stragglers_part(of_base, terms.names, terms.ranks_of(evidence.base.breakdowns))
    both = of_base.costs > 0 and of_point.costs > 0
    return StragglerAtBase(
        costs=terms.scale * of_base.costs, compute=terms.scale * compute,
        together=together_with_wait(terms, of_point) if both else None,
    )  # fmt: skip


def _straggler_input(ledger: Ledger) -> InputReading | None:
    """The input of the straggler's ranks, where files are read and data is most of what makes them late."""
    verdict = ledger.verdict
    largest = max(verdict.cause.items(), key=lambda part: part[1], default=("", 0.0))[0]
    if verdict.kind not in (PERSISTENT, TRANSIENT) or largest != DATA.cause:
        return None
    traces = [run.trace for run in ledger.result.for_ledger if run.trace is not None]
    return input_of_ranks(traces, verdict.ranks, ledger.step.value)


def _scale(result: Result, runs: PointRuns, base: PointRuns) -> float:
    """What the base's times are multiplied by: the work of a device in a step, against that at the base.

    Under strong scaling that is the base's share of the devices. Where ranks share a batch it is by the samples.
    """
    if result.base is None:
        return 1.0
    by_devices = result.base.devices / result.devices
    if result.run.scaling == "strong":
        return by_devices
    if not (runs.shares_batch or base.shares_batch) or not (any(runs.step_samples) and any(base.step_samples)):
        return 1.0
    return float(np.mean(runs.step_samples) / np.mean(base.step_samples) * by_devices)


def _no_loss(result: Result) -> NoLoss:
    if result.base is None:
        return NoLoss.NO_BASE
    if result.base.point == result.requested.point:
        return NoLoss.IS_BASE
    return NoLoss.BASE_NOT_OK if result.ok else NoLoss.NO_SAMPLES
