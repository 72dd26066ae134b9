"""Why a rank is late, by the counters of its processes: each cause by its own record, and by no other's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from parse.ledger.causes import Cause, RunRates, evidence_of
from parse.ledger.point import ledgers
from parse.runs.load import load
from parse.runs.result import results
from parse.say.paragraph import sentence
from tests.unit.ledger_traces import on, per_rank, run_of, trace_of, with_telemetry
from tests.unit.ledgers import symptoms_of
from tests.unit.test_symptoms import ledger_of
from tests.unit.traces import put

STEP_MS = 50.0
COUNTED = ("quota", "threads", "children", "neighbours", "others")
KNOWN = dict.fromkeys((*COUNTED, "stopped_looks", "storage_looks"), 0.0)
USUAL = {"cpu": 0.5, "queued": 0.0, "waits": 0.5, "sleeping_looks": 10.0, "switches": 20.0, **KNOWN}
"""A rank that computes half of the time and sleeps while it waits for the others."""
RECORDS: dict[Cause, dict[str, Any]] = {
    Cause.COMPUTES: {"cpu": 0.9},
    Cause.QUOTA: {"queued": 0.4, "quota": 0.38},
    Cause.STOPPED: {"sleeping_looks": 2.0, "stopped_looks": 8.0},
    Cause.STORAGE: {"sleeping_looks": 2.0, "storage_looks": 8.0},
    Cause.PYTHON_THREADS: {"queued": 0.1, "threads": 0.8, "details": {Cause.PYTHON_THREADS: "spinner"}},
    Cause.COMPUTE_THREADS: {"cpu": 0.3, "queued": 0.1, "threads": 0.5, "details": {Cause.COMPUTE_THREADS: "2 on 1"}},
    Cause.OTHER_THREADS: {"queued": 0.35, "threads": 0.5},
    Cause.CHILDREN: {"queued": 0.4, "children": 0.45},
    Cause.NEIGHBOURS: {"queued": 0.4, "neighbours": 0.45, "details": {Cause.NEIGHBOURS: "3"}},
    Cause.OTHERS: {"queued": 0.4, "others": 0.45, "details": {Cause.OTHERS: "stress"}},
    Cause.QUEUED: {"queued": 0.4},
    Cause.SLEEPS: {"sleeping_looks": 10.0},
}
"""By cause the record of a rank that it makes late by 0.4 of the time."""


def rates(record: dict[str, Any], usual: dict[str, float] | None = None, intervals: int = 10) -> RunRates:
    """A run in which the straggler has this record; `others` have the usual one, or what is given of theirs."""
    details = record.get("details", {})
    numbers = {name: value for name, value in record.items() if name != "details"}
    both = [{**USUAL, "waits": 0.1, **numbers}, {**USUAL, **(usual or {})}]
    straggler, others = ({name: np.full(intervals, value) for name, value in side.items()} for side in both)
    return RunRates(seconds=np.ones(intervals), straggler=straggler, others=others, details=details)


def causes(*runs: RunRates) -> list[Cause]:
    return [Cause(each.quantity) for each in evidence_of(runs, STEP_MS, 1.0)]


@pytest.mark.parametrize("cause", RECORDS)
def test_the_record_of_a_cause_names_it_and_no_other(cause: Cause) -> None:
    (evidence,) = evidence_of([rates(RECORDS[cause])], STEP_MS, 1.0)
    assert evidence.quantity is cause
    assert evidence.explains == pytest.approx(0.95 if cause is Cause.QUOTA else 0.8, abs=0.21)
    assert evidence.detail == RECORDS[cause].get("details", {}).get(cause, "")


@pytest.mark.parametrize("cause", [cause for cause in RECORDS if cause not in (Cause.COMPUTES, Cause.SLEEPS)])
def test_what_all_ranks_have_alike_is_not_the_straggler_s_cause(cause: Cause) -> None:
    """It sleeps, or computes more, and has the same quota, threads and neighbours as the others have."""
    shared = {name: value for name, value in RECORDS[cause].items() if name in KNOWN}
    details = RECORDS[cause].get("details", {})
    assert causes(rates({**shared, "cpu": 0.9, "details": details}, shared)) == [Cause.COMPUTES]
    if cause not in (Cause.STOPPED, Cause.STORAGE):
        assert causes(rates({**shared, "details": details}, shared)) == [Cause.SLEEPS]


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_there_and_explains_little_of_the_delay_is_not_named(name: str) -> None:
    details = {Cause.PYTHON_THREADS: "reader"}
    assert causes(rates({"queued": 0.4, name: 0.15, "details": details})) == [Cause.QUEUED]
    assert causes(rates({"cpu": 0.9, name: 0.9, "details": details})) == [Cause.COMPUTES]  # it ran all the time


@pytest.mark.parametrize("name", ["children", "neighbours", "others", "threads"])
def test_what_runs_on_free_cores_while_a_rank_sleeps_is_not_named(name: str) -> None:
    assert causes(rates({name: 0.9})) == [Cause.SLEEPS]


def uneven(cause: Cause, when: slice) -> RunRates:
    """A rank that is late in the first three of ten intervals; what counts is higher in those of `when`."""
    late, usual = rates(RECORDS[cause]), rates({"waits": 0.5})
    straggler = {}
    for name, values in usual.straggler.items():
        straggler[name] = values.copy()
        straggler[name][:3] = late.straggler[name][:3]
        if name in KNOWN:
            straggler[name][:] = usual.straggler[name]
            straggler[name][when] = late.straggler[name][when]
    return dataclasses.replace(late, straggler=straggler)


@pytest.mark.parametrize("cause", [Cause.QUOTA, Cause.CHILDREN, Cause.NEIGHBOURS, Cause.OTHERS, Cause.OTHER_THREADS])
def test_a_cause_is_more_in_the_late_steps_than_in_the_others(cause: Cause) -> None:
    assert causes(uneven(cause, slice(0, 3))) == [cause]
    assert causes(uneven(cause, slice(3, 10))) == [Cause.QUEUED]
    assert causes(uneven(cause, slice(0, 10))) == [Cause.QUEUED]  # as much where nothing is late


def test_of_ranks_that_poll_while_they_wait_their_own_work_counts() -> None:
    """They take all of their cores: who computes more takes no more time of a processor."""
    polling = {"cpu": 1.0, "switches": 5.0}
    assert causes(rates({"cpu": 1.0}, polling)) == [Cause.COMPUTES]
    assert causes(rates({"cpu": 0.6, "queued": 0.4, "quota": 0.4}, polling)) == [Cause.QUOTA]
    assert causes(rates({"cpu": 0.6}, polling)) == [Cause.SLEEPS]


def test_on_a_gpu_the_time_of_a_core_says_nothing_of_the_work() -> None:
    for cause in (Cause.COMPUTES, Cause.SLEEPS):
        assert not causes(dataclasses.replace(rates(RECORDS[cause]), on_gpu=True))
    assert causes(dataclasses.replace(rates(RECORDS[Cause.QUOTA]), on_gpu=True)) == [Cause.QUOTA]


def test_where_a_figure_is_missing_its_cause_is_only_possible() -> None:
    read = rates(RECORDS[Cause.QUOTA])
    without = {name: values for name, values in read.straggler.items() if name not in KNOWN}
    assert causes(dataclasses.replace(read, straggler=without)) == [Cause.QUEUED]


@pytest.mark.parametrize(
    ("samples", "cause"), [((48.0, 32.0), Cause.SAMPLES), ((33.0, 32.0), Cause.COMPUTES), (None, Cause.COMPUTES)]
)
def test_more_samples_are_a_cause_where_they_are_as_much_more_as_the_delay(samples, cause) -> None:
    """The others work half of the time; the straggler computes for 0.4 of it more."""
    assert causes(dataclasses.replace(rates(RECORDS[Cause.COMPUTES]), samples=samples)) == [cause]
    sleeps = Cause.SAMPLES if cause is Cause.SAMPLES else Cause.SLEEPS  # what a sample takes need not be computing
    assert causes(dataclasses.replace(rates({}), samples=samples)) == [sleeps]
    assert causes(dataclasses.replace(rates(RECORDS[Cause.QUOTA]), samples=samples)) == [Cause.QUOTA]


def test_who_is_not_late_has_no_cause() -> None:
    assert not causes(rates({"waits": 0.5, "threads": 0.9}))
    assert not causes()


# From traces to sentences.

SERIES = {
    "main_thread_cpu_s": 0.3, "main_thread_queued_s": 0.0, "cpu_s": 0.31, "throttled_s": 0.0, "children_cpu_s": 0.0,
    "main_thread_involuntary_switches": 20.0, "main_thread_sleeping_looks": 100.0,
    "main_thread_uninterruptible_looks": 0.0, "main_thread_stopped_looks": 0.0,
}  # fmt: skip


def counters(rank: int, **more: float) -> dict[str, Any]:
    """The counters of four ranks, in a second; those of one that differ."""
    series = {}
    for name, usual in SERIES.items():
        its = {rank: more[name]} if name in more else {}
        series |= per_rank(name, its, usual)
    return series


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"main_thread_queued_s": 0.40, "throttled_s": 0.39},
            "A CPU quota holds it back 8.59 ms a step (others 0): ",
        ),
        (
            {"main_thread_stopped_looks": 40.0, "main_thread_sleeping_looks": 30.0},
            "Its process is stopped 8.81 ms a step (others 0): ",
        ),
        (
            {"main_thread_uninterruptible_looks": 40.0, "main_thread_sleeping_looks": 30.0},
            "It waits for storage 8.81 ms a step (others 0): ",
        ),
        ({"main_thread_cpu_s": 0.72, "cpu_s": 0.73}, "Its main thread takes 1"),
        (
            {"main_thread_queued_s": 0.40, "cpu_s": 0.75},
            "Its other threads take 9.91 ms of CPU time a step (others 0.22): ",
        ),
        ({"main_thread_queued_s": 0.40}, "It is ready to run but not running 8.81 ms a step (others 0): "),
        ({}, "Its main thread sleeps "),
    ],
)
def test_the_sentence_has_the_cause_and_what_to_do(tmp_path, more, expected):
    """Rank 3 is on a node whose clock is not the first one's."""
    ledger = ledger_of(tmp_path, counters(3, **more), backward=on(3, ms=9.0))
    assert ledger.verdict.ranks == (3,)
    text = sentence(ledger, "2n2g")
    assert f". {expected}" in text
    assert ". To do: " in text
    others = ("quota holds", "stopped", "storage", "CPU time", "threads run", "ready to run", "sleeps")
    assert sum(each in text.partition("To do")[0] for each in others) == 1


def test_a_longer_batch_is_in_the_sentence(tmp_path):
    for repeat in (1, 2):
        trace = trace_of(run_of(repeat=repeat), noise=0.05, seed=repeat, backward=on(3, ms=9.0))
        trace = with_telemetry(trace, counters(3, main_thread_cpu_s=0.72, cpu_s=0.73))
        samples = trace.samples.copy()
        samples[3] *= 2
        put(tmp_path, dataclasses.replace(trace, samples=samples))
    (ledger,) = ledgers(results(load([tmp_path])))
    usual = float(samples[0, -1])
    assert [(each.quantity, each.value, each.usual) for each in symptoms_of(ledger)] == [
        (Cause.SAMPLES, 2 * usual, usual),
    ]  # fmt: skip
    assert f". It trains on {2 * usual:.0f} samples a step (others {usual:.0f}): 100 % of its delay. " in sentence(
        ledger, "2n2g"
    )


def test_facts_name_the_thread_that_holds_the_interpreter(tmp_path):
    for repeat in (1, 2):
        series = counters(3, cpu_s=0.85)
        trace = with_telemetry(trace_of(run_of(repeat=repeat), noise=0.05, seed=repeat, backward=on(3, ms=9.0)), series)
        facts = {"telemetry": {"threads": {"1": [[77, "python3", 20.0]]}, "cores": {"1": [0, 1]}}}
        script = {"script": {"facts": {"python_threads": {"70": "MainThread", "77": "prefetch"}, "compute_threads": 1}}}
        more = {2: facts, 3: script}
        ranks = [{**each, **more.get(rank, {})} for rank, each in enumerate(trace.ranks)]
        put(tmp_path, dataclasses.replace(trace, ranks=ranks))
    (ledger,) = ledgers(results(load([tmp_path])))
    text = sentence(ledger, "2n2g")
    assert "Its Python thread prefetch takes 12.1 ms of CPU time a step (others 0.22)" in text
    assert "To do: a Python thread that computes holds the GIL" in text
