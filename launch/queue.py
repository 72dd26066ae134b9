"""A sweep's jobs on their way through the scheduler: what is there is joined, the rest submitted, so many at a time."""

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
from hpc.system.whole_file import write_whole
from launch.cluster.lock import FolderLock, user_name
from launch.cluster.query import JobState
from launch.cluster.slurm import NotNow
from launch.jobs.plan import WrittenJob

PAUSES_S = (5.0, 60.0)
"""How long to wait after a refusal that passes: this at first, twice as long each time, at most the other."""

ORDINARY = frozenset({"Priority", "Resources"})
"""Slurm's words for a job that waits its turn: no news."""
UNKNOWN_FOR_GOOD = 3
"""A job that the scheduler says so often in succession not to know has ended."""
MEMORY = ".job.json"


class Scheduler(Protocol):
    """Where jobs run: Slurm, or this machine."""

    @property
    def poll_s(self) -> float:
        """Seconds between two looks."""

    @property
    def at_most(self) -> int | None:
        """How many jobs of a sweep may be in the queue; None for any number."""

    @property
    def queued(self) -> bool:
        """Whether jobs wait in a queue with those of others, and stay there if this process ends."""

    @property
    def said(self) -> str:
        """What its commands said where they did not answer last, empty where they did."""

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why jobs are pending, in the scheduler's word, by id, as of the last look; not each says why."""

    def name_of(self, job: WrittenJob) -> str:
        """The name by which the scheduler knows the job."""

    def submit(self, job: WrittenJob) -> str:
        """The id of the job. Raises NotNow for a reason that passes, SubmitError for one that does not."""

    def living(self, names: Iterable[str]) -> dict[str, str]:
        """The jobs with these names that have not ended, id → name. Raises NotNow where it cannot tell."""

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state now."""

    def release(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Releases those of these pending jobs that the scheduler holds for its own failure: id → why not, empty where
        it is released."""


class Owner(Protocol):
    """The sweep whose jobs these are."""

    def left(self, job: WrittenJob) -> Sequence[str]:
        """Which of the job's runs are not settled at this moment."""

    def ended(self, job: WrittenJob, job_ids: Sequence[str]) -> bool:
        """Told once of each job that has ended; whether it is to be submitted again."""

    def cancelled(self) -> bool:
        """Whether somebody has cancelled the sweep since it began."""

    def say(self, text: str) -> None:
        """Shows a line to the person."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is remembered beside a script that was submitted: the jobs made of it, and the runs that they hold."""

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
        self._unknown: dict[str, int] = {}  # how many times running the scheduler has not known a script's jobs
        self._pause_s, self._not_before_s = PAUSES_S[0], 0.0
        self._silent = False
        self._told: set[tuple[str, str]] = set()  # jobs and why they are pending, as the person was told
        self.refusal = ""

    @property
    def said(self) -> str:
        """What the scheduler's commands said where they did not answer last, empty where they did."""
        return self._scheduler.said or (self.refusal if self._silent else "")

    @property
    def reasons(self) -> dict[str, str]:
        """Why scripts' jobs are pending, in the scheduler's word, as of the last look."""
        known = self._scheduler.reasons
        found = {script: ", ".join(known[each] for each in ids if each in known) for script, ids in self._ids.items()}
        return {script: reason for script, reason in found.items() if reason and script not in self._waiting}

    @property
    def max_jobs(self) -> int | None:
        """How many jobs of the sweep there may be at the same time; None for any number."""
        return self._scheduler.at_most

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
        """Joins or submits what waits, as far as there is room. Raises SubmitError on a refusal that does not pass."""
        if not self._waiting or time.monotonic() < self._not_before_s:
            return
        with self._lock.held(lambda holder: self._owner.say(f"waiting for {holder}, which is submitting")):
            try:
                self._submit_what_fits()
            except NotNow as reason:
                self.refusal = str(reason)
                self._not_before_s = time.monotonic() + self._pause_s
                self._owner.say(f"{len(self._waiting)} jobs wait: {reason}; asked again in {self._pause_s:.0f} s")
                self._pause_s = min(2 * self._pause_s, PAUSES_S[1])
            else:
                self._pause_s, self.refusal = PAUSES_S[0], ""

    def states(self, scripts: Sequence[str]) -> dict[str, JobState]:
        """Every job's state now; submits what there is room for first."""
        self.advance()
        ids = [job_id for script in scripts for job_id in self._ids.get(script, ())]
        known = self._scheduler.states(ids) if ids else {}
        if pending := [job_id for job_id, state in known.items() if state is JobState.PENDING]:
            for job_id, problem in self._scheduler.release(pending).items():
                done = f"not released: {problem}" if problem else "released"
                self._owner.say(f"job {job_id} was put back and held because its launch failed: {done}")
            self._tell_reasons(pending)
        states = {script: self._state(script, known) for script in scripts}
        for script, state in states.items():
            self._unknown[script] = self._unknown.get(script, 0) + 1 if state is JobState.UNKNOWN else 0
            gone = state is JobState.ENDED or self._unknown[script] >= UNKNOWN_FOR_GOOD
            if gone and script in self._ids and script not in self._over:
                if self._owner.ended(self._jobs[script], self._ids[script]):  # asked again where it raises
                    self._waiting[script] = True
                    states[script] = JobState.PENDING
                else:
                    self._over.add(script)
        return states

    def _tell_reasons(self, pending: Sequence[str]) -> None:
        """Says once of each job for which reason it is pending, unless that is that others are before it."""
        for job_id in pending:
            reason = self._scheduler.reasons.get(job_id, "")
            if reason and reason not in ORDINARY and (job_id, reason) not in self._told:
                self._told.add((job_id, reason))
                self._owner.say(f"job {job_id} is pending: {reason}")

    def _state(self, script: str, states: Mapping[str, JobState]) -> JobState:
        if script in self._waiting:
            return JobState.UNREACHABLE if self._silent else JobState.PENDING
        its = [states[job_id] for job_id in self._ids.get(script, ())]
        liveliest = (JobState.RUNNING, JobState.PENDING, JobState.UNREACHABLE, JobState.UNKNOWN)
        return next((state for state in liveliest if state in its), JobState.ENDED)

    def _submit_what_fits(self) -> None:
        memories = {memory.job_name: memory for memory in recall(self._lock.path.parent)}
        for script, name in self._names.items():
            if name not in memories:  # so that jobs made of the script by hand are known for this sweep's, too
                memories[name] = remember(self._jobs[script], name, ())
        self._silent = True
        living = self._scheduler.living(memories)
        self._silent = False
        for script in self.waiting:
            job, name = self._jobs[script], self._names[script]
            left = self._owner.left(job)
            if not left:
                self._owner.say(f"{script}: every run is settled, nothing to submit")
                del self._waiting[script]
            elif self._owner.cancelled():
                self._owner.say(f"{script}: not submitted, because its sweep was cancelled meanwhile")
                del self._waiting[script]
            elif holders := _holders(name, left, living, memories):
                self._owner.say(f"{script}: job {', '.join(holders)} is there already, joined")
                self._ids[script] = holders
                del self._waiting[script]
            elif self._room(living):
                job_id = self._submit(script, memories[name])
                living[job_id] = name
                runs = "1 run" if len(left) == 1 else f"{len(left)} runs"
                self._owner.say(f"{script}: submitted as {job_id}, {runs} to do")

    def _submit(self, script: str, memory: Memory) -> str:
        """A sweep that dies before the id is remembered finds the job by its name."""
        job, name = self._jobs[script], self._names[script]
        job_id = self._scheduler.submit(job)
        remember(job, name, (*memory.job_ids, job_id))
        self._ids[script] = (job_id,)
        del self._waiting[script]
        return job_id

    def _room(self, living: Mapping[str, str]) -> bool:
        most, own = self._scheduler.at_most, set(self._names.values())
        return most is None or sum(name in own for name in living.values()) < most


def remember(job: WrittenJob, name: str, job_ids: Sequence[str]) -> Memory:
    """Writes beside the script which jobs were made of it."""
    memory = Memory(
        job_name=name, job_ids=tuple(job_ids), runs=tuple(run.run_id for run in job.plan.runs), user=user_name(),
        host=socket.gethostname(),
    )  # fmt: skip
    write_whole(job.script.with_suffix(MEMORY), json.dumps(asdict(memory), indent=1) + "\n")
    return memory


def recall(jobs: Path) -> list[Memory]:
    """What is remembered of all scripts in the folder; what cannot be read was written by other versions."""
    found = []
    for path in sorted(jobs.glob(f"*{MEMORY}")):
        with contextlib.suppress(RecordError, KeyError, TypeError):
            values = read_object(path)
            listed = {name: tuple(str(word) for word in values[name]) for name in ("job_ids", "runs")}
            words = {name: str(values[name]) for name in ("job_name", "user", "host")}
            found.append(Memory(job_ids=listed["job_ids"], runs=listed["runs"], **words))
    return found


def _holders(
    name: str, left: Sequence[str], living: Mapping[str, str], memories: Mapping[str, Memory]
) -> tuple[str, ...]:
    """The jobs that will run all that is left: those of this name, else others of the folder that hold the runs."""
    if own := tuple(job_id for job_id, its in living.items() if its == name):
        return own
    others = {job_id: set(memories[its].runs) & set(left) for job_id, its in living.items() if its in memories}
    if set(left) <= set().union(*others.values()):
        return tuple(job_id for job_id, runs in others.items() if runs)
    return ()
