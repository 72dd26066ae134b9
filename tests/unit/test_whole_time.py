"""Where the time of a run goes: attempts of known times, whose rows add up to the wall time to the nanosecond."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.timestamps import BEGIN, END
from hpc.model.trace import Trace
from hpc.model.training import Begun, Epoch, TrainingHistory
from parse.ledger.whole_time import ROWS, WholeTime, traced, whole_times
from parse.report.costs import time_tables
from parse.report.summary import Summary
from parse.runs.load import load
from parse.runs.result import results
from tests.unit.traces import cut_short, make_run, make_trace, put

S = 10**9
CLOCK = "domain-0"
RUN = make_run()
STEP_S = 0.1
FIRST = int(make_trace(RUN).stamps[0, 0, BEGIN])
"""When the first step of a trace begins, ns."""
START_S, IMPORT_S, BUILD_S, CLOCKS_S, END_S = 2.0, 3.0, 5.0, 0.5, 1.25
BEFORE_S = START_S + IMPORT_S + BUILD_S + CLOCKS_S


def moments(begin_ns: int = FIRST - round(BEFORE_S * S), last_ns: int = 0) -> dict[str, int]:
    """Those of rank 0 of an attempt that begins then and has its last step's end there, if it ends."""
    passed_s = {"process_ns": 1.0, "met_ns": START_S, "imported_ns": START_S + IMPORT_S,
                "built_ns": START_S + IMPORT_S + BUILD_S}  # fmt: skip
    passed_ns = {name: begin_ns + round(at_s * S) for name, at_s in passed_s.items()}
    return passed_ns | ({"ended_ns": last_ns + S // 4} if last_ns else {})


def with_moments(trace: Trace, **others: int) -> Trace:
    ends_ns = trace.stamps[0, :, END]
    last_ns = int(ends_ns[int(trace.steps_completed[0]) - 1]) if trace.outcome is Outcome.OK else 0
    facts = [{**facts, "moments": moments(last_ns=last_ns) | others} for facts in trace.ranks]
    return dataclasses.replace(trace, ranks=facts)


def record(trace: Trace, elapsed_s: float, outcome: Outcome = Outcome.OK, **changes: Any) -> ExitRecord:
    """The exit record of an attempt that began so long before its first step as the moments say."""
    values: dict[str, Any] = {
        "run_id": trace.run_id, "attempt": trace.attempt, "outcome": outcome, "exit_status": 0, "job_id": "17",
        "begin_unix_s": 1_700_000_000, "end_unix_s": 1_700_000_100, "duration_ms": round(1e3 * elapsed_s),
        "begin_ms": (FIRST - round(BEFORE_S * S)) // 10**6, "clock": CLOCK,
    }  # fmt: skip
    return ExitRecord(**values | changes)


def seconds(rows: Mapping[str, int] | None) -> dict[str, float]:
    assert rows is not None
    return {name: ns / 1e9 for name, ns in rows.items() if ns}


def test_each_second_of_an_attempt_is_in_one_row() -> None:
    trace = with_moments(make_trace(RUN, step_s=STEP_S))
    took_s = BEFORE_S + RUN.steps * STEP_S + END_S
    assert seconds(traced(trace, record(trace, took_s))) == {
        "start": START_S, "import": IMPORT_S, "build": BUILD_S, "clocks": CLOCKS_S,
        "steps": pytest.approx(RUN.steps * STEP_S), "end": END_S,
    }  # fmt: skip


def test_first_steps_are_what_they_take_beyond_the_usual() -> None:
    step_s = [4.0, 1.0, *[STEP_S] * (RUN.steps - 2)]
    trace = with_moments(make_trace(RUN, step_s=step_s))
    rows = seconds(traced(trace, record(trace, BEFORE_S + sum(step_s) + END_S)))
    assert rows["first steps"] == pytest.approx(5.0 - 2 * STEP_S) and rows["steps"] == pytest.approx(15 * STEP_S)


def test_another_clock_leaves_the_start_and_the_end_unexplained() -> None:
    trace = with_moments(make_trace(RUN, step_s=STEP_S))
    rows = seconds(traced(trace, record(trace, 60.0, clock="another")))
    assert sum(rows.values()) == pytest.approx(60.0)
    assert rows["start"] == START_S - 1.0  # from its process on
    assert rows["end"] == pytest.approx(0.25)
    assert rows["not accounted for"] == pytest.approx(60 - (BEFORE_S - 1 + RUN.steps * STEP_S + 0.25))


def test_without_a_record_the_time_is_that_of_the_rank() -> None:
    trace = with_moments(make_trace(RUN, step_s=STEP_S))
    assert sum(seconds(traced(trace, None)).values()) == pytest.approx(BEFORE_S - 1 + RUN.steps * STEP_S + 0.25)
    assert traced(make_trace(RUN), None) is None  # an old trace says nothing of its start and end
    rows = seconds(traced(make_trace(RUN), record(trace, 30.0, clock="another")))
    assert rows == {"steps": pytest.approx(1.5), "not accounted for": pytest.approx(28.5)}


def paused(trace: Trace, at: int, pause_s: float, name: str = "pauses", kind: str = "evaluation") -> Trace:
    """With a pause of all ranks before that step, which begins so much later."""
    stamps = trace.stamps.copy()
    stamps[:, at:] += round(pause_s * S)
    if name == "phases":
        stamps[:, at, BEGIN] = stamps[:, at - 1, END]
    entry = {"step": at, "kind": kind, "seconds": pause_s, "waited_s": 0.0}
    ranks = [{**facts, "script": {**facts.get("script", {}), name: [entry]}} for facts in trace.ranks]
    later = trace.clock_local_ns + np.array([0, round(pause_s * S)])
    return dataclasses.replace(trace, stamps=stamps, ranks=ranks, clock_local_ns=later, barrier_exits_ns=later)


@pytest.mark.parametrize("name, kind, row", [
    ("pauses", "evaluation", "evaluation"), ("pauses", "checkpoint and another loader", "checkpoint"),
    ("pauses", "checkpoint and evaluation", "checkpoint and evaluation"), ("phases", "rollout", "rollout"),
])  # fmt: skip
def test_pauses_of_scripts_have_rows_by_their_kinds(name: str, kind: str, row: str) -> None:
    trace = with_moments(paused(make_trace(RUN, step_s=STEP_S), 9, 2.5, name, kind))
    rows = seconds(traced(trace, record(trace, BEFORE_S + RUN.steps * STEP_S + 2.5 + END_S)))
    assert rows[row] == pytest.approx(2.5) and rows["steps"] == pytest.approx(RUN.steps * STEP_S)
    assert rows["end"] == pytest.approx(END_S)


def test_what_failed_is_lost_and_its_end_a_failure() -> None:
    trace = with_moments(cut_short(make_trace(RUN, step_s=STEP_S), 8, Outcome.RANK_FAIL))
    rows = seconds(traced(trace, record(trace, BEFORE_S + 0.8 + 7.0, Outcome.RANK_FAIL), counts=False))
    assert rows["lost steps"] == pytest.approx(0.8) and rows["failures"] == pytest.approx(7.0)
    assert rows["start"] == START_S and "steps" not in rows


def history(*epochs: Epoch, begun: tuple[Begun, ...], stop_s: float) -> TrainingHistory:
    return TrainingHistory(
        planned_epochs=3, target=0, eval_every=1, samples_per_epoch=10, evaluation_samples=5, images_sha256="",
        begun=begun, epochs=epochs, stop_ns=round(stop_s * S),
    )  # fmt: skip


def test_epochs_that_a_checkpoint_kept_are_not_lost() -> None:
    """Attempt 1 trains epoch 1 in 10 s, evaluates in 2, is killed 5 s later; attempt 2 makes two more."""

    def epoch(attempt: int, begin_s: float) -> Epoch:
        begin, trained, evaluated = (round(at * S) for at in (begin_s, begin_s + 10, begin_s + 12))
        return Epoch(attempt=attempt, learning_rate=1, begin_ns=begin, trained_ns=trained, evaluated_ns=evaluated)

    begun = (Begun(attempt=1, unix_ns=1000 * S, epochs=0), Begun(attempt=2, unix_ns=2000 * S, epochs=1))
    whole = history(epoch(1, 1001), epoch(2, 2003), epoch(2, 2016), begun=begun, stop_s=2028.5)
    first = with_moments(cut_short(make_trace(RUN, step_s=STEP_S), 8, Outcome.RANK_FAIL))
    built_s = START_S + IMPORT_S + BUILD_S
    rows = seconds(traced(first, record(first, built_s + 13 + 5, Outcome.RANK_FAIL), whole, counts=False))
    assert rows == {"start": START_S, "import": IMPORT_S, "build": BUILD_S, "checkpoint": pytest.approx(0.5),
                    "clocks": CLOCKS_S, "steps": 10.0, "evaluation": 2.0, "lost steps": 5.0}  # fmt: skip
    second = with_moments(make_trace(RUN, step_s=STEP_S, attempt=2, history=whole))
    second = with_moments(second, ended_ns=moments()["built_ns"] + round(28.5 * S))
    rows = seconds(traced(second, record(second, built_s + 28.5 + END_S), whole))
    assert rows["steps"] == 20.0 and rows["evaluation"] == 4.0 and rows["end"] == END_S
    assert rows["checkpoint"] == pytest.approx(2.5 + 1 + 0.5) and sum(rows.values()) == pytest.approx(39.75)


def put_record(folder: Path, its: ExitRecord) -> None:
    (folder / f"{its.stem}.exit.json").write_text(json.dumps(dataclasses.asdict(its)))


def read(folder: Path) -> tuple[Summary, list[str]]:
    judged = results(load([folder], kind="traces"))
    faults: list[str] = []
    return Summary(results=judged, times=whole_times(judged, judged, faults)), faults


def test_a_killed_attempt_and_its_restart_fill_the_time_of_their_job(tmp_path: Path) -> None:
    """The job's script takes 1 s until attempt 1, and 0.5 s between the attempts."""
    failed = with_moments(cut_short(make_trace(RUN, step_s=STEP_S), 8, Outcome.RANK_FAIL))
    begin_ms = record(failed, 1).begin_ms
    in_job = {"job_begin_ms": begin_ms - 1000}
    put(tmp_path, failed)
    put_record(tmp_path, record(failed, BEFORE_S + 0.8 + 7.0, Outcome.RANK_FAIL, **in_job))
    later_ns = round((BEFORE_S + 0.8 + 7.0 + 0.5) * S)
    done = with_moments(make_trace(RUN, step_s=STEP_S, attempt=2))
    shifted = {name: value + later_ns for name, value in done.ranks[0]["moments"].items()}
    done = dataclasses.replace(
        done, stamps=done.stamps + later_ns, clock_local_ns=done.clock_local_ns + later_ns,
        ranks=[{**facts, "moments": shifted} for facts in done.ranks],
    )  # fmt: skip
    put(tmp_path, done)
    took_s = BEFORE_S + RUN.steps * STEP_S + END_S
    put_record(tmp_path, record(done, took_s, begin_ms=begin_ms + later_ns // 10**6, **in_job))
    summary, faults = read(tmp_path)
    (whole,) = summary.times
    (run,) = whole.runs
    assert faults == [] and (run.attempts, run.unrecorded) == (2, 0)
    assert run.rows == {
        "start": START_S + 1.0, "import": IMPORT_S, "build": BUILD_S, "steps": pytest.approx(1.5),
        "clocks": pytest.approx(2 * CLOCKS_S), "end": pytest.approx(END_S), "lost steps": pytest.approx(0.8),
        "restarts": pytest.approx(0.5 + START_S + IMPORT_S + BUILD_S), "failures": pytest.approx(7.0),
    }  # fmt: skip
    assert run.wall_s == pytest.approx(1.0 + BEFORE_S + 0.8 + 7.0 + 0.5 + took_s)
    assert whole.goodput == pytest.approx(1.5 / run.wall_s)
    (table,) = time_tables(summary)
    names, cells = [name for name, _ in table.heads], table.rows[0]
    assert names[-2:] == ["rest", "goodput"] and "restarts" in names and "lost steps" in names
    assert sum(float(cell) for cell in cells[2:-1]) == pytest.approx(float(cells[1]), abs=0.1 * len(cells))


def test_an_attempt_without_a_step_is_a_failure_and_one_without_a_record_is_counted(tmp_path: Path) -> None:
    trace = make_trace(RUN, attempt=1)
    put_record(tmp_path, record(trace, 12.0, Outcome.LAUNCH_FAIL))
    put_record(tmp_path, record(dataclasses.replace(trace, attempt=2), -1e-3, Outcome.LOST, end_unix_s=0))
    done = with_moments(make_trace(RUN, step_s=STEP_S, attempt=3))
    put(tmp_path, done)
    put_record(tmp_path, record(done, BEFORE_S + RUN.steps * STEP_S))
    (whole,) = read(tmp_path)[0].times
    assert whole.rows["failures"] == 12.0 and whole.runs[0].unrecorded == 1


def test_a_damaged_fact_loses_its_point_and_says_so(tmp_path: Path) -> None:
    trace = with_moments(make_trace(RUN))
    ranks = [{**facts, "script": {"pauses": [{"kind": "evaluation"}]}} for facts in trace.ranks]
    put(tmp_path, dataclasses.replace(trace, ranks=ranks))
    summary, faults = read(tmp_path)
    assert summary.times == () and "has an entry without a step" in faults[0]
    assert time_tables(summary) == []


NS = st.integers(-(10**11), 10**11)


@given(
    known=st.dictionaries(st.sampled_from(["process_ns", "met_ns", "imported_ns", "built_ns", "ended_ns"]), NS),
    began=st.none() | NS, elapsed_ms=st.integers(0, 10**6), steps=st.integers(0, RUN.steps), counts=st.booleans(),
    pause=st.integers(1, RUN.steps - 1), pause_s=st.floats(0, 100), waited=st.booleans(),
)  # fmt: skip
def test_rows_of_any_attempt_add_up_and_none_is_negative(
    known: dict[str, int], began: int | None, elapsed_ms: int, steps: int, counts: bool, pause: int, pause_s: float,
    waited: bool,
) -> None:  # fmt: skip
    trace = paused(make_trace(RUN, step_s=STEP_S), pause, pause_s, "phases" if waited else "pauses")
    trace = trace if steps == RUN.steps else cut_short(trace, steps, Outcome.RANK_FAIL)
    ranks = [{**facts, "moments": {name: FIRST + at for name, at in known.items()}} for facts in trace.ranks]
    trace = dataclasses.replace(trace, ranks=ranks)
    begin_ms = -1 if began is None else (FIRST + began) // 10**6
    rows = traced(trace, record(trace, elapsed_ms / 1e3, begin_ms=begin_ms), counts=counts)
    if rows is None:
        assert not known and not steps
        return
    assert sum(rows.values()) == elapsed_ms * 10**6 and min(rows.values()) >= 0 and {*rows} <= {*ROWS}


def test_a_point_is_the_mean_of_its_runs(tmp_path: Path) -> None:
    for repeat, step_s in ((1, 0.1), (2, 0.3)):
        trace = with_moments(make_trace(make_run(repeat=repeat), step_s=step_s))
        put(tmp_path, trace)
        put_record(tmp_path, record(trace, BEFORE_S + RUN.steps * step_s + END_S))
    (whole,) = read(tmp_path)[0].times
    assert isinstance(whole, WholeTime) and [run.repeat for run in whole.runs] == [1, 2]
    assert whole.rows["steps"] == pytest.approx(RUN.steps * 0.2)
    assert sum(whole.rows.values()) == pytest.approx(whole.wall_s)
    assert whole.goodput == pytest.approx(whole.rows["steps"] / whole.wall_s)
