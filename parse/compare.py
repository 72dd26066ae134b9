"""The same work under several backends, side by side: cases down, backends across, one point in a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from parse.result import Result
from parse.summary import SIZE, asked_of

WORK = (
    "workload", "code_digest", "batch_size", "precision", "scaling", "data", "on", "site", "warmup_steps",
    "measured_steps", "seed",
)  # fmt: skip
"""What must be equal for two speeds to stand in one table; all else that points ask for makes columns."""

MACHINE = ("device", "driver", "cpu")
"""What must have been equal, too; that is found out, not asked."""

Setting = tuple[tuple[str, str], ...]
"""What a column asks for otherwise than another one of its table, its backend among it."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A backend as it was asked for; `differs` is what tells it from other columns, `points` are by case."""

    backend: str
    differs: Mapping[str, str]
    points: Mapping[str, Result]

    @property
    def words(self) -> tuple[str, ...]:
        """Its name in parts: the backend, then what differs."""
        return (self.backend, *(f"{name}={value}" for name, value in self.differs.items()))

    @property
    def name(self) -> str:
        """Its name, which no other column of the table has."""
        return " ".join(self.words)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One table. `same` is what all its points ask for; `cases` go from few devices to many."""

    same: Mapping[str, str]
    cases: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def apart(self) -> tuple[str, ...]:
        """What makes it compare more than backends: a line for each of MACHINE that its columns met differently."""
        lines = []
        for name in MACHINE:
            met: dict[tuple[str, ...], list[str]] = {}
            for column in self.columns:
                values = {value for result in column.points.values() for value in result.facts.get(name, ())}
                if values:
                    met.setdefault(tuple(sorted(values)), []).append(column.name)
            if len(met) > 1:
                said = "; ".join(f"{' and '.join(values)} ({', '.join(names)})" for values, names in met.items())
                lines.append(f"not the same {name} in all columns: {said}")
        return tuple(lines)


def compare(results: Sequence[Result]) -> tuple[Comparison, ...]:
    """A table for all work that was asked of more than one backend."""
    return tuple(_comparison(there) for there in _tables(results) if len({result.run.backend for result in there}) > 1)


def outcomes(result: Result) -> tuple[str, ...]:
    """What became of the point: `ok` where it has a speed, else its runs' words, the commonest first."""
    if result.median_speed is not None:
        return ("ok",)
    return tuple(word for word, _ in Counter(run.word for run in result.runs).most_common())


def _tables(results: Sequence[Result]) -> Iterator[list[Result]]:
    """Points of the same work.

    An option that every point has is the workload's, or one that all its backends know: it says what is compared and
    makes tables. One that only some points have belongs to their backends and makes columns.
    """
    for there in _grouped(results, partial(_values, WORK)):
        asked = [asked_of(result) for result in there]
        options = [name for name in asked[0] if name.startswith("option.") and all(name in one for one in asked)]
        yield from _grouped(there, partial(_values, options))


def _comparison(there: Sequence[Result]) -> Comparison:
    first, *others = [asked_of(result) for result in there]
    same = {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}
    settings = _settings(there, same)
    cases = {result.run.case: (result.run.devices, result.run.nodes) for result in there}
    return Comparison(
        same={name: value for name, value in same.items() if name not in SIZE},
        cases=tuple(sorted(cases, key=lambda case: cases[case])),
        columns=tuple(sorted(_named(settings), key=lambda column: column.name)),
    )


def _settings(there: Sequence[Result], same: Mapping[str, str]) -> dict[Setting, list[Result]]:
    def setting(result: Result) -> Setting:
        return tuple((name, value) for name, value in asked_of(result).items() if name not in (*same, *SIZE))

    settings: dict[Setting, list[Result]] = {}
    for points in _grouped(there, setting):
        # Fewer ranks may drive as many devices: two points of one case, and never one cell.
        crowded = len({result.run.case for result in points}) < len(points)
        for result in points:
            ranks = {"ranks_per_node": result.run.ranks_per_node, "gpus_per_node": result.run.gpus_per_node}
            more = tuple((name, str(value)) for name, value in ranks.items()) if crowded else ()
            settings.setdefault((*setting(result), *more), []).append(result)
    return settings


def _named(settings: Mapping[Setting, Sequence[Result]]) -> Iterator[Column]:
    """The columns. Every backend has a container of its own, and fine stamps are the rule: neither makes a name."""
    for setting, points in settings.items():
        told = dict(setting)
        backend = told.pop("backend")
        images = {dict(other).get("container") for other in settings if ("backend", backend) in other}
        if len(images) == 1:
            told.pop("container", None)
        if told.get("stamps") == "fine":
            del told["stamps"]
        yield Column(backend=backend, differs=told, points={result.run.case: result for result in points})


def _values(names: Sequence[str], result: Result) -> Hashable:
    return tuple(map(asked_of(result).get, names))


def _grouped(results: Sequence[Result], key: Callable[[Result], Hashable]) -> list[list[Result]]:
    groups: dict[Hashable, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return list(groups.values())
