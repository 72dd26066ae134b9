"""What the marks of a script bear out of a verdict, in tests.truth.script_run."""

from __future__ import annotations

import numpy as np
import pytest

from parse.ledger.types import NONE, PERSISTENT, TRANSIENT, Verdict
from tests.truth.script_marks import Noted, more_than_usual

STEPS, FIRST, STEP_MS = 100, 10, 20.0
LATE = range(FIRST, FIRST + STEPS, 10)


def noted(*, late_ms: float = 0.0, every: int = 1, ranks: int = 2) -> Noted:
    """Rank 1 comes late to `grads` in every so many steps; else ranks come within 0.1 ms, as chance has it."""
    random = np.random.default_rng(ranks)
    grads = np.arange(STEPS) * STEP_MS + random.uniform(0, 0.1, (ranks, STEPS))
    grads[1, ::every] += late_ms
    marks = {"grads": grads, "end": np.broadcast_to(np.arange(STEPS) * STEP_MS, (ranks, STEPS))}
    return Noted(slept={}, marks=marks, numbers=np.arange(FIRST, FIRST + STEPS))


def persistent(ms: float) -> Verdict:
    return Verdict(kind=PERSISTENT, ranks=(1,), arrival_skew=ms)


def transient(ms: float) -> Verdict:
    return Verdict(kind=TRANSIENT, ranks=(1,), arrival_skew=ms, steps=(*LATE,))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_delay_is_borne_out_where_the_script_saw_it(ranks: int) -> None:
    assert noted(late_ms=3, ranks=ranks).bears_out(persistent(3.1), ["grads"])
    assert noted(late_ms=8, every=10, ranks=ranks).bears_out(transient(8.2), ["grads"])


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_the_script_did_not_see_is_not_borne_out(ranks: int) -> None:
    equal = noted(ranks=ranks)
    assert not equal.bears_out(persistent(3), ["grads"]) and not equal.bears_out(transient(8), ["grads"])
    assert not noted(late_ms=3, ranks=ranks).bears_out(persistent(5), ["grads"])
    assert not noted(late_ms=8, every=10, ranks=ranks).bears_out(persistent(8), ["grads"])
    assert not noted(late_ms=3, ranks=ranks).bears_out(persistent(3), [])
    assert not noted(late_ms=3, ranks=ranks).bears_out(Verdict(kind=NONE), ["grads"])


def test_a_phase_lies_between_its_marks() -> None:
    end, called = np.zeros((3, 4)), np.array([[1.0] * 4, [6.0] * 4, [2.0] * 4])
    its = Noted(slept={}, marks={"end": end, "called": called}, numbers=np.arange(4))
    data = its.phase("data")
    assert data is not None and more_than_usual(data, 1) == 4.0
    assert its.phase("compute") is None
