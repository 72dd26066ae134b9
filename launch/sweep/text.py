"""The sentences of a sweep: its plan, the events of its queue, the states of its runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.evidence import end_of_output
from hpc.model.outcome import ExitRecord, Outcome, RecordError, read_rank_notes
from hpc.model.reference import Reference
from hpc.model.spec import RunSpec
from hpc.model.verdict import cause
from hpc.system.text import grouped, plural
from launch import queue
from launch.jobs.plan import WrittenJob, describe_nested
from launch.jobs.script import Folders
from launch.sweep.run_status import RunStatus, describe_states

if TYPE_CHECKING:
    from launch.sweep.prepare import Prepared

_ERROR = re.compile(r"error", re.IGNORECASE)
_LINE_CHARACTERS = 300


def describe_plan(prepared: Prepared, written: Sequence[WrittenJob]) -> Iterator[str]:
    """The size of a sweep, its jobs and its warnings, before anything is done."""
    plan, jobs, simulated = prepared.plan, prepared.jobs, prepared.plan.target.nodes_simulated
    points = len({run.point_id for run in plan.runs})
    where = "this machine, nodes simulated" if simulated else f"site {plan.target.site}"
    size = f"{plural(points, 'point')}, {plural(len(plan.runs), 'run')} in {plural(len(jobs), 'job')}"
    yield f"sweep {plan.sweep_id} on {where}: {size}"
    if not simulated:
        hours = sum(job.node_hours for job in jobs)
        shown = f"{hours:{'.1f' if hours >= 1 else '.2g'}} node-hours"
        yield f"requests {shown} at most, less where runs are final already"
        yield from describe_nested(jobs)
    elif any(job.subsets for job in jobs):
        yield "nested: the runs' order is shuffled; which nodes they use has no meaning where nodes are simulated"
    if base := describe_base(plan.runs):
        yield base
    if (recipe := prepared.request.recipe) is not None:
        yield from _describe_recipe(recipe, prepared.departs)
    if plan.reduced:
        yield f"no GPU for the runs, so sizes not given are small: {'; '.join(plan.reduced)}"
    for job in written:
        time = "" if simulated else f", {job.plan.time_min} min on {plural(job.plan.nodes, 'node')}"
        yield f"  {job.script}: {plural(len(job.plan.runs), 'run')}{time}"
        for other in job.passed_over:
            yield (
                f"    not {other.name}, which has these runs and another text (changed by hand, or made by another "
                "version, with other options or in another folder): it is left unchanged and not submitted"
            )
    unable = prepared.unable
    yield from (*unable.values(), *prepared.notes)
    if unable:
        yield "their runs end as launch_fail; the same command runs them once they can"


def describe_base(runs: Iterable[RunSpec]) -> str:
    """The case that speedup will be against; empty where nothing is measured against another."""
    settings = grouped((run.baseline().point_id, run) for run in runs if run.repeat == 1 and not run.diagnostic)
    bases: dict[str, RunSpec] = {}
    for of_setting in settings.values():
        base = min(of_setting, key=lambda run: (run.devices, run.nodes))
        if any(run.case != base.case for run in of_setting):
            bases.setdefault(base.case, base)
    if not bases:
        return ""
    line = f"speedup will be against {' or '.join(bases)}"
    if all(base.devices == 1 for base in bases.values()):
        return line
    smallest = "the smallest case" if len(bases) == 1 else "the smallest case of each setting"
    return f"{line}, {smallest}"


def _describe_recipe(recipe: Reference, departs: Sequence[str]) -> Iterator[str]:
    """The recipe of a sweep, in what the sweep departs from it, and what every sweep does otherwise."""
    yield f"recipe {recipe.name}: {recipe.title}"
    if departs:
        yield f"departs from the recipe: {'; '.join(departs)}"
    yield from (f"unlike the document: {line}" for line in recipe.unlike)


def describe_event(event: queue.Event) -> str:
    """An event of the queue as a line; empty for the end of jobs."""
    line = ""
    match event:
        case queue.FolderLocked():
            line = f"waiting for {event.holder}, which is submitting"
        case queue.NothingToDo():
            line = f"{event.script}: every run is final, nothing to submit"
        case queue.NotSubmitted():
            line = f"{event.script}: not submitted, because its sweep was cancelled meanwhile"
        case queue.Joined():
            line = f"{event.script}: job {', '.join(event.job_ids)} is queued or running already: followed"
        case queue.Submitted():
            line = f"{event.script}: submitted as {event.job_id}, {plural(event.runs, 'run')} to do"
        case queue.Refused():
            line = f"{event.scripts} jobs wait: {event.reason}; next try in {event.retry_s:.0f} s"
        case queue.Pending():
            line = f"job {event.job_id} is pending: {event.reason}"
        case queue.Released():
            done = f"not released: {event.problem}" if event.problem else "released"
            line = f"job {event.job_id} was put back and held because its launch failed: {done}"
        case queue.Unlisted():
            line = f"the scheduler does not list job {', '.join(event.job_ids)}, which counts as active: {event.reason}"
    return line


def describe_runs(runs: Sequence[RunStatus], folders: Folders) -> Iterator[str]:
    """Counts of the runs by state, and a line for each that is begun or not ok."""
    yield describe_states(runs)
    for run in runs:
        if run.open is not None and not run.final:
            yield (
                f"  {run.run_id}: begun in job {run.open.job_id}, no record yet; rankwise sweep status shows its state"
            )
        elif run.record is not None and run.record.outcome is not Outcome.OK:
            yield f"  {run.run_id}: {run.record.outcome}: {describe_failure(run.record, folders)}"
        yield from (f"  {problem}" for problem in run.problems)


def describe_output(files: Sequence[Path]) -> str:
    """Which of a job's files says why it began nothing, with its line: what launch.step printed to the first, else the
    first line of an error, else the last line, of the last file that has any."""
    lines = {path: [line for line in end_of_output(path).splitlines() if line.strip()] for path in files}
    if not (printed := [path for path in files if lines[path]]):
        return f"see {files[0]}, which is empty" if files[0].exists() else f"there is no {files[0]}"
    by_step = any(line.startswith("rankwise ") for line in lines[files[0]])
    path = files[0] if by_step else printed[-1]
    line = lines[path][-1] if by_step else next(filter(_ERROR.search, lines[path]), lines[path][-1])
    return f"{path}: {line.strip()[:_LINE_CHARACTERS]}"


def describe_failure(record: ExitRecord, folders: Folders) -> str:
    """The evidence of the outcome, and where the attempt's whole output is."""
    files = record.files(folders.traces)
    reasons, unread = list(record.evidence[:1]), list[RecordError]()
    if not reasons:
        note = cause(read_rank_notes(files, unread))
        reasons = [*([f"{note.origin}: {note.message}"] if note else []), *map(str, unread)]
    printed = files.error(folders.logs)
    where = f"see {printed}" if printed.exists() else f"it left no output of its own: see its job's in {folders.logs}"
    return "; ".join([*reasons, where])
