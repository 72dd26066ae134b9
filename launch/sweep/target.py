"""The target of a sweep, on which its sizes depend, and the options of backends and workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc.backends import BACKENDS, missing_modules
from hpc.backends.horovod_group import build_problem
from hpc.model.spec import SpecError, Target
from hpc.workloads import code_digest, is_user_code
from hpc.workloads.user_code import check_factory
from launch.jobs.site import Site
from launch.scheduler.local import GpuCountError, cpus_here, gpus_here, ranks_env
from launch.scheduler.partitions import SiteNodes
from launch.sweep.spec import SweepSpec


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
