"""A ledger in words: one sentence that says why a step takes as long as it does, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parse.ledger.nouns import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Ledger, Mean, Place, Term, Verdict

DUE_TO = {
    "release": "leaving the reduction before later",
    "update": "its previous update",
    "data": "its data",
    "compute": "its compute",
}
"""What CAUSES are called after the rank that is late."""
SMALL = 0.05
"""Losses below this share of the whole, and mean and median step closer than this, are not worth a word."""
NOTABLE_CAUSE = 0.1
"""What makes up less of a lateness is not named beside the largest cause."""
NAMED_STEPS = 5
"""As many steps of a transient culprit are named."""
SHORT_MS = 10
"""Steps below this are told to the microsecond, others to the hundredth of a millisecond."""
SAYING_MS = 0.1
"""Bounds below this are told in microseconds."""


def sentence(ledger: Ledger, name: str) -> str:
    """Why a step of the point takes as long as it does, the largest cause first; `name` is the point's."""
    write = Figures([ledger])
    takes = f"{name}: a step takes {write.ms(ledger.step.value)}"
    if ledger.loss is None:
        said = [_largest(ledger, write), _culprit(ledger, write), f"no loss is given: {ledger.no_loss}"]
        return f"{takes}: {'; '.join(part for part in said if part)}"
    longer = f"{write.ms(abs(ledger.loss.value))} {'longer' if ledger.loss.value >= 0 else 'shorter'}"
    than = _than(ledger, write)
    if not ledger.loss.resolved:
        scatter = f"{longer} than {than} is within the scatter {write.interval(ledger.loss)}; no cause of it is named"
        if ledger.loss.low is None:
            scatter = f"{longer} than {than}, from too few steps for an interval: {_losses(ledger, write)}"
        return "; ".join(part for part in (f"{takes}; {scatter}", _culprit(ledger, write)) if part)
    said = [_losses(ledger, write), _culprit(ledger, write)]
    if _culprit_first(ledger):
        said = [said[1], f"in terms: {said[0]}"]
    interval = write.interval(ledger.loss, abs(ledger.loss.value) / ledger.loss.value)
    return f"{takes}, {longer} {interval} than {than}: {'; '.join(part for part in said if part)}"


def verdict_word(verdict: Verdict) -> str:
    """`persistent`, `rotating`, `transient`, `none`, `cannot tell (clock)`."""
    return f"{verdict.kind} ({verdict.because})" if verdict.kind == CANNOT_TELL and verdict.because else verdict.kind


def notes(ledger: Ledger) -> Iterator[str]:
    """What else there is to know of the point, a line each."""
    write = Figures([ledger])
    if ledger.merged:
        yield f"{' and '.join(term.name for term in ledger.terms if '+' in term.name) or 'terms'}: {ledger.merged}"
    yield from _split(ledger, write)
    yield from _alone(ledger, write)
    yield from ledger.telemetry
    yield from _clock(ledger, write)
    apart = ledger.median_step / ledger.step.value - 1
    if abs(apart) > SMALL:
        yield (
            f"the median step takes {write.ms(ledger.median_step)}, {abs(apart):.0%} {'less' if apart < 0 else 'more'} "
            "than the mean, which the terms add up to"
        )
    yield from _pauses(ledger)
    yield from ledger.remarks


def host_of(ledger: Ledger, rank: int) -> str:
    """The name of the node that a rank is on; empty where nobody says."""
    return next((node.name for node in ledger.nodes if rank in node.ranks), "")


def numbers(ranks: Sequence[int]) -> str:
    """`0 to 7`, `2, 5`: ranks in few words."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


class Figures:
    """How milliseconds are written: all figures of these ledgers with as many decimals."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.decimals = 3 if min((ledger.step.value for ledger in ledgers), default=SHORT_MS) < SHORT_MS else 2

    def bare(self, value: float, sign: str = "") -> str:
        """Without a unit; `sign` `+` shows it. Never a minus before a zero."""
        return f"{round(value, self.decimals) + 0.0:{sign}.{self.decimals}f}"

    def ms(self, value: float, sign: str = "") -> str:
        """With its unit."""
        return f"{self.bare(value, sign)} ms"

    def interval(self, mean: Mean, factor: float = 1) -> str:
        """`[11.80, 12.40]`; empty where there is none."""
        if mean.low is None or mean.high is None:
            return ""
        low, high = sorted((mean.low * factor, mean.high * factor))
        return f"[{self.bare(low)}, {self.bare(high)}]"

    def change(self, mean: Mean) -> str:
        """With its sign and unit; with its interval where 0 is in it."""
        interval = "" if mean.resolved else f" {self.interval(mean)}".rstrip()
        return f"{self.ms(mean.value, '+')}{interval}"


def _than(ledger: Ledger, write: Figures) -> str:
    parts = [term.baseline for term in ledger.terms if term.baseline is not None]
    step = f" {write.ms(sum(parts))}" if len(parts) == len(ledger.terms) else " step"
    if ledger.result.run.scaling == "strong":
        return f"1n1g's divided by {ledger.result.run.devices} devices,{step} (strong scaling)"
    return f"1n1g's{step}"


def _largest(ledger: Ledger, write: Figures) -> str:
    """The terms themselves, those worth a word, where there is nothing to lose against."""
    terms = sorted(ledger.terms, key=lambda term: -term.mean.value)
    said = [term for term in terms if abs(term.mean.value) >= SMALL * ledger.step.value]
    rest = sum(term.mean.value for term in terms if term not in said)
    parts = [f"{term.name} {write.ms(term.mean.value)}" for term in said]
    return ", ".join([*parts, *([f"the rest {write.ms(rest)}"] if len(said) < len(terms) else [])])


def _losses(ledger: Ledger, write: Figures) -> str:
    """The losses worth a word, those first that make the whole what it is, and the rest as one: they add up to it."""
    whole = ledger.loss.value if ledger.loss else 0.0
    found = [(term, term.loss) for term in ledger.terms if term.loss is not None]
    found.sort(key=lambda pair: -pair[1].value if whole >= 0 else pair[1].value)
    said = [(term, loss) for term, loss in found if abs(loss.value) >= SMALL * abs(whole)]
    rest = sum(loss.value for _, loss in found) - sum(loss.value for _, loss in said)
    parts = [f"{term.name} {write.change(loss)}{share(term)}" for term, loss in said]
    return ", ".join([*parts, *([f"the rest {write.ms(rest, '+')}"] if len(said) < len(found) else [])])


def share(term: Term) -> str:
    """` (62 %)` of the whole loss, where both are larger than their intervals; else empty."""
    return "" if term.share is None or term.loss is None or not term.loss.resolved else f" ({term.share * 100:.0f} %)"


def _culprit_first(ledger: Ledger) -> bool:
    """Whether one who is late costs more than any term but the waiting for it."""
    others = [term.loss.value for term in ledger.terms if term.loss is not None and term.name != "wait"]
    return ledger.verdict.kind in (PERSISTENT, ROTATING, TRANSIENT) and ledger.verdict.costs > max(others, default=0.0)


def _culprit(ledger: Ledger, write: Figures) -> str:
    """Who is waited for; empty where there is nobody who could be."""
    verdict = ledger.verdict
    if len(ledger.ranks) < 2:
        return ""
    if verdict.kind == NONE:
        return "no rank is late more than equal ranks would be"
    if verdict.kind == CANNOT_TELL:
        why = f" ({verdict.because})" if verdict.because else ""
        if verdict.because == "clock":
            return f"who is waited for cannot be told{why}: the clocks leave {fine(verdict.bound)} open"
        return f"who is waited for cannot be told{why}"
    late = f"by {write.ms(verdict.late)}{_due_to(verdict, write)}"
    in_steps = f"in {verdict.share * 100:.0f} % of the steps"
    who = _who(verdict, ledger)
    if verdict.kind == PERSISTENT:
        said = f"{who} {_is(verdict)} late {in_steps} {late}"
    elif verdict.kind == TRANSIENT:
        steps = ", ".join(
            [*map(str, verdict.steps[:NAMED_STEPS]), *(["…"] if len(verdict.steps) > NAMED_STEPS else [])]
        )
        said = f"{who} {_is(verdict)} late in step{'' if len(verdict.steps) == 1 else 's'} {steps} only, {late}"
    else:
        turns = f" ({numbers(verdict.ranks)})" if verdict.ranks else ""
        said = f"ranks take turns{turns} in being late, {in_steps} {late}"
    return f"{said}, which costs {write.ms(verdict.costs)} a step" if verdict.costs > 0 else said


def _due_to(verdict: Verdict, write: Figures) -> str:
    """What the lateness consists of, the largest part first; empty where that is not known."""
    parts = sorted(verdict.cause.items(), key=lambda part: -part[1])
    said = [
        f"{DUE_TO.get(cause, cause)} ({write.ms(value, '+')})"
        for place, (cause, value) in enumerate(parts)
        if not place or value >= NOTABLE_CAUSE * verdict.late
    ]
    return f" for {' and '.join(said)}" if said else ""


def _who(verdict: Verdict, ledger: Ledger) -> str:
    if verdict.node:
        return f"node {verdict.node} (rank{'' if len(verdict.ranks) == 1 else 's'} {numbers(verdict.ranks)})"
    if len(verdict.ranks) == 1:
        host = host_of(ledger, verdict.ranks[0])
        return f"rank {verdict.ranks[0]}{f' ({host})' if host else ''}"
    return f"one of the ranks {numbers(verdict.ranks)}" if verdict.ranks else "some rank"


def _is(verdict: Verdict) -> str:
    return "is"


def fine(ms: float) -> str:
    """A small time: in microseconds below SAYING_MS."""
    return f"{ms * 1e3:.1f} µs" if ms < SAYING_MS else f"{ms:.2f} ms"


def _split(ledger: Ledger, write: Figures) -> Iterator[str]:
    split = ledger.split
    loss = next((term.loss for term in ledger.terms if term.name == "compute"), None)
    if split is None or loss is None:
        return
    if split.contention is None or split.interference is None:
        if loss.resolved and loss.value > 0:
            yield (
                f"compute {write.change(loss)}: all of it unexplained; a twin with reduction off (--twin) would tell "
                "contention from interference"
            )
        return
    yield (
        f"compute {write.change(loss)}: contention {write.change(split.contention)} (lost with reduction off, too), "
        f"interference {write.change(split.interference)} (what reducing beside it adds), "
        f"unexplained {write.ms(split.unexplained, '+')}"
    )


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


def _clock(ledger: Ledger, write: Figures) -> Iterator[str]:
    """How far the clocks can be trusted, and what they make of the throughput's step."""
    if len(ledger.ranks) < 2:
        return
    bound = f"the clocks leave up to {fine(max((run.bound for run in ledger.runs), default=0.0))} open"
    skew = f"{fine(abs(ledger.skew))} {'longer' if ledger.skew >= 0 else 'shorter'}: end skew less start skew"
    yield f"{bound}; the throughput's step is {skew}"
    chance = ledger.verdict.chance
    words = [verdict_word(run.verdict) for run in ledger.runs]
    said = f"culprit {verdict_word(ledger.verdict)}"
    if chance is not None:
        said += f"; of equal ranks {'fewer than 0.1' if chance < 1e-3 else f'{chance * 100:.1f}'} % would show as much"
    if len({*words}) > 1:
        runs = ", ".join(
            f"{run.run_id.rpartition('_')[2]} {word}" for run, word in zip(ledger.runs, words, strict=True)
        )
        said += f"; the runs differ: {runs}"
    yield said


def _pauses(ledger: Ledger) -> Iterator[str]:
    for run in ledger.runs:
        if run.pauses:
            longest = f", the longest {max(run.pauses):.0f}" if len(run.pauses) > 1 else ""
            count = f"{len(run.pauses)} pause{'' if len(run.pauses) == 1 else 's'} between blocks"
            yield f"{run.run_id}: {count}, outside every number: {sum(run.pauses):.0f} ms{longest}"


def places_worth_a_row(ledger: Ledger, places: Sequence[Place], most: int) -> list[Place]:
    """At most so many places: those that the verdict names, those that come last most, and the one that waits most."""
    if len(places) <= most:
        return list(places)
    names = [term.name for term in ledger.terms]
    waits = names.index("wait") if "wait" in names else None
    named = {*ledger.verdict.ranks}

    def order(place: Place) -> tuple[bool, float]:
        return not named & {*place.ranks}, -(place.last or 0.0)

    chosen = sorted(places, key=order)[:most]
    if waits is not None:
        fastest = max(places, key=lambda place: place.terms[waits])
        chosen = chosen if fastest in chosen else [*chosen[:-1], fastest]
    return [place for place in places if place in chosen]
