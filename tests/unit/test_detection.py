"""What would lower a detection limit, held against the limit of as much more of the same evidence."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from parse.ledger.arrivals import MATERIAL, Arrivals, pooled
from parse.ledger.breakdown import step_breakdown
from parse.ledger.limit import MAX_TIMES, OF_MANY, _exceeded_by, detection_limit_ns, lowering
from parse.ledger.straggler import CHANCE, SHUFFLES
from parse.ledger.types import Floor, Lowering
from tests.unit.ledger_traces import run_of, trace_of


def evidence(seed: int, *, drift_ms: float, noise: float = 0.02, bound_ns: float = 1000) -> tuple[Arrivals, float]:
    """The arrivals of three runs, whose ranks take turns of six steps in being slower, and 1 % of their step in ns."""
    breakdowns = []
    for repeat in range(3):
        drifts = np.random.default_rng([seed, repeat]).normal(0, drift_ms, (4, 100))
        trace = trace_of(
            run_of(measured_steps=60), noise=noise, seed=100 * seed + repeat, bound_ns=bound_ns,
            backward=lambda rank, step, drifts=drifts: 3 + drifts[rank, step // 6],
        )  # fmt: skip
        breakdowns.append(step_breakdown(trace))
    arrivals = [each.arrivals for each in breakdowns if each.arrivals is not None]
    return pooled(arrivals), MATERIAL * float(np.mean([each.step_ns for each in breakdowns]))


def limits(seed: int, *times: int, bound_ns: float = 1000, **how: float) -> tuple[list[float], Lowering]:
    """The limits in ms with so many times the evidence, and what the evidence once says of them."""
    arrivals, least_ns = evidence(seed, bound_ns=bound_ns, **how)
    bound = {"least_ns": least_ns, "bound_ns": float(np.median(arrivals.skew_bound))}
    limits = [
        detection_limit_ns(pooled([arrivals] * count), chance=CHANCE, shuffles=SHUFFLES, **bound) for count in times
    ]
    assert all(limits)
    values = [limit for limit in limits if limit is not None]
    return [limit / 1e6 for limit in values], lowering(arrivals, limit_ns=values[0], **bound)


@pytest.mark.parametrize(("seed", "drift_ms"), [(1, 1.0), (1, 2.0)])
def test_so_many_times_the_evidence_halve_the_limit(seed: int, drift_ms: float) -> None:
    _, lower = limits(seed, 1, drift_ms=drift_ms)
    assert lower.times is not None and 4 < lower.times < MAX_TIMES
    (once, more), _ = limits(seed, 1, ceil(lower.times), drift_ms=drift_ms)
    assert more == pytest.approx(once / 2, rel=0.05)
    assert more > lower.least


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_where_nothing_halves_it_all_evidence_ends_at_the_least(seed: int) -> None:
    (once, many), lower = limits(seed, 1, 100, drift_ms=0.3)
    assert (lower.times, lower.floor) == (None, Floor.SHARE)
    assert once / 2 < lower.least < many < 1.1 * lower.least


def test_the_bounds_of_the_clocks_are_no_matter_of_more_runs() -> None:
    (once, many), lower = limits(0, 1, 100, drift_ms=0.02, bound_ns=300_000)
    assert (lower.times, lower.floor) == (None, Floor.CLOCK)
    assert 0.3 < lower.least < 0.4
    assert lower.least < many <= once


def test_what_maxima_seldom_exceed_is_known_from_a_hundred_of_them() -> None:
    """The largest of 512 means of twenty exponential delays: the estimate is some 3 % too large, the safe side."""
    maxima = np.random.default_rng(5).gamma(20, 1 / 20, (20_000, 512)).max(axis=1)
    estimates = [_exceeded_by(0.001, maxima[first : first + OF_MANY].tolist()) for first in range(0, 2000, OF_MANY)]
    true = float(np.quantile(maxima, 0.999))
    assert 0.93 * true < min(estimates) and max(estimates) < 1.15 * true
    assert true < np.median(estimates) < 1.05 * true
