"""Delays that recur: their period is known where they are small, and steps without order have none."""

from __future__ import annotations

import itertools
from math import exp, log

import numpy as np
import pytest

from parse.ledger.chance import _log_tail, recurrence

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
    finding = recurrence(late, STEPS)
    assert finding is not None and finding.period == 10


def test_the_tail_of_the_hypergeometric_distribution():
    total, marked, drawn = 9, 4, 3
    hits = [len({*chosen} & {*range(marked)}) for chosen in itertools.combinations(range(total), drawn)]
    for least in range(1, 4):
        assert exp(_log_tail(total, marked, drawn, least)) == pytest.approx(sum(n >= least for n in hits) / len(hits))
    assert _log_tail(200, 20, 20, 20) == pytest.approx(-sum(log((200 - k) / (20 - k)) for k in range(20)))
