"""Time limits against what earlier attempts took."""

from __future__ import annotations

import dataclasses

import pytest

from hpc.model.outcome import ExitRecord, Outcome
from launch.jobs.plan import plan_jobs
from launch.jobs.site import Site
from launch.sweep.prepare import (
    Estimate,
    TimeBudget,
    TimeLimitTooShort,
    check_budget,
    durations_s,
    estimate,
    minutes_to_request,
)
from launch.sweep.text import _describe_estimate
from tests.unit.traces import make_run

RUN = make_run()
RUNS = [dataclasses.replace(RUN, repeat=repeat) for repeat in (1, 2, 3)]
OTHER = dataclasses.replace(RUN, batch_size=RUN.batch_size * 2)
BUDGET = TimeBudget(job="1n.sh", limit_s=300, margin_s=60)


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
    assert durations_s(RUNS, records, Outcome.OK) == {RUN.point_id: [100.0, 110.0]}


def test_a_clock_that_was_set_in_an_attempt_requests_no_time() -> None:
    """25 s by the monotonic clock, an hour more by the wall clock; one whose clock went back tells nothing."""
    forward = dataclasses.replace(record(RUN.run_id, 1, 3625), duration_ms=25_200)
    backward = record(RUN.run_id, 2, -3575)
    assert durations_s(RUNS, {RUN.run_id: [forward, backward]}, Outcome.OK) == {RUN.point_id: [25.2]}


def test_node_hours_of_a_sweep_are_by_earlier_runs_or_by_limits() -> None:
    large = dataclasses.replace(RUN, nodes=4)
    jobs = plan_jobs([*RUNS, large, OTHER], Site(name="here"), minutes_per_run=30, time_min=None)
    pending = {RUNS[1].run_id, RUNS[2].run_id, large.run_id}
    its = estimate(jobs, pending, {RUN.point_id: [1800.0, 3600.0, 9000.0]})
    assert its == Estimate(known=2, known_hours=2.0, others=1, other_hours=2.0)
    assert [*_describe_estimate(its)] == [
        "2 runs to do take about 2.0 node-hours, by what earlier runs of its points took; 1 other run 2.0 "
        "node-hours at most, by their time limits"
    ]
    assert [*_describe_estimate(dataclasses.replace(its, others=0))] == [
        "this sweep takes about 2.0 node-hours, by what earlier runs of its points took"
    ]
    short = dataclasses.replace(its, known=1, known_hours=0.0123, others=0)
    (line,) = _describe_estimate(short)
    assert line.startswith("this sweep takes about 0.012 node-hours, by")
    assert [*_describe_estimate(estimate(jobs, pending, {}))] == []  # the limits are said already


@pytest.mark.parametrize(
    ("took", "messages"),
    [
        ({}, []),
        ({OTHER.point_id: [1000.0]}, []),
        ({RUN.point_id: [70.0, 80.0]}, []),
        ({RUN.point_id: [70.0, 81.0]}, ["its 3 runs took up to 243 s together before"]),
        ({RUN.point_id: [70.0, 241.0]}, ["_r1 may not end in that, attempts of its point took 70 to 241 s"]),
    ],
)
def test_a_limit_that_may_be_too_short_is_a_warning(took: dict[str, list[float]], messages: list[str]) -> None:
    warnings = check_budget(BUDGET, RUNS, took, {})
    assert len(warnings) == len(messages)
    for line, message in zip(warnings, messages, strict=True):
        assert line.startswith("1n.sh has 5 min, less 60 s before its end: ") and message in line
        assert "--minutes-per-run or --time" in line


def test_a_first_run_that_cannot_end_in_time_is_an_error_a_later_one_a_warning() -> None:
    took = {RUN.point_id: [241.0, 250.0]}
    with pytest.raises(
        TimeLimitTooShort, match=r"its first run, \S+_r1, cannot end in that; .* 241 to 250 s: raise --minutes"
    ):
        check_budget(BUDGET, RUNS, took, {})
    [line] = check_budget(BUDGET, [OTHER, *RUNS], took, {})
    assert "may not end in that" in line


def test_an_attempt_that_was_cut_off_needs_more_time() -> None:
    first, second = RUNS[0].run_id, RUNS[1].run_id
    records = {
        first: [record(first, 1, 200, Outcome.TIMEOUT), record(first, 2, 30, Outcome.TIMEOUT)],
        second: [record(second, 1, 500, Outcome.RANK_FAIL)],
    }
    cut_off = durations_s(RUNS, records, Outcome.TIMEOUT)
    assert cut_off == {RUN.point_id: [200.0, 30.0]}
    [line] = check_budget(BUDGET, RUNS, {}, cut_off)
    assert line == (
        f"1n.sh has 5 min, less 60 s before its end: {first} may not end in that, an attempt of its point was cut off "
        "after 200 s, and none has ended yet: raise --minutes-per-run or --time"
    )
    assert check_budget(TimeBudget(job="1n.sh", limit_s=600, margin_s=60), RUNS, {}, cut_off) == []
    assert check_budget(BUDGET, RUNS, {RUN.point_id: [70.0]}, cut_off) == []
    [line] = check_budget(BUDGET, [OTHER, *RUNS], {OTHER.point_id: [70.0]}, cut_off)
    assert f"{first} may not end in that" in line


@pytest.mark.parametrize(
    ("remaining", "took", "cut_off", "minutes"),
    [
        (3, [], [], 30),
        (1, [], [], 10),  # what the plan allows one run, not three
        (3, [90.0, 70.0], [], 15),  # three times 2 x 90 s and two minutes
        (1, [5.0], [], 5),
        (3, [1000.0], [], 30),  # never more than the script
        (3, [90.0], [590.0], 30),  # a time limit ended one of these
    ],
)
def test_the_time_requested_follows_what_runs_took(
    remaining: int, took: list[float], cut_off: list[float], minutes: int
) -> None:
    [job] = plan_jobs(RUNS, Site(name="s"), minutes_per_run=10, time_min=None)
    known = [{RUN.point_id: seconds} if seconds else {} for seconds in (took, cut_off)]
    assert minutes_to_request(job, RUNS[:remaining], *known) == minutes
    [requested] = plan_jobs(RUNS, Site(name="s"), minutes_per_run=10, time_min=45)
    assert minutes_to_request(requested, RUNS[:remaining], *known) == 45
