"""Planning and rendering 1,000 runs: at most a second. `python -m benchmarks.bench_plan`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.pairs import BLOCKS, against_limit
from hpc.model.spec import Target
from launch.jobs.plan import JobPlan, plan_jobs, write_sweep
from launch.jobs.script import Folders, render_job
from launch.jobs.site import Site
from launch.scheduler.slurm import Slurm
from launch.sweep.expansion import expand
from launch.sweep.spec import SweepSpec

LIMIT_S = 1.0
REQUEST = SweepSpec.from_mapping(
    {"nodes": list(range(1, 101)), "ranks_per_node": 8, "repeats": 10, "no_baseline": True}
)
TARGET = Target(site="bench", gpus_per_node=8, cpus_per_node=64)
SITE = Site(name="bench", gpus_per_node=8, partition="gpu")


def plan_and_render(folders: Folders, write: bool) -> float:
    """Seconds from the request to the text of every script; with `write` also to the files of the sweep."""
    begin = perf_counter()
    plan = expand(REQUEST, TARGET)
    jobs = plan_jobs(plan.runs, SITE, minutes_per_run=10, time_min=None)
    assert len(plan.runs) == 1000 and len(jobs) == 100
    if write:
        write_sweep(plan, [(job, _render(job, folders)) for job in jobs], folders)
    else:
        for job in jobs:
            _render(job, folders)
    return perf_counter() - begin


def _render(job: JobPlan, folders: Folders) -> str:
    return render_job(job.runs, Slurm().header(job, folders), SITE, folders, {"torch-ddp": "torch"})


def main() -> None:
    """Prints one line for the work itself and one with the files, which cost what the disk costs."""
    for name, write in (("in memory", False), ("with 1,100 files on this disk", True)):
        taken = []
        for _ in range(BLOCKS + 1):
            with tempfile.TemporaryDirectory() as folder:
                taken.append(plan_and_render(Folders.under(Path(folder)), write))
        print(against_limit(f"plan and render 1,000 runs, {name}", taken[1:], LIMIT_S, "s"))


if __name__ == "__main__":
    main()
