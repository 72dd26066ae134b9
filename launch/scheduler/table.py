"""The schedulers. A new one has a file of its own, a line here, and its variables in hpc.system.job_facts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from hpc.model.spec import SpecError
from hpc.system.job_facts import Job
from launch.jobs.options import LaunchOptions
from launch.jobs.site import Site
from launch.scheduler.local import LOCAL_JOB, Local
from launch.scheduler.protocol import JobScheduler, SiteScheduler, SubmitError
from launch.scheduler.slurm import Slurm

SITE_SCHEDULERS: Mapping[str, Callable[[], SiteScheduler]] = {"Slurm": Slurm}
"""By the names in hpc.system.job_facts."""


def site_scheduler() -> SiteScheduler:
    """The scheduler that is installed here, else the first: the jobs of a site may be planned where it is not."""
    all_of_them = [make() for make in SITE_SCHEDULERS.values()]
    return next((each for each in all_of_them if each.installed()), all_of_them[0])


def chosen_site(launch: LaunchOptions, named: Site | None, of_site: Sequence[str]) -> Site | None:
    """The site that is meant, with what command line and shell say in its place; None is this machine. `named` is the
    one that was requested, or that knows this host; `of_site` are given options that only a job of a site has.

    Raises SpecError for these on this machine, SubmitError if no target was chosen, a scheduler is installed here, and
    no controller answers: runs for a cluster must not start on its login node.
    """
    is_open, reason = launch.cluster == "auto" and named is None, ""
    if launch.cluster == "local":
        reason = "--cluster local was requested"
    elif is_open and not site_scheduler().installed():
        reason = "Slurm is not installed"
    if reason and of_site:
        raise SpecError(f"{', '.join(of_site)}: of jobs of Slurm, and this machine is meant ({reason})")
    if is_open and not reason and (away := site_scheduler().unreachable()):
        raise SubmitError(
            "neither --site nor --cluster is named, Slurm is installed here, and no Slurm controller answers here: "
            f"{away}; --cluster local runs on this machine"
        )
    if reason:
        return None
    return (named or Site(name="slurm")).with_values(launch.site_overrides).with_shell(os.environ)


def scheduler_of(job_id: str) -> JobScheduler:
    """The scheduler that made the job: this machine's own jobs have ids that no other has."""
    return Local() if LOCAL_JOB.fullmatch(job_id) else site_scheduler()


def scheduler_inside(job: Job) -> JobScheduler:
    """The scheduler of the job that this process runs in."""
    return SITE_SCHEDULERS[job.scheduler]() if job.scheduler else Local()
