"""What a series will give at sizes that were not measured, how sure that is, and where that cannot be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, expm1, hypot

from parse.extrapolation.rule import (
    DISTANCES,
    SAME_BATCH,
    Fit,
    Refusal,
    ScalingKind,
    ScalingSeries,
    Score,
    SizePoint,
    departure,
    distance_of,
    fit_of,
    scores,
    time_at,
)
from parse.runs.cost import node_hours_of_work

MAX_NODE = 16
"""Devices of the largest usual node; a size above it spans several."""
MAX_DEPARTURE = 0.25
"""Sizes that depart farther from the fit are not forecast from: of 175 public series one does (0.33)."""
MAX_TIMES = 64
"""Beyond so many times the largest measured size nothing is forecast."""
MAX_HALF = 0.5
"""A forecast whose interval goes further up than this share of it is none."""


class RequestError(ValueError):
    """What is requested contradicts what was read; the text names the option."""


class ForecastBasis(Enum):
    """Where the figures of a size come from."""

    MEASURED = "measured"
    FORECAST = "forecast"
    NOT_SCORED = "not_scored"
    """The rule's figure alone: so far away no forecast was ever scored."""
    REFUSED = "cannot_tell"


@dataclass(frozen=True, kw_only=True)
class SizeRequest:
    """The requested sizes, in nodes or in devices, and what is known of the machine and the work."""

    nodes: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    work: float = 1e6
    devices_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Range:
    """A figure with the ends of its interval; these are None where it has none."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Range:
        """The figure and its ends multiplied."""
        ends = [None if end is None else end * factor for end in (self.low, self.high)]
        return Range(value=self.value * factor, low=ends[0], high=ends[1])


@dataclass(frozen=True, kw_only=True)
class SizeForecast:
    """A requested size. `speed` is of all devices, `efficiency` per device against the base, `hours` node hours (device
    hours where no nodes are known) for the work; `points` the measured ones that a refusal speaks of.

    `half_width` is that of the interval of log speed; `score` is None beyond the distances that were ever scored.
    """

    nodes: int | None
    devices: int | None
    basis: ForecastBasis = ForecastBasis.REFUSED
    reason: Refusal | None = None
    points: tuple[SizePoint, ...] = ()
    speed: Range | None = None
    efficiency: Range | None = None
    hours: Range | None = None
    half_width: float | None = None
    score: Score | None = None


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The forecasts of a series, from the points of `used`; `fit` is None where nothing can be forecast."""

    series: ScalingSeries
    used: ScalingSeries
    fit: Fit | None
    sizes: tuple[SizeForecast, ...]

    @property
    def has_figures(self) -> bool:
        return any(size.speed is not None for size in self.sizes)


def outlooks(series: Sequence[ScalingSeries], request: SizeRequest) -> list[Outlook]:
    """Forecasts of each series. Raises RequestError where devices per node are given, and a series states its nodes."""
    if request.devices_per_node is not None:
        for each in series:
            if any((point.nodes or 0) > 1 for point in each.points):
                raise RequestError(
                    f"--devices-per-node: only where no input says it; {each.name} has sizes of several nodes"
                )
    return [outlook(each, request) for each in series]


def outlook(series: ScalingSeries, request: SizeRequest) -> Outlook:
    """Forecasts of the requested sizes, from the sizes of as many devices per node as the largest has."""
    series = _with_nodes(series, request.devices_per_node)
    used = series.comparable
    reason, points = used.contradiction
    if reason is None:
        between = sum(point.nodes != 1 for point in used.points)
        if between < (2 if used.kind is ScalingKind.WEAK else 1):
            reason = Refusal.INSIDE_NODE
        elif departure(used) > MAX_DEPARTURE:
            reason = Refusal.DEPARTS
    sizes = []
    for nodes, devices in _requested(request, used):
        size = SizeForecast(nodes=nodes, devices=devices, reason=reason, points=points)
        if devices is None:
            size = dataclasses.replace(size, reason=reason or Refusal.UNKNOWN_NODES)
        else:
            size = _measured(series, size, request) or (_forecast(used, size, request) if reason is None else size)
        sizes.append(size)
    return Outlook(series=series, used=used, fit=fit_of(used) if reason is None else None, sizes=tuple(sizes))


def _with_nodes(series: ScalingSeries, per_node: int | None) -> ScalingSeries:
    """The series with the nodes that follow from so many devices per node, where its input has none."""
    if per_node is None or any(point.nodes for point in series.points):
        return series
    points = tuple(dataclasses.replace(point, nodes=-(-point.devices // per_node)) for point in series.points)
    return dataclasses.replace(series, points=points)


def _requested(request: SizeRequest, used: ScalingSeries) -> list[tuple[int | None, int | None]]:
    """Nodes and devices of each requested size, as far as known; sizes of one node may leave devices of it free."""
    per_node, largest = request.devices_per_node, max(used.points, key=lambda point: point.devices, default=None)
    if per_node is None and largest is not None and largest.nodes and largest.nodes > 1:
        per_node = largest.devices // largest.nodes
    inside = max((point.devices for point in used.points if point.nodes == 1), default=0)
    by_nodes = [(nodes, nodes * per_node if per_node else None) for nodes in request.nodes]
    by_devices = [
        (-(-devices // per_node) if per_node else 1 if devices <= inside else None, devices)
        for devices in request.devices
    ]
    return [*by_nodes, *by_devices]


def _measured(series: ScalingSeries, size: SizeForecast, request: SizeRequest) -> SizeForecast | None:
    """The size as it was measured; None where it was not, or its points contradict each other."""
    same = [point for point in series.points if point.devices == size.devices and point.nodes in (None, size.nodes)]
    if len(same) != 1:
        return None
    measured = dataclasses.replace(size, basis=ForecastBasis.MEASURED, reason=None, points=())
    return _with_figures(measured, series, same[0].speed, same[0].scatter or None, request)


def _forecast(series: ScalingSeries, size: SizeForecast, request: SizeRequest) -> SizeForecast:
    """The size by the rule from all sizes of the series, or why it cannot be told."""
    assert size.devices is not None
    largest, batch = series.points[-1], series.batch_at(size.devices)
    reason = _refusal(series, size.devices, batch)
    if reason is not None:
        return dataclasses.replace(size, reason=reason, points=(largest,))
    distance = distance_of(size.devices, largest.devices)
    score = scores()[series.kind, distance or DISTANCES[-1]]
    width = hypot(score.half_widths[fit_of(series).value], largest.scatter)
    score_there = score if distance else None
    if expm1(width) > MAX_HALF:  # no interval is narrower than one at a shorter distance
        return dataclasses.replace(
            size, reason=Refusal.TOO_WIDE, points=(largest,), half_width=width, score=score_there
        )
    basis = ForecastBasis.FORECAST if distance else ForecastBasis.NOT_SCORED
    speed = 1 / time_at(series, size.devices, batch)
    forecast = dataclasses.replace(size, basis=basis, score=score_there)
    return _with_figures(forecast, series, speed, width if distance else None, request)


def _refusal(series: ScalingSeries, devices: int, batch: float) -> Refusal | None:
    """Why the rule cannot be used for this size."""
    smallest, largest = series.points[0], series.points[-1]
    knows_batches = all(point.batch is not None for point in series.points)
    checks = (
        (Refusal.OUT_OF_MEMORY, devices in series.out_of_memory),
        (Refusal.SMALLER, devices < smallest.devices),
        (Refusal.TOO_FAR, devices > MAX_TIMES * largest.devices),
        (Refusal.UNKNOWN_NODES, largest.nodes is None and largest.devices <= MAX_NODE and devices > largest.devices),
        (Refusal.BELOW_SAMPLE, knows_batches and batch < 1 - SAME_BATCH <= min(series.batches)),
    )
    return next((reason for reason, holds in checks if holds), None)


def _with_figures(
    size: SizeForecast, series: ScalingSeries, speed: float, width: float | None, request: SizeRequest
) -> SizeForecast:
    """The size with its figures from the speed per device; `width` is half of the interval of log speed."""
    assert size.devices is not None and series.base is not None
    units, devices = size.nodes or size.devices, size.devices
    low, high = (None, None) if width is None else (speed * exp(-width), speed * exp(width))
    span = Range(value=speed, low=low, high=high)

    def hours(at: float) -> float:
        return node_hours_of_work(units, at * devices, request.work)

    return dataclasses.replace(
        size,
        half_width=width,
        speed=span.times(devices),
        efficiency=span.times(1 / series.base.speed),
        hours=Range(value=hours(speed), low=high and hours(high), high=low and hours(low)),
    )
