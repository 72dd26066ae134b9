"""What causes cost by marks, and how tests.truth.cause_run judges what a summary says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parse.ledger.causes import Cause
from parse.say.evidence import EVIDENCE
from tests.truth.cause_marks import Noted
from tests.truth.cause_run import judge
from tests.truth.causes import CauseCase, Late

STEPS, RANKS = 100, 4
LATE = Late(ranks=(2,), phases=("compute",))
SILENT = {"ranks": [], "kind": "none", "limit": 0.5, "costs": 0.0, "cause": {}, "shape": None}


def _noted(late_ms: float, every: int = 1) -> Noted:
    stretches = np.zeros((RANKS, STEPS))
    stretches[2, ::every] = late_ms
    return Noted(steps=STEPS, work=10 + stretches, latency=np.ones((RANKS, STEPS)), stretches={"compute": stretches})


def _ledger(sentence: str = "", **verdict: Any) -> dict[str, Any]:
    its = {**SILENT, **verdict}
    named = [{"kind": "straggler", "what": its, "sentences": []}] if its["ranks"] else []
    return {"sentence": sentence, "verdict": its, "findings": named}


def _named(costs: float, rank: int = 2) -> dict[str, Any]:
    return {"ranks": [rank], "kind": "persistent", "limit": None, "costs": costs, "cause": {"compute": costs}}


def _verdicts(ledger: dict[str, Any], noted: Noted, *answers: Late) -> list[str]:
    return [each.verdict for each in judge(CauseCase(name="a case", answers=answers), ledger, [noted])]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (_named(4.0), "right"),
        (_named(4.6), "part"),
        (_named(4.0) | {"cause": {"data": 4.0}}, "part"),
        ({"limit": 0.5}, "DENIED"),
        ({"limit": 5.0}, "below the limit"),
        ({"limit": None}, "missed"),
        (_named(4.0, rank=1), "missed"),
        ({"limit": 0.5, "doubt": {"rank": 2}}, "part"),
    ],
)
def test_a_cause_is_judged_by_what_is_said(verdict: dict[str, Any], expected: str) -> None:
    assert _verdicts(_ledger(**verdict), _noted(8.0, every=2), LATE) == [expected]


def test_the_cause_must_be_in_the_sentence() -> None:
    late = Late(ranks=(2,), phases=("compute",), says="quota|throttled")
    assert _verdicts(_ledger("Rank 2 is throttled.", **_named(4.0)), _noted(8.0, every=2), late) == ["right"]
    assert _verdicts(_ledger("Rank 2 is late.", **_named(4.0)), _noted(8.0, every=2), late) == ["part"]
    maybe = f"Rank 2 is late. To do: {EVIDENCE[Cause.QUEUED].advice}."  # a quota is one of what it may be
    assert _verdicts(_ledger(maybe, **_named(4.0)), _noted(8.0, every=2), late) == ["part"]


def test_who_is_named_without_a_cause_is_invented_unless_the_marks_bear_it_out() -> None:
    case = CauseCase(name="nothing")
    assert [bool(its.invented) for its in judge(case, _ledger(**_named(4.0)), [_noted(0.0)])] == [True]
    assert [bool(its.invented) for its in judge(case, _ledger(**_named(4.0)), [_noted(4.0)])] == [False]
