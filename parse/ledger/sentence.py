"""A ledger in one plain sentence: why a step takes as long as it does. Its figures are written alike everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpc.system.text import inflect
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Ledger, Mean, Term, Verdict

DUE_TO = {
    "release": "leaving the reduction before later",
    "update": "{whose} previous update",
    "data": "{whose} data",
    "compute": "{whose} compute",
}
"""What CAUSES are called after the rank that is late."""
SMALL = 0.05
"""Losses below this share of the whole, and mean and median step closer than this, are not worth a word."""
NOTABLE_CAUSE = 0.1
"""What makes up less of a lateness is not named beside the largest cause."""
NAMED = 5
"""As many steps of a transient straggler are named, or ranks that do not follow on one another."""
SHORT_MS = 10
"""Steps below this are told to the microsecond, others to the hundredth of a millisecond."""
MICROSECONDS_BELOW_MS = 0.1
"""Bounds below this are told in microseconds."""


def sentence(ledger: Ledger, name: str) -> str:
    """Why a step of the point takes as long as it does, the largest cause first; `name` is the point's."""
    write = Figures([ledger])
    text = f"{name}: a step takes {write.ms(ledger.step.value)}"
    by_terms, straggler = _by_terms(ledger, write), _straggler(ledger, write)
    causes = [by_terms, straggler]
    if _straggler_first(ledger):
        causes = [straggler, f"the {'step' if ledger.loss is None else 'loss'} by terms: {by_terms}"]
    if ledger.loss is None:
        causes += [f"no loss is given: {ledger.no_loss}"]
    else:
        text += f", {_longer(ledger.loss, write)} than {_baseline(ledger, write)}"
        if _within_scatter(ledger.loss):
            causes = ["within the scatter, so no cause of it is named", straggler]
    causes += ["the measurement has errors"] if ledger.problems else []
    return f"{text}: {'; '.join(cause for cause in causes if cause)}"


def verdict_text(verdict: Verdict) -> str:
    """`persistent`, `rotating`, `transient`, `none`, `cannot tell (clock)`."""
    return f"{verdict.kind} ({verdict.because})" if verdict.kind == CANNOT_TELL and verdict.because else verdict.kind


def node_names(ledger: Ledger) -> list[str]:
    """What its nodes are called; those that are only groups of ranks on one machine with their number."""
    names = [node.name for node in ledger.nodes]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}:{place}" for place, name in enumerate(names)]


def host_of(ledger: Ledger, rank: int) -> str:
    """The name of the node that a rank is on; empty where nobody says."""
    named = zip(node_names(ledger), ledger.nodes, strict=True)
    return next((name for name, node in named if rank in node.ranks), "")


def numbers(ranks: Sequence[int]) -> str:
    """`0 to 7`, `2, 5`, `1, 4, 6, 7, 9, … (12)`: ranks in few words."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f", … ({len(ranks)})" if len(ranks) > NAMED else ""
    return f"{', '.join(map(str, ranks[:NAMED]))}{more}"


def fine(ms: float) -> str:
    """A small time: in microseconds below SAYING_MS."""
    return f"{ms * 1e3:.1f} µs" if ms < MICROSECONDS_BELOW_MS else f"{ms:.2f} ms"


def share(term: Term) -> str:
    """` (62 %)` of the whole loss, where both are larger than their intervals; else empty."""
    return "" if term.share is None or term.loss is None or not term.loss.resolved else f" ({term.share * 100:.0f} %)"


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

    def margin(self, mean: Mean) -> str:
        """`±0.30`; an interval whose middle is another value in full, and empty where there is none."""
        if mean.low is None or mean.high is None:
            return ""
        below, above = self.bare(mean.value - mean.low), self.bare(mean.high - mean.value)
        return f"±{above}" if below == above else self.interval(mean)

    def change(self, mean: Mean) -> str:
        """With its sign and unit; with its interval where 0 is in it."""
        interval = "" if mean.resolved else f" {self.interval(mean)}".rstrip()
        return f"{self.ms(mean.value, '+')}{interval}"


def _longer(loss: Mean, write: Figures) -> str:
    sign = -1 if loss.value < 0 else 1
    interval = write.interval(loss, sign) or "(too few steps for an interval)"
    return f"{write.ms(abs(loss.value))} {interval} {'shorter' if sign < 0 else 'longer'}"


def _baseline(ledger: Ledger, write: Figures) -> str:
    parts = [term.baseline for term in ledger.terms if term.baseline is not None]
    step = f" {write.ms(sum(parts))}" if len(parts) == len(ledger.terms) else " step"
    if ledger.result.run.scaling == "strong":
        return f"1n1g's divided by {ledger.result.run.devices} devices,{step} (strong scaling)"
    return f"1n1g's{step}"


def _within_scatter(loss: Mean) -> bool:
    return not loss.resolved and loss.low is not None


def _by_terms(ledger: Ledger, write: Figures) -> str:
    """The losses worth a word, those first that make the whole what it is, and the rest as one: they add up to it.

    Where there is no baseline, the terms themselves.
    """
    whole = ledger.step if ledger.loss is None else ledger.loss
    pairs = [(term, term.mean if ledger.loss is None else term.loss) for term in ledger.terms]
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


def _straggler_first(ledger: Ledger) -> bool:
    """Whether one who is late costs more than any term but the waiting for it; without a baseline, more than SMALL."""
    if ledger.verdict.kind not in (PERSISTENT, ROTATING, TRANSIENT) or len(ledger.ranks) < 2:
        return False
    if ledger.loss is None:
        return ledger.verdict.costs > SMALL * ledger.step.value
    others = [term.loss.value for term in ledger.terms if term.loss is not None and term.name != "wait"]
    return ledger.verdict.costs > max(others, default=0.0)


def _straggler(ledger: Ledger, write: Figures) -> str:
    """Who is waited for; empty where there is nobody who could be."""
    verdict = ledger.verdict
    if len(ledger.ranks) < 2:
        return ""
    if verdict.kind == NONE:
        return "no rank is late more than equal ranks would be"
    if verdict.kind == CANNOT_TELL:
        reason = f" ({verdict.because})" if verdict.because else ""
        if verdict.because == "clock":
            return f"who is waited for cannot be told{reason}: the clocks leave {fine(verdict.bound)} open"
        return f"who is waited for cannot be told{reason}"
    late = f"by {write.ms(verdict.late)}{_due_to(verdict, write)}"
    in_steps = f"in {verdict.share * 100:.0f} % of the steps"
    who = _who(verdict, ledger)
    if verdict.kind == PERSISTENT:
        text = f"{who} late {in_steps} {late}"
    elif verdict.kind == TRANSIENT:
        steps = ", ".join([*map(str, verdict.steps[:NAMED]), *(["…"] if len(verdict.steps) > NAMED else [])])
        text = f"{who} late in {inflect(len(verdict.steps), 'step')} {steps} only, {late}"
    else:
        names = verdict.node or (numbers(verdict.ranks) if verdict.ranks else "")
        who = "nodes" if verdict.node else "ranks"
        text = f"{who} take turns in being late{f' ({names})' if names else ''}: {in_steps} one is, {late}"
    return f"{text}, which costs {write.ms(verdict.costs)} a step" if verdict.costs > 0 else text


def _due_to(verdict: Verdict, write: Figures) -> str:
    """What the lateness consists of, the largest part first; empty where that is not known."""
    whose = "its" if len(verdict.ranks) == 1 or verdict.node or verdict.kind == ROTATING else "their"
    parts = sorted(verdict.cause.items(), key=lambda part: -part[1])
    causes = [
        f"{DUE_TO.get(cause, cause).format(whose=whose)} ({write.ms(value, '+')})"
        for place, (cause, value) in enumerate(parts)
        if not place or value >= NOTABLE_CAUSE * verdict.late
    ]
    return f" for {' and '.join(causes)}" if causes else ""


def _who(verdict: Verdict, ledger: Ledger) -> str:
    if verdict.node:
        return f"node {verdict.node} (ranks {numbers(verdict.ranks)}) is"
    if len(verdict.ranks) == 1:
        host = host_of(ledger, verdict.ranks[0])
        return f"rank {verdict.ranks[0]}{f' ({host})' if host else ''} is"
    return f"ranks {numbers(verdict.ranks)} are"
