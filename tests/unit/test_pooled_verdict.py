"""The verdict on several runs of a point, by the evidence of all of them together; and what it could have detected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parse.ledger.breakdown import StepBreakdown, step_breakdown
from parse.ledger.verdict import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Because, ShapeKind
from parse.ledger.verdicts import judged
from tests.truth.limits import Count, Size, count, drawn
from tests.unit.ledger_traces import Change, on, run_of, stragglers, trace_of
from tests.unit.traces import make_run


def breakdowns(*delays: dict[str, Change], noise: float = 0.05, **fields: Any) -> list[StepBreakdown]:
    """A run for each of the delays, by phase."""
    return [
        step_breakdown(trace_of(run_of(repeat=repeat, **fields), noise=noise, seed=repeat, **late))
        for repeat, late in enumerate(delays, 1)
    ]


def share_of(share: float) -> float:
    """What a share that is drawn is of the measured steps."""
    return float((np.random.default_rng(round(100 * share)).random(200) < share)[6:126].mean())


def once(rank: int, step: int, ms: float) -> Change:
    return lambda *at: ms * (at == (rank, step))


def some(ms: float, *ranks: int, share: float = 0.5, seed: int = 1) -> Change:
    """So much more on these ranks in such a share of the steps, drawn."""
    late = np.random.default_rng(seed).random(200) < share
    return lambda rank, step: ms * (rank in ranks and late[step])


def at(ms: float, rank: int, steps: Callable[[int], bool]) -> Change:
    return lambda its, step: ms * (its == rank and steps(step))


def stalled(rank: int, step: int) -> float:
    """In one piece of the window the straggler is a tenth of a second early."""
    return 8.0 * (rank == 1) + 100.0 * (rank != 1 and 20 <= step < 24)


def both(first: Change, second: Change) -> Change:
    return lambda rank, step: first(rank, step) + second(rank, step)


Delays = dict[str, Change]
Expected = tuple[str, tuple[int, ...] | None, dict[str, Any]]
LATE, SHORT, LONG = on(3, ms=15), {"measured_steps": 60}, {"measured_steps": 120}
FURTHER = ("further", None, {})
"""Whatever is named behind."""
CASES: dict[str, tuple[dict[str, float], list[Delays], list[Expected]]] = {
    "two ranks for different causes": ({}, [{"data": on(0, ms=10), "backward": LATE}] * 2, [
        (PERSISTENT, (3,), {"by": "compute", "arrival_skew": (15, 0.3), "costs": (5, 0.3)}),
        (PERSISTENT, (0,), {"by": "data", "arrival_skew": (10, 0.3), "costs": (10, 0.3)}),
    ]),
    "one of them in one run": ({}, [{"backward": LATE}, {"backward": LATE, "data": on(0, ms=10)}], [
        (PERSISTENT, (3,), {"in_runs": 2, "of_runs": 2}),
        (PERSISTENT, (0,), {"in_runs": 1, "of_runs": 2, "costs": (5, 0.2)}),
    ]),
    "in two runs of three": ({}, [{"backward": LATE}, {"backward": LATE}, {}],
                             [(PERSISTENT, (3,), {"in_runs": 2, "of_runs": 3})]),
    **{f"by {ms} ms in one run of three": (
        {}, [{"backward": on(3, ms=ms)}, {}, {}],
        [(PERSISTENT, (3,), {"in_runs": 1, "of_runs": 3, "costs": (ms / 3, 0.05 * ms)})],
    ) for ms in (1, 6)},
    # Every step in one run, two steps of three in another: the runs by themselves disagree on the kind.
    "in each run in another shape": ({}, [{"backward": on(1, ms=6)}, {"backward": at(9, 1, lambda step: step % 3 > 0)}],
                                     [(PERSISTENT, (1,), {})]),
    "in other steps of each run": (
        {"noise": 0.1, **SHORT}, [{"data": at(60, 2, lambda step, run=run: step % 9 == run)} for run in (1, 2)],
        [(TRANSIENT, (2,), {"steps": (), "run_steps": (tuple(range(10, 66, 9)), tuple(range(11, 66, 9)))}), FURTHER],
    ),
    # Others are late by 1 ms where it is not.
    **{f"in {share:.0%} of the steps": (
        {"noise": 0.5, **LONG}, [{"backward": some(20, 2, share=share, seed=round(100 * share))}] * 2,
        [(None, (2,), {"share": (share_of(share), 0.03), "costs a late step": (19, 0.95)})],
    ) for share in (0.4, 0.45, 0.5, 0.55, 0.6)},
    "every second step": (LONG, [{"backward": on(2, ms=20, every=2)}] * 2, [(TRANSIENT, (2,), {"period": 2})]),
    # 4 ms, where ranks differ by a ms anyway: too little to stand out.
    "a little every tenth step": (
        {"noise": 0.7, "measured_steps": 100}, [{"backward": at(4, 2, lambda step: step % 10 == 3)}] * 2,
        [(TRANSIENT, (2,), {"period": 10, "all by": "compute"})],
    ),
    "a node every eighth step": (
        {"noise": 0.3, "measured_steps": 80},
        [{"data": lambda rank, step: 8.0 * (rank in (2, 3) and step % 8 == 1)}] * 2,
        [(TRANSIENT, (2, 3), {"node": "n1", "period": 8}), FURTHER],
    ),
    "leaving the reduction by turns": (
        {"noise": 0.2}, [{"leave": lambda rank, step: 5.0 * (rank == (1, 3)[step % 2])}] * 2,
        [(ROTATING, (1, 3), {"leaves_late": True})],
    ),
    "two in steps of their own": (
        {"noise": 0.3, "measured_steps": 140},
        [{"backward": both(on(1, ms=20, every=7), on(2, ms=20, every=10))}] * 2,
        [(TRANSIENT, (1,), {"period": 7}), (TRANSIENT, (2,), {"period": 10})],
    ),
    "one always, another in a tenth of the steps": (
        LONG, [{"backward": on(1, ms=20), "data": some(40, 2, share=0.1, seed=3)}] * 2,
        [(PERSISTENT, (1,), {}), (TRANSIENT, (2,), {"arrival_skew": (40, 0.5)})],
    ),
    # Ranks that come last by scatter, since the straggler is taken out of half of the steps, are not late.
    "one of two": ({"noise": 0.5, "ranks_per_node": 1, **LONG}, [{"backward": some(20, 1)}] * 2, [(None, (1,), {})]),
    "a node of two": ({"noise": 0.5, **LONG}, [{"backward": some(20, 2, 3)}] * 2, [(None, (2, 3), {})]),
    "three of eight together": ({"noise": 0.5, "nodes": 4, **LONG}, [{"backward": some(20, 0, 3, 5)}] * 2,
                                [(None, (0, 3, 5), {"costs a late step": (20, 1)}), FURTHER]),
    "turns of thirty steps": (
        LONG, [{"backward": lambda rank, step: 10.0 * (rank == step // 30 % 4)}] * 2,
        [(ROTATING, None, {"shape": ShapeKind.BLOCKS, "period": (30, 6)}), FURTHER],
    ),
    "turns of two in short runs": (
        {"noise": 0.3}, [{"backward": lambda rank, step: 10.5 * (rank == (1 if step % 2 else 2))}] * 2,
        [(ROTATING, (1, 2), {}), FURTHER],
    ),
    "an incident of one run that costs much": ({}, [{"data": once(2, 20, 2000)}, {}, {}], [
        (TRANSIENT, (2,), {"run_steps": ((20,), (), ()), "in_runs": 1, "of_runs": 3, "arrival_skew": (2000, 1)}),
    ]),
    "an incident of one run that does not": ({}, [{"data": once(2, 20, 50)}, {}, {}], [(NONE, (), {}), FURTHER]),
    "another in each run": ({}, [{"data": on(rank, ms=6)} for rank in (1, 2, 3)], [
        (PERSISTENT, (rank,), {"in_runs": 1, "costs": (2, 0.1)}) for rank in (1, 2, 3)
    ]),
    "beside a stall of all others": ({}, [{"data": stalled}, {"data": on(1, ms=8)}],
                                     [(PERSISTENT, (1,), {"by": "data"}), FURTHER]),
    "and an event of another": ({}, [{"data": on(1, ms=8), "backward": once(3, 20, 3000)}, {"data": on(1, ms=8)}],
                                [(PERSISTENT, (1,), {}), (TRANSIENT, (3,), {})]),
    # The event has one step, which is not averaged with the others.
    "and an event of its own": ({}, [{"data": on(1, ms=8), "backward": once(1, 20, 3000)}, {"data": on(1, ms=8)}], [
        (PERSISTENT, (1,), {"arrival_skew": (8, 0.2), "costs": (8 * 79 / 80, 0.2), "compute": (0, 0.1)}),
        (TRANSIENT, (1,), {"run_steps": ((20,), ()), "arrival_skew": (3008, 2), "compute": (3000, 2)}),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "delays", "expected"), CASES.values(), ids=[*CASES])
def test_who_is_named_by_several_runs(fields: dict[str, Any], delays: list[Delays], expected: list[Expected]) -> None:
    verdicts = stragglers(breakdowns(*delays, **fields))
    if expected[-1] == FURTHER:
        expected, verdicts = expected[:-1], verdicts[: len(expected) - 1]
    assert len(verdicts) == len(expected)
    if fields == {}:  # what costs as much may come in any order
        verdicts = sorted(verdicts, key=lambda each: (str(each.kind), each.ranks if len(delays) > 2 else ()))
    for its, (kind, ranks, figures) in zip(verdicts, expected, strict=True):
        assert (its.kind, its.ranks) == (kind or its.kind, its.ranks if ranks is None else ranks)
        of = {
            "by": max(its.cause, key=its.cause.__getitem__), "all by": "", "period": its.shape and its.shape.period,
            "shape": its.shape and its.shape.kind, "costs a late step": its.costs / its.share, **its.cause,
        } if its.ranks else {}  # fmt: skip
        for name, value in figures.items():
            if name == "all by":
                assert its.cause[value] == pytest.approx(its.arrival_skew, rel=0.2)
                continue
            figure = of.get(name, getattr(its, name, None))
            is_near = isinstance(value, tuple) and name not in ("run_steps", "steps")
            assert figure == (pytest.approx(value[0], abs=value[1]) if is_near else value), name


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


def test_where_a_rank_costs_as_much_as_the_limit_there_is_no_assurance():
    def late(rank: int, step: int) -> float:
        return 30.0 * ((rank == 1 and step in {20, 33}) or (rank == 2 and step in {15, 40, 66, 79, 80, 81}))

    first, *further = stragglers(breakdowns({"backward": late}, {}, measured_steps=120))
    assert not first.ranks or first.ranks == (2,)
    assert further == []
    if first.limit is not None and not first.ranks:
        assert first.doubt is not None
        assert first.doubt.rank == 2


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
