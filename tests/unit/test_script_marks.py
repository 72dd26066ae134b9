"""What the marks of a script bear out of a verdict, and its terms by them, in tests.truth.script_run."""

from __future__ import annotations

import numpy as np
import pytest

from parse.ledger.types import NONE, PERSISTENT, TRANSIENT, Shape, ShapeKind, Verdict
from tests.truth.exact import TERMS, Ns
from tests.truth.script_marks import Noted, more_than_usual

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


def meeting(called_ms: tuple[float, float], ends_ms: tuple[float, float], root: int | None = None) -> Noted:
    """Two ranks meet once in each step, at ms after its begin, and are otherwise equal."""
    begins = np.arange(STEPS + 1)[:, None] * STEP_NS
    meetings = np.array([called_ms, called_ms, ends_ms]).T[:, None, None, :] * MS + begins[None, :, None]
    return Noted(slept={}, marks=marks_of(2), meetings=meetings.astype(np.int64), root=root, first=FIRST)


def persistent(ms: float, rank: int = 1, begins: int | None = None) -> Verdict:
    shape = Shape(kind=ShapeKind.CONSTANT) if begins is None else Shape(kind=ShapeKind.BEGINS, step=begins)
    return Verdict(kind=PERSISTENT, ranks=(rank,), arrival_skew=ms, shape=shape)


def transient(ms: float) -> Verdict:
    return Verdict(kind=TRANSIENT, ranks=(1,), arrival_skew=ms, steps=(*LATE,))


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
    assert not noted(late_ms=3, ranks=ranks).bears_out(Verdict(kind=NONE))


def test_a_delay_before_a_collective_is_borne_out_where_somebody_waits_for_it() -> None:
    assert meeting((5, 9), (10, 10)).bears_out(persistent(4))
    assert meeting((9, 5), (10, 10), root=0).bears_out(persistent(4, rank=0))
    assert not meeting((5, 9), (6, 10), root=0).bears_out(persistent(4)), "rank 0 has sent and gone on"
    assert not meeting((21, 24), (25, 25)).bears_out(persistent(3)), "a part of the reduction"


def test_more_at_one_collective_and_less_at_another_is_no_delay() -> None:
    its = meeting((5, 9), (10, 10))
    its.marks[0, :, 2] += 4 * MS
    assert not its.bears_out(persistent(4)) and not its.bears_out(persistent(4, rank=0))


def test_terms_of_a_step_without_further_collectives() -> None:
    its = terms(noted(late_ms=4))
    assert its["data"] == [2.0, 2.0] and its["optimizer"] == [5.0, 5.0]
    assert its["compute"] == pytest.approx([18, 22], abs=0.2)
    assert its["wait"] == pytest.approx([4, 0], abs=0.2) and its["communication"] == pytest.approx([1, 1], abs=0.2)


@pytest.mark.parametrize(
    ("called", "ends", "term", "expected"),
    [((0.5, 1.5), (1.75, 2), "data", 2), ((5, 9), (10, 11), "compute", 18), ((26, 28), (29, 30), "optimizer", 5)],
)
def test_what_ranks_do_in_a_collective_is_no_work_of_theirs(
    called: tuple[float, float], ends: tuple[float, float], term: str, expected: float
) -> None:
    its = meeting(called, ends)
    later, of_both = called[1] - called[0], terms(its)
    assert of_both[term] == [expected - ends[0] + called[0], expected - ends[1] + called[1]]
    assert of_both["wait"] == [later, 0]
    assert of_both["communication"] == [5 + ends[0] - called[1], 5 + ends[1] - called[1]]
    assert np.allclose(its.truth.terms.sum(axis=2), STEP_NS / MS)


def test_of_a_persistent_one_counts_the_mean_of_all_steps_beside_the_others() -> None:
    """As a ledger has it: where it is not late at all, or first, it makes up for others."""
    its = noted(late_ms=4, ranks=4)
    its.marks[1, 1::4, 2] -= 6 * MS
    assert its.bears_out(persistent(3 * 4 / 4 - 2 / 4)) and not its.bears_out(persistent(4))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_term_is_compared_with_that_of_the_others_in_the_steps_of_the_verdict(ranks: int) -> None:
    assert noted(late_ms=4, ranks=ranks).later_by("compute", 1) == pytest.approx(4, abs=0.2)
    assert noted(late_ms=4, every=5, ranks=ranks).later_by("compute", 1) == pytest.approx(0.8, abs=0.2)
    assert noted(late_ms=4, every=10, ranks=ranks).later_by("compute", 1, transient(4)) == pytest.approx(4, abs=0.2)
    late = noted(late_ms=4, begins=61, ranks=ranks)
    assert late.later_by("compute", 1, persistent(4, begins=FIRST + 60)) == pytest.approx(4, abs=0.2)
    early = noted(late_ms=4, ranks=ranks, mark=0)
    early.marks[1, :, 2] += 4 * MS
    assert early.later_by("data", 1) == pytest.approx(4, abs=0.2)
    assert early.later_by("compute", 1) == pytest.approx(0, abs=0.2)


def test_the_usual_is_that_of_the_median_rank() -> None:
    assert more_than_usual(np.array([[1.0, 1.0], [4.0, 6.0], [2.0, 2.0], [3.0, 3.0]]), 1) == 3.0
