"""Refuses, before anything is submitted, runs that would end as `invalid` on every node."""

from __future__ import annotations

from collections.abc import Iterable

from hpc.backends import BACKENDS, options_of_run
from hpc.model.options import OptionError
from hpc.model.spec import Plan, RunSpec, SpecError
from hpc.workloads.delays import check_ranks, parse_delays
from launch.sweep.nccl_variables import unknown_nccl_variables
from launch.sweep.spec import SweepSpec


def refuse_invalid(runs: Iterable[RunSpec]) -> None:
    """Raises SpecError for the first run that its backend or its workload would refuse on any machine.

    The whole sweep is refused: the user must leave out a point that cannot be measured.
    """
    for run in runs:
        if run.repeat > 1:
            continue
        if reason := _of_precision(run) or _of_torch_dp(run) or _of_options(run):
            raise SpecError(f"{run.case} with backend {run.backend}: {reason}")


def notes(spec: SweepSpec, plan: Plan, site_env: Iterable[str]) -> list[str]:
    """Notes on a valid plan: backends that leave GPUs idle, unknown NCCL variables."""
    lines = []
    if plan.target.gpus_per_node:
        idle = [name for name in spec.backend if not BACKENDS[name].uses_gpus]
        lines += [f"backend {name} runs on CPUs: its runs use none of the nodes' GPUs" for name in idle]
    return lines + [f"warning: {line}" for line in unknown_nccl_variables(dict.fromkeys((*spec.env, *site_env)))]


def _of_precision(run: RunSpec) -> str:
    entry = BACKENDS[run.backend]
    if run.gpus_per_node or run.precision in entry.cpu_precisions:
        return ""
    return (
        f"precision {run.precision} was asked for; on CPUs, where these runs are, it trains in "
        f"{', '.join(entry.cpu_precisions)}"
    )


def _of_torch_dp(run: RunSpec) -> str:
    """Why a backend whose one rank drives all GPUs of one node cannot do the run; see hpc.backends.torch_dp."""
    if not BACKENDS[run.backend].one_rank_per_node:
        return ""
    if run.gpus_per_node == 0:
        return "it splits a batch over the GPUs of a node, and the runs have none: take torch-ddp"
    if run.nodes > 1:
        return "it is one rank that drives the GPUs of one node: take torch-ddp for several nodes"
    if run.options.get("compile") == "on":
        return "compile=on was asked for; torch.compile does not go with DataParallel's threads"
    return ""


def _of_options(run: RunSpec) -> str:
    try:
        options = options_of_run(run)
        if run.workload == "delay":
            for name, value in options.items():
                if name.endswith("_ms") and isinstance(value, str):
                    check_ranks(name, parse_delays(value), run.ranks)
    except OptionError as error:
        return str(error)
    if run.backend == "tensorflow-multiworker" and options["collective"] == "nccl" and run.gpus_per_node == 0:
        return "collective nccl was asked for; it reduces on GPUs, and the runs have none: take auto or ring"
    return ""
