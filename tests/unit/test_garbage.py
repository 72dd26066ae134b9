"""Collections of Python's garbage: recorded by the hooks, as facts of a rank, as the cause that makes it late."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import pytest

from hpc.model.trace import Trace
from hpc.observe import recording
from hpc.observe.events import GARBAGE, HookEvent, read_events
from hpc.observe.stamps import ObservedSteps
from hpc.run.script_facts import unseen_facts
from hpc.run.script_steps import RankSteps
from hpc.run.train import garbage_collection_off
from parse.ledger.causes import Cause
from parse.ledger.point import ledgers
from parse.ledger.symptoms import garbage_remarks
from parse.ledger.types import Ledger
from parse.ledger.verdict import PERSISTENT, TRANSIENT
from parse.runs.load import load
from parse.runs.result import results
from parse.say.paragraph import sentence
from tests.unit.ledger_traces import Change, on, per_rank, run_of, trace_of, with_telemetry
from tests.unit.ledgers import symptoms_of
from tests.unit.test_script_facts import MS, step
from tests.unit.traces import put


def test_collections_of_a_millisecond_or_more_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "callbacks", [])  # those of this process' own collections
    o = recording.ProcessRecording(str(tmp_path))
    assert gc.callbacks == [recording._collects]
    monkeypatch.setattr(recording, "current", o)
    with garbage_collection_off():  # the process may have hooks of an earlier test, which would take the times
        for generation, took_ns in ((0, MS - 1), (2, 5 * MS), (1, MS)):
            times = iter([7, 7 + took_ns, 8 + took_ns])
            monkeypatch.setattr(recording, "perf_counter_ns", times.__next__)
            for phase in ("start", "stop"):
                recording._collects(phase, {"generation": generation})
        monkeypatch.undo()
        monkeypatch.setattr(recording, "current", o)
    recorded = read_events(o.recorder.path)
    assert [(event.which, event.number) for event in recorded.apart[GARBAGE]] == [(2, 5 * MS), (1, MS)]
    assert not recorded.events
    o.remove()
    recording._collects("start", {"generation": 2})  # records no more


def test_what_collections_take_of_the_measured_steps_is_a_fact() -> None:
    steps = tuple(step(number) for number in range(6))
    ends = [(0, 2), (2, 3), (2, 1), (5, 4), (7, 9)]  # step, ms; the last behind all
    events = [HookEvent((1 + number) * 10 * MS + 5 * MS, GARBAGE, 2, ms * MS) for number, ms in ends]
    recorded = RankSteps(observed=ObservedSteps(steps=steps, remarks=()), apart={GARBAGE: events})
    its = unseen_facts(recorded, {}, [(1, 4), (5, 6)], [])["garbage"]
    assert its == {"count": 3, "steps": 4, "ms": 2.0, "by_step": [[2, 4.0], [5, 4.0]]}
    assert "garbage" not in unseen_facts(recorded, {}, [(3, 5)], [])


def with_garbage(trace: Trace, rank: int, stated: Any) -> Trace:
    ranks = [{**its, **({"script": {"garbage": stated}} if at == rank else {})} for at, its in enumerate(trace.ranks)]
    return dataclasses.replace(trace, ranks=ranks)


def ledger_of(folder: Path, stated: Any, change: Change) -> Ledger:
    run = run_of(measured_steps=100)
    trace = with_telemetry(trace_of(run, noise=0.05, seed=1, backward=change), per_rank("minor_faults", {}, usual=9.0))
    put(folder, with_garbage(trace, 3, stated))
    (ledger,) = ledgers(results(load([folder])))
    return ledger


@pytest.mark.parametrize(("ms", "named"), [(20.0, True), (5.0, False)])
@pytest.mark.parametrize("kind", [PERSISTENT, TRANSIENT])
def test_a_collection_that_explains_the_delay_is_its_cause(tmp_path: Path, kind: str, ms: float, named: bool) -> None:
    def late(rank: int, step: int) -> float:
        return 20.0 if rank == 3 and (kind == PERSISTENT or step % 10 == 0) else 0.0

    each = [[number, ms] for number in range(200) if kind == PERSISTENT or number % 10 == 0]
    stated = {"count": len(each), "steps": 100, "ms": ms if kind == PERSISTENT else ms / 10, "by_step": each}
    ledger = ledger_of(tmp_path, stated, late)
    assert (ledger.verdict.kind, ledger.verdict.ranks) == (kind, (3,))
    if not named:
        assert Cause.GARBAGE not in [symptom.quantity for symptom in symptoms_of(ledger)]
        return
    symptom = symptoms_of(ledger)[0]
    assert (symptom.quantity, symptom.value, symptom.usual) == (Cause.GARBAGE, pytest.approx(ms), 0.0)
    often = f"{len(each)} times in 100 steps (others 0): 100 % of its delay."
    assert f"In these steps Python collects garbage for {ms:.0f} ms, {often}" in sentence(ledger, "2n2g")
    assert any("collects its garbage" in remark for remark in ledger.remarks)


@pytest.mark.parametrize("stated", [None, {}, {"count": 1}, {"count": 1, "steps": 1, "ms": "nan", "by_step": []}, [3]])
def test_what_is_no_statement_of_collections_is_none(tmp_path: Path, stated: Any) -> None:
    trace = with_garbage(trace_of(run_of(), noise=0.05, seed=1), 3, stated)
    assert not [*garbage_remarks(trace, 0.0)]
    assert ledger_of(tmp_path, stated, on(3, ms=20.0)).verdict.ranks == (3,)
