"""Fetches behind the first forward of a step are data, in the terms and in what makes a rank late."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hpc.model.options import LOADER_FIGURES
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT, END, GRADS_READY
from hpc.model.trace import Trace
from parse.ledger.breakdown import names, step_breakdown
from parse.ledger.graph_what_if import ReplayCase
from parse.ledger.point import ledgers
from parse.ledger.types import Change, NoLoss
from parse.ledger.verdicts import verdict
from parse.ledger.what_if import replayed_speeds
from parse.runs.load import load
from parse.runs.result import results
from parse.say.paragraph import sentence
from parse.summarize import main
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.simulated import MS
from tests.unit.test_ledger_meetings import PLANS, run_with
from tests.unit.traces import put

LATE = 1
MEDIAN = "than the median rank in every step."


def with_later_fetches(trace: Trace, ms: float) -> Trace:
    """As a script's, whose loader took so long behind the first forward on one rank; before it 1 ms on all."""
    run = dataclasses.replace(trace.run, backend=SCRIPT, workload="train.py", precision="unknown")
    figures = np.zeros((*trace.stamps.shape[:2], len(LOADER_FIGURES)), np.int64)
    figures[..., 0] = MS
    figures[LATE, :, 1] = round(ms * MS)
    return dataclasses.replace(trace, run=run, run_id="", point_id="", input=figures, input_names=LOADER_FIGURES)


def late_in_two_fetches() -> Trace:
    return trace_of(run_of(), noise=0.05, data=on(LATE, ms=20), forward=on(LATE, ms=20))


def test_a_rank_late_in_each_of_two_fetches_waits_for_its_data() -> None:
    without = step_breakdown(late_in_two_fetches())
    trace = with_later_fetches(late_in_two_fetches(), 20)
    breakdown = step_breakdown(trace)
    data, compute, *others = (breakdown.rank_ns / MS).T
    assert data[LATE] - data[0] == pytest.approx(40, abs=0.2)
    assert compute[LATE] - compute[0] == pytest.approx(0, abs=0.2)
    assert breakdown.rank_ns.sum(axis=1).tolist() == without.rank_ns.sum(axis=1).tolist()
    assert np.array(others).tolist() == (without.rank_ns / MS).T[2:].tolist()
    its = verdict(breakdown)
    assert its.ranks == (LATE,)
    assert its.cause["data"] == pytest.approx(40, abs=0.5)
    assert sum(its.cause.values()) == pytest.approx(its.arrival_skew)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_so_it_does_where_ranks_meet_several_times(plan: list) -> None:
    trace = run_with(plan, ("data", LATE, 20), ("forward", LATE, 20)).trace
    its = verdict(step_breakdown(with_later_fetches(trace, 20)))
    assert its.ranks == (LATE,)
    assert its.cause["data"] == pytest.approx(40, abs=1)
    assert its.cause.get("compute", 0.0) == pytest.approx(0, abs=1)
    assert sum(its.cause.values()) == pytest.approx(its.arrival_skew)


def test_where_the_gradients_are_not_seen_the_fetches_leave_the_term_that_has_them() -> None:
    trace = late_in_two_fetches()
    trace.stamps[:, :, GRADS_READY] = ABSENT
    breakdown = step_breakdown(with_later_fetches(trace, 20))
    assert names(breakdown.borders)[0] == "data"
    data = breakdown.rank_ns[:, 0] / MS
    assert data[LATE] - data[0] == pytest.approx(40, abs=0.2)
    steps = np.diff(trace.stamps[:, trace.run.warmup_steps - 1 :, END], axis=1)
    assert breakdown.rank_ns.sum(axis=1) == pytest.approx(steps.mean(axis=1), rel=1e-5)  # its own clock drifts


@pytest.mark.parametrize(
    ("loader_ms", "phrase"),
    [
        (
            0.3,
            f"takes 20.0 ms longer between update and next forward {MEDIAN} 0.3 ms of that are in its loader. "
            "This costs",
        ),
        (
            0.0,
            f"takes 20.0 ms longer between update and next forward {MEDIAN} None of that is in its loader. This costs",
        ),
        (20.0, f"waits 20.0 ms longer for its data {MEDIAN} This costs"),
        (None, f"takes 20.0 ms longer between update and next forward {MEDIAN} This costs"),
    ],
)
def test_what_its_loader_takes_and_the_script_s_own_code_before_the_forward_are_apart(
    loader_ms: float | None, phrase: str, tmp_path: Path
) -> None:
    trace = with_later_fetches(trace_of(run_of(), noise=0.05, data=on(LATE, ms=20)), 0)
    assert trace.input is not None
    trace.input[LATE, :, 0] = ABSENT if loader_ms is None else MS + round(loader_ms * MS)
    put(tmp_path, trace)
    (ledger,) = ledgers(results(load([tmp_path])))
    assert ledger.verdict.loader == (None if loader_ms is None else pytest.approx(loader_ms, abs=1e-6))
    assert f"Rank 1 (n0) {phrase} 19.9 ms" in sentence(ledger, "2n2g")


@pytest.mark.parametrize(
    ("after_ms", "phrase"),
    [
        (0.1, f"takes 20.0 ms longer for its previous optimizer step {MEDIAN} This costs"),
        (19.9, f"takes 20.0 ms longer after the update (EMA, logging, …) {MEDIAN} This costs"),
        (8.0, f"takes 20.0 ms longer after the reduction {MEDIAN} 12.0 ms of that are in its optimizer. This costs"),
        (None, f"takes 20.0 ms longer after the reduction {MEDIAN} This costs"),
    ],
)
def test_what_its_optimizer_takes_and_the_script_s_own_code_after_it_are_apart(
    after_ms: float | None, phrase: str, tmp_path: Path
) -> None:
    trace = with_later_fetches(trace_of(run_of(), noise=0.05, optimizer=on(LATE, ms=20)), 0)
    assert trace.input is not None
    trace.input[LATE, :, 2] = ABSENT if after_ms is None else round(after_ms * MS)
    put(tmp_path, trace)
    (ledger,) = ledgers(results(load([tmp_path])))
    assert ledger.verdict.after_update == (None if after_ms is None else pytest.approx(after_ms, abs=1e-6))
    assert f"Rank 1 (n0) {phrase} 19.9 ms" in sentence(ledger, "2n2g")


def test_of_two_ranks_none_is_the_median(tmp_path: Path) -> None:
    put(tmp_path, trace_of(run_of(nodes=1), noise=0.05, forward=on(LATE, ms=20)))
    (ledger,) = ledgers(results(load([tmp_path])))
    assert len(ledger.ranks) == 2
    assert "ank 1 (n0) computes 20.0 ms longer than the other rank in" in sentence(ledger, "1n2g")


def test_of_a_straggler_in_some_steps_the_loader_s_part_is_that_in_those(tmp_path: Path) -> None:
    trace = with_later_fetches(trace_of(run_of(), noise=0.05, data=on(LATE, ms=20, every=5)), 0)
    assert trace.input is not None
    trace.input[LATE, ::5, 0] += 6 * MS
    put(tmp_path, trace)
    (ledger,) = ledgers(results(load([tmp_path])))
    assert ledger.verdict.run_steps
    assert ledger.verdict.loader == pytest.approx(6)


def test_without_waiting_for_input_they_are_gone() -> None:
    trace = with_later_fetches(late_in_two_fetches(), 20)
    terms = frozenset({"data", "compute", "wait", "communication", "optimizer"})
    recorded, ready = (replayed_speeds(trace, terms, [case])[0] for case in (None, ReplayCase(change=Change.INPUT)))
    assert 1 / recorded - 1 / ready == pytest.approx(21 / 53 / recorded, rel=0.02)  # 20 + 1 of 13 + 40 ms


def test_a_trace_of_an_earlier_version_is_read_as_before() -> None:
    trace = with_later_fetches(late_in_two_fetches(), 20)
    assert trace.input is not None
    earlier = dataclasses.replace(trace, input=trace.input[..., :1].copy(), input_names=LOADER_FIGURES[:1])
    assert step_breakdown(earlier).rank_ns.tolist() == step_breakdown(late_in_two_fetches()).rank_ns.tolist()


def test_a_run_without_samples_has_a_ledger_and_no_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for nodes in (1, 2):
        run = run_of(nodes=nodes, backend=SCRIPT, workload="train.py", precision="unknown", batch_size=0)
        trace = trace_of(run, noise=0.05, data=on(LATE, ms=20))
        put(tmp_path, dataclasses.replace(trace, samples=np.zeros_like(trace.samples)))
    assert main([str(tmp_path), "--ledger", "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--batch-size N states how many a rank's step takes" in out
    assert "Rank 1 (n0) takes 20" in out and "instead of" not in out
    of_point, _ = results(load([tmp_path]))
    assert of_point.median_speed is None and not of_point.ok
    of_all = ledgers(results(load([tmp_path])))
    assert [ledger.verdict.ranks for ledger in of_all] == [(LATE,), (LATE,)]
    assert [ledger.loss for ledger in of_all] == [None, None]
    assert [ledger.no_loss for ledger in of_all] == [NoLoss.IS_BASE, NoLoss.NO_SAMPLES]
