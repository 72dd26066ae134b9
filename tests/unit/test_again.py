"""Reruns of final runs, and the status of runs: from records, requests and plans in a folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpc.model.outcome import BeginRecord, Outcome, RecordError, requested_reruns
from launch.sweep import run_status
from launch.sweep.request import SweepOptions, outcomes_to_retry
from launch.sweep.run_status import Changes, RunStatus, choose_reruns, pending_runs, planned_sweeps, run_statuses, whole
from tests.unit.traces import make_run, put_exit_record, put_plan, repeats

RUNS = repeats(make_run(), 4)
OK, OOM, FAILED, LATE = (run.run_id for run in RUNS)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Four runs: ok after an earlier oom, oom, rank_fail, timeout."""
    put_exit_record(tmp_path, RUNS[0], Outcome.OOM, 1)
    put_exit_record(tmp_path, RUNS[0], Outcome.OK, 2)
    put_exit_record(tmp_path, RUNS[1], Outcome.OOM)
    put_exit_record(tmp_path, RUNS[2], Outcome.RANK_FAIL)
    put_exit_record(tmp_path, RUNS[3], Outcome.TIMEOUT)
    return tmp_path


def request(traces: Path, **options: object) -> list[str]:
    lines: list[str] = []
    choose_reruns(SweepOptions(**options), RUNS, traces, None, lines.append)  # type: ignore[arg-type]  # the test's own keywords
    return lines


def test_retry_requests_reruns_of_runs_with_these_outcomes(traces: Path) -> None:
    """An oom before an ok is not the run's outcome."""
    assert outcomes_to_retry(" oom, invalid") == (Outcome.OOM, Outcome.INVALID)
    assert request(traces, retry=(Outcome.OOM, Outcome.INVALID)) == ["retry oom,invalid: 1 run once more"]
    assert requested_reruns(traces) == {f"{OOM}.1"}
    assert pending_runs([OK, OOM, FAILED, LATE], traces) == [OOM, LATE]
    assert request(traces, retry=(Outcome.OOM,)) == ["retry oom: 0 runs once more"]  # it is wanted already


def test_only_ok_runs_are_compared_with_the_present_environment(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is a mock; tests/mpi compares a real trace."""
    changes = Changes(changed=("numpy was 1, is 2",), unknown=("the weather",))
    monkeypatch.setattr(run_status, "changes_since", lambda run, trace, site: changes)
    assert request(traces, rerun_if_changed=True) == [
        f"{OK}: numpy was 1, is 2", "--rerun-if-changed: 1 of 1 runs that ended ok once more",
        "not compared: the weather",
    ]  # fmt: skip
    assert pending_runs([OK], traces) == [OK]


def test_the_status_of_runs(traces: Path) -> None:
    begin = BeginRecord(run_id=LATE, attempt=2, job_id="9", begin_unix_s=1)
    text = f'{{"run_id": "{LATE}", "attempt": 2, "job_id": "9", "begin_unix_s": 1}}'
    (traces / f"{LATE}.2.begin.json").write_text(text)
    partial = traces / f"{LATE}.2.partial"
    partial.mkdir()
    (partial / "node1.beat").touch()
    os.utime(partial / "node1.beat", (time.time() - 1000,) * 2)
    request(traces, retry=(Outcome.OOM,))
    ok, oom, failed, late = run_statuses([OK, OOM, FAILED, LATE], traces)
    assert (ok.state, ok.attempts, ok.final, ok.rerun_requested) == ("ok", 2, True, False)
    assert (oom.state, oom.final, oom.rerun_requested) == ("oom, wanted again", False, True)
    assert (failed.state, failed.final) == ("rank_fail", True)
    assert (late.state, late.attempts, late.ended, late.open) == ("begun", 2, 1, begin)
    assert late.last_step is None and late.copy_age_s is not None and late.copy_age_s >= 1000
    assert run_statuses(["none"], traces) == [RunStatus(run_id="none")]
    assert RunStatus(run_id="none").state == "never ran"
    assert whole([ok]) and not whole([ok, oom]) and not whole([failed]) and whole([])


def test_unreadable_plans_are_named(tmp_path: Path) -> None:
    path = put_plan(tmp_path, RUNS)
    broken: list[RecordError] = []
    [(sweep_id, runs)] = planned_sweeps(tmp_path, broken).items()
    assert path.name == f"plan.{sweep_id}.json"
    assert [run.run_id for run in runs] == [run.run_id for run in RUNS]
    (tmp_path / "plan.x.json").write_text("{")
    assert not broken and planned_sweeps(tmp_path, broken).keys() == {sweep_id}
    assert "plan.x.json: no plan that this version can read" in str(broken)


@pytest.mark.parametrize("schema", [1, 3])
def test_a_plan_of_another_schema_is_refused_by_its_number(tmp_path: Path, schema: int) -> None:
    path = put_plan(tmp_path, RUNS)
    path.write_text(path.read_text().replace('"schema_version": 2', f'"schema_version": {schema}'))
    broken: list[RecordError] = []
    assert planned_sweeps(tmp_path, broken) == {}
    assert f"it is of schema {schema}, this version reads schema 2" in str(broken)
