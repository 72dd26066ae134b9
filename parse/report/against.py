"""Own points beside the published ones of a recipe: which belong together, in what they differ, how fast they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpc.model.recipe import Difference, PublishedTable, Recipe
from hpc.model.spec import SAMPLES
from parse.alarms.published import printed_base
from parse.alarms.table import judge
from parse.published.recipes import recipe_results
from parse.result import Result, by_setting


@dataclass(frozen=True, kw_only=True)
class PublishedBeside:
    """The judged published result of a point, its table, and the settings in which the own point differs.

    `printed_base` is the point that the speedups which its document prints are against; None where it does not tell.
    """

    published: Result
    printed_base: Result | None
    table: PublishedTable
    differences: tuple[Difference, ...]

    @property
    def speed(self) -> float | None:
        """The median speed as printed, in samples/s."""
        return self.published.published.median if self.published.published else None

    @property
    def speedup(self) -> float | None:
        """The speedup as printed, else by the printed medians."""
        figures = self.published.published
        return figures.speedup if figures and figures.speedup is not None else self.published.speedup

    @property
    def prints_speedup(self) -> bool:
        """Whether the document prints it."""
        return bool(self.published.published and self.published.published.speedup is not None)

    @property
    def base(self) -> str:
        """The case that `speedup` is against; empty where there is none, or it is not known."""
        if self.prints_speedup:
            return self.printed_base.requested.case if self.printed_base else ""
        return self.published.base.case if self.published.base and self.speedup is not None else ""

    def ratio(self, result: Result) -> float | None:
        """The own median speed divided by the published one."""
        return result.median_speed / self.speed if result.median_speed is not None and self.speed else None


@dataclass(frozen=True, kw_only=True)
class Against:
    """A recipe, by point what it published of it, and by table the cases that no point here is of."""

    recipe: Recipe
    points: Mapping[str, PublishedBeside]
    missing: Mapping[str, tuple[str, ...]]

    def beside(self, result: Result) -> PublishedBeside | None:
        """What was published of the point; None if nothing was."""
        return self.points.get(result.requested.point)


def against(recipe: Recipe, results: Sequence[Result]) -> Against:
    """The published result of each own one of the same case and workload, the nearest by precision, then by batch size,
    then by other settings."""
    published = recipe_results(recipe)
    judged = dict(zip(published, judge(list(published.values())), strict=True))
    settings = by_setting(judged.values())
    points = {}
    taken = set()
    for result in results:
        options, env = _in_effect(result), result.requested.target_env
        own_env = {name: value for name, value in result.run.env.items() if env.get(name) != value}
        nearest = recipe.nearest(result.run, options, own_env) if result.run.unit == SAMPLES else None
        if nearest is None:
            continue
        point, differences = nearest
        table = next(table for table in recipe.tables if table.has(point))
        taken.add((table, point.case))
        its = judged[table, point.case]
        points[result.requested.point] = PublishedBeside(
            published=its, printed_base=printed_base(settings[its.requested.setting]), table=table,
            differences=differences,
        )  # fmt: skip
    missing = {
        table.heading: cases
        for table in recipe.tables
        if (cases := tuple(name for name in table.cases if (table, name) not in taken))
    }
    return Against(recipe=recipe, points=points, missing=missing)


def _in_effect(result: Result) -> Mapping[str, str]:
    """The options of its runs with their defaults, as a trace has them; of other results those that were given."""
    return next((machine.options for machine in result.machines if machine.options), result.run.options)


def own_devices(results: Sequence[Result]) -> list[str]:
    """The devices of the ok runs, of CPUs their model; empty where they are not known."""
    names = {
        name
        for result in results
        for machine in result.machines
        for name in machine.facts.get("cpu" if result.run.gpus_per_node == 0 else "device", ())
    }
    return sorted(names)


def against_lines(of: Against, results: Sequence[Result], names: Sequence[str]) -> Iterator[str]:
    """Sentences on what is compared; `names` are those of the results."""
    recipe = of.recipe
    yield (
        f"published: {recipe.title} (recipe {recipe.name}), devices: {recipe.devices}; here: "
        f"{', '.join(own_devices(results)) or 'not known'}"
    )
    apart: dict[str, list[str]] = {}
    without = []
    for result, name in zip(results, names, strict=True):
        beside = of.beside(result)
        if beside is None:
            without.append(name)
        elif beside.differences:
            apart.setdefault("; ".join(each.text for each in beside.differences), []).append(name)
    for text, those in apart.items():
        yield f"ratio in brackets, because settings are not the published ones: {', '.join(those)}: {text}"
    if any(of.beside(result) and not result.requested.partly for result in results):  # logs are of other systems
        yield from (f"unlike the document: {line}" for line in recipe.unlike)
    computed = {
        beside.table.heading: None
        for result in results
        if (beside := of.beside(result)) and beside.speedup is not None and not beside.prints_speedup
    }
    if computed:
        yield f"the document prints no speedup, it is that of its medians: {', '.join(computed)}"
    yield from _alarms(of, results, names)
    if without:
        yield f"nothing is published of {', '.join(without)}"
    if of.missing:
        whole = {table.heading: table.cases for table in recipe.tables}
        listed = [
            f"all of {heading}" if cases == whole[heading] else f"{', '.join(cases)} of {heading}"
            for heading, cases in of.missing.items()
        ]
        yield f"published, and not measured here: {'; '.join(listed)}"


def _alarms(of: Against, results: Sequence[Result], names: Sequence[str]) -> Iterator[str]:
    """What is wrong with the published figures themselves, once for each."""
    judged_points = set()
    for result in results:
        beside = of.beside(result)
        if beside is None or beside.published.requested.point in judged_points:
            continue
        judged_points.add(beside.published.requested.point)
        case = f"published {beside.published.requested.case} ({beside.table.heading})"
        yield from (f"{case}: {alarm.text}" for alarm in beside.published.alarms)
        for name in dict.fromkeys(run.placeholder for run in beside.published.runs if run.placeholder):
            yield f"{case}: its document prints {name!r} in place of a speed"
