"""`hpc.sweep retry`: the runs of a folder that ended with given outcomes, once more, by the job scripts there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.model.outcome import MAX_PLAN_BYTES, Outcome, RecordError
from hpc.model.spec import Plan, RunSpec, SpecError
from hpc.system.regular_file import read_text
from hpc.system.text import first_of, plural
from hpc.workloads import code_digest
from launch.follow import say
from launch.jobs.plan import JobPlan, PlanError, WrittenJob
from launch.jobs.script import Folders
from launch.queue import SubmissionRecord, recall
from launch.scheduler.local import what_is_missing
from launch.scheduler.protocol import SubmitError
from launch.scheduler.table import site_scheduler
from launch.sweep.prepare import Prepared, Say
from launch.sweep.request import Request, SweepOptions
from launch.sweep.run_status import (
    RunStatus,
    choose_reruns,
    describe_states,
    mend_records,
    planned_sweeps,
    run_statuses,
)
from launch.sweep.status import select
from launch.sweep.submit import Batches, Producer, Sweep
from launch.sweep.target import TargetError, cannot_run

MAX_RUNS = 3
"""Runs that a refusal names."""
REMEDY = "the options of the sweep beside retry (--nodes …) rewrite its scripts"


@dataclass(frozen=True, kw_only=True)
class Matching:
    """The runs of a folder that ended with the requested outcomes, and the sweeps that hold them."""

    options: SweepOptions
    folders: Folders
    sweep_ids: tuple[str, ...]
    runs: tuple[RunSpec, ...]
    statuses: tuple[RunStatus, ...]


def if_any_ended_so(produce: Producer) -> Producer:
    """What `produce` makes of a plan, where a run of it ended with the requested outcomes; else raises SpecError."""

    def batches(prepared: Prepared, say: Say) -> Batches:
        matching(prepared.request, prepared.plan)
        return (yield from produce(prepared, say))

    return batches


def matching(request: Request, plan: Plan | None = None) -> Matching:
    """The runs of the plan, or where there is none of all of the folder, that ended so; the tries of find-max that
    found an oom are answered. Raises SpecError where there are none."""
    selection, options = select(request, plan), request.options
    runs = selection.runs
    statuses = run_statuses(runs, selection.folders.traces)
    ended_so = [
        status for status in statuses
        if status.record is not None and status.record.outcome in options.retry and not status.held
        and not (status.record.outcome is Outcome.OOM and runs[status.run_id].search)
    ]  # fmt: skip
    if not ended_so:
        problems = "".join(f"; {problem}" for problem in selection.problems)
        raise SpecError(
            f"no run in {selection.folders.traces} ended {' or '.join(options.retry)}; there are "
            f"{describe_states(statuses)}{problems}"
        )
    chosen = tuple(runs[status.run_id] for status in ended_so)
    ids = {run.run_id for run in chosen}
    holding = tuple(
        sweep_id for sweep_id, planned in selection.sweeps.items() if any(run.run_id in ids for run in planned)
    )
    return Matching(
        options=options, folders=selection.folders, sweep_ids=holding, runs=chosen, statuses=tuple(ended_so)
    )


def retry(request: Request) -> int:
    """Submits the scripts of the folder that made the runs that ended so, if no job is queued, and follows them; the
    exit status of the command line. Raises SpecError or PlanError where a script cannot do that or no run ended so,
    and what `submit.sweep` raises."""
    wanted = matching(request)
    _refuse_changed_code(wanted.runs)
    jobs = _stored_jobs(wanted)
    if wanted.options.dry_run:
        for line in _describe(wanted, jobs):
            say(line)
        say("dry run: nothing was submitted")
        return 0
    by_place = {here: [job for job in jobs if _runs_here(job) is here] for here in (False, True)}
    for here, placed in by_place.items():
        if placed:
            _check_place(placed, here=here)
    status = 0
    for here, placed in by_place.items():  # Slurm's first: they need not be waited for on this machine
        if placed:
            try:
                status = max(status, StoredSweep(wanted, placed, here=here).run())
            except KeyboardInterrupt:
                return 130
    return status


class StoredSweep(Sweep):
    """Jobs of a folder, by the scripts that earlier sweeps have written."""

    def __init__(self, wanted: Matching, jobs: Sequence[WrittenJob], *, here: bool) -> None:
        super().__init__(wanted.folders, wanted.sweep_ids, wanted.options, here=here)
        self._stored, self._wanted = list(jobs), wanted

    def begin(self) -> list[WrittenJob]:
        for line in _describe(self._wanted, self._stored):
            say(line)
        mend_records(self._folders, say)
        held = {run.run_id for job in self._stored for run in job.plan.runs}
        runs = [run for run in self._wanted.runs if run.run_id in held]
        choose_reruns(self._options, runs, self._traces, None, say)
        return self._stored


def _describe(wanted: Matching, jobs: Sequence[WrittenJob]) -> list[str]:
    chosen = {run.run_id for run in wanted.runs}
    lines = []
    for job in jobs:
        runs = [run.run_id for run in job.plan.runs]
        others = [status for status in run_statuses(set(runs) - chosen, wanted.folders.traces) if not status.final]
        rest = f", and {plural(len(others), 'run')} of it still to be done" if others else ""
        lines.append(f"  {job.script}: {len(chosen.intersection(runs))} of {plural(len(runs), 'run')}{rest}")
    return [f"sweep {', '.join(wanted.sweep_ids)}, by the unchanged job scripts:", *lines]


def _refuse_changed_code(runs: Sequence[RunSpec]) -> None:
    """Raises SpecError where a file of the user's own is another workload now: its runs would end as invalid."""
    for workload, digest in {run.workload: run.code_digest for run in runs if run.code_digest}.items():
        if code_digest(workload) != digest:
            raise SpecError(
                f"{workload}, or what it imports from its folder, has changed since its runs were planned: it is "
                "another workload now, which the command of the sweep measures"
            )


def _check_place(jobs: Sequence[WrittenJob], *, here: bool) -> None:
    """Raises TargetError or SubmitError where these jobs cannot start."""
    if not here:
        if reason := site_scheduler().unreachable():
            scripts = ", ".join(job.script.name for job in jobs)
            raise SubmitError(f"{scripts}: a job of Slurm, and no controller answers here: {reason}")
        return
    backends = list(dict.fromkeys(run.backend for job in jobs for run in job.plan.runs))
    if lacking := [*cannot_run(backends, None).values(), *what_is_missing()]:
        raise TargetError("; ".join(lacking))


def _stored_jobs(wanted: Matching) -> list[WrittenJob]:
    """The jobs of the scripts that last made these runs. Raises PlanError where the folder does not hold them."""
    broken: list[RecordError] = []
    planned = {run.run_id: run for runs in planned_sweeps(wanted.folders.traces, broken).values() for run in runs}
    records = {wanted.folders.jobs / script: record for script, record in recall(wanted.folders.jobs).items()}
    scripts = {status.run_id: _script_of(status, records) for status in wanted.statuses}
    if without := [run_id for run_id, script in scripts.items() if script is None]:
        raise PlanError(
            f"{wanted.folders.jobs} holds no script of {first_of(without, MAX_RUNS)} that was submitted; {REMEDY}"
        )
    chosen = sorted({script for script in scripts.values() if script is not None})
    return [_stored_job(script, records[script], planned, wanted.folders) for script in chosen]


def _script_of(status: RunStatus, records: Mapping[Path, SubmissionRecord]) -> Path | None:
    """The script whose job made the run's last attempt, else the one that was submitted last, of those with the run."""
    holding = [script for script, record in records.items() if status.run_id in record.runs]
    job_id = status.record.job_id if status.record is not None else ""
    made_it = [script for script in holding if job_id in records[script].job_ids]
    return next(reversed(made_it or holding), None)


def _stored_job(script: Path, record: SubmissionRecord, planned: Mapping[str, RunSpec], folders: Folders) -> WrittenJob:
    """The job of a script. Raises PlanError where it is of another folder, or of runs that no plan here has."""
    if unknown := [run_id for run_id in record.runs if run_id not in planned]:
        raise PlanError(f"no plan in {folders.traces} has {first_of(unknown, MAX_RUNS)}, of {script}; {REMEDY}")
    try:
        text = read_text(script, MAX_PLAN_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{script} cannot be read ({error}); {REMEDY}") from None
    written_for = re.search(r"^traces=(.+)$", text, re.MULTILINE)
    folder = Path(*shlex.split(written_for[1])[:1]) if written_for else Path("?")
    if not (folder.is_dir() and folder.samefile(folders.traces)):
        raise PlanError(f"{script} writes to {folder}, and not to {folders.traces}: the folder was moved; {REMEDY}")
    runs = tuple(planned[run_id] for run_id in record.runs)
    # The script has its requests, its time too.
    plan = JobPlan(
        name=script.name.partition(".")[0], nodes=max(run.nodes for run in runs), time_min=0, request={}, runs=runs
    )
    return WrittenJob(plan=plan, script=script, text=text, submitted_as=record.job_name)


def _runs_here(job: WrittenJob) -> bool:
    """Whether this machine ran the script: its job had no name in Slurm."""
    return job.submitted_as.startswith("/")
