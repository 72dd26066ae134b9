"""A sweep from a recipe: which of its points are requested, what replaces its settings, what the target cannot do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from hpc.backends.refusals import refuse_invalid
from hpc.model.reference import Reference
from hpc.model.spec import SpecError, Target
from hpc.system.text import plural
from launch.jobs.options import flag, option_rows
from launch.jobs.site import Site
from launch.sweep.expansion import expand
from launch.sweep.prepare import cannot_run
from launch.sweep.spec import SweepSpec, split_limits

CaseSize = tuple[int, int]
CHOOSING = ("nodes", "ranks_per_node", "cases", "batch_size", "precision")
"""The options that choose among the points of a recipe; any other replaces its setting."""
ALONE: Mapping[str, Any] = {"repeats": 1, "no_baseline": True, "collectives": False, "no_sync": False}
"""The values of a sweep that has each of its points once, and nothing else."""
NAMED = 12
"""Points named one by one in a message, at most."""


def choose_sweeps(
    recipe: Reference, of_recipe: Sequence[SweepSpec], requested: Mapping[str, Any]
) -> tuple[SweepSpec, ...]:
    """The sweeps of the recipe with the values of a command line by name. Raises SpecError.

    Values of the recipe choose among its points. Where none of an option's values is in the recipe, they replace its
    own; where some are and others not, it is not clear what is meant.
    """
    rows, (requested, limits) = {row.name: row for row in option_rows(SweepSpec)}, split_limits(requested)
    values = {name: rows[name].read(name, value) for name, value in requested.items() if name in rows}
    sweeps = _choose_cases(recipe, of_recipe, values)
    for name in ("batch_size", "precision"):
        if name in values:
            sweeps = _choose(recipe, sweeps, name, values[name], [v for s in of_recipe for v in getattr(s, name)])
    if not sweeps:
        raise SpecError(f"recipe {recipe.name} has no point with all that was requested; it has {_points(of_recipe)}")
    others = limits | {name: value for name, value in values.items() if name not in CHOOSING}
    return tuple(_replaced(sweep, others) for sweep in sweeps)


def _replaced(sweep: SweepSpec, values: Mapping[str, Any]) -> SweepSpec:
    """The sweep with other values; of options and variables those that are named."""
    tables = {name: {**getattr(sweep, name), **values[name]} for name in ("option", "env") if name in values}
    return dataclasses.replace(sweep, **{**values, **tables})


def _choose(
    recipe: Reference, sweeps: Iterable[SweepSpec], name: str, values: Sequence[Any], known: Sequence[Any]
) -> list[SweepSpec]:
    """The sweeps with those of their values that are requested, or with all of these if the recipe has none of them."""
    unknown = [value for value in values if value not in known]
    if unknown and len(unknown) < len(values):
        noun = name.replace("_", " ").removesuffix("s")
        raise _mixed(recipe, [f"{noun} {_value_text(value)}" for value in unknown], known)
    chosen = []
    for sweep in sweeps:
        of_sweep: Any = tuple(values) if unknown else tuple(value for value in getattr(sweep, name) if value in values)
        chosen += [dataclasses.replace(sweep, **{name: of_sweep})] if of_sweep else []
    return chosen


def _choose_cases(recipe: Reference, sweeps: Sequence[SweepSpec], values: Mapping[str, Any]) -> list[SweepSpec]:
    """As `_choose`, by node counts, ranks per node and cases."""
    known = list(dict.fromkeys(case for sweep in sweeps for case in sweep.cases))
    nodes, ranks, cases = (values.get(name) or () for name in ("nodes", "ranks_per_node", "cases"))
    if not (nodes or ranks or cases):
        return list(sweeps)
    wanted = list(cases)
    if nodes or ranks:
        unknown = [f"case with {value} nodes" for value in nodes if value not in {n for n, _ in known}]
        unknown += [f"case with {value} ranks per node" for value in ranks if value not in {r for _, r in known}]
        matching = [(n, r) for n, r in known if n in (nodes or (n,)) and r in (ranks or (r,))]
        if unknown and matching:
            raise _mixed(recipe, unknown, known)
        if not matching and not (nodes and ranks):
            raise SpecError(
                f"recipe {recipe.name} has no {', '.join(unknown)}; say whole cases (--cases 3n8g) to depart "
                f"from it. It has {', '.join(map(_case_text, known))}"
            )
        wanted += matching or product(nodes, ranks)
    wanted = list(dict.fromkeys(wanted))
    return _choose(recipe, sweeps, "cases", wanted, known)


def _mixed(recipe: Reference, unknown: Iterable[str], known: Iterable[Any]) -> SpecError:
    values = ", ".join(dict.fromkeys(map(_value_text, known)))
    return SpecError(
        f"recipe {recipe.name} has no {', no '.join(unknown)}, but it has others that were requested: request some of "
        f"{values} to choose among its points, or for none of them to depart from it"
    )


def _value_text(value: Any) -> str:
    return _case_text(value) if isinstance(value, tuple) else str(value)


def _case_text(case: CaseSize) -> str:
    return "{}n{}g".format(*case)


def _points(sweeps: Iterable[SweepSpec]) -> str:
    return "; ".join(
        f"{', '.join(map(_case_text, sweep.cases))} with batch size {', '.join(map(str, sweep.batch_size or ()))} in "
        f"{', '.join(sweep.precision)}"
        for sweep in sweeps
    )


def single_points(sweep: SweepSpec) -> Iterator[SweepSpec]:
    """A sweep for each case, batch size and precision, without baselines."""
    for case, batch_size, precision in product(sweep.cases, sweep.batch_size or (None,), sweep.precision):
        sizes = None if batch_size is None else (batch_size,)
        yield dataclasses.replace(sweep, cases=(case,), batch_size=sizes, precision=(precision,), **ALONE)


def departures_of_possible(
    recipe: Reference, sweeps: Sequence[SweepSpec], target: Target, site: Site | None
) -> tuple[str, ...]:
    """In what the sweeps differ from the recipe. Raises SpecError where the target cannot run a point of it."""
    unable = cannot_run(list(dict.fromkeys(name for sweep in sweeps for name in sweep.backend)), site)
    refuse_impossible(recipe, sweeps, lambda sweep: refuse_invalid(expand(sweep, target).runs), unable)
    return departures(recipe, sweeps, target)


def refuse_impossible(
    recipe: Reference, sweeps: Sequence[SweepSpec], plan: Callable[[SweepSpec], object], unable: Mapping[str, str]
) -> None:
    """Raises SpecError if points of the recipe cannot run on the target: all of them, and what leaves them out.

    `plan` raises SpecError for a sweep of one point that cannot; `unable` has the reason of each absent backend.
    """
    able: list[SweepSpec] = []
    refused: list[SweepSpec] = []
    reasons: dict[str, list[str]] = {}
    for point in (point for sweep in sweeps for point in single_points(sweep)):
        reason = "; ".join(unable[name] for name in point.backend if name in unable)
        try:
            plan(point)
        except SpecError as error:
            reason = reason or str(error)
        (refused if reason else able).append(point)
        if reason:
            case = _case_text(point.cases[0])
            reasons.setdefault(reason.removeprefix(f"{case} ").removeprefix("with "), []).append(case)
    if not refused:
        return
    lines = [f"{', '.join(dict.fromkeys(cases))}: {reason}" for reason, cases in reasons.items()]
    raise SpecError(
        f"{len(refused)} of {plural(len(refused) + len(able), 'point')} of recipe {recipe.name} cannot run here: "
        f"{'; '.join(lines)}. {_way_out(able, refused)}"
    )


def _way_out(able: Sequence[SweepSpec], refused: Sequence[SweepSpec]) -> str:
    """What to request, so that exactly the points remain that can run."""
    if not able:
        return "Nothing of it is left: replace what cannot run by an option (as --precision, --backend, --cases)"
    flags = []
    for name in ("cases", "precision", "batch_size"):
        usable = {getattr(point, name) for point in able}
        if {getattr(point, name) for point in refused} - usable:
            values = dict.fromkeys(value for point in able for value in getattr(point, name))
            flags.append(f"{flag(name)} {','.join(map(_value_text, values))}")
            refused = [point for point in refused if getattr(point, name) in usable]
    if not refused and flags:
        return f"{' '.join(flags)} leaves out what cannot run; another --backend or --precision departs from the recipe"
    return f"Possible are {_points(able) if len(able) <= NAMED else plural(len(able), 'point')}"


def departures(recipe: Reference, sweeps: Sequence[SweepSpec], target: Target) -> tuple[str, ...]:
    """In what these sweeps, their added baselines apart, differ from the recipe: each difference once."""
    lines: dict[str, None] = {}
    unknown: dict[str, list[str]] = {}
    trainings = (dataclasses.replace(sweep, **ALONE) for sweep in sweeps)
    for run in (run for sweep in trainings for run in expand(sweep, target).runs):
        env = {name: value for name, value in run.env.items() if target.env.get(name) != value}
        nearest = recipe.nearest(run, run.options, env)
        if nearest is None:
            unknown.setdefault(run.workload, []).append(run.case)
        else:
            lines |= {difference.text: None for difference in nearest[1]}
    repeats = {sweep.repeats for sweep in sweeps}
    published = {int(sweep["repeats"]) for sweep in recipe.sweeps if "repeats" in sweep}
    if published and published != repeats:
        lines[f"repeats {', '.join(map(str, repeats))}, not {', '.join(map(str, published))}"] = None
    others = (
        f"{', '.join(dict.fromkeys(cases))} with {workload}, no point of it" for workload, cases in unknown.items()
    )
    return (*others, *lines)
