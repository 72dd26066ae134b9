"""References: TOML files of expected speeds with their source; those of the project are `references/NAME.toml`.

Its speeds are those of points, each with a tolerance and settings by the names of `--where`; or those that a document
prints, as tables, with the sweeps that repeat them by the names of config files: then the reference is a recipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any

from hpc.model.options import did_you_mean
from hpc.model.run_fields import RunFields
from hpc.model.spec import SETTINGS, RunSpec
from hpc.system.regular_file import parse_toml, read_text

FOLDER = Path(__file__).with_name("references")
DEFAULT = "its default"
"""Stands for the value of an option that was not given, where it is not known."""
FIGURES = ("median", "average", "speedup")
UNITS = ("samples/s", "tokens/s")
FREE_SETTINGS = ("option.", "env.", "job.")
"""Settings whose names begin so have any name."""
LOG_SETTINGS = ("name", "window", "folder", "date")
"""Settings that logs and measurements have beside SETTINGS."""
CASE = re.compile(r"[0-9]{1,4}n[0-9]{1,4}g")
_KEYS = ("title", "devices", "environment")
"""Of every file; `environment` says where figures are from, for people: nothing is judged by it."""
_OF_POINTS = (*_KEYS, "tolerance", "source", "settings", "point")
_OF_TABLES = (*_KEYS, "document", "code", "system", "log_format", "unlike", "common", "sweep", "table")
_POINT = ("speed", "unit", "tolerance", "source", "settings")
_Kinds = Mapping[str, type | tuple[type, ...]]
_NUMBER = (int, Decimal)
_SWEEP: _Kinds = {"backend": str, "workload": str, "cases": list, "batch-size": (int, list), "precision": (str, list),
                  "timing": str, "steps": int, "warmup": int, "repeats": int, "option": dict, "env": dict}  # fmt: skip
_TABLE: _Kinds = {"heading": str, "line": int, "batch-size": int, "precision": str, "rows": list, "runs": list,
                  "option": dict, "clock": dict}  # fmt: skip
_ROW: _Kinds = {"line": int, "case": str, **dict.fromkeys(FIGURES, _NUMBER), "absent": str}
_RUN: _Kinds = {"line": int, "case": str, "speed": _NUMBER, "run": int, "packed": str}
_CLOCK: _Kinds = {"epochs": int, "seconds": _NUMBER}
_OPTIONAL = ("timing", "steps", "warmup", "repeats", "option", "env", "runs", "clock", *FIGURES, "absent", "run",
             "packed")  # fmt: skip
MAX_EXPONENT = 15
"""Figures of a document have at most so many digits before the point, or zeros behind it."""


class ReferenceFileError(ValueError):
    """A reference that does not exist or cannot be read; the text says what is wrong."""


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
class SweptPoint:
    """The settings of a point of a recipe's sweeps; `steps` (all, warm-up) is None where the document states none."""

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

    def differences(
        self, run: RunSpec | RunFields, options: Mapping[str, str], env: Mapping[str, str]
    ) -> Iterator[Departure]:
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

    def has(self, point: SweptPoint) -> bool:
        """Whether it has a row for the point."""
        settings = (point.batch_size, point.precision) == (self.batch_size, self.precision)
        return settings and point.case in self.cases and self.options.items() <= point.options.items()


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """An expected speed in `unit`, its tolerance as a share, where the figure is from, and the settings of the measured
    point that it is expected of, by the names of `--where`."""

    settings: Mapping[str, str]
    speed: float
    unit: str
    tolerance: float
    source: str

    @property
    def name(self) -> str:
        case = [self.settings["case"]] if "case" in self.settings else []
        return " ".join(case + [f"{name}={value}" for name, value in self.settings.items() if name != "case"])


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Expected speeds: `points`, or the `tables` of a document with the `sweeps` that repeat it. `devices` names those
    that were measured, empty where the file does not.

    Of tables, `document` is where they were published, `code` what was measured, both with their commits where there
    are any; `system` is the name of what was measured, `log_format` that of its logs, `unlike` what Rankwise does
    otherwise in every run of it.
    """

    title: str
    name: str = ""
    devices: str = ""
    points: tuple[ReferencePoint, ...] = ()
    tables: tuple[PublishedTable, ...] = ()
    sweeps: tuple[Mapping[str, Any], ...] = ()
    document: str = ""
    code: str = ""
    system: str = ""
    log_format: str = ""
    unlike: tuple[str, ...] = ()

    @property
    def swept(self) -> tuple[SweptPoint, ...]:
        """Every point of its sweeps, baselines that are only added apart."""
        return tuple(point for sweep in self.sweeps for point in _swept(sweep))

    def nearest(
        self, run: RunSpec | RunFields, options: Mapping[str, str], env: Mapping[str, str]
    ) -> tuple[SweptPoint, tuple[Departure, ...]] | None:
        """The point of the run's case and workload that differs least from it, by precision first, then by batch size,
        then by the number of settings, and in what it differs; None if the recipe has no such point."""
        candidates: list[tuple[bool, int, int, int, SweptPoint, tuple[Departure, ...]]] = []
        for point in self.swept:
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


def _swept(sweep: Mapping[str, Any]) -> Iterator[SweptPoint]:
    steps = (int(sweep["steps"]), int(sweep["warmup"])) if "steps" in sweep else None
    axes = (_listed(sweep[name]) for name in ("batch-size", "precision", "cases"))
    for batch_size, precision, case in product(*axes):
        yield SweptPoint(
            case=case, backend=sweep["backend"], workload=sweep["workload"], batch_size=int(batch_size),
            precision=precision, timing=sweep.get("timing", "phases"), steps=steps, options=_texts(sweep, "option"),
            env=_texts(sweep, "env"),
        )  # fmt: skip


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def known_references(folder: Path = FOLDER) -> dict[str, Path]:
    """The files of the project, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def known_recipes(folder: Path = FOLDER) -> dict[str, Reference]:
    """The references of the project that are recipes, by name. Raises ReferenceFileError."""
    read = (read_reference(path) for path in known_references(folder).values())
    return {reference.name: reference for reference in read if reference.sweeps}


def read_recipe(name: str, folder: Path = FOLDER) -> Reference:
    """The recipe of that name. Raises ReferenceFileError."""
    path = known_references(folder).get(name)
    reference = None if path is None else read_reference(path)
    if reference is None or not reference.sweeps:
        known = known_recipes(folder)
        if reference is not None:
            raise ReferenceFileError(
                f"{name} has speeds to compare with (rankwise compare --reference {name}), and no sweeps to repeat; "
                f"recipes: {', '.join(known)}"
            )
        raise ReferenceFileError(f"unknown recipe {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")
    return reference


def read_reference(path: Path, threshold: float | None = None) -> Reference:
    """Reads a file; `threshold` is the tolerance of points that state none, None: each has to.

    Raises ReferenceFileError, which names the file, the point and what is wrong.
    """
    try:
        values = parse_toml(read_text(path), parse_float=Decimal)
        of_tables = "table" in values or "sweep" in values
        if of_tables and "point" in values:
            raise ValueError("it has points and tables; a reference has [[point]], or [[table]] with [[sweep]]")
        _check_keys(values, _OF_TABLES if of_tables else _OF_POINTS, "a reference")
        title, devices = _text(values, "title"), _text(values, "devices", "")
        read = _of_tables(values) if of_tables else {"points": _points(values, threshold)}
        return Reference(title=title, name=path.stem, devices=devices, **read)
    except OSError as error:
        raise ReferenceFileError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ReferenceFileError(f"{path}: {error}") from None


def read_share(text: str) -> float:
    """A share from `3%` or `0.03`. Raises ValueError unless it is between 0 and 1, both excluded."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        raise ValueError(f"{text!r} is neither a percentage like 3% nor a share like 0.03") from None
    if not 0 < share < 1:
        raise ValueError(f"{text!r} is not between 0 and 100 %; write 3% or 0.03")
    return share


def _check_keys(values: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"{key} is no key of {what}; known: {', '.join(known)}{did_you_mean(key, known)}")


def _check(values: Any, kinds: _Kinds, what: str) -> None:
    """Raises ValueError for what is no table, for a missing key, and for a value of another kind."""
    if not isinstance(values, dict):
        raise ValueError(f"{what} is no table")
    for name, kind in kinds.items():
        value = values.get(name)
        if value is None and name not in _OPTIONAL:
            raise ValueError(f"{name} of {what} is missing")
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(f"{name} of {what} has a value of the wrong kind: {value!r:.99}")


def _text(values: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = values.get(key, default)
    if not isinstance(value, str) or (not value and default is None):
        raise ValueError(f"{key} is missing, or no text")
    return value


def _positive(value: Any, name: str = "speed") -> float:
    number = float(value) if isinstance(value, Decimal) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number) or number <= 0:
        raise ValueError(f"{name} must be a positive number, not {number!r}")
    return float(number)


def _figure(value: int | Decimal, name: str) -> Decimal:
    _positive(value, name)
    if abs(Decimal(value).adjusted()) > MAX_EXPONENT:
        raise ValueError(f"{name} has more than {MAX_EXPONENT} digits before or behind the point: {value}")
    return Decimal(value)


def _texts(table: Mapping[str, Any], name: str) -> dict[str, str]:
    """A table of single values, as the command line has them."""
    values = {key: float(value) if isinstance(value, Decimal) else value for key, value in table.get(name, {}).items()}
    return {key: ("on" if value else "off") if isinstance(value, bool) else str(value) for key, value in values.items()}


def _points(values: Mapping[str, Any], threshold: float | None) -> tuple[ReferencePoint, ...]:
    if not values.get("point"):
        raise ValueError("it has no [[point]]")
    points = tuple(_point(point, values, threshold, at) for at, point in enumerate(values["point"], 1))
    numbers: dict[tuple[object, ...], int] = {}
    for at, point in enumerate(points, 1):
        first = numbers.setdefault((frozenset(point.settings.items()), point.unit), at)
        if first != at:
            raise ValueError(f"points {first} and {at} have the same settings: {point.name}")
    return points


def _point(values: Any, common: Mapping[str, Any], threshold: float | None, at: int) -> ReferencePoint:
    try:
        if not isinstance(values, dict):
            raise ValueError("it is no table")
        _check_keys(values, _POINT, "a point")
        settings = {**_settings(common), **_settings(values)}
        if not settings:
            raise ValueError("it has no settings: which point is it of?")
        unit = _text(values, "unit", UNITS[0])
        if unit not in UNITS:
            raise ValueError(f"unit {unit!r} is not one of {', '.join(UNITS)}{did_you_mean(unit, UNITS)}")
        return ReferencePoint(
            settings=settings, speed=_positive(values.get("speed")), unit=unit,
            tolerance=read_share(str(values.get("tolerance", common.get("tolerance", threshold)))),
            source=_text(values, "source", common.get("source")),
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"point {at}: {error}") from None


def _settings(values: Mapping[str, Any]) -> dict[str, str]:
    settings = values.get("settings", {})
    if not isinstance(settings, dict):
        raise ValueError("settings is no table")
    known = (*SETTINGS, *LOG_SETTINGS)
    for name, value in settings.items():
        if name not in known and not name.startswith(FREE_SETTINGS):
            raise ValueError(
                f"{name} is no setting; known: {', '.join(known)}, option.NAME, env.NAME, "
                f"job.NAME{did_you_mean(name, known)}"
            )
        if not isinstance(value, str | int | Decimal):
            raise ValueError(f"settings: {name} is no single value")
    return _texts(values, "settings")


def _of_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a recipe."""
    _check(values, {"sweep": list, "table": list, "unlike": list}, "a recipe")
    sweeps = tuple(_sweep(values.get("common", {}), sweep) for sweep in values["sweep"])
    tables = tuple(map(_table, values["table"]))
    swept = [point for sweep in sweeps for point in _swept(sweep)]
    unmatched = [table.heading for table in tables if not any(map(table.has, swept))]
    unmatched += [f"{point.case} of [[sweep]]" for point in swept if not any(table.has(point) for table in tables)]
    if unmatched:
        raise ValueError(f"{unmatched[0]}: each [[table]] needs points of a [[sweep]], and each of these a table")
    texts = {name: _text(values, name) for name in ("document", "code", "system", "log_format")}
    return {"sweeps": sweeps, "tables": tables, "unlike": tuple(map(str, values["unlike"])), **texts}


def _sweep(common: Any, sweep: Any) -> dict[str, Any]:
    """The options of a sweep, with those common to all; tables of both are merged."""
    for each in (common, sweep):
        _check(each, {"option": dict, "env": dict}, "a sweep")
    tables = {name: {**common.get(name, {}), **sweep.get(name, {})} for name in ("option", "env")}
    whole = {**common, **sweep, **{name: table for name, table in tables.items() if table}}
    _check(whole, _SWEEP, "a sweep")
    for name, kind in (("cases", str), ("batch-size", int), ("precision", str)):
        for value in _listed(whole[name]):
            _check({name: value}, {name: kind}, "a sweep")
    if "steps" in whole and "warmup" not in whole:
        raise ValueError("a sweep has steps and no warmup")
    return whole


def _table(values: Any) -> PublishedTable:
    _check(values, _TABLE, "a table")
    _check_keys(values, tuple(_TABLE), "a table")
    rows, runs, clock = values["rows"], values.get("runs", ()), values.get("clock")
    if clock is not None:
        _check(clock, _CLOCK, "a clock")
    for each, kinds, what in (*((row, _ROW, "a row") for row in rows), *((run, _RUN, "a run") for run in runs)):
        _check(each, kinds, what)
        _check_keys(each, tuple(kinds), what)
        if not CASE.fullmatch(each["case"]):
            raise ValueError(f"{each['case']!r} in line {each['line']} is no case; write 2n8g")
    figures = [
        PublishedFigure(line=row["line"], case=row["case"], what=what, value=_figure(row[what], what))
        for row in rows
        for what in FIGURES
        if what in row
    ]
    speeds = [
        PublishedSpeed(
            line=run["line"], case=run["case"], speed=float(_figure(run["speed"], "speed")), run=run.get("run", 0),
            packed=run.get("packed", ""),
        )
        for run in runs
    ]  # fmt: skip
    return PublishedTable(
        heading=_text(values, "heading"), line=values["line"], batch_size=values["batch-size"],
        precision=values["precision"], options=_texts(values, "option"), figures=tuple(figures), speeds=tuple(speeds),
        absent={row["case"]: row["absent"] for row in rows if "absent" in row},
        clock=None if clock is None else (clock["epochs"], _positive(clock["seconds"], "seconds")),
    )  # fmt: skip
