"""parse.ledger.verdicts: who is waited for, and that nobody is where ranks are equal."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from hpc.model.trace import Trace
from parse.ledger.breakdown import step_breakdown
from parse.ledger.verdict import (  # fmt: skip
    CANNOT_TELL,
    NONE,
    PERSISTENT,
    ROTATING,
    TRANSIENT,
    Because,
    Verdict,
    VerdictKind,
)
from parse.ledger.verdicts import incidents, verdict
from parse.stats import binomial_tail
from tests.unit.ledger_traces import Change, on, run_of, stragglers, trace_of

NOISE = 0.1
"""ms, of each phase."""
PAIR = {"nodes": 2, "ranks_per_node": 1}
EIGHT = {"nodes": 4}


def verdict_of(trace: Trace) -> Verdict:
    return verdict(step_breakdown(trace))


def rotate(ms: float, ranks: int = 4) -> Change:
    return lambda rank, step: ms if rank == step % ranks else 0.0


def rotate_beside_long_delays(ms: float) -> Change:
    """As `rotate`, and beside it four delays, each ten times as long, of two ranks."""
    turn = rotate(ms)
    return lambda rank, step: turn(rank, step) + (10 * ms if step in (10, 33) and rank in (step % 4, 3) else 0.0)


def every_tenth(late: float, others: float) -> Change:
    """Rank 2 in every tenth step, and little incidents of all in turn."""
    return lambda rank, step: (
        late if rank == 2 and step % 10 == 0 else others if rank == step % 4 and step % 5 == 1 else 0.0
    )


def little_or_seldom(little: float) -> Change:
    """Rank 3 always a little late, rank 2 much in every tenth step."""
    return lambda rank, step: little if rank == 3 else 30.0 if rank == 2 and step % 10 == 0 else 0.0


def little_and_seldom_much(little: float) -> Change:
    """Rank 2 always a little late, and much in every tenth step."""
    return lambda rank, step: 0.0 if rank != 2 else 30.0 if step % 10 == 0 else little


TENTHS = tuple(range(10, 86, 10))
Changes = dict[str, Any]


def within(rank: int, first: int, stop: int, ms: float) -> Change:
    return lambda r, step: ms if r == rank and first <= step < stop else 0.0


LONG, LONG_EIGHT = {"measured_steps": 80}, {**EIGHT, "measured_steps": 80}
SINGLES = {"nodes": 4, "ranks_per_node": 1}
CASES: dict[str, tuple[Changes, Changes, VerdictKind, tuple[int, ...], Changes]] = {
    "a rank": ({}, {"forward": on(1, ms=10.0), "data": on(1, ms=5.0)}, PERSISTENT, (1,),
               {"arrival_skew": 15, "compute": 10, "data": 5, "share": 1, "costs": 15}),
    "a node": ({}, {"backward": on(2, 3, ms=10.0)}, PERSISTENT, (2, 3),
               {"node": "n1", "arrival_skew": 10, "costs": 10}),
    # The last of those in time is the median rank.
    "half of the ranks": ({"ranks_per_node": 8}, {"backward": on(*range(8), ms=10.0)}, PERSISTENT, tuple(range(8)),
                          {"node": "n0", "arrival_skew": 10}),
    "two ranks of different nodes": (EIGHT, {"backward": on(1, 6, ms=10.0)}, PERSISTENT, (1, 6), {}),
    "one rank per node": (SINGLES, {"data": on(2, ms=10.0)}, PERSISTENT, (2,), {}),
    "optimizer, a step later": ({}, {"optimizer": on(0, ms=10.0)}, PERSISTENT, (0,), {"optimizer": 10}),
    "leaves the reduction late": ({}, {"leave": on(3, ms=8.0)}, PERSISTENT, (3,), {"release": 8}),
    "half of the window": ({}, {"data": within(1, 26, 46, 10.0), "noise": 0.01}, PERSISTENT, (1,),
                           {"share": 0.5, "arrival_skew": 10, "costs": 5}),
    "beyond wide bounds": ({}, {"backward": on(3, ms=20.0), "noise": 0.01, "bound_ns": 2e6}, PERSISTENT, (3,), {}),
    "within one clock": ({"ranks_per_node": 4}, {"backward": on(6, ms=1.0), "noise": 0.01, "bound_ns": 200_000},
                         PERSISTENT, (6,), {}),
    "costs enough": ({}, {"backward": on(1, ms=0.3), "noise": 0.001, "bound_ns": 100}, PERSISTENT, (1,), {}),
    "costs next to nothing": ({}, {"backward": on(1, ms=0.02), "noise": 0.001, "bound_ns": 100}, NONE, (), {}),
    "all alike": ({}, {"backward": on(0, 1, 2, 3, ms=15.0, every=3), "communication": 17.0}, NONE, (), {}),
    "rotating": ({}, {"backward": rotate(10.0)}, ROTATING, (0, 1, 2, 3), {"arrival_skew": 10, "compute": 10}),
    "rotating, beside long delays": (LONG, {"backward": rotate_beside_long_delays(3.0)}, ROTATING, (0, 1, 2, 3), {}),
    "two rotate": ({**PAIR, **LONG}, {"backward": rotate(10.0, 2)}, ROTATING, (0, 1), {}),
    "nodes rotate": (LONG_EIGHT, {"backward": lambda rank, step: 10.0 if rank // 2 == step % 4 else 0.0}, ROTATING,
                     tuple(range(8)), {"node": "n0, n1, n2, n3", "arrival_skew": 10}),
    "two of eight rotate": (LONG_EIGHT, {"data": lambda rank, step: 10.0 if rank == 5 * (step % 2) else 0.0}, ROTATING,
                            (0, 5), {}),
    "every tenth step": ({}, {"backward": on(2, ms=20.0, every=10)}, TRANSIENT, (2,),
                         {"steps": (10, 20, 30, 40), "arrival_skew": 20, "costs": 2}),
    "every tenth step of a node": (LONG_EIGHT, {"backward": on(4, 5, ms=20.0, every=10)}, TRANSIENT, (4, 5),
                                   {"node": "n2", "steps": TENTHS}),
    "above small incidents of others": (LONG, {"backward": every_tenth(10.0, 4.0)}, TRANSIENT, (2,),
                                        {"steps": TENTHS, "arrival_skew": 10}),
    "seldom and much costs more": (LONG, {"backward": little_or_seldom(1.0)}, TRANSIENT, (2,), {"steps": TENTHS}),
    "seldom and much, of a rank that is always a little late": (
        LONG, {"backward": little_and_seldom_much(1.0)}, TRANSIENT, (2,), {"steps": TENTHS, "arrival_skew": 30}
    ),
    "always, of a rank that is seldom later still": (
        LONG, {"backward": little_and_seldom_much(5.0)}, PERSISTENT, (2,), {}
    ),
    "always costs more": (LONG, {"backward": little_or_seldom(5.0)}, PERSISTENT, (3,), {}),
    "one severe incident": ({}, {"data": within(3, 25, 26, 300.0)}, TRANSIENT, (3,), {"steps": (25,), "chance": None}),
    "an incident of three steps": ({}, {"data": within(3, 25, 28, 300.0)}, TRANSIENT, (3,), {"steps": (25, 26, 27)}),
}  # fmt: skip


@pytest.mark.parametrize(("run", "delays", "kind", "ranks", "expected"), CASES.values(), ids=[*CASES])
def test_the_verdict(
    run: Changes, delays: Changes, kind: VerdictKind, ranks: tuple[int, ...], expected: Changes
) -> None:
    result = verdict_of(trace_of(run_of(**run), **({"noise": NOISE} | delays)))
    assert (result.kind, result.ranks, getattr(result, "node", "")) == (kind, ranks, expected.get("node", ""))
    for name, value in expected.items():
        figure = getattr(result, "cause", {}).get(name, getattr(result, name, None))
        assert figure == (pytest.approx(value, abs=0.5) if isinstance(value, int | float) else value), name
    if kind == PERSISTENT:
        assert sum(result.cause.values()) == pytest.approx(result.arrival_skew)
        assert result.chance is not None and result.chance <= 0.01


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_long_stop_of_another_rank_makes_a_straggler_no_earlier(ranks: int) -> None:
    """Rank 1 is late by 5 ms in all steps but one, in which rank 0 stops for 2 s: 20 ms a step on average."""
    late = on(1, ms=5.0)
    trace = trace_of(
        run_of(nodes=ranks, ranks_per_node=1, measured_steps=100),
        noise=NOISE, backward=lambda rank, step: 2000.0 if (rank, step) == (0, 40) else late(rank, step),
    )  # fmt: skip
    stopped, always = stragglers([step_breakdown(trace)])
    assert (stopped.kind, stopped.ranks, stopped.steps) == (TRANSIENT, (0,), (40,))
    assert (always.kind, always.ranks) == (PERSISTENT, (1,))
    assert always.arrival_skew == pytest.approx(5.0, abs=0.5)
    assert always.cause["compute"] == pytest.approx(5.0, abs=0.5)


def test_thousands_of_late_steps_are_transient() -> None:
    result = verdict_of(trace_of(run_of(measured_steps=6000), noise=0.01, data=on(2, ms=20.0, every=3)))
    assert (result.kind, result.ranks, len(result.steps)) == (TRANSIENT, (2,), 2000)
    assert result.chance is not None and result.chance < 1e-100


@pytest.mark.parametrize(
    ("run", "how", "kind", "because"),
    [
        ({"nodes": 1, "ranks_per_node": 1}, {}, NONE, None),
        ({**PAIR, "measured_steps": 4}, {"backward": on(1, ms=10.0)}, CANNOT_TELL, Because.FEW_STEPS),
        ({"nodes": 4, "ranks_per_node": 1}, {"noise": 0.01, "bound_ns": 2_000_000}, CANNOT_TELL, Because.CLOCK),
    ],
)  # fmt: skip
def test_without_a_straggler_the_reason_is_given(
    run: Changes, how: Changes, kind: VerdictKind, because: Because
) -> None:
    result = verdict_of(trace_of(run_of(**run), **({"noise": NOISE} | how)))
    assert (result.kind, getattr(result, "because", None), result.ranks) == (kind, because, ())


def test_within_the_clocks_bounds_nobody_is_named() -> None:
    trace = trace_of(run_of(nodes=4, ranks_per_node=1), noise=0.01, bound_ns=100, backward=on(3, ms=1.0))
    assert verdict_of(trace).ranks == (3,)
    wide = np.where(trace.clock_bound_ns > 0, 2_000_000, 0.0)
    result = verdict_of(dataclasses.replace(trace, clock_bound_ns=wide))
    assert (result.kind, result.because) == (CANNOT_TELL, Because.CLOCK)
    assert result.bound > 1.0


def test_incidents_on_several_ranks_make_no_straggler() -> None:
    delays = {(3, 25): 300.0, (0, 33): 200.0}
    breakdown = step_breakdown(trace_of(run_of(), noise=NOISE, data=lambda *at: delays.get(at, 0.0)))
    assert verdict(breakdown).kind == NONE
    assert [(incident.step, incident.rank) for incident in incidents(breakdown)] == [(25, 3), (33, 0)]
    assert [incident.arrival_skew for incident in incidents(breakdown)] == pytest.approx([300.0, 200.0], abs=1.0)


@pytest.mark.parametrize("timing", ["phases", "step"])
def test_equal_ranks_have_no_incidents(timing: str) -> None:
    assert incidents(step_breakdown(trace_of(run_of(timing=timing), noise=NOISE))) == ()


@pytest.mark.parametrize(("events", "its", "ranks"), [(6, 6, 4), (10, 3, 2), (7, 0, 3)])
def test_the_chance_that_one_rank_has_so_many_events(events: int, its: int, ranks: int) -> None:
    ways = [chosen.count(0) for chosen in itertools.product(range(ranks), repeat=events)]
    assert binomial_tail(events, its, 1 / ranks) == pytest.approx(sum(count >= its for count in ways) / len(ways))
