"""The runs of a sweep as rows of the display, and estimates of their remaining time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from hpc.model.outcome import BeginRecord, ExitRecord
from hpc.model.spec import RunSpec
from hpc.system.text import grouped
from launch.cluster.query import JobState

MIN_STEPS_FOR_PACE = 10
"""The least number of steps to measure a run's pace: the first steps compile and allocate."""


class Unavailable(StrEnum):
    """The system that a follower waits for."""

    SCHEDULER = "scheduler"
    TRACES = "traces"


RUNNING, PENDING, NO_RECORD, NEVER_BEGAN = "running", "pending", "no record", "never began"


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """Steps that a running attempt has completed, as of its newest readable journal or copy.

    `planned` is None for a script that runs to its end. `median_step_s` is the median duration of its recent steps;
    None where too few have been timed.
    """

    completed: int
    planned: int | None
    median_step_s: float | None = None

    @property
    def text(self) -> str:
        """`12/120`, or `12` of a number that is not known."""
        return f"{self.completed}" if self.planned is None else f"{self.completed}/{self.planned}"

    @property
    def remaining_s(self) -> float | None:
        """Time that the remaining steps take at the measured pace; None before MIN_STEPS_FOR_PACE steps."""
        if self.planned is None or self.median_step_s is None or self.completed < MIN_STEPS_FOR_PACE:
            return None
        return (self.planned - self.completed) * self.median_step_s


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run as a row of the table; `record` is of the last attempt that ended, in this sweep or an earlier one.

    `reason` is why the job of a pending run is pending. `news`: the run was not final when the following began. A run
    whose job was requeued may have a record and be running again: `state`, `attempt`, `steps` and `elapsed_s` are then
    of the running attempt. `steps` and `elapsed_s` are None if they are not known. `speed` is in the run's unit per
    second.
    """

    run: RunSpec
    state: str
    record: ExitRecord | None = None
    speed: float | None = None
    reason: str = ""
    news: bool = True
    attempt: int = 0
    steps: StepCount | None = None
    elapsed_s: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the state is an outcome."""
        return self.record is not None and self.state == self.record.outcome

    @property
    def over(self) -> bool:
        """Whether the run has an outcome, or its job has ended without one."""
        return self.ended or self.state in (NO_RECORD, NEVER_BEGAN)


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The scheduler does not answer, or the shared folder of traces is away, full or closed."""

    what: Unavailable
    since_unix_s: float
    lasts_s: float
    error: str
    began_s: float = 0.0  # by the monotonic clock

    @classmethod
    def after(cls, before: Outage | None, what: Unavailable, error: str) -> Outage:
        """The outage of now: the one before, if it is of the same, else a new one."""
        now_s = time.monotonic()
        since_unix_s, began_s = time.time(), now_s
        if before is not None and before.what is what:
            since_unix_s, began_s = before.since_unix_s, before.began_s
        return cls(what=what, since_unix_s=since_unix_s, lasts_s=now_s - began_s, error=error, began_s=began_s)


@dataclass(frozen=True, kw_only=True)
class SweepTimeLeft:
    seconds: float
    queue_wait: bool = False


class RunDurations:
    """Durations of runs that ended `ok`, to estimate others of the same point or case."""

    def __init__(self, ended: Iterable[tuple[RunSpec, float]]) -> None:
        """`ended` holds pairs of a run and its duration in seconds."""
        ended = list(ended)
        points = grouped((run.point_id, duration_s) for run, duration_s in ended)
        cases = grouped((_case(run), duration_s) for run, duration_s in ended)
        self._points = {point: median(durations) for point, durations in points.items()}
        self._cases = {case: median(durations) for case, durations in cases.items()}

    def expected_s(self, run: RunSpec) -> float | None:
        return self._points.get(run.point_id, self._cases.get(_case(run)))


def _case(run: RunSpec) -> tuple[str, str]:
    return run.case, run.workload


def attempt_elapsed_s(begin: BeginRecord | None, first_seen_unix_s: float, now_unix_s: float) -> float:
    """Time since an attempt began. Never negative.

    The record is by the clock of the job's node, the others by this machine's. If the node's clock is ahead, or its
    record could not be read, the time since this machine first saw the attempt is returned, which is a lower bound.
    """
    begin_unix_s = first_seen_unix_s if begin is None else min(begin.begin_unix_s, first_seen_unix_s)
    return max(0.0, now_unix_s - begin_unix_s)


def row_remaining_s(row: Row, durations: RunDurations) -> float | None:
    """Remaining time of a run: 0 if it is over, None without a pace and without earlier runs."""
    if row.over:
        return 0.0
    if row.state == RUNNING and row.steps is not None and row.steps.remaining_s is not None:
        return row.steps.remaining_s
    expected_s = durations.expected_s(row.run)
    if expected_s is None or row.state not in (RUNNING, PENDING):
        return None
    return max(0.0, expected_s - (row.elapsed_s or 0.0))


def sweep_time_left(
    jobs: Mapping[str, Sequence[Row]], states: Mapping[str, JobState], durations: RunDurations, max_jobs: int | None,
    *, queued: bool,
) -> SweepTimeLeft | None:  # fmt: skip
    """Estimated time until all jobs have ended; None if the remaining time of one of their runs is not known.

    The runs of a job run one after another, `max_jobs` jobs at the same time (None: all), running jobs first.
    `queued`: a pending job waits in a scheduler's queue for an unknown time.
    """
    live = [name for name in jobs if states[name] in (JobState.RUNNING, JobState.PENDING)]
    if not live or any(state is JobState.UNREACHABLE for state in states.values()):
        return None
    live.sort(key=lambda name: states[name] is not JobState.RUNNING)
    remaining_s: list[float] = []
    for name in live:
        times_s = [row_remaining_s(row, durations) for row in jobs[name]]
        known_s = [time_s for time_s in times_s if time_s is not None]
        if len(known_s) < len(times_s):
            return None
        remaining_s.append(sum(known_s))
    pending = any(states[name] is JobState.PENDING for name in live)
    return SweepTimeLeft(seconds=_makespan_s(remaining_s, max_jobs), queue_wait=queued and pending)


def _makespan_s(jobs_s: Sequence[float], max_jobs: int | None) -> float:
    """When the last job ends if each starts, in order, as soon as one of `max_jobs` places is free."""
    if max_jobs is None:
        return max(jobs_s)
    places = [0.0] * min(max_jobs, len(jobs_s))
    for job_s in jobs_s:
        heapq.heapreplace(places, places[0] + job_s)
    return max(places)
