"""Whether the script of an ended job is submitted again, by its history; whether its limit is enough."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import ExitRecord, Outcome
from launch.jobs.plan import WrittenJob, plan_jobs
from launch.jobs.site import Site
from launch.sweep.prepare import TimeLimitTooShort, check_limit, durations_s
from launch.sweep.submit import MAX_IN_VAIN, Decision, JobHistory, resubmit
from tests.unit.traces import make_run

TIMEOUT, PREEMPTED, LOST, OOM, NEVER = Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.LOST, Outcome.OOM, None


@pytest.mark.parametrize(
    ("states", "remaining", "changes", "decision"),
    [
        ("COMPLETED", (), {}, "done"),
        ("TIMEOUT", (), {"measured": True}, "done"),
        ("CANCELLED", (TIMEOUT, NEVER), {"measured": True}, "cancelled"),
        ("CANCELLED by 1000", (NEVER,), {"requested": {"0"}}, "cancelled"),
        ("TIMEOUT", (TIMEOUT, NEVER), {"measured": True}, "rest_cut_off"),
        ("TIMEOUT", (TIMEOUT, NEVER), {}, "in_vain"),
        ("COMPLETED", (NEVER,), {"measured": True}, "rest_cut_off"),
        ("COMPLETED", (NEVER,), {}, "in_vain"),
        ("FAILED", (TIMEOUT, LOST), {"measured": True}, "failed"),
        ("FAILED", (Outcome.LAUNCH_FAIL,), {"measured": True}, "failed"),
        ("COMPLETED", (OOM,), {"requested": {"0"}}, "requested"),
        ("COMPLETED", (OOM, TIMEOUT), {"requested": {"0"}}, "requested"),
        ("COMPLETED", (OOM, LOST), {"requested": {"0"}}, "failed"),
        ("PREEMPTED", (PREEMPTED, NEVER), {}, "ended_by_scheduler"),
        ("NODE_FAIL", (Outcome.NODE_FAIL,), {}, "ended_by_scheduler"),
        ("PREEMPTED", (PREEMPTED,), {"in_vain": MAX_IN_VAIN - 1}, "ended_by_scheduler"),
        ("PREEMPTED", (PREEMPTED,), {"in_vain": MAX_IN_VAIN}, "in_vain"),
        ("PREEMPTED", (PREEMPTED, LOST), {}, "failed"),
        ("PREEMPTED,COMPLETED", (PREEMPTED,), {}, "in_vain"),
        ("", (LOST, NEVER), {}, "forgotten"),
        ("", (LOST, NEVER), {"forgotten_before": True}, "failed"),
        ("", (NEVER,), {"forgotten_before": True}, "in_vain"),
        ("", (OOM,), {}, "failed"),
        (",COMPLETED", (NEVER,), {}, "in_vain"),
        (None, (NEVER,), {}, "in_vain"),
        ("FAILED", (Outcome.LAUNCH_FAIL, NEVER), {"refused": {"0"}}, "step_refused"),
        ("FAILED", (Outcome.LAUNCH_FAIL,), {"refused": {"0"}, "in_vain": MAX_IN_VAIN}, "in_vain"),
        ("FAILED", (Outcome.LAUNCH_FAIL, Outcome.LAUNCH_FAIL), {"refused": {"0"}}, "failed"),
        ("CANCELLED", (Outcome.LAUNCH_FAIL,), {"refused": {"0"}}, "cancelled"),
    ],
)
def test_the_decision_follows_from_the_history(
    states: str | None, remaining: tuple[Outcome | None, ...], changes: dict[str, Any], decision: str
) -> None:
    """`states` are those of the ended jobs, None where none is known; `remaining` the outcomes of runs 0, 1, …"""
    history = JobHistory(
        states=frozenset(() if states is None else states.split(",")),
        remaining={str(run): outcome for run, outcome in enumerate(remaining)}, **changes,
    )  # fmt: skip
    assert resubmit(history) is Decision(decision)


def test_five_decisions_submit_again() -> None:
    assert {decision for decision in Decision if decision.resubmits} == {
        Decision.FORGOTTEN, Decision.REQUESTED, Decision.REST_CUT_OFF, Decision.ENDED_BY_SCHEDULER,
        Decision.STEP_REFUSED,
    }  # fmt: skip


RUN = make_run()
RUNS = [dataclasses.replace(RUN, repeat=repeat) for repeat in (1, 2, 3)]
POINTS = {run.run_id: run.point_id for run in RUNS}
OTHER = dataclasses.replace(RUN, batch_size=RUN.batch_size * 2)
[JOB] = plan_jobs(RUNS, Site(name="s"), minutes_per_run=10, time_min=None)
WRITTEN = WrittenJob(plan=dataclasses.replace(JOB, time_min=5), script=Path("1n.sh"), text="")


def record(run_id: str, attempt: int, seconds: int, outcome: Outcome = Outcome.OK) -> ExitRecord:
    return ExitRecord(
        run_id=run_id, attempt=attempt, outcome=outcome, exit_status=0, job_id="1", restart_count=0, nodelist="a",
        begin_unix_s=1000, end_unix_s=1000 + seconds,
    )  # fmt: skip


def test_durations_are_those_of_attempts_that_ended_ok() -> None:
    first, second = RUNS[0].run_id, RUNS[1].run_id
    records = {
        first: [record(first, 1, 9, Outcome.TIMEOUT), record(first, 2, 100)],
        second: [record(second, 1, 110)],
    }
    assert durations_s(POINTS, records) == {RUN.point_id: [100.0, 110.0]}


def test_a_clock_that_was_set_in_an_attempt_makes_no_duration() -> None:
    """25 s by the monotonic clock, an hour more by the wall clock; one whose clock went back tells nothing."""
    forward = dataclasses.replace(record(RUN.run_id, 1, 3625), duration_ms=25_200)
    backward = record(RUN.run_id, 2, -3575)
    assert durations_s(POINTS, {RUN.run_id: [forward, backward]}) == {RUN.point_id: [25.2]}


def test_a_first_run_that_cannot_end_in_time_is_an_error() -> None:
    took = {RUN.point_id: [241.0, 250.0]}
    with pytest.raises(
        TimeLimitTooShort, match=r"its first run, \S+_r1, cannot end in that; .* 241 to 250 s: raise --minutes"
    ):
        check_limit(WRITTEN, 60, RUN, took)
    check_limit(WRITTEN, 60, OTHER, took)
    check_limit(WRITTEN, 60, RUN, {RUN.point_id: [70.0, 241.0]})
