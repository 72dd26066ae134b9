"""What the tables of backends and workloads refuse of a request, known before a framework is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpc.backends import BACKENDS, TRAINERS, options_of_run
from hpc.backends.limits import DEFAULT_BACKEND
from hpc.model.options import Option, OptionError, data_source, did_you_mean
from hpc.model.spec import COLLECTIVES, SCRIPT, RunSpec, SpecError
from hpc.system import removed
from hpc.workloads import OF_TRAININGS, TRAINED, WORKLOADS, is_user_code
from hpc.workloads.delays import check_ranks, parse_delays
from hpc.workloads.user_code import check_factory


def options_of(backend: str, workload: str) -> Mapping[str, Option]:
    """The options of a backend with a workload. Raises SpecError if one is unknown or they do not fit."""
    if instead := removed.BACKENDS.get(backend):
        raise SpecError(f"backend {backend} is gone: {instead}")
    if backend not in BACKENDS:
        raise SpecError(f"unknown backend {backend!r}; known: {', '.join(TRAINERS)}{did_you_mean(backend, TRAINERS)}")
    entry = BACKENDS[backend]
    if backend == SCRIPT:
        if not is_user_code(workload) or ":" in workload:
            raise SpecError(f"backend {SCRIPT} runs a training script of your own: request it by --script FILE.py")
        return entry.options
    if is_user_code(workload):
        check_factory(workload)
        return entry.options
    if workload == COLLECTIVES:
        raise SpecError(
            f"workload {workload} trains nothing: --collectives measures them beside trainings, "
            "rankwise collectives by themselves"
        )
    if workload not in WORKLOADS:
        raise SpecError(
            f"unknown workload {workload!r}; known: {', '.join(WORKLOADS)}, or FILE.py:FACTORY of your "
            f"own{did_you_mean(workload, WORKLOADS)}"
        )
    if entry.framework not in WORKLOADS[workload].factories:
        written_for = ", ".join(WORKLOADS[workload].factories)
        raise SpecError(f"workload {workload} is written for {written_for}; backend {backend} trains {entry.framework}")
    return {**entry.options, **WORKLOADS[workload].options}


def refuse_invalid(runs: Iterable[RunSpec]) -> None:
    """Raises SpecError for the first run that its backend or its workload would refuse on any machine.

    The whole sweep is refused: the user must leave out a point that cannot be measured.
    """
    for run in runs:
        if run.repeat == 1 and (reason := refusal(run)):
            raise SpecError(f"{run.case} with backend {run.backend}: {reason}")


def refusal(run: RunSpec) -> str:
    """The reason why the run's backend or workload would refuse it on any machine; empty where it would not."""
    checks = (_check_devices, _check_data, _check_training, _check_options, _check_head)
    return next((reason for check in checks if (reason := check(run))), "")


def _check_devices(run: RunSpec) -> str:
    entry, gpus = BACKENDS[run.backend], run.gpus_per_node
    if not gpus and run.precision not in entry.cpu_precisions:
        able = ", ".join(entry.cpu_precisions)
        return f"precision {run.precision} was requested; on CPUs, where these runs are, it trains in {able}"
    if gpus and not entry.uses_gpus:
        return f"{gpus} GPUs per node were requested; it runs on CPUs only"
    if gpus and entry.where and not entry.one_rank_per_node and gpus != run.ranks_per_node:
        return f"{gpus} GPUs and {run.ranks_per_node} ranks per node were requested; it drives one GPU per rank"
    return ""


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
    if reason := BACKENDS[run.backend].no_sharded_head:
        return f"{reason}: take {DEFAULT_BACKEND}, or head=replicated"
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
    entry = BACKENDS[run.backend]
    if run.reduction == "off" and entry.no_sync_unsupported:
        return f"reduction was switched off, and it has no no-sync run: {entry.no_sync_unsupported}"
    return entry.refuses(run, options) if entry.refuses is not None else ""
