"""The schedulers. A new one has a file of its own, a line here, and its variables in hpc.system.job_facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpc.system.job_facts import Job
from launch.scheduler.local import LOCAL_JOB, Local
from launch.scheduler.protocol import JobScheduler, SiteScheduler
from launch.scheduler.slurm import Slurm

SITE_SCHEDULERS: Mapping[str, Callable[[], SiteScheduler]] = {"Slurm": Slurm}
"""By the names in hpc.system.job_facts."""


def site_scheduler() -> SiteScheduler:
    """The scheduler that is installed here, else the first: the jobs of a site may be planned where it is not."""
    all_of_them = [make() for make in SITE_SCHEDULERS.values()]
    return next((each for each in all_of_them if each.installed()), all_of_them[0])


def scheduler_of(job_id: str) -> JobScheduler:
    """The scheduler that made the job: this machine's own jobs have ids that no other has."""
    return Local() if LOCAL_JOB.fullmatch(job_id) else site_scheduler()


def scheduler_inside(job: Job) -> JobScheduler:
    """The scheduler of the job that this process runs in."""
    return SITE_SCHEDULERS[job.scheduler]() if job.scheduler else Local()
