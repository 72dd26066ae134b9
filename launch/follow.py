"""Follows a sweep's jobs until they have ended: a live table on a terminal, a line per event in a pipe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpc.evidence import close_attempt, open_attempts
from hpc.outcome import BEGIN_RECORD, EXIT_RECORD, BeginRecord, ExitRecord, Outcome, RecordError, read_own_record, stem
from hpc.outside import plain
from hpc.spec import RunSpec
from hpc.verdict import JobEnd
from launch.plan import WrittenJob
from launch.state import HERE, JobState, StateError, lives

SPEED = Callable[[Path], float | None]
"""The throughput in samples/s that a trace holds, None where it holds none."""

PATIENCE_S = 3600.0
"""How long a scheduler that does not answer is asked again."""

RECORD_PATIENCE_S = 5.0
"""How long a record may take from the node that wrote it to who looks for it."""


SCHEDULER, FOLDER = "the scheduler has not answered", "the traces could not be read or written"
_AGAIN = {SCHEDULER: "the scheduler answers again", FOLDER: "the traces can be read and written again"}


class Cluster(Protocol):
    """Where jobs run: Slurm, or this machine. It may be asked again after `poll_s` seconds.

    `said` is what its commands said where they did not answer last, empty where they did; `reasons` has why jobs are
    pending, in the scheduler's word.
    """

    poll_s: float

    @property
    def said(self) -> str:
        """In their own words."""

    @property
    def reasons(self) -> Mapping[str, str]:
        """By job, as of the last look."""

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state now."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run as the table shows it; `record` is of the last attempt that ended, which this sweep started or found.

    `reason` is why the job of a pending run is pending. `news` says that the run was not settled when the following
    began. A run whose job was put back may have a record and run once more: its state is that of the attempt that runs.
    """

    run: RunSpec
    state: str
    record: ExitRecord | None = None
    samples_per_s: float | None = None
    reason: str = ""
    news: bool = True

    @property
    def ended(self) -> bool:
        """Whether the state is an outcome."""
        return self.record is not None and self.state == self.record.outcome


@dataclass(frozen=True, kw_only=True)
class Silence:
    """A scheduler that does not answer, or a shared folder that is away, full or closed: since when, by the clock and
    how long, and what was said."""

    what: str
    since_unix_s: float
    lasts_s: float
    said: str

    def in_words(self) -> str:
        """One sentence."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_unix_s))
        how_long = f"{self.lasts_s:.0f} s" if self.lasts_s < 120 else f"{self.lasts_s / 60:.0f} min"
        said = f": {self.said}" if self.said else ""
        return f"{self.what} since {since} ({how_long}), how the jobs are is not known{said}"


class Follower:
    """Reads what the jobs write into the traces folder; asks the cluster only how the jobs are."""

    def __init__(
        self, cluster: Cluster, jobs: Mapping[str, WrittenJob], traces: Path, speed_of: SPEED,
        to_do: Mapping[str, int],
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

    def rows(self) -> list[Row]:
        """All runs of the jobs as they are now; as they were last while the traces cannot be read or written."""
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
        return [
            self._row(run, job_id, latest.get(run.run_id), begun.get(run.run_id, 0))
            for job_id, job in self._jobs.items()
            for run in job.plan.runs
        ]

    def _row(self, run: RunSpec, job_id: str, record: ExitRecord | None, begun: int) -> Row:
        job = self.job_states[job_id]
        before = self._to_do.get(run.run_id, 0)
        if record is not None and record.attempt > (before if run.run_id in self._to_do else 0):
            name = stem(run.run_id, record.attempt)
            if record.outcome is Outcome.OK and name not in self._speeds:
                self._speeds[name] = self._speed_of(self._traces / f"{name}.h5")
            lives = job in (JobState.PENDING, JobState.RUNNING)
            state = "running" if lives and begun > record.attempt else record.outcome
            speed = self._speeds.get(name)
            return Row(run=run, state=state, record=record, samples_per_s=speed, news=run.run_id in self._to_do)
        if job is JobState.UNREACHABLE:
            return Row(run=run, state=job)
        if job in (JobState.PENDING, JobState.RUNNING):
            if begun > before:
                return Row(run=run, state="running")
            return Row(run=run, state="pending", reason=self._cluster.reasons.get(job_id, ""))
        return Row(run=run, state="no record" if begun > before else "never began")

    @property
    def poll_s(self) -> float:
        """How long to wait before the next look."""
        return self._cluster.poll_s

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
    screen = _Screen(console)
    unknown = 0
    with screen:
        while True:
            rows = follower.rows()
            screen.show(rows, follower.silence)
            if follower.silence is not None and follower.silence.lasts_s >= patience_s:
                raise StateError(follower.silence.in_words())
            unknown = unknown + 1 if JobState.UNKNOWN in follower.job_states.values() else 0
            if follower.silence is None and follower.all_ended() and (unknown == 0 or unknown > 2):
                # A record may reach a shared file system a little after its job has left the queue.
                time.sleep(follower.poll_s)
                rows = follower.rows()
                screen.show(rows, follower.silence)
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


class _Screen:
    """What the person sees: a live table on a terminal, else a line for each run that ended and for each silence."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown: set[str] = set()
        self._over: set[str] = set()
        self._silent = ""

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, rows: Sequence[Row], silence: Silence | None) -> None:
        """Shows how the runs are now, and whether the scheduler answers and the traces can be used."""
        if self._live:
            self._live.update(_table(rows, silence), refresh=True)
            return
        what = "" if silence is None else silence.what
        if self._silent and what != self._silent:
            self._say(_AGAIN[self._silent])
        if silence is not None and what != self._silent:
            self._say(silence.in_words())
        self._silent = what
        for row in rows:
            if row.record is None or (name := stem(row.run.run_id, row.record.attempt)) in self._shown:
                continue
            self._shown.add(name)
            self._over.add(row.run.run_id)
            if row.news:
                self._say(f"{_in_words(row, row.record)} ({len(self._over)} of {len(rows)})")

    def _say(self, text: str) -> None:
        self._console.print(plain(text), markup=False, highlight=False, soft_wrap=True)


def _in_words(row: Row, record: ExitRecord) -> str:
    text = f"{row.run.run_id} attempt {record.attempt}: {record.outcome}"
    if row.samples_per_s is not None:
        return f"{text}, {row.samples_per_s:.2f} samples/s"
    return f"{text}: {record.evidence[0]}" if record.evidence and record.outcome is not Outcome.OK else text


def _table(rows: Sequence[Row], silence: Silence | None, most: int = 40) -> Table:
    """The runs that matter now: those running, the next ones, the latest that ended; and the counts of all."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    title = Text(", ".join(f"{count} {state}" for state, count in counts.items()))
    caption = None if silence is None else Text(plain(silence.in_words()))
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("state")
    table.add_column("samples/s", justify="right")
    table.add_column("why", overflow="ellipsis", no_wrap=True)
    ended = [row for row in rows if row.ended]
    others = [row for row in rows if not row.ended]
    running_first = sorted(others, key=lambda row: row.state != "running")
    room = max(most - len(ended), 10)
    for row in [*ended[-(most - min(len(others), 10)) :], *running_first[:room]]:
        speed = f"{row.samples_per_s:.2f}" if row.samples_per_s is not None else ""
        evidence = row.record.evidence[:1] if row.record and row.state != Outcome.OK else (row.reason,)
        table.add_row(row.run.run_id, row.state, speed, Text(plain("".join(evidence))))
    return table
