"""The table of a sweep's options: each is declared once, as a field of the dataclass that holds its value.

A declaration has everything that the command line, a TOML file and the request need: name, type, default, group, help.
Here are also the options that jobs depend on; the others are in launch.sweep.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpc.model.options import did_you_mean
from hpc.model.spec import SpecError
from launch.jobs.slurm_options import IN_SBATCH, read_options

T = TypeVar("T")
Reader = Callable[[str, object], Any]
"""(name, text of the command line or value of a TOML file) → the option's value; raises SpecError on an invalid one."""


class Help(IntEnum):
    """The help pages that show an option: --help-all alone, --help of a sweep too, --help of its subcommands too."""

    ALL = 0
    DAILY = 1
    SUBCOMMANDS = 2


@dataclass(frozen=True, kw_only=True)
class OptionRow:
    """A row of the table: a field of a dataclass, named as on the command line and in files, with `_`. A truth has no
    metavar, and is False by default."""

    name: str
    default: object
    group: str
    read: Reader
    metavar: str
    help: str
    page: Help

    @property
    def is_assigned(self) -> bool:
        """Whether it is given as NAME=VALUE, once or more."""
        return self.metavar.startswith("NAME=V")

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return flag(self.name)


def flag(name: str) -> str:
    """The option of this name on the command line."""
    return f"--{name.replace('_', '-')}"


def option_field(group: str, default: object, read: Reader, metavar: str, help: str, page: Help = Help.ALL) -> Any:
    """A dataclass field that is a row of the table. In `help`, {default} is the default."""
    shown = ", ".join(default) if isinstance(default, tuple) else str(default)
    columns = {"group": group, "read": read, "metavar": metavar, "help": help.replace("{default}", shown), "page": page}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=columns)
    return dataclasses.field(default=default, metadata=columns)


def option_rows(*requests: type) -> tuple[OptionRow, ...]:
    """The options of these dataclasses, in order."""
    fields = (field for request in requests for field in dataclasses.fields(request) if field.metadata)
    return tuple(OptionRow(name=field.name, default=field.default, **field.metadata) for field in fields)


def read_request(request: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """An instance made of those values that belong to its options; `others` are fields that are no options."""
    rows = {row.name: row for row in option_rows(request)}
    read = {name: rows[name].read(name, value) for name, value in values.items() if name in rows and value is not None}
    return request(**read, **others)


def number(kind: type[int | float], minimum: float, maximum: float) -> Reader:
    """Reads a number of this kind within these limits."""
    limits = f"{'whole ' if kind is int else ''}number from {minimum} to {maximum}"

    def read(name: str, value: object) -> float:
        try:
            number = math.nan if isinstance(value, bool) or (kind, type(value)) == (int, float) else kind(str(value))
        except ValueError:
            number = math.nan
        if not minimum <= number <= maximum:
            raise SpecError(f"{name}: {str(value)[:40]!r} is not a {limits}")
        return number

    return read


whole = partial(number, int)


@dataclass(frozen=True)
class each:
    """Reads a comma list, a list or a single value to a tuple of different values: an axis of a sweep."""

    read_item: Reader

    def __call__(self, name: str, value: object) -> tuple[Any, ...]:
        return distinct(name, [self.read_item(name, text) for text in split_list(name, value)])


def choice(choices: Sequence[str]) -> Reader:
    """Reads one of these words."""

    def read(name: str, value: object) -> str:
        if value not in choices:
            near = did_you_mean(str(value), choices)
            raise SpecError(f"{name} {value!r} is not one of {', '.join(choices)}{near}")
        return str(value)

    return read


def truth(name: str, value: object) -> bool:
    """Reads true or false, as TOML has them."""
    if not isinstance(value, bool):
        raise SpecError(f"{flag(name)[2:]} must be true or false, not {value!r}")
    return value


def table(name: str, value: object) -> dict[str, tuple[str, ...]]:
    """Reads a table of names, each with a comma list, a list or a single value."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a table of NAME = value, not {value!r}")
    return {key: distinct(f"{name} {key}", split_list(f"{name} {key}", v)) for key, v in value.items()}


def assignments(name: str, texts: Iterable[str]) -> dict[str, str]:
    """The values of an option that is given as NAME=VALUE, once or more. Raises SpecError on another form."""
    values: dict[str, str] = {}
    for assignment in texts:
        key, sign, value = assignment.partition("=")
        if not sign or not key:
            raise SpecError(f"--{name} {assignment!r} is not of the form NAME=VALUE")
        if values.setdefault(key, value) != value:
            raise SpecError(f"--{name} says {key}={values[key]} and {key}={value}: say one, or {key}=A,B for both")
    return values


def text(name: str, value: object) -> str:
    """Reads a text, or the text of a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SpecError(f"{name} is {value!r}, not a text or a number")
    return str(value)


def split_list(name: str, value: object) -> list[str]:
    """A comma list (`\\,` is a comma inside a value), a list, or one value, as words."""
    if isinstance(value, str):
        texts = [item.replace("\\,", ",") for item in re.split(r"(?<!\\),", value)]
    else:
        texts = [_item_text(name, item) for item in (value if isinstance(value, list | tuple) else [value])]
    if not texts or (not name.startswith("env ") and any(item.strip() == "" for item in texts)):
        raise SpecError(f"{name}: an empty value in {value!r}")
    if any("\0" in item for item in texts):
        raise SpecError(f"{name}: a NUL character in {value!r}")
    return texts


def _item_text(name: str, value: object) -> str:
    """A value as text, as on the command line: booleans of options are `on` and `off`."""
    if isinstance(value, bool) and (name.startswith("option ") or name == "telemetry"):
        return "on" if value else "off"
    return str(value)


def distinct(name: str, values: Iterable[T]) -> tuple[T, ...]:
    """The values of a list. Raises SpecError if one is there twice."""
    values = tuple(values)
    for value, times in Counter(values).items():
        if times > 1:
            shown = "{}n{}g".format(*value) if isinstance(value, tuple) else value
            raise SpecError(f"{name}: {shown} is there {times} times; name each value once")
    return values


def path(name: str, value: object) -> Path:
    """Reads the path of a file or folder."""
    if value == "-":
        raise SpecError(f"{name}: - is no path: it would be a file or folder of that name")
    return Path(text(name, value))


_YEAR_S = 365 * 86_400
"""No limit of a run or a job is longer."""
_minutes = whole(1, _YEAR_S // 60)
_limit = partial(number, float, maximum=_YEAR_S)
CLUSTERS = ("auto", "slurm", "local")
_place = partial(option_field, "where it runs")
_in_sbatch = partial(_place, None, text, "TEXT", "as in sbatch")


def _sbatch(name: str, value: object) -> dict[str, str]:
    """Reads options of sbatch. A text stays as it is: its commas are sbatch's."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a table of NAME = value, not {value!r}")
    texts = {k: ",".join(map(str, each)) if isinstance(each, list | tuple) else each for k, each in value.items()}
    for key, given in texts.items():
        if second := re.search(rf",\s*({'|'.join(IN_SBATCH)})=", str(given)):
            raise SpecError(f"sbatch {key}={given}: give --sbatch once for each name, for {second[1]}, too")
    return read_options("sbatch", texts, keys=("partition", "account"))


_watch = partial(option_field, "what watches over a run")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The choice of the place where a sweep runs. None: not chosen."""

    # fmt: off
    cluster: str = _place(
        "auto", choice(CLUSTERS), "{auto,slurm,local}",
        "{default} (the default): Slurm where a site is named or Slurm is installed, else this machine",
        page=Help.DAILY)
    site: str | None = _place(
        None, text, "NAME|FILE", "facts of the cluster (TOML); default: the one that knows this host's name",
        page=Help.SUBCOMMANDS)
    partition: str | None = _in_sbatch(page=Help.DAILY)
    account: str | None = _in_sbatch(page=Help.DAILY)
    sbatch: Mapping[str, str] = _place({}, _sbatch, "NAME=V", "an option of sbatch by its long name, as in qos=high")
    time: int | None = _place(
        None, _minutes, "MIN", "time limit of each job in minutes; a plan that would not fit is split", page=Help.DAILY)
    minutes_per_run: int = _place(
        10, _minutes, "MIN", "minutes that a job's time limit allows each run (default {default})")
    out: Path = _place(  # noqa: RUF009 - a field, as dataclasses.field makes it
        Path(), path, "DIR", "folder for jobs/ and traces/ (default: this one)", page=Help.SUBCOMMANDS)
    # fmt: on

    @property
    def of_slurm(self) -> list[str]:
        """The chosen options that only a job of Slurm has."""
        rows = (row for row in option_rows(LaunchOptions) if row.name not in ("cluster", "out"))
        return [row.flag for row in rows if getattr(self, row.name) not in (row.default, {})]

    @property
    def site_overrides(self) -> dict[str, Any]:
        """The options chosen in place of the site's own."""
        named = {"partition": self.partition, "account": self.account}
        chosen: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        for name, value in self.sbatch.items():
            (chosen if name in IN_SBATCH else chosen.setdefault("sbatch", {}))[name] = value
        return chosen


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """Limits of a run. `copy_s`: seconds between copies of its records from the nodes (0: never). It counts as hanging
    `start_limit_s` after its start or its last step, in between after `hang_steps` median steps plus `hang_extra_s`;
    every limit is extended by `copy_s`."""

    # fmt: off
    copy_s: float = _watch(
        10, _limit(0), "S", "seconds between copies of what ranks have recorded (default {default}; 0: none)")
    start_limit_s: float = _watch(
        600, _limit(1), "S", "a run that makes no step for so long after its start hangs (default {default})")
    hang_steps: float = _watch(
        10, _limit(1), "N", "later: one that makes none for N times its median step (default {default})")
    hang_extra_s: float = _watch(60, _limit(0), "S", "and so many seconds (default {default}; a --script: 600)")
    # fmt: on


DEFAULT_LIMITS = RunLimits()
