"""Follows a sweep's jobs until they have ended, and closes attempts whose job ended without writing a record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console

from hpc.model.evidence import close_attempt, open_attempts
from hpc.model.outcome import (
    BEGIN,
    BEGIN_RECORD,
    EXIT_RECORD,
    BeginRecord,
    ExitRecord,
    Outcome,
    RecordError,
    read_begin_record,
    read_own_record,
    stem,
)
from hpc.model.spec import RunSpec
from hpc.model.verdict import JobEnd
from launch.cluster.query import HERE, JobState, StateError, lives
from launch.follow.rows import (
    NEVER_BEGAN,
    NO_RECORD,
    PENDING,
    RUNNING,
    Row,
    RunDurations,
    Silence,
    SweepTimeLeft,
    attempt_elapsed_s,
    sweep_time_left,
)
from launch.follow.steps import StepReader
from launch.follow.view import FOLDER, SCHEDULER, open_view
from launch.jobs.plan import WrittenJob

SPEED = Callable[[Path], float | None]
"""The throughput in samples/s that a trace holds, None where it holds none."""

PATIENCE_S = 3600.0
"""How long a scheduler that does not answer is asked again."""

RECORD_PATIENCE_S = 5.0
"""How long a record may take from the node that wrote it to who looks for it."""


class Cluster(Protocol):
    """Where jobs run: Slurm, or this machine. It may be asked again after `poll_s` seconds.

    `said` is what its commands said where they did not answer last, empty where they did; `reasons` has why jobs are
    pending, in the scheduler's word. At most `max_jobs` jobs of the sweep are there at the same time, None for any
    number; `queued` says that jobs of others may make ours wait.
    """

    poll_s: float

    @property
    def max_jobs(self) -> int | None:
        """How many jobs of the sweep there may be at the same time; None for any number."""

    @property
    def queued(self) -> bool:
        """Whether jobs wait in a scheduler's queue, where they stay if this process ends."""

    @property
    def said(self) -> str:
        """In their own words."""

    @property
    def reasons(self) -> Mapping[str, str]:
        """By job, as of the last look."""

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state now."""


class Follower:
    """Reads what the jobs write into the traces folder; asks the cluster only how the jobs are."""

    def __init__(
        self, cluster: Cluster, jobs: Mapping[str, WrittenJob], traces: Path, speed_of: SPEED,
        to_do: Mapping[str, int], now_unix_s: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`to_do` names the runs that are not settled, with the last attempt that had ended before."""
        self._cluster, self._jobs, self._traces, self._speed_of = cluster, jobs, traces, speed_of
        self._to_do = to_do
        self._speeds: dict[str, float | None] = {}
        self._records: dict[str, ExitRecord] = {}
        self.job_states: dict[str, JobState] = dict.fromkeys(jobs, JobState.PENDING)
        self.silence: Silence | None = None
        self._silent_from_s = 0.0
        self._rows: list[Row] = []
        self._steps = StepReader(traces)
        self._now_unix_s = now_unix_s
        self._begins: dict[str, BeginRecord] = {}
        self._first_seen_unix_s: dict[str, float] = {}
        self.time_left: SweepTimeLeft | None = None

    def rows(self) -> list[Row]:
        """All runs of the jobs as they are now; as they were last while the traces cannot be read or written."""
        self.time_left = None
        try:
            self._rows = self._look()
        except OSError as error:
            self._be_silent(FOLDER, str(error))
        else:
            if JobState.UNREACHABLE in self.job_states.values():
                self._be_silent(SCHEDULER, self._cluster.said)
            else:
                self.silence = None
        return self._rows

    def _look(self) -> list[Row]:
        self.job_states = self._cluster.states(list(self._jobs))
        names = [entry.name for entry in os.scandir(self._traces)]
        for name in names:
            # A record is written once and whole: what was read is not read again, however many runs there are.
            if EXIT_RECORD.fullmatch(name) and name not in self._records:
                with suppress(RecordError):  # who closes the attempt judges it anew
                    self._records[name] = read_own_record(self._traces / name)
        latest: dict[str, ExitRecord] = {}
        for record in sorted(self._records.values(), key=lambda record: record.attempt):
            latest[record.run_id] = record
        begun = last_attempts(names)
        rows = {
            job_id: [self._row(run, job_id, latest.get(run.run_id), begun.get(run.run_id, 0)) for run in job.plan.runs]
            for job_id, job in self._jobs.items()
        }
        self.time_left = sweep_time_left(
            rows, self.job_states, self._durations(), self._cluster.max_jobs, queued=self._cluster.queued
        )
        return [row for its in rows.values() for row in its]

    def _durations(self) -> RunDurations:
        """Of all attempts of these runs that ended `ok`, those of earlier sweeps too."""
        runs = {run.run_id: run for job in self._jobs.values() for run in job.plan.runs}
        return RunDurations(
            (runs[record.run_id], record.end_unix_s - record.begin_unix_s)
            for record in self._records.values()
            if record.outcome is Outcome.OK and record.run_id in runs
        )

    def _row(self, run: RunSpec, job_id: str, record: ExitRecord | None, begun: int) -> Row:
        job = self.job_states[job_id]
        before = self._to_do.get(run.run_id, 0)
        if record is not None and record.attempt > (before if run.run_id in self._to_do else 0):
            name = stem(run.run_id, record.attempt)
            self._steps.forget(name)
            if record.outcome is Outcome.OK and name not in self._speeds:
                self._speeds[name] = self._speed_of(self._traces / f"{name}.h5")
            lives = job in (JobState.PENDING, JobState.RUNNING)
            news, speed = run.run_id in self._to_do, self._speeds.get(name)
            if lives and begun > record.attempt:
                return self._running(run, begun, record, speed, news=news)
            duration_s = float(record.end_unix_s - record.begin_unix_s)
            return Row(
                run=run, state=record.outcome, record=record, samples_per_s=speed, news=news, attempt=record.attempt,
                elapsed_s=duration_s if duration_s >= 0 else None,
            )  # fmt: skip
        if job is JobState.UNREACHABLE:
            return Row(run=run, state=job)
        if job in (JobState.PENDING, JobState.RUNNING):
            if begun > before:
                return self._running(run, begun)
            return Row(run=run, state=PENDING, reason=self._cluster.reasons.get(job_id, ""))
        return Row(run=run, state=NO_RECORD if begun > before else NEVER_BEGAN)

    def _running(
        self, run: RunSpec, attempt: int, record: ExitRecord | None = None, speed: float | None = None, *,
        news: bool = True,
    ) -> Row:  # fmt: skip
        """The row of a run whose attempt runs; `record` and `speed` are of the attempt before it."""
        name = stem(run.run_id, attempt)
        if name not in self._begins:
            with suppress(RecordError):  # it may be half written: the next look reads it again
                self._begins[name] = read_begin_record(self._traces / f"{name}{BEGIN}")
        begin = self._begins.get(name)
        now_unix_s = self._now_unix_s()
        elapsed_s = attempt_elapsed_s(
            None if begin is None else begin.begin_unix_s,
            self._first_seen_unix_s.setdefault(name, now_unix_s),
            now_unix_s,
        )
        return Row(
            run=run, state=RUNNING, record=record, samples_per_s=speed, news=news, attempt=attempt,
            steps=self._steps.read(name), elapsed_s=elapsed_s,
        )  # fmt: skip

    @property
    def poll_s(self) -> float:
        """How long to wait before the next look."""
        return self._cluster.poll_s

    def describe(self) -> str:
        """What is followed, and what an interrupt does to it."""
        runs = [run.run_id for job in self._jobs.values() for run in job.plan.runs]
        to_do, jobs = len(self._to_do.keys() & set(runs)), len(self._jobs)
        on_interrupt = "leaves them to the scheduler" if self._cluster.queued else "ends them"
        return (
            f"following {len(runs)} run{'s' * (len(runs) != 1)} in {jobs} job{'s' * (jobs != 1)} ({to_do} to do); "
            f"an interrupt (Ctrl-C) {on_interrupt}"
        )

    def all_ended(self) -> bool:
        """Whether no job is pending or running any more; of one that nobody can be asked about it is not known."""
        return {JobState.ENDED, JobState.UNKNOWN}.issuperset(self.job_states.values())

    def _be_silent(self, what: str, said: str) -> None:
        before, now_s = self.silence, time.monotonic()
        if before is None or before.what != what:
            before, self._silent_from_s = None, now_s
        self.silence = Silence(
            what=what, since_unix_s=before.since_unix_s if before else time.time(),
            lasts_s=now_s - self._silent_from_s, said=said,
        )  # fmt: skip


def last_attempts(names: Sequence[str]) -> dict[str, int]:
    """The highest attempt that has begun, for every run that has one among these names of files."""
    begun: dict[str, int] = {}
    for name in names:
        if found := BEGIN_RECORD.fullmatch(name):
            begun[found["run_id"]] = max(begun.get(found["run_id"], 0), int(found["attempt"]))
    return begun


def follow(follower: Follower, console: Console, patience_s: float = PATIENCE_S) -> list[Row]:
    """Shows the runs until every job has ended; the rows as they were at the end.

    A job that the scheduler answers not to know any more counts as ended once it has been unknown three times running;
    while it does not answer, or the traces cannot be read or written, nothing has ended. Raises StateError after
    `patience_s` of that.
    """
    unknown = 0
    with open_view(console, follower.describe()) as view:
        while True:
            rows = follower.rows()
            view.show(rows, follower.silence, follower.time_left)
            if follower.silence is not None and follower.silence.lasts_s >= patience_s:
                raise StateError(follower.silence.in_words())
            unknown = unknown + 1 if JobState.UNKNOWN in follower.job_states.values() else 0
            if follower.silence is None and follower.all_ended() and (unknown == 0 or unknown > 2):
                # A record may reach a shared file system a little after its job has left the queue.
                time.sleep(follower.poll_s)
                rows = follower.rows()
                view.show(rows, follower.silence, follower.time_left)
                return rows
            time.sleep(follower.poll_s)


def write_missing_records(
    traces: Path, ends: Mapping[str, JobEnd], logs: Path, recover: Callable[[str], None] = lambda stem: None,
    patience_s: float = RECORD_PATIENCE_S,
) -> list[ExitRecord]:  # fmt: skip
    """Writes the exit record of attempts that began in jobs which ended without writing one.

    `ends` holds how each job ended that has ended for certain; other jobs' attempts are left alone. A record that the
    job wrote last may come late from another machine: it is waited for that long. `recover` is told the stem of each
    attempt before its end is judged, and makes a trace of what was copied of it.
    """
    missing = _open_attempts_of(traces, ends)
    elsewhere = any(ends[begin.job_id].source != HERE for begin in missing)
    until_s = time.monotonic() + (patience_s if elsewhere else 0)
    while missing and time.monotonic() < until_s:
        time.sleep(min(0.5, patience_s))
        missing = _open_attempts_of(traces, ends)
    for begin in missing:
        recover(stem(begin.run_id, begin.attempt))
    return [_close(traces, begin, ends[begin.job_id], logs) for begin in missing]


def _open_attempts_of(traces: Path, ends: Mapping[str, JobEnd]) -> list[BeginRecord]:
    """The open attempts of these jobs; where either name is not known the number alone counts.

    A controller that lost its state gives numbers again: an attempt begun in a job of another name is not these jobs'.
    """
    return [
        begin
        for job_id, end in ends.items()
        for begin in open_attempts(traces, job_id)
        if not begin.job_name or not end.name or begin.job_name == end.name
    ]


def _close(traces: Path, begin: BeginRecord, end: JobEnd, logs: Path) -> ExitRecord:
    """The record of one attempt, of the job's last life or of one after which it was put back into the queue."""
    job = end if begin.restart_count >= end.restarts else _former_life(begin, end)
    return close_attempt(begin, logs, traces, job)


def _former_life(begin: BeginRecord, end: JobEnd) -> JobEnd:
    """How the life ended that the attempt began in: by the accounts where they know it, else no more than that."""
    all_lives = lives(begin.job_id, begin.job_name)
    known = [life for life in all_lives if life.restarts == begin.restart_count and life.requeued]
    restarts = f"restart {begin.restart_count} of {end.restarts}" if begin.restart_count else "its first life"
    unknown = JobEnd(word="", source=end.source, reason=restarts, restarts=end.restarts, requeued=True)
    return known[0] if known else unknown
