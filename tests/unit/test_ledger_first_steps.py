"""parse.ledger.first_steps: who is late in the steps behind a script's pauses, which are in no block."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.spec import SCRIPT, UNKNOWN, script_blocks
from hpc.model.timestamps import BEGIN, END
from hpc.model.trace import Trace
from parse.ledger.breakdown import step_breakdown
from parse.ledger.finding import FirstSteps
from parse.ledger.first_steps import first_steps_of_point, left_out_of_point
from parse.ledger.point import ledgers
from parse.runs.load import load
from parse.runs.result import results
from parse.say.notes import notes
from tests.unit.ledger_traces import Change, run_of, trace_of
from tests.unit.ledgers import whole_text
from tests.unit.traces import put

WARMUP, STEPS = 6, 254
PAUSED = tuple(range(31, 260, 24))
"""Ten pauses, of which the last is followed by a block."""
PAUSE_MS = 20.0


def behind(*ranks: int, ms: float, at: int = 0, pauses: tuple[int, ...] = PAUSED) -> Change:
    """So much more on these ranks in the steps that are so many behind a pause."""
    return lambda rank, step: ms if rank in ranks and step - at in pauses else 0.0


def script(
    paused: tuple[int, ...] = PAUSED, only: int | None = None, seed: int = 1, noise: float = 0.5, repeat: int = 1,
    **longer: Any,
) -> Trace:  # fmt: skip
    """A script whose ranks all pause before the `paused` steps, or `only` one of them."""
    run = run_of(measured_steps=STEPS)
    pausing = [rank for rank in range(run.ranks) if only in (None, rank)]
    more = longer.get("data", lambda rank, step: 0.0)

    def data(rank: int, step: int) -> float:
        return more(rank, step) + (PAUSE_MS if rank in pausing and step in paused else 0.0)

    trace = trace_of(run, noise=noise, seed=seed, **{**longer, "data": data})
    stamps = trace.stamps.copy()
    for rank in pausing:
        stamps[rank, list(paused), BEGIN] = stamps[rank, np.array(paused, int) - 1, END] + int(PAUSE_MS * 1e6)
    facts = [{"step": step, "kind": "evaluation", "seconds": PAUSE_MS / 1e3} for step in paused]
    return dataclasses.replace(
        trace, stamps=stamps, run_id="", point_id="",
        run=dataclasses.replace(
            run, backend=SCRIPT, workload="/here/train.py", batch_size=0, precision=UNKNOWN, repeat=repeat
        ),
        blocks=np.array(script_blocks(run.warmup_steps, run.steps, paused), np.int64),
        ranks=[{**its, "script": {"pauses": facts if rank in pausing else []}} for rank, its in enumerate(trace.ranks)],
    )  # fmt: skip


def findings(*traces: Trace) -> tuple[FirstSteps, ...]:
    return first_steps_of_point([step_breakdown(trace) for trace in traces])


def test_a_rank_that_computes_longer_in_the_first_step_behind_each_pause_is_named_with_what_it_costs() -> None:
    (its,) = findings(script(backward=behind(1, ms=40)))
    assert (its.ranks, its.steps, its.times) == ((1,), 1, 10)
    assert its.length == pytest.approx(40, abs=0.5)
    assert its.costs == pytest.approx(40 * 10 / STEPS, rel=0.03)
    assert max(its.cause, key=lambda name: its.cause[name]) == "compute"


def test_several_steps_behind_a_pause_are_one_finding() -> None:
    def longer(rank: int, step: int) -> float:
        return behind(1, ms=40)(rank, step) + behind(1, ms=20, at=1)(rank, step)

    (its,) = findings(script(forward=longer))
    assert (its.ranks, its.steps, its.times) == ((1,), 2, 10)
    assert its.costs == pytest.approx(60 * 10 / STEPS, rel=0.03)


def test_two_runs_show_what_one_is_too_short_for() -> None:
    few = PAUSED[:4]
    runs = [script(few, seed=seed, data=behind(2, 3, ms=15, pauses=few)) for seed in (1, 2)]
    (its,) = findings(*runs)
    assert (its.ranks, its.times) == ((2, 3), 4)
    assert its.costs == pytest.approx(15 * 4 / STEPS, rel=0.1)


def test_what_all_take_longer_there_is_no_rank_s() -> None:
    (its,) = findings(script(data=behind(0, 1, 2, 3, ms=30)))
    assert (its.ranks, its.steps, its.times) == ((), 1, 10)
    assert its.costs == pytest.approx(30 * 10 / STEPS, rel=0.05)
    assert its.cause["data"] == pytest.approx(its.length, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_equal_ranks_show_nothing(seed: int) -> None:
    assert findings(script(seed=seed, noise=1.0)) == ()


def test_whoever_is_late_in_all_steps_is_not_late_behind_pauses() -> None:
    assert findings(script(backward=lambda rank, _: 20.0 if rank == 1 else 0.0)) == ()


def test_what_others_wait_for_longer_costs_nothing() -> None:
    """Rank 3 is 30 ms late in every step, so that 20 ms of rank 1 are waited for by nobody."""
    backward = behind(1, ms=20)
    assert findings(script(backward=lambda rank, step: 30.0 if rank == 3 else backward(rank, step))) == ()


def test_a_rank_without_a_pause_is_late_in_that_of_the_others_and_not_once_more() -> None:
    assert findings(script(only=0, backward=behind(1, ms=15))) == ()
    (its,) = findings(script(only=0, noise=0.1, backward=behind(0, ms=15)))
    assert its.ranks == (0,)
    assert its.costs == pytest.approx(15 * 10 / STEPS, rel=0.05)


def test_the_sentences_have_who_is_late_there_and_once_how_many_steps_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, script(backward=behind(1, ms=40), noise=0.1))
    (ledger,) = ledgers(results(load([tmp_path])))
    text = " ".join([whole_text(ledger), *notes(ledger)])
    assert "Rank 1 (n0) computes 40." in text
    assert " ms longer in the first step behind each of 10 pauses. This costs 1.5" in text
    assert text.count("50 of 254 steps, the first behind each of 10 pauses, are left out of all other figures") == 1
    assert "Between pauses no straggler" in text


def test_without_pauses_no_step_is_left_out() -> None:
    assert left_out_of_point([step_breakdown(script(()))]) is None
