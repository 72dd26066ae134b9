"""From traces to the ledger of each point, stage by stage, each a function of what the ones before it return.

a run's trace              ─▶ its terms, arrivals, telemetry, input, network  PointRuns      (_read_runs)
the runs of several points ─▶ what one point is judged by                     PointEvidence  (_Points)
runs, and those of a base  ─▶ terms with intervals and losses                 PointTerms     (terms.py)
the arrivals of the runs   ─▶ who is waited for                               PointVerdicts  (verdicts.py)
all of these               ─▶ findings                                        Ledger         (_ledger, explain.py)
Ledger                     ─▶ sentences                                       str            (parse.say)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from parse.ledger.background_writes import writes_of
from parse.ledger.breakdown import StepBreakdown, gradient_bytes, step_breakdown
from parse.ledger.explain import explain
from parse.ledger.first_steps import left_out_of_point
from parse.ledger.host_bound import host_bound_of_point, reduce_host_bound
from parse.ledger.input import input_of_point, reduce_input
from parse.ledger.network_reading import NetworkReading, network_of_point, reduce_network
from parse.ledger.pauses import speed_with_pauses
from parse.ledger.readings import PointEvidence, PointRuns, spans_of
from parse.ledger.standalone import beside_benchmarks, read_collectives, recorded_collectives, standalone_reduction
from parse.ledger.symptoms import contention, explained, garbage_remarks, shares_cores, stragglers_part
from parse.ledger.telemetry import compare_conditions, reduce_telemetry
from parse.ledger.terms import PointTerms, compute_split, fixed_compute, mean_compute, point_terms, together_with_wait
from parse.ledger.types import Ledger, NoLoss, StragglerAtBase
from parse.ledger.verdict import Straggler
from parse.ledger.verdicts import PointVerdicts, point_verdicts
from parse.logs.benchmarks import NO_BENCHMARKS, Benchmarks
from parse.runs.processes import each_in_processes, processes_for
from parse.runs.result import Result, by_setting
from parse.stats import Mean

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
                made.append(replace(ledger, result=result))
            else:
                lines.append(ledger)
    if lines and faults is None:
        raise RuntimeError("; ".join(lines))
    if faults is not None:
        faults += lines
    return tuple(made)


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
        for name in ("breakdowns", "conditions", "inputs", "networks", "hosts", "spans", "step_samples", "writes")
    }
    called = next((each.called for each in read if each.called), "")
    shares_batch = any(each.shares_batch for each in read)
    return PointRuns(**every, remarks=tuple(remarks), faults=tuple(faults), called=called, shares_batch=shares_batch)


def _read_run(trace: Trace) -> PointRuns:
    """The same of a single run."""
    conditions, reading, hosts = reduce_telemetry(trace), reduce_input(trace), reduce_host_bound(trace)
    writes = writes_of(trace)
    samples = np.concatenate([trace.samples[:, first:stop] for first, stop in trace.blocks], axis=1)
    return PointRuns(
        breakdowns=(step_breakdown(trace),), conditions=() if conditions is None else (conditions,),
        inputs=() if reading is None else (reading,), networks=(reduce_network(trace),),
        hosts=() if hosts is None else (hosts,), writes=() if writes is None else (writes,), spans=(spans_of(trace),),
        called=recorded_collectives(trace), step_samples=(float(samples.sum(axis=0).mean()),),
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
        collectives, no_collectives = read_collectives(result, self._collectives)
        several = base if base is not None and base.run.ranks != 1 else None
        return PointEvidence(
            result=result, runs=self.runs(result), verdicts=self._judged(result),
            no_sync=self._no_sync(result) if base else (),
            base=self.runs(base) if base else PointRuns(), base_ranks=base.run.ranks if base else None,
            base_verdicts=self._judged(several) if several else None,
            base_no_sync=self._no_sync(several) if several else (),
            compute_by_devices=tuple(self._compute_by_devices(result)),
            collectives=collectives, no_collectives=no_collectives, benchmarks=self._benchmarks,
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
        requested = replace(result.requested, run=replace(result.run, reduction="off"))
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
    standalone, remarks = standalone_reduction(evidence.collectives, volume, terms.exposed)
    if standalone is None and volume and terms.exposed is not None:
        remarks = (*evidence.no_collectives, *remarks)
    beside, of_tests = beside_benchmarks(result.devices, volume, standalone, evidence.benchmarks)
    split = compute_split(terms, evidence.no_sync, evidence.base_no_sync, evidence.base_ranks) if terms.loss else None
    fixed = fixed_compute(evidence.compute_by_devices, terms.scale) if split else None
    at_base = _straggler_at_base(evidence, terms)
    telemetry = compare_conditions(runs.conditions, base.conditions, terms.scale)
    ledger = Ledger(
        result=result, scale=terms.scale, terms=terms.terms, step=terms.step, loss=terms.loss,
        repeats=terms.repeats, merged=terms.merged,
        ranks=terms.ranks, nodes=terms.nodes, roles=terms.roles, dimensions=terms.dimensions,
        no_loss=None if terms.loss else _no_loss(result),
        median_step=stats.mean([breakdown.median_step_ns / 1e6 for breakdown in runs.breakdowns]),
        skew=stats.mean([breakdown.skew_ns / 1e6 for breakdown in runs.breakdowns]),
        verdict=verdicts.verdict, runs=verdicts.runs, straggler_at_base=at_base,
        split=None if split is None else replace(split, fixed=fixed), telemetry=telemetry,
        contention=tuple(contention(base.conditions)), shares_cores=shares_cores(result, runs.conditions),
        input=input_of_point(runs.inputs, terms.step.value),
        host_bound=host_bound_of_point(runs.hosts), standalone=standalone, nccl_tests=beside,
        network=network_of_point(
            result, runs.networks, evidence.other_networks, terms.step.value, terms.exposed, volume,
            evidence.collectives,
        ),
        speed_with_pauses=_speed_with_pauses(result, runs.breakdowns),
        left_out=left_out_of_point(runs.breakdowns),
        remarks=(
            *runs.remarks, *_unmatched(runs), *remarks, *of_tests, *filter(None, (runs.called,)), *_looked_at(verdicts),
        ),
    )  # fmt: skip
    return explain(replace(ledger, split=explained(ledger)), evidence)


def _looked_at(verdicts: PointVerdicts) -> tuple[str, ...]:
    """That of so many cells some are looked at."""
    named = (each for each in (verdicts.verdict, *verdicts.further) if isinstance(each, Straggler))
    if all(cells.are_all for each in named for cells in each.cells):
        return ()
    return ("who is waited for is judged by pieces spread over the window: it has too many steps and ranks for all",)


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
    if not isinstance(of_base, Straggler):
        return StragglerAtBase()
    together = None
    if isinstance(of_point, Straggler) and of_base.costs > 0 and of_point.costs > 0:
        together = together_with_wait(terms, of_point)
    return StragglerAtBase(costs=terms.scale * of_base.costs, compute=terms.scale * compute, together=together)


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
