"""What causes cost by marks, and how tests.truth.cause_run judges what a summary says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.truth.cause_marks import Noted, fixed_part_ms, noted_of
from tests.truth.cause_run import judge
from tests.truth.causes import CAUSES, CauseCase, Late

STEPS, RANKS = 100, 4
LATE = Late(ranks=(2,), phases=("compute",))
SILENT = {"ranks": [], "kind": "none", "limit": 0.5, "costs": 0.0, "cause": {}, "shape": None}


def _noted(late_ms: float, every: int = 1) -> Noted:
    stretches = np.zeros((RANKS, STEPS))
    stretches[2, ::every] = late_ms
    return Noted(steps=STEPS, work=10 + stretches, latency=np.ones((RANKS, STEPS)), stretches={"compute": stretches})


def _ledger(sentence: str = "", **verdict: Any) -> dict[str, Any]:
    return {"sentence": sentence, "verdict": {**SILENT, **verdict}, "further": []}


def _named(costs: float, rank: int = 2) -> dict[str, Any]:
    return {"ranks": [rank], "kind": "persistent", "limit": None, "costs": costs, "cause": {"compute": costs}}


def _verdicts(ledger: dict[str, Any], noted: Noted, *answers: Late) -> list[str]:
    return [each.verdict for each in judge(CauseCase(name="a case", answers=answers), ledger, [noted])]


def test_costs_are_by_replay() -> None:
    assert _noted(8.0, every=2).costs(LATE, []) == pytest.approx((4.0, 4.0))
    always = Late(ranks=(2,), phases=("compute",), always=True)
    assert _noted(8.0).costs(always, []) == pytest.approx((8.0, 8.0))


def test_one_behind_another_costs_what_it_hides() -> None:
    work = np.full((RANKS, STEPS), 10.0)
    stretches = {"data": np.zeros_like(work), "compute": np.zeros_like(work)}
    stretches["data"][0], stretches["compute"][2] = 8.0, 14.0
    noted = Noted(steps=STEPS, work=work + sum(stretches.values()), latency=np.zeros_like(work), stretches=stretches)
    behind = Late(ranks=(0,), phases=("data",))
    assert noted.costs(behind, [LATE]) == pytest.approx((0.0, 8.0))
    assert noted.costs(LATE, [behind]) == pytest.approx((6.0, 14.0))


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


def test_who_is_named_without_a_cause_is_invented_unless_the_marks_bear_it_out() -> None:
    case = CauseCase(name="nothing")
    assert [bool(its.invented) for its in judge(case, _ledger(**_named(4.0)), [_noted(0.0)])] == [True]
    assert [bool(its.invented) for its in judge(case, _ledger(**_named(4.0)), [_noted(4.0)])] == [False]


def test_a_pause_needs_its_owner_kind_and_size() -> None:
    stretches = np.zeros((RANKS, STEPS))
    stretches[0, 25::25] = 60.0
    noted = Noted(steps=STEPS, work=10 + stretches, latency=0 * stretches, stretches={"evaluation": stretches})
    late = Late(ranks=(0,), phases=("evaluation",))
    its = {"ranks": [0], "kinds": ["evaluation"], "costs": 1.8}
    for pauses, expected in (
        ([], "DENIED"), ([its], "right"), ([its | {"ranks": []}], "DENIED"), ([its | {"costs": 3.0}], "part"),
        ([its | {"kinds": ["checkpoint"]}], "part"),
    ):  # fmt: skip
        assert _verdicts(_ledger() | {"rank_pauses": pauses}, noted, late) == [expected]


def test_two_who_are_named_as_one_are_half_right() -> None:
    noted = _noted(8.0, every=2)
    other = Late(ranks=(0,), phases=("data",))
    named = _named(4.0) | {"ranks": [0, 2], "kind": "rotating"}
    assert _verdicts(_ledger(**named), noted, LATE, other) == ["part", "part"]


def test_whoever_is_last_as_often_as_the_others_is_invented() -> None:
    case = CauseCase(name="uneven")
    work = np.random.default_rng(1).normal(20, 3, (4, 400))
    noted = Noted(steps=400, work=work, latency=np.zeros_like(work), stretches={})
    assert [bool(its.invented) for its in judge(case, _ledger(**_named(1.0)), [noted])] == [True]
    assert [bool(its.invented) for its in judge(case, _ledger(), [noted])] == [False]
    longer = Noted(steps=400, work=work + np.array([[0], [0], [3], [0]]), latency=noted.latency, stretches={})
    assert [bool(its.invented) for its in judge(case, _ledger(**_named(1.0)), [longer])] == [False]


def test_the_part_that_does_not_shrink_is_that_of_the_marks(tmp_path: Path) -> None:
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            work_ns = int((13 + 47 / ranks) * 1e6)
            syncs = [[at, "reduction", at * work_ns + work_ns, at * work_ns + work_ns] for at in range(5)]
            (tmp_path / f"1.rank{rank}of{ranks}.json").write_text(json.dumps({"syncs": syncs, "faults": []}))
    assert fixed_part_ms(tmp_path, warmup=2) == pytest.approx(13.0)


def test_marks_are_read_behind_the_warm_up(tmp_path: Path) -> None:
    """Two runs of two ranks; rank 1 is held up for 3 ms in step 3, and in the warm-up."""
    for run in (1, 2):
        for rank in (0, 1):
            syncs = [[step, "reduction", (20 * step + 10) * 10**6, (20 * step + 12) * 10**6] for step in range(5)]
            faults = [[step, "compute", (20 * step - 6) * 10**6, (20 * step - 3) * 10**6] for step in (1, 3)]
            marks = {"syncs": syncs, "faults": faults if rank else []}
            (tmp_path / f"{run}.rank{rank}of2.json").write_text(json.dumps(marks))
    runs = noted_of(tmp_path, 2, warmup=2)
    assert [(run.steps, run.work.shape) for run in runs] == [(3, (2, 3))] * 2
    assert runs[0].stretches["compute"].tolist() == [[0, 0, 0], [0, 3, 0]]
    assert runs[0].step_ms() == pytest.approx(20)


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CAUSES]
    assert len({*names}) == len(names) >= 35


def test_who_is_named_twice_is_half_right() -> None:
    ledger = _ledger(**_named(4.0)) | {"further": [_named(4.0) | {"shape": None}]}
    assert _verdicts(ledger, _noted(8.0, every=2), LATE) == ["part"]
