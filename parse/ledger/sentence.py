"""A ledger as text: one sentence on the time of a step, and the text of its enums and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpc.system.text import inflect
from parse.ledger.types import (
    CANNOT_TELL,
    NONE,
    PERSISTENT,
    ROTATING,
    TRANSIENT,
    Because,
    Ledger,
    Mean,
    Merged,
    NoLoss,
    StampErrors,
    Term,
    Verdict,
)  # fmt: skip

DUE_TO = {
    "release": "leaving the reduction before later",
    "optimizer": "{whose} previous optimizer step",
    "data": "{whose} data",
    "compute": "{whose} compute",
}
"""CAUSES, as written behind the rank that is late."""
SMALL = 0.05
"""Losses below this share of the whole, and a median closer to the mean than this, are left out."""
NOTABLE_CAUSE = 0.1
"""A smaller share of the arrival skew is not named beside the largest cause."""
NAMED = 5
"""As many steps of a transient straggler, or ranks that do not follow on one another, are named."""
SHORT_MS = 10
"""Steps below this are written to the microsecond, others to the hundredth of a millisecond."""
MICROSECONDS_BELOW_MS = 0.1
"""Bounds below this are written in microseconds."""


NO_LOSS = {
    NoLoss.IS_BASELINE: "it is the baseline",
    NoLoss.NO_BASELINE: "no 1n1g baseline with all else equal is here",
    NoLoss.BASELINE_NOT_OK: "no run of its 1n1g baseline ended ok with a trace",
}


def sentence(ledger: Ledger, name: str) -> str:
    """Why a step of the point takes as long as it does, the largest cause first; `name` is the point's."""
    write = Figures([ledger])
    text = f"{name}: a step takes {write.ms(ledger.step.value)}"
    by_terms, straggler = _by_terms(ledger, write), _straggler(ledger, write)
    causes = [by_terms, straggler]
    if _straggler_first(ledger):
        causes = [straggler, f"the {'step' if ledger.loss is None else 'loss'} by terms: {by_terms}"]
    if ledger.loss is None:
        causes += [f"no loss is given: {no_loss_text(ledger)}"]
    else:
        text += f", {_longer(ledger.loss, write)} than {_baseline(ledger, write)}"
        if not ledger.loss.resolved and ledger.loss.low is not None:
            causes = ["within the scatter, so no cause of it is named", straggler]
    causes += ["the measurement has errors"] if any(run.problems for run in ledger.runs) else []
    return f"{text}: {'; '.join(cause for cause in causes if cause)}"


def no_loss_text(ledger: Ledger) -> str:
    """Why there is no loss; empty where there is one."""
    return NO_LOSS[ledger.no_loss] if ledger.no_loss else ""


def merged_text(reasons: Sequence[Merged]) -> str:
    """Why terms are one: which time stamps are missing, or which collectives come before the gradients are complete."""
    return "; ".join(dict.fromkeys(reason for merged in reasons for reason in _merge_reasons(merged)))


def _merge_reasons(merged: Merged) -> Iterator[str]:
    for border, count, total in merged.missing:
        where = "any step" if count >= total else f"{count} of {total} (ranks × steps)"
        yield f"{border} was not recorded in {where}"
    if merged.not_reduced:
        yield "gradients are not reduced"
    if merged.early_collectives:
        yield f"ranks meet before their gradients are complete: {', '.join(merged.early_collectives)}"


def problem_texts(errors: StampErrors | None) -> list[str]:
    """Each kind of time stamps that cannot be right."""
    if errors is None:
        return []
    of = f"of {errors.total} (ranks × steps)"
    texts = {
        f"{errors.disordered} stamps {of} lie before one that must come before them": errors.disordered,
        f"{errors.gaps} steps {of} do not begin where the one before them ended": errors.gaps,
        f"in {errors.early} {of} the reduced gradients are there before the last rank has its own, by up to "
        f"{errors.early_ms:.3f} ms more than the clocks' bounds: the stamps or the clocks are wrong": errors.early,
    }
    return [text for text, count in texts.items() if count]


def ledger_problems(ledger: Ledger) -> list[str]:
    """The errors of the measurement, over all runs."""
    return [f"{run.run_id}: {problem}" for run in ledger.runs for problem in problem_texts(run.problems)]


def because_text(verdict: Verdict) -> str:
    """The basis of a verdict without a straggler; empty if there is one."""
    because = verdict.because
    return merged_text([because]) if isinstance(because, Merged) else because or ""


def verdict_text(verdict: Verdict) -> str:
    """`persistent`, `rotating`, `transient`, `none`, `cannot tell (clock)`."""
    because = because_text(verdict)
    return f"{verdict.kind} ({because})" if verdict.kind == CANNOT_TELL and because else verdict.kind


def node_names(ledger: Ledger) -> list[str]:
    """The names of its nodes; those that are only groups of ranks on one machine with their number."""
    names = [node.name for node in ledger.nodes]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}:{place}" for place, name in enumerate(names)]


def host_of(ledger: Ledger, rank: int) -> str:
    """The name of the node that a rank is on; empty where it is not known."""
    named = zip(node_names(ledger), ledger.nodes, strict=True)
    return next((name for name, node in named if rank in node.ranks), "")


def numbers(ranks: Sequence[int]) -> str:
    """`0 to 7`, `2, 5`, `1, 4, 6, 7, 9, … (12)`."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f", … ({len(ranks)})" if len(ranks) > NAMED else ""
    return f"{', '.join(map(str, ranks[:NAMED]))}{more}"


def fine(ms: float) -> str:
    """A small time: in microseconds below MICROSECONDS_BELOW_MS."""
    return f"{ms * 1e3:.1f} µs" if ms < MICROSECONDS_BELOW_MS else f"{ms:.2f} ms"


def share(term: Term) -> str:
    """` (62 %)` of the whole loss, where both are larger than their intervals; else empty."""
    return "" if term.share is None or term.loss is None or not term.loss.resolved else f" ({term.share * 100:.0f} %)"


class Figures:
    """Writes milliseconds, all figures of these ledgers with as many decimals."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.decimals = 3 if min((ledger.step.value for ledger in ledgers), default=SHORT_MS) < SHORT_MS else 2

    def bare(self, value: float, sign: str = "") -> str:
        """Without a unit; `sign` `+` shows it. Never a minus before a zero."""
        return f"{round(value, self.decimals) + 0.0:{sign}.{self.decimals}f}"

    def ms(self, value: float, sign: str = "") -> str:
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


def _by_terms(ledger: Ledger, write: Figures) -> str:
    """The losses of SMALL and more, the largest part of the whole first, and the rest as one: they add up to it.

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
    """Whether the straggler costs more than any term but the wait for it; without a baseline, more than SMALL."""
    if ledger.verdict.kind not in (PERSISTENT, ROTATING, TRANSIENT) or len(ledger.ranks) < 2:
        return False
    if ledger.loss is None:
        return ledger.verdict.costs > SMALL * ledger.step.value
    others = [term.loss.value for term in ledger.terms if term.loss is not None and term.name != "wait"]
    return ledger.verdict.costs > max(others, default=0.0)


def _straggler(ledger: Ledger, write: Figures) -> str:
    """The straggler as text; empty if there is only one rank."""
    verdict = ledger.verdict
    if len(ledger.ranks) < 2:
        return ""
    if verdict.kind == NONE:
        return "no rank is late more than equal ranks would be"
    if verdict.kind == CANNOT_TELL:
        because = because_text(verdict)
        text = f"who is waited for cannot be told{f' ({because})' if because else ''}"
        by_clock = verdict.because is Because.CLOCK
        return f"{text}: the clocks leave {fine(verdict.bound)} open" if by_clock else text
    late = f"by {write.ms(verdict.arrival_skew)}{_due_to(verdict, write)}"
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
    """The parts of the arrival skew, the largest first; empty if unknown."""
    whose = "its" if len(verdict.ranks) == 1 or verdict.node or verdict.kind == ROTATING else "their"
    parts = sorted(verdict.cause.items(), key=lambda part: -part[1])
    causes = [
        f"{DUE_TO.get(cause, cause).format(whose=whose)} ({write.ms(value, '+')})"
        for place, (cause, value) in enumerate(parts)
        if not place or value >= NOTABLE_CAUSE * verdict.arrival_skew
    ]
    return f" for {' and '.join(causes)}" if causes else ""


def _who(verdict: Verdict, ledger: Ledger) -> str:
    if verdict.node:
        return f"node {verdict.node} (ranks {numbers(verdict.ranks)}) is"
    if len(verdict.ranks) == 1:
        host = host_of(ledger, verdict.ranks[0])
        return f"rank {verdict.ranks[0]}{f' ({host})' if host else ''} is"
    return f"ranks {numbers(verdict.ranks)} are"
