"""The specification of a sweep, from the command line or a TOML file, and its expansion into runs."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar

from hpc.model.collective_plan import OPTIONS as COLLECTIVE_OPTIONS
from hpc.model.collective_plan import collectives_beside
from hpc.model.options import MAX_WHOLE, Option, did_you_mean
from hpc.model.spec import (
    COLLECTIVES,
    MIN_WARMUP_STEPS,
    PLACEMENTS,
    PRECISIONS,
    SCALINGS,
    TIMINGS,
    Plan,
    RunSpec,
    SpecError,
    Target,
    shuffled,
)
from hpc.system.sanitize import is_secret

Value = TypeVar("Value")

LONGEST_BLOCK = 500
"""Measured steps of a block by default: runs with more have several."""

MAX_RUNS = 100_000
"""A plan of more runs is refused: that many attempts of a minute take ten weeks, one after the other."""
_LIMITS: Mapping[str, tuple[int, int]] = {
    "nodes": (1, 1_000_000), "ranks_per_node": (1, 10_000), "cpus_per_rank": (1, 100_000), "gpus_per_node": (0, 10_000),
    "batch_size": (1, MAX_WHOLE), "steps": (1, 10_000_000), "warmup": (1, 10_000_000), "block_steps": (0, 10_000_000),
    "repeats": (1, MAX_RUNS), "seed": (0, MAX_WHOLE),
}  # fmt: skip
"""The smallest and the largest value of each number."""
_LISTS = ("nodes", "ranks_per_node", "cpus_per_rank", "batch_size")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "precision": PRECISIONS, "scaling": SCALINGS, "timing": TIMINGS,
}  # fmt: skip
"""The allowed values of these lists."""

_CASE = re.compile(r"(\d+)n(\d+)g")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """The specification of a sweep. None is a size that was not chosen: the target decides it (`expand`).

    `block_steps` is how many measured steps a block has at most, 0 for one block however long. `twin` adds to every
    training on several ranks the same without its reduction, `collectives` one run of what communication costs there.
    `placement` is one of hpc.model.spec's PLACEMENTS.
    """

    nodes: tuple[int, ...] = ()
    cases: tuple[tuple[int, int], ...] = ()
    ranks_per_node: tuple[int, ...] | None = None
    cpus_per_rank: tuple[int, ...] | None = None
    gpus_per_node: int | None = None
    backend: tuple[str, ...] = ("torch-ddp",)
    workload: tuple[str, ...] = ("resnet50",)
    batch_size: tuple[int, ...] | None = None
    precision: tuple[str, ...] = ("fp32",)
    scaling: tuple[str, ...] = ("weak",)
    timing: tuple[str, ...] = ("phases",)
    telemetry: tuple[str, ...] = ("on",)
    steps: int | None = None
    warmup: int | None = None
    block_steps: int = LONGEST_BLOCK
    repeats: int | None = None
    seed: int = 0
    placement: str = "separate"
    baseline: bool = True
    twin: bool = False
    collectives: bool = False
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> SweepSpec:
        """A sweep from a TOML table or a parsed command line: comma lists, lists or single values alike."""
        names = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(settings) - names):
            near = did_you_mean(unknown[0], names)
            raise SpecError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(names))}{near}")
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if value is None:
                continue
            if name == "cases":
                values[name] = _distinct(name, [_case(text) for text in _words(name, value)])
            elif name in ("options", "env"):
                table = _table(name, value).items()
                values[name] = {key: _distinct(f"{name} {key}", _words(f"{name} {key}", v)) for key, v in table}
            elif name in _LISTS:
                values[name] = _distinct(name, [_number(name, text) for text in _words(name, value)])
            elif name in _LIMITS:
                values[name] = _number(name, value)
            elif name in ("baseline", "twin", "collectives"):
                values[name] = _truth(name, value)
            elif name == "placement":
                values[name] = choice(name, value, PLACEMENTS)
            else:
                values[name] = _distinct(name, _words(name, value))
                for text in values[name] if name in _WORDS else ():
                    choice(name, text, _WORDS[name])
        _check_env(values.get("env", {}))
        sweep = cls(**values)
        if not sweep.nodes and not sweep.cases:
            raise SpecError("nothing to run: say which node counts (--nodes 1,2,4) or cases (--cases 1n1g,2n8g)")
        return sweep


REFERENCE_SIZES: Mapping[str, Any] = {"batch_size": (128,), "steps": 120, "warmup": 20, "repeats": 5}
"""The reference protocol: 5 repeats of 120 steps, the first 20 of them warm-up."""
SMALL_SIZES: Mapping[str, Any] = {"batch_size": (4,), "steps": 16, "warmup": 6, "repeats": 3}
"""Sizes for CPUs: 1, 2 and 4 ranks of ResNet-50 take two cores about three minutes. A demonstration, no benchmark."""

OptionsOf = Callable[[str, str], Mapping[str, Option]]
"""(backend, workload) → the options that the pair accepts; raises SpecError if one of them is unknown."""


def expand(sweep: SweepSpec, target: Target, options_of: OptionsOf) -> Plan:
    """Decides every size for the target and multiplies the axes out; adds the 1n1g baselines, and twins if asked for.

    Runs are ordered by repeat first, so that a slow drift of the machine meets all points alike. With
    nested placement, each repeat has its own order of points, shuffled with the seed.
    """
    sweep, reduced = _with_sizes(sweep, target)
    points: dict[str, RunSpec] = {}
    for backend, workload in product(sweep.backend, sweep.workload):
        known = options_of(backend, workload)
        options, shrunk = _with_options(sweep, known, small=target.gpus_per_node == 0)
        reduced += tuple(line for line in shrunk if line not in reduced)
        for run in _multiply(sweep, target, backend, workload, options):
            for spec in (run.baseline(), run) if sweep.baseline else (run,):
                points.setdefault(spec.point_id, spec)
            if sweep.twin and run.ranks > 1 and not run.diagnostic and backend not in target.without_no_sync:
                twin = dataclasses.replace(run, reduction="off")
                points.setdefault(twin.point_id, twin)
            _refuse_too_many(len(points), sweep)
    reduced += _add_collectives(points, sweep, target)
    _refuse_too_many(len(points), sweep)
    _refuse_options_nobody_knows(sweep, options_of)
    assert sweep.repeats is not None
    runs = tuple(
        point.repeated(repeat)
        for repeat in range(1, sweep.repeats + 1)
        for point in _block(points, repeat, sweep)
        if repeat == 1 or point.diagnostic != COLLECTIVES
    )
    return Plan(target=target, runs=runs, reduced=(*target.reduced, *reduced))


def _block(points: Mapping[str, RunSpec], repeat: int, sweep: SweepSpec) -> list[RunSpec]:
    """Every point once, in the order of this repeat."""
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
        raise SpecError("collectives were asked for, and no point has ranks between which anything goes: add --nodes 2")
    points.update((run.point_id, run) for run in runs)
    return tuple(reduced)


def _with_sizes(sweep: SweepSpec, target: Target) -> tuple[SweepSpec, tuple[str, ...]]:
    """The sweep with all sizes decided, and a line for each one reduced because the target has no GPU."""
    small = target.gpus_per_node == 0
    chosen: dict[str, Any] = {}
    reduced = []
    for name, usual in REFERENCE_SIZES.items():
        if getattr(sweep, name) is not None:
            continue
        size = SMALL_SIZES[name] if small else usual
        if name == "warmup" and sweep.steps is not None:
            size = min(size, max(MIN_WARMUP_STEPS, sweep.steps // 4))
        if name == "steps" and sweep.warmup is not None:
            size = max(size, sweep.warmup + SMALL_SIZES["steps"] - SMALL_SIZES["warmup"])
        chosen[name] = size
        if small:
            reduced.append(f"{name.replace('_', '-')} {_single(size)} instead of {_single(usual)}")
    if sweep.ranks_per_node is None:
        chosen["ranks_per_node"] = (target.gpus_per_node or 1,)
    sweep = dataclasses.replace(sweep, **chosen)
    if sweep.cpus_per_rank is None:
        sweep = dataclasses.replace(sweep, cpus_per_rank=(_cpus_per_rank(sweep, target),))
    assert sweep.steps is not None and sweep.warmup is not None
    if sweep.steps <= sweep.warmup:
        raise SpecError(f"steps is {sweep.steps} and warmup {sweep.warmup}: no step is left to measure")
    return sweep, tuple(reduced)


def _with_options(
    sweep: SweepSpec, known: Mapping[str, Option], small: bool
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The options of the sweep that the backend and workload accept, and a line for each reduced one."""
    options = {name: values for name, values in sweep.options.items() if name in known}
    reduced = []
    for name, option in known.items():
        if name in options:
            read = [option.read(name, text) for text in options[name]]
            _distinct(f"option {name}", read)
        elif small and option.small is not None:
            options[name] = (option.small,)
            reduced.append(f"{name} {option.small} instead of {option.default}")
    return options, reduced


def _refuse_too_many(points: int, sweep: SweepSpec) -> None:
    """Raises SpecError if this number of points makes more runs than a plan may have."""
    assert sweep.repeats is not None
    if (runs := points * sweep.repeats) > MAX_RUNS:
        raise SpecError(
            f"the sweep has {points} points or more with {sweep.repeats} repeats each, {runs} runs; at most {MAX_RUNS} "
            "are planned: ask for fewer repeats or shorter lists, or split it into several sweeps in one --out folder"
        )


def _refuse_options_nobody_knows(sweep: SweepSpec, options_of: OptionsOf) -> None:
    known = {name for pair in product(sweep.backend, sweep.workload) for name in options_of(*pair)}
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
    sweep: SweepSpec, target: Target, backend: str, workload: str, option_values: Mapping[str, tuple[str, ...]]
) -> Iterator[RunSpec]:
    assert sweep.batch_size and sweep.cpus_per_rank and sweep.steps and sweep.warmup
    axes = product(
        _cases(sweep), sweep.cpus_per_rank, sweep.batch_size, sweep.precision, sweep.scaling, sweep.timing,
        sweep.telemetry, _combinations(option_values), _combinations(sweep.env),
    )  # fmt: skip
    measured_steps = sweep.steps - sweep.warmup
    block_steps = sweep.block_steps if sweep.block_steps < measured_steps else 0  # one block is always said so
    for (nodes, ranks_per_node), cpus, batch_size, precision, scaling, timing, telemetry, options, env in axes:
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
            warmup_steps=sweep.warmup, measured_steps=measured_steps, block_steps=block_steps, repeat=1,
            seed=sweep.seed, placement=sweep.placement, site=target.site,
            container=target.containers.get(backend, ""), code_digest=target.code_digests.get(workload, ""),
            options=options, env={**target.env, **env},
        )  # fmt: skip


def _combinations(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _words(name: str, value: Any) -> list[str]:
    """A comma list (`\\,` is a comma inside a value), a list, or one value, as words."""
    if isinstance(value, str):
        words = [text.replace("\\,", ",") for text in re.split(r"(?<!\\),", value)]
    else:
        words = [_value_text(name, item) for item in (value if isinstance(value, list | tuple) else [value])]
    if not words or (not name.startswith("env ") and any(text.strip() == "" for text in words)):
        raise SpecError(f"{name}: an empty value in {value!r}")
    if any("\0" in text for text in words):
        raise SpecError(f"{name}: a NUL character in {value!r}")
    return words


def _distinct(name: str, values: Sequence[Value]) -> tuple[Value, ...]:
    """The values of a list. Raises SpecError if one is there twice."""
    for value, times in Counter(values).items():
        if times > 1:
            raise SpecError(f"{name}: {_shown(value)} is there {times} times; name each value once")
    return tuple(values)


def _shown(value: object) -> str:
    return "{}n{}g".format(*value) if isinstance(value, tuple) else str(value)


def _check_env(env: Mapping[str, Sequence[str]]) -> None:
    for name, values in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise SpecError(f"env: {name!r} is no name of an environment variable (letters, digits, _)")
        if any(is_secret(name, value) for value in values):
            raise SpecError(
                f"env: {name} looks like a secret, and what is set for runs is written into scripts, plans and traces: "
                "export it where you start the sweep instead, jobs inherit it, or keep it in a file that only you can "
                "read"
            )


def _value_text(name: str, value: Any) -> str:
    """A value as text, as on the command line: booleans of options are `on` and `off`."""
    if isinstance(value, bool) and (name.startswith("options ") or name == "telemetry"):
        return "on" if value else "off"
    return str(value)


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a table of NAME = value, not {value!r}")
    return value


def _case(text: str) -> tuple[int, int]:
    match = _CASE.fullmatch(text.strip())
    if not match:
        raise SpecError(f"cases: {text!r} is not of the form 2n8g (nodes, ranks per node)")
    return _number("nodes", match[1]), _number("ranks_per_node", match[2])


def _whole(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool | float):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise SpecError(f"{name}: {str(value)[:40]!r} is not a whole number") from None


def _number(name: str, value: Any) -> int:
    """A whole number within the limits of its name."""
    number = _whole(name, value)
    smallest, largest = _LIMITS[name]
    if number < -MAX_WHOLE or number > largest:
        shown = number if abs(number) < 10**40 else "a number of more than 40 digits"
        raise SpecError(f"{name}: {shown} is out of range; it must be from {smallest} to {largest}")
    if number < smallest:
        shape = "{0}: {1} is not a count; it must be at least {2}" if smallest else "{0} is {1}; it must be {2} or more"
        raise SpecError(shape.format(name, number, smallest))
    return number


def choice(name: str, value: Any, words: Sequence[str]) -> str:
    """The value as text. Raises SpecError if it is none of the words."""
    if value not in words:
        near = did_you_mean(str(value), words)
        raise SpecError(f"{name} {value!r} is not one of {', '.join(words)}{near}")
    return str(value)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, not {value!r}")
    return value
