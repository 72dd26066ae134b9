"""The specification of a sweep, and its expansion into runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

from hpc.model.collective_plan import OPTIONS as COLLECTIVE_OPTIONS
from hpc.model.collective_plan import collectives_beside
from hpc.model.data_source import KINDS, data_source
from hpc.model.options import MAX_WHOLE, Option, did_you_mean
from hpc.model.spec import (
    COLLECTIVES,
    DATA_CACHES,
    MIN_WARMUP_STEPS,
    PLACEMENTS,
    PRECISIONS,
    SCALINGS,
    SCRIPT_STEPS,
    SYNTHETIC,
    TIMINGS,
    Plan,
    RunSpec,
    SpecError,
    Target,
    shuffled,
)
from hpc.workloads import WORKLOADS, options_of_files, reference_batch_size, reference_steps
from launch.jobs.options import Help, choice, distinct, each, option_field, read_request, table, text, truth, whole
from launch.sweep.readers import (
    MAX_RUNS,
    NODES,
    RANKS,
    read_case,
    read_ci,
    read_data,
    read_env,
    read_percent,
    read_repeats,
)
from launch.sweep.repeats import AUTO, DEFAULT_CI, DEFAULT_MAX_REPEATS, FIRST_REPEATS
from launch.sweep.script import script_settings

REFERENCE_SIZES: Mapping[str, Any] = {"batch_size": (128,), "repeats": 5}
SMALL_SIZES: Mapping[str, Any] = {"batch_size": (4,), "repeats": 3}
REFERENCE_STEPS, SMALL_STEPS = (120, 20), (16, 6)
"""Steps of a run, warm-up included, and of the warm-up. The reference protocol: 5 repeats of 120 steps, the first 20 of
them warm-up; a workload may have other steps of its own reference. The small sizes are for CPUs: 1, 2 and 4 ranks of
ResNet-50 take two cores about three minutes. A demonstration, no benchmark."""
_default_steps, _default_warmup = (
    "; ".join(
        [f"default {REFERENCE_STEPS[at]}", *(f"{name} {e.steps[at]}" for name, e in WORKLOADS.items() if e.steps)]
    )
    for at in (0, 1)
)
_steps = whole(1, 10_000_000)
_measured = partial(option_field, "what is measured (without GPUs the defaults are smaller; the plan names them)")
_DAILY = Help.DAILY
_method = partial(option_field, "how it is measured")


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """The requested measurements and settings. None is a size that was not chosen: the target decides it (`expand`)."""

    # fmt: off
    nodes: tuple[int, ...] = _measured((), each(NODES), "N,…", "node counts, each with every --ranks-per-node",
                                       page=Help.SUBCOMMANDS)
    ranks_per_node: tuple[int, ...] | None = _measured(
        None, each(RANKS), "N,…", "MPI ranks per node (default: its GPUs, else 1)", page=_DAILY)
    cases: tuple[tuple[int, int], ...] = _measured(
        (), each(read_case), "2n8g,…", "nodes and ranks per node in one word, beside or instead of --nodes")
    cpus_per_rank: tuple[int, ...] | None = _measured(
        None, each(whole(1, 100_000)), "N,…", "threads of each rank (default: a node's cores shared by its ranks)")
    gpus_per_node: int | None = _measured(
        None, whole(0, 10_000), "N", "GPUs that a node has; 0 runs on CPUs (default: the site's, else sinfo's)")
    backend: tuple[str, ...] = _measured(
        ("torch-ddp",), each(text), "NAME,…", "framework and strategy (default {default})", page=_DAILY)
    workload: tuple[str, ...] = _measured(
        ("resnet50",), each(text), "NAME,…", "{default} (default), or your own FILE.py:FACTORY",
        page=_DAILY)
    script: str = _measured(
        "", text, "FILE.py", "your own script as it is; -- ITS ARGUMENTS last", page=_DAILY)
    data: tuple[str, ...] = _measured(
        (SYNTHETIC,), each(read_data), "DATA,…",
        f"{{default}} (default), or KIND:PATH of files ({', '.join(KINDS)})",
        page=_DAILY)
    data_cache: tuple[str, ...] = _measured(
        ("off",), each(choice(DATA_CACHES)), "C,…",
        f"{', '.join(DATA_CACHES)} (default {{default}}; device: one batch of the files is used in every step, for the "
        "speed without input)")
    batch_size: tuple[int, ...] | None = _measured(
        None, each(whole(1, MAX_WHOLE)), "N,…",
        f"samples per device, or with --scaling strong in all (default {REFERENCE_SIZES['batch_size'][0]}; of "
        f"gpt sequences, {reference_batch_size('gpt')})",
        page=_DAILY)
    precision: tuple[str, ...] = _measured(
        ("fp32",), each(choice(PRECISIONS)), "P,…", f"{', '.join(PRECISIONS)} (default {{default}})", page=_DAILY)
    scaling: tuple[str, ...] = _measured(
        ("weak",), each(choice(SCALINGS)), "S,…", f"{', '.join(SCALINGS)} (default {{default}})")
    timing: tuple[str, ...] = _measured(
        ("phases",), each(choice(TIMINGS)), "T,…",
        f"{', '.join(TIMINGS)} (default {{default}}: six time stamps a step; step: begin, batch, end, and the "
        "framework's fused way in between)")
    telemetry: tuple[str, ...] = _measured(
        ("on",), each(text), "T,…", "on, off (default {default}: a helper on each node reads clocks, power and load)")
    options: Mapping[str, tuple[str, ...]] = _measured(
        {}, table, "NAME=V,…", "option of the backend or workload (see `list`)", name="option", page=_DAILY)
    env: Mapping[str, tuple[str, ...]] = _measured(
        {}, read_env, "NAME=V,…", "environment variable; \\, is a comma in a value", page=_DAILY)
    arguments: tuple[str, ...] = ()
    recipe: str = _measured(
        "", text, "NAME",
        "published measurement (see `list`); options choose among its points or replace settings",
        page=Help.SUBCOMMANDS)
    steps: int | None = _method(
        None, _steps, "N", f"steps with warm-up ({_default_steps})", page=_DAILY)
    warmup: int | None = _method(
        None, _steps, "N",
        f"first steps that no number counts ({_default_warmup}; at least {MIN_WARMUP_STEPS})")
    block_steps: int = _method(
        500, whole(0, 10_000_000), "N",
        "measured steps of a block (default {default}; 0: one block): a run with more has several, each entered "
        f"through {MIN_WARMUP_STEPS} unmeasured steps, with the clocks synchronised in between")
    epochs: int = _method(
        0, whole(0, 1_000_000), "N",
"whole training of at most N epochs of --data", page=_DAILY)
    target_accuracy: float = _method(
        0.0, read_percent, "P",
        "end a whole training once P percent of the held-out images are recognised (default: after all epochs)")
    eval_every: int = _method(
        1, whole(1, 1_000_000), "N", "epochs between the evaluations of a whole training (default {default})")
    repeats: int | Literal["auto"] | None = _method(
        None, read_repeats, "N|auto",
        f"runs of every point (default {REFERENCE_SIZES['repeats']}), or as --ci", page=_DAILY)
    ci: float | None = _method(
        None, read_ci, "SHARE",
        "with --repeats auto: runs are added to a point until half of the 95 %% interval of its speed is at most "
        f"this (default {100 * DEFAULT_CI:g}%%)")
    max_repeats: int | None = _method(
        None, whole(FIRST_REPEATS, MAX_RUNS), "N",
        f"with --repeats auto: no point gets more runs (default {DEFAULT_MAX_REPEATS}; at least {FIRST_REPEATS}, which "
        "an interval of 95 %% takes)")
    seed: int = _method(0, whole(0, MAX_WHOLE), "N", "seed of weights and synthetic data (default {default})")
    placement: str = _method(
        "separate", choice(PLACEMENTS), "P",
        "{default} (default): a job, and so an allocation, for each node count; nested: one for all, the smaller cases "
        "on some of the larger ones' nodes, in blocks shuffled by seed")
    baseline: bool = _method(True, truth, "", "do not add 1n1g runs: there will be no speedup", name="no_baseline")
    collectives: bool = _method(
        False, truth, "",
        "add to every set of ranks that trains one run of its collectives alone: what communication could cost at best "
        "(sizes by --option; `list` shows them)")
    no_sync: bool = _method(
        False, truth, "", "add to every point on several ranks the same without reduction of gradients, for the ledger")
    # fmt: on

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SweepSpec:
        """A sweep from the values of options by field: comma lists, lists or single values alike."""
        of_script = script_settings(values)
        sweep = dataclasses.replace(read_request(cls, values), **of_script)
        if not sweep.nodes and not sweep.cases:
            raise SpecError(
                "nothing to run: say which node counts (--nodes 1,2,4) or cases (--cases 1n1g,2n8g), or a --recipe"
            )
        return sweep


def joined(sweeps: Sequence[SweepSpec]) -> SweepSpec:
    """One sweep with the cases, backends, workloads, precisions and variables of all: for what they share, not to be
    expanded."""
    first, *others = sweeps
    if not others:
        return first

    together: dict[str, Any] = {"env": {name: values for sweep in sweeps for name, values in sweep.env.items()}}
    for name in ("nodes", "cases", "backend", "workload", "precision"):
        together[name] = tuple(dict.fromkeys(value for sweep in sweeps for value in getattr(sweep, name)))
    return dataclasses.replace(first, **together)


OptionsOf = Callable[[str, str], Mapping[str, Option]]
"""(backend, workload) → the options that the pair accepts; raises SpecError if one of them is unknown."""


def expand(sweep: SweepSpec, target: Target, options_of: OptionsOf) -> Plan:
    """Decides every size for the target and multiplies the axes; adds 1n1g baselines, and no-sync runs if requested.

    Runs are ordered by repeat first, so that a slow drift of the machine affects all points alike. With
    nested placement, each repeat has its own order of points, shuffled with the seed.
    """
    sweep, reduced = _with_sizes(sweep, target)
    points: dict[str, RunSpec] = {}
    for backend, workload, data in product(sweep.backend, sweep.workload, sweep.data):
        steps, lines = _steps_of(sweep, target, workload)
        reduced += tuple(line for line in lines if line not in reduced)
        known = {**options_of(backend, workload), **options_of_files(workload, data)}
        options, shrunk = _with_options(sweep, known, small=target.gpus_per_node == 0)
        reduced += tuple(line for line in shrunk if line not in reduced)
        for run in _multiply(sweep, target, backend, workload, data, steps, options):
            for spec in (run.baseline(), run) if sweep.baseline else (run,):
                points.setdefault(spec.point_id, spec)
            if sweep.no_sync and run.ranks > 1 and not run.diagnostic and backend not in target.without_no_sync:
                no_sync = dataclasses.replace(run, reduction="off", epochs=0, target_accuracy=0.0, eval_every=1)
                points.setdefault(no_sync.point_id, no_sync)
            _refuse_too_many(len(points), sweep)
    reduced += _add_collectives(points, sweep, target)
    _refuse_too_many(len(points), sweep)
    _refuse_options_nobody_knows(sweep, options_of)
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
    options = {name: values for name, values in sweep.options.items() if name in known}
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
            "are planned: ask for fewer repeats or shorter lists, or split it into several sweeps in one --out folder"
        )


def _refuse_options_nobody_knows(sweep: SweepSpec, options_of: OptionsOf) -> None:
    known = {name for pair in product(sweep.backend, sweep.workload) for name in options_of(*pair)}
    known |= {name for pair in product(sweep.workload, sweep.data) for name in options_of_files(*pair)}
    known |= set(COLLECTIVE_OPTIONS) if sweep.collectives else set()
    if unknown := sorted(set(sweep.options) - known):
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
                f"{nodes}n{ranks_per_node}g asks for {ranks_per_node} GPUs per node; "
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
