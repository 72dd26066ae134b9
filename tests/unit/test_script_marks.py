"""What the marks of a script bear out of a verdict, and its terms by them, in tests.truth.script_run."""

from __future__ import annotations

import numpy as np
import pytest

from parse.ledger.verdict import PERSISTENT, TRANSIENT, Nobody, Shape, ShapeKind, Straggler, Verdict
from tests.truth.exact import TERMS, Ns
from tests.truth.script_marks import Noted

pytestmark = pytest.mark.all

STEPS, FIRST, STEP_NS, MS = 100, 10, 30_000_000, 1_000_000
LATE = range(FIRST, FIRST + STEPS, 10)
CALLED, BACKWARD, GRADS, REDUCED, END = (ms * MS for ms in (2, 10, 20, 25, 30))


def noted(*, late_ms: float = 0.0, every: int = 1, ranks: int = 2, mark: int = 2, begins: int = 1) -> Noted:
    """Rank 1 comes late to a mark, `grads`, in every so many steps from one of the measured on; else ranks come within
    0.1 ms, as chance has it."""
    random = np.random.default_rng(ranks)
    marks = marks_of(ranks)
    marks[..., mark] += random.integers(0, MS // 10, marks.shape[:2])
    marks[1, begins::every, mark] += int(late_ms * MS)
    return Noted(slept={}, marks=marks, meetings=np.empty((*marks.shape[:2], 0, 3), np.int64), first=FIRST)


def marks_of(ranks: int) -> Ns:
    begins = np.arange(STEPS + 1)[None, :, None] * STEP_NS
    return np.repeat(begins + np.array([CALLED, BACKWARD, GRADS, REDUCED, END]), ranks, axis=0)


def persistent(ms: float, rank: int = 1, begins: int | None = None) -> Verdict:
    shape = Shape(kind=ShapeKind.CONSTANT) if begins is None else Shape(kind=ShapeKind.BEGINS, step=begins)
    return Straggler(kind=PERSISTENT, ranks=(rank,), arrival_skew=ms, shape=shape)


def transient(ms: float) -> Verdict:
    return Straggler(kind=TRANSIENT, ranks=(1,), arrival_skew=ms, steps=(*LATE,))


def terms(its: Noted) -> dict[str, list[float]]:
    return {name: its.truth.per_rank[:, at].tolist() for at, name in enumerate(TERMS)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_delay_is_borne_out_where_the_script_saw_it(ranks: int) -> None:
    assert noted(late_ms=3, ranks=ranks).bears_out(persistent(3.1))
    assert noted(late_ms=8, every=10, ranks=ranks).bears_out(transient(8.2))
    assert noted(late_ms=8, begins=61, ranks=ranks).bears_out(persistent(8.1, begins=FIRST + 60))


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_the_script_did_not_see_is_not_borne_out(ranks: int) -> None:
    equal = noted(ranks=ranks)
    assert not equal.bears_out(persistent(3)) and not equal.bears_out(transient(8))
    assert not noted(late_ms=3, ranks=ranks).bears_out(persistent(5))
    assert not noted(late_ms=8, every=10, ranks=ranks).bears_out(persistent(8))
    assert not noted(late_ms=8, every=10, ranks=ranks).bears_out(persistent(0.8)), "not in most of the steps"
    assert not noted(late_ms=8, begins=61, ranks=ranks).bears_out(persistent(8.1))
    assert not noted(late_ms=3, ranks=ranks, mark=0).bears_out(persistent(3))
    assert not noted(late_ms=3, ranks=ranks).bears_out(Nobody())


def test_terms_of_a_step_without_further_collectives() -> None:
    its = terms(noted(late_ms=4))
    assert its["data"] == [2.0, 2.0] and its["optimizer"] == [5.0, 5.0]
    assert its["compute"] == pytest.approx([18, 22], abs=0.2)
    assert its["wait"] == pytest.approx([4, 0], abs=0.2) and its["communication"] == pytest.approx([1, 1], abs=0.2)
