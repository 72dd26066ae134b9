"""A ledger in few words: what a step loses, and how sure that is; what costs most, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpc.model.spec import SCRIPT
from hpc.system.text import capitalized
from parse.ledger.finding import ComputeSplit, CoreLack, LostTerm
from parse.ledger.symptoms import WAITS_FOR_A_CORE
from parse.ledger.types import Ledger
from parse.ledger.verdict import Paced, Straggler
from parse.rules import MATERIAL, NOTABLE, SMALL
from parse.runs.result import times_devices
from parse.say.findings import Words, words
from parse.say.numbers import change_ms, digits, interval_ms, ms, percent, round_number, share
from parse.say.reasons import no_loss_text
from parse.say.straggler import nobody_text
from parse.stats import Mean
from parse.term_kinds import OPTIMIZER, WAIT

TEXTS = 5
"""A paragraph has no more, each of one to three short sentences."""
CONTENTION = {
    WAITS_FOR_A_CORE: "a rank waits for a core {} % of the time",
    "the hypervisor takes from the ranks": "the hypervisor takes {} cores from it",
    "swapped out": "it swaps out {} MB a second",
}
"""By the quantities of `parse.ledger.symptoms.LIMITS`."""


@dataclass(frozen=True, kw_only=True)
class LedgerText:
    """What is said of a ledger, sentences with their full stops: the `paragraph`, the `further` findings, a line each
    with all of its sentences, and the `lesser` ones, which cost less than SMALL of what is lost."""

    paragraph: list[str]
    further: list[str]
    lesser: list[str]


def sentence(ledger: Ledger, name: str, *, terms: bool = True) -> str:
    """The paragraph of a point of this name; without `terms`, where a table beside it has them."""
    return f"{name}: {' '.join(text_of(ledger, terms=terms).paragraph)}"


def text_of(ledger: Ledger, *, terms: bool = True) -> LedgerText:
    """What costs most first, as far as whole findings fit in; the headline and doubts are always there."""
    first, last = headline(ledger, terms=terms), doubts(ledger)
    room = TEXTS - len([text for text in (first, last) if text])
    shown, further, lesser, advised = list[str](), list[str](), list[str](), set[str]()
    for each, is_little in _in_order(ledger):
        sentences = [text for text in each.sentences if text not in advised]
        advised |= {text for text in sentences if text.startswith("To do:")}
        if not further and len(sentences) <= room - len(shown):
            shown += sentences
            further += [_joined([text]) for text in each.more]
        elif sentences:
            (lesser if is_little else further).append(_joined([*sentences, *each.more]))
    paragraph = [f"{text}." for text in (first, *shown, last) if text]
    return LedgerText(paragraph=paragraph, further=further, lesser=lesser)


def _joined(sentences: list[str]) -> str:
    return " ".join(f"{text}." for text in sentences)


def _in_order(ledger: Ledger) -> Iterator[tuple[Words, bool]]:
    """The words of findings whose costs are known, that nobody is late, and the words of the other findings; each with
    whether it costs little."""
    little = SMALL * abs((ledger.loss or ledger.step).value)
    known = [each for each in ledger.findings if ledger.lost_to(each) >= 0]
    yield from ((words(finding, ledger), ledger.lost_to(finding) < little) for finding in known)
    if nobody := nobody_text(ledger):
        yield Words(what=nobody, name="nobody"), False
    yield from ((words(each, ledger), False) for each in ledger.findings if ledger.lost_to(each) < 0)


def headline(ledger: Ledger, *, terms: bool = True) -> str:
    """`30.5 ms a step slower than 1n1g (88.8 instead of 58.3 ms; runs: 28.4 to 32.6). Wait +21.7 ms (70 %), …`; without
    a base how long a step takes, with its terms."""
    loss = ledger.loss
    if loss is None:
        return f"A step takes {ms(ledger.step.value)}{f': {by_terms(ledger)}' if terms else ''}"
    text = _slower(ledger, loss)
    if not ledger.is_resolved:
        return f"{text}, {_why_open(loss)}"
    if ledger.loses_little:
        return f"{text}: less than 1 % of the step, nothing worth naming"
    return f"{text}. {capitalized(by_terms(ledger))}" if terms else text


def _why_open(loss: Mean) -> str:
    """Why a loss whose interval has 0 in it is none: few runs may all be slower, and yet by chance."""
    are_few = loss.runs is not None and loss.runs[0] * loss.runs[1] > 0
    return "which so few runs do not prove" if are_few else "which is within the scatter"


def _slower(ledger: Ledger, loss: Mean) -> str:
    """`30.5 ms a step slower than 1n1g (88.8 instead of 58.3 ms; runs: 28.4 to 32.6)`."""
    ideal = ms(sum(term.baseline or 0.0 for term in ledger.terms))
    base = ledger.result.base_case
    if ledger.scale != 1:
        kind = "ideal strong scaling" if ledger.result.run.scaling == "strong" else "an ideal split of the batch"
        base = f"{kind} of {base} on {times_devices(ledger.result)}"
    way = "faster" if loss.value < 0 else "slower"
    took = f"{digits(ledger.step.value)} instead of {ideal}; {_interval(loss)}"
    return f"{ms(abs(loss.value))} a step {way} than {base} ({took})"


def by_terms(ledger: Ledger) -> str:
    """The losses of SMALL and more, the largest part of the whole first, and the rest as one: `compute +104 ms (66 %),
    wait +30.7 (17 to 53), the rest +2.1`. Where there is no base, the terms themselves."""
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
        f"{_term_name(ledger, term.name)} {ms(mean.value) if ledger.loss is None else change_ms(mean)}{share(term)}"
        for term, mean in named
    ]
    parts += [f"the rest {ms(rest, sign)}"] if abs(rest) >= SMALL / 10 * abs(whole.value) else []
    return ", ".join([*parts[:1], *(part.replace(" ms", "") for part in parts[1:])])


def _term_name(ledger: Ledger, name: str) -> str:
    """A script's optimizer has with it what the script does between that and the next batch."""
    return name.replace(OPTIMIZER.name, "update") if ledger.result.run.backend == SCRIPT else name


def doubts(ledger: Ledger) -> str:
    """Why there is no loss, what is wrong with the measurement, and how many runs would halve a wide interval."""
    reason = no_loss_text(ledger)
    parts = [f"No loss is given: {reason}"] if reason else []
    for shown in ledger.contention[:1]:
        disturbed = CONTENTION[shown.quantity].format(round_number(shown.value))
        so = "gain is smaller" if ledger.loss is not None and ledger.loss.value < 0 else "loss is larger"
        parts.append(f"{ledger.result.base_case} shared its machine ({disturbed}): the {so} than this")
    if ledger.result.oversubscribed and not ledger.findings_of(CoreLack):
        parts.append(capitalized(ledger.result.oversubscribed))
    if any(run.problems for run in ledger.runs):
        parts.append("The measurement has errors")
    parts += _more_runs(ledger, ledger.loss)
    return ". ".join(parts)


def _interval(loss: Mean) -> str:
    """`95 %: 28.4 to 32.6`; of few runs `runs: 1.2 faster to 4.1 slower`."""
    if loss.shown is None:
        return "too few steps for an interval"
    low, high = loss.shown
    text = interval_ms(loss, 1 if low >= 0 else -1)
    if low < 0 < high:
        text = f"{digits(-low)} faster to {digits(high)} slower"
    return f"{'95 %' if loss.runs is None else 'runs'}: {text}"


def _more_runs(ledger: Ledger, loss: Mean | None) -> Iterator[str]:
    """`14 runs of each (--repeats 14) would halve the interval`, where it is wide."""
    repeats = ledger.repeats
    if loss is None or loss.shown is None or loss.runs is not None or repeats is None:
        return
    if loss.shown[1] - loss.value <= NOTABLE * abs(loss.value):
        return
    if min(repeats.point, repeats.baseline) < 2:
        yield "The interval is of this window only: --repeats 3 or more shows how runs differ"
    elif repeats.for_half is not None:
        yield f"{repeats.for_half} runs of each (--repeats {repeats.for_half}) would halve the interval"


# The same in a figure.


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What holds a point back most: a `figure`, what it is `of`, and whether no cause can be named."""

    figure: str
    of: str
    doubt: bool = False


def largest(ledger: Ledger) -> Headline:
    """The share of the loss, or of a step, of the first finding, or of the term that loses most, if that is more."""
    loss, base, shared = ledger.loss, ledger.result.base_case, ledger.result.oversubscribed
    known = (each for each in ledger.findings if ledger.lost_to(each) >= MATERIAL * ledger.step.value)
    first = next((each for each in known if not isinstance(each.what, (ComputeSplit, LostTerm))), None)
    if loss is not None and (loss.value <= 0 or ledger.loses_little):
        little = "a step takes no longer" if loss.value <= 0 else "less than 1 % of a step"
        return Headline(figure="nothing", of=f"is lost against {base}: {little}")
    if shared and (first is None or not isinstance(first.what, (Straggler, CoreLack))):
        return Headline(figure="oversubscribed", of=shared)
    of, whole, in_terms = "a step", ledger.step.value, [0.0]
    if loss is not None and ledger.is_resolved:
        of, whole = "the loss", loss.value
        in_terms += [each.loss.value for each in ledger.causes if each.loss and each.name != WAIT.name]
    if first is not None and ledger.lost_to(first) >= max(in_terms):
        is_most = isinstance(first.what, Straggler) and first.what.paced is Paced.PERHAPS
        share_of_it = percent(min(1.0, ledger.lost_to(first) / whole))
        return Headline(
            figure=f"≤ {share_of_it}" if is_most else share_of_it, of=f"of {of} is {words(first, ledger).name}"
        )
    return _largest_term(ledger, loss)


def _largest_term(ledger: Ledger, loss: Mean | None) -> Headline:
    """Where no finding loses as much as a term: the term that loses most, or why none can be named."""
    if loss is None:
        return Headline(figure=ms(ledger.step.value), of="a step; nothing is here to compare it with", doubt=True)
    lost, name = max(((term.loss, term.name) for term in ledger.causes if term.loss), key=lambda pair: pair[0].value)
    term = _term_name(ledger, name)
    scatter = f"can be named: {term} loses most, within the scatter of the runs"
    if not ledger.is_resolved:
        scatter = "can be named: what a step loses is within the scatter of the runs"
    if not ledger.is_resolved or (lost.low is not None and not lost.resolved):
        return Headline(figure="no cause", of=scatter, doubt=True)
    without = f"without it a step would take {ms(ledger.step.value - lost.value)}"
    return Headline(figure=percent(min(1.0, lost.value / loss.value)), of=f"of the loss is {term}: {without}")
