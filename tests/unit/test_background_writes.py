"""Checkpoints that are written while a script trains on: the steps in which they are, and what these take longer."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from hpc.model.trace import Trace
from hpc.observe.events import WRITTEN, HookEvent
from hpc.observe.stamps import ObservedSteps
from hpc.run.script_facts import unseen_facts
from hpc.run.script_steps import RankSteps
from parse.ledger.background_writes import writes_of
from parse.ledger.finding import BackgroundWrites
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger
from parse.report.export import as_json
from parse.report.summary import Summary
from parse.runs.load import load
from parse.runs.result import results
from parse.say.numbers import ms
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.ledgers import whole_text
from tests.unit.test_script_facts import MS, step
from tests.unit.test_summary_schema import hold
from tests.unit.traces import put

EVERY, LONG = 25, 10
"""A checkpoint every so many steps, which is written for so many."""


def test_the_steps_within_a_write_are_facts_of_the_rank() -> None:
    steps = tuple(step(number) for number in range(8))  # each from (1 + number) × 10 ms on, 10 ms long
    events = [HookEvent(45 * MS, WRITTEN, 0, 26_000), HookEvent(68 * MS, WRITTEN, 0, 3_000)]  # µs, until then
    recorded = RankSteps(observed=ObservedSteps(steps=steps, remarks=()), apart={WRITTEN: events})
    assert unseen_facts(recorded, {}, [(0, 8)], [])["writes"] == [[1, 2]]
    assert unseen_facts(recorded, {}, [(2, 8)], [])["writes"] == [[2, 2]]
    assert "writes" not in unseen_facts(recorded, {}, [(3, 8)], [])


def is_written(at: int) -> bool:
    return at % EVERY >= EVERY - LONG


def with_writes(trace: Trace, stated: Any) -> Trace:
    return dataclasses.replace(trace, ranks=[{**its, "script": {"writes": stated}} for its in trace.ranks])


def ledger_of(folder: Path, longer_ms: float, seed: int, noise: float = 0.5) -> Ledger:
    def longer(_: int, at: int) -> float:
        return longer_ms if is_written(at) else 0.0

    trace = trace_of(run_of(measured_steps=200), noise=noise, seed=seed, backward=longer)
    stop = int(trace.blocks[-1, 1])
    stated = [[at, at + LONG - 1] for at in range(stop) if is_written(at) and (not at or not is_written(at - 1))]
    folder.mkdir()
    put(folder, with_writes(trace, stated))
    (ledger,) = ledgers(results(load([folder])))
    hold(as_json(Summary(results=(ledger.result,), ledgers=(ledger,))))
    return ledger


@pytest.mark.parametrize("longer_ms", [2.0, 10.0])
def test_what_a_write_takes_from_the_steps_is_a_finding(tmp_path: Path, longer_ms: float) -> None:
    ledger = ledger_of(tmp_path / "late", longer_ms, seed=1)
    ((finding, its),) = ledger.findings_of(BackgroundWrites)
    share = LONG / EVERY
    assert its.longer.value == pytest.approx(longer_ms, abs=0.3)
    assert its.longer.low is not None and its.longer.high is not None
    assert its.longer.low < longer_ms < its.longer.high
    assert finding.costs == pytest.approx(longer_ms * share, rel=0.2)
    steps_take = f"While {its.times:.0f} checkpoints are written, {its.steps:.0f} of {its.of_steps:.0f} steps take "
    text = whole_text(ledger)
    assert f"{steps_take}{ms(its.longer.value)} longer than those before them (" in text
    assert f"). This costs {ms(finding.costs)} a step. To do: write them by a process" in text


def test_equal_steps_have_none(tmp_path: Path) -> None:
    of_seeds = [ledger_of(tmp_path / str(seed), 0.0, seed).findings_of(BackgroundWrites) for seed in range(20)]
    assert of_seeds == [[]] * 20


@pytest.mark.parametrize("stated", [None, 3, [[1]], [["a", 2]], [[5, 2]], [[-4, 3]], [[0, math.inf]], [[0, math.nan]]])
def test_what_is_no_statement_of_writes_is_none(stated: Any) -> None:
    assert writes_of(with_writes(trace_of(run_of()), stated)) is None
