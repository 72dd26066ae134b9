"""Follows a sweep's jobs until they have ended: a line for each attempt that begins or ends, and for each outage.

Closes attempts whose job ended without writing a record.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hpc.model.evidence import close_attempt, open_attempts
from hpc.model.files import BEGIN_RECORD, EXIT_RECORD
from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RecordError, read_own_record
from hpc.model.spec import RunSpec
from hpc.model.verdict import JobEnd
from hpc.recovery.folders import attempt_folders
from hpc.system.command_line import as_called, text_width
from hpc.system.sanitize import plain
from hpc.system.text import filled, plural
from launch.jobs.plan import WrittenJob
from launch.scheduler.protocol import HERE, JobsSeen, JobState, StateError
from launch.scheduler.table import scheduler_of

# What is shown.


class Unavailable(StrEnum):
    """The system that a follower waits for."""

    SCHEDULER = "scheduler"
    TRACES = "traces"


RUNNING, PENDING, NO_RECORD, NEVER_BEGAN = "running", "pending", "no record", "never began"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The state of a run; `record` is of the last attempt that ended, in this sweep or an earlier one.

    `news`: the run was not final when the following began. A run whose job was requeued may have a record and be
    running again: `state` and `attempt` are then of the running attempt. `speed` is in the run's unit per second.
    """

    run: RunSpec
    state: str
    record: ExitRecord | None = None
    speed: float | None = None
    news: bool = True
    attempt: int = 0


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


_OUTAGE = {
    Unavailable.SCHEDULER: ("the scheduler has not answered", "the scheduler answers again"),
    Unavailable.TRACES: ("the traces could not be read or written", "the traces can be read and written again"),
}
"""The start of the sentence about an outage, and the message after it."""


class EventLines:
    """Prints a line for each attempt that began or ended and for each outage.

    `<run id> attempt <n>: began`, `<run id> attempt <n>: <outcome>[, <speed> <unit> | : <reason>] (<i> of <m>)`. An
    attempt that began and ended between two looks has the second line alone.
    """

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._over: set[str] = set()
        self._unavailable: Unavailable | None = None

    def show(self, rows: Sequence[Row], outage: Outage | None) -> None:
        """Called after each look; with an `outage` the rows are the last known ones."""
        self._show_outage(outage)
        for row in rows:
            if row.record is not None and (name := row.record.stem) not in self._ended:
                self._ended.add(name)
                self._over.add(row.run.run_id)
                if row.news:
                    say(f"{_describe_end(row, row.record)} ({len(self._over)} of {len(rows)})")
            if row.state == RUNNING and (name := f"{row.run.run_id}.{row.attempt}") not in self._begun:
                self._begun.add(name)
                if row.news:
                    say(f"{row.run.run_id} attempt {row.attempt}: began")

    def _show_outage(self, outage: Outage | None) -> None:
        before, self._unavailable = self._unavailable, None if outage is None else outage.what
        if before is not None and before is not self._unavailable:
            say(_OUTAGE[before][1])
        if outage is not None and before is not outage.what:
            say(describe_outage(outage))


def describe_outage(outage: Outage) -> str:
    """The outage as one sentence: its start, its duration and the error."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outage.since_unix_s))
    duration = f"{outage.lasts_s:.0f} s" if outage.lasts_s < 120 else f"{outage.lasts_s / 60:.0f} min"
    error = f": {outage.error}" if outage.error else ""
    return f"{_OUTAGE[outage.what][0]} since {since} ({duration}), the state of the jobs is not known{error}"


def _describe_end(row: Row, record: ExitRecord) -> str:
    text = f"{row.run.run_id} attempt {record.attempt}: {record.outcome}"
    if row.speed is not None:
        return f"{text}, {row.speed:.2f} {row.run.unit}/s"
    return f"{text}: {record.evidence[0]}" if record.evidence and record.outcome is not Outcome.OK else text


def print_whole(text: str) -> None:
    """Prints a line unwrapped, because it is made to fit already or is to be copied."""
    print(plain(as_called(text)), flush=True)


def say(text: str) -> None:
    """Prints a line, with control characters made harmless; in a terminal as lines that fit it."""
    if sys.stdout.isatty():
        text = "\n".join(filled(plain(as_called(text)), text_width()))
        print(text, flush=True)
    else:
        print_whole(text)


# What is followed.

PATIENCE_S = 3600.0
"""Seconds for which a scheduler that does not answer is queried again."""

RECORD_PATIENCE_S = 5.0
"""The longest delay in seconds until a record is visible on another node."""


class Follower:
    """Reads the records in the traces folder, and makes rows of them and of the jobs."""

    def __init__(
        self, jobs: Mapping[str, WrittenJob], traces: Path, speed_of: Callable[[Path], float | None],
        to_do: Mapping[str, int], *, queued: bool = True,
    ) -> None:  # fmt: skip
        """`speed_of` is the throughput that a trace holds, None where it holds none. `to_do` maps the runs that are not
        final to the last attempt that had ended before. `queued`: the jobs wait in a queue with those of others, and
        stay there if this process ends."""
        self._jobs, self._traces, self._speed_of, self._to_do, self._queued = jobs, traces, speed_of, to_do, queued
        self._speeds: dict[str, float | None] = {}
        self._records: dict[str, ExitRecord] = {}

    def look(self, seen: JobsSeen) -> list[Row]:
        """All runs of the jobs now. Raises OSError where the traces cannot be read."""
        names = [entry.name for entry in os.scandir(self._traces)]
        for name in names:
            # A record is written once, atomically: it is not read again.
            if EXIT_RECORD.fullmatch(name) and name not in self._records:
                with suppress(RecordError):  # the process that closes the attempt writes a new one
                    self._records[name] = read_own_record(self._traces / name)
        latest: dict[str, ExitRecord] = {}
        for record in sorted(self._records.values(), key=lambda record: record.attempt):
            latest[record.run_id] = record
        begun = last_attempts(names)
        return [
            self._row(run, seen.states[script], latest.get(run.run_id), begun.get(run.run_id, 0))
            for script, job in self._jobs.items()
            for run in job.plan.runs
        ]

    def _row(self, run: RunSpec, job: JobState, record: ExitRecord | None, begun: int) -> Row:
        before = self._to_do.get(run.run_id, 0)
        if record is not None and record.attempt > (before if run.run_id in self._to_do else 0):
            name = record.stem
            if record.outcome is Outcome.OK and name not in self._speeds:
                self._speeds[name] = self._speed_of(record.files(self._traces).trace)
            lives = job in (JobState.PENDING, JobState.RUNNING)
            news, speed = run.run_id in self._to_do, self._speeds.get(name)
            if lives and begun > record.attempt:
                return Row(run=run, state=RUNNING, record=record, speed=speed, news=news, attempt=begun)
            return Row(run=run, state=record.outcome, record=record, speed=speed, news=news, attempt=record.attempt)
        if job is JobState.UNREACHABLE:
            return Row(run=run, state=job)
        if job in (JobState.PENDING, JobState.RUNNING):
            if begun > before:
                return Row(run=run, state=RUNNING, attempt=begun)
            return Row(run=run, state=PENDING)
        return Row(run=run, state=NO_RECORD if begun > before else NEVER_BEGAN)

    def describe(self) -> str:
        """The number of runs and jobs, and what an interrupt does to them, as text."""
        runs = [run.run_id for job in self._jobs.values() for run in job.plan.runs]
        to_do, jobs = len(self._to_do.keys() & set(runs)), len(self._jobs)
        on_interrupt = "leaves them to the scheduler" if self._queued else "ends them"
        return (
            f"following {plural(len(runs), 'run')} in {plural(jobs, 'job')} ({to_do} to do); "
            f"an interrupt (Ctrl-C) {on_interrupt}"
        )


def last_attempts(names: Sequence[str]) -> dict[str, int]:
    """The highest attempt that has begun, by run, from these file names."""
    begun: dict[str, int] = {}
    for name in names:
        if match := BEGIN_RECORD.fullmatch(name):
            begun[match["run_id"]] = max(begun.get(match["run_id"], 0), int(match["attempt"]))
    return begun


@dataclass(frozen=True, kw_only=True)
class LoopClock:
    """The time of `follow`, in monotonic seconds, and how it passes."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Pace:
    """When the scheduler is queried: every `quick_s` after a change, ever more rarely up to `slow_s` without one."""

    def __init__(self, quick_s: float, slow_s: float) -> None:
        self._quick_s, self._slow_s = quick_s, max(quick_s, slow_s)
        self._interval_s, self._due_s = quick_s, 0.0
        self._last: object = None

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def looked(self, now_s: float, seen: object, *, queried: bool) -> None:
        """Notes what was seen, after a query or between two."""
        changed, self._last = seen != self._last, seen
        if changed:
            self._interval_s = self._quick_s
            self._due_s = now_s + self._quick_s if queried else min(self._due_s, now_s)
        elif queried:
            self._interval_s = min(self._interval_s * 1.5, self._slow_s)
            self._due_s = now_s + self._interval_s


def follow(
    poll: Callable[[], JobsSeen], follower: Follower, poll_s: float, slow_s: float = 0.0,
    patience_s: float = PATIENCE_S, clock: LoopClock = LoopClock(),
) -> list[Row]:  # fmt: skip
    """The loop of events: has the queue polled and its events handled (`poll`), reads the records, shows the runs,
    until every job has ended; returns the last rows.

    The records are read every `poll_s` seconds; the queue is polled as often after a change, and else less and less
    often, up to every `slow_s` seconds.

    While the scheduler does not answer, or what `poll` and the follower do in the sweep's folder raises OSError, no job
    counts as ended, and the last rows are shown. Raises StateError after `patience_s` of that.
    """
    rows: list[Row] = []
    outage: Outage | None = None
    ended = False
    pace, seen = Pace(poll_s, slow_s), None
    say(follower.describe())
    lines = EventLines()
    while True:
        before, ended = ended, False
        try:
            if queried := seen is None or before or pace.is_due(clock.now_s()):
                seen = None  # polled again if that raises
                seen = poll()
            rows = follower.look(seen)
        except OSError as error:
            outage = Outage.after(outage, Unavailable.TRACES, str(error))
        else:
            states = set(seen.states.values())
            silent = JobState.UNREACHABLE in states
            outage = Outage.after(outage, Unavailable.SCHEDULER, seen.error) if silent else None
            ended = states <= {JobState.ENDED}
            news = dict(seen.states), dict(seen.reasons), seen.error, [(row.state, row.attempt) for row in rows]
            pace.looked(clock.now_s(), news, queried=queried)
        lines.show(rows, outage)
        if outage is not None and outage.lasts_s >= patience_s:
            raise StateError(describe_outage(outage))
        if before and ended:  # looked at twice: a record may reach a shared file system after its job has ended
            return rows
        clock.sleep(poll_s)


def write_missing_records(
    traces: Path, ends: Mapping[str, JobEnd], logs: Path, recover: Callable[[str], None] = lambda stem: None,
    patience_s: float = RECORD_PATIENCE_S,
) -> list[ExitRecord]:  # fmt: skip
    """Writes the missing exit records of attempts whose jobs have ended.

    `ends` holds the ends of jobs that have certainly ended; attempts of other jobs are left alone. A record written on
    another machine may become visible late: this waits up to `patience_s` for it. `recover` is called with the stem of
    each attempt before its outcome is decided, and makes a trace of its copies.
    """
    missing = _open_attempts_of(traces, ends)
    elsewhere = any(ends[begin.job_id].source != HERE for begin in missing)
    until_s = time.monotonic() + (patience_s if elsewhere else 0)
    while missing and time.monotonic() < until_s:
        time.sleep(min(0.5, patience_s))
        missing = _open_attempts_of(traces, ends)
    for begin in missing:
        recover(begin.stem)
    return [_close(traces, begin, ends[begin.job_id], logs) for begin in missing]


def _open_attempts_of(traces: Path, ends: Mapping[str, JobEnd]) -> list[BeginRecord]:
    """The open attempts of these jobs, matched by job id and, if both are known, by job name.

    A controller that lost its state reuses job ids: an attempt begun in a job of another name belongs to another job.
    """
    return [
        begin
        for job_id, end in ends.items()
        for begin in open_attempts(traces, job_id)
        if not begin.job_name or not end.name or begin.job_name == end.name
    ]


def _close(traces: Path, begin: BeginRecord, end: JobEnd, logs: Path) -> ExitRecord:
    job = end if begin.restart_count >= end.restarts else _former_start(begin, end)
    return close_attempt(begin, logs, traces, job, attempt_folders(traces, begin.stem))


def _former_start(begin: BeginRecord, end: JobEnd) -> JobEnd:
    """The end of the earlier start that the attempt began in: from the accounts, else only that it was requeued."""
    starts = scheduler_of(begin.job_id).starts(begin)
    known = [start for start in starts if start.restarts == begin.restart_count and start.requeued]
    restarts = f"restart {begin.restart_count} of {end.restarts}" if begin.restart_count else "its first start"
    unknown = JobEnd(state="", source=end.source, reason=restarts, restarts=end.restarts, requeued=True)
    return known[0] if known else unknown
