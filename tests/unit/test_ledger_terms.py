"""parse.ledger.breakdown: five terms that add up, merged where a border is missing, and what cannot be is said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, BATCH_READY, END, FORWARD_END, GRADS_READY, REDUCED
from hpc.model.trace import Trace, TraceError
from parse import stats
from parse.attempt import measure
from parse.ledger.breakdown import BORDERS, merge, names, step_breakdown, step_terms
from parse.ledger.types import TERMS
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.simulated import ENTRY_SKEW_NS, SYNCHRONISATION_NS

ALL = frozenset(BORDERS)
EXACT_MS = 0.02
"""The clocks' bounds are 10 µs each."""


def mean_ms(trace: Trace) -> dict[str, float]:
    one = step_breakdown(trace)
    return dict(zip(names(one.borders), (merge(one.mean_ns, one.borders) / 1e6).tolist(), strict=True))


def without(trace: Trace, *stamps: int, ranks: slice = slice(None), steps: slice = slice(None)) -> Trace:
    taken = trace.stamps.copy()
    for stamp in stamps:
        taken[ranks, steps, stamp] = ABSENT
    return dataclasses.replace(trace, stamps=taken)


def test_the_terms_of_equal_ranks() -> None:
    found = mean_ms(trace_of(run_of()))
    assert found == pytest.approx(
        {"data": 1.0, "compute": 9.0, "wait": 0.0, "transfer": 2.0, "update": 1.0}, abs=EXACT_MS
    )


def test_late_input_is_data_on_its_rank_and_wait_on_the_others() -> None:
    """20 ms on one of four ranks: as means data +5, wait +15."""
    one = step_breakdown(trace_of(run_of(), data=on(3, ms=20.0)))
    by_rank = one.rank_ns / 1e6
    assert by_rank[3] == pytest.approx([21.0, 9.0, 0.0, 2.0, 1.0], abs=2 * EXACT_MS)
    for rank in range(3):
        assert by_rank[rank] == pytest.approx([1.0, 9.0, 20.0, 2.0, 1.0], abs=2 * EXACT_MS)
    assert one.mean_ns / 1e6 == pytest.approx([6.0, 9.0, 15.0, 2.0, 1.0], abs=2 * EXACT_MS)


def test_terms_add_up_to_the_step_to_the_nanosecond() -> None:
    trace = trace_of(run_of(block_steps=10), noise=0.3, data=on(1, ms=4.0))
    stamps = trace.global_stamps(5, 20)
    terms = step_terms(stamps, ALL)
    assert (terms.sum(axis=2) == stamps[:, 1:, END] - stamps[:, :-1, END]).all()
    one = step_breakdown(trace)
    assert one.rank_ns.sum(axis=1).mean() == one.step_ns
    assert one.piece_ns.shape[0] >= 10


def test_the_throughput_s_step_differs_by_the_skew_and_nothing_else() -> None:
    for blocks in (0, 10):
        trace = trace_of(run_of(block_steps=blocks), noise=0.5, update=on(2, ms=7.0, every=3))
        block_ns = sum(stats.block_durations_ns(trace.to_global(END).max(axis=0), trace.blocks))
        one = step_breakdown(trace)
        assert block_ns / trace.run.measured_steps - one.step_ns == pytest.approx(one.skew_ns, abs=0.01)
        assert one.skew_ns != 0


def test_pauses_between_blocks_are_listed_and_stand_in_no_term() -> None:
    trace = trace_of(run_of(block_steps=10))
    one = step_breakdown(trace)
    entry_ms = 5 * 13.0
    assert len(one.pauses_ns) == 3
    for pause_ns, pause_s in zip(one.pauses_ns, measure(trace).pauses_s, strict=True):
        assert pause_ns / 1e9 == pytest.approx(pause_s)
        assert pause_ns / 1e6 == pytest.approx(entry_ms + SYNCHRONISATION_NS / 1e6, abs=2 * ENTRY_SKEW_NS / 1e6 + 0.1)
    assert one.step_ns / 1e6 == pytest.approx(13.0, abs=EXACT_MS)


@pytest.mark.parametrize(
    ("borders", "expected"),
    [
        (ALL, TERMS),
        ({"batch_ready", "reduced"}, ("data", "compute+communication", "update")),
        ({"batch_ready"}, ("data", "compute+communication+update")),
        ({"batch_ready", "grads_ready", "reduced"}, ("data", "compute", "communication", "update")),
        ({"batch_ready", "grads_ready", "last_grads_ready"}, ("data", "compute", "wait", "transfer+update")),
        ({"grads_ready", "last_grads_ready", "reduced"}, ("data+compute", "wait", "transfer", "update")),
        (set(), ("data+compute+communication+update",)),
    ],
)
def test_terms_without_a_border_between_them_are_one(borders: set[str], expected: tuple[str, ...]) -> None:
    assert names(frozenset(borders)) == expected
    five = np.arange(1.0, 6.0)
    assert merge(five, frozenset(borders)).sum() == five.sum()


def test_timing_of_steps_makes_one_term_and_names_the_reason() -> None:
    trace = trace_of(run_of(timing="step"))
    assert mean_ms(trace) == pytest.approx({"data": 1.0, "compute+communication+update": 12.0}, abs=EXACT_MS)
    one = step_breakdown(trace)
    assert "grads_ready was not recorded in any step" in one.merged
    assert one.arrivals is None


def test_a_stamp_missing_in_a_single_step_of_a_single_rank_is_missed() -> None:
    trace = without(trace_of(run_of()), GRADS_READY, ranks=slice(2, 3), steps=slice(20, 21))
    one = step_breakdown(trace)
    assert names(one.borders) == ("data", "compute+communication", "update")
    assert one.merged == "grads_ready was not recorded in 1 of 160 (ranks × steps)"
    assert mean_ms(trace)["compute+communication"] == pytest.approx(11.0, abs=EXACT_MS)


def test_where_a_rank_leaves_the_reduction_must_be_known_before_the_window_too() -> None:
    trace = without(trace_of(run_of()), REDUCED, ranks=slice(0, 1), steps=slice(5, 6))
    assert "reduced" not in step_breakdown(trace).borders


def test_forward_end_is_nobody_s_border() -> None:
    assert step_breakdown(without(trace_of(run_of()), FORWARD_END)).borders == ALL


def test_ranks_that_meet_early_have_no_wait_of_their_own() -> None:
    trace = trace_of(run_of(), backend={"meets_before_gradients": ["DDP broadcasts buffers before each forward"]})
    one = step_breakdown(trace)
    assert names(one.borders) == ("data", "compute+communication", "update")
    assert "DDP broadcasts buffers before each forward" in one.merged
    assert one.arrivals is None


def test_ranks_that_do_not_reduce_wait_for_nobody() -> None:
    trace = trace_of(run_of(reduction="off"))
    assert names(step_breakdown(trace).borders) == ("data", "compute", "communication", "update")


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
    found = step_breakdown(dataclasses.replace(trace, stamps=stamps)).problems
    assert any("in 1 of 160" in line and "before the last rank has its own" in line for line in found)
    assert any("lie before one that must come before them" in line for line in found)
    assert not step_breakdown(trace).problems


def test_within_the_clocks_bounds_a_negative_transfer_is_no_error() -> None:
    trace = trace_of(run_of(), transfer=0.0, bound_ns=200_000)
    one = step_breakdown(trace)
    assert step_terms(trace.global_stamps(5, 46), ALL)[:, :, TERMS.index("transfer")].min() < 0
    assert not one.problems


def test_steps_that_do_not_tile_are_told() -> None:
    trace = trace_of(run_of())
    stamps = trace.stamps.copy()
    stamps[0, 15, 0] += 1
    assert step_breakdown(dataclasses.replace(trace, stamps=stamps)).problems == (
        "1 steps of 160 (ranks × steps) do not begin where the one before them ended",
    )


def test_a_step_that_never_ended_makes_no_ledger() -> None:
    with pytest.raises(TraceError, match="lack the end of a step"):
        step_breakdown(without(trace_of(run_of()), END, steps=slice(30, 31)))


def test_a_trace_without_a_block_makes_no_ledger() -> None:
    with pytest.raises(TraceError, match="no measured block"):
        step_breakdown(dataclasses.replace(trace_of(run_of()), blocks=np.empty((0, 2), np.int64)))


def test_how_much_is_reduced_is_known_only_where_ranks_agree() -> None:
    assert step_breakdown(trace_of(run_of(), backend={"gradient_bytes": 4096})).gradient_bytes == 4096
    trace = trace_of(run_of(), backend={"gradient_bytes": 4096})
    odd = [{**facts, "backend": {"gradient_bytes": 8192}} if at == 1 else facts for at, facts in enumerate(trace.ranks)]
    assert step_breakdown(dataclasses.replace(trace, ranks=odd)).gradient_bytes is None
    assert step_breakdown(trace_of(run_of())).gradient_bytes is None


def test_without_the_batch_s_stamp_input_is_part_of_compute() -> None:
    trace = without(trace_of(run_of()), BATCH_READY)
    assert mean_ms(trace)["data+compute"] == pytest.approx(10.0, abs=EXACT_MS)


def test_a_missing_stamp_is_counted_once() -> None:
    trace = without(trace_of(run_of()), REDUCED, ranks=slice(0, 1), steps=slice(9, 10))
    assert step_breakdown(trace).merged == "reduced was not recorded in 1 of 160 (ranks × steps)"
