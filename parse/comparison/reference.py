"""Measurements held against a reference: its points, or the figures that its tables published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc.model.options import did_you_mean
from hpc.model.reference import UNITS, Reference, ReferenceFileError, ReferencePoint, known_references, read_reference
from hpc.system.regular_file import existing
from parse.comparison.pairs import distinct_labels, side_of, without_speed
from parse.comparison.types import (
    ComparedPoint,
    Comparison,
    ComparisonError,
    ComparisonVerdict,
    Reason,
    Side,
    least_single_runs,
    of_reference,
    runs_to_tell,
    single_interval,
)
from parse.report.against import against
from parse.report.summary import identifying_values, labels
from parse.runs.result import Result


def compare_with_reference(name: str, results: Sequence[Result], new: str, threshold: float) -> Comparison:
    """The measured points against the reference of that name: a file, or one of the project's.

    `threshold` is the tolerance of points that state none, and of tables. Every point of a file must be measured; what
    comes with the project has machines of many sizes, and only what was measured is judged. Raises ComparisonError.
    """
    known = known_references()
    path = known.get(name, Path(name))
    if not existing([path])[0]:
        raise ComparisonError(
            f"--reference {name}: no such file, and none of the project's references: {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    try:
        reference = read_reference(path, threshold)
    except ReferenceFileError as error:
        raise ComparisonError(str(error)) from None
    if reference.tables:
        return _against_tables(reference, results, new, threshold)
    return _against_points(reference, results, new, whole=name not in known)


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


def _against_tables(recipe: Reference, results: Sequence[Result], new: str, threshold: float) -> Comparison:
    """The measured points against the published figures that `parse.summarize --against` sets beside them."""
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
