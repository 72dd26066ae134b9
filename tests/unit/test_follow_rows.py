from __future__ import annotations

import dataclasses

import pytest

from hpc.model.outcome import BeginRecord
from launch.cluster.query import JobState
from launch.follow.view import (
    NEVER_BEGAN,
    Row,
    RunDurations,
    StepCount,
    SweepTimeLeft,
    attempt_elapsed_s,
    row_remaining_s,
    sweep_time_left,
)
from tests.unit.follow_rows import RUN, over, pending, running

SECOND = dataclasses.replace(RUN, repeat=2)
OTHER_BATCH = dataclasses.replace(RUN, batch_size=64)
TWO_NODES = dataclasses.replace(RUN, nodes=2)
P, R, E = JobState.PENDING, JobState.RUNNING, JobState.ENDED


@pytest.mark.parametrize(
    ("completed", "median_step_s", "left_s"),
    [(0, None, None), (9, 0.5, None), (10, 0.5, 45.0), (50, None, None), (100, 0.5, 0.0)],
)
def test_time_left_of_a_run_comes_from_enough_timed_steps(
    completed: int, median_step_s: float | None, left_s: float | None
) -> None:
    assert StepCount(completed=completed, planned=100, median_step_s=median_step_s).remaining_s == left_s


@pytest.mark.parametrize(
    ("begin_unix_s", "first_seen_unix_s", "elapsed_s"),
    [
        (940, 1000.0, 60.0),  # it began before the follower
        (940, 950.0, 60.0),
        (5000, 990.0, 10.0),  # the node's clock is ahead
        (None, 990.0, 10.0),
        (5000, 1000.0, 0.0),
        (None, 1001.0, 0.0),  # this machine's clock was set back
    ],
)
def test_elapsed_time_is_never_negative(begin_unix_s: int | None, first_seen_unix_s: float, elapsed_s: float) -> None:
    begin = begin_unix_s and BeginRecord(run_id="r", attempt=1, job_id="7", begin_unix_s=begin_unix_s)
    assert attempt_elapsed_s(begin, first_seen_unix_s, 1000.0) == elapsed_s


def test_durations_come_from_the_point_then_from_the_case() -> None:
    durations = RunDurations([(RUN, 10.0), (RUN, 30.0), (SECOND, 20.0), (OTHER_BATCH, 100.0)])
    assert durations.expected_s(dataclasses.replace(RUN, repeat=9)) == 20.0
    assert durations.expected_s(OTHER_BATCH) == 100.0
    assert durations.expected_s(dataclasses.replace(RUN, batch_size=32)) == 25.0
    assert durations.expected_s(TWO_NODES) is None
    assert durations.expected_s(dataclasses.replace(RUN, workload="collectives")) is None


def test_time_left_of_a_row() -> None:
    durations = RunDurations([(RUN, 100.0)])
    assert row_remaining_s(over(RUN), durations) == 0.0
    assert row_remaining_s(Row(run=RUN, state=NEVER_BEGAN), durations) == 0.0
    assert row_remaining_s(pending(RUN), durations) == 100.0
    assert row_remaining_s(running(RUN, completed=900), durations) == pytest.approx(
        31.0
    )  # its pace before others' times
    assert row_remaining_s(running(RUN, completed=3, elapsed_s=30.0), durations) == 70.0
    assert row_remaining_s(running(RUN, completed=3, elapsed_s=130.0), durations) == 0.0
    assert row_remaining_s(pending(TWO_NODES), durations) is None
    assert row_remaining_s(Row(run=RUN, state="unreachable"), durations) is None


JOBS = {
    "1n": [over(RUN), running(SECOND, completed=3, elapsed_s=40.0)],  # 60 s left
    "2n": [pending(TWO_NODES), pending(dataclasses.replace(TWO_NODES, repeat=2))],  # 400 s
    "1n-part2": [pending(dataclasses.replace(RUN, repeat=3))],  # 100 s
}
KNOWN = RunDurations([(RUN, 100.0), (TWO_NODES, 200.0)])


@pytest.mark.parametrize(
    ("states", "max_jobs", "queued", "expected"),
    [
        ((R, P, P), 1, False, SweepTimeLeft(seconds=560.0)),
        ((R, P, P), 2, True, SweepTimeLeft(seconds=400.0, queue_wait=True)),
        ((P, P, R), 2, True, SweepTimeLeft(seconds=460.0, queue_wait=True)),  # 100, then 60, then 400 where one ends
        ((R, P, P), None, True, SweepTimeLeft(seconds=400.0, queue_wait=True)),
        ((R, R, R), None, True, SweepTimeLeft(seconds=400.0)),
        ((R, E, E), None, True, SweepTimeLeft(seconds=60.0)),
        ((E, E, E), None, True, None),
        ((R, P, JobState.UNREACHABLE), None, True, None),
    ],
)
def test_time_left_of_a_sweep_runs_its_jobs_side_by_side(
    states: tuple[JobState, ...], max_jobs: int | None, queued: bool, expected: SweepTimeLeft | None
) -> None:
    named = dict(zip(JOBS, states, strict=True))
    assert sweep_time_left(JOBS, named, KNOWN, max_jobs, queued=queued) == expected


def test_a_sweep_with_an_unknown_run_has_no_estimate() -> None:
    unknown_two_nodes = RunDurations([(RUN, 100.0)])
    assert sweep_time_left(JOBS, dict.fromkeys(JOBS, R), unknown_two_nodes, None, queued=True) is None
