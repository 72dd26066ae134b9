"""A delay in a window of a training, or none, and what a ledger says of the window held against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parse.ledger.finding import Symptom
from parse.ledger.types import Ledger
from parse.ledger.verdict import PERSISTENT, Nobody, Straggler
from tests.truth.verdicts import describe


@dataclass(frozen=True, kw_only=True)
class DelayCase:
    """One window of a training: one rank is late in a place, which lies in a phase; no place: nobody is late."""

    training: str
    place: str = ""
    rank: int = -1
    ms: float = 0.0
    phase: str = ""

    @property
    def window(self) -> list[object] | None:
        """As the scripts' plans have it."""
        return [self.place, self.rank, self.ms] if self.place else None

    @property
    def name(self) -> str:
        return f"{self.training}, {self.place or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A window of a case: what the ledger says, each thing that is wrong with it, the delay in ms a step, and the limit
    below which the ledger says that it would find nothing, where it gives one."""

    verdict: str
    wrong: tuple[str, ...]
    effect: float
    limit: float | None

    @property
    def only_more(self) -> bool:
        """Whether nothing is wrong but that others are named, too: a busy machine may have made them late."""
        return bool(self.wrong) and all(text.startswith("names ") for text in self.wrong)

    @property
    def below(self) -> bool:
        """Whether nobody is named, and the stated limit says that nobody would be."""
        return bool(self.wrong) and self.limit is not None and self.effect < self.limit


def judge(case: DelayCase, ledger: Ledger, effect: float) -> Judged:
    """A window held against its case, whose rank is late all the time by `effect`, ms a step."""
    return Judged(
        verdict=describe_all(ledger), wrong=tuple(_wrong(case, ledger)), effect=effect,
        limit=ledger.verdict.limit if isinstance(ledger.verdict, Nobody) else None,
    )  # fmt: skip


def findings_of(ledger: Ledger) -> tuple[Straggler, ...]:
    """All verdicts that name somebody."""
    return tuple(each for each in ledger.stragglers if each.ranks)


def describe_all(ledger: Ledger) -> str:
    """The verdicts, their shapes and the first symptom, in a few words."""
    parts = []
    for each in ledger.stragglers:
        shape = f", {each.shape.kind}" if each.shape else ""
        for value in (each.shape.period, each.shape.step, each.shape.per_100_steps) if each.shape else ():
            shape += "" if value is None else f" {value:.3g}"
        in_runs = f" of {each.in_runs} of {each.of_runs} runs" if each.in_runs < each.of_runs else ""
        parts.append(f"{describe(each)}{shape}{in_runs}")
    verdict = " / ".join(parts) or describe(ledger.verdict)
    named = ledger.findings_of(Straggler)
    symptom = next((each for each in named[0][0].evidence if isinstance(each, Symptom)), None) if named else None
    if symptom is None:
        return verdict
    explains = "" if symptom.explains is None else f", explains {symptom.explains:.2f} ms"
    return f"{verdict}; {symptom.quantity} {symptom.value:.3g} against {symptom.usual:.3g}{explains}"


def _wrong(case: DelayCase, ledger: Ledger) -> Iterator[str]:
    findings = findings_of(ledger)
    its = next((each for each in findings if case.place and each.ranks == (case.rank,)), None)
    if case.place and its is None:
        yield f"does not name rank {case.rank}"
    if its is not None:
        if its.kind != PERSISTENT:
            yield f"{its.kind}, not {PERSISTENT}"
        if its.node:
            yield f"node {its.node}, not -"
        phase = max(its.cause, key=its.cause.__getitem__)
        if phase != case.phase:
            yield f"phase {phase}, not {case.phase}"
    for each in findings:
        if each is not its:
            yield f"names {each.node or 'rank ' + ', '.join(map(str, each.ranks))}"
