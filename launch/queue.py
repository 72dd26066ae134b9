"""The queue of a sweep's jobs: finds existing jobs, submits the others, at most `max_jobs` at a time."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from hpc.model.outcome import MAX_PLAN_BYTES
from hpc.model.typed import TypeMismatchError, read_fields
from hpc.system.atomic import write_durable
from hpc.system.regular_file import parse_json, read_text
from launch.jobs.plan import WrittenJob
from launch.scheduler.lock import FolderLock
from launch.scheduler.protocol import JobScheduler, JobState, TransientSubmitError

PAUSES_S = (5.0, 60.0)
"""Pause after a transient refusal, in seconds: the first, doubled each time, up to the second."""

ORDINARY = frozenset({"Priority", "Resources"})
"""Slurm's reasons of a job that waits for its turn; they make no event."""
FORGOTTEN_S, CONTRADICTED_S = 60.0, 600.0
"""A job counts as ended after so many seconds of answers that the scheduler does not have it, without a life sign of
its attempts; after the second where the accounts still have it as active."""
SUBMITTED = "submitted.jsonl"
"""The file of a folder of jobs with the jobs that were made of its scripts."""


class Runs(Protocol):
    """The state of a sweep's runs."""

    def to_do(self, jobs: Sequence[WrittenJob]) -> Mapping[str, Sequence[str]]:
        """By script the job's runs that are not final now."""

    def cancelled(self) -> bool:
        """Whether the sweep has been cancelled since it began."""

    def life_sign(self, job_ids: Sequence[str]) -> str:
        """Why an attempt of these jobs is taken for one that runs; empty without a sign."""


@dataclass(frozen=True, kw_only=True)
class FolderLocked:
    holder: str  # a process that is submitting; the queue waits for it


@dataclass(frozen=True, kw_only=True)
class NothingToDo:
    script: str  # every run of it is final


@dataclass(frozen=True, kw_only=True)
class NotSubmitted:
    script: str  # the sweep was cancelled before


@dataclass(frozen=True, kw_only=True)
class Joined:
    script: str
    job_ids: tuple[str, ...]  # existing jobs that hold the remaining runs of the script


@dataclass(frozen=True, kw_only=True)
class Submitted:
    script: str
    job_id: str
    runs: int  # remaining ones


@dataclass(frozen=True, kw_only=True)
class Refused:
    scripts: int  # number of jobs that wait because the scheduler refuses for a transient reason
    reason: str
    retry_s: float


@dataclass(frozen=True, kw_only=True)
class Pending:
    job_id: str
    reason: str  # not that it waits for its turn


@dataclass(frozen=True, kw_only=True)
class Released:
    job_id: str  # held by the scheduler after a failed launch
    problem: str  # why it was not released; empty if it was


@dataclass(frozen=True, kw_only=True)
class Unlisted:
    job_ids: tuple[str, ...]  # the scheduler does not have them, and they count as active
    reason: str  # a life sign, or what the accounts have


@dataclass(frozen=True, kw_only=True)
class Ended:
    script: str  # who handles this may have the queue submit it again
    job_ids: tuple[str, ...]


Event = FolderLocked | NothingToDo | NotSubmitted | Joined | Submitted | Refused | Pending | Released | Unlisted | Ended


@dataclass(frozen=True, kw_only=True)
class SubmissionRecord:
    """The jobs made of a script, and the runs that they hold."""

    script: str  # its file's name; empty where a person started the jobs
    job_name: str
    job_ids: tuple[str, ...]
    runs: tuple[str, ...]


class SubmissionRecords:
    """The file of the submission records while the folder is locked: a line for every change, the last of a script
    counts, and a part of a line is skipped.

    All is on the disk once it is closed. A power cut before may take the line of a job, whose name is there: it is
    written before the first job is submitted.
    """

    def __init__(self, jobs: Path) -> None:
        self._path = jobs / SUBMITTED
        self._records = recall(jobs)
        self._file: BinaryIO | None = None

    def by_name(self) -> dict[str, SubmissionRecord]:
        """The records by the jobs' names."""
        return {record.job_name: record for record in self._records.values()}

    def add(self, records: Iterable[SubmissionRecord]) -> None:
        """Writes these records. The first time the whole file is replaced, which may be another user's."""
        new = {record.script: record for record in records}
        self._records = {script: each for script, each in self._records.items() if script not in new} | new
        if self._file is not None:
            self._file.write(_lines(new))
            self._file.flush()  # raises where a full disk takes a part of the line
        elif new:
            write_durable(self._path, _lines(self._records))
            self._file = self._path.open("ab")

    def close(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()


class Queue:
    """The jobs of a sweep, by the names of their scripts. A job that could not be submitted yet counts as pending.

    `advance` and `poll` yield events, and work only while these are consumed. `job_states` are those of the last poll.
    """

    def __init__(
        self, scheduler: JobScheduler, jobs: Sequence[WrittenJob], runs: Runs, lock: FolderLock,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._scheduler, self._runs, self._lock, self._now_s = scheduler, runs, lock, now_s
        self._jobs = {job.script.name: job for job in jobs}
        self._names = {script: scheduler.name_of(job) for script, job in self._jobs.items()}
        self._waiting = dict.fromkeys(self._jobs, True)  # in order
        self._ids: dict[str, tuple[str, ...]] = {}
        self._over: set[str] = set()  # scripts whose jobs have ended
        self._ended: set[str] = set()  # jobs that have ended
        self._unknown_since_s: dict[str, float] = {}  # by script: since when its jobs are unknown, without a life sign
        self._pause_s, self._not_before_s = PAUSES_S[0], 0.0
        self._silent = False
        self._reported: set[tuple[str, str]] = set()  # jobs and the reasons that were reported
        self.refusal = ""
        self.job_states: dict[str, JobState] = {}

    @property
    def error(self) -> str:
        """That of the scheduler's commands where they did not answer last."""
        return self._scheduler.error or (self.refusal if self._silent else "")

    @property
    def waiting(self) -> list[str]:
        """The scripts that are still to be submitted."""
        return list(self._waiting)

    @property
    def job_ids(self) -> dict[str, tuple[str, ...]]:
        """The jobs that hold the runs of each script, submitted here or queued before."""
        return dict(self._ids)

    @property
    def all_job_ids(self) -> list[str]:
        return [job_id for ids in self._ids.values() for job_id in ids]

    def submit_again(self, script: str) -> None:
        """Has the script of jobs that have ended wait for its submission."""
        self._waiting[script] = True

    def advance(self) -> Iterator[Event]:
        """Joins or submits waiting jobs, up to `max_jobs`. Raises SubmitError on a refusal that is not transient."""
        if not self._waiting or time.monotonic() < self._not_before_s:
            return
        with contextlib.ExitStack() as stack:
            if not self._lock.take():
                yield FolderLocked(holder=self._lock.holder())
            stack.enter_context(self._lock.held(lambda holder: None))
            try:
                memory = stack.enter_context(contextlib.closing(SubmissionRecords(self._lock.path.parent)))
                yield from self._submit_what_fits(memory)
            except TransientSubmitError as reason:
                is_news, self.refusal = self.refusal != str(reason), str(reason)
                self._not_before_s = time.monotonic() + self._pause_s
                if is_news:
                    yield Refused(scripts=len(self._waiting), reason=self.refusal, retry_s=self._pause_s)
                self._pause_s = min(2 * self._pause_s, PAUSES_S[1])
            else:
                self._pause_s, self.refusal = PAUSES_S[0], ""

    def poll(self) -> Iterator[Event]:
        """Submits what `max_jobs` allows, then queries the jobs and sets `job_states`."""
        yield from self.advance()
        followed = [script for script in self._jobs if script not in self._over]
        ids = [job_id for script in followed for job_id in self._ids.get(script, ())]
        known = self._scheduler.states(ids) if ids else {}
        if pending := [job_id for job_id, state in known.items() if state is JobState.PENDING]:
            for job_id, problem in self._scheduler.release_held(pending).items():
                yield Released(job_id=job_id, problem=problem)
            yield from self._pending(pending)
        before = self.job_states
        self.job_states = {script: self._state(script, known) for script in self._jobs}
        for script, state in list(self.job_states.items()):
            gone = state is JobState.ENDED
            if state is JobState.UNKNOWN:
                gone, reason = self._is_forgotten(script)
                if not gone:  # what it was last
                    self.job_states[script] = before.get(script, JobState.PENDING)
                if reason and (script, reason.partition(" ")[0]) not in self._reported:
                    self._reported.add((script, reason.partition(" ")[0]))
                    yield Unlisted(job_ids=self._ids[script], reason=reason)
            else:
                self._unknown_since_s.pop(script, None)
            if gone and script in self._ids and script not in self._over:
                self._ended.update(self._ids[script])
                yield Ended(script=script, job_ids=self._ids[script])  # once more if handling it raises
                if script not in self._waiting:
                    self._over.add(script)
                self.job_states[script] = self._state(script, known)

    def _is_forgotten(self, script: str) -> tuple[bool, str]:
        """Whether jobs that the scheduler does not have count as ended, and what contradicts that."""
        job_ids, now_s = self._ids[script], self._now_s()
        if sign := self._runs.life_sign(job_ids):
            self._unknown_since_s[script] = now_s
            return False, sign
        accounts = ", ".join(filter(None, map(self._scheduler.reasons.get, job_ids)))
        lasts_s = now_s - self._unknown_since_s.setdefault(script, now_s)
        return lasts_s >= (CONTRADICTED_S if accounts else FORGOTTEN_S), accounts

    def _pending(self, job_ids: Sequence[str]) -> Iterator[Pending]:
        """Each reason of each job once, except for ORDINARY reasons."""
        for job_id in job_ids:
            reason = self._scheduler.reasons.get(job_id, "")
            if reason and reason not in ORDINARY and (job_id, reason) not in self._reported:
                self._reported.add((job_id, reason))
                yield Pending(job_id=job_id, reason=reason)

    def _state(self, script: str, states: Mapping[str, JobState]) -> JobState:
        if script in self._waiting:
            return JobState.UNREACHABLE if self._silent else JobState.PENDING
        if script in self._over:
            return JobState.ENDED
        present = {states[job_id] for job_id in self._ids.get(script, ())}
        order = (JobState.RUNNING, JobState.PENDING, JobState.UNREACHABLE, JobState.UNKNOWN)
        return next((state for state in order if state in present), JobState.ENDED)

    def _submit_what_fits(self, memory: SubmissionRecords) -> Iterator[Event]:
        records = memory.by_name()
        new = [
            SubmissionRecord(
                script=script, job_name=name, job_ids=(), runs=tuple(run.run_id for run in self._jobs[script].plan.runs)
            )
            for script, name in self._names.items() if name not in records
        ]  # fmt: skip
        memory.add(new)  # so that jobs submitted by hand are recognised as this sweep's
        records |= {record.job_name: record for record in new}
        self._silent = True
        last = {record.job_ids[-1]: name for name, record in records.items() if record.job_ids}
        recorded = {job_id: name for job_id, name in last.items() if job_id not in self._ended}
        active_jobs = self._scheduler.active_jobs(records, recorded)
        self._silent = False
        if self._scheduler.queued:  # what the scheduler lists is not all: see _is_forgotten
            alive = [job_id for job_id in recorded.keys() - active_jobs if self._runs.life_sign([job_id])]
            active_jobs |= {job_id: recorded[job_id] for job_id in alive}
        to_do = self._runs.to_do([self._jobs[script] for script in self._waiting])
        for script in self.waiting:
            job, name, remaining = self._jobs[script], self._names[script], to_do[script]
            if not remaining:
                del self._waiting[script]
                yield NothingToDo(script=script)
            elif self._runs.cancelled():
                del self._waiting[script]
                yield NotSubmitted(script=script)
            elif holders := _holders(name, remaining, active_jobs, records):
                self._ids[script] = holders
                del self._waiting[script]
                yield Joined(script=script, job_ids=holders)
            elif self._has_room(active_jobs):
                job_id = self._scheduler.submit(job)
                # A sweep that dies before this line finds the job by its name.
                memory.add([replace(records[name], script=script, job_ids=(*records[name].job_ids, job_id))])
                self._ids[script] = (job_id,)
                del self._waiting[script]
                active_jobs[job_id] = name
                yield Submitted(script=script, job_id=job_id, runs=len(remaining))

    def _has_room(self, active_jobs: Mapping[str, str]) -> bool:
        names, max_jobs = set(self._names.values()), self._scheduler.max_jobs
        return max_jobs is None or sum(name in names for name in active_jobs.values()) < max_jobs


def recall(jobs: Path) -> dict[str, SubmissionRecord]:
    """The submission records of the folder by script, that of the last submission last; unreadable lines are skipped.
    Raises OSError where there is a file that cannot be read."""
    try:
        lines = read_text(jobs / SUBMITTED, MAX_PLAN_BYTES, errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    records: dict[str, SubmissionRecord] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeMismatchError):
            record = SubmissionRecord(**read_fields(SubmissionRecord, parse_json(line), later=True))
            records.pop(record.script, None)
            records[record.script] = record
    return records


def _lines(records: Mapping[str, SubmissionRecord]) -> bytes:
    return "".join(json.dumps(vars(record)) + "\n" for record in records.values()).encode()


def _holders(
    name: str, remaining: Sequence[str], active_jobs: Mapping[str, str], records: Mapping[str, SubmissionRecord]
) -> tuple[str, ...]:
    """The jobs that will do all remaining runs: those of this name, else others of the folder that hold the runs."""
    if same_name := tuple(job_id for job_id, its in active_jobs.items() if its == name):
        return same_name
    wanted = set(remaining)
    others = {job_id: wanted.intersection(records[its].runs) for job_id, its in active_jobs.items() if its in records}
    if wanted <= set().union(*others.values()):
        return tuple(job_id for job_id, runs in others.items() if runs)
    return ()
