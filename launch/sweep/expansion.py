"""The runs of a sweep: its axes multiplied for a target, every size decided; and those that no machine could do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from hpc.backends import BACKENDS, fsdp_limits, options_of_run, tp_limits
from hpc.model.collective_plan import OPTIONS as COLLECTIVE_OPTIONS
from hpc.model.collective_plan import collectives_beside
from hpc.model.data_source import data_source
from hpc.model.options import Option, OptionError, did_you_mean
from hpc.model.outcome import MAX_PLAN_BYTES, RecordError, read_object
from hpc.model.spec import COLLECTIVES, MIN_WARMUP_STEPS, SCRIPT_STEPS, Plan, RunSpec, SpecError, Target, shuffled
from hpc.system.text import grouped
from hpc.workloads import (
    OF_TRAININGS,
    TRAINED,
    WORKLOADS,
    gpt,
    is_user_code,
    options_of_files,
    reference_batch_size,
    reference_steps,
)
from hpc.workloads.delays import check_ranks, parse_delays
from launch.jobs.options import distinct
from launch.sweep.spec import (
    AUTO,
    FIRST_REPEATS,
    MAX_RUNS,
    REFERENCE_SIZES,
    REFERENCE_STEPS,
    SMALL_SIZES,
    SMALL_STEPS,
    SweepSpec,
    joined,
)

OptionsOf = Callable[[str, str], Mapping[str, Option]]
"""(backend, workload) → the options that the pair accepts; raises SpecError if one of them is unknown."""


def expand(sweep: SweepSpec, target: Target, options_of: OptionsOf) -> Plan:
    """Decides every size for the target and multiplies the axes; adds 1n1g baselines, and no-sync runs if requested.

    Runs are ordered by repeat first, so that a slow drift of the machine affects all points alike. With
    nested placement, each repeat has its own order of points, shuffled with the seed.
    """
    sweep, reduced = _with_sizes(sweep, target)
    points: dict[str, RunSpec] = {}
    known_anywhere = set(COLLECTIVE_OPTIONS) if sweep.collectives else set()
    for backend, workload, data in product(sweep.backend, sweep.workload, sweep.data):
        steps, lines = _steps_of(sweep, target, workload)
        reduced += tuple(line for line in lines if line not in reduced)
        known = {**options_of(backend, workload), **options_of_files(workload, data)}
        known_anywhere |= known.keys()
        options, shrunk = _with_options(sweep, known, small=target.gpus_per_node == 0)
        reduced += tuple(line for line in shrunk if line not in reduced)
        for run in _multiply(sweep, target, backend, workload, data, steps, options):
            for spec in (run,) if sweep.no_baseline else (run.baseline(), run):
                points.setdefault(spec.point_id, spec)
            if sweep.no_sync and run.ranks > 1 and not run.diagnostic and backend not in target.without_no_sync:
                no_sync = dataclasses.replace(run, reduction="off", epochs=0, target_accuracy=0.0, eval_every=1)
                points.setdefault(no_sync.point_id, no_sync)
            _refuse_too_many(len(points), sweep)
    reduced += _add_collectives(points, sweep, target)
    _refuse_too_many(len(points), sweep)
    _refuse_options_nobody_knows(sweep, known_anywhere)
    _check_whole_training(sweep)
    if sweep.data_cache != ("off",) and not any(map(data_source, sweep.data)):
        raise SpecError(f"data_cache is {', '.join(sweep.data_cache)}, and no --data names files that could be cached")
    return Plan(target=target, runs=_repeated(points, sweep), reduced=(*target.reduced, *reduced))


def _check_whole_training(sweep: SweepSpec) -> None:
    """Raises SpecError where what is requested of a whole training contradicts itself."""
    if not sweep.epochs and (sweep.target_accuracy or sweep.eval_every != 1):
        raise SpecError(
            "target_accuracy and eval_every are of whole trainings: say how many epochs one may take, --epochs"
        )
    if sweep.epochs and sweep.data_cache != ("off",):
        raise SpecError("epochs: a whole training reads all of its images; it has no --data-cache")


def expand_all(sweeps: Sequence[SweepSpec], target: Target, options_of: OptionsOf) -> Plan:
    """The plan of several sweeps as one; a point of several is measured once. They have the same repeats."""
    if len(sweeps) == 1:
        return expand(sweeps[0], target, options_of)
    whole, _ = _with_sizes(joined(sweeps), target)
    sized = [dataclasses.replace(sweep, cpus_per_rank=sweep.cpus_per_rank or whole.cpus_per_rank) for sweep in sweeps]
    plans = [expand(sweep, target, options_of) for sweep in sized]
    points = {run.point_id: run for plan in plans for run in plan.runs if run.repeat == 1}
    _refuse_too_many(len(points), whole)
    reduced = tuple(dict.fromkeys(line for plan in plans for line in plan.reduced))
    return Plan(target=target, runs=_repeated(points, whole), reduced=reduced)


def _repeated(points: Mapping[str, RunSpec], sweep: SweepSpec) -> tuple[RunSpec, ...]:
    """All runs of the points, in the order in which they are measured."""
    assert isinstance(sweep.repeats, int)
    return tuple(
        point.repeated(repeat)
        for repeat in range(1, sweep.repeats + 1)
        for point in in_block(points, repeat, sweep)
        if repeat == 1 or point.diagnostic != COLLECTIVES
    )


def in_block(points: Mapping[str, RunSpec], repeat: int, sweep: SweepSpec) -> list[RunSpec]:
    """The points in the order in which this repeat of them is measured."""
    if sweep.placement == "nested":
        return [points[name] for name in shuffled(points, sweep.seed, f"block {repeat}")]
    return sorted(points.values(), key=lambda point: (point.nodes, point.devices_per_node))


def _add_collectives(points: dict[str, RunSpec], sweep: SweepSpec, target: Target) -> tuple[str, ...]:
    """Adds the collectives of each set of ranks that trains, if requested; returns a line for each reduced size."""
    if not sweep.collectives:
        return ()
    options, reduced = _with_options(sweep, COLLECTIVE_OPTIONS, small=target.gpus_per_node == 0)
    runs = list(collectives_beside(points.values(), _combinations(options), target.collectives))
    if not runs:
        raise SpecError("collectives were requested, and no point has ranks between which anything goes: add --nodes 2")
    points.update((run.point_id, run) for run in runs)
    return tuple(reduced)


def _with_sizes(sweep: SweepSpec, target: Target) -> tuple[SweepSpec, tuple[str, ...]]:
    """The sweep with all sizes decided, and a line for each one reduced because the target has no GPU."""
    small = target.gpus_per_node == 0
    chosen: dict[str, Any] = {}
    reduced = []
    batch_size = min(reference_batch_size(workload) for workload in sweep.workload)
    for name, reference in {**REFERENCE_SIZES, "batch_size": (batch_size,)}.items():
        if getattr(sweep, name) is not None:
            continue
        chosen[name] = SMALL_SIZES[name] if small else reference
        if small:
            reduced.append(f"{name.replace('_', '-')} {_single(SMALL_SIZES[name])} instead of {_single(reference)}")
    if sweep.repeats == AUTO:
        chosen["repeats"] = FIRST_REPEATS
    if sweep.ranks_per_node is None:
        chosen["ranks_per_node"] = (target.gpus_per_node or 1,)
    sweep = dataclasses.replace(sweep, **chosen)
    if sweep.cpus_per_rank is None:
        sweep = dataclasses.replace(sweep, cpus_per_rank=(_cpus_per_rank(sweep, target),))
    return sweep, tuple(reduced)


def _steps_of(sweep: SweepSpec, target: Target, workload: str) -> tuple[tuple[int, int], list[str]]:
    """Steps of a run of this workload and of its warm-up, and a line for each of them that was reduced."""
    small = target.gpus_per_node == 0 and not sweep.script
    reference = (SCRIPT_STEPS, REFERENCE_STEPS[1]) if sweep.script else reference_steps(workload) or REFERENCE_STEPS
    steps, warmup = SMALL_STEPS if small else reference
    if sweep.steps is not None:
        warmup = min(warmup, max(MIN_WARMUP_STEPS, sweep.steps // 4))
    if sweep.warmup is not None:
        steps = max(steps, sweep.warmup + SMALL_STEPS[0] - SMALL_STEPS[1])
    chosen = (("steps", sweep.steps, steps), ("warmup", sweep.warmup, warmup))
    lines = [
        f"{name} {size} instead of {usual}"
        for (name, requested, size), usual in zip(chosen, reference, strict=True)
        if requested is None and small
    ]
    steps, warmup = (size if requested is None else requested for _, requested, size in chosen)
    if steps <= warmup:
        raise SpecError(f"steps is {steps} and warmup {warmup}: no step is left to measure")
    return (steps, warmup), lines


def _with_options(
    sweep: SweepSpec, known: Mapping[str, Option], small: bool
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The options that the backend and workload accept, and a line for each reduced one."""
    options = {name: values for name, values in sweep.option.items() if name in known}
    reduced = []
    for name, option in known.items():
        if name in options:
            distinct(f"option {name}", [option.read(name, text) for text in options[name]])
        elif small and option.small is not None:
            options[name] = (option.small,)
            reduced.append(f"{name} {option.small} instead of {option.default}")
    return options, reduced


def _refuse_too_many(points: int, sweep: SweepSpec) -> None:
    assert isinstance(sweep.repeats, int)
    if (runs := points * sweep.repeats) > MAX_RUNS:
        raise SpecError(
            f"the sweep has {points} points or more with {sweep.repeats} repeats each, {runs} runs; at most {MAX_RUNS} "
            "are planned: request fewer repeats or shorter lists, or split it into several sweeps in one --out folder"
        )


def _refuse_options_nobody_knows(sweep: SweepSpec, known: set[str]) -> None:
    if unknown := sorted(set(sweep.option) - known):
        raise SpecError(
            f"unknown option {', '.join(unknown)}; {', '.join(sweep.backend)} with {', '.join(sweep.workload)} "
            f"know {', '.join(sorted(known)) or 'none'}{did_you_mean(unknown[0], known)}"
        )


def _single(size: Any) -> Any:
    return size[0] if isinstance(size, tuple) else size


def _cases(sweep: SweepSpec) -> list[tuple[int, int]]:
    ranks_per_node = sweep.ranks_per_node or (1,)
    return list(dict.fromkeys((*product(sweep.nodes, ranks_per_node), *sweep.cases)))


def _cpus_per_rank(sweep: SweepSpec, target: Target) -> int:
    """The cores of a node divided by the largest number of ranks on a node; the same for every point."""
    if target.cpus_per_node is None:
        return 1
    share = max(nodes * ranks if target.nodes_simulated else ranks for nodes, ranks in _cases(sweep))
    return max(1, target.cpus_per_node // share)


def _multiply(
    sweep: SweepSpec, target: Target, backend: str, workload: str, data: str, steps: tuple[int, int],
    option_values: Mapping[str, tuple[str, ...]],
) -> Iterator[RunSpec]:  # fmt: skip
    assert sweep.batch_size and sweep.cpus_per_rank
    axes = product(
        _cases(sweep), sweep.cpus_per_rank, sweep.batch_size, sweep.precision, sweep.scaling, sweep.timing,
        sweep.telemetry, sweep.data_cache if data_source(data) else ("off",), _combinations(option_values),
        _combinations(sweep.env),
    )  # fmt: skip
    warmup_steps, measured_steps = steps[1], steps[0] - steps[1]
    block_steps = 0 if sweep.script or sweep.block_steps >= measured_steps else sweep.block_steps  # 0: one block
    for (nodes, ranks_per_node), cpus, batch_size, precision, scaling, timing, telemetry, cache, options, env in axes:
        gpus = 0 if backend in target.without_gpus else target.gpus_per_node
        if gpus and ranks_per_node > gpus:
            raise SpecError(
                f"{nodes}n{ranks_per_node}g requests {ranks_per_node} GPUs per node; "
                f"{target.site} has {target.gpus_per_node}"
            )
        drives_all = gpus and backend in target.one_rank_per_node
        yield RunSpec(
            nodes=nodes, ranks_per_node=1 if drives_all else ranks_per_node,
            gpus_per_node=ranks_per_node if gpus else 0, cpus_per_rank=cpus, backend=backend, workload=workload,
            batch_size=batch_size, precision=precision, scaling=scaling, timing=timing, telemetry=telemetry,
            warmup_steps=warmup_steps, measured_steps=measured_steps, block_steps=block_steps, repeat=1,
            seed=sweep.seed, data=data, data_cache=cache, epochs=sweep.epochs, target_accuracy=sweep.target_accuracy,
            eval_every=sweep.eval_every, placement=sweep.placement, site=target.site,
            container=target.containers.get(backend, ""), code_digest=target.code_digests.get(workload, ""),
            arguments=sweep.arguments, options=options, env={**target.env, **env},
        )  # fmt: skip


def _combinations(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


# Runs that no machine could do, known before submission.

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
