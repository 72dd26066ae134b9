"""Faults of all shapes on simulated ranks, 4 to 512: named rightly where they are above the stated limit, and nobody
where there is none."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from parse.ledger.types import PERSISTENT, TRANSIENT, Ledger, Shape, ShapeKind, Verdict
from tests.truth.fault_schedule import NOTHING, WINDOW, parse_faults
from tests.truth.fault_simulated import MAKERS, SIZES, draw, judged, runs_of
from tests.truth.fault_verdicts import effect_ms, judge, without_fault
from tests.truth.faults import Answer, FaultCase
from tests.truth.windows import cut, ledger_of

pytestmark = pytest.mark.all

DRAWS = {size: 5 if nodes * ranks < 100 else 1 for size, (nodes, ranks) in enumerate(SIZES)}
RIGHT = 0.95
CASE = FaultCase(
    name="", fault="sleep:compute:6@2",
    answers=(Answer(kinds=(PERSISTENT,), ranks=(2,), phase="compute"),),
)  # fmt: skip


def test_faults_above_the_limit_are_named_rightly() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for kind in MAKERS:
        for size, draws in DRAWS.items():
            for number in range(draws):
                result = judged(kind, size, number)
                if result.below:
                    counts["below"] += 1
                    continue
                counts["above"] += 1
                if result.wrong:
                    wrong.append(f"{kind} {SIZES[size]} {number}: {result.wrong}, {result.verdict}")
    print(dict(counts))
    assert len(wrong) <= (1 - RIGHT) * counts["above"], "\n".join(wrong)
    assert counts["below"] < 0.3 * counts["above"]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    runs = [made.trace for made in runs_of(CASE, 2, 2, [1])]
    return ledger_of(runs, tmp_path_factory.mktemp("runs") / "point")


def entries() -> list[np.ndarray]:
    """Those of rank 2 that is 6 ms late, of two runs."""
    late = np.zeros((4, WINDOW))
    late[2] = 6.0
    return [late, late]


def test_what_is_right_has_nothing_wrong(ledger: Ledger) -> None:
    result = judge(CASE, ledger, entries())
    assert (result.wrong, result.effect, result.limit, result.below) == ((), 6.0, None, False)


def changed(ledger: Ledger, **fields: object) -> Ledger:
    return dataclasses.replace(ledger, verdict=dataclasses.replace(ledger.verdict, **fields))  # type: ignore[arg-type]


def test_what_is_wrong_is_named(ledger: Ledger) -> None:
    other = Verdict(kind=PERSISTENT, ranks=(1,), cause={"data": 1.0})
    for wrong, words in (
        (changed(ledger, ranks=(1,)), ("does not name rank 2", "names rank 1")),
        (changed(ledger, kind=TRANSIENT, run_steps=((20,), ())), ("transient, not persistent",)),
        (changed(ledger, node="n1"), ("node n1, not -",)),
        (changed(ledger, cause={"data": 5.0, "compute": 1.0}), ("phase data, not compute",)),
        (changed(ledger, shape=Shape(kind=ShapeKind.BEGINS, step=30)), ("shape begins, not constant",)),
        (changed(ledger, shape=None), ("shape -, not constant",)),
        (dataclasses.replace(ledger, further=(other,)), ("names rank 1",)),
    ):
        assert judge(CASE, wrong, entries()).wrong == words
    assert without_fault(CASE, dataclasses.replace(ledger, further=(other,))) == (other,)
    assert without_fault(CASE, ledger) == ()
    assert without_fault(FaultCase(name="", fault=NOTHING), ledger) == (ledger.verdict,)


@pytest.mark.parametrize(("borne_out", "machine"), [(1, True), (0, False)])
def test_who_is_named_beside_and_was_late_is_the_machines(ledger: Ledger, borne_out: int, machine: bool) -> None:
    other = Verdict(kind=PERSISTENT, ranks=(1,), cause={"data": 1.0})
    beside = judge(CASE, dataclasses.replace(ledger, further=(other,)), entries())
    assert dataclasses.replace(beside, named=1, borne_out=borne_out).machine is machine
    instead = judge(CASE, changed(ledger, ranks=(1,)), entries())
    assert not dataclasses.replace(instead, named=1, borne_out=1).machine


def test_the_effect_is_that_of_the_faults_steps() -> None:
    late = np.zeros((4, WINDOW))
    late[2] = 8.0
    every = dataclasses.replace(CASE, fault="sleep:compute:8@2/every10")
    assert effect_ms(every, late, repeat=1) == pytest.approx(0.8)
    assert effect_ms(dataclasses.replace(CASE, fault="sleep:compute:8@2/first40"), late, repeat=2) == 0.0


def test_faults_as_text() -> None:
    first, second = parse_faults("burn:compute:4@2/every10+sleep:data:9.5@0.1/turns")
    assert (first.how, first.phase, first.amount, first.ranks) == ("burn", "compute", 4.0, (2,))
    assert [at for at in range(40) if first.weight(2, at)] == [3, 13, 23, 33]
    assert [second.weight(rank, at) for at in (0, 1) for rank in (0, 1, 2)] == [1, 0, 0, 0, 1, 0]
    assert parse_faults("none") == ()


def test_windows_of_a_run_are_runs_of_their_own(tmp_path):
    whole = runs_of(CASE, 2, 2, [3], runs=1)[0].trace
    first, second = cut(whole, WINDOW // 2)
    assert [len(each.stamps[0]) for each in (first, second)] == [10 + WINDOW // 2] * 2
    assert (second.stamps[:, 10:] == whole.stamps[:, 10 + WINDOW // 2 :]).all()
    assert ledger_of([first, second], tmp_path / "point").verdict.ranks == (2,)


@pytest.mark.parametrize("kind", MAKERS)
def test_each_kind_is_drawn_with_its_answer(kind: str) -> None:
    case = draw(kind, 4, 2, np.random.default_rng(1))
    named = {rank for answer in case.answers for rank in answer.ranks}
    assert named == {rank for fault in case.faults for rank in fault.ranks}
