"""Two measurements, or one and a reference: their points matched by identity, and each pair judged."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from hpc.model.options import did_you_mean
from hpc.model.reference import UNITS, Reference, ReferenceFileError, ReferencePoint, known_references, read_reference
from hpc.system.regular_file import existing
from hpc.system.text import grouped, natural, plural
from parse import stats
from parse.command_options import Columns
from parse.comparison.types import (
    ComparedPoint,
    Comparison,
    ComparisonError,
    ComparisonVerdict,
    Difference,
    NearMiss,
    Reason,
    Side,
    least_runs,
    least_single_runs,
    of_pair,
    of_reference,
    ratio_interval,
    runs_to_tell,
    single_interval,
)
from parse.report.against import against
from parse.report.summary import choose, identifying_values, labels, measured_in
from parse.runs.load import load
from parse.runs.measurements import days
from parse.runs.result import Result, results
from parse.runs.summary_file import MACHINE
from parse.tables import published
from parse.text import distinct

# Differences between the environments of two measurements: devices, drivers, versions, options in effect, nodes.


def differences(pairs: Mapping[str, tuple[Result, Result]], ignored: Collection[str] = ()) -> tuple[Difference, ...]:
    """The facts and the settings in effect in which the two results of a pair differ, by the name of the pair; ignored
    settings are among them. A fact that neither side states is no difference."""
    points: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for point, (base, new) in pairs.items():
        facts = _facts(base, ignored), _facts(new, ignored)
        for name in dict.fromkeys((*facts[0], *facts[1])):
            values = facts[0].get(name, ()), facts[1].get(name, ())
            if values[0] != values[1]:
                points.setdefault((name, *values), []).append(point)
    every = [*pairs]
    return tuple(
        Difference(name=name, base=base, new=new, points=() if concerned == every else tuple(concerned))
        for (name, base, new), concerned in sorted(points.items(), key=lambda item: _order(item[0][0]))
    )


def _order(name: str) -> tuple[int, str]:
    """Machines first, then versions and options."""
    names = [*MACHINE.values()]
    return (names.index(name), "") if name in names else (len(names), name)


def _facts(result: Result, ignored: Collection[str]) -> dict[str, tuple[str, ...]]:
    facts = {name: tuple(sorted(values)) for name, values in result.facts.items()}
    options = grouped(pair for machine in result.machines for pair in machine.options.items())
    hosts = sorted({host for machine in result.machines for host in machine.hosts}, key=natural)
    requested = identifying_values(result)
    return {
        **facts,
        **{f"option.{name}": tuple(sorted({*values})) for name, values in options.items()},
        **({"hosts": tuple(hosts)} if hosts else {}),
        **{name: (requested[name],) for name in ignored if name in requested},
    }


# The measurements that are compared, read as `rankwise summarize` reads them; a point of one of them as a side.


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The results of training of a folder or file; `name` is its path with the runs, points and days that it has.
    `diagnostics` are those of runs that are no training."""

    name: str
    results: tuple[Result, ...]
    diagnostics: tuple[Result, ...] = ()
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def read_measurement(
    path: Path, kind: str, where: Mapping[str, Sequence[str]], columns: Columns | None = None
) -> Measurement:
    """Reads a folder or file; `kind`, `where` and `columns` are those of `rankwise summarize`.

    Raises ComparisonError where it holds no point, and TableError for a name in `where` that none has.
    """
    if kind == "table":
        printed = published([path], columns)
        every, remarks, refusals = printed.results, printed.remarks, printed.refusals
    else:
        loaded = load([path], kind=kind)
        every, remarks, refusals = results(loaded), loaded.remarks, loaded.refusals
    trainings = tuple(result for result in every if not result.run.diagnostic)
    if not trainings:
        read = "; ".join((*refusals[:3], *remarks[:3])) or "nothing is there"
        raise ComparisonError(f"{path}: no point to compare: {read}")
    chosen = choose(trainings, where)
    if not chosen:
        raise ComparisonError(f"{path}: no point has all settings of --where")
    ok = sum(len(result.ok) for result in chosen)
    dates = days(run.attempt.begin_unix_s for result in chosen for run in result.ok if run.attempt)
    name = f"{path}, {plural(len(chosen), 'point')}, {plural(ok, 'run')} ok{f', {dates}' if dates else ''}"
    diagnostics = tuple(result for result in every if result.run.diagnostic)
    return Measurement(name=name, results=chosen, diagnostics=diagnostics, remarks=remarks, refusals=refusals)


def distinct_labels(results_of_points: Sequence[Result]) -> list[str]:
    """The names of points as tables have them; equal ones are numbered."""
    return distinct(labels(results_of_points), "{} ({})")


def side_of(result: Result) -> Side:
    """The speeds of a measured point."""
    runs = [(run.measured.throughput, run.requested.run.repeat) for run in result.ok if run.measured]
    speeds, repeats = tuple(speed for speed, _ in runs), tuple(repeat for _, repeat in runs)
    usable = all(map(_is_speed, speeds))
    outlying = stats.outlying(speeds) if usable else ()
    return Side(
        median=stats.median(speeds) if speeds and usable else None,
        speeds=speeds,
        repeats=repeats,
        outcomes=tuple(Counter(run.outcome_text for run in result.runs).most_common()),
        outlying=tuple(repeats[at] for at in outlying),
    )


def without_speed(side: Side) -> tuple[Reason, str] | None:
    """Why a side has no median, with the details; None if it has one."""
    if side.median is not None:
        return None
    if not side.speeds:
        return Reason.NOT_OK, ", ".join(f"{count} {outcome}" for outcome, count in side.outcomes)
    runs = [pair for pair in zip(side.repeats, side.speeds, strict=True) if not _is_speed(pair[1])]
    return Reason.NO_SPEED, ", ".join(f"run {repeat}: {speed}" for repeat, speed in runs)


def _is_speed(value: float) -> bool:
    return isfinite(value) and value > 0


NEVER_IGNORED = ("unit", "case", "nodes", "ranks_per_node", "devices")
"""Settings without which speeds mean something else."""
MAX_NEAR_MISS = 3
"""Points that differ in more settings are different points."""


def compare_measurements(
    base: Sequence[Result],
    new: Sequence[Result],
    names: tuple[str, str],
    threshold: float,
    ignored: Collection[str] = (),
) -> Comparison:
    """Every point of both measurements judged; `names` are those of the sides, `ignored` settings in which matched
    points may differ. Raises ComparisonError where an ignored name is unknown, or a side has a point twice."""
    check_ignored(ignored, [*base, *new])
    _check_files(base, new)
    sides = by_identity(base, ignored, names[0]), by_identity(new, ignored, names[1])
    pairs = [(sides[0][key], sides[1][key]) for key in sides[0] if key in sides[1]]
    only_base = [result for key, result in sides[0].items() if key not in sides[1]]
    only_new = [result for key, result in sides[1].items() if key not in sides[0]]
    shown = distinct_labels([*(pair[1] for pair in pairs), *only_base, *only_new])
    paired, rest = shown[: len(pairs)], shown[len(pairs) :]
    base_names, new_names = rest[: len(only_base)], rest[len(only_base) :]
    return Comparison(
        base=names[0],
        new=names[1],
        is_reference=False,
        points=tuple(_judged(name, *pair, threshold) for name, pair in zip(paired, pairs, strict=True)),
        differences=differences(dict(zip(paired, pairs, strict=True)), ignored),
        only_base=tuple(base_names),
        only_new=tuple(new_names),
        near_misses=_near_misses(list(zip(base_names, only_base, strict=True)),
                                 list(zip(new_names, only_new, strict=True))),
    )  # fmt: skip


def _judged(name: str, base_result: Result, new_result: Result, threshold: float) -> ComparedPoint:
    base, new = side_of(base_result), side_of(new_result)
    point = ComparedPoint(
        name=name, unit=new_result.unit, threshold=threshold, base=base, new=new, verdict=ComparisonVerdict.CANNOT_TELL
    )
    for side, title in ((base, "BASE"), (new, "NEW")):
        if (problem := without_speed(side)) is not None:
            return dataclasses.replace(point, reason=problem[0], detail=f"{title}: {problem[1]}")
    assert base.median is not None and new.median is not None
    interval = ratio_interval(base.speeds, new.speeds)
    verdict = of_pair(interval, threshold)
    ratio = new.median / base.median
    point = dataclasses.replace(point, ratio=ratio, interval=interval, verdict=verdict)
    if verdict is not ComparisonVerdict.CANNOT_TELL:
        return point
    runs = max(len(base.speeds), len(new.speeds))
    difference = max(threshold, 1 - min(ratio, 1 / ratio))
    needed = runs_to_tell((base.speeds, new.speeds), difference)
    point = dataclasses.replace(point, difference=difference)
    if interval is None:
        few = least_runs() if len(base.speeds) + len(new.speeds) == 2 else needed
        return dataclasses.replace(point, reason=Reason.FEW_RUNS, runs_needed=few)
    return dataclasses.replace(point, reason=Reason.SCATTER, runs_needed=needed and max(needed, runs + 1))


def by_identity(results: Sequence[Result], ignored: Collection[str], side: str) -> dict[str, Result]:
    """The results of a measurement by their identity. Raises ComparisonError where it has a point twice; `side` names
    it there."""
    points: dict[str, Result] = {}
    for result in results:
        key = _identity(result, ignored)
        if key in points:
            places = [" ".join(measured_in(each).values()) or "no folder" for each in (points[key], result)]
            apart = "more than one value of an ignored setting" if places[0] == places[1] else " and ".join(places)
            raise ComparisonError(
                f"{side} has the point {labels([result])[0]} more than once ({apart}); name one measurement, or choose "
                "by --where"
            )
        points[key] = result
    return points


_TABLES = {"option": "options", "env": "env", "job": "job_options"}


def _identity(result: Result, ignored: Collection[str]) -> str:
    """Equal for the same point of two measurements, wherever the folder of a person's own file is: its code counts."""
    run = dataclasses.replace(result.run, repeat=1, workload=result.run.workload_name or None)
    known, extra = json.loads(run.key(dict(result.requested.extra)))
    for name in ignored:
        group, _, member = name.partition(".")
        if group in _TABLES and member:
            known.get(_TABLES[group], {}).pop(member, None)
        known.pop(name, None)
        extra.pop(name, None)
    return json.dumps([known, extra], sort_keys=True)


def check_ignored(ignored: Collection[str], results: Sequence[Result]) -> None:
    """Raises ComparisonError where an ignored name is unknown to all results, or is never ignored."""
    names = {name for result in results for name in identifying_values(result)}
    for name in ignored:
        if name in NEVER_IGNORED:
            raise ComparisonError(f"--ignore {name}: speeds of different {name} are never compared")
        if name not in names:
            near = did_you_mean(name, names)
            raise ComparisonError(f"--ignore {name}: no point has it; known here: {', '.join(sorted(names))}{near}")


def files_of(result: Result) -> set[Path]:
    """The traces and logs of a point, resolved; of one read from a summary those that it names."""
    attempts = [run.attempt for run in result.runs if run.attempt]
    paths = (each.trace or each.summarized or (each.log and each.log.path) for each in attempts)
    return {path.resolve() for path in paths if path}


def _check_files(base: Sequence[Result], new: Sequence[Result]) -> None:
    """Raises ComparisonError where a file belongs to both sides."""
    files = [{path for result in results for path in files_of(result)} for results in (base, new)]
    if both := sorted(files[0] & files[1]):
        raise ComparisonError(
            f"{both[0]} belongs to both sides ({len(both)} of the {len(files[1])} files of NEW): a measurement "
            "compared with itself shows nothing; name two different folders"
        )


def _near_misses(base: Sequence[tuple[str, Result]], new: Sequence[tuple[str, Result]]) -> tuple[NearMiss, ...]:
    """For each point of NEW alone the point of BASE alone that differs in the fewest settings."""
    settings = [(name, _settings(result)) for name, result in base]
    misses = []
    for new_name, result in new:
        values = _settings(result)
        apart = [(_apart(values, others), base_name) for base_name, others in settings]
        near, base_name = min(apart, key=lambda pair: len(pair[0]), default=([], ""))
        if base_name and len(near) <= MAX_NEAR_MISS:
            names = [name for name, _ in near]
            ignorable = names[0] if len(names) == 1 and names[0] not in NEVER_IGNORED else ""
            shown = tuple(f"{name} ({values})" for name, values in near)
            misses.append(NearMiss(base=base_name, new=new_name, settings=shown, ignorable=ignorable))
    return tuple(misses)


def _settings(result: Result) -> dict[str, str]:
    places = measured_in(result)
    return {name: value for name, value in identifying_values(result).items() if name not in places}


def _apart(values: Mapping[str, str], others: Mapping[str, str]) -> list[tuple[str, str]]:
    """The differing settings, each with both values: `container`, `a.sif, b.sif`."""
    return [
        (name, f"{others.get(name, 'none')}, {values.get(name, 'none')}")
        for name in dict.fromkeys((*others, *values))
        if others.get(name) != values.get(name)
    ]


# Measurements held against a reference: its points, or the figures that its tables published.


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
        if len(fitting) == 1:
            points.append(_held_against(expected.name, expected, side_of(fitting[0])))
        elif fitting or whole:
            problem = (Reason.SEVERAL, "; ".join(labels(fitting))) if fitting else (Reason.NOT_MEASURED, "")
            points.append(_held_against(expected.name, expected, Side(median=None), problem))
        else:
            missing.append(expected.name)
    rest = [result for result in results if result.requested.point not in taken]
    title = f"{reference.title} ({reference.devices})" if reference.devices else reference.title
    return Comparison(
        base=title, new=new, is_reference=True, points=tuple(points), only_base=tuple(missing),
        only_new=tuple(distinct_labels(rest)),
    )  # fmt: skip


def _held_against(
    name: str, expected: ReferencePoint, new: Side, problem: tuple[Reason, str] | None = None
) -> ComparedPoint:
    """A point beside its expected speed; `problem` is why it cannot be judged by it, with the details."""
    point = ComparedPoint(
        name=name, unit=expected.unit, threshold=expected.tolerance, base=Side(median=expected.speed), new=new,
        verdict=ComparisonVerdict.CANNOT_TELL, source=expected.source,
    )  # fmt: skip
    if (problem := problem or without_speed(new)) is not None:
        return dataclasses.replace(point, reason=problem[0], detail=problem[1])
    assert new.median is not None
    interval = single_interval(new.speeds, expected.speed)
    verdict = of_reference(interval, expected.tolerance)
    point = dataclasses.replace(point, verdict=verdict, ratio=new.median / expected.speed, interval=interval)
    if verdict is not ComparisonVerdict.CANNOT_TELL:
        return point
    needed = least_single_runs() if len(new.speeds) < 2 else runs_to_tell((new.speeds,), expected.tolerance)
    return dataclasses.replace(
        point, reason=Reason.FEW_RUNS if interval is None else Reason.SCATTER,
        runs_needed=needed and max(needed, len(new.speeds) + 1),
    )  # fmt: skip


def _against_tables(recipe: Reference, results: Sequence[Result], new: str, threshold: float) -> Comparison:
    """The measured points against the published figures that `rankwise summarize --against` sets beside them."""
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
        differ = "; ".join(difference.text for difference in published.differences)
        problem = (Reason.OTHER_SETTINGS, differ) if published.differences else None
        points.append(_held_against(label, expected, side_of(result), problem))
    missing = [f"{case} of {heading}" for heading, cases in beside.missing.items() for case in cases]
    return Comparison(
        base=f"{recipe.title} ({recipe.devices})", new=new, is_reference=True, points=tuple(points),
        only_base=tuple(missing), only_new=tuple(rest),
    )  # fmt: skip
