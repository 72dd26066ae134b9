"""The shape of a delay over the steps: what is put in comes out, and noise alone has none."""

from __future__ import annotations

import numpy as np
import pytest

from parse.ledger.shape import course, rhythm
from parse.ledger.verdict import PERSISTENT, Shape, ShapeKind
from tests.unit.ledger_traces import stragglers
from tests.unit.test_pooled_verdict import breakdowns

CONSTANT = Shape(kind=ShapeKind.CONSTANT)


def runs(
    delay: np.ndarray, *, noise: float = 1.0, count: int = 2, seed: int = 0, memory: float = 0.0
) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        values = generator.normal(0, noise, len(delay))
        for at in range(1, len(values)):
            values[at] = memory * values[at - 1] + (1 - memory**2) ** 0.5 * values[at]
        made.append(np.maximum(delay + values, 0))
    return made


def test_a_constant_delay_seldom_has_another_shape():
    other = sum(
        course(runs(np.full(100, 8.0), seed=seed, noise=noise, memory=memory), 20) != CONSTANT
        for seed in range(50)
        for noise in (1.0, 4.0)
        for memory in (0.0, 0.5)
    )
    assert other <= 4


@pytest.mark.parametrize("per_step", [0.08, -0.08])
def test_a_growing_or_falling_delay_has_its_slope(per_step):
    steps = np.arange(100)
    shape = course(runs(per_step * steps + (0 if per_step > 0 else 8), seed=3), 20)
    assert shape.kind is (ShapeKind.GROWING if per_step > 0 else ShapeKind.FALLING)
    assert shape.per_100_steps == pytest.approx(100 * per_step, rel=0.15)


@pytest.mark.parametrize(("before", "after", "kind"), [(0.0, 8.0, ShapeKind.BEGINS), (8.0, 0.0, ShapeKind.ENDS)])
def test_a_delay_that_begins_or_ends_has_its_step(before, after, kind):
    shape = course(runs(np.where(np.arange(100) < 43, before, after), seed=4), 20)
    assert shape.kind is kind
    assert abs((shape.step or 0) - 63) <= 2


def test_few_steps_have_no_shape():
    assert course([np.arange(15.0)], 0) == CONSTANT


@pytest.mark.parametrize(
    ("run_steps", "period"),
    [
        ([range(20, 120, 10), range(25, 120, 10)], 10),
        ([[20, 30, 40, 50, 61, 70, 80, 90, 100, 110]], 10),  # one step late
        ([[20, 40, 60, 80]], 20),
        ([[20, 21, 22, 23]], None),  # one after another: no period
        ([[20, 40, 60]], None),  # too few
        ([[21, 34, 38, 55, 80, 97]], None),
        ([[20, 30, 90, 100]], None),  # most of what the period gives is missing
        ([[], []], None),
    ],
)
def test_the_period_of_late_steps(run_steps, period):
    shape = rhythm([list(steps) for steps in run_steps])
    assert (shape and shape.period) == period


def test_the_straggler_of_runs_has_its_shape():
    growing = {"backward": lambda rank, step: 0.2 * step * (rank == 2)}
    first, *_ = stragglers(breakdowns(growing, growing, noise=0.2))
    assert (first.kind, first.ranks, first.shape and first.shape.kind) == (PERSISTENT, (2,), ShapeKind.GROWING)
    assert first.shape is not None and first.shape.per_100_steps == pytest.approx(20, rel=0.1)
    late = {"data": lambda rank, step: 40.0 * (rank == 1 and step % 5 == 0)}
    first, *_ = stragglers(breakdowns(late, late, noise=0.2))
    assert first.shape == Shape(kind=ShapeKind.PERIODIC, period=5)
