"""Recipes: published measurements with everything that a sweep needs to repeat them, and the figures they printed.

A recipe is `hpc/model/recipes/NAME.toml`: its sweeps have the names of config files, its tables the published figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from hpc.model.options import did_you_mean
from hpc.system.regular_file import parse_toml, read_text

FOLDER = Path(__file__).with_name("recipes")
DEFAULT = "its default"
"""Stands for the value of an option that was not given, where it is not known."""
FIGURES = ("median", "average", "speedup")


class RecipeError(ValueError):
    """A recipe that does not exist or cannot be read."""


class Settings(Protocol):
    """The settings of a run that a recipe can be compared with; None where a log does not state them."""

    @property
    def case(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def workload(self) -> str | None: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def scaling(self) -> str | None: ...
    @property
    def timing(self) -> str | None: ...
    @property
    def warmup_steps(self) -> int | None: ...
    @property
    def measured_steps(self) -> int | None: ...
    @property
    def gpus_per_node(self) -> int | None: ...
    @property
    def options(self) -> Mapping[str, str]: ...
    @property
    def env(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class Departure:
    """A setting in which a run departs from a recipe; `value` is None where a log does not state it."""

    name: str
    value: str | None
    published: str

    @property
    def text(self) -> str:
        if self.value is None:
            return f"{self.name} not stated, {self.published} in the recipe"
        return f"{self.name} {self.value}, not {self.published}"


@dataclass(frozen=True, kw_only=True)
class RecipePoint:
    """The settings of a point of a recipe; `steps` (all, warm-up) is None where the document does not state them."""

    case: str
    backend: str
    workload: str
    batch_size: int
    precision: str
    timing: str
    steps: tuple[int, int] | None
    options: Mapping[str, str]
    env: Mapping[str, str]

    def is_workload(self, name: str | None) -> bool:
        """Whether that is its workload; logs name the model too (`arcface_resnet50`)."""
        return name is not None and (name == self.workload or name.startswith(f"{self.workload}_"))

    def differences(self, run: Settings, options: Mapping[str, str], env: Mapping[str, str]) -> Iterator[Departure]:
        """The settings in which a run differs, the case apart; `options` are those in effect, as far as known, `env`
        the variables that were set for it. What a log does not state is left out, but for batch size and precision."""
        steps = None
        if run.warmup_steps is not None and run.measured_steps is not None:
            steps = run.warmup_steps + run.measured_steps, run.warmup_steps
        pairs = [
            ("backend", run.backend, self.backend), ("batch_size", run.batch_size, self.batch_size),
            ("precision", run.precision, self.precision), ("scaling", run.scaling, "weak"),
            ("timing", run.timing, self.timing), ("steps", _steps_text(steps), _steps_text(self.steps)),
        ]  # fmt: skip
        for name, value, published in pairs:
            if (
                published is not None
                and value != published
                and (value is not None or name in ("batch_size", "precision"))
            ):
                yield Departure(name=name, value=None if value is None else str(value), published=str(published))
        if run.gpus_per_node == 0:
            yield Departure(name="devices", value="CPUs", published="GPUs")
        if run.scaling is None:  # a log, which states few of its options and variables
            options = {name: value for name, value in options.items() if name in self.options}
            mine = {name: value for name, value in self.options.items() if name in options}
            yield from _apart("", options, mine, DEFAULT)
            return
        mine = dict(self.options) | {name: DEFAULT for name in run.options if name not in self.options}
        yield from _apart("", {name: value for name, value in options.items() if name in mine}, mine, DEFAULT)
        yield from _apart("env.", env, self.env, "unset")


def _steps_text(steps: tuple[int, int] | None) -> str | None:
    return None if steps is None else "{} with {} of warm-up".format(*steps)


def _apart(prefix: str, values: Mapping[str, str], published: Mapping[str, str], absent: str) -> Iterator[Departure]:
    for name in dict.fromkeys((*published, *values)):
        value, other = values.get(name, absent), published.get(name, absent)
        if not _same(value, other):
            yield Departure(name=f"{prefix}{name}", value=value, published=other)


def _same(value: str, other: str) -> bool:
    """Whether two texts mean the same value: 128 and 128.0 do."""
    try:
        return float(value) == float(other)
    except ValueError:
        return value == other


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A number that the document prints in a line: the `median`, `average` or `speedup` of a case."""

    line: int
    case: str
    what: str
    value: Decimal


@dataclass(frozen=True, kw_only=True)
class PublishedSpeed:
    """The speed of a run; `packed` names the log of several jobs on the same devices, which is no run."""

    line: int
    case: str
    speed: float
    run: int = 0
    packed: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublishedTable:
    """The figures of a setting. `absent` has by case what the document prints in the place of a speed; `clock` the
    epochs and seconds of a training that it reports too."""

    heading: str
    line: int
    batch_size: int
    precision: str
    options: Mapping[str, str] = field(default_factory=dict)
    figures: tuple[PublishedFigure, ...] = ()
    speeds: tuple[PublishedSpeed, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    clock: tuple[int, float] | None = None

    @property
    def cases(self) -> tuple[str, ...]:
        """Its cases, in the order of the document."""
        return tuple(dict.fromkeys([figure.case for figure in self.figures] + list(self.absent)))

    def has(self, point: RecipePoint) -> bool:
        """Whether it has a row for the point."""
        settings = (point.batch_size, point.precision) == (self.batch_size, self.precision)
        return settings and point.case in self.cases and self.options.items() <= point.options.items()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """`document` is where the figures were published, `code` what was measured, both with their commits where there are
    any; `system` is the name of what was measured, `log_format` that of its logs, `unlike` what Rankwise does otherwise
    in every run of it."""

    name: str
    title: str
    document: str
    code: str
    system: str
    log_format: str
    devices: str
    unlike: tuple[str, ...]
    sweeps: tuple[Mapping[str, Any], ...]
    tables: tuple[PublishedTable, ...]

    @property
    def points(self) -> tuple[RecipePoint, ...]:
        """Every point that its sweeps ask for, baselines that are only added apart."""
        return tuple(point for sweep in self.sweeps for point in _points(sweep))

    def nearest(
        self, run: Settings, options: Mapping[str, str], env: Mapping[str, str]
    ) -> tuple[RecipePoint, tuple[Departure, ...]] | None:
        """The point of the run's case and workload that differs least from it, by precision first, then by batch size,
        then by the number of settings, and in what it differs; None if the recipe has no such point."""
        candidates: list[tuple[bool, int, int, int, RecipePoint, tuple[Departure, ...]]] = []
        for point in self.points:
            if run.case != point.case or not point.is_workload(run.workload):
                continue
            apart = [
                difference
                for difference in point.differences(run, options, env)
                if not (difference.name == "backend" and run.backend == self.log_format)
            ]
            batch_size = point.batch_size if run.batch_size is None else run.batch_size
            precision = run.precision not in (None, point.precision)
            candidates.append(
                (precision, abs(point.batch_size - batch_size), len(apart), len(candidates), point, tuple(apart))
            )
        return min(candidates)[4:] if candidates else None  # the fourth never ties


def _points(sweep: Mapping[str, Any]) -> Iterator[RecipePoint]:
    steps = (int(sweep["steps"]), int(sweep["warmup"])) if "steps" in sweep else None
    axes = (_listed(sweep[name]) for name in ("batch-size", "precision", "cases"))
    for batch_size, precision, case in product(*axes):
        yield RecipePoint(
            case=case, backend=sweep["backend"], workload=sweep["workload"], batch_size=int(batch_size),
            precision=precision, timing=sweep.get("timing", "phases"), steps=steps, options=_texts(sweep, "option"),
            env=_texts(sweep, "env"),
        )  # fmt: skip


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(table: Mapping[str, Any], name: str) -> dict[str, str]:
    """A table of single values, as the command line has them."""
    values = table.get(name, {})
    return {key: ("on" if value else "off") if isinstance(value, bool) else str(value) for key, value in values.items()}


def known_recipes(folder: Path = FOLDER) -> dict[str, Path]:
    """The recipe files of the project, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_recipe(name: str, folder: Path = FOLDER) -> Recipe:
    """The recipe of that name. Raises RecipeError."""
    known = known_recipes(folder)
    if name not in known:
        raise RecipeError(f"unknown recipe {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")
    try:
        values = parse_toml(read_text(known[name]), parse_float=Decimal)
        common = values.get("common", {})
        return Recipe(
            name=name, sweeps=tuple(_sweep(common, sweep) for sweep in values["sweep"]),
            tables=tuple(map(_table, values["table"])), unlike=tuple(values["unlike"]),
            **{key: values[key] for key in ("title", "document", "code", "system", "log_format", "devices")},
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"recipe {known[name]}: {type(error).__name__}: {error}") from None


def _sweep(common: Mapping[str, Any], sweep: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a sweep, with those common to all; tables of both are joined."""
    tables = {name: {**common.get(name, {}), **sweep.get(name, {})} for name in ("option", "env")}
    return {**common, **sweep, **{name: table for name, table in tables.items() if table}}


def _table(values: Mapping[str, Any]) -> PublishedTable:
    rows: Sequence[Mapping[str, Any]] = values["rows"]
    figures = [
        PublishedFigure(line=row["line"], case=row["case"], what=what, value=Decimal(row[what]))
        for row in rows
        for what in FIGURES
        if what in row
    ]
    speeds = [
        PublishedSpeed(
            line=row["line"], case=row["case"], speed=float(row["speed"]), run=row.get("run", 0),
            packed=row.get("packed", ""),
        )
        for row in values.get("runs", ())
    ]  # fmt: skip
    clock = values.get("clock")
    return PublishedTable(
        heading=values["heading"], line=values["line"], batch_size=values["batch-size"], precision=values["precision"],
        options=_texts(values, "option"), figures=tuple(figures), speeds=tuple(speeds),
        absent={row["case"]: row["absent"] for row in rows if "absent" in row},
        clock=None if clock is None else (clock["epochs"], float(clock["seconds"])),
    )  # fmt: skip
