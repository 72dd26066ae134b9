"""The job that this process runs in, by the variables that its scheduler sets: no other file reads these."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

JOB_VARIABLE = "RANKWISE_JOB_ID"
"""The job's id in a script that a sweep started on this machine."""


@dataclass(frozen=True, kw_only=True)
class SchedulerVariables:
    """The names of a scheduler's variables: of the job, and of a rank where the scheduler itself starts the ranks.
    Empty where it has none. `prefixes` begin all that it sets for a job, but for `of_users`, which say where it is."""

    job_id: str
    job_name: str = ""
    job_nodelist: str = ""
    job_partition: str = ""
    cluster_name: str = ""
    restart_count: str = ""
    job_end_time: str = ""
    cpus_per_rank: str = ""
    job_ranks: str = ""
    step_id: str = ""
    rank: str = ""
    step_ranks: str = ""
    step_nodes: str = ""
    launch_address: str = ""
    prefixes: tuple[str, ...] = ()
    of_users: tuple[str, ...] = ()


SCHEDULERS = {
    "Slurm": SchedulerVariables(
        job_id="SLURM_JOB_ID", job_name="SLURM_JOB_NAME", job_nodelist="SLURM_JOB_NODELIST",
        job_partition="SLURM_JOB_PARTITION", cluster_name="SLURM_CLUSTER_NAME", restart_count="SLURM_RESTART_COUNT",
        job_end_time="SLURM_JOB_END_TIME", cpus_per_rank="SLURM_CPUS_PER_TASK", job_ranks="SLURM_NTASKS",
        step_id="SLURM_STEP_ID", rank="SLURM_PROCID", step_ranks="SLURM_STEP_NUM_TASKS",
        step_nodes="SLURM_STEP_NUM_NODES", launch_address="SLURM_LAUNCH_NODE_IPADDR",
        prefixes=("SLURM_", "SLURMD_", "SRUN_", "PMIX_", "PMI_"),
        of_users=("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_MPI_TYPE"),
    ),
}  # fmt: skip
"""By scheduler."""
JOB_IDS = (*(each.job_id for each in SCHEDULERS.values()), JOB_VARIABLE)
RANKS = tuple(filter(None, (each.rank for each in SCHEDULERS.values())))
SIZES = tuple(filter(None, (each.job_ranks for each in SCHEDULERS.values())))
"""The variables that hold the id of a job, the number of a rank, and how many ranks the job has."""
_RECORDED = ("job_id", "job_name", "step_id", "job_nodelist", "job_partition", "restart_count", "cluster_name")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: its id and name, the number of earlier starts, its nodes in the scheduler's notation, its cluster.

    `end_unix_s` is when its time limit ends it, None where the scheduler does not say; `cpus_per_rank` is 0 then.
    `scheduler` is empty for a script that bash runs on this machine.
    """

    job_id: str
    name: str = ""
    restarts: int = 0
    nodelist: str = ""
    cluster: str = ""
    end_unix_s: int | None = None
    cpus_per_rank: int = 0
    scheduler: str = ""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place of this rank, by its launcher's variables. `identity` differs from all other launches that may use the
    same folder at the same time; `address` is rank 0's or srun's, where it is known. Raises ValueError for a rank that
    there is not."""

    launcher: str
    rank: int
    size: int
    one_node: bool
    identity: str
    address: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size}")


def scheduled_job(environ: Mapping[str, str] = os.environ) -> Job | None:
    """The scheduler's job that this process runs in; None outside of one."""
    host = socket.gethostname()
    for scheduler, names in SCHEDULERS.items():
        if job_id := environ.get(names.job_id):
            return Job(
                job_id=job_id, name=environ.get(names.job_name, ""), nodelist=environ.get(names.job_nodelist) or host,
                restarts=_number(environ.get(names.restart_count)) or 0, cluster=environ.get(names.cluster_name, ""),
                end_unix_s=_number(environ.get(names.job_end_time)), scheduler=scheduler,
                cpus_per_rank=_number(environ.get(names.cpus_per_rank)) or 0,
            )  # fmt: skip
    return None


def parent_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The names of the variables that the scheduler set for the job which this process runs in; none outside of one.

    A submitted job would inherit them: `srun --pty bash` sets a binding, with which every step of the new job binds its
    ranks to cores of the old one, or fails.
    """
    names = next((each for each in SCHEDULERS.values() if each.job_id in environ), None)
    if names is None:
        return []
    return sorted(name for name in environ if name.startswith(names.prefixes) and name not in names.of_users)


def outside_of_job(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what the scheduler set for the job which this process runs in."""
    inherited = {*parent_variables(environ)}
    return {name: value for name, value in environ.items() if name not in inherited}


def job_here(environ: Mapping[str, str] = os.environ) -> Job:
    """The job of the script that started this process: the scheduler's, else a sweep's or a person's on this machine,
    whose id holds the script's process."""
    host = socket.gethostname()
    local = Job(job_id=environ.get(JOB_VARIABLE) or f"local-{host}-{os.getppid()}-0", nodelist=host)
    return scheduled_job(environ) or local


def scheduler_launch(environ: Mapping[str, str]) -> Launch | None:
    """That of this rank, where the scheduler itself started it. Raises ValueError where its variables name no rank."""
    for scheduler, names in SCHEDULERS.items():
        if names.rank in environ and names.step_ranks in environ:
            parts = (names.cluster_name, names.job_id, names.restart_count, names.step_id)
            address = environ.get(names.launch_address, "")
            return Launch(
                launcher=scheduler, rank=int(environ[names.rank]), size=int(environ[names.step_ranks]),
                one_node=environ.get(names.step_nodes) == "1", address="" if address.startswith("127.") else address,
                identity="\n".join([scheduler.lower(), *(environ.get(name, "") for name in parts)]),
            )  # fmt: skip
    return None


def describe_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The facts of the scheduler's job that a trace records, as their variables have them; empty outside of one."""
    names = next((each for each in SCHEDULERS.values() if each.job_id in environ), None)
    variables = {} if names is None else {fact: getattr(names, fact) for fact in _RECORDED}
    return {fact: environ[name] for fact, name in variables.items() if name in environ}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
