"""Follows a sweep's jobs until they have ended: a live table on a terminal, a line per event in a pipe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hpc.outcome import BEGIN_RECORD, EXIT_RECORD, ExitRecord, Outcome, read_exit_record, stem
from hpc.spec import RunSpec
from launch.plan import WrittenJob
from launch.state import JobState, outcome_from_scheduler

SPEED = Callable[[Path], float | None]
"""The throughput in samples/s that a trace holds, None where it holds none."""


class Cluster(Protocol):
    """Where jobs run: Slurm, or this machine. It may be asked again after `poll_s` seconds."""

    poll_s: float

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state now."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run as the table shows it; `record` is of the attempt that this sweep started or found."""

    run: RunSpec
    state: str
    record: ExitRecord | None = None
    samples_per_s: float | None = None


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

    def rows(self) -> list[Row]:
        """All runs of the jobs as they are now."""
        self.job_states = self._cluster.states(list(self._jobs))
        names = [entry.name for entry in os.scandir(self._traces)]
        for name in names:
            # A record is written once and whole: what was read is not read again, however many runs there are.
            if EXIT_RECORD.fullmatch(name) and name not in self._records:
                self._records[name] = read_exit_record(self._traces / name)
        latest: dict[str, ExitRecord] = {}
        for record in sorted(self._records.values(), key=lambda record: record.attempt):
            latest[record.run_id] = record
        begun = last_attempts(names)
        return [
            self._row(run, self.job_states[job_id], latest.get(run.run_id), begun.get(run.run_id, 0))
            for job_id, job in self._jobs.items()
            for run in job.plan.runs
        ]

    def _row(self, run: RunSpec, job: JobState, record: ExitRecord | None, begun: int) -> Row:
        before = self._to_do.get(run.run_id, 0)
        if record is not None and record.attempt > (before if run.run_id in self._to_do else 0):
            name = stem(run.run_id, record.attempt)
            if record.outcome is Outcome.OK and name not in self._speeds:
                self._speeds[name] = self._speed_of(self._traces / f"{name}.h5")
            return Row(run=run, state=record.outcome, record=record, samples_per_s=self._speeds.get(name))
        if job in (JobState.PENDING, JobState.RUNNING):
            return Row(run=run, state="running" if begun > before else "pending")
        return Row(run=run, state="no record" if begun > before else "never began")

    @property
    def poll_s(self) -> float:
        """How long to wait before the next look."""
        return self._cluster.poll_s

    def all_ended(self) -> bool:
        """Whether no job is pending or running any more."""
        return not any(state in (JobState.PENDING, JobState.RUNNING) for state in self.job_states.values())


def last_attempts(names: Sequence[str]) -> dict[str, int]:
    """The highest attempt that has begun, for every run that has one among these names of files."""
    begun: dict[str, int] = {}
    for name in names:
        if found := BEGIN_RECORD.fullmatch(name):
            begun[found["run_id"]] = max(begun.get(found["run_id"], 0), int(found["attempt"]))
    return begun


def follow(follower: Follower, console: Console) -> list[Row]:
    """Shows the runs until every job has ended; the rows as they were at the end.

    A job that the scheduler does not know any more counts as ended once it has been unknown three times running.
    """
    shown: set[str] = set()
    unknown = 0
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    if live:
        live.start()
    try:
        while True:
            rows = follower.rows()
            if live:
                live.update(_table(rows), refresh=True)
            else:
                _print_news(rows, shown, console)
            unknown = unknown + 1 if JobState.UNKNOWN in follower.job_states.values() else 0
            if follower.all_ended() and (unknown == 0 or unknown > 2):
                # A record may reach a shared file system a little after its job has left the queue.
                time.sleep(follower.poll_s)
                rows = follower.rows()
                if live:
                    live.update(_table(rows), refresh=True)
                else:
                    _print_news(rows, shown, console)
                return rows
            time.sleep(follower.poll_s)
    finally:
        if live:
            live.stop()


def write_missing_records(traces: Path, words: Mapping[str, str], nodelist: str = "") -> list[ExitRecord]:
    """Writes the exit record of attempts that began in jobs which ended without writing one.

    `words` holds the scheduler's word for each job that has ended; other jobs' attempts are left alone.
    """
    written = []
    for path in sorted(traces.glob("*.begin.json")):
        target = path.with_name(path.name.replace(".begin.json", ".exit.json"))
        if target.exists():
            continue
        try:
            began = json.loads(path.read_text())
            word = words.get(str(began["job_id"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half-written by a job that is starting now, or foreign: the summary names it
        if word is None:
            continue
        record = ExitRecord(
            run_id=began["run_id"],
            attempt=began["attempt"],
            outcome=outcome_from_scheduler(word),
            exit_status=-1,
            job_id=str(began["job_id"]),
            restart_count=0,
            nodelist=nodelist,
            begin_unix_s=began["begin_unix_s"],
            end_unix_s=int(time.time()),
        )
        record.write(traces)
        written.append(record)
    return written


def _print_news(rows: Sequence[Row], shown: set[str], console: Console) -> None:
    ended = sum(row.record is not None for row in rows)
    for row in rows:
        if row.record is None or row.run.run_id in shown:
            continue
        shown.add(row.run.run_id)
        speed = f", {row.samples_per_s:.2f} samples/s" if row.samples_per_s is not None else ""
        text = f"{row.run.run_id} attempt {row.record.attempt}: {row.state}{speed} ({ended} of {len(rows)})"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(rows: Sequence[Row], most: int = 40) -> Table:
    """The runs that matter now: those running, the next ones, the latest that ended; and the counts of all."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    table = Table(title=", ".join(f"{count} {state}" for state, count in counts.items()), title_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("state")
    table.add_column("samples/s", justify="right")
    ended = [row for row in rows if row.record is not None]
    others = [row for row in rows if row.record is None]
    running_first = sorted(others, key=lambda row: row.state != "running")
    room = max(most - len(ended), 10)
    for row in [*ended[-(most - min(len(others), 10)) :], *running_first[:room]]:
        speed = f"{row.samples_per_s:.2f}" if row.samples_per_s is not None else ""
        table.add_row(row.run.run_id, row.state, speed)
    return table
