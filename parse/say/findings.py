"""The words of every finding: one function for each type of record, in one table; all renderers show the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpc.system.text import capitalized, first_of, inflect, plural
from parse.graph.findings import Bubble, SlowLink, StageImbalance, UnevenExperts
from parse.ledger.causes import Cause
from parse.ledger.finding import (
    BackgroundWrites,
    ComputeSplit,
    CoreLack,
    Finding,
    FirstSteps,
    FixedCompute,
    LateResult,
    LostTerm,
    RankPauses,
    Symptom,
    UnevenWork,
)
from parse.ledger.host_bound import SlowHosts
from parse.ledger.input import InputReading
from parse.ledger.network import NetworkFinding
from parse.ledger.types import Ledger
from parse.ledger.verdict import FasterRanks, Paced, SharedDelay, Straggler
from parse.rules import HALF, NEARLY_ALL, SMALL
from parse.say.evidence import evidence_words, input_text, input_words
from parse.say.network import ADVICE, finding_text, median_trip
from parse.say.numbers import (
    NAMED,
    change_ms,
    interval_ms,
    ms,
    numbers,
    percent,
    ranks_text,
    round_number,
    speed_text,
)
from parse.say.straggler import faster_text, late_result_text, leaves_late_words, left_out, shared_text, straggler_text
from parse.term_kinds import COMMUNICATION, COMPUTE, WAIT, phrase, within


@dataclass(frozen=True, kw_only=True)
class Words:
    """What is said of a finding, sentences without full stops: what it is and costs, why, what to do, and what else is
    known; and its `name` in a headline, "of the loss is …". Empty where there is nothing to say."""

    what: str
    reason: str = ""
    advice: str = ""
    more: tuple[str, ...] = ()
    name: str

    @property
    def sentences(self) -> list[str]:
        """Those of a paragraph."""
        return [text for text in (self.what, self.reason, f"To do: {self.advice}" if self.advice else "") if text]


def words(finding: Finding, ledger: Ledger) -> Words:
    """Its words, by the type of its record."""
    return WORDS[type(finding.what)](finding.what, finding, ledger)


def _cores(lack: CoreLack, _: Finding, ledger: Ledger) -> Words:
    usual = "" if lack.base_ms is None else f" ({ms(lack.base_ms)} at {ledger.result.base_case})"
    waits = f"Ranks wait {ms(lack.ms)} a step for a core{usual}"
    advice = ""
    if lack.oversubscribed:
        what, advice = f"{capitalized(lack.oversubscribed)}. {waits}", "start fewer ranks"
    elif lack.quota_ms is not None:
        what = f"{waits}: CPU quotas hold them back {ms(lack.quota_ms)} a step"
    else:
        what = f"{waits}: too few cores are left to them"
    for _, split in ledger.findings_of(ComputeSplit):
        if _is_by_cores(split, ledger):
            what += f". That explains up to {ms(split.explanations[0].explains or 0.0)} of compute"
    return Words(what=what, advice=advice, name="waiting for a core")


def _is_by_cores(split: ComputeSplit, ledger: Ledger) -> bool:
    """Whether waiting for a core, which has a sentence of its own, explains compute best."""
    first = split.explanations[0] if split.explanations else None
    is_queued = first is not None and first.quantity == Cause.QUEUED and first.explains is not None
    return is_queued and bool(ledger.findings_of(CoreLack))


def _straggler(verdict: Straggler, finding: Finding, ledger: Ledger) -> Words:
    evidence = [] if verdict.paced is Paced.YES else [evidence_words(each, verdict) for each in finding.evidence]
    reason, advice = leaves_late_words(verdict, finding.evidence, ledger) or (evidence[0] if evidence else ("", ""))
    shown = [each for each in finding.evidence if isinstance(each, Symptom)]
    more = [
        f"{capitalized(ranks_text(ledger, verdict.ranks))}: {each.quantity} "
        f"{f'{round_number(each.value)} {each.unit}'.strip()} (others {round_number(each.usual or 0.0)})"
        for each in shown[1 if evidence and reason == evidence[0][0] else 0 :]
    ]
    what = straggler_text(verdict, finding, ledger)
    more = [*left_out(verdict, ledger), *more]
    return Words(what=what, reason=reason, advice=advice, more=tuple(more), name="the straggler")


def _faster(faster: FasterRanks, _: Finding, ledger: Ledger) -> Words:
    return Words(what=faster_text(faster, ledger), name="faster ranks")


def _late_result(late: LateResult, finding: Finding, ledger: Ledger) -> Words:
    what = late_result_text(late.straggler, finding, ledger)
    advice = "rankwise sweep --collectives shows each link" if finding.costs is not None else ""
    return Words(what=what, advice=advice, name="the network")


def _shared(shared: SharedDelay, _: Finding, __: Ledger) -> Words:
    return Words(what=shared_text(shared), name="what all ranks share")


def _pauses(pauses: RankPauses, _: Finding, ledger: Ledger) -> Words:
    """`Rank 0 (n0) alone pauses 5 times, 62.0 ms each (evaluation), and others wait. This costs 2.38 ms a step, 11 % of
    the training`; of the last of them the speed with all pauses."""
    often = "once" if pauses.times == 1 else f"{round_number(pauses.times)} times"
    length = f"{ms(pauses.length)}{' each' if pauses.times > 1 else ''}"
    kinds = f" ({', '.join(pauses.kinds)})" if pauses.kinds else ""
    every = [each for _, each in ledger.findings_of(RankPauses)]
    if not pauses.ranks:
        who = f"{'all ranks pause' if len(ledger.ranks) > 1 else 'the script pauses'} {often}, {length}{kinds}"
    else:
        verb = "pauses" if len(pauses.ranks) == 1 else "pause"
        how = f"alone {verb} {often}, {length}{kinds}, and others wait"
        if any(not each.ranks for each in every):
            how = f"{verb} longer than the others {often}, by {length}{kinds}, and they wait"
        who = f"{ranks_text(ledger, pauses.ranks)} {how}"
    speeds = ""
    if pauses is every[-1] and ledger.speed_with_pauses is not None and ledger.result.median_speed is not None:
        with_them = f"{speed_text(ledger.speed_with_pauses)} instead of {speed_text(ledger.result.median_speed)}"
        speeds = f". With the pauses: {with_them} {ledger.result.unit}"
    what = f"{who}. This costs {ms(pauses.costs)} a step, {percent(pauses.share)} of the training{speeds}"
    return Words(what=capitalized(what), name="pauses")


def _first_steps(its: FirstSteps, _: Finding, ledger: Ledger) -> Words:
    """`Rank 1 (n0) computes 40.0 ms longer in the first step behind each of 10 pauses. This costs 1.67 ms a step`."""
    pauses = ledger.left_out.pauses if ledger.left_out else its.times
    behind = "the pause" if pauses == 1 else f"each of {round_number(pauses)} pauses"
    if its.times < pauses:
        behind = f"{round_number(its.times)} of {round_number(pauses)} pauses"
    steps = "step" if its.steps == 1 else f"{its.steps} steps"
    who = ranks_text(ledger, its.ranks) if its.ranks else "all ranks" if len(ledger.ranks) > 1 else "the script"
    s = "s" if len(its.ranks) == 1 or who == "the script" else ""
    name = max(its.cause, key=lambda each: its.cause[each])
    longer = f"take{s} {ms(its.length)} longer, {ms(its.cause[name])} of it {within(name)},"
    if its.cause[name] >= NEARLY_ALL * its.length:
        longer = f"take{s} {ms(its.length)} longer {within(name)}"
        if name == COMPUTE.cause:
            computes = phrase(name)
            longer = (computes.singular if s else computes.several).format(ms(its.length))
    what = f"{who} {longer} in the first {steps} behind {behind}. This costs {ms(its.costs)} a step"
    return Words(what=capitalized(what), name="the first steps behind pauses")


def _background_writes(its: BackgroundWrites, finding: Finding, _: Ledger) -> Words:
    """`While 4 checkpoints are written, 45 of 200 steps take 5.10 ms longer than those before them (4.2 to 6.0). This
    costs 1.15 ms a step`."""
    steps, of_steps = round_number(its.steps), round_number(its.of_steps)
    longer = f"{ms(its.longer.value)} longer than those before them ({interval_ms(its.longer)})"
    return Words(
        what=f"While {round_number(its.times)} checkpoints are written, {steps} of {of_steps} steps take {longer}. "
        f"This costs {ms(finding.costs or 0.0)} a step",
        advice="write them by a process (async_checkpointer_type), to another disk, or less often",
        name="writing checkpoints",
    )  # fmt: skip


def _late_input(reading: InputReading, _: Finding, __: Ledger) -> Words:
    reason, advice = input_words(reading)
    return Words(what=capitalized(input_text(reading)), reason=reason, advice=advice, name="late input")


def _compute(split: ComputeSplit, finding: Finding, ledger: Ledger) -> Words:
    """What telemetry or no-sync runs show of the loss in compute; that nothing does, and what would."""
    if split.contention is not None and split.interference is not None:
        parts = (
            f"contention {change_ms(split.contention)} (without reduction, too), interference "
            f"{change_ms(split.interference)} (by the reduction beside it), unexplained {ms(split.unexplained, '+')}"
        )
        return Words(what=f"Compute, by no-sync runs: {parts}", name=COMPUTE.name)
    lost = (finding.costs or 0.0) + split.straggler + split.fixed_loss
    if split.explanations:
        shown = split.explanations[0]
        usual = "" if shown.usual is None else f" ({round_number(shown.usual)} at the base)"
        up_to = "" if shown.explains is None else f". This explains up to {ms(shown.explains)} of compute"
        is_known = shown.explains is not None and split.unexplained >= SMALL * lost
        rest = f"; {ms(split.unexplained)} are unexplained" if is_known else ""
        if _is_by_cores(split, ledger):
            what = f"{ms(split.unexplained)} of compute are unexplained" if is_known else ""
            return Words(what=what, name=COMPUTE.name)
        shows = f"Telemetry shows: {shown.quantity} {round_number(shown.value)} {shown.unit}".rstrip()
        return Words(what=shows + usual + up_to + rest, name=COMPUTE.name)
    if split.unexplained < SMALL * lost:
        return Words(what="", name=COMPUTE.name)
    unexplained = f"Of compute {ms(split.unexplained)} are" if split.straggler or split.fixed else "Compute is"
    advice = "rankwise sweep --no-sync, to separate contention from interference"
    return Words(what=f"{unexplained} unexplained", advice=advice, name=COMPUTE.name)


def _fixed_compute(known: FixedCompute, _: Finding, __: Ledger) -> Words:
    """`13.0 ms (12.1 to 13.9) of compute do not shrink with the devices, …`."""
    fixed = ms(known.fixed.value)
    sizes = first_of([*map(str, known.devices)], NAMED)
    what = (
        f"{fixed} ({interval_ms(known.fixed)}) of compute do not shrink with the devices: {ms(known.of_loss)} of the "
        f"loss. On {sizes} devices it is {f'{fixed} + {ms(known.shared)} / devices' if known.shared else 'the same'}"
    )
    return Words(what=what, name="compute that does not shrink with the devices")


def _lost_term(lost: LostTerm, finding: Finding, _: Ledger) -> Words:
    if lost.name == COMMUNICATION.name:
        takes = (
            ""
            if lost.standalone is None
            else f"An all-reduce of these gradients takes {ms(lost.standalone)} standalone"
        )
        return Words(what=takes, name=COMMUNICATION.name)
    scatter = "" if lost.scatter is None else (
        f"Within a step the ranks scatter by ± {ms(lost.scatter)}: batches of unequal work?"
    )  # fmt: skip
    what = f"{ms(finding.costs or 0.0)} are ranks that wait for whichever is the slowest in that step, no fixed one"
    return Words(what=what, reason=scatter, name=WAIT.name)


def _uneven_work(uneven: UnevenWork, _: Finding, __: Ledger) -> Words:
    who = "Among the others, the same ranks" if uneven.stragglers else "The same ranks"
    what = (
        f"{who} are late in the same steps of each run (correlation {uneven.correlation:.2f}). Their work is uneven, "
        "by batches, lengths or tokens: it is not their machines"
    )
    return Words(what=what, name="uneven work")


def _hosts(slow: SlowHosts, _: Finding, ledger: Ledger) -> Words:
    """`The GPU of rank 1 (n0) idles in 31 % of the step: its host is behind. This costs 4.00 ms of compute, 0.25 ms of
    the update`, and what to do."""
    pace = slow.pace
    who, whose = "Each GPU", "the hosts are"
    if slow.rank is not None or len(ledger.ranks) == 1:
        who, whose = (
            "The GPU" if len(ledger.ranks) == 1 else f"The GPU of {ranks_text(ledger, (slow.rank or 0,))}",
            "its host is",
        )
    names = {"compute": "compute", "reduction": "the reduction", "optimizer": "the update"}
    parts = {name: getattr(pace, phase) for phase, name in names.items()}
    if not slow.is_proven:
        parts = {name: (pace.at_most or {}).get(phase, 0.0) for phase, name in names.items()}
    up_to = "" if slow.is_proven else "up to "
    listed = ", ".join(f"{up_to}{ms(value)} of {name}" for name, value in parts.items() if value >= SMALL / 10)
    share = percent((pace.behind if slow.is_proven else pace.most_behind) / ledger.step.value)
    idles = f"idles in {share}" if slow.is_proven else f"may idle in up to {share}"
    because = f": {whose} behind" if slow.is_proven else f", if {whose} behind: its events leave that open"
    advice = "CUDA graphs or torch.compile, fewer small kernels"
    if pace.syncs is not None and pace.syncs >= HALF:
        times = "once" if pace.syncs == 1 else f"{round_number(pace.syncs)} times"
        advice += f", no .item() in every step (the script waits for its device {times} in each)"
    what = f"{who} {idles} of the step{because}. This {'costs' if slow.is_proven else 'may cost'} {listed}"
    return Words(what=what, advice=advice, name="a slow host")


def _network(fault: NetworkFinding, _: Finding, ledger: Ledger) -> Words:
    trip = median_trip(ledger.network) if ledger.network else None
    return Words(what=capitalized(finding_text(fault, trip)), advice=ADVICE[fault.kind], name="the network")


def _stages(uneven: StageImbalance, _: Finding, ledger: Ledger) -> Words:
    slowest = uneven.stages[uneven.slowest]
    per, share = ("micro-batch", uneven.microbatches) if uneven.microbatches else ("step", 1)
    ranks = f"{inflect(len(slowest.ranks), 'rank')} {numbers(slowest.ranks)}"
    only = "its only layer" if slowest.layers == 1 else f"one of its {slowest.layers} layers"
    return Words(
        what=f"Pipeline stage {slowest.stage} (of 0 to {len(uneven.stages) - 1}; {ranks}) takes "
        f"{ms(slowest.work / share)} a {per}, the mean stage {ms(uneven.mean / share)}. The pipeline runs at "
        f"{percent(uneven.runs_at)}: uneven stages cost {ms(uneven.costs)} a step",
        advice="move a layer to another stage" if uneven.layer_moves else
        f"cut the work of stage {slowest.stage} inside a layer: moving {only} gains nothing",
        name="uneven stages",
    )  # fmt: skip


def _bubble(bubble: Bubble, _: Finding, __: Ledger) -> Words:
    text = f"Ranks wait {ms(bubble.waits)} a step for messages of the pipeline"
    if bubble.of_schedule <= 0:
        return Words(what=text, name="the bubble of the pipeline")
    by_order = f"{ms(bubble.of_schedule)} of that come from the schedule, even with equal stages"
    return Words(
        what=f"{text}. {by_order}", advice="more micro-batches, or a schedule that interleaves",
        name="the bubble of the pipeline",
    )  # fmt: skip


def _experts(uneven: UnevenExperts, _: Finding, ledger: Ledger) -> Words:
    takes = f"{ms(uneven.work)} a step behind all-to-alls (mean {ms(uneven.mean)})"
    whose = f"The experts of {inflect(len(uneven.ranks), 'rank')} {numbers(uneven.ranks)}"
    costs = f"uneven experts cost {ms(uneven.costs)} a step"
    if not uneven.bytes:
        return Words(what=f"{whose} take {takes}. {capitalized(costs)}", name="uneven experts")
    times = f"{uneven.bytes / uneven.mean_bytes:.2f} × the mean tokens ({_size(uneven.bytes)} an all-to-all"
    return Words(
        what=f"{whose} get {times}, mean {_size(uneven.mean_bytes)}). They take {takes}. {capitalized(costs)}",
        advice="balance the tokens of experts, by an auxiliary loss or a capacity", name="uneven experts",
    )  # fmt: skip


def _size(of: float) -> str:
    return f"{of / 1e6:.2f} MB" if of >= 1e6 else f"{of / 1e3:.1f} kB"


def _slow_link(link: SlowLink, _: Finding, ledger: Ledger) -> Words:
    ends = [ranks_text(ledger, (rank,)) for rank in (link.sender, link.receiver)]
    where = f" in {link.dimension}" if link.dimension else ""
    takes = f"Messages from {ends[0]} to {ends[1]}{where} take {ms(link.takes)} each, others {ms(link.usual)}"
    costs = f". {plural(round(link.messages), 'message')} a step cost {ms(link.costs)}"
    if link.further:
        costs = f". With {plural(link.further, 'further slow link')} they cost {ms(link.costs)} a step"
    return Words(what=f"{takes}{costs}", name="a slow link")


WORDS: Mapping[type, Callable[[Any, Finding, Ledger], Words]] = {
    CoreLack: _cores,
    Straggler: _straggler,
    FasterRanks: _faster,
    LateResult: _late_result,
    SharedDelay: _shared,
    RankPauses: _pauses,
    FirstSteps: _first_steps,
    BackgroundWrites: _background_writes,
    InputReading: _late_input,
    ComputeSplit: _compute,
    FixedCompute: _fixed_compute,
    LostTerm: _lost_term,
    UnevenWork: _uneven_work,
    SlowHosts: _hosts,
    NetworkFinding: _network,
    StageImbalance: _stages,
    Bubble: _bubble,
    UnevenExperts: _experts,
    SlowLink: _slow_link,
}
