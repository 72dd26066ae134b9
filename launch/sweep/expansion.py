"""The runs of a sweep: its axes multiplied for a target, every size decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from hpc.backends import BACKENDS, operations_of
from hpc.backends.refusals import options_of
from hpc.model.collective_plan import OPTIONS as COLLECTIVE_OPTIONS
from hpc.model.collective_plan import collectives_beside
from hpc.model.options import Option, data_source, did_you_mean
from hpc.model.spec import COLLECTIVES, MIN_WARMUP_STEPS, SCRIPT_STEPS, Plan, RunSpec, SpecError, Target, shuffled
from hpc.system.version import code_version
from hpc.workloads import options_of_files, reference_batch_size, reference_steps
from launch.jobs.options import distinct
from launch.sweep.spec import (
    AUTO,
    AXES,
    FIRST_REPEATS,
    MAX_RUNS,
    REFERENCE_SIZES,
    REFERENCE_STEPS,
    SHARED,
    SMALL_SIZES,
    SMALL_STEPS,
    SweepSpec,
)


def expand(sweep: SweepSpec, target: Target) -> Plan:
    """The plan of a sweep; see expand_all."""
    return expand_all((sweep,), sweep, target)


def expand_all(sweeps: Sequence[SweepSpec], shared: SweepSpec, target: Target) -> Plan:
    """The plan of several sweeps as one; a point of several is measured once. `shared` is what they share (`joined`),
    their repeats among it.

    Runs are ordered by repeat first, so that a slow drift of the machine affects all points alike. With
    nested placement, each repeat has its own order of points, shuffled with the seed.
    """
    whole, _ = _with_sizes(shared, target)
    points: dict[str, RunSpec] = {}
    reduced = dict.fromkeys(target.reduced)
    for sweep in sweeps:
        sized = dataclasses.replace(sweep, cpus_per_rank=sweep.cpus_per_rank or whole.cpus_per_rank)
        of_sweep, lines = _points(sized, target)
        points |= of_sweep
        reduced |= dict.fromkeys(lines)
    _refuse_too_many(len(points), whole)
    return Plan(target=target, runs=_repeated(points, whole), reduced=tuple(reduced), code=code_version())


def _points(sweep: SweepSpec, target: Target) -> tuple[dict[str, RunSpec], tuple[str, ...]]:
    """The points of a sweep with every size decided for the target, and a line for each size that was reduced: the axes
    multiplied, with 1n1g baselines, and with no-sync runs and collectives if requested."""
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
        for baseline, run in _multiply(sweep, target, backend, workload, data, steps, options):
            for spec in (baseline, run):
                points.setdefault(spec.point_id, spec)
            has_no_sync = not BACKENDS[backend].no_sync_unsupported
            if sweep.no_sync and has_no_sync and run.ranks > 1 and not run.diagnostic:
                no_sync = dataclasses.replace(run, reduction="off", epochs=0, target_accuracy=0.0, eval_every=1)
                points.setdefault(no_sync.point_id, no_sync)
            _refuse_too_many(len(points), sweep)
    reduced += _add_collectives(points, sweep, target)
    _refuse_too_many(len(points), sweep)
    _refuse_options_nobody_knows(sweep, known_anywhere)
    _check_whole_training(sweep)
    if sweep.data_cache != ("off",) and not any(map(data_source, sweep.data)):
        raise SpecError(f"data_cache is {', '.join(sweep.data_cache)}, and no --data names files that could be cached")
    return points, reduced


def _check_whole_training(sweep: SweepSpec) -> None:
    """Raises SpecError where what is requested of a whole training contradicts itself."""
    if not sweep.epochs and (sweep.target_accuracy or sweep.eval_every != 1):
        raise SpecError(
            "a target accuracy and epochs between evaluations are of whole trainings, and epochs is 0: --epochs N says "
            "how many one may take"
        )
    if sweep.epochs and sweep.data_cache != ("off",):
        raise SpecError("epochs: a whole training reads all of its images; it has no --data-cache")


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
    on_gpus = target.gpus_per_node > 0
    operations = {name: operations_of(name, on_gpus) for name, entry in BACKENDS.items() if entry.collectives}
    runs = list(collectives_beside(points.values(), _combinations(options), operations))
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
) -> Iterator[tuple[RunSpec, RunSpec]]:  # fmt: skip
    """Each run behind its baseline, which is itself where none is wanted."""
    gpus = target.gpus_per_node if BACKENDS[backend].uses_gpus else 0
    fixed: dict[str, Any] = {name: getattr(sweep, name) for name in (*SHARED, "arguments", "eval_every")}
    fixed |= {"backend": backend, "workload": workload, "data": data, "site": target.site}
    fixed |= {"container": target.containers.get(backend, ""), "code_digest": target.code_digests.get(workload, "")}
    axes = {name: getattr(sweep, name) for name in AXES if name not in (*fixed, "nodes", "ranks_per_node")}
    if not data_source(data):
        axes["data_cache"] = ("off",)
    warmup_steps, measured_steps = steps[1], steps[0] - steps[1]
    block_steps = 0 if sweep.script or sweep.block_steps >= measured_steps else sweep.block_steps  # 0: one block
    combined = _combinations(axes)
    for (nodes, ranks_per_node), values, options, env in product(
        _cases(sweep), combined, _combinations(option_values), _combinations(sweep.env)
    ):
        if gpus and ranks_per_node > gpus:
            raise SpecError(
                f"{nodes}n{ranks_per_node}g requests {ranks_per_node} GPUs per node; "
                f"{target.site} has {target.gpus_per_node}"
            )
        drives_all = gpus and BACKENDS[backend].one_rank_per_node
        run = RunSpec(
            nodes=nodes, ranks_per_node=1 if drives_all else ranks_per_node,
            gpus_per_node=ranks_per_node if gpus else 0, warmup_steps=warmup_steps, measured_steps=measured_steps,
            block_steps=block_steps, repeat=1, options=options, **target.of_site(nodes, env),
            **fixed, **values,
        )  # fmt: skip
        yield run if sweep.no_baseline else run.baseline(**target.of_site(1, env)), run


def _combinations(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value of each axis, the last axis first."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
