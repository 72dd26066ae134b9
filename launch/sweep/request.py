"""The table of all options of `rankwise sweep`; a request from a command line and a TOML file.

A file takes the names of the command line's options, with - or _; the command line wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpc.model.options import MAX_WHOLE, did_you_mean
from hpc.model.outcome import FINAL_OUTCOMES, Outcome
from hpc.model.reference import Reference, ReferenceFileError, read_recipe
from hpc.model.spec import SpecError
from hpc.system import removed
from hpc.system.leaves import door
from hpc.system.regular_file import parse_toml, read_text
from launch.jobs.options import (
    Help,
    LaunchOptions,
    RunLimits,
    assignments,
    flag,
    option_field,
    option_rows,
    path,
    read_request,
    truth,
    whole,
)
from launch.jobs.site import Site, find_site
from launch.sweep.spec import MAX_RUNS, SCRIPT_PAUSE_S, SweepSpec, read_ci, script_settings

PROGRAM = "rankwise sweep"
SUBCOMMANDS = {
    "status": "status", "cancel": "cancel", "retry": "retry OUTCOME,…",
    "find-max": "find-max NAME", "accept": "accept --reference FILE", "recover": "recover FOLDER",
}  # fmt: skip
"""The subcommands other than measuring, and how each is typed. A file cannot request them."""
MEASURING = ("", "retry", "find-max")
"""The subcommands that take the options of a sweep; the empty one is none."""
OF_FOLDER = frozenset({"out", "dry_run", "detach", "max_jobs"})
"""The options that a `retry` of the sweeps of a folder takes."""
RETRIED = tuple(sorted(FINAL_OUTCOMES - {Outcome.OK}))
"""The outcomes after which a run is not run again unless `retry` names them."""


SUBMISSION = "what is done"
_done = partial(option_field, SUBMISSION)


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options on how to run a sweep."""

    # fmt: off
    dry_run: bool = _done(False, truth, "", "write and show everything, submit nothing", page=Help.SUBCOMMANDS)
    detach: bool = _done(
        False, truth, "", "submit and leave, instead of following the runs", page=Help.SUBCOMMANDS)
    max_jobs: int | None = _done(
        None, whole(1, MAX_WHOLE), "N", "at most so many jobs of this sweep in the queue; others as those end")
    rerun_if_changed: bool = _done(
        False, truth, "",
        "run again what was measured with other packages, another Python, MPI or commit than are here now")
    force: bool = _done(False, truth, "", "run final runs again as well", page=Help.DAILY)
    # fmt: on
    retry: tuple[Outcome, ...] = ()

    @property
    def reruns(self) -> bool:
        """Whether final runs may be wanted again."""
        return self.force or self.rerun_if_changed or bool(self.retry)


_accepted = partial(option_field, "what is accepted", page=Help.SUBCOMMANDS)


@dataclass(frozen=True, kw_only=True)
class AcceptOptions:
    """The options of an acceptance test."""

    # fmt: off
    reference: Path | None = _accepted(  # noqa: RUF009 - a field, as dataclasses.field makes it
        None, path, "FILE", "TOML of expected speeds (docs/compare.md): its points are measured")
    make_reference: Path | None = _accepted(  # noqa: RUF009
        None, path, "TRACES", "write the --reference FILE from traces; no test")
    threshold: float = _accepted(
        0.03, read_ci, "SHARE", "of points that state none, and of nodes (default 3%%)")
    repeats: int = _accepted(
        5, whole(5, MAX_RUNS), "N", "runs of every point (default {default}; at least 5, which an interval takes)")
    junit: Path | None = _accepted(  # noqa: RUF009
        None, path, "FILE", "write the result as JUnit XML, too")
    update_reference: Path | None = _accepted(  # noqa: RUF009
        None, path, "FILE", "write the measured speeds as the next reference, with who, when and the environment")
    # fmt: on


ACCEPT_OPTIONS = option_rows(AcceptOptions, LaunchOptions, RunLimits) + tuple(
    row for row in option_rows(SweepOptions) if row.name == "max_jobs"
)
"""The options of `accept`: a file cannot have them."""
OPTIONS = option_rows(SweepSpec, LaunchOptions, RunLimits, SweepOptions)
"""Every option but --help, --help-all, --version and --config, in the order of the help."""
ASSIGNED = tuple(row.name for row in OPTIONS if row.is_assigned)
_NOT_KEPT = {row.name for row in option_rows(SweepOptions)}
"""Options that are no part of a `Command`."""
_NAMES = {row.name for row in OPTIONS}
"""The names that a file may have."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line that plans sweeps, as their plans keep it: the folder in which it was given, a subcommand with its
    operand, and the values of options by name, those of its config file too. How it was run is no part of it."""

    folder: str
    subcommand: str
    operand: str
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A command line with its file: the one value that every stage of a sweep takes. An empty subcommand measures;
    `sweeps` are several of a recipe, none for all sweeps of a folder; `sought` is the setting that find-max seeks,
    `accepted` the acceptance test to make; `site` is named, or knows this host; `command` is what plans keep."""

    subcommand: str = ""
    sweeps: tuple[SweepSpec, ...] = ()
    sought: str = ""
    accepted: AcceptOptions | None = None
    recipe: Reference | None = None
    site: Site | None = None
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    limits: RunLimits = field(default_factory=RunLimits)
    options: SweepOptions = field(default_factory=SweepOptions)
    command: Command | None = field(default=None, compare=False)


def make_request(subcommand: str, operand: str, arguments: Mapping[str, Any]) -> Request:
    """The request of a command line with its subcommand, operand, these options by name, and config file.
    Raises SpecError."""
    if subcommand == "accept":
        return _acceptance(merge(arguments))
    values = merge(arguments)
    retry = outcomes_to_retry(operand) if subcommand == "retry" else ()
    if subcommand == "find-max" and not operand:
        raise SpecError(
            "no setting is named: find-max batch-size, or an option that is a whole number (find-max classes)"
        )
    measured = {name: value for name, value in values.items() if name in SweepSpec.__dataclass_fields__}
    if subcommand == "find-max" and "script" in measured:
        raise SpecError("a --script decides its settings by itself: find-max cannot change one")
    if "script" in measured:
        values = {"hang_extra_s": SCRIPT_PAUSE_S, **values}
    launch, limits = read_request(LaunchOptions, values), read_request(RunLimits, values)
    options = read_request(SweepOptions, values, retry=retry)
    if options.force and (options.rerun_if_changed or options.retry):
        raise SpecError("--force runs everything again: leave out --rerun-if-changed, and retry and its outcomes")
    sweeps: tuple[SweepSpec, ...] = ()
    recipe = None
    if "recipe" in measured:
        script_settings(measured)  # a recipe has none
        recipe, sweeps = _recipe(measured)
    elif measured or subcommand in ("", "find-max"):
        sweeps = (SweepSpec.from_mapping(measured),)
    elif subcommand == "retry" and (others := sorted(set(values) - OF_FOLDER)):
        flags = ", ".join(row.flag for row in OPTIONS if row.name in others)
        raise SpecError(
            f"retry {operand} takes the options that the folder's sweeps were planned with: leave out {flags}, or give "
            "those of a sweep too (--nodes …)"
        )
    command = Command(
        folder=str(Path.cwd()), subcommand=subcommand.removeprefix("retry"), operand="" if retry else operand,
        values={name: _as_kept(value) for name, value in values.items() if name not in _NOT_KEPT},
    )  # fmt: skip
    sought = operand if subcommand == "find-max" else ""
    return Request(
        subcommand=subcommand, sweeps=sweeps, sought=sought, recipe=recipe, site=_site(launch), launch=launch,
        limits=limits, options=options, command=command,
    )  # fmt: skip


def _as_kept(value: Any) -> Any:
    """A value as a plan can keep it: dates and fractions of a file as texts, as the options read them, too."""
    if isinstance(value, Mapping):
        return {name: _as_kept(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_kept(each) for each in value]
    return value if isinstance(value, bool | int | str) else str(value)


def _site(launch: LaunchOptions) -> Site | None:
    return None if launch.cluster == "local" else find_site(launch.site)


def _acceptance(values: Mapping[str, Any]) -> Request:
    accepted = read_request(AcceptOptions, values)
    if accepted.reference is None:
        raise SpecError(
            "no --reference FILE is named: the expected speeds, whose points are measured; --make-reference TRACES "
            "writes the first one"
        )
    if accepted.make_reference is not None:
        taken = ("reference", "make_reference", "threshold")
        if others := [row.flag for row in ACCEPT_OPTIONS if values.get(row.name) is not None and row.name not in taken]:
            raise SpecError(f"--make-reference reads traces and measures nothing: leave out {', '.join(others)}")
    launch = read_request(LaunchOptions, values)
    return Request(
        subcommand="accept", accepted=accepted, site=_site(launch), launch=launch,
        limits=read_request(RunLimits, values), options=read_request(SweepOptions, values),
    )  # fmt: skip


def _recipe(measured: Mapping[str, Any]) -> tuple[Reference, tuple[SweepSpec, ...]]:
    """The recipe and its sweeps, less what is not requested, and with what is requested instead. Raises SpecError."""
    try:
        recipe = read_recipe(str(measured["recipe"]))
        sweeps = [SweepSpec.from_mapping(_of_file(sweep)) for sweep in recipe.sweeps]
    except ReferenceFileError as error:
        raise SpecError(str(error)) from None
    chosen: tuple[SweepSpec, ...] = door("recipes").choose_sweeps(recipe, sweeps, measured)
    return recipe, chosen


def merge(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a command line and of its config file, by name."""
    config = arguments.get("config")
    values = {} if config is None else read_config(Path(config))
    for name, value in arguments.items():
        if name in ASSIGNED and value is not None:
            given = value if isinstance(value, Mapping) else assignments(name, value)  # a table in a kept command
            values[name] = {**values.get(name, {}), **given}
        elif name != "config" and value is not None:
            values[name] = value
    return values


def outcomes_to_retry(outcomes: str) -> tuple[Outcome, ...]:
    """The outcomes in a comma list of `retry`. Raises SpecError on one that needs no request, or that is none."""
    chosen = []
    for name in filter(None, map(str.strip, outcomes.split(","))):
        if name not in set(Outcome):
            raise SpecError(f"{name!r} is no outcome of a retry: {', '.join(RETRIED)}{did_you_mean(name, RETRIED)}")
        outcome = Outcome(name)
        if outcome is Outcome.OK:
            raise SpecError("retry ok: what ended ok is measured; --force runs everything again")
        if outcome not in FINAL_OUTCOMES:
            raise SpecError(f"retry {name}: such runs are repeated without retry: leave it out")
        chosen.append(outcome)
    if not chosen:
        raise SpecError(f"no outcome is named: the first argument of retry is a comma list of {', '.join(RETRIED)}")
    return tuple(chosen)


def read_config(path: Path) -> dict[str, Any]:
    """The values of a config file, by name.

    Raises SpecError where the file cannot be read, or has a name or a value that no option has.
    """
    try:
        values = parse_toml(read_text(path))
    except OSError as error:
        raise SpecError(f"config {path}: {error.strerror}") from None
    except ValueError as error:  # of TOML, of UTF-8, or of numbers and depths
        raise SpecError(f"config {path}: not TOML ({error})") from None
    try:
        return _of_file(values)
    except SpecError as error:
        raise SpecError(f"config {path}: {error}") from None


def _of_file(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values by name, with _ for -. Raises SpecError on an unknown name, on one that is
    there twice, and on a truth or table that is none."""
    truths = {row.name for row in OPTIONS if row.read is truth}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in values:
            raise SpecError(f"{name} is there twice, once with - and once with _: say it once")
        if instead := removed.OPTIONS["sweep"].get(flag(name)):
            raise SpecError(f"{key} is no option any more: {instead}")
        if name not in _NAMES:
            names = sorted(each.replace("_", "-") for each in _NAMES)
            near = did_you_mean(name.replace("_", "-"), names)
            raise SpecError(f"unknown name {key}; a file takes the names of the options: {', '.join(names)}{near}")
        read = truth if name in truths else _table if name in ASSIGNED else None
        values[name] = value if read is None else read(name, value)
    return values


def _table(name: str, value: object) -> dict[str, Any]:
    """`[env]` with NAME = value, `env = ["NAME=VALUE"]` or `env = "NAME=VALUE"`."""
    if isinstance(value, dict):
        return value
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise SpecError(f'{name} must be a table of NAME = value, or a list of "NAME=VALUE", not {value!r}')
    return dict(assignments(name, texts))
