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
from pathlib import Path

from hpc.model.evidence import close_attempt, open_attempts
from hpc.model.files import BEGIN_RECORD, EXIT_RECORD
from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RecordError, read_own_record
from hpc.model.spec import RunSpec
from hpc.model.verdict import JobEnd
from hpc.recovery.folders import attempt_folders
from hpc.system.command_line import text_width
from hpc.system.sanitize import plain
from hpc.system.text import filled, plural
from launch.jobs.plan import WrittenJob
from launch.scheduler.protocol import HERE, JobState, StateError
from launch.scheduler.table import scheduler_of

SCHEDULER = ("the scheduler has not answered", "the scheduler answers again")
TRACES = ("the traces could not be read or written", "the traces can be read and written again")
"""What a follower waits for: the start of the sentence about its outage, and the line after that."""


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The scheduler does not answer, or the shared folder of traces is away, full or closed; since when, in seconds of
    the loop's clock."""

    what: tuple[str, str]
    begin_s: float
    error: str

    def describe(self, now_s: float) -> str:
        """One sentence: its start, its duration and the error."""
        lasts_s = now_s - self.begin_s
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - lasts_s))
        duration = f"{lasts_s:.0f} s" if lasts_s < 120 else f"{lasts_s / 60:.0f} min"
        error = f": {self.error}" if self.error else ""
        return f"{self.what[0]} since {since} ({duration}), the state of the jobs is not known{error}"


def print_whole(text: str) -> None:
    """Prints a line unwrapped, because it is made to fit already or is to be copied."""
    print(plain(text), flush=True)


def say(text: str) -> None:
    """Prints a line, with control characters made harmless; in a terminal as lines that fit it."""
    if sys.stdout.isatty():
        text = "\n".join(filled(plain(text), text_width()))
        print(text, flush=True)
    else:
        print_whole(text)


PATIENCE_S = 3600.0
"""Seconds for which a scheduler that does not answer is queried again."""

RECORD_PATIENCE_S = 5.0
"""The longest delay in seconds until a record is visible on another node."""


class Follower:
    """Reads the records in the traces folder, for a line about each attempt that began or ended:

    `<run id> attempt <n>: began`, `<run id> attempt <n>: <outcome>[, <speed> <unit> | : <reason>] (<i> of <m>)`. An
    attempt that began and ended between two looks has the second line alone.
    """

    def __init__(
        self, jobs: Mapping[str, WrittenJob], traces: Path, speed_of: Callable[[Path], float | None],
        to_do: Mapping[str, int], *, queued: bool = True,
    ) -> None:  # fmt: skip
        """`speed_of` is the throughput that a trace holds, None where it holds none. `to_do` maps the runs that are not
        final to the last attempt that had ended before. `queued`: the jobs wait in a queue with those of others, and
        stay there if this process ends."""
        self._jobs, self._traces, self._speed_of, self._to_do, self._queued = jobs, traces, speed_of, to_do, queued
        self._runs = {run.run_id: (run, script) for script, job in jobs.items() for run in job.plan.runs}
        self._read: set[str] = set()  # records, by the names of their files
        self._records: dict[str, ExitRecord] = {}  # by run, that of its last attempt that ended
        self._over: set[str] = set()  # runs with a record
        self.shown: set[str] = set()
        """The attempts that ended, and the lines about those that began."""

    def look(self, states: Mapping[str, JobState]) -> list[str]:
        """What is new, as lines, where the jobs are in these states. Raises OSError where the traces cannot be read."""
        names = [entry.name for entry in os.scandir(self._traces)]
        for name in names:
            # A record is written once, atomically: it is not read again.
            if EXIT_RECORD.fullmatch(name) and name not in self._read:
                with suppress(RecordError):  # the process that closes the attempt writes a new one
                    self._note(read_own_record(self._traces / name))
                    self._read.add(name)
        begun, lines = last_attempts(names), list[str]()
        for run_id, (run, script) in self._runs.items():
            ended, record = self._to_do.get(run_id, 0), self._records.get(run_id)
            if record is not None and record.attempt > ended:
                ended = record.attempt
                self._over.add(run_id)
                if run_id in self._to_do and record.stem not in self.shown:
                    self.shown.add(record.stem)
                    lines.append(f"{self._describe_end(run, record)} ({len(self._over)} of {len(self._runs)})")
            line = f"{run_id} attempt {begun.get(run_id, 0)}: began"
            lives = states[script] in (JobState.PENDING, JobState.RUNNING)
            if lives and begun.get(run_id, 0) > ended and run_id in self._to_do and line not in self.shown:
                self.shown.add(line)
                lines.append(line)
        return lines

    def _note(self, record: ExitRecord) -> None:
        last = self._records.get(record.run_id)
        if last is None or record.attempt > last.attempt:
            self._records[record.run_id] = record

    def _describe_end(self, run: RunSpec, record: ExitRecord) -> str:
        text = f"{run.run_id} attempt {record.attempt}: {record.outcome}"
        if record.outcome is not Outcome.OK:
            return f"{text}: {record.evidence[0]}" if record.evidence else text
        speed = self._speed_of(record.files(self._traces).trace)
        return text if speed is None else f"{text}, {speed:.2f} {run.unit}/s"

    def describe(self) -> str:
        """The number of runs and jobs, and what an interrupt does to them, as text."""
        to_do = len(self._to_do.keys() & self._runs.keys())
        on_interrupt = "leaves them to the scheduler" if self._queued else "ends them"
        return (
            f"following {plural(len(self._runs), 'run')} in {plural(len(self._jobs), 'job')} ({to_do} to do); "
            f"an interrupt (Ctrl-C) {on_interrupt}"
        )


def last_attempts(names: Sequence[str]) -> dict[str, int]:
    """The highest attempt that has begun, by run, from these file names."""
    begun: dict[str, int] = {}
    for name in names:
        if match := BEGIN_RECORD.fullmatch(name):
            begun[match["run_id"]] = max(begun.get(match["run_id"], 0), int(match["attempt"]))
    return begun


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
    poll: Callable[[], tuple[Mapping[str, JobState], str]], follower: Follower, poll_s: float, slow_s: float = 0.0,
    patience_s: float = PATIENCE_S, now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """The loop of events: has the queue polled and its events handled (`poll`), reads the records, shows what is new,
    until every job has ended. `poll` returns the jobs' states by script, and the error of a scheduler that does not
    answer.

    The records are read every `poll_s` seconds; the queue is polled as often after a change, and else less and less
    often, up to every `slow_s` seconds.

    While the scheduler does not answer, or what `poll` and the follower do in the sweep's folder raises OSError, no job
    counts as ended. Raises StateError after `patience_s` of that.
    """
    outage: Outage | None = None
    ended = False
    pace, seen = Pace(poll_s, slow_s), None
    say(follower.describe())
    while True:
        before, ended, last, news = ended, False, outage, list[str]()
        away: tuple[tuple[str, str], str] | None = None
        try:
            if queried := seen is None or before or pace.is_due(now_s()):
                seen = None  # polled again if that raises
                seen = poll()
            job_states, problem = seen
            news = follower.look(job_states)
        except OSError as error:
            away = TRACES, str(error)
        else:
            states = set(job_states.values())
            away = (SCHEDULER, problem) if JobState.UNREACHABLE in states else None
            ended = states <= {JobState.ENDED}
            pace.looked(now_s(), (dict(job_states), problem, len(follower.shown)), queried=queried)
        outage = None
        if away is not None:
            begin_s = last.begin_s if last is not None and last.what is away[0] else now_s()
            outage = Outage(what=away[0], begin_s=begin_s, error=away[1])
        if last is not None and (outage is None or outage.what is not last.what):
            say(last.what[1])
        if outage is not None and (last is None or outage.what is not last.what):
            say(outage.describe(now_s()))
        for line in news:
            say(line)
        if outage is not None and now_s() - outage.begin_s >= patience_s:
            raise StateError(outage.describe(now_s()))
        if before and ended:  # looked at twice: a record may reach a shared file system after its job has ended
            return
        sleep(poll_s)


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
    return [
        close_attempt(begin, logs, traces, _end_of(begin, ends[begin.job_id]), attempt_folders(traces, begin.stem))
        for begin in missing
    ]


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


def _end_of(begin: BeginRecord, end: JobEnd) -> JobEnd:
    """The end of the start that the attempt began in; of an earlier one from the accounts, else only that it was
    requeued."""
    if begin.restart_count >= end.restarts:
        return end
    starts = scheduler_of(begin.job_id).starts(begin)
    known = [start for start in starts if start.restarts == begin.restart_count and start.requeued]
    restarts = f"restart {begin.restart_count} of {end.restarts}" if begin.restart_count else "its first start"
    unknown = JobEnd(state="", source=end.source, reason=restarts, restarts=end.restarts, requeued=True)
    return known[0] if known else unknown
