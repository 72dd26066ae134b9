"""The lines below the sentence of a ledger."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import first_of, inflect, plural
from parse.ledger.input import InputReading
from parse.ledger.standalone import bytes_text
from parse.ledger.telemetry import ConditionChange, TooFewSamples
from parse.ledger.types import BesideBenchmark, Change, Ledger, Standalone, WhatIf
from parse.ledger.verdict import Paced, Straggler
from parse.rules import FEW, SMALL
from parse.say.evidence import input_text
from parse.say.network import network_notes
from parse.say.numbers import change_ms, ms, numbers, repeat_of, round_number
from parse.say.paragraph import text_of
from parse.say.reasons import verdict_text
from parse.say.straggler import AT_MOST, than_whom
from parse.term_kinds import COMPUTE

MAX_PERCENT = 1000
"""From this many percent on, the ratio of two figures is left out."""
MAX_HOSTS = 3


def notes(ledger: Ledger) -> Iterator[str]:
    """Further findings, then lines on the causes of the loss, the reliability of the figures, and oddities."""
    its = text_of(ledger)
    yield from (*its.further, *its.lesser)
    yield from what_if_notes(ledger)
    yield from _split(ledger)
    if ledger.standalone is not None:
        yield _standalone(ledger.standalone)
    yield from (_benchmark(beside) for beside in ledger.nccl_tests)
    yield from network_notes(ledger.network)
    if ledger.input is not None and not ledger.findings_of(InputReading):
        yield input_text(ledger.input)
    yield from map(telemetry_text, ledger.telemetry)
    yield from _clock(ledger)
    yield from _chance(ledger)
    apart = ledger.median_step / ledger.step.value - 1
    if abs(apart) > SMALL:
        than = f"{abs(apart) * 100:.0f} % {'less' if apart < 0 else 'more'} than the mean, which the terms add up to"
        yield f"the median step takes {ms(ledger.median_step)}, {than}"
    yield from _incidents(ledger)
    yield from _pauses(ledger)
    if (omitted := ledger.left_out) is not None:
        pauses = "the pause" if omitted.pauses == 1 else f"each of {round_number(omitted.pauses)} pauses"
        few = f"{round_number(omitted.steps)} of {round_number(omitted.of_steps)} steps"
        yield f"{few}, the first behind {pauses}, are left out of all other figures"
    yield from ledger.remarks


def what_if_notes(ledger: Ledger) -> Iterator[str]:
    """What changes would be worth, where that was requested, a line each."""
    may_be_paced = any(each.paced is Paced.PERHAPS for each in ledger.stragglers)
    for what_if in ledger.what_ifs or ():
        at_most = AT_MOST if may_be_paced and what_if.change is Change.STRAGGLER else ""
        yield what_if_text(what_if, ledger.result.unit, at_most)
    if ledger.what_ifs == () and len(ledger.ranks) > 1:
        yield "no what-if: it takes the order in which ranks arrive at the reduction"


def what_if_text(what_if: WhatIf, unit: str, at_most: str = "") -> str:
    """`without the straggler: 4210.00 samples/s [4180.00, 4240.00], 41.3 % more`; `at_most` is before the speed."""
    interval = ""
    if (its := what_if.interval) is not None:
        interval = f" [{its.low:.2f}, {its.high:.2f}]"
    percent = f"{abs(what_if.gain) * 100:.1f} % {'less' if what_if.gain < 0 else 'more'}"
    possible = ""
    if what_if.possible is not None:
        low, high = what_if.possible.low, what_if.possible.high
        possible = f"; ranks share cores, so that others gain or lose by it: {low:.2f} to {high:.2f} {unit}"
    return f"{what_if.name}: {at_most}{what_if.speed:.2f} {unit}{interval}, {percent}{possible}"


def telemetry_text(change: ConditionChange | TooFewSamples) -> str:
    """`SM clock 1755 MHz against 1980 at the base (−11.4 %) on node n1`."""
    if isinstance(change, TooFewSamples):
        whose = "the base's" if change.of_base else "this point's"
        return f"telemetry: {whose} runs are too short for it ({plural(change.largest, 'sample')}, it needs {FEW})"
    quantity, usual = change.quantity, change.usual
    unit = f" {quantity.unit_in_step}" if quantity.unit else ""
    text = f"{quantity.name} {round_number(change.value)}{unit}"
    if usual is not None and (quantity.fault or not usual):
        text += f" against {round_number(usual)} at the base"
    elif usual is not None:
        percent = (change.value - usual) / abs(usual) * 100
        ratio = f" ({'−' if percent < 0 else '+'}{round_number(abs(percent))} %)" if abs(percent) < MAX_PERCENT else ""
        text += f" against {round_number(usual)} at the base{ratio}"
    where = f" on {inflect(len(change.hosts), 'node')} {first_of(change.hosts, MAX_HOSTS)}" if change.hosts else ""
    return f"{text}{where}"


def _split(ledger: Ledger) -> Iterator[str]:
    """What of the loss in compute is the straggler's: by which its ranks exceed the others."""
    split = ledger.split
    loss = next((term.loss for term in ledger.terms if term.name == COMPUTE.name), None)
    if split is None or loss is None or not loss.resolved or split.straggler < SMALL * loss.value:
        return
    ranks = f"{inflect(len(ledger.verdict.ranks), 'rank')} {numbers(ledger.verdict.ranks)}"
    yield f"compute {change_ms(loss)}, {ms(split.straggler, '+')} of it by {ranks} beyond {than_whom(ledger)}"


def _standalone(standalone: Standalone) -> str:
    volume = f"this gradient volume ({bytes_text(standalone.gradient_bytes)})"
    overlapped = f"{ms(standalone.overlapped)} are overlapped with compute"
    if standalone.overlapped < 0:
        overlapped = f"{ms(-standalone.overlapped)} more are exposed than it takes standalone"
    return (
        f"communication: exposed {ms(standalone.exposed)}; {volume} takes {ms(standalone.standalone)} "
        f"standalone; {overlapped} (measured by {standalone.run_id})"
    )


def _benchmark(beside: BesideBenchmark) -> str:
    ours = "no --collectives of these ranks is here"
    if beside.standalone_bus_bandwidth is not None:
        ours = f"--collectives measured {beside.standalone_bus_bandwidth:.3g} GB/s"
    return (
        f"{beside.program} on {beside.case}: this gradient volume ({bytes_text(beside.gradient_bytes)}) takes "
        f"{ms(beside.time)}, bus bandwidth {beside.bus_bandwidth:.3g} GB/s; {ours} ({beside.file})"
    )


def _clock(ledger: Ledger) -> Iterator[str]:
    if len(ledger.ranks) < 2:
        return
    bounds = [run.bound for run in ledger.runs if run.bound is not None]
    if not bounds:
        yield "how far the clocks leave the ranks' order open is not known"
    elif any(bounds):
        yield f"the clocks leave up to {ms(max(bounds))} of the ranks' order open"
    if abs(ledger.skew) > SMALL * ledger.step.value:
        skew = f"{ms(abs(ledger.skew))} {'longer' if ledger.skew >= 0 else 'shorter'}: end skew less start skew"
        skew += ", and the steps in no term" if any(reason.unsplit for reason in ledger.merged) else ""
        yield f"the throughput's step is {skew}"


def _chance(ledger: Ledger) -> Iterator[str]:
    """The verdict's probability among equal ranks, and the verdicts of the runs if they differ."""
    verdict = ledger.verdict
    if len(ledger.ranks) < 2:
        return
    if isinstance(verdict, Straggler) and verdict.chance is not None:
        often = f"at most {verdict.chance * 100:.1f} %" if verdict.chance >= 1e-3 else "less than 0.1 %"
        yield f"straggler {verdict_text(verdict)}: equal ranks would show as much in {often} of all cases"
    verdicts = [
        f"{run.verdict.kind}{f' ({numbers(run.verdict.ranks)})' if run.verdict.ranks else ''}" for run in ledger.runs
    ]
    if len({*verdicts}) > 1:
        runs = ", ".join(
            f"run {repeat_of(run)} {verdict_of_run}" for run, verdict_of_run in zip(ledger.runs, verdicts, strict=True)
        )
        yield f"the runs differ in their straggler: {runs}"


def _incidents(ledger: Ledger) -> Iterator[str]:
    """Steps that are not the verdict's already."""
    for run in ledger.runs:
        named = run.verdict.steps if isinstance(run.verdict, Straggler) else ()
        listed = [incident for incident in run.incidents if incident.step not in named]
        if listed:
            late = [f"{incident.step} (rank {incident.rank}, {ms(incident.arrival_skew)})" for incident in listed]
            steps = f"{inflect(len(listed), 'step')} {first_of(late, MAX_HOSTS)}"
            yield f"{run.run_id}: unusually late: {steps}"


def _pauses(ledger: Ledger) -> Iterator[str]:
    for run in ledger.runs:
        if run.pauses:
            longest = f", the longest {max(run.pauses):.0f}" if len(run.pauses) > 1 else ""
            count = f"{plural(len(run.pauses), 'pause')} between blocks"
            behind = " with the unmeasured steps behind them" if run.rank_pauses else ""
            yield f"run {repeat_of(run)}: {count}, outside every number: {sum(run.pauses):.0f} ms{behind}{longest}"
