"""Who is waited for, in sentences: who, what they do longer, when, what it costs; or that it is nobody."""

from __future__ import annotations

from collections.abc import Sequence

from hpc.model.spec import SCRIPT
from hpc.system.text import capitalized, inflect, plural
from parse.graph.findings import ChainLink
from parse.ledger.finding import Finding, FirstSteps, RankPauses, Symptom
from parse.ledger.symptoms import NAMED_CAUSES
from parse.ledger.types import Ledger
from parse.ledger.verdict import (
    ROTATING,
    TRANSIENT,
    Because,
    Doubt,
    FasterRanks,
    Nobody,
    Paced,
    Shape,
    ShapeKind,
    SharedDelay,
    Straggler,
)
from parse.rules import HALF, NEARLY_ALL, NOTABLE, OFTEN
from parse.say.numbers import LITTLE, NAMED, ms, numbers, percent, ranks_text, repeat_of, without_text
from parse.say.reasons import because_text, unseen_text
from parse.term_kinds import ARRIVES, COMMUNICATION, COMPUTE, DATA, OPTIMIZER, WAIT, Phrase, joined, parts_of, phrase

NEARLY_EVERY = 0.95
"""From this share of the steps on what a delay is on average it is in each."""
BY_SCRIPT = {
    DATA.cause: Phrase(
        "takes {} longer between update and next forward", "take {} longer between update and next forward"
    ),
    OPTIMIZER.cause: Phrase("takes {} longer after the reduction", "take {} longer after the reduction"),
    joined((DATA.cause, COMPUTE.cause)): Phrase(
        "takes {} longer between update and gradients", "take {} longer between update and gradients"
    ),
}
"""What ranks do longer in a script's own code, where no call of a loader or an optimizer is known to take it."""
AFTER_UPDATE = Phrase(
    "takes {} longer after the update (EMA, logging, …)", "take {} longer after the update (EMA, logging, …)"
)
AT_MOST = "at most "
PERHAPS_PACED = "A loader that reads ahead may set the pace: then less is gained"


def straggler_text(verdict: Straggler, finding: Finding, ledger: Ledger) -> str:
    """`Rank 3 (node2) computes 30.2 ms longer than the median rank in 99 % of the steps. This costs 27.2 ms a step.
    Without it: 256.7 instead of 177.7 samples/s`."""
    text = f"{_late(verdict, ledger)}{_by_call(verdict, ledger)}"
    if verdict.paced is Paced.YES:
        return f"{text}. The loader sets the pace: little is gained without it"
    is_first = verdict.ranks == ledger.verdict.ranks and verdict.kind is ledger.verdict.kind
    at_most = AT_MOST if verdict.paced is Paced.PERHAPS else ""
    if verdict.costs > 0:
        at_base = ledger.straggler_at_base.costs if is_first else 0.0
        already = f" (a straggler of {ledger.result.base_case} costs {ms(at_base)})" if at_base > 0 else ""
        text += f". This costs {at_most}{ms(verdict.costs)} a step{'' if is_first else ' more'}{already}"
    if finding.without is not None:
        of_mean = "" if verdict.in_runs == verdict.of_runs else " in the mean of all runs"
        text += f". Without it: {at_most}{without_text(finding.without, ledger.result.unit)}{of_mean}"
    return text


def brief_text(verdict: Straggler, ledger: Ledger, *, is_result: bool) -> str:
    """`rank 3 (node7) waits 21.0 ms longer for its data`; `is_result`: of a LateResult."""
    who, singular = _who(verdict, ledger)
    if is_result:
        return f"the reduction's result reaches {who} {ms(verdict.arrival_skew)} later"
    return f"{who} {' and '.join(_phases(verdict, ledger, singular=singular))}"


def faster_text(faster: FasterRanks, ledger: Ledger) -> str:
    """`Rank 0 (n0) is 4.00 ms a step faster than all others, and waits for them`."""
    who, singular = _who(faster, ledger)
    by = f"{'is' if singular else 'are'} {ms(faster.by)} a step faster than all others"
    return capitalized(f"{who} {by}, and {'waits' if singular else 'wait'} for them")


def shared_text(shared: SharedDelay) -> str:
    """`All ranks are 5.00 ms slower together in 6 % of the steps, one in 50. This costs 0.3 ms a step`."""
    slower = f"All ranks are {ms(shared.longer)} slower together {_in_share(shared.share)}"
    return f"{slower}{_course(shared.shape)}. This costs {ms(shared.costs)} a step"


def leaves_late_words(verdict: Straggler, evidence: Sequence[object], ledger: Ledger) -> tuple[str, str] | None:
    """That leaving a collective late is the network's doing, where its counters do not say what kept it from running,
    and what to do; None elsewhere."""
    named = any(isinstance(each, Symptom) and each.quantity in NAMED_CAUSES for each in evidence)
    if not verdict.leaves_late or named:
        return None
    text = "Leaving a collective late is not its own work: its data come last, or it is not running"
    return text, "rankwise sweep --collectives shows each link" if len(ledger.nodes) > 1 else ""


def late_result_text(verdict: Straggler, finding: Finding, ledger: Ledger) -> str:
    """`The reduction's result reaches rank 1 (host2) 3.94 ms later than the median rank in 62 % of the steps. That is
    the network's delay and costs 3.1 ms a step. Without it: 656 instead of 551 samples/s`."""
    later = ms(verdict.cause.get(COMMUNICATION.cause, verdict.arrival_skew))
    later = f"{later} later than {than_whom(ledger, verdict.peers)}"
    costs = "" if finding.costs is None else f" and costs {ms(finding.costs)} a step"
    if finding.without is not None:
        costs += f". Without it: {without_text(finding.without, ledger.result.unit)}"
    return (
        f"The reduction's result reaches {ranks_text(ledger, verdict.ranks)} {later} {_in_share(verdict.share)}. "
        f"That is the network's delay{costs}"
    )


def left_out(verdict: Straggler, ledger: Ledger) -> list[str]:
    """What the costs of a straggler leave out, as sentences."""
    pace = PERHAPS_PACED if verdict.paced is Paced.PERHAPS else ""
    texts = (pace, _unseen_inside(verdict, ledger), _also_unseen(verdict), chain_text(verdict))
    return [text for text in texts if text]


def _also_unseen(verdict: Straggler) -> str:
    if verdict.unseen is None:
        return ""
    return f"{capitalized(unseen_text(verdict.unseen))}. What a rank takes longer before that comes on top"


def _unseen_inside(verdict: Straggler, ledger: Ledger) -> str:
    """What the cost of a straggler leaves out where ranks are compared at the begin of a step; empty elsewhere."""
    if not any({COMPUTE.name, WAIT.name} <= {*parts_of(term.name)} for term in ledger.terms):
        return ""
    late = "" if max(verdict.cause, key=lambda name: verdict.cause[name], default="") == DATA.cause else (
        ". A rank that leaves the last meeting of a step late, as on busy cores, begins the next one late"
    )  # fmt: skip
    return f"Inside a step nothing is seen: what a rank takes longer there comes on top{late}"


def nobody_text(ledger: Ledger) -> str:
    """That nobody is late, or why that is not known; empty where somebody is, and where there is one rank."""
    verdict = ledger.verdict
    if len(ledger.ranks) < 2 or isinstance(verdict, Straggler):
        return ""
    if isinstance(verdict, Nobody):
        return _no_straggler(verdict, ledger)
    if verdict.doubt is not None:
        return f"Who is waited for is not known: {_doubt(verdict.doubt, ledger)}"
    is_short = verdict.because is Because.FEW_STEPS
    because = "too few steps to exclude chance" if is_short else because_text(verdict)
    text = f"Who is waited for is not known{f' ({because})' if because else ''}"
    return f"{text}: the clocks leave {ms(verdict.bound)} open" if verdict.because is Because.CLOCK else text


def _no_straggler(verdict: Nobody, ledger: Ledger) -> str:
    """`No straggler: 1.80 ms in every step would show, 9.00 ms in one of ten`."""
    nobody = (
        "Between pauses no straggler"
        if any(isinstance(each.what, (RankPauses, FirstSteps)) for each in ledger.findings)
        else "No straggler"
    )
    if verdict.limit is None:
        return f"{nobody}: no rank is late more than equal ranks would be"
    seldom = "" if verdict.seldom_limit is None else f", {ms(verdict.seldom_limit)} in one of ten"
    text = f"{nobody}: {ms(verdict.limit)} in every step would show{seldom}"
    return f"{text}. Yet {_doubt(verdict.doubt, ledger)}" if verdict.doubt is not None else text


def _doubt(doubt: Doubt, ledger: Ledger) -> str:
    """`rank 2 (node1) costs 1.53 ms a step more, half of it in 2 of 240 steps: perhaps chance`."""
    where = f"half of it in {doubt.steps} of {plural(doubt.of_steps, 'step')}"
    who = ranks_text(ledger, (doubt.rank,))
    return f"{who} costs {ms(doubt.costs)} a step more, {where}: perhaps chance"


def than_whom(ledger: Ledger, peers: int = 0, *, singular: bool = True) -> str:
    """With whom a straggler is compared: with the median rank, or where ranks have groups with the `peers` that do the
    same in other replicas."""
    if not ledger.dimensions:
        return "the median rank" if len(ledger.ranks) > 2 else "the other rank"
    return ("its peer" if singular else "their peer") + ("" if peers == 1 and singular else "s")


def _in_share(share: float) -> str:
    if share >= 0.995:
        return "in every step"
    return f"in {'less than 1 %' if share < 0.005 else percent(share)} of the steps"


def _late(verdict: Straggler, ledger: Ledger) -> str:
    """`Rank 3 (node2) computes 30.2 ms longer than the median rank on average. It is late in 90 % of the steps`; in one
    sentence where that is all."""
    in_share = _in_share(verdict.share)
    if verdict.kind == ROTATING:
        names = verdict.node or (numbers(verdict.ranks) if verdict.ranks else "")
        who = f"{'nodes' if verdict.node else 'ranks'}{f' {names}' if names else ''}"
        first, *further = _phases(verdict, ledger, singular=True)
        longer = f"{first} than {than_whom(ledger, verdict.peers)}{_also(further, singular=True)}"
        return capitalized(f"{who} take turns{_course(verdict.shape)}. {capitalized(in_share)} one of them {longer}")
    who, singular = _who(verdict, ledger)
    first, *further = _phases(verdict, ledger, singular=singular)
    longer, also = (
        f"{first} than {than_whom(ledger, verdict.peers, singular=singular)}",
        _also(further, singular=singular),
    )
    is_mean = (
        verdict.kind != TRANSIENT and verdict.share < NEARLY_EVERY and getattr(verdict.shape, "step", None) is None
    )
    is_seldom = verdict.kind == TRANSIENT and verdict.share < OFTEN
    when = _steps(verdict, ledger) if is_seldom else f"{in_share}{_in_runs(verdict, ledger)}"
    course = f"{_course(verdict.shape)}{_at_meeting(verdict)}"
    if when == in_share and not is_mean and not course:
        return capitalized(f"{who} {longer} {when}{also}")
    average = " on average" if is_mean else ""
    return capitalized(f"{who} {longer}{average}{also}. {'It is' if singular else 'They are'} late {when}{course}")


def _also(further: Sequence[str], *, singular: bool) -> str:
    """`. It also takes 0.97 ms longer after the reduction`; empty where there is nothing further."""
    return f". {'It' if singular else 'They'} also {' and '.join(further)}" if further else ""


def _at_meeting(verdict: Straggler) -> str:
    """The collective before which it loses most, where ranks meet several times in a step."""
    name, lost = next(iter(verdict.meetings.items()), ("", 0.0))
    if verdict.kind == TRANSIENT:  # these are means over all steps in which it is late by anything
        share_there = lost / (sum(each for each in verdict.meetings.values() if each > 0) or 1.0)
        return f", before {name}" if name and share_there > HALF else ""
    if not name or lost < NOTABLE * verdict.arrival_skew:
        return ""
    return f", {'' if lost >= NEARLY_ALL * verdict.arrival_skew else f'by {ms(lost)} '}before {name}"


def _phases(verdict: Straggler, ledger: Ledger, *, singular: bool) -> list[str]:
    """What it does longer, the largest part of the arrival skew first; where that is not known, how late it comes."""
    parts = [(_phrase(cause, verdict, ledger), verdict.cause[cause]) for cause in _named_causes(verdict)]
    parts = parts or [(ARRIVES, verdict.arrival_skew)]
    return [(what.singular if singular else what.several).format(ms(value)) for what, value in parts]


def _named_causes(verdict: Straggler) -> list[str]:
    """The largest first, without those of little."""
    ordered = sorted(verdict.cause, key=lambda cause: -verdict.cause[cause])
    return [
        cause
        for place, cause in enumerate(ordered)
        if not place or verdict.cause[cause] >= NOTABLE * verdict.arrival_skew
    ]


def _phrase(cause: str, verdict: Straggler, ledger: Ledger) -> Phrase:
    """As TERM_KINDS have it. Of a script it is its own code that a rank runs before its forward and after its
    reduction, unless its loaders, or the call of its optimizer, take NEARLY_ALL of that."""
    if ledger.result.run.backend != SCRIPT or cause not in BY_SCRIPT:
        return phrase(cause)
    taken = _in_calls(cause, verdict)
    if taken is not None and taken >= NEARLY_ALL * verdict.cause[cause]:
        return phrase(cause)
    if cause == OPTIMIZER.cause and taken is not None and taken <= (1 - NEARLY_ALL) * verdict.cause[cause]:
        return AFTER_UPDATE
    return BY_SCRIPT[cause]


def _in_calls(cause: str, verdict: Straggler) -> float | None:
    """ms of this cause in calls of the loaders, or of the optimizer; None where that is not known."""
    if cause != OPTIMIZER.cause:
        return verdict.loader
    return None if verdict.after_update is None else max(0.0, verdict.cause[cause] - verdict.after_update)


def _by_call(verdict: Straggler, ledger: Ledger) -> str:
    """`. 0.3 ms of that are in its loader`, where a script's own code is all or most of it."""
    texts = []
    for cause in _named_causes(verdict):
        taken = _in_calls(cause, verdict)
        if taken is None or _phrase(cause, verdict, ledger) is not BY_SCRIPT.get(cause):
            continue
        its = "its" if _who(verdict, ledger)[1] else "their"
        call = f"{its} optimizer" if cause == OPTIMIZER.cause else f"{its} loader"
        amount = f"{ms(taken)} of that are" if taken >= LITTLE * verdict.arrival_skew else "None of that is"
        texts.append(f". {amount} in {call}")
    return "".join(texts)


def _who(verdict: Straggler | FasterRanks, ledger: Ledger) -> tuple[str, bool]:
    """The straggler's name, and whether a verb after it is in the singular."""
    if verdict.node:
        return f"node {verdict.node} (ranks {numbers(verdict.ranks)})", True
    return ranks_text(ledger, verdict.ranks), len(verdict.ranks) == 1


def _course(shape: Shape | None) -> str:
    """The shape of the delay over the steps; empty for a constant one and where it is not known."""
    if shape is None or shape.kind is ShapeKind.CONSTANT:
        return ""
    if shape.kind is ShapeKind.BLOCKS:
        return f" every {shape.period} steps or so"
    if shape.period is not None:
        return f", one in {shape.period}"
    if shape.per_100_steps is not None:
        return f", {shape.kind} by {ms(abs(shape.per_100_steps))} in 100 steps"
    return f", from step {shape.step} on" if shape.kind is ShapeKind.BEGINS else f", until step {shape.step}"


def _in_runs(verdict: Straggler, ledger: Ledger) -> str:
    """` of 2 of 3 runs`, ` of run 2 alone`; empty where it is late in all."""
    if verdict.in_runs == verdict.of_runs:
        return ""
    shown_in = [run for run in range(verdict.of_runs) if any(steps != () for _, steps in verdict.cells_of_run(run))]
    if len(shown_in) == 1 and verdict.cells and len(ledger.runs) == verdict.of_runs:
        return f" of run {repeat_of(ledger.runs[shown_in[0]])} of {verdict.of_runs} alone"
    return f" of {verdict.in_runs} of {verdict.of_runs} runs"


def _steps(verdict: Straggler, ledger: Ledger) -> str:
    """`in steps 12, 24, … only`; where runs differ in them how many, and the first ones of the first run that has any:
    `in 29 steps of 2 of 3 runs (run 1: 21, 22, 24, …)`."""
    steps, run, many = verdict.steps, "", f"in {inflect(len(verdict.steps), 'step')} "
    if not verdict.steps and verdict.run_steps:
        by_run = [pair for pair in zip(ledger.runs, verdict.run_steps, strict=False) if pair[1]]
        steps, run = by_run[0][1], f"run {repeat_of(by_run[0][0])}: "
        some = "" if len(by_run) == len(verdict.run_steps) else f"{len(by_run)} of "
        of_runs = f"{some}{plural(len(verdict.run_steps), 'run')}"
        many = f"in {plural(sum(len(each) for _, each in by_run), 'step')} of {of_runs} ("
    named = ", ".join([*map(str, steps[:NAMED]), *["…"][: len(steps) > NAMED]])
    return f"{many}{run}{named}{')' if run else ' only'}"


def chain_text(verdict: Straggler) -> str:
    """`Rank 7 waits 8.00 ms for it in tp. Ranks 2, 3 wait 7.50 ms each for that one in pp`; empty without a chain."""
    parts, whom = [], "it" if len(verdict.ranks) == 1 else "them"
    for link in verdict.chain:
        parts.append(_link_text(link, whom))
        whom = "that one" if len(link.ranks) == 1 else "these"
    return ". ".join(parts)


def _link_text(link: ChainLink, whom: str) -> str:
    several = len(link.ranks) > 1
    where = f" in {link.dimension}" if link.dimension else ""
    waits = f"{'wait' if several else 'waits'} {ms(link.waits)}{' each' if several else ''}"
    return f"{inflect(len(link.ranks), 'Rank')} {numbers(link.ranks)} {waits} for {whom}{where}"
