"""The specification of a sweep: what is requested, checked; expansion.py makes runs of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from hpc.backends.limits import DEFAULT_BACKEND
from hpc.model.options import KINDS, MAX_WHOLE, data_source
from hpc.model.reference import read_share
from hpc.model.spec import (
    DATA_CACHES,
    MIN_WARMUP_STEPS,
    PLACEMENTS,
    PRECISIONS,
    RUN_SETTINGS,
    SCALINGS,
    SCRIPT,
    SYNTHETIC,
    TIMINGS,
    UNKNOWN,
    SpecError,
    check_arguments,
    check_settings,
)
from hpc.system.sanitize import arguments_without_secrets
from hpc.workloads import WORKLOADS, is_user_code, reference_batch_size
from launch.jobs.options import (
    Help,
    choice,
    each,
    flag,
    option_field,
    option_rows,
    read_request,
    table,
    text,
    truth,
    whole,
)
from launch.jobs.site import ENV_NAME, NO_ENV_NAME

# A script of one's own, in the place of backend and workload.

SCRIPT_PAUSE_S = 600
"""A script may do without a step for so long, as it evaluates or writes a checkpoint, before it counts as hanging."""
_DECIDED_BY_SCRIPTS = (
    "recipe", "backend", "workload", "data", "data_cache", "precision", "timing", "option",
    "epochs", "target_accuracy", "collectives", "no_sync", "seed",
)  # fmt: skip


def script_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a sweep that follow from its script; none where there is no script.

    Raises SpecError for options of which the script decides, for arguments without a script, and where the script
    cannot be one.
    """
    arguments: Sequence[str] = tuple(values.get("arguments") or ())
    if "script" not in values:
        if arguments:
            raise SpecError(
                f"{arguments_without_secrets(arguments)[0]!r} follows --, as arguments of a script do, and there is no "
                "--script FILE.py"
            )
        if values.get("tokens_per_sample") is not None:
            raise SpecError("--tokens-per-sample is for a --script: a workload knows what its samples are")
        return {}
    if decided := [name for name in _DECIDED_BY_SCRIPTS if values.get(name) is not None]:
        raise SpecError(
            f"{', '.join(map(flag, decided))} and --script exclude each other: the script decides that; "
            "its own arguments follow --"
        )
    script = str(values["script"])
    check_script(script)
    absolute = str(Path(script).absolute())
    check_arguments(arguments)
    settings: dict[str, Any] = {
        "backend": (SCRIPT,), "workload": (absolute,), "precision": (UNKNOWN,), "arguments": arguments,
        "no_baseline": values.get("no_baseline") is not False,  # one of several ranks, a pipeline, cannot start as 1n1g
    }  # fmt: skip
    return settings if values.get("batch_size") is not None else {**settings, "batch_size": (0,)}


def check_script(script: str) -> None:
    """Raises SpecError where this is no Python file that can be read."""
    path = Path(script)
    if not script.endswith(".py") or ":" in script:
        meant = f". Did you mean {script}.py?" if Path(f"{script}.py").is_file() else ""
        raise SpecError(f"--script {script!r} is no path of a Python file: it ends with .py, and has no colon{meant}")
    if not path.is_file():
        apart = "; --script takes the file alone, its arguments follow --" if len(script.split()) > 1 else ""
        raise SpecError(f"--script {script!r}: there is no file {path.absolute()}{apart}")


AUTO: Final = "auto"
FIRST_REPEATS = 6
"""With it, the runs of every point before the first decision: the least number whose median has an interval of 95 %."""
DEFAULT_CI, DEFAULT_MAX_REPEATS = 0.01, 20


# How the values of a sweep's own options are read; each raises SpecError for a text that is none.

MAX_RUNS = 100_000
"""A plan of more runs is refused: that many attempts of a minute take ten weeks, one after the other."""
NODES, RANKS = whole(1, 1_000_000), whole(1, 10_000)
_REPEATS = whole(1, MAX_RUNS)
_CASE = re.compile(r"(\d+)n(\d+)g")


def read_case(name: str, case: object) -> tuple[int, int]:
    """A case, as 2n8g, to nodes and ranks per node."""
    match = _CASE.fullmatch(str(case).strip())
    if not match:
        raise SpecError(f"cases: {case!r} is not of the form 2n8g (nodes, ranks per node)")
    return NODES("nodes", match[1]), RANKS("ranks_per_node", match[2])


def read_data(name: str, value: object) -> str:
    """A request for data that some workload knows, by an absolute path: a job may run from any folder."""
    data = text(name, value)
    source = data_source(data)
    return data if source is None else f"{source.kind}:{Path(source.path).absolute()}"


def read_workload(name: str, value: object) -> str:
    """The name of a workload; of a person's own, FILE.py:FACTORY with an absolute path."""
    path, colon, factory = text(name, value).partition(":")
    return f"{Path(path).absolute()}{colon}{factory}" if factory and is_user_code(path) else f"{path}{colon}{factory}"


def read_percent(name: str, value: object) -> float:
    """A percentage; a share, as 0.759, is refused."""
    try:
        percent = float(str(value))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100 or isinstance(value, bool):
        raise SpecError(f"{name}: {str(value)[:40]!r} is no percentage, from 0 to 100")
    if 0 < percent <= 1:
        raise SpecError(
            f"{name}: {percent:g} would be {percent:g} percent of the images; for a share, write {100 * percent:g}"
        )
    return percent


def read_repeats(name: str, value: object) -> int | Literal["auto"]:
    """A number of runs, or `auto`."""
    if value == AUTO:
        return AUTO
    try:
        repeats: int = _REPEATS(name, value)
    except SpecError as error:
        raise SpecError(f"{error}, or {AUTO}") from None
    return repeats


def read_ci(name: str, value: object) -> float:
    """A half width as a share, from `1%` or `0.01`."""
    try:
        return read_share(text(name, value))
    except ValueError as error:
        raise SpecError(f"{name}: {error}") from None


def read_env(name: str, value: object) -> dict[str, tuple[str, ...]]:
    """Environment variables of the runs, none of which may hold a secret."""
    env = table(name, value)
    for variable in env:
        if not ENV_NAME.fullmatch(variable):
            raise SpecError(f"env: {variable!r} {NO_ENV_NAME}")
    check_settings(name, env)
    return env


def read_options(name: str, value: object) -> dict[str, tuple[str, ...]]:
    """Options of backends and workloads, none of which may be a secret."""
    options = table(name, value)
    check_settings(name, options)
    return options


REFERENCE_SIZES: Mapping[str, Any] = {"batch_size": (128,), "repeats": 5}
SMALL_SIZES: Mapping[str, Any] = {"batch_size": (4,), "repeats": 4}
"""Four a side are the least that `compare` can decide by: with three no order of the runs is rarer than chance."""
REFERENCE_STEPS, SMALL_STEPS = (120, 20), (16, 6)
"""Steps of a run, warm-up included, and of the warm-up. The reference protocol: 5 repeats of 120 steps, the first 20 of
them warm-up; a workload may have other steps of its own reference. The small sizes are for CPUs: 1, 2 and 4 ranks of
ResNet-50 take two cores about four minutes. A demonstration, no benchmark."""
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
        None, whole(0, 10_000), "N", "GPUs that a node has; 0 runs on CPUs (default: the site's, else Slurm's)")
    backend: tuple[str, ...] = _measured(
        (DEFAULT_BACKEND,), each(text), "NAME,…", "framework and strategy (default {default})", page=_DAILY)
    workload: tuple[str, ...] = _measured(
        ("resnet50",), each(read_workload), "NAME,…", "{default} (default), or your own FILE.py:FACTORY",
        page=_DAILY)
    script: str = _measured(
        "", text, "FILE.py", "your own script; -- ITS ARGUMENTS last", page=_DAILY)
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
    tokens_per_sample: int = _measured(
        0, whole(1, MAX_WHOLE), "N",
        "of a --script that trains a language model: tokens of a sample, so that speeds are tokens/s")
    precision: tuple[str, ...] = _measured(
        ("fp32",), each(choice(PRECISIONS)), "P,…", f"{', '.join(PRECISIONS)} (default {{default}})", page=_DAILY)
    scaling: tuple[str, ...] = _measured(
        ("weak",), each(choice(SCALINGS)), "S,…", f"{', '.join(SCALINGS)} (default {{default}})")
    timing: tuple[str, ...] = _measured(
        ("phases",), each(choice(TIMINGS)), "T,…",
        f"{', '.join(TIMINGS)} (default {{default}}: six time stamps a step; step: begin, batch, end, and the "
        "framework's fused way in between)")
    telemetry: tuple[str, ...] = _measured(
        ("on",), each(choice(("on", "off"))), "T,…",
        "on, off (default {default}: a helper on each node reads clocks, power and load)")
    option: Mapping[str, tuple[str, ...]] = _measured(
        {}, read_options, "NAME=V,…", "option of the backend or workload (see `list`)", page=_DAILY)
    env: Mapping[str, tuple[str, ...]] = _measured(
        {}, read_env, "NAME=V,…", "environment variable; \\, is a comma in a value", page=_DAILY)
    arguments: tuple[str, ...] = ()
    recipe: str = _measured(
        "", text, "NAME",
        "a published measurement (see `list`)",
        page=Help.SUBCOMMANDS)
    steps: int | None = _method(
        None, _steps, "N", f"steps with warm-up ({_default_steps})", page=_DAILY)
    warmup: int | None = _method(
        None, _steps, "N",
        f"first steps that no number counts ({_default_warmup}; at least {MIN_WARMUP_STEPS})")
    epochs: int = _method(
        0, whole(0, 1_000_000), "N[/E]", "whole training of N epochs, evaluated every E",
        page=_DAILY)
    target_accuracy: float = _method(
        0.0, read_percent, "P",
        "end a whole training once P percent of the held-out images are recognised (default: after all epochs)")
    repeats: int | Literal["auto"] | None = _method(
        None, read_repeats, "N|auto:CI:MAX",
        f"runs of every point (default {REFERENCE_SIZES['repeats']}); auto: until half of its interval is "
        f"CI ({100 * DEFAULT_CI:g}%%), or MAX ({DEFAULT_MAX_REPEATS})", page=_DAILY)
    ci: float | None = None
    max_repeats: int | None = None
    eval_every: int = 1
    block_steps: int = 500
    seed: int = _method(0, whole(0, MAX_WHOLE), "N", "seed of weights and synthetic data (default {default})")
    placement: str = _method(
        "separate", choice(PLACEMENTS), "P",
        "{default} (default): a job, and so an allocation, for each node count; nested: one for all, the smaller cases "
        "on some of the larger ones' nodes, in blocks shuffled by seed")
    no_baseline: bool = _method(
        False, truth, "", "add no 1n1g runs, as with --script: speedup is against the smallest case")
    collectives: bool = _method(
        False, truth, "",
        "add to every set of ranks that trains one run of its collectives alone: what communication could cost at best "
        "(sizes by --option; `list` shows them)")
    no_sync: bool = _method(
        False, truth, "", "add to every point on several ranks the same without reduction of gradients, for the ledger")
    # fmt: on

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SweepSpec:
        """A sweep from the values of options by name: comma lists, lists or single values alike."""
        of_script = script_settings(values)
        values, limits = split_limits(values)
        sweep = dataclasses.replace(read_request(cls, values), **of_script, **limits)
        if not sweep.nodes and not sweep.cases:
            raise SpecError(
                "nothing to run: say which node counts (--nodes 1,2,4) or cases (--cases 1n1g,2n8g), or a --recipe"
            )
        if sweep.cases and sweep.ranks_per_node and not sweep.nodes:
            raise SpecError("--ranks-per-node is for --nodes: --cases has both in one word, as 2n8g")
        return sweep


_OF_RUN = [row for row in option_rows(SweepSpec) if row.name in RUN_SETTINGS]
AXES = tuple(row.name for row in _OF_RUN if isinstance(row.read, each))
"""Settings of runs of which a sweep has several, by the names of both."""
SHARED = tuple(row.name for row in _OF_RUN if row.name not in (*AXES, "gpus_per_node", "env"))
"""Settings that all runs of a sweep share, by the names of both."""


def split_limits(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values with `repeats` and `epochs` alone, and what stands behind them: ci, max_repeats and eval_every."""
    values, limits = dict(values), dict[str, Any]()
    if isinstance(repeats := values.get("repeats"), str) and repeats.startswith(f"{AUTO}:"):
        values["repeats"], ci, *largest = repeats.split(":", 2)
        limits["ci"] = read_ci("repeats auto", ci)
        if largest:
            limits["max_repeats"] = whole(FIRST_REPEATS, MAX_RUNS)("repeats auto", largest[0])
    if isinstance(epochs := values.get("epochs"), str) and "/" in epochs:
        values["epochs"], _, every = epochs.partition("/")
        limits["eval_every"] = whole(1, 1_000_000)("epochs", every)
    return values, limits


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
