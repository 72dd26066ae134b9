"""A sweep's TOML file: it takes the names of the command line's options, with - or _."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc.model.options import did_you_mean
from hpc.model.spec import SpecError, with_current_names
from launch.sweep.spec import SweepSpec

LAUNCH_KEYS = ("cluster", "site", "partition", "account", "qos", "time", "reservation", "nodelist", "exclude",
               "constraint", "out", "minutes_per_run", "max_jobs", "copy_s", "start_limit_s", "hang_steps",
               "hang_extra_s")  # fmt: skip
ACTIONS = ("dry_run", "detach", "force", "rerun_if_changed")
PROGRAM = "python -m hpc.sweep"
SUBCOMMANDS = {"status": "status", "cancel": "cancel", "list": "list", "retry": "retry OUTCOME,…"}
"""The first arguments that ask for something other than measuring, and how each is typed. No file can ask for them."""
FORMER_OPTIONS = {"stamps": "--timing phases (was fine), step (was coarse)"}
"""Options of earlier versions, and what is typed in their place."""
ON = "on"
"""The value of an action that a file switches on."""

_FIELDS = tuple(f.name for f in dataclasses.fields(SweepSpec))
_TABLES = {"option": "options", "env": "env"}
"""Options that are given as NAME=VALUE, and the field of a sweep that holds them."""
_COMMAND_LINE_ONLY = ("config", "version")
_OLD = ("options", "baseline")
"""Names of earlier versions, which stay."""
_NAMES = (*(name for name in _FIELDS if name not in _OLD), "option", "no_baseline", "xla", *LAUNCH_KEYS,
          *ACTIONS)  # fmt: skip


def read_config(path: Path) -> dict[str, Any]:
    """What a config file asks for: fields of SweepSpec, and LAUNCH_KEYS and ACTIONS as they are.

    Raises SpecError where the file cannot be read, or has a name or a value that no option has.
    """
    try:
        values = with_current_names(tomllib.loads(path.read_text(encoding="utf-8")))
        repr(values)  # of a number in base 16 only this finds that it has more digits than Python converts
    except OSError as error:
        raise SpecError(f"config {path}: {error.strerror}") from None
    except ValueError as error:  # of TOML, of UTF-8, or a number of more digits than Python converts
        raise SpecError(f"config {path}: not TOML ({error})") from None
    try:
        return _as_fields(_by_name(values))
    except SpecError as error:
        raise SpecError(f"config {path}: {error}") from None


def assignments(name: str, texts: Iterable[str]) -> dict[str, str]:
    """The values of an option that is given as NAME=VALUE, once or more. Raises SpecError on another form."""
    values: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise SpecError(f"--{name} {text!r} is not of the form NAME=VALUE")
        if values.setdefault(key, value) != value:
            raise SpecError(f"--{name} says {key}={values[key]} and {key}={value}: say one, or {key}=A,B for both")
    return values


def _by_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by names with _ for -. Raises SpecError on an unknown name, and on one that is there twice."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name in found:
            raise SpecError(f"{name} is there twice, once with - and once with _: say it once")
        if name in SUBCOMMANDS:
            rest = "" if name == "list" else " --config FILE"
            raise SpecError(f"{key} is a word of the command line, not of a file: {PROGRAM} {SUBCOMMANDS[name]}{rest}")
        if name in _COMMAND_LINE_ONLY:
            raise SpecError(f"{key} is said on the command line, not in a file")
        if name not in _NAMES and name not in _OLD:
            known = ", ".join(sorted(each.replace("_", "-") for each in _NAMES))
            near = did_you_mean(name, _NAMES).replace("_", "-")
            raise SpecError(f"unknown name {key}; a file takes the names of the options: {known}{near}")
        found[name] = value
    return found


def _as_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The same with each option under the name of its field."""
    for option, field in _TABLES.items():
        given = [values.pop(name) for name in dict.fromkeys((option, field)) if name in values]
        if len(given) > 1:
            raise SpecError(f"{option} and {field} are the same: say one of them")
        if given:
            values[field] = _table(option, given[0])
    if (xla := values.pop("xla", None)) is not None:
        if not isinstance(xla, bool):
            raise SpecError(f"xla must be true or false, not {xla!r}; a list goes to [option]: xla = [false, true]")
        if "xla" in values.get("options", {}):
            raise SpecError("the config says xla twice, by itself and in [option]: say it once")
        values["options"] = {**values.get("options", {}), "xla": xla}
    if (no_baseline := values.pop("no_baseline", None)) is not None:
        if not isinstance(no_baseline, bool) or "baseline" in values:
            raise SpecError(f"no-baseline must be true or false, and baseline not be there too; it is {no_baseline!r}")
        values["baseline"] = not no_baseline
    for name in ACTIONS:
        if name in values:
            values[name] = _action(name, values[name])
    return values


def _table(name: str, value: Any) -> dict[str, Any]:
    """`[env]` with NAME = value, `env = ["NAME=VALUE"]` or `env = "NAME=VALUE"`."""
    if isinstance(value, dict):
        return value
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SpecError(f'{name} must be a table of NAME = value, or a list of "NAME=VALUE", not {value!r}')
    return dict(assignments(name, texts))


def _action(name: str, value: Any) -> str:
    if not isinstance(value, bool):
        raise SpecError(f"{name.replace('_', '-')} must be true or false, not {value!r}")
    return ON if value else ""
