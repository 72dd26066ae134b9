"""Prepares a sweep up to submission: sizes, scripts, and the messages and refusals before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

from hpc.backends import BACKENDS, options_of_run
from hpc.backends.device import fsdp_refusal
from hpc.model.options import OptionError, data_source
from hpc.model.outcome import (
    ExitRecord,
    Outcome,
)
from hpc.model.reference import Reference, read_recipe
from hpc.model.spec import Plan, RunSpec, SpecError, Target
from hpc.system.gpus import gpus_of_kernel
from hpc.system.leaves import door
from hpc.system.regular_file import existing
from hpc.system.text import grouped
from hpc.workloads import (
    OF_TRAININGS,
    TRAINED,
    WORKLOADS,
    is_user_code,
)
from hpc.workloads.delays import check_ranks, parse_delays
from launch.cluster.local import GpuCountError, gpus_here, launcher, ranks_env, what_is_missing
from launch.cluster.partitions import SiteNodes
from launch.cluster.slurm import SubmitError, header, slurm_is_installed, why_unreachable
from launch.jobs.options import LaunchOptions
from launch.jobs.plan import JobPlan, WrittenJob, plan_jobs, refuse_pairs_that_hang, write_sweep
from launch.jobs.script import Folders, render_job, render_local
from launch.jobs.site import Site, find_site
from launch.sweep.expansion import expand, expand_all
from launch.sweep.request import Request
from launch.sweep.spec import (
    SweepSpec,
    joined,
)
from launch.sweep.target import (
    TargetError,
    cannot_run,
    decide_target,
    odd_builds,
    with_absolute_paths,
    without_no_sync,
)

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its target, runs and jobs; `site` is None for this machine. `departs` is in what it differs from
    its recipe, if it has one."""

    request: Request
    site: Site | None
    plan: Plan
    jobs: tuple[JobPlan, ...] = ()
    nodes: SiteNodes | None = None
    recipe: Reference | None = None
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

        Raises PlanError if a job can never start: it requests more than sinfo shows.
        """
        if self.nodes is None:
            return []
        unknown = f"whether the jobs fit on site {self.plan.target.site} is not known"
        if self.nodes.unreachable:
            return [f"{unknown}: {self.nodes.unreachable}"]
        try:
            return self.nodes.check(jobs)
        except SubmitError as error:  # sbatch decides
            return [f"{unknown}: {error}"]

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

    def write(self, progress: Callable[[int], None], *, dry_run: bool = False) -> list[WrittenJob]:
        """Writes plan, runs and scripts. Raises PlanError where the folder cannot take them. See launch.jobs.plan."""
        scripts = [(job, self._render(job)) for job in self.jobs]
        return write_sweep(self.plan, scripts, self.folders, dry_run=dry_run, progress=progress)

    @property
    def notes(self) -> list[str]:
        """Warnings of a valid plan: odd builds, backends without no-sync runs, idle GPUs."""
        able = [name for name in self.spec.backend if name not in self.unable]
        return [
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
        return render_job(job.runs, header(job, self.folders), self.site, self.folders, frameworks, job.subsets, limits)


def prepare(request: Request) -> Prepared:
    """Decides the target, the runs and the jobs, in this order; writes nothing. Raises SpecError, SiteError or
    PlanError."""
    request = dataclasses.replace(request, sweeps=tuple(map(with_absolute_paths, request.sweeps)))
    spec = joined(request.sweeps)
    site = _site(request.launch, spec)
    if site is None and (of_slurm := request.launch.of_slurm):
        reason = "--cluster local was requested" if request.launch.cluster == "local" else "Slurm is not installed"
        raise SpecError(f"{', '.join(of_slurm)}: of jobs of Slurm, and the runs are for this machine ({reason})")
    nodes = None if site is None else SiteNodes(site)
    target = decide_target(spec, site, nodes)
    recipe, departs = _recipe(request.sweeps, spec, target, site)
    plan = expand_all(request.sweeps, target)
    prepared = Prepared(request=request, site=site, plan=plan, nodes=nodes, recipe=recipe, departs=departs)
    folder = str(prepared.folders.jobs)
    if any("\udc80" <= character <= "\udcff" for character in folder):
        raise SpecError(f"the folder {folder!a} has a name that is not UTF-8: no job script can hold it")
    return with_runs(prepared, plan.runs)


def with_runs(prepared: Prepared, runs: Sequence[RunSpec]) -> Prepared:
    """The same with these runs, in jobs of their own. Raises SpecError or PlanError."""
    refuse_invalid(runs)
    site, launch = prepared.site, prepared.request.launch
    jobs = plan_jobs(runs, site or Site(name="local", exclusive=False), launch.minutes_per_run, launch.time)
    if site is not None:
        refuse_pairs_that_hang(jobs, site)
    plan = dataclasses.replace(prepared.plan, runs=tuple(runs))
    return dataclasses.replace(prepared, plan=plan, jobs=tuple(jobs))


def _recipe(
    sweeps: Sequence[SweepSpec], spec: SweepSpec, target: Target, site: Site | None
) -> tuple[Reference | None, tuple[str, ...]]:
    """The recipe of the sweeps, if they have one, and in what they differ from it.

    Raises SpecError where the target cannot run a point of it.
    """
    if not spec.recipe:
        return None, ()
    recipe, unable = read_recipe(spec.recipe), cannot_run(spec.backend, site)
    leaf = door("recipes")
    leaf.refuse_impossible(recipe, sweeps, lambda sweep: refuse_invalid(expand(sweep, target).runs), unable)
    return recipe, leaf.departures(recipe, sweeps, target)


def _site(launch: LaunchOptions, spec: SweepSpec) -> Site | None:
    """The Slurm site that the runs are for, with what the command line overrides; None is this machine.

    Raises SubmitError if no target was chosen, Slurm is installed here, and no controller answers: runs for a cluster
    must not start on its login node.
    """
    if launch.cluster == "local":
        return None
    site = find_site(launch.site)
    if launch.cluster == "auto" and site is None:
        if not slurm_is_installed():
            return None
        if reason := why_unreachable():
            raise SubmitError(
                f"{_sizes(spec)}: Slurm is installed here, and no controller answers: {reason}. --cluster local runs "
                "them on this machine"
            )
    return dataclasses.replace(site or Site(name="slurm"), **launch.site_overrides)


def _sizes(spec: SweepSpec) -> str:
    cases = [f"{nodes}n{ranks}g" for nodes, ranks in spec.cases]
    lists = {"--nodes": spec.nodes, "--ranks-per-node": spec.ranks_per_node or (), "--cases": cases}
    return " ".join(f"{flag} {','.join(map(str, values))}" for flag, values in lists.items() if values)


# The time limit of a job, by the durations of earlier attempts of its points: checked, and requested.


class TimeLimitTooShort(Exception):
    """Not even the first run of a job fits its time limit; the text has the figures and the fix."""


START_S = 120
"""Seconds that a run is allowed to start, and to be ended and recorded before the limit."""
SHORTEST_MIN = 5
"""No job requests less, if its limit allows that."""


def durations_s(
    runs: Sequence[RunSpec], records: Mapping[str, Sequence[ExitRecord]], outcome: Outcome
) -> dict[str, list[float]]:
    """By point id: the durations in seconds of its attempts that ended with this outcome."""
    return grouped(
        (run.point_id, elapsed_s)
        for run in runs
        for record in records.get(run.run_id, ())
        if record.outcome is outcome and (elapsed_s := record.elapsed_s) is not None
    )


def minutes_to_request(
    job: JobPlan,
    remaining: Sequence[RunSpec],
    took: Mapping[str, Sequence[float]],
    cut_off: Mapping[str, Sequence[float]],
) -> int:
    """The minutes to request for the job's remaining runs, at most its limit.

    Each run is allowed twice what the longest attempt of its point that ended `ok` took, and START_S; the
    minutes of the plan where none has ended so, or a time limit has ended one. A limit that was requested for whole
    jobs stays.
    """
    if job.minutes_per_run is None:
        return job.time_min
    planned_s = 60 * job.minutes_per_run
    allowed_s = sum(
        min(planned_s, 2 * max(took[run.point_id]) + START_S)
        if took.get(run.point_id) and not cut_off.get(run.point_id)
        else planned_s
        for run in remaining
    )
    return min(job.time_min, max(SHORTEST_MIN, ceil(allowed_s / 60)))


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


# Runs that no machine could do, known before submission.
_WITHOUT_SHARDED_HEAD = {
    "torch-dp": "it has no ranks over which the head of arcface could be sharded",
    "torch-fsdp": "the sharded head of arcface is not among FSDP2's shards",
}


def refuse_invalid(runs: Iterable[RunSpec]) -> None:
    """Raises SpecError for the first run that its backend or its workload would refuse on any machine.

    The whole sweep is refused: the user must leave out a point that cannot be measured.
    """
    for run in runs:
        if run.repeat > 1:
            continue
        checks = (
            _check_precision, _check_torch_dp, _check_data, _check_training, _check_options,
            _check_fsdp, _check_head,
        )  # fmt: skip
        if reason := next((reason for check in checks if (reason := check(run))), ""):
            raise SpecError(f"{run.case} with backend {run.backend}: {reason}")


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
    return [f"backend {name} runs on CPUs: its runs use none of the nodes' GPUs" for name in idle]


def _check_precision(run: RunSpec) -> str:
    entry = BACKENDS[run.backend]
    if run.gpus_per_node or run.precision in entry.cpu_precisions:
        return ""
    return (
        f"precision {run.precision} was requested; on CPUs, where these runs are, it trains in "
        f"{', '.join(entry.cpu_precisions)}"
    )


def _check_torch_dp(run: RunSpec) -> str:
    """The reason why a backend whose one rank drives all GPUs of a node cannot do the run; else empty."""
    if not BACKENDS[run.backend].one_rank_per_node:
        return ""
    if run.gpus_per_node == 0:
        return "it splits a batch over the GPUs of a node, and the runs have none: take torch-ddp"
    if run.nodes > 1:
        return "it is one rank that drives the GPUs of one node: take torch-ddp for several nodes"
    if run.options.get("compile") == "on":
        return "compile=on was requested; torch.compile does not go with DataParallel's threads"
    return ""


def _check_fsdp(run: RunSpec) -> str:
    return fsdp_refusal(run, options_of_run(run)) if run.backend == "torch-fsdp" else ""


def _check_data(run: RunSpec) -> str:
    """The reason why the workload cannot train on the requested files; else empty."""
    source, framework = data_source(run.data), BACKENDS[run.backend].framework
    if source is None:
        return ""
    if is_user_code(run.workload):
        return f"data {run.data} was requested; a file of your own reads what it trains on by itself: leave out --data"
    if source.kind in WORKLOADS[run.workload].reads.get(framework, ()):
        return ""
    readers = [
        f"{name} ({', '.join(frameworks)})" for name, entry in WORKLOADS.items()
        if (frameworks := entry.frameworks_reading(source.kind))
    ]  # fmt: skip
    requested = f"data {source.kind} was requested; workload {run.workload} does not read it in {framework}"
    return f"{requested}; what reads it: {', '.join(readers)}"


def _check_training(run: RunSpec) -> str:
    if not run.epochs:
        requested = [name for name in OF_TRAININGS if name in run.options]
        return (
            f"option {', '.join(requested)} is of whole trainings: say how many epochs, --epochs" if requested else ""
        )
    if run.search:
        return f"find-max {run.search} tries values by a few steps each: leave out --epochs"
    if data_source(run.data) is None:
        return "--epochs requests a whole training, and data is synthetic: name images by --data (docs/workloads.md)"
    if not BACKENDS[run.backend].trains_to_target:
        able = ", ".join(name for name, entry in BACKENDS.items() if entry.trains_to_target)
        return f"it has no whole trainings (--epochs); {able} have them"
    if run.workload not in TRAINED:
        return f"workload {run.workload} is not trained to a target (--epochs); {', '.join(TRAINED)} are"
    return ""


def _check_head(run: RunSpec) -> str:
    """The reason why the classes of `arcface` cannot be sharded over the ranks; else empty."""
    if run.workload != "arcface" or run.options.get("head") == "replicated":
        return ""
    if reason := _WITHOUT_SHARDED_HEAD.get(run.backend):
        return f"{reason}: take torch-ddp, or head=replicated"
    if int(classes := str(options_of_run(run)["classes"])) < run.ranks:
        return f"{classes} classes on {run.ranks} ranks: every rank with a share of the head needs one"
    if run.reduction == "off" and run.ranks > 1:
        return "a sharded head has no no-sync run, since its ranks always communicate: leave out --no-sync"
    if run.precision == "amp-fp16" and run.ranks > 1:
        return "precision amp-fp16 was requested; ranks with a sharded head would skip different steps: take bf16"
    return ""


def _check_options(run: RunSpec) -> str:
    try:
        options = options_of_run(run)
        if run.workload == "delay":
            for name, value in options.items():
                if name.endswith("_ms") and isinstance(value, str):
                    check_ranks(name, parse_delays(value), run.ranks)
    except OptionError as error:
        return str(error)
    if run.backend == "tensorflow-multiworker" and options["collective"] == "nccl" and run.gpus_per_node == 0:
        return "collective nccl was requested; it reduces on GPUs, and the runs have none: take auto or ring"
    return ""
