"""A ledger in a few sentences: what it costs, who, which phase, why, what to do; then how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.model.spec import SCRIPT
from hpc.system.text import capitalized, first_of, inflect, plural
from parse.ledger.causes import Cause
from parse.ledger.figures import (
    NAMED,
    SMALL,
    SYMPTOMS,
    Figures,
    SymptomText,
    because_text,
    coverage_text,
    host_bound_sentences,
    host_of,
    network_sentences,
    no_loss_text,
    numbers,
    pace_text,
    repeat_of,
    round_number,
    share,
    small_time,
    unseen_text,
    without_text,
)
from parse.ledger.graph_text import chain_text, graph_sentences, than_whom
from parse.ledger.input import InputCause, InputReading
from parse.ledger.pause_text import pause_sentences, pauses_named
from parse.ledger.symptoms import NAMED_CAUSES, WAITS_FOR_A_CORE
from parse.ledger.types import (
    FASTER,
    NONE,
    NOTABLE_CAUSE,
    PERSISTENT,
    ROTATING,
    SHARED,
    TRANSIENT,
    Because,
    Doubt,
    Ledger,
    Mean,
    ShapeKind,
    Symptom,
    Unseen,
    Verdict,
)
from parse.runs.result import times_devices
from parse.term_kinds import ARRIVES, COMMUNICATION, COMPUTE, DATA, WAIT, Phrase, parts_of, phrase

# What is known of the term that loses most, as text: late input, compute, communication.


def core_wait_text(ledger: Ledger) -> str:
    """`ranks that are ready to run wait for a core (1.20 ms at 1n1g): too few cores are left to them`; empty where they
    do not."""
    wait = ledger.core_wait
    if wait is None:
        return ""
    write = Figures([ledger])
    usual = "" if wait.base_ms is None else f" ({write.ms(wait.base_ms)} at {ledger.result.base_case})"
    reason = "too few cores are left to them"
    if wait.quota_ms is not None:
        reason = f"CPU quotas hold them back {write.ms(wait.quota_ms)} a step"
    return f"ranks that are ready to run wait for a core{usual}: {reason}"


def _oversubscription(ledger: Ledger, write: Figures, lead: str = "") -> Iterator[str]:
    """That ranks share cores or devices of which each is to have its own, and how long they wait for a core; nothing
    where they do not."""
    if not ledger.result.oversubscribed:
        return
    wait, waits = ledger.core_wait, ""
    if wait is not None:
        usual = "" if wait.base_ms is None else f" ({write.ms(wait.base_ms)} at {ledger.result.base_case})"
        waits = f"; ranks that are ready to run wait for a core for {write.ms(wait.ms)} a step{usual}"
    yield capitalized(f"{lead}{ledger.result.oversubscribed}{waits}")
    if lead:
        yield "To do: no more ranks than there are cores and devices for; only then other causes show"


def explanation(ledger: Ledger, write: Figures) -> Iterator[str]:
    """What is known of the term that loses most; nothing where nothing is, or where nothing is lost."""
    lost = [(term.loss.value, term.name) for term in ledger.causes if term.loss is not None and term.loss.value > 0]
    largest, name = max(lost, default=(0.0, ""))
    if name == DATA.name and ledger.input is not None:
        yield from late_input(ledger.input, write)
    elif name == COMPUTE.name:
        yield _compute(ledger, largest, write)
    elif name == WAIT.name and ledger.verdict.kind is NONE:
        yield f"{write.ms(largest)} are ranks that wait for whichever is the slowest in that step, no fixed one"
        scatter = ledger.verdict.scatter
        if scatter is not None:
            yield f"Within a step the ranks scatter by ± {write.ms(scatter)}: batches of unequal work?"
    elif name == COMMUNICATION.name and ledger.standalone is not None:
        yield f"An all-reduce of these gradients takes {write.ms(ledger.standalone.standalone)} standalone"


def late_input(reading: InputReading, write: Figures) -> Iterator[str]:
    """Why input is late, and what to do; nothing where it is not."""
    if reading.usual_workers is not None and reading.workers < reading.usual_workers:
        yield f"Its reader has {reading.workers} of {plural(reading.usual_workers, 'worker')}"
    workers = f"{plural(reading.workers, 'worker')} per rank"
    match reading.cause:
        case InputCause.NO_WORKERS:
            yield "The rank reads and decodes its batches itself"
            yield "To do: --option workers=N"
        case InputCause.BURSTS:
            yield f"Single batches come late, as where an epoch begins: {workers} are not busy all the time"
        case InputCause.STORAGE:
            part = f"{reading.reading / reading.work * 100:.0f} %"
            yield f"Storage is slow: {part} of the {write.ms(reading.work)} that a batch takes are for reading files"
        case InputCause.CORES:
            yield f"Too few cores for the rank and its {plural(reading.workers, 'worker')}"
        case InputCause.WORKERS:
            few = "is too few" if reading.workers == 1 else "are too few"
            yield f"{workers} {few}: {reading.enough} with cores of their own would keep up"
            yield f"To do: --option workers={reading.enough}"


def _fixed_compute(ledger: Ledger, lost: float, write: Figures) -> str:
    """`13.00 ms [12.10, 13.90] (covers 95 %) of compute do not shrink with the devices, …`; empty where that is not
    known, and where it is little of the ms `lost`."""
    known = ledger.fixed_compute
    if known is None or known.of_loss < SMALL * abs(lost):
        return ""
    fixed = write.ms(known.fixed.value)
    interval = f"{write.interval(known.fixed)} (covers {coverage_text(known.fixed.coverage)})"
    sizes = first_of([*map(str, known.devices)], NAMED)
    return (
        f"{fixed} {interval} of compute do not shrink with the devices, {write.ms(known.of_loss)} of what is lost: "
        f"on {sizes} devices it is {f'{fixed} + {write.ms(known.shared)} / devices' if known.shared else 'the same'}"
    )


def _compute(ledger: Ledger, lost: float, write: Figures) -> str:
    """What telemetry or no-sync runs show of the ms `lost` in compute; that nothing does, and what would."""
    split = ledger.split
    if split is None:
        return ""
    if split.contention is not None and split.interference is not None:
        parts = f"contention {write.change(split.contention)}, interference {write.change(split.interference)}"
        return f"Of compute, by its no-sync runs: {parts}"
    if lost - split.straggler - split.fixed < SMALL * lost:
        return ""
    if split.explanations:
        shown = split.explanations[0]
        usual = "" if shown.usual is None else f" ({round_number(shown.usual)} at the base)"
        up_to = "" if shown.explains is None else f", which explains up to {write.ms(shown.explains)} of compute"
        rest = f"; {write.ms(split.unexplained)} are unexplained" if split.unexplained >= SMALL * lost else ""
        shows = f"Telemetry shows: {shown.quantity} {round_number(shown.value)} {shown.unit}".rstrip()
        return shows + usual + up_to + rest
    if split.unexplained < SMALL * lost:
        return ""
    unexplained = f"Of compute {write.ms(split.unexplained)} are" if split.straggler or split.fixed else "Compute is"
    return f"{unexplained} unexplained. To do: hpc.sweep --no-sync, to separate contention from interference"


MOSTLY = 0.5
"""A transient straggler loses more than this part of it before the collective that is named."""
NEARLY_ALL = 0.9
"""From this share of the arrival skew on, what is lost before one collective is all."""
WIDE = 0.1
"""An interval of the loss that is wider than this part of it to either side calls for more runs."""


CONTENTION = {
    WAITS_FOR_A_CORE: "a rank waits for a core {} % of the time",
    "the hypervisor takes from the ranks": "the hypervisor takes {} cores from it",
    "swapped out": "it swaps out {} MB a second",
}
"""By the quantities of `parse.ledger.symptoms.LIMITS`."""


def sentence(ledger: Ledger, name: str) -> str:
    """Why a step of the point takes as long as it does, the largest cause first; `name` is the point's."""
    return f"{name}: {' '.join(sentences(ledger))}"


def sentences(ledger: Ledger) -> list[str]:
    """The same sentence by sentence, without the point's name."""
    return [f"{part}." for part in _parts(ledger, Figures([ledger])) if part]


def beside_a_headline(ledger: Ledger) -> list[str]:
    """Those of them that say more than a headline with the largest cause, its share, and what would be without it."""
    return [f"{part}." for part in _parts(ledger, Figures([ledger]), has_headline=True) if part]


def _parts(ledger: Ledger, write: Figures, *, has_headline: bool = False) -> Iterator[str]:
    """The sentences, without their full stops."""
    by_terms, loss = _by_terms(ledger, write), ledger.loss
    if loss is None:
        if not has_headline:
            yield f"a step takes {write.ms(ledger.step.value)}"
        yield from _oversubscription(ledger, write)
        if straggler_first(ledger):
            yield from _straggler(ledger, write, has_headline=has_headline)
            yield from host_bound_sentences(ledger, write)
            yield f"By terms: {by_terms}"
            yield from graph_sentences(ledger, write)
        else:
            yield "" if has_headline else _core_wait(ledger, write)
            yield f"By terms: {by_terms}"
            yield from graph_sentences(ledger, write)
            yield from _straggler(ledger, write)
            yield from host_bound_sentences(ledger, write)
        yield f"No loss is given: {no_loss_text(ledger)}"
    elif loss.low is not None and not loss.resolved:
        yield from _within_scatter(ledger, loss, write, has_headline=has_headline)
    elif ledger.loses_little:
        yield f"{_slower(ledger, loss.value, write)}: less than 1 % of the step, nothing worth naming"
        yield from _straggler(ledger, write)
    elif loss.value < 0:  # a gain has no cause
        yield _slower(ledger, loss.value, write)
        yield "" if has_headline else f"By terms: {by_terms}"
        yield from _straggler(ledger, write)
    elif straggler_first(ledger):
        yield _slower(ledger, loss.value, write)
        yield from _oversubscription(ledger, write)
        yield from _straggler(ledger, write, "Cause: ", has_headline=has_headline)
        yield "" if has_headline else f"By terms: {by_terms}"
        yield _fixed_compute(ledger, loss.value, write)
    elif ledger.result.oversubscribed and loss.value > 0:
        yield _slower(ledger, loss.value, write)
        yield from _oversubscription(ledger, write, "Cause: ")
        yield f"By terms: {by_terms}"
        yield from _straggler(ledger, write)
    else:
        yield _slower(ledger, loss.value, write)
        yield "" if has_headline else f"By terms: {by_terms}"
        yield _fixed_compute(ledger, loss.value, write)
        yield from explanation(ledger, write)
        yield from _straggler(ledger, write)
    if loss is not None:
        yield from graph_sentences(ledger, write)
        yield from host_bound_sentences(ledger, write)
    if not ledger.late_results:
        yield from network_sentences(ledger.network)
    yield from _confidence(ledger, write)


def _same_in_all_runs(ledger: Ledger) -> str:
    """That who is late in a step does not depend on the run; empty where it does, and where ranks hardly wait."""
    wait = next((term.mean.value for term in ledger.terms if term.name == WAIT.name), 0.0)
    if ledger.verdict.repeats is None or wait < SMALL * ledger.step.value:
        return ""
    who = "Of the others" if ledger.verdict.ranks else "Of all ranks"
    return (
        f"{who} the same are late in the same steps of each run (correlation {ledger.verdict.repeats:.2f}): their work "
        "is uneven, by batches, lengths or tokens; it is not their machines"
    )


def _within_scatter(ledger: Ledger, loss: Mean, write: Figures, *, has_headline: bool) -> Iterator[str]:
    """What is known first, the straggler or ranks that lack cores; then that the loss is not."""
    yield from _oversubscription(ledger, write)
    if ledger.verdict.ranks:
        yield from _straggler(ledger, write)
        yield f"Whether a step is slower than on {ledger.result.base_case}, and by how much, the runs cannot tell"
        return
    slower = _slower(ledger, loss.value, write)
    if ledger.core_wait is None and not ledger.result.oversubscribed:
        yield slower if has_headline else f"{slower}, which is within the scatter: no cause of it is named"
    else:
        yield f"{slower}, which is within the scatter"
        yield "" if has_headline else _core_wait(ledger, write)
    yield from _straggler(ledger, write)


def _core_wait(ledger: Ledger, write: Figures) -> str:
    """`For 66.20 ms a step ranks that are ready to run wait for a core: …`; empty where they do not, and where that is
    said before."""
    if ledger.result.oversubscribed:
        return ""
    wait = ledger.core_wait
    return "" if wait is None else f"For {write.ms(wait.ms)} a step {core_wait_text(ledger)}"


def _slower(ledger: Ledger, loss_ms: float, write: Figures) -> str:
    """`30.51 ms a step slower than 1n1g (88.82 instead of 58.31 ms)`."""
    ideal = write.ms(sum(term.baseline or 0.0 for term in ledger.terms))
    base, scaling = ledger.result.base_case, ""
    if ledger.scale != 1:
        base = f"{base} divided by {1 / ledger.scale:.3g}"
        reason = "strong scaling" if ledger.result.run.scaling == "strong" else "a batch shared by ranks"
        scaling = f", {reason} on {times_devices(ledger.result)}"
    way = "faster" if loss_ms < 0 else "slower"
    times = f"{write.bare(ledger.step.value)} instead of {ideal}{scaling}"
    return f"{write.ms(abs(loss_ms))} a step {way} than {base} ({times})"


def _by_terms(ledger: Ledger, write: Figures) -> str:
    """The losses of SMALL and more, the largest part of the whole first, and the rest as one: they add up to it.

    Where there is no base, the terms themselves.
    """
    whole = ledger.step if ledger.loss is None else ledger.loss
    pairs = [(term, term.mean if ledger.loss is None else term.loss) for term in ledger.causes]
    ordered = sorted(
        ((term, mean) for term, mean in pairs if mean is not None),
        key=lambda pair: pair[1].value if whole.value < 0 else -pair[1].value,
    )
    named = [(term, mean) for term, mean in ordered if abs(mean.value) >= SMALL * abs(whole.value)]
    rest = sum(mean.value for _, mean in ordered) - sum(mean.value for _, mean in named)
    sign = "" if ledger.loss is None else "+"
    parts = [
        f"{term.name} {write.ms(mean.value) if ledger.loss is None else write.change(mean)}{share(term)}"
        for term, mean in named
    ]
    return ", ".join([*parts, *([f"the rest {write.ms(rest, sign)}"] if float(write.bare(rest)) else [])])


def straggler_first(ledger: Ledger) -> bool:
    """Whether more is lost to the straggler than in any term but the wait for it, where something is lost; without a
    base, whether it costs more than SMALL."""
    if ledger.verdict.kind not in (PERSISTENT, ROTATING, TRANSIENT) or len(ledger.ranks) < 2:
        return False
    if ledger.loss is None:
        return ledger.verdict.costs > SMALL * ledger.step.value
    if ledger.loss.value <= 0:
        return False
    together = ledger.straggler_at_base.together
    others = [term for term in ledger.causes if term.name != WAIT.name and term is not together]
    return ledger.straggler_loss > max((term.loss.value for term in others if term.loss), default=0.0)


def _straggler(
    ledger: Ledger, write: Figures, lead: str = "Straggler: ", *, has_headline: bool = False
) -> Iterator[str]:
    """A script's pauses; the straggler and those behind it, or that there is none; whether all runs show the same."""
    if ledger.late_results:
        yield from network_sentences(ledger.network)
        yield from (_late_result(each, ledger, write) for each in ledger.late_results)
    yield from pause_sentences(ledger, write)
    yield from _stragglers(ledger, write, lead, has_headline=has_headline)
    yield _same_in_all_runs(ledger)


def _stragglers(ledger: Ledger, write: Figures, lead: str, *, has_headline: bool) -> Iterator[str]:
    """The straggler, what shows in its telemetry, what to do, and those behind it; nothing where there is one rank."""
    verdict = ledger.verdict
    if len(ledger.ranks) < 2:
        return
    if not verdict.ranks:
        yield _nobody(verdict, ledger, write)
        yield from (_beside(each, ledger, write) for each in ledger.further)
        return
    text = f"{lead}{_late(verdict, ledger, write)}"
    if verdict.costs > 0:
        at_base = ledger.straggler_at_base.costs
        already = f", and one costs {write.ms(at_base)} on {ledger.result.base_case} already" if at_base > 0 else ""
        text = f"{text}, which costs {write.ms(verdict.costs)} a step{already}"
    if (without := ledger.without_straggler) and not has_headline:
        of_mean = "" if verdict.in_runs == verdict.of_runs else " by the mean step of all runs"
        text = f"{text}; without that {without_text(without, ledger.result.unit)}{of_mean}"
    yield text
    yield _unseen_inside(ledger)
    if isinstance(verdict.because, Unseen):
        yield f"{capitalized(unseen_text(verdict.because))}; what any rank takes longer before that comes on top"
    yield chain_text(verdict, write)
    shown = ledger.symptoms and (ledger.symptoms[0].quantity != Cause.SLEEPS or ledger.straggler_input is None)
    if shown and not _leaves_late(verdict, ledger):
        yield from _first_symptom(
            ledger.symptoms, verdict
        )  # else it waits for its batches: see the input's own sentence
    yield _leaves_late(verdict, ledger)
    if ledger.straggler_input is not None:
        yield from late_input(ledger.straggler_input, write)
    else:
        yield pace_text(ledger.paces, write)
    for at, further in enumerate(ledger.further):
        if further.kind in (FASTER, SHARED):
            yield _beside(further, ledger, write)
            continue
        in_same_runs = verdict.in_runs / verdict.of_runs + further.in_runs / further.of_runs > 1
        behind = verdict.kind == further.kind == PERSISTENT and in_same_runs  # else in steps, or runs, of its own
        costs = f"which costs {write.ms(further.costs)} a step{' more' if behind else ''}"
        yield f"{'Behind it' if behind else 'Also'} {_late(further, ledger, write)}, {costs}"
        yield chain_text(further, write)
        yield from _first_symptom(ledger.further_symptoms[at] if ledger.further_symptoms else (), further)
        yield pace_text(ledger.further_paces[at] if ledger.further_paces else None, write)


def _nobody(verdict: Verdict, ledger: Ledger, write: Figures) -> str:
    """That nobody is late, or why that is not known."""
    if verdict.kind == NONE:
        return _no_straggler(verdict, ledger, write)
    if verdict.doubt is not None:
        return f"Who is waited for is not known: {_doubt(verdict.doubt, ledger, write)}"
    because = because_text(verdict)
    text = f"Who is waited for is not known{f' ({because})' if because else ''}"
    return f"{text}: the clocks leave {small_time(verdict.bound)} open" if verdict.because is Because.CLOCK else text


def _beside(verdict: Verdict, ledger: Ledger, write: Figures) -> str:
    """`Rank 0 (n0) is 4.00 ms a step faster than all others`; `All ranks are 5.00 ms slower together in 6 % of the
    steps (one in 50), which costs 0.30 ms a step`."""
    if verdict.kind is FASTER:
        who, singular = _who(verdict, ledger)
        faster = f"{'is' if singular else 'are'} {write.ms(-verdict.arrival_skew)} a step faster than all others"
        return f"{capitalized(who)} {faster}, and waits for them" if singular else f"{capitalized(who)} {faster}"
    slower = f"All ranks are {write.ms(verdict.arrival_skew)} slower together {_in_share(verdict)}"
    return f"{slower}{_course(verdict, write)}, which costs {write.ms(verdict.costs)} a step"


def _in_share(verdict: Verdict) -> str:
    return f"in {'less than 1' if verdict.share < 0.005 else f'{verdict.share * 100:.0f}'} % of the steps"


def _late_result(verdict: Verdict, ledger: Ledger, write: Figures) -> str:
    """`The reduction's result reaches rank 1 (host2) 3.94 ms later than the median rank in 62 % of the steps: that is
    the network's, and nobody's own work`."""
    who, _ = _who(verdict, ledger)
    later = f"{write.ms(verdict.cause.get(COMMUNICATION.cause, verdict.arrival_skew))} later"
    shows = "" if ledger.network and ledger.network.findings else ". To do: hpc.sweep --collectives shows each link"
    return (
        f"The reduction's result reaches {who} {later} than {than_whom(ledger)} {_in_share(verdict)}: that is the "
        f"network's, and no work of its own{shows}"
    )


def _leaves_late(verdict: Verdict, ledger: Ledger) -> str:
    """That leaving a collective late is the network's doing, where its counters do not say what kept it from running;
    empty elsewhere."""
    if not verdict.leaves_late or any(each.quantity in NAMED_CAUSES for each in ledger.symptoms):
        return ""
    text = "To leave a collective late is no work of its own: its data come to it last, or it does not run when they do"
    return f"{text}. To do: hpc.sweep --collectives shows each link" if len(ledger.nodes) > 1 else text


def _unseen_inside(ledger: Ledger) -> str:
    """What the cost of a straggler leaves out where ranks are compared at the begin of a step; empty elsewhere."""
    if not any({COMPUTE.name, WAIT.name} <= {*parts_of(term.name)} for term in ledger.terms):
        return ""
    cause = ledger.verdict.cause
    late = "" if max(cause, key=lambda name: cause[name], default="") == DATA.cause else (
        "; to leave the last meeting of a step late, as on busy cores, is to begin the next one late"
    )  # fmt: skip
    return f"Inside of a step nothing is seen, and what a rank takes longer there comes on top{late}"


def _no_straggler(verdict: Verdict, ledger: Ledger, write: Figures) -> str:
    """`No straggler: one that is late by 1.80 ms in every step, or by 9.00 ms in one of ten, would have been
    detected`."""
    nobody = "Between pauses no straggler" if pauses_named(ledger) or ledger.first_steps else "No straggler"
    if verdict.limit is None:
        return f"{nobody}: no rank is late more than equal ranks would be"
    seldom = "" if verdict.seldom_limit is None else f", or by {write.ms(verdict.seldom_limit)} in one of ten,"
    text = f"{nobody}: one that is late by {write.ms(verdict.limit)} in every step{seldom} would have been detected"
    if verdict.seldom_limit is None:
        text += ", but not one that is late in a few of them: the steps are too few"
    if verdict.doubt is not None:
        text += f". Yet {_doubt(verdict.doubt, ledger, write)}"
    return text


def _doubt(doubt: Doubt, ledger: Ledger, write: Figures) -> str:
    """`rank 2 (node1) costs 1.53 ms a step more than the median rank, half of it in 2 of 240 steps: too few to tell it
    from chance`."""
    host = host_of(ledger, doubt.rank)
    who = f"rank {doubt.rank}{f' ({host})' if host else ''}"
    where = f"half of it in {doubt.steps} of {plural(doubt.of_steps, 'step')}"
    return f"{who} costs {write.ms(doubt.costs)} a step more than {than_whom(ledger)}, {where}: that may be chance"


OFTEN, NEARLY_EVERY = 0.3, 0.95
"""From these shares on the steps of a delay are no longer named one by one; what it is on average it is in each."""


def _late(verdict: Verdict, ledger: Ledger, write: Figures) -> str:
    """`rank 3 (node2) computes 30.25 ms longer than the median rank on average, in 90 % of the steps`."""
    in_share = _in_share(verdict)
    if verdict.kind == ROTATING:
        names = verdict.node or (numbers(verdict.ranks) if verdict.ranks else "")
        who = f"{'nodes' if verdict.node else 'ranks'}{f' {names}' if names else ''}"
        phases = _phases(verdict, ledger, singular=True, write=write)
        return f"{who} take turns{_course(verdict, write)}: {in_share} one of them {phases} than {than_whom(ledger)}"
    who, singular = _who(verdict, ledger)
    longer = f"{_phases(verdict, ledger, singular=singular, write=write)} than {than_whom(ledger, singular=singular)}"
    if verdict.kind == TRANSIENT:
        when = f" in {_steps(verdict, ledger)} only" if verdict.share < OFTEN else f" {in_share}"
    elif verdict.share >= NEARLY_EVERY or (verdict.shape and verdict.shape.step is not None):
        when = f" {in_share}"
    else:
        when = f" on average, late {in_share}"
    return f"{who} {longer}{when}{_in_runs(verdict, ledger)}{_course(verdict, write)}{_at_meeting(verdict, write)}"


def _at_meeting(verdict: Verdict, write: Figures) -> str:
    """The collective before which it loses most, where ranks meet several times in a step."""
    name, ms = next(iter(verdict.meetings.items()), ("", 0.0))
    if verdict.kind == TRANSIENT:  # these are means over all steps in which it is late by anything
        share_there = ms / (sum(each for each in verdict.meetings.values() if each > 0) or 1.0)
        return f", before {name}" if name and share_there > MOSTLY else ""
    if not name or ms < NOTABLE_CAUSE * verdict.arrival_skew:
        return ""
    return f", {'' if ms >= NEARLY_ALL * verdict.arrival_skew else f'{write.ms(ms)} of it '}before {name}"


def _phases(verdict: Verdict, ledger: Ledger, *, singular: bool, write: Figures) -> str:
    """What it does longer, the largest part of the arrival skew first; where that is not known, how late it comes."""
    ordered = sorted(verdict.cause.items(), key=lambda part: -part[1])
    parts = [
        (_phrase(cause, verdict, ledger, write), value)
        for place, (cause, value) in enumerate(ordered)
        if not place or value >= NOTABLE_CAUSE * verdict.arrival_skew
    ] or [(ARRIVES, verdict.arrival_skew)]
    return " and ".join((what.singular if singular else what.several).format(write.ms(value)) for what, value in parts)


def _phrase(cause: str, verdict: Verdict, ledger: Ledger, write: Figures) -> Phrase:
    """Of a script it is its own code that a rank runs before its forward, unless its loaders take NEARLY_ALL of that:
    `takes 12.17 ms longer before its forward, 0.30 ms of it for its loader,`."""
    by_loaders = (verdict.loader or 0.0) >= NEARLY_ALL * verdict.cause.get(DATA.cause, 0.0)
    if cause != DATA.cause or ledger.result.run.backend != SCRIPT or by_loaders:
        return phrase(cause)
    its, their = "", ""
    if verdict.loader is not None:
        taken = write.ms(verdict.loader) if float(write.bare(max(0.0, verdict.loader))) else "none"
        its, their = (f", {taken} of it for {whose}," for whose in ("its loader", "their loaders"))
    return Phrase(f"takes {{}} longer before its forward{its}", f"take {{}} longer before their forward{their}")


def _who(verdict: Verdict, ledger: Ledger) -> tuple[str, bool]:
    """The straggler's name, and whether a verb after it is in the singular."""
    if verdict.node:
        return f"node {verdict.node} (ranks {numbers(verdict.ranks)})", True
    if len(verdict.ranks) == 1:
        host = host_of(ledger, verdict.ranks[0])
        return f"rank {verdict.ranks[0]}{f' ({host})' if host else ''}", True
    return f"ranks {numbers(verdict.ranks)}", False


def _first_symptom(symptoms: Sequence[Symptom], verdict: Verdict) -> Iterator[str]:
    """The first symptom of a straggler, and what to do about it."""
    for symptom in symptoms[:1]:
        yield _symptom(symptom, verdict.arrival_skew)
        if (known := SYMPTOMS.get(symptom.quantity)) and known.advice:
            yield f"To do: {known.advice}"


def _symptom(symptom: Symptom, delay_ms: float) -> str:
    """What telemetry shows of the straggler: `It waits for a core 54 % of the time (on the others 0.3), which is 34 %
    of its delay`."""
    known = SYMPTOMS.get(symptom.quantity) or SymptomText(f"{symptom.quantity} {{}} {symptom.unit}".rstrip())
    usual = "" if symptom.quantity == Cause.SLEEPS else f" (on the others {round_number(symptom.usual)})"
    text = f"{known.clause(round_number(symptom.value), symptom.detail)}{usual}"
    if symptom.explains is not None and delay_ms > 0:
        text = f"{text}, which is {100 * symptom.explains / delay_ms:.0f} % of its delay"
    return capitalized(text)


def _course(verdict: Verdict, write: Figures) -> str:
    """The shape of the delay over the steps; empty for a constant one and where it is not known."""
    shape = verdict.shape
    if shape is None or shape.kind is ShapeKind.CONSTANT:
        return ""
    if shape.kind is ShapeKind.BLOCKS:
        return f" every {shape.period} steps or so"
    if shape.period is not None:
        return f" (one in {shape.period})"
    if shape.per_100_steps is not None:
        return f", {shape.kind} by {write.ms(abs(shape.per_100_steps))} in 100 steps"
    return f", from step {shape.step} on" if shape.kind is ShapeKind.BEGINS else f", until step {shape.step}"


def _in_runs(verdict: Verdict, ledger: Ledger) -> str:
    """` of 2 of 3 runs`, ` of run 2 alone`; empty where it is late in all."""
    if verdict.in_runs == verdict.of_runs:
        return ""
    shown_in = [run for run in range(verdict.of_runs) if any(steps != () for _, steps in verdict.cells_of_run(run))]
    if len(shown_in) == 1 and verdict.cells and len(ledger.runs) == verdict.of_runs:
        return f" of run {repeat_of(ledger.runs[shown_in[0]])} of {verdict.of_runs} alone"
    return f" of {verdict.in_runs} of {verdict.of_runs} runs"


def _steps(verdict: Verdict, ledger: Ledger) -> str:
    """`steps 12, 24, …`; run by run where these differ: `step 12 of run 1 and steps 7, 9 of run 3`."""
    by_run = [("", verdict.steps)]
    if not verdict.steps and verdict.run_steps:
        repeats = [f" of run {repeat_of(run)}" for run in ledger.runs]
        by_run = [pair for pair in zip(repeats, verdict.run_steps, strict=False) if pair[1]]
    named = [
        f"{inflect(len(steps), 'step')} {', '.join([*map(str, steps[:NAMED]), *['…'][: len(steps) > NAMED]])}{run}"
        for run, steps in by_run[:NAMED]
    ]
    return " and ".join([*named, *(["others"] if len(by_run) > NAMED else [])])


def _confidence(ledger: Ledger, write: Figures) -> Iterator[str]:
    """The interval of the loss and the runs behind it, what more would give, and what is wrong with the measurement."""
    if ledger.loss is not None:
        yield _interval(ledger, write)
    for shown in ledger.contention[:1]:
        disturbed = CONTENTION[shown.quantity].format(round_number(shown.value))
        case = ledger.result.base_case
        so = "gain is smaller" if ledger.loss is not None and ledger.loss.value < 0 else "loss is larger"
        yield f"Warning: {case} did not have its machine for itself ({disturbed}), so that the {so} than this"
    if any(run.problems for run in ledger.runs):
        yield "The measurement has errors"


def _interval(ledger: Ledger, write: Figures) -> str:
    """`Confidence (95 %): [28.38, 32.63] ms slower, by 3 runs and 3 of 1n1g; 7 of each (--repeats 7) would halve
    the interval`."""
    loss, repeats = ledger.loss, ledger.repeats
    assert loss is not None
    base = ledger.result.base_case
    runs = "" if repeats is None else f", by {plural(repeats.point, 'run')} and {repeats.baseline} of {base}"
    if loss.low is None or loss.high is None:
        return f"Confidence: too few steps for an interval{runs}"
    text = f"{write.interval(loss)} ms slower" if loss.low >= 0 else f"{write.interval(loss, -1)} ms faster"
    if loss.low < 0 < loss.high:
        text = f"between {write.ms(-loss.low)} faster and {write.ms(loss.high)} slower"
    text = f"Confidence ({coverage_text(loss.coverage)}): {text}{runs}"
    if loss.high - loss.value <= WIDE * abs(loss.value) or repeats is None:
        return text
    if min(repeats.point, repeats.baseline) < 2:
        return f"{text}, of this window only: --repeats 3 or more shows how runs differ"
    if repeats.for_half is None:
        return text
    return f"{text}; {repeats.for_half} of each (--repeats {repeats.for_half}) would halve the interval"
