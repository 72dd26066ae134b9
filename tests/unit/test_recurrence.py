"""Delays that recur: their period is known where they are small, and steps without order have none."""

from __future__ import annotations

import itertools
from math import exp, log

import numpy as np
import pytest

from parse.ledger.straggler import stragglers
from parse.ledger.transient import _log_tail, recurrence
from parse.ledger.types import NONE, ROTATING, TRANSIENT, Shape, ShapeKind
from tests.unit.ledger_traces import Change
from tests.unit.test_pooled_verdict import breakdowns

STEPS = np.tile(np.arange(10, 110), 2)
"""Of two runs."""


def last_by(delay: np.ndarray, seed: int, others: int = 3) -> np.ndarray:
    """By how much a rank with this delay comes last among others, all of the same scatter; 0 where it does not."""
    generator = np.random.default_rng(seed)
    arrival = delay + generator.exponential(1.0, len(delay))
    return np.maximum(arrival - generator.exponential(1.0, (others, len(delay))).max(axis=0), 0)


@pytest.mark.parametrize("period", [2, 3, 7, 10, 20, 33])
def test_a_small_delay_has_its_period(period):
    finding = recurrence(last_by(np.where(STEPS % period == 1, 5.0, 0.0), seed=period), STEPS)
    assert finding is not None and (finding.period, finding.phase) == (period, 1)
    assert finding.chance < 0.001
    assert (STEPS[finding.its] % period == 1).all()
    assert finding.its.sum() > 0.8 * (STEPS % period == 1).sum()


def test_steps_without_order_seldom_have_a_period():
    chances = [finding.chance for seed in range(200) if (finding := recurrence(last_by(np.zeros(200), seed), STEPS))]
    assert sum(chance <= 0.05 for chance in chances) <= 10
    assert sum(chance <= 0.005 for chance in chances) <= 2


def test_a_delay_in_every_step_has_no_period():
    assert all(
        (finding := recurrence(last_by(np.full(200, 8.0), seed), STEPS)) is None or finding.chance > 0.005
        for seed in range(30)
    )


def test_what_half_of_a_phase_shows_has_another_period():
    """Every tenth step is late, and of every fifth that is one half."""
    late = last_by(np.where(STEPS % 10 == 4, 20.0, 0.0), seed=1)
    assert recurrence(late, STEPS, period=5) is None
    finding = recurrence(late, STEPS)
    assert finding is not None and finding.period == 10


def test_the_tail_of_the_hypergeometric_distribution():
    total, marked, drawn = 9, 4, 3
    hits = [len({*chosen} & {*range(marked)}) for chosen in itertools.combinations(range(total), drawn)]
    for least in range(1, 4):
        assert exp(_log_tail(total, marked, drawn, least)) == pytest.approx(sum(n >= least for n in hits) / len(hits))
    assert _log_tail(200, 20, 20, 20) == pytest.approx(-sum(log((200 - k) / (20 - k)) for k in range(20)))


def every(rank: int, period: int, ms: float, phase: int = 3) -> Change:
    return lambda *at: ms * (at[0] == rank and at[1] % period == phase)


def test_a_small_periodic_delay_is_the_point_s():
    """4 ms in one of ten steps, where ranks differ by a ms anyway: too little to stand out."""
    late = {"backward": every(2, 10, 4.0)}
    first, *further = stragglers(breakdowns(late, late, noise=0.7, measured_steps=100))
    assert (first.kind, first.ranks, first.shape, further) == (
        TRANSIENT, (2,), Shape(kind=ShapeKind.PERIODIC, period=10), [],
    )  # fmt: skip
    assert first.cause["compute"] == pytest.approx(first.arrival_skew, rel=0.2)


def test_of_a_node_that_is_late_every_so_many_steps_the_node_is_named():
    late: dict[str, Change] = {"data": lambda rank, step: 8.0 * (rank in (2, 3) and step % 8 == 1)}
    first, *_ = stragglers(breakdowns(late, late, noise=0.3, measured_steps=80))
    assert (first.kind, first.ranks, first.node) == (TRANSIENT, (2, 3), "n1")
    assert first.shape == Shape(kind=ShapeKind.PERIODIC, period=8)


def test_ranks_that_leave_the_reduction_late_by_turns_are_named():
    """What a rank does not work at is no part of the alternation of its work."""
    late: dict[str, Change] = {"leave": lambda rank, step: 5.0 * (rank == (1, 3)[step % 2])}
    first, *further = stragglers(breakdowns(late, late, noise=0.2))
    assert (first.kind, first.ranks, further) == (ROTATING, (1, 3), [])


def test_equal_ranks_recur_by_chance_only():
    assert [stragglers(breakdowns({}, {}, noise=0.7, measured_steps=100))[0].kind] == [NONE]
