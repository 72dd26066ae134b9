"""The forecast rule scored on public series, and the table of interval widths that follows (docs/forecast.md).

    python -m benchmarks.forecast_intervals            # prints errors of the rule and of others, writes the table
    python -m benchmarks.forecast_intervals --check    # ends with 1 if parse/extrapolation/intervals.json differs

Upper sizes of each series of forecast_series.csv are forecast from lower ones alone.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot, inf, isclose, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hpc.system.text import grouped
from parse.extrapolation.rule import (
    DISTANCES,
    NOMINAL,
    SAME_BATCH,
    TABLE,
    Fit,
    Floats,
    ScalingKind,
    ScalingSeries,
    Score,
    SizePoint,
    distance_of,
    fit_of,
    nonnegative,
    rises,
    time_at,
)

SERIES = Path(__file__).with_name("forecast_series.csv")
MIN_OF_FIT, MIN_FAMILIES = 5, 4
"""Misses of fewer families at a distance are too few for an interval of that fit by themselves, or for any."""


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A size of a public series, forecast from its smaller ones: log of measured over forecast speed.

    `scatter` is that of the largest size it was forecast from; `errors` are shares of the measured speed by rule.
    """

    family: str
    series: str
    kind: ScalingKind
    distance: int
    fit: Fit
    scatter: float
    log_ratio: float
    errors: Mapping[str, float]


def public_series() -> dict[str, list[ScalingSeries]]:
    """The series of each family: a document of any version, or a benchmark of MLPerf, whatever its round."""
    with SERIES.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    of_series = grouped(((row["series"], row["kind"]), row) for row in rows)
    return grouped(
        (family_of(parts[0]["source"]), _series(name, kind, parts)) for (name, kind), parts in of_series.items()
    )


def family_of(source: str) -> str:
    """The family of a `repository@commit:path`."""
    repository, _, path = source.partition(":")
    if repository.startswith("mlcommons/training_results_"):
        return f"MLPerf {path.rpartition('/')[2]}"
    return f"{repository.partition('@')[0]}:{path}"


def _series(name: str, kind: str, rows: Sequence[Mapping[str, str]]) -> ScalingSeries:
    points = tuple(
        SizePoint(
            devices=int(row["devices"]), speed=float(row["speed_per_device"]),
            batch=float(row["batch_per_device"]) if row["batch_per_device"] else None,
            nodes=int(row["nodes"]) if row["nodes"] else None,
            scatter=float(row["spread_percent"] or 0) / 200, name=f"{row['devices']}g",
        )
        for row in sorted(rows, key=lambda row: int(row["devices"]))
    )  # fmt: skip
    series = ScalingSeries(name=name, points=points, base=points[0], stated_strong=kind == "strong")
    return series.comparable


def _terms(names: str) -> Callable[[ScalingSeries, int, float], float]:
    def columns(devices: Sequence[int]) -> Floats:
        n = np.array(devices, dtype=float)
        of_name = {"w": np.ones_like(n), "c": np.log2(n), "n": n - 1, "m": n * (n - 1)}
        return np.stack([of_name[name] for name in names], axis=1)

    def rule(series: ScalingSeries, devices: int, batch: float) -> float:
        matrix = columns([point.devices for point in series.points])
        solution = nonnegative(matrix, np.array([1 / point.speed for point in series.points]))
        return float((columns([devices]) @ solution)[0])

    return rule


RULES: Mapping[str, Callable[[ScalingSeries, int, float], float]] = {
    "forecast": time_at,
    "hold": lambda series, devices, batch: 1 / series.points[-1].speed,
    "line in log₂ n": _terms("wc"),
    "Amdahl": _terms("wn"),
    "USL": _terms("wnm"),
}
"""Rules by name, the first that of the forecasts: time per sample and device from a series, a size and its batch."""


def misses(family: str, series: ScalingSeries) -> Iterator[Miss]:
    """Every size that two or more smaller ones forecast: not where these rise or one is there twice, nor with a batch
    per device that differs from the one they all have, which no rule knows the cost of."""
    points, batches = series.points, series.batches
    for count in range(2, len(points)):
        known = dataclasses.replace(series, points=points[:count])
        pairs = combinations(known.points, 2)
        if any(rises(*pair) for pair in pairs) or len({point.devices for point in known.points}) < count:
            return
        kind, between = known.kind, sum(point.nodes != 1 for point in known.points)
        if kind is ScalingKind.WEAK and between < 2:
            continue
        for point, batch in zip(points[count:], batches[count:], strict=True):
            distance = distance_of(point.devices, known.points[-1].devices)
            same = kind is ScalingKind.STRONG or isclose(batch, batches[0], rel_tol=SAME_BATCH)
            if distance is not None and same and point.devices > known.points[-1].devices:
                times = {name: rule(known, point.devices, batch) for name, rule in RULES.items()}
                yield Miss(
                    family=family, series=series.name, kind=kind, distance=distance, fit=fit_of(known),
                    scatter=known.points[-1].scatter, log_ratio=log(times["forecast"] * point.speed),
                    errors={name: abs(1 / (point.speed * time) - 1) for name, time in times.items()},
                )  # fmt: skip


def public_misses() -> list[Miss]:
    """The misses on all public series."""
    return [miss for family, of in public_series().items() for series in of for miss in misses(family, series)]


def half_width(
    pool: Sequence[Miss], *, kind: ScalingKind, fit: Fit, distance: int, without: str = ""
) -> tuple[float, int] | None:
    """Half of an interval as a log of speed, within which NOMINAL of the misses at that distance are, each family
    counted alike, and the number of families that it is from; None where few are known.

    `without` is a family whose misses are left out. Nearer distances count where they are wider, as an interval does
    not get narrower with distance.
    """
    others = [miss for miss in pool if miss.kind is kind and miss.family != without]
    widths = [width for step in DISTANCES if step <= distance and (width := _at(others, fit, step))]
    if len({miss.family for miss in others if miss.distance == distance}) < MIN_FAMILIES or not widths:
        return None
    return max(widths)


def _at(pool: Sequence[Miss], fit: Fit, distance: int) -> tuple[float, int] | None:
    """From the misses of series of that fit; where few families have any, from all misses if that is wider."""
    at = [miss for miss in pool if miss.distance == distance]
    of_fit = _quantile([miss for miss in at if miss.fit is fit])
    if of_fit is not None and of_fit[1] >= MIN_OF_FIT:
        return of_fit
    return max((half for half in (of_fit, _quantile(at)) if half), default=None)


def _quantile(chosen: Sequence[Miss]) -> tuple[float, int] | None:
    by_family = grouped((miss.family, abs(miss.log_ratio)) for miss in chosen)
    if not by_family:
        return None
    weighted = sorted((size, 1 / len(sizes)) for sizes in by_family.values() for size in sizes)
    level = NOMINAL * (len(by_family) + 1)  # the family that is forecast is one more, beyond all of them
    total, width = 0.0, inf
    for size, weight in weighted:
        total, width = total + weight, size
        if total >= level - 1e-9:
            break
    return width, len(by_family)


def table(pool: Sequence[Miss]) -> list[Score]:
    """The score at each distance of each kind, with the half widths of intervals by fit."""
    return [_score(pool, kind, distance) for kind in ScalingKind for distance in DISTANCES]


def _score(pool: Sequence[Miss], kind: ScalingKind, distance: int) -> Score:
    scored = [miss for miss in pool if (miss.kind, miss.distance) == (kind, distance)]
    inside = grouped((miss.family, held) for miss in scored if (held := _is_inside(pool, miss)) is not None)
    errors = [miss.errors["forecast"] for miss in scored]
    halves = {fit.value: half_width(pool, kind=kind, fit=fit, distance=distance) for fit in Fit}
    return Score(
        kind=kind.value, distance=distance, median=float(np.median(errors)), p90=float(np.percentile(errors, 90)),
        held=fmean(fmean(held) for held in inside.values()), family_count=len({miss.family for miss in scored}),
        forecasts=len(scored), half_widths={name: half[0] for name, half in halves.items() if half},
    )  # fmt: skip


def _is_inside(pool: Sequence[Miss], miss: Miss) -> bool | None:
    """Whether the measured speed is inside the interval made without its family; None where there is no interval."""
    half = half_width(pool, kind=miss.kind, fit=miss.fit, distance=miss.distance, without=miss.family)
    return None if half is None else abs(miss.log_ratio) <= hypot(half[0], miss.scatter)


def rounded(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """The rows of the table, six digits of each figure."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: of(each) for name, each in value.items()}
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return [of(dataclasses.asdict(score)) for score in scores]


def main() -> int:
    """Prints the errors by rule; writes the table, or with --check compares it. Returns 1 if that differs."""
    pool = public_misses()
    for kind in ScalingKind:
        for distance in DISTANCES:
            at = [miss for miss in pool if (miss.kind, miss.distance) == (kind, distance)]
            shown = "  ".join(
                f"{name} {100 * np.median(errors):.2f} / {100 * np.percentile(errors, 90):.1f}"
                for name in RULES
                if (errors := [miss.errors[name] for miss in at])
            )
            print(f"{kind.value} ×{distance}, median / p90 of the error in %, {len(at)} forecasts: {shown}")
    text = json.dumps(rounded(table(pool)), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        return int(TABLE.read_text("utf-8") != text)
    TABLE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
