"""The score of rules: upper sizes of series forecast from lower ones, every rule on the same sizes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import hypot, log
from statistics import fmean

import numpy as np

from hpc.system.text import grouped
from parse.extrapolation.intervals import (
    RISE,
    Fit,
    Miss,
    Trial,
    arrays,
    fit_of,
    half_width,
    shipped_misses,
    trials,
)
from parse.extrapolation.rules import OUR_RULE, OUR_RULES, RIVALS, SizeRule
from parse.extrapolation.series import ScalingKind, ScalingSeries, rises, shipped_series

TimeForecaster = Callable[[ScalingSeries, int, int], float]
"""From a series, how many of its points may be used, and the point to forecast: its time. It may use what is known
before the run of that point, its devices and batch, and not its speed."""
CHANGED = 3.0
"""By which speeds are multiplied that no forecast may know."""


class LeakError(ValueError):
    """A forecast changed with the speeds that it is scored on; the text names the rule and the series."""


@dataclass(frozen=True, kw_only=True)
class RuleScore:
    """How far a rule's speeds are from the measured ones, as shares of these, over `count` forecasts."""

    rule: str
    median: float
    p90: float
    count: int


@dataclass(frozen=True, kw_only=True)
class DistanceScore:
    """The scores at one distance of one group of series.

    `coverage` is the share of measured speeds inside the intervals, `family_coverage` the mean over the families of
    that share, `fit_coverage` the same of forecasts from series of each fit; every interval is made without the family
    that it is for. None, and empty, at distances without an interval.
    """

    group: ScalingKind
    distance: int
    rules: tuple[RuleScore, ...]
    coverage: float | None
    family_coverage: float | None
    fit_coverage: Mapping[str, float]
    families_scored: int

    @property
    def of_forecast(self) -> RuleScore:
        return next(each for each in self.rules if each.rule == OUR_RULE)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The score of all rules. `rising` are series of which sizes were not forecast because they rise per device,
    `too_short` those with fewer than three sizes of as
    many devices per node."""

    distances: tuple[DistanceScore, ...]
    series_scored: int
    rising: tuple[str, ...]
    too_short: tuple[str, ...]

    def at(self, group: ScalingKind, distance: int) -> DistanceScore | None:
        """The scores at that distance; None where nothing was forecast so far."""
        return next((each for each in self.distances if (each.group, each.distance) == (group, distance)), None)


def forecaster(rule_of: Callable[[ScalingKind], SizeRule]) -> TimeForecaster:
    """The rule of a group, given the lower points alone."""

    def forecast(series: ScalingSeries, count: int, at: int) -> float:
        known = series.first(count)
        return rule_of(known.group)(*arrays(known), series.points[at].devices, series.batches[at])

    return forecast


FORECASTERS: Mapping[str, TimeForecaster] = {
    OUR_RULE: forecaster(OUR_RULES.__getitem__),
    **{name: forecaster(dict.fromkeys(ScalingKind, rule).__getitem__) for name, rule in RIVALS.items()},
}
"""All rules by name; the first is that of the forecasts."""


@lru_cache(1)
def shipped_scores() -> Scores:
    """The scores of the forecasts on the public series that come with the project, without rivals."""
    return score(shipped_series(), {OUR_RULE: FORECASTERS[OUR_RULE]})


def score(
    scored: Sequence[ScalingSeries],
    forecasters: Mapping[str, TimeForecaster] = FORECASTERS,
    pool: Sequence[Miss] | None = None,
) -> Scores:
    """Forecasts every size of the series from all lower ones, for every number of these from two on.

    Intervals are made from `pool`, by default the misses on the public series, without those of the series' family.
    Raises LeakError where a forecast changes with the speeds that it is scored on.
    """
    errors: dict[tuple[ScalingKind, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    inside: dict[tuple[ScalingKind, int], list[tuple[str, Fit, bool]]] = defaultdict(list)
    of_families: dict[tuple[ScalingKind, int], set[str]] = defaultdict(set)
    rising: dict[str, None] = {}
    series_scored: set[str] = set()
    pool = shipped_misses() if pool is None else pool
    for whole in scored:
        series = dataclasses.replace(whole, points=whole.comparable)
        points = series.points
        if any(rises(points[:-1], RISE)):
            rising[series.name] = None
        for trial in trials(series):
            key = series.first(trial.count).group, trial.distance
            series_scored.add(series.name)
            of_families[key].add(series.family)
            for name, forecast in forecasters.items():
                time = without_leak(name, forecast, series, trial.count, trial.at)
                errors[key][name].append(abs(points[trial.at].time / time - 1))
            if (covered := _covered(series, trial, key[0], forecasters, pool)) is not None:
                inside[key].append((series.family, fit_of(series.first(trial.count)), covered))
    return Scores(
        distances=tuple(
            _distance_score(key, errors[key], inside[key], len(of_families[key]))
            for key in sorted(errors, key=lambda key: ([*ScalingKind].index(key[0]), key[1]))
        ),
        series_scored=len(series_scored),
        rising=tuple(rising),
        too_short=tuple(series.name for series in scored if len(series.comparable) < 3),
    )


def without_leak(name: str, forecast: TimeForecaster, series: ScalingSeries, count: int, at: int) -> float:
    """The forecast. Raises LeakError where it is another once the speeds from `count` on are changed."""
    time = forecast(series, count, at)
    changed = tuple(
        dataclasses.replace(point, speed=point.speed * CHANGED) if place >= count else point
        for place, point in enumerate(series.points)
    )
    if forecast(dataclasses.replace(series, points=changed), count, at) != time:
        raise LeakError(
            f"{name}: its forecast of {series.points[at].devices} devices of {series.name} changes with the speeds "
            f"that it is scored on"
        )
    return time


def _covered(
    series: ScalingSeries,
    trial: Trial,
    group: ScalingKind,
    forecasters: Mapping[str, TimeForecaster],
    pool: Sequence[Miss],
) -> bool | None:
    """Whether the measured speed is inside the interval of the forecast; None where there is no interval."""
    if OUR_RULE not in forecasters:
        return None
    known = series.first(trial.count)
    half = half_width(pool, group=group, fit=fit_of(known), distance=trial.distance, without=series.family)
    if half is None:
        return None
    miss = log(forecasters[OUR_RULE](series, trial.count, trial.at) / series.points[trial.at].time)
    return abs(miss) <= hypot(half.width, known.points[-1].scatter)


def _distance_score(
    key: tuple[ScalingKind, int],
    errors: Mapping[str, Sequence[float]],
    inside: Sequence[tuple[str, Fit, bool]],
    number: int,
) -> DistanceScore:
    of_fits = grouped((fit, (family, covered)) for family, fit, covered in inside)
    return DistanceScore(
        group=key[0],
        distance=key[1],
        rules=tuple(
            RuleScore(
                rule=name, median=float(np.median(values)), p90=float(np.percentile(values, 90)), count=len(values)
            )
            for name, values in errors.items()
        ),
        coverage=fmean(covered for *_, covered in inside) if inside else None,
        family_coverage=_over_families((family, covered) for family, _, covered in inside) if inside else None,
        fit_coverage={fit.value: _over_families(of_fits[fit]) for fit in Fit if fit in of_fits},
        families_scored=number,
    )


def _over_families(covered: Iterable[tuple[str, bool]]) -> float:
    """The mean over the families of the share that is covered."""
    return fmean(fmean(shares) for shares in grouped(covered).values())
