"""Prepares a sweep up to submission: target, sizes, scripts, and the messages and refusals before anything runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpc.backends import BACKENDS, missing_modules
from hpc.backends.horovod_group import build_problem
from hpc.backends.refusals import refuse_invalid
from hpc.model.options import data_source
from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import Plan, RunSpec, SpecError, Target
from hpc.system.gpus import gpus_of_kernel
from hpc.system.leaves import door
from hpc.system.regular_file import existing
from hpc.system.text import grouped
from hpc.system.tool import find_tool, run_tool
from hpc.workloads import code_digest, is_user_code
from hpc.workloads.user_code import check_factory
from launch.jobs.launchers import OF_SRUN, in_container
from launch.jobs.plan import JobPlan, WrittenJob, plan_jobs, refuse_pairs_that_hang, write_sweep
from launch.jobs.script import Folders, here_python, render_job, render_local
from launch.jobs.site import Site
from launch.jobs.slurm_options import GPUS_ALL_THE_SAME, shell_lines
from launch.scheduler.local import GpuCountError, cpus_here, gpus_here, launcher, ranks_env, what_is_missing
from launch.scheduler.partitions import SiteNodes
from launch.scheduler.protocol import SubmitError
from launch.scheduler.table import chosen_site, site_scheduler
from launch.sweep.expansion import expand_all
from launch.sweep.request import Request
from launch.sweep.spec import SweepSpec, joined

Say = Callable[[str], None]


# The target of a sweep, on which its sizes depend.


class TargetError(RuntimeError):
    """Nothing of the sweep can run on the target; the text has what is missing and the command that installs it."""


def cannot_run(backends: Sequence[str], site: Site | None) -> dict[str, str]:
    """By backend that this interpreter cannot run: a line with the reason and the fix.

    Empty for a site whose runs may use other packages than this interpreter.
    """
    missing = {name: missing_modules(name) for name in backends if _runs_by_this_interpreter(name, site)}
    return {name: f"backend {name} cannot run: {'; '.join(lines)}" for name, lines in missing.items() if lines}


def odd_builds(backends: Sequence[str], site: Site | None) -> list[str]:
    """A line for each backend whose Horovod was built for another framework than its runs use."""
    names = [name for name in backends if "horovod" in BACKENDS[name].modules and _runs_by_this_interpreter(name, site)]
    problems = {name: build_problem(BACKENDS[name].framework) for name in names}
    return [f"backend {name}: {problem}" for name, problem in problems.items() if problem]


def _runs_by_this_interpreter(backend: str, site: Site | None) -> bool:
    if site is None:
        return True
    named = site.python(BACKENDS[backend].framework, "")
    return not (named or site.container or site.modules or "PYTHONPATH" in site.env)


def without_no_sync(spec: SweepSpec) -> list[str]:
    """If no-sync runs are requested: a line for each backend that has none, with the reason."""
    reasons = {name: BACKENDS[name].no_sync_unsupported for name in spec.backend if spec.no_sync}
    return [f"backend {name} has no no-sync runs: {reason}" for name, reason in reasons.items() if reason]


def decide_target(spec: SweepSpec, site: Site | None, nodes: SiteNodes | None) -> Target:
    """The facts of the target machine that sizes depend on; `nodes` are the site's, None for this machine.

    Raises TargetError if nvidia-smi cannot count the GPUs of this machine.
    """
    user_code = [name for name in spec.workload if is_user_code(name)]
    for name in user_code if not spec.script else ():
        check_factory(name)
    digests = {name: code_digest(name) for name in user_code}
    if site is None:
        return _local_target(spec, digests)
    counts = sorted({1, *spec.nodes, *(count for count, _ in spec.cases)})
    if spec.placement == "nested" and (varying := site.varying_jobs):
        raise SpecError(f"--placement nested: one job for all numbers of nodes, and the site sets {varying[0]} by them")
    fitted = {count: {"env": site.at(count).env, "job_options": site.at(count).job_options} for count in counts}
    site, varying = site.at(), site.varying
    assert nodes is not None
    gpus = spec.gpus_per_node if spec.gpus_per_node is not None else site.gpus_per_node
    cpus = site.cpus_per_node
    explanation = "Slurm does not say"
    if gpus is None or (cpus is None and spec.cpus_per_rank is None):
        if reason := nodes.unreachable:
            explanation = f"no Slurm controller answers here ({reason})"
        else:
            reported_gpus, reported_cpus = nodes.per_node
            gpus = reported_gpus if gpus is None else gpus
            cpus = reported_cpus if cpus is None else cpus
    if gpus is None:
        raise SpecError(
            f"how many GPUs has a node of site {site.name}? {explanation}; state it with --gpus-per-node N (0 for CPU "
            "runs) or gpus_per_node in the site file"
        )
    names = [name for name in spec.backend if name in BACKENDS]
    containers = {name: image for name in names if (image := site.image(BACKENDS[name].framework))}
    return Target(
        site=site.name, gpus_per_node=gpus, cpus_per_node=cpus, containers=containers, code_digests=digests,
        env=site.env, job_options=site.job_options, by_nodes=fitted if varying else {}, varying=varying,
    )  # fmt: skip


def _local_target(spec: SweepSpec, digests: Mapping[str, str]) -> Target:
    """This machine as a target; the simulated nodes share its GPUs."""
    max_nodes = max((*spec.nodes, *(nodes for nodes, _ in spec.cases)))
    gpus = spec.gpus_per_node
    reduced: tuple[str, ...] = ()
    if gpus is None and (here := _gpus_here()):
        gpus = here // max_nodes
        if gpus == 0:
            reduced = (f"CPUs instead of GPUs: {max_nodes} simulated nodes cannot share the {here} of this machine",)
    return Target(
        site="local", gpus_per_node=gpus or 0, cpus_per_node=cpus_here(), nodes_simulated=True, code_digests=digests,
        env=ranks_env(), reduced=reduced,
    )  # fmt: skip


def _gpus_here() -> int:
    try:
        return gpus_here()
    except GpuCountError as error:
        raise TargetError(f"{error}; --gpus-per-node 0 runs on CPUs, --gpus-per-node N on N GPUs") from None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its target and runs, then with its jobs; `site` is None for this machine. `departs` is in what it
    differs from its recipe, if it has one."""

    request: Request
    site: Site | None
    plan: Plan
    jobs: tuple[JobPlan, ...] = ()
    nodes: SiteNodes | None = None
    departs: tuple[str, ...] = ()

    @property
    def spec(self) -> SweepSpec:
        """What the requested sweeps share; see `joined`."""
        return joined(self.request.sweeps)

    @property
    def folders(self) -> Folders:
        return Folders.under(self.request.launch.out)

    def check_sizes(self, jobs: Sequence[JobPlan]) -> list[str]:
        """Warnings about jobs that wait for nodes to come back, or that could not be checked.

        Raises PlanError if a job can never start: it requests more than Slurm has.
        """
        if self.nodes is None:
            return []
        unknown = f"whether the jobs fit on site {self.plan.target.site} is not known"
        if self.nodes.unreachable:
            return [f"{unknown}: {self.nodes.unreachable}"]
        assert self.site is not None
        partitions = grouped((str(job.request.get("partition", "")), job) for job in jobs)
        try:
            return [
                line
                for partition, of_partition in partitions.items()
                for line in self._nodes_of(partition, of_partition[0].nodes).check(of_partition)
            ]
        except SubmitError as error:  # the scheduler decides
            return [f"{unknown}: {error}"]

    def _nodes_of(self, partition: str, nodes: int) -> SiteNodes:
        """The nodes of a partition, which a site may choose by the number of nodes."""
        assert self.site is not None and self.nodes is not None
        return self.nodes if partition == self.site.at().partition else SiteNodes(self.site.at(nodes), site_scheduler())

    def check_data(self) -> list[str]:
        """Warnings about training data that is not there on this machine, where the runs are for other ones.

        Raises SpecError where the runs are for this machine.
        """
        sources = [data_source(name) for name in dict.fromkeys(run.data for run in self.plan.runs)]
        absent = existing(Path(source.path) for source in sources if source is not None)[1]
        if absent and self.site is None:
            raise SpecError(f"--data: {'; '.join(absent)}")
        return [f"--data: {line}, on this machine: the nodes must have it" for line in absent]

    @property
    def missing(self) -> list[str]:
        """The requirements for running ranks that this machine lacks, if it is to run them."""
        return what_is_missing() if self.site is None else []

    @cached_property
    def unable(self) -> dict[str, str]:
        """By backend that cannot run: the reason."""
        return cannot_run(self.spec.backend, self.site)

    def check(self) -> None:
        """Raises TargetError if nothing of the sweep can run."""
        unable, missing = self.unable, self.missing
        if missing or len(unable) == len(self.spec.backend):
            hint = [] if self.site is None else ["if the nodes have it, name their Python in [interpreter] of the site "
                                                 "file"]  # fmt: skip
            raise TargetError("; ".join([*unable.values(), *missing, *hint]))

    def check_images(self) -> list[str]:
        """Warnings about images that do not start here, where their engine is. Raises TargetError for one without what
        ranks import."""
        warnings = []
        runs = {run.container: run for run in self.plan.runs if run.container}
        for image, run in runs.items() if self.site else ():
            assert self.site is not None
            start = in_container(dataclasses.replace(run, gpus_per_node=0), self.site, ())
            if self.site.container in OF_SRUN or find_tool(start[0]) is None:
                continue
            python = self.site.python(BACKENDS[run.backend].framework, here_python())
            answer = run_tool([*start, python, "-c", "import mpi4py, h5py"], timeout_s=IMAGE_S)
            if "ModuleNotFoundError" in answer.stderr:
                raise TargetError(f"image {image}: {answer.output}; every image needs mpi4py and h5py")
            if not answer.ok:
                reason = f"image {image} does not start here ({answer.describe()})"
                warnings.append(f"{reason}: a run's first step shows whether it has mpi4py and h5py")
        return warnings

    def write(self, *, dry_run: bool = False) -> list[WrittenJob]:
        """Writes plan, runs and scripts. Raises PlanError where the folder cannot take them. See launch.jobs.plan."""
        scripts = [(job, self._render(job)) for job in self.jobs]
        return write_sweep(self.plan, scripts, self.folders, dry_run=dry_run)

    @property
    def notes(self) -> list[str]:
        """Warnings of a valid plan: odd builds, backends without no-sync runs, idle GPUs."""
        able = [name for name in self.spec.backend if name not in self.unable]
        return [
            *(shell_lines(os.environ) if self.site else ()),
            *odd_builds(able, self.site),
            *without_no_sync(self.spec),
            *without_gpus_here(self.spec, self.plan),
            *on_cpus(self.spec, self.plan),
        ]

    def _render(self, job: JobPlan) -> str:
        limits = self.request.limits
        if self.site is None:
            return render_local(job.runs, launcher(), self.folders, limits, ranks_env())
        frameworks = {name: entry.framework for name, entry in BACKENDS.items()}
        head = site_scheduler().header(job, self.folders)
        return render_job(job.runs, head, self.site, self.folders, frameworks, job.subsets, limits)


def prepare(request: Request) -> Prepared:
    """Decides the target, then the runs; asks the scheduler where sizes need that, and writes nothing. Raises
    SpecError, SubmitError or TargetError."""
    spec = joined(request.sweeps)
    site = chosen_site(request.launch, request.site, request.launch.of_slurm)
    nodes = None if site is None else SiteNodes(site.at(), site_scheduler())
    target = decide_target(spec, site, nodes)
    plan = expand_all(request.sweeps, spec, target)
    if request.command is not None:
        plan = dataclasses.replace(plan, command=dataclasses.asdict(request.command))
    departs: tuple[str, ...] = ()
    if request.recipe is not None:
        departs = door("recipes").departures_of_possible(request.recipe, request.sweeps, target, site)
    return Prepared(request=request, site=site, plan=plan, nodes=nodes, departs=departs)


def with_jobs(prepared: Prepared, runs: Sequence[RunSpec] | None = None) -> Prepared:
    """The same with its jobs, or with these runs in jobs of their own. Raises SpecError where a run cannot be done,
    PlanError where no job can hold it."""
    plan = prepared.plan if runs is None else dataclasses.replace(prepared.plan, runs=tuple(runs))
    refuse_invalid(plan.runs)
    site, launch = prepared.site, prepared.request.launch
    if any("\udc80" <= character <= "\udcff" for character in str(prepared.folders.jobs)):
        raise SpecError(
            f"the folder {str(prepared.folders.jobs)!a} has a name that is not UTF-8: no job script can hold it"
        )
    jobs = plan_jobs(plan.runs, site or Site(name="local", exclusive=False), launch.minutes_per_run, launch.time)
    if site is not None:
        refuse_pairs_that_hang(jobs, site)
    return dataclasses.replace(prepared, plan=plan, jobs=tuple(jobs))


# The time limit of a job, checked by the durations of earlier attempts of its points.


class TimeLimitTooShort(Exception):
    """Not even the first run of a job fits its time limit; the text has the figures and the fix."""


IMAGE_S = 120.0
"""As long as an image may take to start on a login node, which may have to fetch it."""


def durations_s(points: Mapping[str, str], records: Mapping[str, Sequence[ExitRecord]]) -> dict[str, list[float]]:
    """By point id: the durations in seconds of its attempts that ended ok; `points` by run id."""
    return grouped(
        (points[run_id], elapsed_s)
        for run_id, its_records in records.items()
        for record in its_records
        if run_id in points and record.outcome is Outcome.OK and (elapsed_s := record.elapsed_s) is not None
    )


def check_limit(job: WrittenJob, margin_s: float, first: RunSpec, took: Mapping[str, Sequence[float]]) -> None:
    """Raises TimeLimitTooShort if every earlier attempt of the point of the job's `first` remaining run took longer
    than its limit, less the margin at which runs are ended; `took` are the seconds of attempts that ended `ok`, by
    point id."""
    durations, limit_min = took.get(first.point_id, ()), job.plan.time_min
    if durations and min(durations) > 60 * limit_min - margin_s:
        seconds = " to ".join(dict.fromkeys(f"{each:.0f}" for each in (min(durations), max(durations))))
        raise TimeLimitTooShort(
            f"{job.script.name} has {limit_min} min, less {margin_s:g} s before its end: its first run, "
            f"{first.run_id}, cannot end in that; attempts of its point took {seconds} s: raise --minutes-per-run or "
            "--time"
        )


def without_gpus_here(spec: SweepSpec, plan: Plan) -> Iterator[str]:
    """A warning where this machine has fewer GPUs than a node of the runs, whose nodes all share them."""
    if not (plan.target.gpus_per_node and plan.target.nodes_simulated):
        return
    try:
        here = max(gpus_here(), gpus_of_kernel() or 0)
    except GpuCountError as error:
        yield f"warning: {error}"
        return
    if here < (needed := max(run.gpus_per_node for run in plan.runs)):
        has = f"{here} of these {needed} GPUs" if here else f"no GPU (0 of {needed})"
        yield (
            f"warning: --gpus-per-node {spec.gpus_per_node}: this machine has {has}: runs on more GPUs than it has end "
            "as invalid; --gpus-per-node 0 runs on CPUs"
        )


def on_cpus(spec: SweepSpec, plan: Plan) -> list[str]:
    """A line for each backend that leaves the GPUs of the nodes idle."""
    idle = [name for name in spec.backend if plan.target.gpus_per_node and not BACKENDS[name].uses_gpus]
    return [f"backend {name} runs on CPUs: its runs use none of the nodes' GPUs; {GPUS_ALL_THE_SAME}" for name in idle]
