"""The verdict on several runs of a point, by the evidence of all of them together; and what it could have detected."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parse.ledger.breakdown import StepBreakdown, step_breakdown
from parse.ledger.verdict import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Because, ShapeKind
from parse.ledger.verdicts import judged
from tests.truth.limits import Count, Size, count, drawn
from tests.unit.ledger_traces import Change, on, run_of, stragglers, trace_of
from tests.unit.traces import make_run


def breakdowns(*delays: dict[str, Change], noise: float = 0.05, **fields: int) -> list[StepBreakdown]:
    """A run for each of the delays, by phase."""
    return [
        step_breakdown(trace_of(run_of(repeat=repeat, **fields), noise=noise, seed=repeat, **late))
        for repeat, late in enumerate(delays, 1)
    ]


def test_two_ranks_late_for_different_causes_are_two_findings_with_their_own_shares():
    delays = {"data": on(0, ms=10), "backward": on(3, ms=15)}
    first, second = stragglers(breakdowns(delays, delays))
    assert (first.kind, first.ranks, max(first.cause, key=first.cause.__getitem__)) == (PERSISTENT, (3,), "compute")
    assert (second.kind, second.ranks, max(second.cause, key=second.cause.__getitem__)) == (PERSISTENT, (0,), "data")
    assert (first.arrival_skew, first.costs) == pytest.approx((15, 5), abs=0.3)
    assert (second.arrival_skew, second.costs) == pytest.approx((10, 10), abs=0.3)


def test_what_only_some_runs_show_has_their_number():
    both, in_one = {"backward": on(3, ms=15)}, {"backward": on(3, ms=15), "data": on(0, ms=10)}
    verdicts = stragglers(breakdowns(both, in_one))
    assert [(each.kind, each.ranks, each.in_runs, each.of_runs) for each in verdicts] == [
        (PERSISTENT, (3,), 2, 2), (PERSISTENT, (0,), 1, 2),
    ]  # fmt: skip
    assert verdicts[1].costs == pytest.approx(5, abs=0.2)  # 10 ms in one of two
    first, *further = stragglers(breakdowns(both, both, {}))
    assert (first.kind, first.ranks, first.in_runs, first.of_runs, further) == (PERSISTENT, (3,), 2, 3, [])


@pytest.mark.parametrize("ms", [1, 6])
def test_a_rank_that_is_late_in_one_run_of_three_is_named_with_that_run(ms):
    (named,) = stragglers(breakdowns({"backward": on(3, ms=ms)}, {}, {}))
    assert (named.kind, named.ranks, named.in_runs, named.of_runs) == (PERSISTENT, (3,), 1, 3)
    assert named.costs == pytest.approx(ms / 3, rel=0.15)


def test_a_rank_that_each_run_shows_in_another_shape_is_named():
    """Every step in one run, two steps of three in another: the runs by themselves disagree on the kind."""
    shapes = [{"backward": on(1, ms=6)}, {"backward": lambda rank, step: 9.0 * (rank == 1 and step % 3 > 0)}]
    first, *further = stragglers(breakdowns(*shapes))
    assert (first.kind, first.ranks, further) == (PERSISTENT, (1,), [])


def test_steps_are_named_run_by_run():
    def late(run: int) -> dict[str, Change]:
        return {"data": lambda rank, step: 60.0 * (rank == 2 and step % 9 == run)}

    first, *_ = stragglers(breakdowns(late(1), late(2), noise=0.1, measured_steps=60))
    assert (first.kind, first.ranks, first.steps) == (TRANSIENT, (2,), ())
    assert [[step % 9 for step in steps] for steps in first.run_steps] == [[1] * 7, [2] * 7]


@pytest.mark.parametrize("share", [0.4, 0.45, 0.5, 0.55, 0.6])
def test_a_rank_that_is_late_in_about_half_of_the_steps_is_named(share):
    chosen = np.random.default_rng(round(100 * share)).random(200) < share
    delays = {"backward": lambda rank, step: 20.0 * (rank == 2 and chosen[step])}
    first, *further = stragglers(breakdowns(delays, delays, noise=0.5, measured_steps=120))
    assert (first.ranks, further) == ((2,), [])
    assert first.share == pytest.approx(chosen[6:126].mean(), abs=0.03)
    assert first.costs == pytest.approx(19 * first.share, rel=0.05)  # others are late by 1 ms when it is not


def _uneven(seed: int) -> dict[str, Change]:
    """Work of unequal length on every rank, step by step."""
    random = np.random.default_rng(seed)
    drawn_ms = random.exponential(4, (4, 300)) if seed % 2 else random.normal(8, 3, (4, 300)).clip(0)
    return {"backward": lambda rank, step: float(drawn_ms[rank, step])}


def test_runs_that_draw_the_same_uneven_work_are_evidence_of_one():
    """With one seed for all runs, the same rank draws the longest batches in all of them; 34 of 150 pairs named one."""
    pairs = [judged(breakdowns(*[_uneven(seed)] * 2, noise=0.5, measured_steps=120)) for seed in range(24)]
    assert sum(pair.verdict.kind != NONE for pair in pairs) <= 1
    assert sum((pair.repeats or 0) > 0.5 for pair in pairs) >= 20
    other = judged(breakdowns(_uneven(1), _uneven(3), noise=0.5, measured_steps=120))
    assert (other.verdict.kind, other.repeats, other.further) == (NONE, None, ())


def test_a_straggler_beside_repeated_uneven_work_is_named():
    late = _uneven(1)["backward"]
    delays = {"backward": lambda rank, step: late(rank, step) + 6.0 * (rank == 2)}
    its = judged(breakdowns(delays, delays, noise=0.5, measured_steps=120))
    first = its.verdict
    assert (first.kind, first.ranks, its.further) == (PERSISTENT, (2,), ())
    assert its.repeats is not None
    assert first.costs == pytest.approx(6 - 2, abs=1.5)  # the others are last at times


def test_a_single_straggler_is_no_uneven_work_of_the_others():
    delays = {"backward": on(2, ms=20, every=3)}
    its = judged(breakdowns(delays, delays, measured_steps=120))
    assert (its.verdict.ranks, its.repeats) == ((2,), None)


def test_every_second_step_is_a_period():
    first, *further = stragglers(breakdowns(*[{"backward": on(2, ms=20, every=2)}] * 2, measured_steps=120))
    assert (first.kind, first.ranks, first.shape and first.shape.period, further) == (TRANSIENT, (2,), 2, [])


def test_a_small_periodic_delay_is_the_point_s():
    """4 ms in one of ten steps, where ranks differ by a ms anyway: too little to stand out."""
    late = {"backward": lambda rank, step: 4.0 * (rank == 2 and step % 10 == 3)}
    first, *further = stragglers(breakdowns(late, late, noise=0.7, measured_steps=100))
    assert (first.kind, first.ranks, first.shape and first.shape.period, further) == (TRANSIENT, (2,), 10, [])
    assert first.cause["compute"] == pytest.approx(first.arrival_skew, rel=0.2)


def test_of_a_node_that_is_late_every_so_many_steps_the_node_is_named():
    late: dict[str, Change] = {"data": lambda rank, step: 8.0 * (rank in (2, 3) and step % 8 == 1)}
    first, *_ = stragglers(breakdowns(late, late, noise=0.3, measured_steps=80))
    assert (first.kind, first.ranks, first.node, first.shape and first.shape.period) == (TRANSIENT, (2, 3), "n1", 8)


def test_ranks_that_leave_the_reduction_late_by_turns_are_named():
    late: dict[str, Change] = {"leave": lambda rank, step: 5.0 * (rank == (1, 3)[step % 2])}
    first, *further = stragglers(breakdowns(late, late, noise=0.2))
    assert (first.kind, first.ranks, further) == (ROTATING, (1, 3), [])
    assert first.leaves_late


def test_one_straggler_is_behind_another_in_steps_of_its_own():
    def late(rank: int, step: int) -> float:
        return 20.0 * ((rank == 1 and step % 7 == 0) or (rank == 2 and step % 10 == 0))

    verdicts = stragglers(breakdowns(*[{"backward": late}] * 2, measured_steps=140, noise=0.3))
    assert [(each.kind, each.ranks, each.shape and each.shape.period) for each in verdicts] == [
        (TRANSIENT, (1,), 7), (TRANSIENT, (2,), 10)
    ]  # fmt: skip


def test_delays_of_one_rank_stand_out_behind_those_of_another_in_every_step():
    seldom = np.random.default_rng(3).random(200) < 0.1
    delays = {"backward": on(1, ms=20), "data": lambda rank, step: 40.0 * (rank == 2 and seldom[step])}
    verdicts = stragglers(breakdowns(delays, delays, measured_steps=120))
    assert [(each.kind, each.ranks) for each in verdicts] == [(PERSISTENT, (1,)), (TRANSIENT, (2,))]
    assert verdicts[1].arrival_skew == pytest.approx(40, abs=0.5)


@pytest.mark.parametrize(("nodes", "ranks", "late"), [(2, 1, (1,)), (2, 2, (2, 3))])
def test_who_is_left_is_no_straggler_for_that(nodes, ranks, late):
    """Ranks that come last by scatter, since the straggler is taken out of half of the steps, are not late."""
    chosen = np.random.default_rng(1).random(200) < 0.5
    delays = {"backward": lambda rank, step: 20.0 * (rank in late and chosen[step])}
    size = {"nodes": nodes, "ranks_per_node": ranks, "measured_steps": 120}
    first, *further = stragglers(breakdowns(delays, delays, noise=0.5, **size))
    assert (first.ranks, further) == (late, [])


def test_ranks_that_are_late_together_cost_what_they_are_later_than_the_others():
    chosen = np.random.default_rng(1).random(200) < 0.5
    delays = {"backward": lambda rank, step: 20.0 * (rank in {0, 3, 5} and chosen[step])}
    first, *_ = stragglers(breakdowns(delays, delays, noise=0.5, nodes=4, measured_steps=120))
    assert first.ranks == (0, 3, 5)
    assert first.costs == pytest.approx(20 * first.share, rel=0.05)


def test_turns_of_many_steps_are_blocks():
    first, *_ = stragglers(
        breakdowns(*[{"backward": lambda rank, step: 10.0 * (rank == step // 30 % 4)}] * 2, measured_steps=120)
    )
    assert first.kind == ROTATING
    assert first.shape is not None
    assert (first.shape.kind, first.shape.period) == (ShapeKind.BLOCKS, pytest.approx(30, abs=6))


def test_where_a_rank_costs_as_much_as_the_limit_there_is_no_assurance():
    def late(rank: int, step: int) -> float:
        return 30.0 * ((rank == 1 and step in {20, 33}) or (rank == 2 and step in {15, 40, 66, 79, 80, 81}))

    first, *further = stragglers(breakdowns({"backward": late}, {}, measured_steps=120))
    assert not first.ranks or first.ranks == (2,)
    assert further == []
    if first.limit is not None and not first.ranks:
        assert first.doubt is not None
        assert first.doubt.rank == 2


def once(rank: int, step: int, ms: float) -> Change:
    return lambda *at: ms * (at == (rank, step))


def test_an_incident_of_one_run_of_three_is_the_point_s_where_it_costs_much():
    first, *further = stragglers(breakdowns({"data": once(2, 20, 2000.0)}, {}, {}))
    assert (first.kind, first.ranks, first.run_steps, further) == (TRANSIENT, (2,), ((20,), (), ()), [])
    assert (first.in_runs, first.of_runs) == (1, 3)
    assert first.arrival_skew == pytest.approx(2000, abs=1)
    seldom, *_ = stragglers(breakdowns({"data": once(2, 20, 50.0)}, {}, {}))
    assert seldom.kind == NONE


def test_two_events_are_never_averaged_into_one():
    events = {"data": once(1, 20, 2000.0)}, {"backward": once(1, 31, 2000.0)}
    verdicts = stragglers(breakdowns(*events))
    assert [(each.kind, each.ranks) for each in verdicts] == [(TRANSIENT, (1,))] * 2
    assert {each.run_steps: max(each.cause, key=each.cause.__getitem__) for each in verdicts} == {
        ((20,), ()): "data", ((), (31,)): "compute"
    }  # fmt: skip
    assert all(max(each.cause.values()) > 0.99 * each.arrival_skew for each in verdicts)
    elsewhere = {"data": once(1, 20, 2000.0)}, {"backward": once(2, 31, 2000.0)}
    assert stragglers(breakdowns(*elsewhere))[0].kind == NONE


def test_runs_whose_ranks_lie_elsewhere_are_not_put_together():
    first, second = breakdowns({"data": on(3, ms=6)}, {"data": on(3, ms=6)})
    (verdict,) = stragglers([first, dataclasses.replace(second, nodes=(0, 1, 0, 1))])
    assert (verdict.kind, verdict.because) == (CANNOT_TELL, Because.RUNS_DISAGREE)


def test_several_short_runs_name_two_ranks_that_alternate():
    def late(rank: int, step: int) -> float:
        return 10.5 * (rank == (1 if step % 2 else 2))

    first, *_ = stragglers(breakdowns({"backward": late}, {"backward": late}, noise=0.3, measured_steps=40))
    assert (first.kind, first.ranks) == (ROTATING, (1, 2))


def test_another_rank_that_is_late_in_each_run_is_named_with_its_run():
    verdicts = stragglers(breakdowns(*({"data": on(rank, ms=6)} for rank in (1, 2, 3))))
    assert sorted((each.kind, each.ranks, each.in_runs) for each in verdicts) == [
        (PERSISTENT, (rank,), 1) for rank in (1, 2, 3)
    ]  # fmt: skip
    assert [each.costs for each in verdicts] == pytest.approx([2, 2, 2], abs=0.1)


def test_a_long_stall_of_all_others_hides_no_straggler():
    """In one piece of the window the straggler is a tenth of a second early."""

    def late(rank: int, step: int) -> float:
        return 8.0 * (rank == 1) + 100.0 * (rank != 1 and 20 <= step < 24)

    first, *_ = stragglers(breakdowns({"data": late}, {"data": on(1, ms=8)}))
    assert (first.kind, first.ranks, max(first.cause, key=first.cause.__getitem__)) == (PERSISTENT, (1,), "data")


def test_beside_a_persistent_straggler_an_event_of_another_rank_is_named():
    both = {"data": on(1, ms=8), "backward": once(3, 20, 3000.0)}
    verdicts = stragglers(breakdowns(both, {"data": on(1, ms=8)}))
    assert {(each.kind, each.ranks) for each in verdicts} == {(PERSISTENT, (1,)), (TRANSIENT, (3,))}


def test_an_event_of_the_persistent_straggler_is_not_averaged_with_its_other_delays():
    both = {"data": on(1, ms=8), "backward": once(1, 20, 3000.0)}
    event, always = stragglers(breakdowns(both, {"data": on(1, ms=8)}))
    assert (event.kind, event.ranks, event.run_steps) == (TRANSIENT, (1,), ((20,), ()))
    assert (event.arrival_skew, event.cause["compute"]) == pytest.approx((3008, 3000), abs=2)
    assert (always.kind, always.ranks) == (PERSISTENT, (1,))
    assert (always.arrival_skew, always.costs) == pytest.approx((8, 8 * 79 / 80), abs=0.2)  # the event has one step
    assert always.cause["compute"] == pytest.approx(0, abs=0.1)


# What would have been detected

SIZES = (
    Size(nodes=2, ranks_per_node=1, steps=100, runs=2), Size(nodes=2, ranks_per_node=2, steps=60, runs=5),
    Size(nodes=4, ranks_per_node=4, steps=60, runs=3),
)  # fmt: skip


@pytest.mark.all
@pytest.mark.slow
def test_a_rank_at_the_detection_limit_is_named_in_nine_of_ten_measurements():
    counts = [count(size, points=36) for size in SIZES]
    total = sum(counts, Count())
    assert total.holds, counts
    assert total.limited >= 0.97 * total.drawn


@pytest.mark.slow
def test_more_runs_lower_the_limit():
    generator = np.random.default_rng(7)
    run = make_run(nodes=4, ranks_per_node=4, warmup_steps=6, measured_steps=60)
    few, many = (stragglers(drawn(generator, run, runs, spread=0.1))[0].limit for runs in (2, 12))
    assert few is not None and many is not None and many < few
