"""The queue of a sweep's jobs: joins jobs that exist, submits the others, at most `max_jobs` at a time."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from hpc.model.outcome import RecordError, read_object
from hpc.system.atomic import write_atomic
from hpc.system.text import plural
from launch.cluster.lock import FolderLock, user_name
from launch.cluster.query import JobState, JobStates
from launch.cluster.slurm import TransientSubmitError
from launch.jobs.plan import WrittenJob

PAUSES_S = (5.0, 60.0)
"""Pause after a transient refusal, in seconds: the first, doubled each time, up to the second."""

ORDINARY = frozenset({"Priority", "Resources"})
"""Slurm's reasons of a job that waits for its turn; they are not reported."""
UNKNOWN_FOR_GOOD = 3
"""A job has ended once the scheduler has answered this many times in a row that it does not know it."""
MEMORY = ".job.json"


class Scheduler(JobStates, Protocol):
    """Where jobs run and are submitted: Slurm, or this machine."""

    def name_of(self, job: WrittenJob) -> str:
        """The name by which the scheduler knows the job."""

    def submit(self, job: WrittenJob) -> str:
        """The id of the job. Raises TransientSubmitError for a transient refusal, SubmitError for any other."""

    def active_jobs(self, names: Iterable[str]) -> dict[str, str]:
        """The jobs with these names that have not ended, id → name; TransientSubmitError if that is not known."""

    def release_held(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Releases the pending jobs that the scheduler holds after its own failure: id → why not, empty if released."""


class Owner(Protocol):
    """The sweep whose jobs these are."""

    def remaining_runs(self, job: WrittenJob) -> Sequence[str]:
        """The job's runs that are not final now."""

    def ended(self, job: WrittenJob, job_ids: Sequence[str]) -> bool:
        """Called once for each job that has ended; whether to submit it again."""

    def cancelled(self) -> bool:
        """Whether somebody has cancelled the sweep since it began."""

    def say(self, text: str) -> None:
        """Shows a line to the person."""


@dataclass(frozen=True, kw_only=True)
class SubmissionRecord:
    """The file beside a submitted script: the jobs made of it, and the runs that they hold."""

    job_name: str
    job_ids: tuple[str, ...]
    runs: tuple[str, ...]
    user: str
    host: str


class Queue:
    """The jobs of a sweep, by the names of their scripts. A job that could not be submitted yet counts as pending."""

    def __init__(
        self, scheduler: Scheduler, jobs: Sequence[WrittenJob], owner: Owner, lock: FolderLock
    ) -> None:  # fmt: skip
        self.poll_s = scheduler.poll_s
        self._scheduler, self._owner, self._lock = scheduler, owner, lock
        self._jobs = {job.script.name: job for job in jobs}
        self._names = {script: scheduler.name_of(job) for script, job in self._jobs.items()}
        self._waiting = dict.fromkeys(self._jobs, True)  # in order
        self._ids: dict[str, tuple[str, ...]] = {}
        self._over: set[str] = set()  # scripts whose jobs have ended
        self._unknown: dict[str, int] = {}  # by script: successive queries in which its jobs were unknown
        self._pause_s, self._not_before_s = PAUSES_S[0], 0.0
        self._silent = False
        self._reported: set[tuple[str, str]] = set()  # jobs and the reasons that were shown
        self.refusal = ""

    @property
    def error(self) -> str:
        """The errors of the scheduler's commands if they did not answer last, else empty."""
        return self._scheduler.error or (self.refusal if self._silent else "")

    @property
    def reasons(self) -> dict[str, str]:
        """By script: the scheduler's reasons why its jobs are pending, as of the last query."""
        known = self._scheduler.reasons
        reasons = {script: ", ".join(known[each] for each in ids if each in known) for script, ids in self._ids.items()}
        return {script: reason for script, reason in reasons.items() if reason and script not in self._waiting}

    @property
    def max_jobs(self) -> int | None:
        """How many jobs of the sweep there may be at the same time; None for any number."""
        return self._scheduler.max_jobs

    @property
    def queued(self) -> bool:
        """Whether jobs wait in a scheduler's queue, where they stay if this process ends."""
        return self._scheduler.queued

    @property
    def waiting(self) -> list[str]:
        """The scripts that are still to be submitted."""
        return list(self._waiting)

    @property
    def job_ids(self) -> dict[str, tuple[str, ...]]:
        """The jobs that hold the runs of each script, submitted here or joined."""
        return dict(self._ids)

    def advance(self) -> None:
        """Joins or submits waiting jobs, up to `max_jobs`. Raises SubmitError on a refusal that is not transient."""
        if not self._waiting or time.monotonic() < self._not_before_s:
            return
        with self._lock.held(lambda holder: self._owner.say(f"waiting for {holder}, which is submitting")):
            try:
                self._submit_what_fits()
            except TransientSubmitError as reason:
                self.refusal = str(reason)
                self._not_before_s = time.monotonic() + self._pause_s
                self._owner.say(f"{len(self._waiting)} jobs wait: {reason}; asked again in {self._pause_s:.0f} s")
                self._pause_s = min(2 * self._pause_s, PAUSES_S[1])
            else:
                self._pause_s, self.refusal = PAUSES_S[0], ""

    def states(self, scripts: Sequence[str]) -> dict[str, JobState]:
        """Every job's state now; first submits up to `max_jobs`."""
        self.advance()
        ids = [job_id for script in scripts for job_id in self._ids.get(script, ())]
        known = self._scheduler.states(ids) if ids else {}
        if pending := [job_id for job_id, state in known.items() if state is JobState.PENDING]:
            for job_id, problem in self._scheduler.release_held(pending).items():
                done = f"not released: {problem}" if problem else "released"
                self._owner.say(f"job {job_id} was put back and held because its launch failed: {done}")
            self._tell_reasons(pending)
        states = {script: self._state(script, known) for script in scripts}
        for script, state in states.items():
            self._unknown[script] = self._unknown.get(script, 0) + 1 if state is JobState.UNKNOWN else 0
            gone = state is JobState.ENDED or self._unknown[script] >= UNKNOWN_FOR_GOOD
            if gone and script in self._ids and script not in self._over:
                if self._owner.ended(self._jobs[script], self._ids[script]):  # called again if it raises
                    self._waiting[script] = True
                    states[script] = JobState.PENDING
                else:
                    self._over.add(script)
        return states

    def _tell_reasons(self, pending: Sequence[str]) -> None:
        """Shows once for each job why it is pending, except for ORDINARY reasons."""
        for job_id in pending:
            reason = self._scheduler.reasons.get(job_id, "")
            if reason and reason not in ORDINARY and (job_id, reason) not in self._reported:
                self._reported.add((job_id, reason))
                self._owner.say(f"job {job_id} is pending: {reason}")

    def _state(self, script: str, states: Mapping[str, JobState]) -> JobState:
        if script in self._waiting:
            return JobState.UNREACHABLE if self._silent else JobState.PENDING
        its = [states[job_id] for job_id in self._ids.get(script, ())]
        liveliest = (JobState.RUNNING, JobState.PENDING, JobState.UNREACHABLE, JobState.UNKNOWN)
        return next((state for state in liveliest if state in its), JobState.ENDED)

    def _submit_what_fits(self) -> None:
        records = {record.job_name: record for record in recall(self._lock.path.parent)}
        for script, name in self._names.items():
            if name not in records:  # so that jobs submitted by hand are recognised as this sweep's
                records[name] = remember(self._jobs[script], name, ())
        self._silent = True
        active_jobs = self._scheduler.active_jobs(records)
        self._silent = False
        for script in self.waiting:
            job, name = self._jobs[script], self._names[script]
            remaining = self._owner.remaining_runs(job)
            if not remaining:
                self._owner.say(f"{script}: every run is final, nothing to submit")
                del self._waiting[script]
            elif self._owner.cancelled():
                self._owner.say(f"{script}: not submitted, because its sweep was cancelled meanwhile")
                del self._waiting[script]
            elif holders := _holders(name, remaining, active_jobs, records):
                self._owner.say(f"{script}: job {', '.join(holders)} is there already, joined")
                self._ids[script] = holders
                del self._waiting[script]
            elif self._has_room(active_jobs):
                job_id = self._submit(script, records[name])
                active_jobs[job_id] = name
                self._owner.say(f"{script}: submitted as {job_id}, {plural(len(remaining), 'run')} to do")

    def _submit(self, script: str, record: SubmissionRecord) -> str:
        """Submits and records the job id; a sweep that dies in between finds the job by its name."""
        job, name = self._jobs[script], self._names[script]
        job_id = self._scheduler.submit(job)
        remember(job, name, (*record.job_ids, job_id))
        self._ids[script] = (job_id,)
        del self._waiting[script]
        return job_id

    def _has_room(self, active_jobs: Mapping[str, str]) -> bool:
        max_jobs, names = self._scheduler.max_jobs, set(self._names.values())
        return max_jobs is None or sum(name in names for name in active_jobs.values()) < max_jobs


def remember(job: WrittenJob, name: str, job_ids: Sequence[str]) -> SubmissionRecord:
    """Writes beside the script which jobs were made of it."""
    record = SubmissionRecord(
        job_name=name, job_ids=tuple(job_ids), runs=tuple(run.run_id for run in job.plan.runs), user=user_name(),
        host=socket.gethostname(),
    )  # fmt: skip
    write_atomic(job.script.with_suffix(MEMORY), json.dumps(asdict(record), indent=1) + "\n")
    return record


def recall(jobs: Path) -> list[SubmissionRecord]:
    """The submission records of all scripts in the folder; unreadable ones, of other versions, are skipped."""
    records = []
    for path in sorted(jobs.glob(f"*{MEMORY}")):
        with contextlib.suppress(RecordError, KeyError, TypeError):
            values = read_object(path)
            listed = {name: tuple(str(item) for item in values[name]) for name in ("job_ids", "runs")}
            texts = {name: str(values[name]) for name in ("job_name", "user", "host")}
            records.append(SubmissionRecord(job_ids=listed["job_ids"], runs=listed["runs"], **texts))
    return records


def _holders(
    name: str, remaining: Sequence[str], active_jobs: Mapping[str, str], records: Mapping[str, SubmissionRecord]
) -> tuple[str, ...]:
    """The jobs that will do all remaining runs: those of this name, else others of the folder that hold the runs."""
    if same_name := tuple(job_id for job_id, its in active_jobs.items() if its == name):
        return same_name
    others = {job_id: set(records[its].runs) & set(remaining) for job_id, its in active_jobs.items() if its in records}
    if set(remaining) <= set().union(*others.values()):
        return tuple(job_id for job_id, runs in others.items() if runs)
    return ()
