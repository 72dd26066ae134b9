"""parse.ledger.straggler: who is waited for, and that nobody is where ranks are equal."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from hpc.model.trace import Trace
from parse.ledger.arrivals import longest_of
from parse.ledger.breakdown import step_breakdown
from parse.ledger.straggler import _events, _tail, incidents, verdict
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Verdict
from tests.unit.ledger_traces import Change, on, run_of, trace_of

NOISE = 0.1
"""ms, of each phase."""


def judged(trace: Trace) -> Verdict:
    return verdict(step_breakdown(trace))


def rotate(ms: float, ranks: int = 4) -> Change:
    return lambda rank, step: ms if rank == step % ranks else 0.0


def test_a_rank_that_is_always_late_is_named_with_what_made_it_late() -> None:
    found = judged(trace_of(run_of(), noise=NOISE, forward=on(1, ms=10.0), data=on(1, ms=5.0)))
    assert (found.kind, found.ranks, found.node) == (PERSISTENT, (1,), "")
    assert found.late == pytest.approx(15.0, abs=0.3)
    assert found.cause["compute"] == pytest.approx(10.0, abs=0.3)
    assert found.cause["data"] == pytest.approx(5.0, abs=0.3)
    assert sum(found.cause.values()) == pytest.approx(found.late)
    assert found.share == 1.0
    assert found.costs == pytest.approx(15.0, abs=0.5)
    assert found.chance is not None and found.chance <= 0.01


def test_a_late_node_is_named_as_a_node() -> None:
    found = judged(trace_of(run_of(), noise=NOISE, backward=on(2, 3, ms=10.0)))
    assert (found.kind, found.ranks, found.node) == (PERSISTENT, (2, 3), "n1")
    assert found.late == pytest.approx(10.0, abs=0.3)
    assert found.costs == pytest.approx(10.0, abs=0.3)


def test_where_half_of_the_ranks_are_late_they_are_late_against_the_others() -> None:
    run = run_of(nodes=2, ranks_per_node=8)
    found = judged(trace_of(run, noise=NOISE, backward=on(*range(8), ms=10.0)))
    assert (found.kind, found.ranks, found.node) == (PERSISTENT, tuple(range(8)), "n0")
    assert found.late == pytest.approx(10.0, abs=0.5)  # the last of those in time is the median rank


def test_two_late_ranks_of_different_nodes_are_both_named() -> None:
    run = run_of(nodes=4)
    found = judged(trace_of(run, noise=NOISE, backward=on(1, 6, ms=10.0)))
    assert (found.kind, found.ranks, found.node) == (PERSISTENT, (1, 6), "")


def test_one_rank_per_node_is_a_rank_not_a_node() -> None:
    found = judged(trace_of(run_of(nodes=4, ranks_per_node=1), noise=NOISE, data=on(2, ms=10.0)))
    assert (found.kind, found.ranks, found.node) == (PERSISTENT, (2,), "")


def test_a_late_update_is_found_a_step_later_and_named_as_update() -> None:
    found = judged(trace_of(run_of(), noise=NOISE, update=on(0, ms=10.0)))
    assert (found.kind, found.ranks) == (PERSISTENT, (0,))
    assert found.cause["update"] == pytest.approx(10.0, abs=0.3)


def test_a_rank_that_leaves_the_reduction_late_is_late_by_that() -> None:
    found = judged(trace_of(run_of(), noise=NOISE, leave=on(3, ms=8.0)))
    assert (found.kind, found.ranks) == (PERSISTENT, (3,))
    assert found.cause["release"] == pytest.approx(8.0, abs=0.3)


def test_ranks_that_take_turns_are_rotating() -> None:
    found = judged(trace_of(run_of(), noise=NOISE, backward=rotate(10.0)))
    assert (found.kind, found.ranks) == (ROTATING, (0, 1, 2, 3))
    assert found.late == pytest.approx(10.0, abs=0.3)
    assert found.cause["compute"] == pytest.approx(10.0, abs=0.3)


def test_two_ranks_that_take_turns_are_rotating() -> None:
    run = run_of(nodes=2, ranks_per_node=1, measured_steps=80)
    found = judged(trace_of(run, noise=NOISE, backward=rotate(10.0, ranks=2)))
    assert (found.kind, found.ranks) == (ROTATING, (0, 1))


def test_nodes_that_take_turns_are_rotating() -> None:
    run = run_of(nodes=4, measured_steps=80)
    found = judged(trace_of(run, noise=NOISE, backward=lambda rank, step: 10.0 if rank // 2 == step % 4 else 0.0))
    assert (found.kind, found.node, found.ranks) == (ROTATING, "n0, n1, n2, n3", tuple(range(8)))
    assert found.late == pytest.approx(10.0, abs=0.3)


def test_two_of_many_ranks_that_take_turns_are_rotating() -> None:
    run = run_of(nodes=4, measured_steps=80)
    found = judged(trace_of(run, noise=NOISE, data=lambda rank, step: 10.0 if rank == 5 * (step % 2) else 0.0))
    assert (found.kind, found.ranks) == (ROTATING, (0, 5))


def test_a_rank_that_is_late_in_half_of_the_window_is_told_with_that_half() -> None:
    found = judged(trace_of(run_of(), noise=0.01, data=lambda rank, step: 10.0 if rank == 1 and step >= 26 else 0.0))
    assert (found.kind, found.ranks) == (PERSISTENT, (1,))
    assert found.share == pytest.approx(0.5, abs=0.03)
    assert found.late == pytest.approx(10.0, abs=0.3)
    assert found.costs == pytest.approx(5.0, abs=0.5)


def test_every_tenth_step_is_transient_with_its_steps() -> None:
    found = judged(trace_of(run_of(), noise=NOISE, backward=on(2, ms=20.0, every=10)))
    assert (found.kind, found.ranks, found.steps) == (TRANSIENT, (2,), (10, 20, 30, 40))
    assert found.late == pytest.approx(20.0, abs=0.4)
    assert found.costs == pytest.approx(2.0, abs=0.2)


def test_every_tenth_step_of_a_node_is_transient_on_the_node() -> None:
    run = run_of(nodes=4, measured_steps=100)
    found = judged(trace_of(run, noise=NOISE, backward=on(4, 5, ms=20.0, every=10)))
    assert (found.kind, found.ranks, found.node) == (TRANSIENT, (4, 5), "n2")
    assert found.steps == tuple(range(10, 106, 10))


def test_small_incidents_of_others_hide_no_large_ones() -> None:
    def late(rank: int, step: int) -> float:
        return 10.0 if rank == 2 and step % 10 == 0 else 4.0 if rank == step % 4 and step % 5 == 1 else 0.0

    found = judged(trace_of(run_of(measured_steps=80), noise=NOISE, backward=late))
    assert (found.kind, found.ranks, found.steps) == (TRANSIENT, (2,), tuple(range(10, 86, 10)))
    assert found.late == pytest.approx(10.0, abs=0.5)


def test_of_a_rank_that_is_always_a_little_late_and_one_that_seldom_is_much_the_one_that_costs_more_is_named() -> None:
    def late(little: float) -> Change:
        return lambda rank, step: little if rank == 3 else 30.0 if rank == 2 and step % 10 == 0 else 0.0

    run = run_of(measured_steps=80)
    seldom = judged(trace_of(run, noise=NOISE, backward=late(1.0)))
    assert (seldom.kind, seldom.ranks, seldom.steps) == (TRANSIENT, (2,), tuple(range(10, 86, 10)))
    always = judged(trace_of(run, noise=NOISE, backward=late(5.0)))
    assert (always.kind, always.ranks) == (PERSISTENT, (3,))


def test_one_severe_incident_is_transient() -> None:
    def once(rank: int, step: int) -> float:
        return 300.0 if (rank, step) == (3, 25) else 0.0

    found = judged(trace_of(run_of(), noise=NOISE, data=once))
    assert (found.kind, found.ranks, found.steps) == (TRANSIENT, (3,), (25,))
    assert found.cause["data"] == pytest.approx(300.0, abs=1.0)
    assert found.chance is None


def test_thousands_of_bad_steps_are_told() -> None:
    found = judged(trace_of(run_of(measured_steps=6000), noise=0.01, data=on(2, ms=20.0, every=3)))
    assert (found.kind, found.ranks, len(found.steps)) == (TRANSIENT, (2,), 2000)
    assert found.chance is not None and found.chance < 1e-100


@pytest.mark.parametrize(("events", "its", "ranks"), [(6, 6, 4), (10, 3, 2), (7, 0, 3)])
def test_how_often_chance_gives_one_rank_so_many(events: int, its: int, ranks: int) -> None:
    ways = [chosen.count(0) for chosen in itertools.product(range(ranks), repeat=events)]
    assert _tail(events, its, 1 / ranks) == pytest.approx(sum(count >= its for count in ways) / len(ways))


def test_steps_in_a_row_by_one_rank_are_one_event() -> None:
    steps = np.array([1, 1, 0, 1, 1, 1, 0, 1], bool)
    who = np.array([0, 0, 0, 2, 2, 1, 1, 1])
    assert _events(steps, who).tolist() == [0, 3, 5, 7]


def test_one_incident_may_last_a_few_steps() -> None:
    def once(rank: int, step: int) -> float:
        return 300.0 if rank == 3 and 25 <= step < 28 else 0.0

    found = judged(trace_of(run_of(), noise=NOISE, data=once))
    assert (found.kind, found.ranks, found.steps) == (TRANSIENT, (3,), (25, 26, 27))


def test_incidents_on_several_ranks_are_told_and_nobody_is_accused() -> None:
    happened = {(3, 25): 300.0, (0, 33): 200.0}
    one = step_breakdown(trace_of(run_of(), noise=NOISE, data=lambda rank, step: happened.get((rank, step), 0.0)))
    assert verdict(one).kind == NONE
    assert [(each.step, each.rank) for each in incidents(one)] == [(25, 3), (33, 0)]
    assert [each.late for each in incidents(one)] == pytest.approx([300.0, 200.0], abs=1.0)


def test_without_incidents_none_is_told() -> None:
    assert incidents(step_breakdown(trace_of(run_of(), noise=NOISE))) == ()
    assert incidents(step_breakdown(trace_of(run_of(timing="step")))) == ()


def test_what_all_ranks_do_alike_has_no_culprit() -> None:
    everyone = on(0, 1, 2, 3, ms=15.0, every=3)
    assert judged(trace_of(run_of(), noise=NOISE, backward=everyone, transfer=17.0)).kind == NONE


def test_a_straggler_who_costs_next_to_nothing_is_none() -> None:
    assert judged(trace_of(run_of(), noise=0.001, bound_ns=100, backward=on(1, ms=0.1))).kind == NONE
    assert judged(trace_of(run_of(), noise=0.001, bound_ns=100, backward=on(1, ms=0.3))).kind == PERSISTENT


def test_within_the_clocks_bounds_nobody_is_named() -> None:
    run = run_of(nodes=4, ranks_per_node=1)
    trace = trace_of(run, noise=0.01, bound_ns=100, backward=on(3, ms=1.0))
    assert judged(trace).ranks == (3,)
    wide = np.where(trace.clock_bound_ns > 0, 2_000_000, 0.0)
    found = judged(dataclasses.replace(trace, clock_bound_ns=wide))
    assert (found.kind, found.because) == (CANNOT_TELL, "clock")
    assert found.late == pytest.approx(1.0, abs=0.1)
    assert found.bound > 1.0
    found = judged(trace_of(run, noise=0.01, bound_ns=2_000_000))
    assert (found.kind, found.because) == (CANNOT_TELL, "clock")


def test_ranks_that_read_one_clock_are_told_apart_however_far_it_is_from_the_others() -> None:
    run = run_of(nodes=2, ranks_per_node=4)
    found = judged(trace_of(run, noise=0.01, bound_ns=200_000, backward=on(6, ms=1.0)))
    assert (found.kind, found.ranks) == (PERSISTENT, (6,))


def test_a_straggler_beyond_wide_bounds_is_named_all_the_same() -> None:
    found = judged(trace_of(run_of(), noise=0.01, bound_ns=2_000_000, backward=on(3, ms=20.0)))
    assert (found.kind, found.ranks) == (PERSISTENT, (3,))


def test_a_few_steps_of_two_ranks_tell_nothing() -> None:
    run = run_of(nodes=2, ranks_per_node=1, measured_steps=4)
    found = judged(trace_of(run, noise=NOISE, backward=on(1, ms=10.0)))
    assert (found.kind, found.because) == (CANNOT_TELL, "steps")


def test_one_rank_waits_for_nobody() -> None:
    found = judged(trace_of(run_of(nodes=1, ranks_per_node=1)))
    assert (found.kind, found.because) == (NONE, "one rank waits for nobody")


def test_where_ranks_cannot_be_compared_the_reason_is_said() -> None:
    found = judged(trace_of(run_of(timing="step")))
    assert found.kind == CANNOT_TELL
    assert "grads_ready was not recorded" in found.because


def test_the_longest_of_a_few_drawn_from_a_pool() -> None:
    pool = np.array([2, 3, 3, 7, 20, 21])
    longest = [max(chosen) - 2 for chosen in itertools.combinations(pool.tolist(), 3)]
    mean, variance = longest_of(pool, 3)
    assert mean == pytest.approx(np.mean(longest))
    assert variance == pytest.approx(np.var(longest))
