"""How a sweep stands, seen from any machine that sees its folder; and the end of its jobs, and only its jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hpc.model.outcome import RecordError
from hpc.model.spec import SpecError
from launch.cluster.local import ended_here, script_processes
from launch.cluster.lock import FolderLock
from launch.cluster.query import JobState
from launch.cluster.slurm import (
    SlurmCluster,
    SubmitError,
    TransientSubmitError,
    slurm_is_installed,
    why_unreachable,
)
from launch.jobs.script import Folders
from launch.queue import SubmissionRecord, recall
from launch.sweep.finalize import close_attempts, close_ended, note_cancel
from launch.sweep.prepare import Say, prepare
from launch.sweep.run_status import RunStatus, describe_states, planned_sweeps, run_statuses, whole
from launch.sweep.spec import SweepSpec
from launch.sweep.submit import echo

PATIENCE_S = 600
"""How long `cancel` waits for jobs to end: a script gets KillWait, and nodes may be slow to clean up."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The runs that are asked about: those of the sweeps, each with its id; and the folders they are kept in.
    `problems` names plans that cannot be read."""

    sweeps: Mapping[str, Sequence[str]]
    folders: Folders
    problems: Sequence[str] = ()

    @property
    def run_ids(self) -> list[str]:
        """Every run once, in order."""
        return list(dict.fromkeys(run_id for runs in self.sweeps.values() for run_id in runs))

    @property
    def jobs(self) -> list[SubmissionRecord]:
        """The scripts of these sweeps, and the jobs that were made of them; none that holds other sweeps' runs too."""
        runs = set(self.run_ids)
        return [memory for memory in recall(self.folders.jobs) if set(memory.runs) <= runs]


def show(asked: SweepSpec | None, settings: Mapping[str, str]) -> int:
    """Prints how the runs stand; 0 where all are ok. `asked` is None for all sweeps of the folder."""
    say = echo(Console(soft_wrap=True))
    shown = _shown(asked, settings)
    jobs, names = _job_words(shown)
    found = run_statuses(shown.run_ids, shown.folders.traces)
    width = max(map(len, shown.run_ids), default=0)
    for run in found:
        say(f"{run.run_id:{width}}  {_state(run, jobs, names)}")
    for memory in shown.jobs:
        words = ", ".join(f"{job_id} {jobs.get(job_id, 'ended')}" for job_id in memory.job_ids) or "not submitted"
        say(f"{memory.job_name}: {words}")
    for problem in [*shown.problems, *(problem for run in found for problem in run.problems)]:
        say(problem)
    say(f"sweep {', '.join(shown.sweeps)}: {describe_states(found)}")
    return 0 if whole(found) and not shown.problems else 1


def cancel(asked: SweepSpec | None, settings: Mapping[str, str]) -> int:
    """Ends the sweep's jobs, waits until they have, records what became of their attempts; 1 where one remains."""
    say = echo(Console(soft_wrap=True))
    shown = _shown(asked, settings)
    for sweep_id in shown.sweeps:
        note_cancel(shown.folders, sweep_id)
    ids = [job_id for memory in shown.jobs for job_id in memory.job_ids]
    ids_here = script_processes(ids)
    remain = _cancel_here(ids, shown.folders, say)
    reason = why_unreachable() if slurm_is_installed() else ""
    if any(not job_id.startswith("local-") for job_id in ids) or (slurm_is_installed() and not reason):
        remain += _cancel_jobs(shown, say)
    elif not ids_here:
        say(f"no job of this sweep runs here{f'; whether Slurm has any is not known: {reason}' if reason else ''}")
    words, _ = _job_words(shown)
    for job_id in ids:
        if words.get(job_id) == "unknown":
            say(f"{job_id}: cannot be asked from here; on the machine that its name says, the same command ends it")
            remain.append(job_id)
    return 1 if remain else 0


def _shown(asked: SweepSpec | None, settings: Mapping[str, str]) -> Shown:
    folders = Folders.under(Path(settings.get("out", ".")))
    if asked is not None:
        plan = prepare(asked, settings).plan
        return Shown(sweeps={plan.sweep_id: [run.run_id for run in plan.runs]}, folders=folders)
    broken: list[RecordError] = []
    sweeps = planned_sweeps(folders.traces, broken)
    problems = [str(error) for error in broken]
    if not sweeps:
        nothing = f"no sweep was planned in {folders.traces}: name its folder with --out"
        if any(folders.jobs.glob("plan.*.json")):
            nothing += f", or give the options of the sweep too: in {folders.jobs} are dry runs alone"
        raise SpecError("; ".join(problems) or nothing)
    return Shown(
        sweeps={key: [run.run_id for run in runs] for key, runs in sweeps.items()}, folders=folders, problems=problems
    )


def _job_words(shown: Shown) -> tuple[dict[str, str], dict[str, str]]:
    """What can be known from here of each job: pending, and why, or running; what is not named has ended; "unknown"
    where nobody is there to be asked. And the names of the jobs that Slurm has."""
    ids = [job_id for memory in shown.jobs for job_id in memory.job_ids]
    words = dict.fromkeys(script_processes(ids), "running")
    here = f"local-{socket.gethostname()}-"
    words |= {job_id: "unknown" for job_id in ids if job_id.startswith("local-") and not job_id.startswith(here)}
    of_slurm = [job_id for job_id in ids if not job_id.startswith("local-")]
    if not of_slurm:
        return words, {}
    if why_unreachable():
        return words | dict.fromkeys(of_slurm, "unknown"), {}
    cluster = SlurmCluster(shown.folders.logs)
    try:
        living = cluster.active_jobs(memory.job_name for memory in shown.jobs)
    except TransientSubmitError:
        return words | dict.fromkeys(of_slurm, "unknown"), {}
    states = cluster.states(list(living))
    why = {job_id: f" ({reason})" for job_id, reason in cluster.reasons.items()}
    return words | {job_id: f"{state}{why.get(job_id, '')}" for job_id, state in states.items()}, living


def _state(run: RunStatus, jobs: Mapping[str, str], names: Mapping[str, str]) -> str:
    """One run in words: what stands, or what is going on.

    A job of another name with the attempt's number is another job: a controller that lost its state reuses numbers.
    """
    if run.held and not run.final:
        return "held back: its record cannot be read"
    attempts = "" if run.attempts < 2 else f", {run.attempts} attempts"
    if run.open is None or run.final:
        to_do = "" if run.final or run.rerun_requested or run.record is None else ", to be done"
        return f"{run.state}{attempts}{to_do}"
    name = names.get(run.open.job_id, "")
    is_another = bool(name and run.open.job_name and name != run.open.job_name)
    word = "ended" if is_another else jobs.get(run.open.job_id, "ended")
    copied = "" if run.copy_age_s is None else f", copied {run.copy_age_s:.0f} s ago"
    step = "" if run.last_step is None else f", step {run.last_step}"
    if word == "unknown":
        return f"begun in job {run.open.job_id}{attempts}{step}{copied}: no record, and nobody here to ask"
    if word == "ended":
        return f"begun in job {run.open.job_id}{attempts}{step}{copied}: no record, and the job is gone"
    return f"{word} in job {run.open.job_id}{attempts}{step}{copied}"


def _cancel_here(ids: Sequence[str], folders: Folders, say: Say) -> list[str]:
    """Ends those that run on this host, through the sweep that started them where it lives; those that would not."""
    running = left = script_processes(ids)
    lock = FolderLock(folders.jobs)
    sweep = lock.process_here() if running else None
    for process in [sweep] if sweep is not None else running.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    until_s = time.monotonic() + PATIENCE_S
    # The sweep records what became of its attempts before it lets go of the lock.
    while ((left := script_processes(running)) or (running and lock.process_here())) and time.monotonic() < until_s:
        time.sleep(0.2)
    ended = [job_id for job_id in running if job_id not in left]
    close_ended(dict.fromkeys(ended, ended_here("CANCELLED")), folders, say)
    for job_id in running:
        say(f"{job_id}: {'still runs' if job_id in left else 'ended'}")
    return list(left)


def _cancel_jobs(shown: Shown, say: Say) -> list[str]:
    """Ends the jobs that Slurm has by these sweeps' names, and closes their attempts; those that would not end."""
    memories = {memory.job_name: memory for memory in shown.jobs if not memory.job_name.startswith("/")}
    if not memories:
        return []
    cluster = SlurmCluster(shown.folders.logs)
    lock = FolderLock(shown.folders.jobs)
    try:
        with lock.held(lambda holder: say(f"waiting for {holder}, which is submitting")):
            ours = list(cluster.active_jobs(memories))
            cluster.cancel(ours)
        until_s = time.monotonic() + PATIENCE_S
        left = ours
        while left and time.monotonic() < until_s:
            time.sleep(min(cluster.poll_s, 1.0))
            states = cluster.states(left)
            left = [job_id for job_id in left if states[job_id] not in (JobState.ENDED, JobState.UNKNOWN)]
    except TransientSubmitError as reason:
        raise SubmitError(f"nothing was cancelled: {reason}") from None
    close_attempts(cluster, [job_id for job_id in ours if job_id not in left], shown.folders, say)
    for job_id in ours:
        say(f"job {job_id}: {'has not ended yet' if job_id in left else 'ended'}")
    if not ours:
        say("no job of this sweep is in the queue")
    return left
