"""What else there is to know of a point's ledger: the lines below its sentence."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import first_of, inflect, plural
from parse import stats
from parse.ledger.sentence import NAMED, SMALL, Figures, fine, numbers, verdict_text
from parse.ledger.types import PERSISTENT, TRANSIENT, Ledger, Mean, RunLedger


def notes(ledger: Ledger) -> Iterator[str]:
    """What else there is to know of the point, a line each."""
    write = Figures([ledger])
    yield from _split(ledger, write)
    yield from _alone(ledger, write)
    yield from ledger.telemetry
    yield from _clock(ledger)
    yield from _chance(ledger)
    apart = ledger.median_step / ledger.step.value - 1
    if abs(apart) > SMALL:
        than = f"{abs(apart) * 100:.0f} % {'less' if apart < 0 else 'more'} than the mean, which the terms add up to"
        yield f"the median step takes {write.ms(ledger.median_step)}, {than}"
    yield from _incidents(ledger, write)
    yield from _pauses(ledger)
    yield from ledger.remarks


def _split(ledger: Ledger, write: Figures) -> Iterator[str]:
    """What the loss in compute consists of: by ranks, and by what a twin tells."""
    split = ledger.split
    loss = next((term.loss for term in ledger.terms if term.name == "compute"), None)
    if split is None or loss is None:
        return
    lost = f"compute {write.change(loss)}{_stragglers_part(ledger, loss, write)}"
    if split.contention is None or split.interference is None:
        if loss.resolved and loss.value > 0:
            none = "no twin with reduction off is here (hpc.sweep --no-sync) to tell contention from interference"
            yield f"{lost}: unexplained; {none}"
        return
    yield (
        f"{lost}: contention {write.change(split.contention)} (lost with reduction off, too), "
        f"interference {write.change(split.interference)} (what reducing beside it adds), "
        f"unexplained {write.ms(split.unexplained, '+')}"
    )


def _stragglers_part(ledger: Ledger, loss: Mean, write: Figures) -> str:
    """How much of the mean loss in compute the straggler's ranks make, by what they take more than the median rank."""
    verdict = ledger.verdict
    if verdict.kind not in (PERSISTENT, TRANSIENT) or not loss.resolved:
        return ""
    at = [term.name for term in ledger.terms].index("compute")
    ms = {rank: place.terms[at] for place in ledger.ranks for rank in place.ranks}
    median = stats.median([*ms.values()])
    part = sum(ms[rank] - median for rank in verdict.ranks) / len(ms)
    if part < SMALL * loss.value:
        return ""
    ranks = f"{inflect(len(verdict.ranks), 'rank')} {numbers(verdict.ranks)}"
    return f", {write.ms(part, '+')} of it by {ranks} beyond the median rank"


def _alone(ledger: Ledger, write: Figures) -> Iterator[str]:
    alone = ledger.alone
    if alone is None:
        return
    volume = f"this gradient volume ({_bytes(alone.gradient_bytes)}) alone would take {write.ms(alone.alone)}"
    hidden = f"{write.ms(alone.hidden)} are hidden behind compute"
    if alone.hidden < 0:
        hidden = f"{write.ms(-alone.hidden)} more are exposed than it takes alone"
    yield f"transfer: exposed {write.ms(alone.exposed)}; {volume}; {hidden} (measured by {alone.run_id})"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _clock(ledger: Ledger) -> Iterator[str]:
    """How far the clocks can be trusted, and what they make of the throughput's step."""
    if len(ledger.ranks) < 2:
        return
    bounds = [run.bound for run in ledger.runs if run.bound is not None]
    bound = "how far the clocks leave the ranks' order open is not known"
    if bounds:
        bound = f"the clocks leave up to {fine(max(bounds))} open" if any(bounds) else "all ranks read one clock"
    skew = f"{fine(abs(ledger.skew))} {'longer' if ledger.skew >= 0 else 'shorter'}: end skew less start skew"
    yield f"{bound}; the throughput's step is {skew}"


def _chance(ledger: Ledger) -> Iterator[str]:
    """How far the verdict can be trusted: against equal ranks, and between runs."""
    verdict = ledger.verdict
    if len(ledger.ranks) < 2:
        return
    if verdict.chance is not None:
        often = f"at most {verdict.chance * 100:.1f} %" if verdict.chance >= 1e-3 else "less than 0.1 %"
        yield f"straggler {verdict_text(verdict)}: equal ranks would show as much in {often} of all cases"
    verdicts = [
        f"{verdict_text(run.verdict)}{f' ({numbers(run.verdict.ranks)})' if run.verdict.ranks else ''}"
        for run in ledger.runs
    ]
    if len({*verdicts}) > 1:
        runs = ", ".join(
            f"run {_repeat(run)} {verdict_of_run}" for run, verdict_of_run in zip(ledger.runs, verdicts, strict=True)
        )
        yield f"the runs differ in their straggler: {runs}"


def _incidents(ledger: Ledger, write: Figures) -> Iterator[str]:
    """Steps that are not the verdict's already."""
    for run in ledger.runs:
        listed = [incident for incident in run.incidents if incident.step not in run.verdict.steps]
        if listed:
            late = [f"{incident.step} (rank {incident.rank} by {write.ms(incident.late)})" for incident in listed]
            steps = f"{inflect(len(listed), 'step')} {first_of(late, NAMED)}"
            yield f"{run.run_id}: late beyond all that is usual in {steps}"


def _pauses(ledger: Ledger) -> Iterator[str]:
    for run in ledger.runs:
        if run.pauses:
            longest = f", the longest {max(run.pauses):.0f}" if len(run.pauses) > 1 else ""
            count = f"{plural(len(run.pauses), 'pause')} between blocks"
            yield f"run {_repeat(run)}: {count}, outside every number: {sum(run.pauses):.0f} ms{longest}"


def _repeat(run: RunLedger) -> str:
    return run.run_id.rpartition("_r")[2]
