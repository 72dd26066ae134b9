"""The same work under several backends, or measured more than once, side by side: cases down, one point in a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hpc.system.text import grouped
from parse.report.summary import SIZE, USUAL, by_base, by_unit, requested_values, shared
from parse.runs.result import Result

WORK = (
    "workload", "code_digest", "batch_size", "precision", "scaling", "data", "on", "site", "warmup_steps",
    "measured_steps", "seed",
)  # fmt: skip
"""Settings that must be equal for two speeds to be in one table; all other requested settings make columns.

A log is excluded from no table by its unknown settings.
"""

LOG_DIFFERENCES = ("warmup_steps", "measured_steps", "data")
"""Settings in which a log of one table may differ, named above it: every log format has its own protocol and data."""

BACKEND_FIELDS = ("container", "folder", "date", "name", *LOG_DIFFERENCES)
"""Settings that may differ per backend: part of a column's name only if a backend has several values."""

MACHINE = ("device", "driver", "cpu")
"""Facts that must be equal, too; they are measured, not requested."""

SettingValues = tuple[tuple[str, str], ...]
"""The requested settings in which a column differs from another one of its table, including its backend."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A backend with its settings; `differs` are those that other columns do not share, `points` are by case."""

    backend: str
    differs: Mapping[str, str]
    points: Mapping[str, Result]

    @property
    def words(self) -> tuple[str, ...]:
        """Its name in parts: the backend, then what differs."""
        return (self.backend, *(f"{name}={value}" for name, value in self.differs.items()))

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @cached_property
    def _requested(self) -> list[tuple[dict[str, str], bool]]:
        return [(requested_values(result), result.requested.partly) for result in self.points.values()]

    def values(self, name: str) -> tuple[str, ...]:
        """The values of that name in the requests of its points, or on their machines."""
        if name in MACHINE:
            return tuple(sorted({value for result in self.points.values() for value in result.facts.get(name, ())}))
        return tuple(sorted({requested[name] for requested, _ in self._requested if name in requested}))

    def lacks(self, name: str) -> bool:
        """Whether it is unknown for any of its points."""
        return any(partly and name not in requested for requested, partly in self._requested)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """One table. `unit` and `same` are the speeds' unit and the settings of all its points; `cases` go from few devices
    to many."""

    unit: str
    same: Mapping[str, str]
    cases: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def apart(self) -> tuple[str, ...]:
        """Reasons why it compares more than backends: facts (MACHINE, LOG_DIFFERENCES) that differ between columns, and
        those that are known for some columns only."""
        lines = []
        for name in (*LOG_DIFFERENCES, *MACHINE):
            met = grouped((values, column.name) for column in self.columns if (values := column.values(name)))
            if len(met) > 1:
                values_with_names = "; ".join(
                    f"{' and '.join(values)} ({', '.join(names)})" for values, names in met.items()
                )
                lines.append(f"not the same {name} in all columns: {values_with_names}")
        unknown = grouped(
            (lacking, name)
            for name in WORK
            if (lacking := tuple(column.name for column in self.columns if column.lacks(name)))
            and any(column.values(name) for column in self.columns)
        )
        return (*lines, *(f"not known of {', '.join(of)}: {', '.join(names)}" for of, names in unknown.items()))


def compare(results: Sequence[Result]) -> tuple[SideBySide, ...]:
    """A table for all work that was requested of more than one backend or measured more than once, on known devices."""
    placed = [result for result in results if result.devices]
    tables = [points for of_unit in by_unit(placed) for points in _tables(of_unit)]
    return tuple(
        _comparison(points)
        for points in tables
        if len({(result.run.backend, result.requested.measurement) for result in points}) > 1
    )


def outcomes(result: Result) -> tuple[str, ...]:
    """The outcome of the point: `ok` if it has a speed, else its runs' outcomes, the commonest first."""
    if result.median_speed is not None:
        return ("ok",)
    return tuple(outcome for outcome, _ in Counter(run.outcome_text for run in result.runs).most_common())


def _tables(results: Sequence[Result]) -> Iterator[list[Result]]:
    """Points of the same work.

    An option that every point has is the workload's, or one that all its backends have: its values make tables. An
    option of only some points belongs to their backends and makes columns. Logs have few options.
    """
    for points in _alike(results, WORK):
        requested = [requested_values(result) for result in points if not result.requested.partly] or [
            requested_values(each) for each in points
        ]
        options = [
            name for name in requested[0] if name.startswith("option.") and all(name in each for each in requested)
        ]
        yield from _alike(points, options)


def _alike(results: Sequence[Result], names: Sequence[str]) -> list[list[Result]]:
    """Points that are equal in all the names; a log is in every group that what is known of it allows."""
    groups: list[tuple[dict[str, str | None], list[Result]]] = []
    for points in _grouped(results, lambda result: (result.requested.partly, *_known(result, names).items())):
        if not points[0].requested.partly:
            groups.append((_known(points[0], names), points))
    logs = _grouped(
        [result for result in results if result.requested.partly], lambda result: (*_known(result, names).items(),)
    )
    for points in sorted(logs, key=lambda points: -len(_known(points[0], names))):
        known = _known(points[0], names)
        fitting = [
            group for group in groups if all(group[0].get(name, value) == value for name, value in known.items())
        ]
        for group, members in fitting:
            for name, value in known.items():
                group.setdefault(name, value)
            members.extend(points)
        if not fitting:
            groups.append((known, list(points)))
    return [members for _, members in groups]


def _known(result: Result, names: Sequence[str]) -> dict[str, str | None]:
    """The point's settings by these names, None for absent ones; for a log, those it has and that must be equal."""
    requested = requested_values(result)
    if not result.requested.partly:
        return {name: requested.get(name) for name in names}
    return {name: requested[name] for name in names if name in requested and name not in LOG_DIFFERENCES}


def _comparison(points: Sequence[Result]) -> SideBySide:
    same = shared(points)
    settings = _settings(points, same)
    cases = {result.requested.case: (result.devices, result.run.nodes or 1) for result in points}
    return SideBySide(
        unit=points[0].unit,
        same=same,
        cases=tuple(sorted(cases, key=lambda case: cases[case])),
        columns=tuple(
            sorted(_named(settings), key=lambda each: (each.backend, each.differs.get("date", ""), each.name))
        ),
    )


def _settings(results: Sequence[Result], same: Mapping[str, str]) -> dict[SettingValues, list[Result]]:
    def setting(result: Result) -> SettingValues:
        shared_names = {*same, *SIZE} - {"backend"}
        return tuple((name, value) for name, value in requested_values(result).items() if name not in shared_names)

    settings: dict[SettingValues, list[Result]] = {}
    for points in _grouped(results, setting):
        # Fewer ranks may drive as many devices: two points of one case, and never one cell.
        crowded = len({result.requested.case for result in points}) < len(points)
        of_bases = by_base(points)
        for result, base in ((result, of_base[0].base_case) for of_base in of_bases for result in of_base):
            ranks = {"ranks_per_node": result.run.ranks_per_node, "gpus_per_node": result.run.gpus_per_node}
            more = tuple((name, str(value)) for name, value in ranks.items() if value is not None) if crowded else ()
            more += (("base", base),) if len(of_bases) > 1 else ()
            settings.setdefault((*setting(result), *more), []).append(result)
    return settings


def _named(settings: Mapping[SettingValues, Sequence[Result]]) -> Iterator[Column]:
    """The columns. Default values are not part of a name, nor are settings that differ per backend."""
    values = [dict(setting) for setting in settings]
    owned = grouped(((of["backend"], name), of.get(name)) for of in values for name in BACKEND_FIELDS)
    for setting, points in settings.items():
        setting_values = dict(setting)
        backend = setting_values.pop("backend")
        setting_values = {
            name: value
            for name, value in setting_values.items()
            if name not in BACKEND_FIELDS or len({*owned[backend, name]}) > 1
        }
        setting_values = {name: value for name, value in setting_values.items() if USUAL.get(name) != value}
        yield Column(
            backend=backend, differs=setting_values, points={result.requested.case: result for result in points}
        )


def _grouped(results: Sequence[Result], key: Callable[[Result], Hashable]) -> list[list[Result]]:
    return list(grouped((key(result), result) for result in results).values())
