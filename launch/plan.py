"""One job per node count, split where it would not fit the time limit; and its files, written once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.spec import Plan, RunSpec
from launch.script import Folders
from launch.site import Site

RequestValue = str | int | bool


class PlanError(ValueError):
    """The plan cannot be written or does not fit the site; the text says what was asked and what is possible."""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """One job: its name (`2n`, `2n-part2`), what it asks of the scheduler in Slurm's words, its runs in order."""

    name: str
    nodes: int
    time_min: int
    request: Mapping[str, RequestValue]
    runs: tuple[RunSpec, ...]

    @property
    def node_hours(self) -> float:
        """What the job asks for, as far as its time limit reaches."""
        return self.nodes * self.time_min / 60


@dataclass(frozen=True, kw_only=True)
class WrittenJob:
    """A job with the file that holds its script."""

    plan: JobPlan
    script: Path
    text: str


def plan_jobs(runs: Iterable[RunSpec], site: Site, minutes_per_run: int, time_min: int | None) -> list[JobPlan]:
    """Groups runs by node count; each run is allowed `minutes_per_run`, a job at most the limit of site and person."""
    limits = [limit for limit in (site.time_limit_min, time_min) if limit is not None]
    limit = min(limits, default=None)
    if limit is not None and limit < minutes_per_run:
        raise PlanError(
            f"a job may take {limit} min and a run is allowed {minutes_per_run} min: not one run fits; "
            "raise --time, or lower --minutes-per-run"
        )
    by_nodes: dict[int, list[RunSpec]] = {}
    for run in runs:
        by_nodes.setdefault(run.nodes, []).append(run)
    jobs = []
    for nodes, its_runs in sorted(by_nodes.items()):
        fit = len(its_runs) if limit is None else limit // minutes_per_run
        for part, first in enumerate(range(0, len(its_runs), fit), start=1):
            chosen = tuple(its_runs[first : first + fit])
            name = f"{nodes}n" if part == 1 else f"{nodes}n-part{part}"
            minutes = time_min if time_min is not None and limit == time_min else len(chosen) * minutes_per_run
            jobs.append(
                JobPlan(
                    name=name, nodes=nodes, time_min=minutes, runs=chosen, request=_request(name, chosen, site, minutes)
                )
            )
    return jobs


def _request(name: str, runs: Sequence[RunSpec], site: Site, minutes: int) -> dict[str, RequestValue]:
    asked: dict[str, RequestValue] = {
        "job_name": f"rankwise-{name}",
        "nodes": runs[0].nodes,
        "ntasks_per_node": max(run.ranks_per_node for run in runs),
        "cpus_per_task": max(run.cpus_per_rank for run in runs),
        "time": minutes,
    }
    if gpus := max(run.gpus_per_node for run in runs):
        asked["gpus_per_node"] = gpus
    if site.exclusive:
        asked["exclusive"] = True
    for key in ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude"):
        if value := getattr(site, key):
            asked[key] = value
    for key, value in asked.items():
        if isinstance(value, str) and ("\n" in value or "\r" in value):
            raise PlanError(f"{key}: {value!r} holds a line break, which no line of a job script's header can")
    return asked


def write_sweep(
    plan: Plan, jobs: Sequence[JobPlan], folders: Folders, render: Callable[[JobPlan], str]
) -> list[WrittenJob]:
    """Writes RUN.json files, the plan and the job scripts. Raises PlanError where the folder cannot take them.

    A script is never overwritten by another one: a sweep that finds its name taken writes `2n.<sweep id>.sh`.
    """
    try:
        for folder in (folders.jobs / "runs", folders.logs, folders.traces):
            folder.mkdir(parents=True, exist_ok=True)
        _write_once(folders.traces / f"plan.{plan.sweep_id}.json", json.dumps(plan.to_json(), indent=1) + "\n")
        for run in plan.runs:
            _write_once(folders.run_file(run), json.dumps(run.to_json(), indent=1) + "\n")
        written = []
        for job in jobs:
            text = render(job)
            script = folders.jobs / f"{job.name}.sh"
            if script.exists() and script.read_text() != text:
                script = folders.jobs / f"{job.name}.{plan.sweep_id}.sh"
            _write_once(script, text)
            written.append(WrittenJob(plan=job, script=script, text=text))
    except OSError as error:
        raise PlanError(f"the sweep's folder cannot be written: {error.filename}: {error.strerror}") from None
    return written


def _write_once(path: Path, text: str) -> None:
    """Leaves a file alone that says the same already; else writes beside and renames, so no reader sees half."""
    if path.exists() and path.read_text() == text:
        return
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
