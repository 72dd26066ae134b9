"""Refuses, before anything is submitted, runs that would end as `invalid` on every node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpc.backends import BACKENDS, fsdp_limits, options_of_run, tp_limits
from hpc.model.data_source import data_source
from hpc.model.options import OptionError, did_you_mean
from hpc.model.outcome import MAX_PLAN_BYTES, RecordError, read_object
from hpc.model.spec import Plan, RunSpec, SpecError
from hpc.system.text import grouped
from hpc.workloads import (
    OF_TRAININGS,
    TRAINED,
    WORKLOADS,
    gpt,
    is_user_code,
)
from hpc.workloads.delays import check_ranks, parse_delays
from launch.sweep.spec import (
    SweepSpec,
)

_NCCL_LINES = Path(__file__).with_name("nccl_variables.txt").read_text(encoding="ascii").splitlines()
NCCL_VARIABLES = frozenset(f"NCCL_{name}" for line in _NCCL_LINES if line[0] != "#" for name in line.split())
_NCCL_PLUGINS = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_INSPECTOR_", "NCCL_OFI_", "NCCL_PROFILE_",
                 "NCCL_PROFILER_", "NCCL_SHARP_", "NCCL_SHIMNET_", "NCCL_UCX_")  # fmt: skip
"""Prefixes of the variables that NCCL's plugins read."""
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
            _check_precision, _check_torch_dp, _check_data, _check_training, _check_options, _check_gpt,
            _check_strategy, _check_head,
        )  # fmt: skip
        if reason := next((reason for check in checks if (reason := check(run))), ""):
            raise SpecError(f"{run.case} with backend {run.backend}: {reason}")


def notes(spec: SweepSpec, plan: Plan, site_env: Iterable[str]) -> list[str]:
    """Warnings of a valid plan: backends that leave GPUs idle, unknown NCCL variables."""
    lines = []
    if plan.target.gpus_per_node:
        idle = [name for name in spec.backend if not BACKENDS[name].uses_gpus]
        lines += [f"backend {name} runs on CPUs: its runs use none of the nodes' GPUs" for name in idle]
    return lines + [f"warning: {line}" for line in unknown_nccl_variables(dict.fromkeys((*spec.env, *site_env)))]


def other_cores(runs: Sequence[RunSpec], traces: Path) -> Iterator[str]:
    """A warning for each setting of which the plans in this folder have other cases with other cores per rank: sweeps
    decide these by their own cases where nobody requests them."""
    settings = _by_setting(runs)
    for path in sorted(traces.glob("plan.*.json")):
        try:
            described = read_object(path, MAX_PLAN_BYTES, "a plan of ours")["runs"]
            planned = _by_setting([RunSpec.from_json(run) for run in described if run["repeat"] == 1])
        except (RecordError, SpecError, KeyError, TypeError) as error:
            yield f"{path}: not compared with these runs, since it is no plan of ours ({error})"
            continue
        for setting in settings.keys() & planned.keys():
            (ours, our_cores), (theirs, their_cores) = _sizes(settings[setting]), _sizes(planned[setting])
            if not {*ours} & {*theirs} and not {*our_cores} & {*their_cores}:
                yield (
                    f"{', '.join(theirs)} in this folder has cpus_per_rank {', '.join(their_cores)}, {', '.join(ours)} "
                    f"here {', '.join(our_cores)}: they will share no baseline; give both one --cpus-per-rank"
                )


def _by_setting(runs: Iterable[RunSpec]) -> dict[str, list[RunSpec]]:
    """Trainings that differ in size, repeat and cores per rank only."""
    alike = ((replace(run.baseline(), repeat=1, cpus_per_rank=1).point_id, run) for run in runs)
    return grouped((setting, run) for setting, run in alike if not run.diagnostic)


def _sizes(runs: Iterable[RunSpec]) -> tuple[list[str], list[str]]:
    """Their cases, and their cores per rank."""
    cases, cores = zip(*((run.case, str(run.cpus_per_rank)) for run in runs), strict=True)
    return [*dict.fromkeys(cases)], [*dict.fromkeys(cores)]


def unknown_nccl_variables(names: Iterable[str]) -> list[str]:
    """A warning for each name with NCCL's prefix that NCCL, its plugins and PyTorch are not known to read: NCCL itself
    passes over a mistyped one in silence."""
    return [
        f"{name} is no variable that NCCL is known to read (2.30 and before): it may have no "
        f"effect{did_you_mean(name, sorted(NCCL_VARIABLES))}"
        for name in names
        if name.startswith("NCCL_") and name not in NCCL_VARIABLES and not name.startswith(_NCCL_PLUGINS)
    ]


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


def _check_strategy(run: RunSpec) -> str:
    """The reason why a backend that splits the model cannot do the run; else empty."""
    limits = {"torch-fsdp": fsdp_limits, "torch-tp": tp_limits}.get(run.backend)
    return limits.why_not(run, options_of_run(run)) if limits else ""


def _check_gpt(run: RunSpec) -> str:
    return gpt.why_not(run) if run.workload == "gpt" else ""


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
        return "--epochs requests a whole training, and data is synthetic: name images by --data (docs/training.md)"
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
