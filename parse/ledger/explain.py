"""From what was measured to what makes a step longer: one function for each kind of finding, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hpc.model.trace import TraceError
from parse.ledger.background_writes import background_writes_of
from parse.ledger.causes import Cause
from parse.ledger.finding import Finding, LateResult, LostTerm, Paces, Symptom, UnevenWork
from parse.ledger.first_steps import first_steps_of_point
from parse.ledger.graph_what_if import pipeline_findings
from parse.ledger.host_bound import slow_hosts
from parse.ledger.input import InputReading, input_of_ranks
from parse.ledger.loaders import with_script
from parse.ledger.pauses import of_point
from parse.ledger.readings import PointEvidence, paces_of
from parse.ledger.symptoms import DID_NOT_RUN, core_lack, symptoms
from parse.ledger.types import Ledger
from parse.ledger.verdict import PERSISTENT, TRANSIENT, Nobody, SharedDelay, Straggler
from parse.ledger.verdicts import point_verdicts
from parse.ledger.what_if import priced
from parse.rules import SMALL, WORTH_NAMING
from parse.term_kinds import COMMUNICATION, COMPUTE, DATA, WAIT

# Each function finds what it can in a ledger that has the findings of those before it.


def cores(ledger: Ledger, evidence: PointEvidence) -> Iterator[Finding]:
    """Ranks that lack cores."""
    lack = core_lack(ledger.result, evidence.runs.conditions, evidence.base.conditions, ledger.scale)
    if lack is not None:
        yield Finding(what=lack, costs=lack.ms - (lack.base_ms or 0.0))


def stragglers(ledger: Ledger, evidence: PointEvidence) -> Iterator[Finding]:
    """Ranks that others wait for, with what explains their delay, or whom results reach late, which a slow link
    explains where one is known; those that are faster, and what all share."""
    verdicts = (evidence.verdicts.verdict, *evidence.verdicts.further)
    named = [each for each in verdicts if isinstance(each, Straggler)]
    late = {rank for each in named for rank in each.ranks}
    if ledger.network is not None and ledger.network.findings:
        yield from (Finding(what=LateResult(straggler=each)) for each in evidence.late_results)
    else:
        named = sorted((*evidence.late_results, *named), key=lambda each: -each.costs)
    for straggler, without in priced(ledger, named):
        if any(straggler.cells is each.cells for each in evidence.late_results):
            yield Finding(what=LateResult(straggler=straggler), costs=straggler.costs, without=without)
            continue
        reasons = tuple(_reasons(ledger, straggler, late, evidence))
        yield Finding(what=with_script(ledger, straggler), costs=straggler.costs, evidence=reasons, without=without)
    for beside in evidence.verdicts.beside:
        yield Finding(what=beside, costs=beside.costs if isinstance(beside, SharedDelay) else None)


def _reasons(
    ledger: Ledger, verdict: Straggler, late: set[int], evidence: PointEvidence
) -> Iterator[Symptom | Paces | InputReading]:
    """What shows in its telemetry, then its input, or whether its host or its device is slow."""
    reading = _input_of(ledger, verdict) if evidence.runs.inputs else None
    shown = symptoms(ledger, verdict, late) if evidence.runs.conditions else ()
    # Who sleeps for its batches is explained by its input.
    yield from shown if reading is None else (each for each in shown if each.quantity != Cause.SLEEPS)
    pace = paces_of(verdict, evidence.runs.spans, [*late]) if reading is None else None
    yield from (each for each in (reading, pace) if each is not None)


def _input_of(ledger: Ledger, verdict: Straggler) -> InputReading | None:
    """The input of the straggler's ranks, where files are read and data is most of what makes them late."""
    largest = max(verdict.cause.items(), key=lambda part: part[1], default=("", 0.0))[0]
    if verdict.kind not in (PERSISTENT, TRANSIENT) or largest != DATA.cause:
        return None
    traces = [run.trace for run in ledger.result.for_ledger if run.trace is not None]
    return input_of_ranks(traces, verdict.ranks, ledger.step.value)


def pauses(ledger: Ledger, evidence: PointEvidence) -> Iterator[Finding]:
    """Pauses of some ranks that take WORTH_NAMING of the training, or of all that take SMALL of it."""
    for each in of_point([breakdown.paused for breakdown in evidence.runs.breakdowns]):
        if each.share >= (WORTH_NAMING if each.ranks else SMALL):
            yield Finding(what=each, costs=each.costs)


def first_steps(ledger: Ledger, evidence: PointEvidence) -> Iterator[Finding]:
    """Who is late in the first steps behind pauses; what all take longer there from WORTH_NAMING of a step on."""
    for each in first_steps_of_point(evidence.runs.breakdowns):
        if each.ranks or each.costs >= WORTH_NAMING * ledger.step.value:
            yield Finding(what=each, costs=each.costs)


def background_writes(ledger: Ledger, evidence: PointEvidence) -> Iterator[Finding]:
    """What checkpoints that are written while a script trains on take from its steps."""
    its = background_writes_of(evidence.runs.writes)
    if its is not None:
        costs = its.longer.value * its.steps / its.of_steps
        if costs >= WORTH_NAMING * ledger.step.value:
            yield Finding(what=its, costs=costs)


def late_input(ledger: Ledger, _: PointEvidence) -> Iterator[Finding]:
    """Input that is late for all; where it is for a straggler, that is evidence of the straggler."""
    reading = ledger.input
    of_straggler = any(isinstance(each, InputReading) for finding in ledger.findings for each in finding.evidence)
    if reading is not None and reading.cause is not None and not of_straggler:
        yield Finding(what=reading, costs=reading.late)


def groups(ledger: Ledger, _: PointEvidence) -> Iterator[Finding]:
    """Uneven stages and experts, bubbles and slow links of ranks that meet in several groups."""
    if ledger.dimensions:
        yield from pipeline_findings(ledger)


def network(ledger: Ledger, _: PointEvidence) -> Iterator[Finding]:
    """What the network does to all ranks, or one of its links."""
    for each in ledger.network.findings if ledger.network else ():
        yield Finding(what=each, costs=each.explains)


def hosts(ledger: Ledger, _: PointEvidence) -> Iterator[Finding]:
    """Devices that wait for their hosts."""
    slow = slow_hosts(ledger.host_bound, ledger.step.value)
    if slow is not None:
        yield Finding(what=slow, costs=slow.pace.behind if slow.is_proven else None)


def lost_terms(ledger: Ledger, _: PointEvidence) -> Iterator[Finding]:
    """What is known of the terms that lose against the base, where the loss is no scatter."""
    if ledger.loss is None or ledger.loss.value <= 0 or ledger.loses_little or not ledger.is_resolved:
        return
    split, least = ledger.split, SMALL * ledger.loss.value
    if split is not None and split.fixed is not None and split.fixed.of_loss >= least:
        yield Finding(what=split.fixed, costs=split.fixed.of_loss)
    lost = {term.name: term.loss.value for term in ledger.causes if term.loss is not None}
    in_compute = lost.get(COMPUTE.name, 0.0)
    rest = 0.0 if split is None else in_compute - split.straggler - split.fixed_loss
    if split is not None and (rest >= max(least, SMALL * in_compute) or split.contention is not None):
        yield Finding(what=split, costs=max(0.0, rest))
    if max(lost, key=lambda name: lost[name], default="") == WAIT.name and isinstance(ledger.verdict, Nobody):
        yield Finding(what=LostTerm(name=WAIT.name, scatter=ledger.verdict.scatter), costs=lost[WAIT.name])
    if lost.get(COMMUNICATION.name, 0.0) >= least and ledger.standalone is not None:
        known = LostTerm(name=COMMUNICATION.name, standalone=ledger.standalone.standalone)
        yield Finding(what=known, costs=lost[COMMUNICATION.name])


def uneven_work(ledger: Ledger, evidence: PointEvidence) -> Iterator[Finding]:
    """Ranks that are late in the same steps of each run, where ranks wait notably."""
    wait = next((term.mean.value for term in ledger.terms if term.name == WAIT.name), 0.0)
    repeats = evidence.verdicts.repeats
    if repeats is not None and wait >= SMALL * ledger.step.value:
        yield Finding(what=UnevenWork(correlation=repeats, stragglers=ledger.verdict.ranks))


EXPLAIN: Sequence[Callable[[Ledger, PointEvidence], Iterator[Finding]]] = (
    cores, stragglers, pauses, first_steps, background_writes, late_input, groups, network, hosts, lost_terms,
    uneven_work,
)  # fmt: skip


def _by_own_work(ledger: Ledger, evidence: PointEvidence) -> tuple[Ledger, PointEvidence]:
    """On several nodes, where ranks leave a meeting late and their counters do not say that they did not run: that is
    the network's, and who is waited for is judged by what ranks do between leaving a meeting and the next."""
    verdicts = (evidence.verdicts.verdict, *evidence.verdicts.further)
    named = [each for each in verdicts if isinstance(each, Straggler)]
    every = {rank for each in named for rank in each.ranks}
    late, did_not_run = list[Straggler](), list[int]()
    for each in named if ledger.network is not None and not ledger.dimensions else ():
        if each.leaves_late:
            shown = symptoms(ledger, each, every) if evidence.runs.conditions else ()
            if any(symptom.quantity in DID_NOT_RUN for symptom in shown):
                did_not_run += each.ranks
            else:
                late.append(each)
    if not late:
        return ledger, evidence
    judged = point_verdicts([
        replace(run, arrivals=run.arrivals and run.arrivals.by_own_work(did_not_run))
        for run in evidence.runs.breakdowns
    ])  # fmt: skip
    ledger = replace(ledger, verdict=judged.verdict, runs=judged.runs)
    return ledger, replace(evidence, verdicts=judged, late_results=tuple(late))


def explain(ledger: Ledger, evidence: PointEvidence) -> Ledger:
    """The ledger with its findings, what costs most first, those without a known cost last. Reads the traces again
    where they show it."""
    try:
        ledger, evidence = _by_own_work(ledger, evidence)
    except TraceError as error:
        ledger = replace(ledger, remarks=(*ledger.remarks, f"who leaves meetings late is not explained: {error}"))
    for function in EXPLAIN:
        try:
            findings = tuple(function(ledger, evidence))
        except TraceError as error:  # it has changed since, or has numbers that only this goes into
            ledger = replace(ledger, remarks=(*ledger.remarks, f"not all is explained: {error}"))
            continue
        ledger = replace(ledger, findings=(*ledger.findings, *findings))
        if function is stragglers and ledger.stragglers:
            ledger = replace(ledger, verdict=ledger.stragglers[0])
    return replace(ledger, findings=tuple(sorted(ledger.findings, key=lambda each: -ledger.lost_to(each))))
