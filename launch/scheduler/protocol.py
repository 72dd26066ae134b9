"""What a sweep, a job and the doctor ask of a scheduler: the same calls of each, and what these answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Protocol

from hpc.model.evidence import JobNow
from hpc.model.outcome import BeginRecord
from hpc.model.verdict import JobEnd
from hpc.system.job_facts import Job
from launch.jobs.plan import JobPlan, WrittenJob
from launch.jobs.script import Folders, ScriptHead
from launch.jobs.site import Site

HERE = "this machine"
"""The `source` of the end of a job that no scheduler runs."""


class SubmitError(RuntimeError):
    """The scheduler is not installed or refused a request; the text has its message."""


class TransientSubmitError(Exception):
    """The scheduler refuses or does not answer for a transient reason; the text has its message."""


class StateError(RuntimeError):
    """The scheduler has not answered for too long; the text has the time of the last answer and the errors of its
    commands."""


class JobState(StrEnum):
    """The states that a sweep distinguishes, fewer than a scheduler's.

    UNKNOWN: the scheduler answered and has forgotten the job. UNREACHABLE: it did not answer, the state is not known.
    """

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """The answer to a query for one job.

    `end` is how the job ended, with an empty `state` if the source has forgotten it; None for an active job and without
    an answer. `reason` is the scheduler's reason for a pending job, or what contradicts that it has forgotten one.
    `error` is the output of commands that did not answer. `name` is the job's name, empty if it is not known.
    """

    state: JobState
    name: str = ""
    end: JobEnd | None = None
    reason: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class JobSteps:
    """The steps that the scheduler started in a job. `silent` is the error of one that did not answer; `listed`: it
    answered with them."""

    numbers: frozenset[str] = frozenset()
    silent: str = ""
    listed: bool = False


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of a partition; `cpus` is None if the scheduler does not report it. A node that is down or drained is not
    `up`."""

    name: str
    cpus: int | None
    gpus: int
    gpu_types: frozenset[str] = frozenset()
    up: bool = True
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition and its limits; None is no limit. The GPUs of its nodes are those that the scheduler gives out."""

    name: str
    nodes: tuple[Node, ...]
    default: bool = False
    max_time_min: int | None = None
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None

    def cpus_of(self, node: Node) -> float:
        """The number of CPUs of the node that a job may use; infinite if neither node nor partition states it."""
        limits = [limit for limit in (node.cpus, self.max_cpus_per_node) if limit is not None]
        return min(limits, default=float("inf"))


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """A cluster as its scheduler describes it: `settings` and `partition` in the scheduler's words. `gpus` and `cpus`
    are the distinct counts per node of the partition, () if it does not report them; `pmis` are the PMI types of its
    own launcher. `unread` has the errors of failed commands, by command.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 0
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    pmis: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


class JobScheduler(Protocol):
    """What runs jobs: from outside they are submitted and watched; from inside a job asks about itself. What is
    answered here is the answer where nothing is queued, and none puts a job back.

    `poll_s` are the seconds between two queries after a change, `slow_poll_s` the most while nothing changes;
    `max_jobs` of a sweep at the same time, None for any number. `queued`: jobs wait in a queue with those of others,
    and stay there if this process ends. `error` has the errors of its commands if they did not answer last, `reasons`
    by job why it is pending, as of the last query; not every job has one. `submits` is the command that submits a
    script by hand.
    """

    poll_s: float
    slow_poll_s: float
    max_jobs: int | None
    queued: ClassVar[bool]
    submits: str
    error: str = ""
    reasons: Mapping[str, str] = MappingProxyType({})

    def name_of(self, job: WrittenJob) -> str:
        """The job's name, by which a sweep recognises its jobs."""

    def output_of(self, job: WrittenJob, job_id: str) -> tuple[Path, ...]:
        """The files of the script's standard output and error."""

    def submit(self, job: WrittenJob) -> str:
        """The id of the job made of the script. Raises TransientSubmitError where the job may exist nevertheless,
        SubmitError on a final refusal."""

    def active_jobs(self, names: Iterable[str], recorded: Mapping[str, str]) -> dict[str, str]:
        """The jobs with these names that have not ended, id → name, oldest first; the `recorded` ones (id → name) are
        asked for by id, too."""

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state; sets `error` and `reasons`."""

    def query(self, begin: BeginRecord) -> JobQuery:
        """The job in which an attempt began."""

    def ends(self, job_ids: Iterable[str]) -> dict[str, JobEnd]:
        """The ends of jobs, with the settings behind them, without those that may still run."""

    def starts(self, begin: BeginRecord) -> list[JobEnd]:
        """The ends of all starts of the requeued job in which an attempt began, in order; empty where nobody keeps
        them."""
        return []

    def release_held(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Releases pending jobs that are held because their launch failed: by id why not, empty if it was."""
        return {}

    def now(self, job: Job) -> JobNow | None:
        """What it says of this process's job; None where nothing schedules it."""
        return None

    def steps(self, job: Job) -> JobSteps:
        """The steps of this process's job."""
        return JobSteps()

    def starts_steps(self, launcher: str) -> bool:
        """Whether this launcher of ranks is its own, so that every start is a step of the job."""
        return False

    def signal(self, job: Job, name: str) -> None:
        """Sends a signal (`TERM`) to the ranks of this process's job."""

    def step_refusal(self, error: str) -> str:
        """Its launcher's message in this standard error if the step was not started since the controller was away."""
        return ""

    def awaited_step(self, error: str) -> str:
        """Its launcher's message in this standard error if it waits for its step to be created."""
        return ""


class SiteScheduler(JobScheduler, Protocol):
    """The scheduler of a site's nodes, as seen from a login node."""

    def installed(self) -> bool:
        """Whether this machine has its commands, also those that may not be executed."""

    def unreachable(self) -> str:
        """Why no job can be submitted from here; empty if a controller answers."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Ends the jobs named and no others. Raises SubmitError."""

    def header(self, job: JobPlan, folders: Folders) -> ScriptHead:
        """What it requests, and how it is warned of its time limit. Raises SubmitError."""

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """The named partition, else all. Raises SubmitError."""

    def hostnames(self, option: str, nodes: str) -> frozenset[str]:
        """The nodes in a list in its notation, the value of this option. Raises SubmitError."""

    def site_file(self, hostname: str) -> str:
        """A site file made of what the cluster says of itself to this host. Starts no job. Raises SubmitError."""

    def facts(self, partition: str) -> ClusterFacts:
        """The cluster with this partition, the default one if empty. Starts no job."""

    def run_on_node(self, node: str, program: Sequence[str], site: Site) -> str:
        """Runs a program on this node by a job of its own, if that can start at once; why not, empty if it ended well.
        The job requests what the site's jobs request, and one core."""
