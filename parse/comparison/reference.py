"""References: TOML files of expected speeds, each with its tolerance and its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from hpc.model.options import did_you_mean
from hpc.model.recipe import RecipeError, known_recipes, read_recipe
from hpc.system.regular_file import existing, parse_toml, read_text
from parse.comparison.pairs import distinct_labels, side_of, without_speed
from parse.comparison.ratio import least_single_runs, runs_to_tell, single_interval
from parse.comparison.types import ComparedPoint, Comparison, ComparisonError, Reason, Side
from parse.comparison.verdict import ComparisonVerdict, of_reference
from parse.report.against import against
from parse.report.summary import COLUMNS, identifying_values, labels
from parse.result import Result

FOLDER = Path(__file__).with_name("references")
UNITS = ("samples/s", "tokens/s")
FILE_KEYS = ("title", "devices", "tolerance", "source", "settings", "environment", "point")
"""`environment` says where the figures are from; it is for people, and nothing is judged by it."""
POINT_KEYS = ("speed", "unit", "tolerance", "source", "settings")
FREE_SETTINGS = ("option.", "env.")
"""Settings whose names begin so have any name."""
LOG_SETTINGS = ("name", "window", "folder", "date")
"""Settings that logs and measurements have beside COLUMNS."""


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
    """The points of a file; `devices` names those that were measured, empty where the file does not."""

    title: str
    points: tuple[ReferencePoint, ...]
    devices: str = ""


def known_references(folder: Path = FOLDER) -> dict[str, Path]:
    """The reference files of the project, by name; recipes are references, too."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_reference(path: Path, threshold: float) -> Reference:
    """Reads a reference. Raises ComparisonError, which names the file, the point and what is wrong."""
    try:
        values = parse_toml(read_text(path))
    except OSError as error:
        raise ComparisonError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ComparisonError(f"{path}: {error}") from None
    try:
        _check_keys(values, FILE_KEYS, "a reference")
        title = _text(values, "title")
        points = values.get("point")
        if not isinstance(points, list) or not points:
            raise ComparisonError("it has no [[point]]")
        read = tuple(_point(point, values, threshold, at) for at, point in enumerate(points, 1))
        _check_distinct(read)
        return Reference(title=title, points=read, devices=_text(values, "devices", ""))
    except ComparisonError as error:
        raise ComparisonError(f"{path}: {error}") from None


def _point(values: Any, common: Mapping[str, Any], threshold: float, at: int) -> ReferencePoint:
    try:
        if not isinstance(values, dict):
            raise ComparisonError("it is no table")
        _check_keys(values, POINT_KEYS, "a point")
        settings = {**_settings(common), **_settings(values)}
        if not settings:
            raise ComparisonError("it has no settings: which point is it of?")
        source = _text(values, "source", common.get("source"))
        unit = _text(values, "unit", UNITS[0])
        if unit not in UNITS:
            raise ComparisonError(f"unit {unit!r} is not one of {', '.join(UNITS)}{did_you_mean(unit, UNITS)}")
        tolerance = values.get("tolerance", common.get("tolerance"))
        return ReferencePoint(
            settings=settings,
            speed=_positive(values.get("speed")),
            unit=unit,
            tolerance=threshold if tolerance is None else read_share(str(tolerance)),
            source=source,
        )
    except ValueError as error:
        raise ComparisonError(f"point {at}: {error}") from None


def read_share(text: str) -> float:
    """A share from `3%` or `0.03`. Raises ValueError unless it lies between 0 and 1, both excluded."""
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
            raise ComparisonError(f"{key} is no key of {what}; known: {', '.join(known)}{did_you_mean(key, known)}")


def _settings(values: Mapping[str, Any]) -> dict[str, str]:
    settings = values.get("settings", {})
    if not isinstance(settings, dict):
        raise ComparisonError("settings is no table")
    known = (*COLUMNS, *LOG_SETTINGS)
    for name, value in settings.items():
        if name not in known and not name.startswith(FREE_SETTINGS):
            raise ComparisonError(
                f"{name} is no setting; known: {', '.join(known)}, option.NAME, env.NAME{did_you_mean(name, known)}"
            )
        if not isinstance(value, str | int | float):
            raise ComparisonError(f"settings: {name} is no single value")
    return {
        name: ("on" if value else "off") if isinstance(value, bool) else str(value) for name, value in settings.items()
    }


def _text(values: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = values.get(key, default)
    if not isinstance(value, str) or (not value and default is None):
        raise ComparisonError(f"{key} is missing, or no text")
    return value


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise ComparisonError(f"speed must be a positive number, not {value!r}")
    return float(value)


def _check_distinct(points: Sequence[ReferencePoint]) -> None:
    numbers: dict[tuple[object, ...], int] = {}
    for at, point in enumerate(points, 1):
        key = (frozenset(point.settings.items()), point.unit)
        if key in numbers:
            raise ComparisonError(f"points {numbers[key]} and {at} have the same settings: {point.name}")
        numbers[key] = at


# Measurements held against a reference: a file, or the published figures of a recipe, which serve as they are.


def compare_with_reference(name: str, results: Sequence[Result], new: str, threshold: float) -> Comparison:
    """The measured points against the reference of that name: a file, or one of the project's references or recipes.

    `threshold` is the tolerance of points that state none, and of recipes. Every point of a file must be measured; what
    comes with the project has machines of many sizes, and only what was measured is judged. Raises ComparisonError.
    """
    if name in known_recipes():
        return _against_recipe(name, results, new, threshold)
    path = known_references().get(name, Path(name))
    if not existing([path])[0]:
        known = [*known_references(), *known_recipes()]
        raise ComparisonError(
            f"--reference {name}: no such file, and none of the project's references: {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    return _against_points(read_reference(path, threshold), results, new, whole=name not in known_references())


def _against_points(reference: Reference, results: Sequence[Result], new: str, *, whole: bool) -> Comparison:
    values = [(result, identifying_values(result)) for result in results]
    taken: set[str] = set()
    points: list[ComparedPoint] = []
    missing: list[str] = []
    for expected in reference.points:
        fitting = [
            result
            for result, requested in values
            if result.unit == expected.unit and expected.settings.items() <= requested.items()
        ]
        taken.update(result.requested.point for result in fitting)
        if fitting or whole:
            points.append(_judged_one(expected, fitting))
        else:
            missing.append(expected.name)
    rest = [result for result in results if result.requested.point not in taken]
    title = f"{reference.title} ({reference.devices})" if reference.devices else reference.title
    return Comparison(
        base=title, new=new, is_reference=True, points=tuple(points), only_base=tuple(missing),
        only_new=tuple(distinct_labels(rest)),
    )  # fmt: skip


def _judged_one(expected: ReferencePoint, fitting: Sequence[Result]) -> ComparedPoint:
    if len(fitting) == 1:
        return _judged(expected.name, expected, fitting[0])
    reason, detail = Reason.NOT_MEASURED, ""
    if fitting:
        reason, detail = Reason.SEVERAL, "; ".join(labels(fitting))
    return _unjudged(expected.name, expected, Side(median=None), reason, detail)


def _unjudged(name: str, expected: ReferencePoint, new: Side, reason: Reason, detail: str) -> ComparedPoint:
    return ComparedPoint(
        name=name, unit=expected.unit, threshold=expected.tolerance, base=Side(median=expected.speed), new=new,
        verdict=ComparisonVerdict.CANNOT_TELL, reason=reason, detail=detail, source=expected.source,
    )  # fmt: skip


def _judged(name: str, expected: ReferencePoint, result: Result) -> ComparedPoint:
    new = side_of(result)
    if (problem := without_speed(new)) is not None:
        return _unjudged(name, expected, new, *problem)
    assert new.median is not None
    interval = single_interval(new.speeds, expected.speed)
    verdict = of_reference(interval, expected.tolerance)
    reason, needed = None, None
    if verdict is ComparisonVerdict.CANNOT_TELL:
        reason = Reason.FEW_RUNS if interval is None else Reason.SCATTER
        needed = least_single_runs() if len(new.speeds) < 2 else runs_to_tell((new.speeds,), expected.tolerance)
        needed = needed and max(needed, len(new.speeds) + 1)
    return ComparedPoint(
        name=name, unit=expected.unit, threshold=expected.tolerance, base=Side(median=expected.speed), new=new,
        verdict=verdict, ratio=new.median / expected.speed, interval=interval, reason=reason, runs_needed=needed,
        source=expected.source,
    )  # fmt: skip


def _against_recipe(name: str, results: Sequence[Result], new: str, threshold: float) -> Comparison:
    """The measured points against the published figures that `parse.summarize --against` sets beside them."""
    try:
        recipe = read_recipe(name)
    except RecipeError as error:
        raise ComparisonError(f"--reference {name}: {error}") from None
    beside = against(recipe, results)
    points, rest = [], []
    for result, label in zip(results, distinct_labels(results), strict=True):
        published = beside.beside(result)
        if published is None or published.speed is None:
            rest.append(label)
            continue
        lines = published.published.published.all("median") if published.published.published else ()
        source = f"{recipe.document}, line {', '.join(str(figure.line) for figure in lines)}"
        expected = ReferencePoint(settings={}, speed=published.speed, unit=UNITS[0], tolerance=threshold, source=source)
        if published.differences:
            detail = "; ".join(difference.text for difference in published.differences)
            points.append(_unjudged(label, expected, side_of(result), Reason.OTHER_SETTINGS, detail))
        else:
            points.append(_judged(label, expected, result))
    missing = [f"{case} of {heading}" for heading, cases in beside.missing.items() for case in cases]
    return Comparison(
        base=f"{recipe.title} ({recipe.devices})", new=new, is_reference=True, points=tuple(points),
        only_base=tuple(missing), only_new=tuple(rest),
    )  # fmt: skip
