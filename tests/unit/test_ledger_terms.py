"""parse.ledger.breakdown: five terms that add up, merged where a border is missing, and stamps that cannot be right."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, BATCH_READY, END, FORWARD_END, GRADS_READY, REDUCED, STAMPS
from hpc.model.trace import Trace, TraceError
from parse.ledger.breakdown import merge, names, step_breakdown, step_terms
from parse.ledger.graph_what_if import ReplayCase
from parse.ledger.terms import point_terms
from parse.ledger.types import Change, StampErrors
from parse.ledger.verdict import PERSISTENT, Merged
from parse.ledger.verdicts import verdict
from parse.ledger.what_if import replayed_speeds
from parse.runs.attempt import measure
from parse.say.numbers import ms
from parse.say.reasons import merged_text
from parse.term_kinds import BORDERS, TERMS
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.simulated import ENTRY_SKEW_NS, SYNCHRONISATION_NS

ALL = frozenset(BORDERS)
EXACT_MS = 0.02
"""The clocks' bounds are 10 µs each."""
BUFFERS = "DDP broadcasts buffers before each forward"


def mean_ms(trace: Trace) -> dict[str, float]:
    breakdown = step_breakdown(trace)
    ms = merge(breakdown.mean_ns, breakdown.borders) / 1e6
    return dict(zip(names(breakdown.borders), ms.tolist(), strict=True))


def without(trace: Trace, *stamps: int, ranks: slice = slice(None), steps: slice = slice(None)) -> Trace:
    remaining = trace.stamps.copy()
    for stamp in stamps:
        remaining[ranks, steps, stamp] = ABSENT
    return dataclasses.replace(trace, stamps=remaining)


def test_late_input_is_data_on_its_rank_and_wait_on_the_others() -> None:
    """20 ms on one of four ranks: as means data +5, wait +15."""
    breakdown = step_breakdown(trace_of(run_of(), data=on(3, ms=20.0)))
    by_rank = breakdown.rank_ns / 1e6
    assert by_rank[3] == pytest.approx([21.0, 9.0, 0.0, 2.0, 1.0], abs=2 * EXACT_MS)
    for rank in range(3):
        assert by_rank[rank] == pytest.approx([1.0, 9.0, 20.0, 2.0, 1.0], abs=2 * EXACT_MS)
    assert breakdown.mean_ns / 1e6 == pytest.approx([6.0, 9.0, 15.0, 2.0, 1.0], abs=2 * EXACT_MS)


def test_a_window_has_at_least_ten_pieces() -> None:
    assert step_breakdown(trace_of(run_of(block_steps=10))).piece_ns.shape[0] >= 10


def test_pauses_between_blocks_are_listed_and_stand_in_no_term() -> None:
    trace = trace_of(run_of(block_steps=10))
    breakdown = step_breakdown(trace)
    entry_ms = 5 * 13.0
    assert len(breakdown.pauses_ns) == 3
    for pause_ns, pause_s in zip(breakdown.pauses_ns, measure(trace).pauses_s, strict=True):
        assert pause_ns / 1e9 == pytest.approx(pause_s)
        assert pause_ns / 1e6 == pytest.approx(entry_ms + SYNCHRONISATION_NS / 1e6, abs=2 * ENTRY_SKEW_NS / 1e6 + 0.1)
    assert breakdown.step_ns / 1e6 == pytest.approx(13.0, abs=EXACT_MS)


@pytest.mark.parametrize(
    ("borders", "expected"),
    [
        (ALL, TERMS),
        ({"batch_ready", "reduced"}, ("data", "compute+wait+communication", "optimizer")),
        ({"batch_ready"}, ("data", "compute+wait+communication+optimizer")),
        ({"batch_ready", "grads_ready", "reduced"}, ("data", "compute", "wait+communication", "optimizer")),
        ({"batch_ready", "grads_ready", "last_grads_ready"}, ("data", "compute", "wait", "communication+optimizer")),
        ({"grads_ready", "last_grads_ready", "reduced"}, ("data+compute", "wait", "communication", "optimizer")),
        (set(), ("data+compute+wait+communication+optimizer",)),
    ],
)
def test_terms_without_a_border_between_them_are_one(borders: set[str], expected: tuple[str, ...]) -> None:
    assert names(frozenset(borders)) == expected
    five = np.arange(1.0, 6.0)
    assert merge(five, frozenset(borders)).sum() == five.sum()


@pytest.mark.parametrize(
    ("run", "lost", "backend", "terms", "merged"),
    [
        ({}, (), {}, {"data": 1, "compute": 9, "wait": 0, "communication": 2, "optimizer": 1}, None),
        (
            {"timing": "step"}, (), {}, {"data": 1, "compute+wait+communication+optimizer": 12},
            Merged(missing=(("grads_ready", 160, 160), ("reduced", 160, 160))),
        ),
        (
            {}, (GRADS_READY, slice(2, 3), slice(10, 40)), {},
            {"data": 1, "compute+wait+communication": 11, "optimizer": 1}, Merged(missing=(("grads_ready", 30, 160),)),
        ),
        (
            {}, (), {"meets_before_gradients": [BUFFERS]},
            {"data": 1, "compute+wait+communication": 11, "optimizer": 1}, Merged(early_collectives=(BUFFERS,)),
        ),
        (
            {"reduction": "off"}, (), {}, {"data": 1, "compute": 9, "wait+communication": 2, "optimizer": 1},
            Merged(not_reduced=True),
        ),
        (
            {}, (BATCH_READY, slice(None), slice(None)), {},
            {"data+compute": 10, "wait": 0, "communication": 2, "optimizer": 1},
            Merged(missing=(("batch_ready", 160, 160),)),
        ),
        (
            {}, (REDUCED, slice(0, 1), slice(5, 6)), {},  # of the step before the window
            {"data": 1, "compute": 9, "wait": 0, "communication": 2, "optimizer": 1}, None,
        ),
        (
            {}, (REDUCED, slice(0, 1), slice(9, 30)), {},
            {"data": 1, "compute": 9, "wait": 0, "communication+optimizer": 3}, Merged(missing=(("reduced", 21, 160),)),
        ),
        (
            {}, (FORWARD_END, slice(None), slice(None)), {},
            {"data": 1, "compute": 9, "wait": 0, "communication": 2, "optimizer": 1}, None,
        ),
    ],
)  # fmt: skip
def test_terms_and_the_reason_where_several_are_one(
    run: dict[str, Any], lost: tuple[Any, ...], backend: dict[str, Any], terms: dict[str, float], merged: Merged | None
) -> None:
    trace = trace_of(run_of(**run), backend=backend)
    if lost:
        trace = without(trace, lost[0], ranks=lost[1], steps=lost[2])
    breakdown = step_breakdown(trace)
    assert (names(breakdown.borders), breakdown.merged) == ((*terms,), merged)
    assert mean_ms(trace) == pytest.approx(terms, abs=2 * EXACT_MS)
    reduces = run.get("reduction") != "off"
    assert (breakdown.arrivals is None, breakdown.at_begin) == (not reduces, reduces and "wait" not in terms)


@pytest.mark.parametrize("stamp", [GRADS_READY, REDUCED, BATCH_READY])
@pytest.mark.parametrize("every", [40, 5, 3])
def test_steps_that_lack_a_stamp_are_in_no_term_and_cost_nothing_of_the_rest(stamp: int, every: int) -> None:
    """A rank is 8 ms late, in all steps; those without its stamp take 3 ms less."""
    trace = trace_of(run_of(), noise=0.05, data=on(2, ms=8.0), optimizer=on(0, 1, 2, 3, ms=-1.0, every=every))
    lacking = [step for step in range(6, 46) if step % every == 0]
    for step in lacking:
        trace.stamps[2, step, stamp] = ABSENT
    breakdown = step_breakdown(trace)
    assert names(breakdown.borders) == TERMS and not breakdown.problems
    terms_ms = mean_ms(trace)
    assert terms_ms == pytest.approx({"data": 3, "compute": 9, "wait": 6, "communication": 2, "optimizer": 1}, abs=0.1)
    assert sum(terms_ms.values()) == pytest.approx(breakdown.step_ns / 1e6, rel=1e-12)
    assert breakdown.merged is not None and breakdown.merged.unsplit is not None
    its = breakdown.merged.unsplit
    assert (its.borders, its.steps, its.of_steps) == ((STAMPS[stamp],), len(lacking), 40)
    assert (its.mean, its.others) == (pytest.approx(20.0, abs=0.1), pytest.approx(21.0, abs=0.1))
    whole_ms = trace.run.global_batch_size / measure(trace).throughput * 1e3
    assert breakdown.skew_ns / 1e6 == pytest.approx(whole_ms - breakdown.step_ns / 1e6, abs=1e-6)
    point = point_terms([breakdown, breakdown], [], 1.0)
    assert point.names == TERMS and [each.unsplit and each.unsplit.steps for each in point.merged] == [2 * its.steps]
    end = {GRADS_READY: "the backward", REDUCED: "the reduction", BATCH_READY: "data"}[stamp]
    few = f"{2 * its.steps} of 80 steps are in no term: they lack the end of {end}. They take {ms(its.mean)}, others"
    assert merged_text(point.merged).startswith(few)
    result = verdict(breakdown)
    assert (result.kind, result.ranks) == (PERSISTENT, (2,))
    assert result.costs == pytest.approx(8.0, abs=0.3)
    without_it = ReplayCase(change=Change.STRAGGLER)
    speeds = replayed_speeds(trace, {*TERMS}, [None, without_it], [[((2,), None)]])
    assert speeds[0] == pytest.approx(measure(trace).throughput, rel=1e-9)
    assert 1 - speeds[0] / speeds[1] == pytest.approx(8 / 21, abs=0.02)


def test_ranks_on_one_clock_need_no_points() -> None:
    trace = trace_of(run_of(nodes=1, ranks_per_node=4), data=on(3, ms=20.0))
    empty = np.empty((4, 0))
    trace = dataclasses.replace(
        trace, clock_local_ns=empty.astype(np.int64), clock_offset_ns=empty, clock_bound_ns=empty
    )
    assert mean_ms(trace)["wait"] == pytest.approx(15.0, abs=1e-6)


def test_gradients_reduced_before_the_last_rank_has_its_own_are_an_error_of_the_measurement() -> None:
    trace = trace_of(run_of())
    stamps = trace.stamps.copy()
    stamps[1, 20, REDUCED] = stamps[1, 20, GRADS_READY]  # 2 ms before the others can have reduced: fine
    stamps[1, 21, REDUCED] = stamps[1, 21, GRADS_READY] - 3_000_000
    errors = step_breakdown(dataclasses.replace(trace, stamps=stamps)).problems
    assert (errors.total, errors.disordered, errors.gaps, errors.early) == (160, 1, 0, 1)
    assert errors.early_ms == pytest.approx(3.0, abs=2 * EXACT_MS)
    assert not step_breakdown(trace).problems


def test_within_the_clocks_bounds_negative_communication_is_no_error() -> None:
    trace = trace_of(run_of(), communication=0.0, bound_ns=200_000)
    assert step_terms(trace.global_stamps(5, 46), ALL)[:, :, TERMS.index("communication")].min() < 0
    assert not step_breakdown(trace).problems


def test_steps_that_do_not_tile_are_counted() -> None:
    trace = trace_of(run_of())
    stamps = trace.stamps.copy()
    stamps[0, 15, 0] += 1
    assert step_breakdown(dataclasses.replace(trace, stamps=stamps)).problems == StampErrors(total=160, gaps=1)


def test_a_window_that_is_not_whole_makes_no_ledger() -> None:
    with pytest.raises(TraceError, match="lack the end of a step among"):
        step_breakdown(without(trace_of(run_of()), END, steps=slice(30, 31)))
    with pytest.raises(TraceError, match="no measured block"):
        step_breakdown(dataclasses.replace(trace_of(run_of()), blocks=np.empty((0, 2), np.int64)))


def test_how_much_is_reduced_is_known_only_where_ranks_agree() -> None:
    trace = trace_of(run_of(), backend={"gradient_bytes": 4096})
    assert step_breakdown(trace).gradient_bytes == 4096
    odd = [{**facts, "backend": {"gradient_bytes": 8192}} if at == 1 else facts for at, facts in enumerate(trace.ranks)]
    assert step_breakdown(dataclasses.replace(trace, ranks=odd)).gradient_bytes is None
    assert step_breakdown(trace_of(run_of())).gradient_bytes is None
