"""Own points beside the published ones of a recipe: which belong together, in what they differ, how fast they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc.model.reference import Departure, PublishedTable, Reference
from hpc.model.run_fields import RunFields
from hpc.model.spec import SAMPLES
from hpc.system.text import grouped
from parse.alarms.scaling import printed_base
from parse.alarms.table import judge
from parse.logs.formats.mllog import IMAGENET
from parse.logs.path_facts import case_of
from parse.report.summary import ONE_DEVICE
from parse.runs.result import Claimed, Result, against_base, by_setting, with_speedups
from parse.tables import figure, published_result, requested_run


@dataclass(frozen=True, kw_only=True)
class PublishedBeside:
    """The judged published result of a point, its table, and the settings in which the own point differs.

    Its speedup is against the base of the own point, where the document has a speed of that case. `printed_base` is the
    point that the speedups which its document prints are against; None where it does not say.
    """

    published: Result
    printed_base: Result | None
    table: PublishedTable
    differences: tuple[Departure, ...]

    @property
    def speed(self) -> float | None:
        """The median speed as printed, in samples/s."""
        return self.published.published.median if self.published.published else None

    @property
    def speedup(self) -> float | None:
        """The speedup as printed, where that is against the base; else by the printed medians."""
        return self._printed if self.prints_speedup else self.published.speedup

    @property
    def prints_speedup(self) -> bool:
        """Whether the document prints it."""
        if self._printed is None or self.published.speedup is None:
            return self._printed is not None
        base, its = self.published.base, self.printed_base
        return bool(base and its and its.requested.point == base.point)

    @property
    def base(self) -> str:
        """The case that `speedup` is against; empty where there is none, or the document does not say."""
        if self.prints_speedup:
            return self.printed_base.requested.case if self.printed_base else ""
        return self.published.base.case if self.published.base and self.speedup is not None else ""

    @property
    def _printed(self) -> float | None:
        return self.published.published.speedup if self.published.published else None

    def ratio(self, result: Result) -> float | None:
        """The own median speed divided by the published one."""
        return result.median_speed / self.speed if result.median_speed is not None and self.speed else None


@dataclass(frozen=True, kw_only=True)
class Against:
    """A recipe, by point what it published of it, and by table the cases that no point here is of."""

    recipe: Reference
    points: Mapping[str, PublishedBeside]
    missing: Mapping[str, tuple[str, ...]]

    def beside(self, result: Result) -> PublishedBeside | None:
        """What was published of the point; None if nothing was."""
        return self.points.get(result.requested.point)


def against(recipe: Reference, results: Sequence[Result]) -> Against:
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
        setting = settings[judged[table, point.case].requested.setting]
        points[result.requested.point] = PublishedBeside(
            published=_against(judged[table, point.case], setting, result.base.case if result.base else ""),
            printed_base=printed_base(setting),
            table=table,
            differences=differences,
        )
    missing = {
        table.heading: cases
        for table in recipe.tables
        if (cases := tuple(name for name in table.cases if (table, name) not in taken))
    }
    return Against(recipe=recipe, points=points, missing=missing)


def recipe_results(recipe: Reference) -> dict[tuple[PublishedTable, str], Result]:
    """The result of every case of every table, with its speedup."""
    places = {}
    for table in recipe.tables:
        for name in table.cases:
            result = _result(recipe, table, name)
            places[result.requested.point] = (table, name), result
    scaled = with_speedups([result for _, result in places.values()])
    return {places[result.requested.point][0]: result for result in scaled}


def _result(recipe: Reference, table: PublishedTable, name: str) -> Result:
    place = case_of(name)
    assert place is not None and place.nodes and place.devices, f"recipe {recipe.name}: {name} is no case"
    fields = RunFields(
        backend=recipe.system, nodes=place.nodes, devices=place.devices, gpus_per_node=place.devices // place.nodes,
        workload=next(point.workload for point in recipe.swept if table.has(point)), batch_size=table.batch_size,
        precision=table.precision, options=dict(sorted(table.options.items())),
    )  # fmt: skip
    speeds = [each for each in table.speeds if each.case == name]
    figures = [each for each in table.figures if each.case == name]
    claimed = Claimed(
        document=Path(recipe.document),
        figures=tuple(figure(each.what, each.value, each.line) for each in figures),
        packed=tuple((each.packed, each.speed) for each in speeds if each.packed),
    )
    if table.clock is not None and claimed.median is not None:
        epochs, seconds = table.clock
        source = f"{epochs} epochs of the {IMAGENET:,} images of ImageNet in {seconds:,.0f} s"
        claimed = replace(claimed, wall_clock=epochs * IMAGENET / seconds, wall_clock_from=source)
    return published_result(
        requested_run(fields, {"document": recipe.name}),
        claimed,
        speeds=[(each.run, each.speed) for each in speeds if not each.packed],
        placeholders=[table.absent[name]] if name in table.absent else (),
    )


def _against(published: Result, setting: Sequence[Result], base: str) -> Result:
    """The published result with its speedup against that case, where its document has a speed of it."""
    case = base if any(each.requested.case == base and each.median_speed for each in setting) else ""
    scaled = against_base(setting, case)
    return next(each for each in scaled if each.requested.point == published.requested.point)


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
    computed = grouped(
        (beside.base, beside.table.heading)
        for result in results
        if (beside := of.beside(result)) and beside.speedup is not None and not beside.prints_speedup
    )
    for base, headings in computed.items():
        against_it = "" if base == ONE_DEVICE else f" against {base}"
        tables = ", ".join(dict.fromkeys(headings))
        yield f"the document prints no speedup{against_it}, it is that of its medians: {tables}"
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
