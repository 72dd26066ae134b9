"""The published figures of a recipe as results like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpc.model.recipe import PublishedTable, Recipe
from parse.logs.path_facts import PathFacts
from parse.published.blocks import PrintedRun, figure
from parse.published.points import PublishedPoint, Setting, point_result, requested_run
from parse.published.tables import IMAGENET, WallClock, case
from parse.result import Result, with_speedups


def recipe_results(recipe: Recipe) -> dict[tuple[PublishedTable, str], Result]:
    """The result of every case of every table, with its speedup."""
    places = {}
    for table in recipe.tables:
        for name in table.cases:
            result = _result(recipe, table, name)
            places[result.requested.point] = (table, name), result
    scaled = with_speedups([result for _, result in places.values()])
    return {places[result.requested.point][0]: result for result in scaled}


def _result(recipe: Recipe, table: PublishedTable, name: str) -> Result:
    place = case(name)
    assert place is not None, f"recipe {recipe.name}: {name} is no case"
    workload = next(point.workload for point in recipe.points if table.has(point))
    setting = Setting(
        backend=recipe.system, workload=workload, batch_size=table.batch_size, precision=table.precision,
        options=tuple(sorted(table.options.items())),
    )  # fmt: skip
    runs = [printed_run for printed_run in _runs(table, name) if not printed_run.place.packed]
    point = PublishedPoint(
        runs=runs,
        packed=[printed_run for printed_run in _runs(table, name) if printed_run.place.packed],
        figures=[figure(each.what, each.value, each.line) for each in table.figures if each.case == name],
        placeholders=[table.absent[name]] if name in table.absent else [],
    )
    requested = requested_run(setting, place, recipe.name)
    return point_result(requested, point, Path(recipe.document), list(_clocks(table, name)))


def _runs(table: PublishedTable, name: str) -> Iterator[PrintedRun]:
    for each in table.speeds:
        if each.case == name:
            place = PathFacts(packed=(0,) if each.packed else ())
            path = each.packed or f"line {each.line}"
            yield PrintedRun(line=each.line, path=path, place=place, number=each.run, speed=each.speed)


def _clocks(table: PublishedTable, name: str) -> Iterator[WallClock]:
    """The speed by the clock of the training that the table reports, for the case that it reports it of."""
    medians = [each for each in table.figures if (each.case, each.what) == (name, "median")]
    if table.clock is not None and medians:
        epochs, seconds = table.clock
        yield WallClock(
            line=medians[0].line, epochs=epochs, seconds=seconds, speed=epochs * IMAGENET / seconds,
            claimed=float(medians[0].value),
        )  # fmt: skip
