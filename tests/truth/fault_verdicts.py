"""What a ledger says of faults, held against the right answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parse.ledger.finding import Symptom
from parse.ledger.types import Ledger
from parse.ledger.verdict import TRANSIENT, Nobody, ShapeKind, Straggler
from tests.truth.delays import describe_all, findings_of
from tests.truth.exact import Ms
from tests.truth.fault_schedule import WINDOW, position_of
from tests.truth.faults import SLOPE_OPEN, STEP_OPEN, Answer, FaultCase

STOPPED_MS = 1000.0
"""A stop is where a rank is later than this."""
PART = 0.8
"""What explains more of a delay leaves nothing to another cause."""
ONE_CAUSE = 0.8
"""This part of a delay is of its phase."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A point of a case: what the ledger says, each thing that is wrong with it, the mean delay by the fault in ms a
    step by exact stamps, and the limit below which the ledger says that it would find nothing, where it gives one.
    `named` are named without a fault, `borne_out` of these late by the exact stamps."""

    case: str
    verdict: str
    wrong: tuple[str, ...]
    effect: float
    limit: float | None
    named: int = 0
    borne_out: int = 0

    @property
    def only_more(self) -> bool:
        """Whether nothing is wrong but that others are named, too: a busy machine may have made them late."""
        return bool(self.wrong) and all(text.startswith("names ") for text in self.wrong)

    @property
    def machine(self) -> bool:
        """Whether nothing is wrong but that others are named, too, and they were late."""
        return self.only_more and self.borne_out == self.named

    @property
    def below(self) -> bool:
        """Whether nobody is named, and the stated limit says that nobody would be."""
        return bool(self.wrong) and self.limit is not None and self.effect < self.limit


def judge(case: FaultCase, ledger: Ledger, entries: Sequence[Ms]) -> Judged:
    """A point held against the answers of its case; `entries` are how much later than the first
    rank each entered the reduction, [rank, step] ms, of each run in order."""
    effect = np.mean([effect_ms(case, of_run, repeat) for repeat, of_run in enumerate(entries, 1)])
    return judge_effect(case, ledger, float(effect))


def judge_effect(case: FaultCase, ledger: Ledger, effect: float) -> Judged:
    """The same, the mean delay by the fault being known, ms a step."""
    return Judged(
        case=case.name, verdict=describe_all(ledger), wrong=tuple(_wrong(case, ledger)), effect=effect,
        limit=ledger.verdict.limit if isinstance(ledger.verdict, Nobody) else None,
    )  # fmt: skip


def symptoms_of(ledger: Ledger) -> list[Symptom]:
    """What telemetry shows of the straggler that costs most."""
    named = ledger.findings_of(Straggler)
    return [each for each in named[0][0].evidence if isinstance(each, Symptom)] if named else []


def effect_ms(case: FaultCase, entries: Ms, repeat: int) -> float:
    """How much later than the median rank the latest of those with a fault is in the steps with it; the mean over all
    steps, of which the rest count as 0. `entries` [rank, step] are those of a window."""
    ranks, steps = entries.shape
    later: Ms = entries - np.sort(entries, axis=0)[(ranks - 1) // 2]
    if any(fault.how == "stop" for fault in case.faults):
        return float(np.where(later > STOPPED_MS, later, 0).max(axis=0).mean())
    has = [
        [
            any(fault.weight(rank, (at - fault.shows_later) % WINDOW, repeat) for fault in case.faults)
            for at in range(steps)
        ]
        for rank in range(ranks)
    ]
    return float(np.where(has, later, 0).max(axis=0).mean())


def without_fault(case: FaultCase, ledger: Ledger) -> tuple[Straggler, ...]:
    """What names somebody, and no answer of the case does."""
    return _matched(case, ledger)[1]


def _matched(case: FaultCase, ledger: Ledger) -> tuple[list[Straggler | None], tuple[Straggler, ...]]:
    """Of each answer the finding on its ranks, and the findings left; of several on the same ranks the one in the same
    runs."""
    findings = list(findings_of(ledger))
    matched: list[Straggler | None] = []
    for answer in case.answers:
        same = sorted(
            (each for each in findings if each.ranks == answer.ranks),
            key=lambda each: bool(answer.run_positions) and bool(list(_wrong_steps(each, answer))),
        )
        matched.append(same[0] if same else None)
        if same:
            findings.remove(same[0])
    return matched, tuple(findings)


def _wrong(case: FaultCase, ledger: Ledger) -> Iterator[str]:
    matched, others = _matched(case, ledger)
    for answer, verdict in zip(case.answers, matched, strict=True):
        if verdict is None:
            yield f"does not name {_who(answer)}"
            continue
        yield from _wrong_finding(verdict, answer)
        if answer.symptoms and not _has_symptom(ledger, answer):
            yield f"not: {' or '.join(answer.symptoms)}"
    yield from (f"names {_who(each)}" for each in others)


def _has_symptom(ledger: Ledger, answer: Answer) -> bool:
    """Whether one stands first, or behind others that explain a part of the delay: a busy machine takes cores, too."""
    explained = 0.0
    for symptom in symptoms_of(ledger):
        if symptom.quantity in answer.symptoms:
            return explained <= PART * ledger.stragglers[0].arrival_skew
        explained += symptom.explains or 0.0
    return False


def _wrong_finding(verdict: Straggler, answer: Answer) -> Iterator[str]:
    if verdict.kind not in answer.kinds:
        yield f"{verdict.kind}, not {' or '.join(answer.kinds)}"
    if verdict.node != answer.node:
        yield f"node {verdict.node or '-'}, not {answer.node or '-'}"
    first = max(verdict.cause, key=verdict.cause.__getitem__)
    if first != answer.phase:
        yield f"phase {first}, not {answer.phase}"
    elif verdict.kind == TRANSIENT and verdict.cause[first] < ONE_CAUSE * verdict.arrival_skew:
        yield f"only {verdict.cause[first]:.1f} of {verdict.arrival_skew:.1f} ms in {first}"
    yield from _wrong_shape(verdict, answer)
    yield from _wrong_steps(verdict, answer)


def _wrong_shape(verdict: Straggler, answer: Answer) -> Iterator[str]:
    if answer.shape is None:
        return
    shape = verdict.shape
    if shape is None or shape.kind != answer.shape:
        yield f"shape {shape.kind if shape else '-'}, not {answer.shape}"
    elif shape.kind is ShapeKind.PERIODIC and shape.period != answer.period:
        yield f"period {shape.period}, not {answer.period}"
    elif answer.step is not None and abs((shape.step or 0) - answer.step) > STEP_OPEN:
        yield f"from or until step {shape.step}, not {answer.step}"
    elif answer.per_100_steps is not None:
        slope = shape.per_100_steps or 0.0
        if abs(slope - answer.per_100_steps) > SLOPE_OPEN * abs(answer.per_100_steps):
            yield f"{slope:.1f} ms in 100 steps, not {answer.per_100_steps:.1f}"


def _wrong_steps(verdict: Straggler, answer: Answer) -> Iterator[str]:
    if answer.run_positions:
        named = tuple(tuple(map(position_of, steps)) for steps in verdict.run_steps or (verdict.steps,))
        if named != answer.run_positions:
            yield f"positions {named}, not {answer.run_positions}"


def _who(each: Answer | Straggler) -> str:
    return each.node or f"rank {', '.join(map(str, each.ranks))}"
