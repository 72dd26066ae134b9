"""`rankwise sweep status` and `rankwise sweep cancel`: from any machine that sees the folder of a sweep."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpc.model.outcome import RecordError
from hpc.model.spec import Plan, RunSpec, SpecError
from hpc.system.text import first_of, grouped, plural
from launch.follow import say
from launch.jobs.script import Folders
from launch.queue import SubmissionRecord, recall
from launch.scheduler.local import ended_here, script_processes
from launch.scheduler.lock import FolderLock
from launch.scheduler.protocol import JobState, SubmitError, TransientSubmitError
from launch.scheduler.table import site_scheduler
from launch.sweep.prepare import prepare
from launch.sweep.request import Request
from launch.sweep.run_status import (
    RunStatus,
    close_ended,
    describe_states,
    note_cancel,
    planned_sweeps,
    run_statuses,
    whole,
)
from launch.sweep.spec import AUTO

MAX_SWEEPS = 4
"""Sweeps that a refusal describes."""
UNKNOWN = "unknown"
"""The state of a job that cannot be queried from here."""
PATIENCE_S = 600
"""Seconds that `cancel` waits for jobs to end: a script gets KillWait, and nodes may be slow to clean up."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The runs of the selected sweeps by sweep id, and their folders. `problems` names unreadable plans; `by_hand` has
    the jobs of scripts that a person submitted or started, as long as a run is begun in them, and `begun_s` when it
    was, by job."""

    sweeps: Mapping[str, Sequence[RunSpec]]
    folders: Folders
    problems: Sequence[str] = ()
    by_hand: Sequence[SubmissionRecord] = ()
    begun_s: Mapping[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> dict[str, RunSpec]:
        """Every run once, in order, by its id."""
        return {run.run_id: run for runs in self.sweeps.values() for run in runs}

    @property
    def run_ids(self) -> list[str]:
        return list(self.runs)

    @property
    def submitted(self) -> list[SubmissionRecord]:
        """The submission records of these sweeps, without those that hold runs of other sweeps too."""
        runs = set(self.run_ids)
        return [record for record in recall(self.folders.jobs).values() if set(record.runs) <= runs]

    @property
    def jobs(self) -> list[SubmissionRecord]:
        """All jobs of these sweeps, those that a person submitted among them."""
        return [*self.submitted, *self.by_hand]

    @property
    def job_ids(self) -> list[str]:
        """Every job that was submitted."""
        return [job_id for record in self.jobs for job_id in record.job_ids]

    @property
    def last_jobs(self) -> dict[str, str]:
        """The job of each script that was submitted last, with its name."""
        return {record.job_ids[-1]: record.job_name for record in self.jobs if record.job_ids}


def show(request: Request) -> int:
    """Prints the status of the runs of the requested sweeps, none for all sweeps of the folder; 0 if all are ok."""
    selection = select(request)
    states, names = _job_states(selection)
    pending = {
        run_id: f"{states[job_id]} in job {job_id}"
        for record in selection.jobs for job_id in record.job_ids if states.get(job_id, "").startswith(JobState.PENDING)
        for run_id in record.runs
    }  # fmt: skip
    runs = [
        replace(run, pending=pending.get(run.run_id, ""))
        for run in run_statuses(selection.run_ids, selection.folders.traces)
    ]
    say(f"sweep {', '.join(selection.sweeps)}: {describe_states(runs)}")
    width = max(map(len, selection.run_ids), default=0)
    for run in runs:
        say(f"{run.run_id:{width}}  {_describe_run(run, states, names)}")
    for record in selection.jobs:
        jobs = ", ".join(f"{job_id} {states.get(job_id, 'ended')}" for job_id in record.job_ids) or "not submitted"
        say(f"{record.job_name}: {jobs}")
    for problem in [*selection.problems, *(problem for run in runs for problem in run.problems)]:
        say(problem)
    return 0 if whole(runs) and not selection.problems else 1


def cancel(request: Request) -> int:
    """Ends the sweep's jobs, waits for that, and records the end of their attempts; 1 if one remains."""
    selection = select(request)
    _note_cancel(selection)
    ids = selection.job_ids
    runs_here = bool(script_processes(ids, selection.begun_s))
    remaining = _cancel_here(selection)
    queued = any(not record.job_name.startswith("/") for record in selection.jobs)
    remaining += _cancel_jobs(selection) if queued else []
    states, _ = _job_states(selection)
    unreachable = [job_id for job_id in ids if states.get(job_id) == UNKNOWN]
    for job_id in unreachable:
        say(f"{job_id}: cannot be reached from here; the same command ends it on the machine in its name")
    if not (runs_here or queued or unreachable):
        say(f"nothing runs: {'every job of this sweep has ended' if ids else 'no job of this sweep was submitted'}")
    return 1 if remaining or unreachable else 0


def _note_cancel(selection: Selection) -> None:
    """Marks the sweeps as cancelled. Raises SpecError where the folder has no records of jobs, SubmitError where it
    takes no mark."""
    jobs = selection.folders.jobs
    if not jobs.is_dir():
        raise SpecError(
            f"nothing was cancelled: there is no folder {jobs}, which records the jobs of sweep "
            f"{', '.join(selection.sweeps)}; name the folder in which it was started with --out, or end them by scancel"
        )
    try:
        for sweep_id in selection.sweeps:
            note_cancel(selection.folders, sweep_id)
    except OSError as error:
        raise SubmitError(
            f"nothing was cancelled: {jobs} cannot be written ({error.strerror}), and a sweep that follows the jobs "
            "would submit them again; run this where, and as a user for whom, it can be written"
        ) from None


def select(request: Request, plan: Plan | None = None) -> Selection:
    """The requested sweeps, none for all of the folder; `plan` is theirs where it was made before. Raises SpecError
    where the folder holds none of them."""
    folders = Folders.under(request.launch.out)
    broken: list[RecordError] = []
    if request.sweeps:
        plan, planned = plan or prepare(request).plan, planned_sweeps(folders.traces, broken)
        if not any((folder / f"plan.{plan.sweep_id}.json").exists() for folder in (folders.traces, folders.jobs)):
            raise SpecError(_describe_absent(folders, planned))
        sweeps = {plan.sweep_id: plan.runs}
        if any(sweep.repeats == AUTO for sweep in request.sweeps):  # added repeats are sweeps of their own
            points = {run.point_id for run in plan.runs}
            sweeps |= {key: runs for key, runs in planned.items() if points.issuperset(run.point_id for run in runs)}
    elif not (sweeps := planned_sweeps(folders.traces, broken) | _dry_runs_begun(folders)):
        nothing = f"no sweep was planned in {folders.traces}: name its folder with --out"
        if any(folders.jobs.glob("plan.*.json")):
            nothing += f", or give the options of the sweep too: in {folders.jobs} are dry runs alone, none begun"
        raise SpecError("; ".join(map(str, broken)) or nothing)
    begun = _begun_by_hand(folders, {run.run_id for runs in sweeps.values() for run in runs})
    return Selection(
        sweeps=sweeps, folders=folders, problems=[str(error) for error in broken],
        by_hand=[_record_by_hand(folders, runs) for runs in begun],
        begun_s={run.open.job_id: run.open.begin_unix_s for runs in begun for run in runs if run.open is not None},
    )  # fmt: skip


def _dry_runs_begun(folders: Folders) -> dict[str, tuple[RunSpec, ...]]:
    """The sweeps that were planned by a dry run, and whose scripts a person has submitted: a run was begun."""
    planned = planned_sweeps(folders.jobs, [])
    return {
        sweep_id: runs
        for sweep_id, runs in planned.items()
        if any(run.attempts for run in run_statuses([run.run_id for run in runs], folders.traces))
    }


def _begun_by_hand(folders: Folders, run_ids: Collection[str]) -> list[list[RunStatus]]:
    """The runs that are begun in jobs that no sweep submitted, by job."""
    submitted = {job_id for record in recall(folders.jobs).values() for job_id in record.job_ids}
    return list(
        grouped(
            (run.open.job_id, run)
            for run in run_statuses(run_ids, folders.traces)
            if run.open is not None and run.open.job_id not in submitted
        ).values()
    )


def _record_by_hand(folders: Folders, runs: Sequence[RunStatus]) -> SubmissionRecord:
    job = runs[0].open
    assert job is not None
    name = job.job_name or f"{folders.jobs}/*.sh"
    return SubmissionRecord(script="", job_name=name, job_ids=(job.job_id,), runs=tuple(run.run_id for run in runs))


def _describe_absent(folders: Folders, planned: Mapping[str, Sequence[RunSpec]]) -> str:
    """That the folder holds no sweep with the requested options, and which ones it holds."""
    absent = f"no sweep with these options was planned in {folders.traces}"
    if not planned:
        return f"{absent}, and no other: name the folder of the sweep with --out"
    present = []
    for sweep_id, runs in planned.items():
        kinds = dict.fromkeys(f"{run.backend} {run.workload}" for run in runs)
        cases = dict.fromkeys(run.case for run in runs)
        present.append(f"{sweep_id} ({', '.join(kinds)}: {plural(len(runs), 'run')} at {', '.join(cases)})")
    others = f"there are {first_of(present, MAX_SWEEPS)}: without options all are meant"
    return f"{absent}; {others}; an edited workload file is another workload"


def _job_states(selection: Selection) -> tuple[dict[str, str], dict[str, str]]:
    """By job that has not ended: running, pending with the reason, or UNKNOWN; and the names of the queue's."""
    ids = selection.job_ids
    here = f"local-{socket.gethostname()}-"
    states = dict.fromkeys(script_processes(ids, selection.begun_s), "running")
    states |= {job_id: UNKNOWN for job_id in ids if job_id.startswith("local-") and not job_id.startswith(here)}
    queued = [job_id for job_id in ids if not job_id.startswith("local-")]
    if not queued:
        return states, {}
    scheduler = site_scheduler()
    try:
        if scheduler.unreachable():
            raise TransientSubmitError
        names = scheduler.active_jobs((record.job_name for record in selection.jobs), selection.last_jobs)
    except TransientSubmitError:
        return states | dict.fromkeys(queued, UNKNOWN), {}
    active = scheduler.states(list(names))
    reasons = {job_id: f" ({reason})" for job_id, reason in scheduler.reasons.items()}
    return states | {job_id: f"{state}{reasons.get(job_id, '')}" for job_id, state in active.items()}, names


def _describe_run(run: RunStatus, states: Mapping[str, str], names: Mapping[str, str]) -> str:
    """The status of a run as text.

    A job of another name with the attempt's number is another job: a controller that lost its state reuses numbers.
    """
    if run.held and not run.final:
        return "held back: its record cannot be read"
    attempts = "" if run.attempts < 2 else f", {run.attempts} attempts"
    if run.open is None or run.final:
        if run.record is None and run.pending:
            return run.pending
        to_do = "" if run.final or run.rerun_requested or run.record is None else ", to be done"
        return f"{run.state}{attempts}{to_do}{to_do and run.pending and f': {run.pending}'}"
    name = names.get(run.open.job_id, "")
    is_another = bool(name and run.open.job_name and name != run.open.job_name)
    state = "ended" if is_another else states.get(run.open.job_id, "ended")
    copied = "" if run.copy_age_s is None else f", copied {run.copy_age_s:.0f} s ago"
    step = "" if run.last_step is None else f", step {run.last_step}"
    attempt = f"in job {run.open.job_id}{attempts}{step}{copied}"
    gone = {UNKNOWN: "no record, and no scheduler here to query", "ended": "no record, and the job is gone"}
    return f"begun {attempt}: {gone[state]}" if state in gone else f"{state} {attempt}"


def _cancel_here(selection: Selection) -> list[str]:
    """Ends the jobs of this host, those of a sweep that runs through it; returns those that still run."""
    begun_s, folders = selection.begun_s, selection.folders
    running = remaining = script_processes(selection.job_ids, begun_s)
    lock = FolderLock(folders.jobs)
    sweep = lock.process_here() if running else None
    through = [] if sweep is None else [sweep]
    for process in {*through, *(pid for job_id, pid in running.items() if sweep is None or job_id in begun_s)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    until_s = time.monotonic() + PATIENCE_S
    # The sweep records the end of its attempts before it releases the lock.
    while ((remaining := script_processes(running, begun_s)) or (running and lock.process_here())) and (
        time.monotonic() < until_s
    ):
        time.sleep(0.2)
    ended = [job_id for job_id in running if job_id not in remaining]
    close_ended(dict.fromkeys(ended, ended_here("CANCELLED")), folders, say)
    for job_id in running:
        say(f"{job_id}: {'still runs' if job_id in remaining else 'ended'}")
    return list(remaining)


def _cancel_jobs(selection: Selection) -> list[str]:
    """Ends the jobs that the queue has by these sweeps' names, and closes their attempts; returns those that still run.

    The name of a job that a person submitted may be any, and others may have it: its number tells it from these.
    """
    names = {record.job_name for record in selection.jobs if not record.job_name.startswith("/")}
    of_persons = names - {record.job_name for record in selection.submitted}
    known = set(selection.job_ids)
    scheduler = site_scheduler()
    lock = FolderLock(selection.folders.jobs)
    try:
        with lock.held(lambda holder: say(f"waiting for {holder}, which is submitting")):
            jobs = scheduler.active_jobs(names, selection.last_jobs).items()
            active = remaining = [job_id for job_id, name in jobs if name not in of_persons or job_id in known]
            scheduler.cancel(active)
        until_s = time.monotonic() + PATIENCE_S
        while remaining and time.monotonic() < until_s:
            time.sleep(min(scheduler.poll_s, 1.0))
            states = scheduler.states(remaining)
            remaining = [job_id for job_id in remaining if states[job_id] not in (JobState.ENDED, JobState.UNKNOWN)]
    except TransientSubmitError as reason:
        raise SubmitError(f"nothing was cancelled: {reason}") from None
    close_ended(scheduler.ends([job_id for job_id in active if job_id not in remaining]), selection.folders, say)
    for job_id in active:
        say(f"job {job_id}: {'has not ended yet' if job_id in remaining else 'ended'}")
    if not active:
        say("no job of this sweep is in the queue")
    return remaining
