"""A sweep from what is asked to runs that have ended: decides sizes, writes scripts, submits, follows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hpc.backends import BACKENDS
from hpc.outcome import ExitRecord, Outcome, RecordError, exit_records, read_rank_note, settling_record, stem
from hpc.spec import COLLECTIVES, Plan, SpecError
from hpc.sweep_spec import SweepSpec, expand
from hpc.target import TargetError, cannot_run, decide_target, no_twins, odd_builds, options_of, with_absolute_paths
from launch.follow import Follower, follow, write_missing_records
from launch.local import LocalCluster, launcher, what_is_missing
from launch.plan import JobPlan, PlanError, WrittenJob, nested_in_words, plan_jobs, write_sweep
from launch.script import Folders, render_job, render_local
from launch.site import Site, SiteError, find_site
from launch.slurm import SlurmCluster, SubmitError, controller_answers, header
from launch.state import JobState

FAILURES = (SiteError, PlanError, SubmitError, TargetError, RecordError)


def sweep(asked: SweepSpec, settings: Mapping[str, str], flags: Mapping[str, bool]) -> int:
    """Plans and runs a sweep; the exit status of the command line."""
    console = Console(soft_wrap=True)
    site = _site(settings)
    asked = with_absolute_paths(asked)
    plan = expand(asked, decide_target(asked, site), options_of)
    jobs = _jobs(plan, site, settings)
    missing = what_is_missing() if site is None else []
    unable = cannot_run(asked.backend, site)
    if not flags["dry_run"]:
        _refuse_what_nothing_can_run(asked, missing, unable, site)
    folders = Folders.under(Path(settings.get("out", ".")))
    written = write_sweep(plan, jobs, folders, lambda job: _render(job, site, folders))
    _tell(console, plan, jobs, written)
    odd = odd_builds([name for name in asked.backend if name not in unable], site)
    for line in (*unable.values(), *odd, *no_twins(asked)):
        console.print(line, markup=False, highlight=False)
    if unable:
        console.print("their runs end as launch_fail; the same command runs them once they can", highlight=False)
    if flags["dry_run"]:
        _show(console, written, missing)
        return 0
    return _run(console, written, site, folders, flags)


def _refuse_what_nothing_can_run(
    asked: SweepSpec, missing: Sequence[str], unable: Mapping[str, str], site: Site | None
) -> None:
    if missing or len(unable) == len(asked.backend):
        hint = [] if site is None else ["if the nodes have it, name their Python in [interpreter] of the site file"]
        raise TargetError("; ".join([*unable.values(), *missing, *hint]))


def _site(settings: Mapping[str, str]) -> Site | None:
    """The Slurm site that the runs are for, with what the command line overrides; None is this machine."""
    cluster = settings.get("cluster", "auto")
    if cluster not in ("auto", "slurm", "local"):
        raise SpecError(f"cluster {cluster!r} is not one of auto, slurm, local")
    if cluster == "local":
        return None
    site = find_site(settings.get("site"))
    if cluster == "auto" and site is None and not controller_answers():
        return None
    overrides = ("partition", "account", "qos", "reservation", "nodelist", "exclude", "constraint")
    changes: dict[str, Any] = {key: settings[key] for key in overrides if key in settings}
    return dataclasses.replace(site or Site(name="slurm"), **changes)


def _jobs(plan: Plan, site: Site | None, settings: Mapping[str, str]) -> list[JobPlan]:
    try:
        minutes = int(settings.get("minutes_per_run", "10"))
        time_min = int(settings["time"]) if "time" in settings else None
    except ValueError:
        raise SpecError("--time and --minutes-per-run are whole minutes") from None
    if minutes < 1 or (time_min is not None and time_min < 1):
        raise SpecError("--time and --minutes-per-run must be at least 1 minute")
    return plan_jobs(plan.runs, site or Site(name="local", exclusive=False), minutes, time_min)


def _render(job: JobPlan, site: Site | None, folders: Folders) -> str:
    if site is None:
        return render_local(job.runs, launcher(), folders)
    frameworks = {name: entry.framework for name, entry in BACKENDS.items()}
    return render_job(job.runs, header(job, folders), site, folders, frameworks, job.subsets)


def _tell(console: Console, plan: Plan, jobs: Sequence[JobPlan], written: Sequence[WrittenJob]) -> None:
    """What is about to be done, in numbers, before anything is."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    points = len({run.point_id for run in plan.runs})
    where = "this machine, nodes simulated" if plan.target.nodes_simulated else f"site {plan.target.site}"
    say(f"sweep {plan.sweep_id} on {where}: {points} points, {len(plan.runs)} runs in {len(jobs)} jobs")
    if not plan.target.nodes_simulated:
        hours = sum(job.node_hours for job in jobs)
        say(f"asks for {hours:.1f} node-hours at most, less where runs are settled already")
        for line in nested_in_words(jobs):
            say(line)
    elif any(job.subsets for job in jobs):
        say("nested: the runs' order is shuffled; which nodes they use has no meaning where nodes are simulated")
    if plan.reduced:
        say(f"no GPU for the runs, so what nobody chose is small: {'; '.join(plan.reduced)}")
    for job in written:
        of_time = "" if plan.target.nodes_simulated else f", {job.plan.time_min} min on {job.plan.nodes} nodes"
        say(f"  {job.script}: {len(job.plan.runs)} runs{of_time}")


def _show(console: Console, written: Sequence[WrittenJob], missing: Sequence[str]) -> None:
    """The scripts, in place of submitting them, and what a run would want."""
    lines = [*(f"\n===== {job.script}\n{job.text}" for job in written), "dry run: nothing was submitted"]
    for line in [*lines, *(f"note: {line}" for line in missing)]:
        console.print(line, markup=False, highlight=False)


def _run(
    console: Console, written: Sequence[WrittenJob], site: Site | None, folders: Folders, flags: Mapping[str, bool]
) -> int:
    """Submits the jobs that have something left to do, follows them, and says how they ended."""
    cluster: SlurmCluster | LocalCluster = LocalCluster(folders.logs) if site is None else SlurmCluster(folders.logs)
    if site is not None and not controller_answers():
        raise SubmitError(f"no Slurm controller answers here, and site {site.name} is a Slurm site")
    records = exit_records(folders.traces)
    submitted: dict[str, WrittenJob] = {}
    to_do: dict[str, int] = {}
    for job in written:
        left = [run for run in job.plan.runs if settling_record(records.get(run.run_id, [])) is None]
        if not left and not flags["force"]:
            console.print(f"{job.script.name}: every run is settled, nothing to submit", highlight=False)
            continue
        if (job_id := _still_there(cluster, job)) is not None:
            console.print(f"{job.script.name}: job {job_id} is there already, joined", highlight=False)
        else:
            job_id = cluster.submit(job, force=flags["force"])
            _remember(job, job_id)
            count = len(job.plan.runs) if flags["force"] else len(left)
            console.print(f"{job.script.name}: submitted as {job_id}, {count} runs to do", highlight=False)
        submitted[job_id] = job
        for run in job.plan.runs if flags["force"] else left:
            to_do[run.run_id] = max((record.attempt for record in records.get(run.run_id, [])), default=0)
    if flags["detach"]:
        if isinstance(cluster, LocalCluster) and submitted:
            console.print(f"running in process {cluster.detach()}", highlight=False)
        return 0
    if submitted:
        _follow(console, cluster, submitted, folders, to_do)
    return _close(console, written, folders)


def _follow(
    console: Console, cluster: SlurmCluster | LocalCluster, submitted: Mapping[str, WrittenJob], folders: Folders,
    to_do: Mapping[str, int],
) -> None:  # fmt: skip
    try:
        follow(Follower(cluster, submitted, folders.traces, _speed, to_do), console)
    except BaseException as error:
        # Whatever ends the following ends what runs on this machine; jobs of a scheduler go on by themselves.
        if isinstance(cluster, LocalCluster):
            cluster.cancel(list(submitted))
            write_missing_records(folders.traces, cluster.words)
            console.print("stopped, and the runs on this machine with it")
        else:
            console.print("left; the jobs go on: the same command joins them")
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(130) from None
        raise
    write_missing_records(folders.traces, cluster.words)


def _speed(path: Path) -> float | None:
    from hpc.trace import TraceError
    from hpc.trace_file import read_trace
    from parse.attempt import measure

    try:
        trace = read_trace(path)
        return None if trace.run.probe == COLLECTIVES else measure(trace).throughput
    except TraceError:
        return None  # shown as no speed; the summary names the file and what is wrong with it


def _still_there(cluster: SlurmCluster | LocalCluster, job: WrittenJob) -> str | None:
    """The id of the job submitted from this script earlier, if it is pending or running now."""
    if not isinstance(cluster, SlurmCluster):
        return None
    try:
        job_id = str(json.loads(_memory(job).read_text())["job_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    state = cluster.states([job_id])[job_id]
    return job_id if state in (JobState.PENDING, JobState.RUNNING) else None


def _remember(job: WrittenJob, job_id: str) -> None:
    _memory(job).write_text(json.dumps({"job_id": job_id}) + "\n")


def _memory(job: WrittenJob) -> Path:
    return job.script.with_suffix(".job.json")


def _why(record: ExitRecord, folders: Folders) -> str:
    """What a rank of the attempt said, and where its whole output is."""
    name = stem(record.run_id, record.attempt)
    messages = []
    for path in sorted(folders.traces.glob(f"{name}.rank*.json")):
        note = read_rank_note(path)
        messages.append(f"rank {note.rank}: {note.exception}: {note.message}")
    return "; ".join([*messages[:1], f"see {folders.logs / name}.err"])


def _close(console: Console, written: Sequence[WrittenJob], folders: Folders) -> int:
    """Counts outcomes over the whole sweep and names the next command; 0 where every run is ok."""
    records = exit_records(folders.traces)
    runs = [run for job in written for run in job.plan.runs]
    standing: dict[str, ExitRecord | None] = {}
    for run in runs:
        its = records.get(run.run_id, [])
        standing[run.run_id] = settling_record(its) or (its[-1] if its else None)
    counts: dict[str, int] = {}
    for record in standing.values():
        word = record.outcome if record else "never ran"
        counts[word] = counts.get(word, 0) + 1
    console.print(", ".join(f"{count} {word}" for word, count in counts.items()), highlight=False)
    for run_id, record in standing.items():
        if record is not None and record.outcome is not Outcome.OK:
            console.print(f"  {run_id}: {record.outcome}: {_why(record, folders)}", markup=False, highlight=False)
    console.print(f"python -m parse.summarize {folders.traces}", markup=False, highlight=False)
    return 0 if set(counts) <= {Outcome.OK} else 1
