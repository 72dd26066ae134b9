"""What a series will give at sizes that were not measured, how sure that is, and where that cannot be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, expm1, hypot, isclose

from hpc.system.text import grouped
from parse.extrapolation.intervals import (
    DISTANCES,
    MAX_DEPARTURE,
    PROVEN,
    RISE,
    Fit,
    arrays,
    departure,
    distance_of,
    fit_of,
    half_width,
    shipped_misses,
)
from parse.extrapolation.rules import OUR_RULES, terms, unknowns
from parse.extrapolation.score import DistanceScore, shipped_scores
from parse.extrapolation.series import SAME_BATCH, ScalingKind, ScalingSeries, SizePoint, rises
from parse.runs.cost import node_hours_of_work

MAX_NODE = 16
"""Devices of the largest usual node; a size above it spans several."""
MAX_WIDTH = 10.0
"""An interval that is wider, a factor of 22,000 to each side, is none."""
MAX_TIMES = 64
"""Beyond so many times the largest measured size nothing is forecast."""
MAX_HALF = 0.5
"""A forecast whose interval goes further up than this share of it is none."""
CONTRADICTION = 0.05
"""Two speeds of one size that are farther apart, as a share, contradict each other."""


class RequestError(ValueError):
    """What is requested contradicts what was read; the text names the option."""


class Open(Enum):
    """Why a size cannot be told."""

    NO_POINT = "no_point"
    SINGLE_POINT = "single_point"
    INSIDE_NODE = "inside_node"
    INSIDE_SWITCH = "inside_switch"
    UNKNOWN_NODES = "unknown_nodes"
    NODES_NEED_DEVICES = "nodes_need_devices"
    RISING = "rising"
    CONTRADICTORY = "contradictory"
    MIXED_BATCH = "mixed_batch"
    BATCH_NOT_MEASURED = "batch_not_measured"
    BATCH_UNKNOWN = "batch_unknown"
    BELOW_SAMPLE = "below_sample"
    SMALLER = "smaller"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_FAR = "too_far"
    TOO_WIDE = "too_wide"


class ForecastBasis(Enum):
    """Where the figures of a size come from."""

    MEASURED = "measured"
    FORECAST = "forecast"
    FEW_FAMILIES = "few_families"
    NOT_SCORED = "not_scored"
    OPEN = "cannot_tell"


@dataclass(frozen=True, kw_only=True)
class SizeRequest:
    """The requested sizes, in nodes or in devices, and what is known of the machine and the work."""

    nodes: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    work: float = 1e6
    devices_per_node: int | None = None
    switch_nodes: int | None = None
    global_batch: float | None = None


@dataclass(frozen=True, kw_only=True)
class Range:
    """A figure with the ends of its interval; these are None where it has none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class SizeForecast:
    """A requested size. `speed` is of all devices, `efficiency` per device against the base, `hours` node hours (device
    hours where no nodes are known) for the work; `points` the measured ones that an open verdict speaks of.

    `half_width` is that of the interval of log speed; `distance` is None beyond those that were ever scored.
    """

    nodes: int | None
    devices: int | None
    basis: ForecastBasis
    reason: Open | None = None
    points: tuple[SizePoint, ...] = ()
    batch: float | None = None
    speed: Range | None = None
    efficiency: Range | None = None
    hours: Range | None = None
    distance: int | None = None
    half_width: float | None = None
    score: DistanceScore | None = None


@dataclass(frozen=True, kw_only=True)
class NextSize:
    """A size that is worth measuring next: it takes the interval at `at` devices from one half width to another, if
    the series stays as smooth. Both are None where without it nothing can be told."""

    devices: int
    nodes: int | None
    at: int
    half_width: float | None
    then: float | None


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The forecasts of a series. `used` are the sizes that they are made from, with `deciding` of `unknowns` of the
    rule decided by them."""

    series: ScalingSeries
    used: tuple[SizePoint, ...]
    fit: Fit | None
    unknowns: int
    deciding: int
    sizes: tuple[SizeForecast, ...]
    next_size: NextSize | None = None

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
    reason, points = open_series(used)
    known, measured = dataclasses.replace(series, points=used), series
    if reason is None:
        known, measured = known.merged, series.merged
    given = arrays(known) if reason is None else None
    sizes = []
    for nodes, devices in _requested(request, used):
        inside = known.group is ScalingKind.INSIDE and nodes != 1
        lacking = None if devices else Open.INSIDE_NODE if inside else Open.NODES_NEED_DEVICES
        size = SizeForecast(
            nodes=nodes, devices=devices, basis=ForecastBasis.OPEN, reason=reason or lacking, points=points
        )
        if devices is not None:
            size = _measured(measured, size, request) or (_forecast(known, size, request) if given else size)
        sizes.append(size)
    result = Outlook(
        series=series, used=used, fit=fit_of(known) if given else None,
        unknowns=unknowns(*given[:2]) if given else 0, deciding=len(terms(*given[:2])) if given else 0,
        sizes=tuple(sizes),
    )  # fmt: skip
    return dataclasses.replace(result, next_size=_next_size(result, request))


def _with_nodes(series: ScalingSeries, per_node: int | None) -> ScalingSeries:
    """The series with the nodes that follow from so many devices per node, where its input has none."""
    if per_node is None or any(point.nodes for point in series.points):
        return series
    points = tuple(dataclasses.replace(point, nodes=-(-point.devices // per_node)) for point in series.points)
    return dataclasses.replace(series, points=points)


def open_series(used: Sequence[SizePoint]) -> tuple[Open | None, tuple[SizePoint, ...]]:
    """Why nothing can be forecast from these points, and the points that show it."""
    for same in grouped((point.devices, point) for point in used).values():
        slowest, fastest = min(same, key=lambda point: point.speed), max(same, key=lambda point: point.speed)
        apart = fastest.speed / slowest.speed - 1
        if apart > CONTRADICTION + slowest.scatter + fastest.scatter:
            return Open.CONTRADICTORY, (slowest, fastest)
    if len({point.devices for point in used}) < 2:
        return (Open.SINGLE_POINT if used else Open.NO_POINT), tuple(used)
    for smaller, larger in rises(used, RISE):
        return Open.RISING, (smaller, larger)
    return None, ()


def _requested(request: SizeRequest, used: Sequence[SizePoint]) -> list[tuple[int | None, int | None]]:
    """Nodes and devices of each requested size, as far as known."""
    per_node = _per_node(request, used)
    inside = max((point.devices for point in used if point.nodes == 1), default=0)
    by_nodes = [(nodes, nodes * per_node if per_node else None) for nodes in request.nodes]
    by_devices = [
        (-(-devices // per_node) if per_node else 1 if devices <= inside else None, devices)
        for devices in request.devices
    ]
    return [*by_nodes, *by_devices]


def _per_node(request: SizeRequest, used: Sequence[SizePoint]) -> int | None:
    """Devices of a node; None where nobody says them. Sizes of one node may leave devices of it free."""
    largest = max(used, key=lambda point: point.devices, default=None)
    if request.devices_per_node is not None or largest is None or not largest.nodes or largest.nodes == 1:
        return request.devices_per_node
    return largest.devices // largest.nodes


def _measured(series: ScalingSeries, size: SizeForecast, request: SizeRequest) -> SizeForecast | None:
    """The size as it was measured; None where it was not, or its points contradict each other."""
    same = [point for point in series.points if point.devices == size.devices and point.nodes in (None, size.nodes)]
    if len(same) != 1 or (request.global_batch is not None and not _has_batch(same[0], request.global_batch)):
        return None
    (point,) = same
    measured = dataclasses.replace(size, basis=ForecastBasis.MEASURED, reason=None, points=(), batch=point.batch)
    return _with_figures(measured, series, point.speed, point.scatter or None, request)


def _has_batch(point: SizePoint, global_batch: float) -> bool:
    return point.batch is not None and isclose(point.batch * point.devices, global_batch, rel_tol=SAME_BATCH)


def _forecast(series: ScalingSeries, size: SizeForecast, request: SizeRequest) -> SizeForecast:
    """The size by the rule from all sizes of the series, or why it cannot be told."""
    assert size.devices is not None
    batch = _batch(series, size.devices, request)
    reason, points = _open_size(series, size, batch, request)
    distance = distance_of(size.devices, series.points[-1].devices)
    if reason is not None or batch is None:
        return dataclasses.replace(size, reason=reason, points=points)
    time = OUR_RULES[series.group](*arrays(series), size.devices, batch)
    width = _width(series, series.group, fit_of(series), distance)
    least = width if distance else _width(series, series.group, fit_of(series), DISTANCES[-1])
    if least is not None and expm1(least) > MAX_HALF:  # none is narrower than one at a shorter distance
        return dataclasses.replace(
            size, reason=Open.TOO_WIDE, points=(series.points[-1],), distance=distance, half_width=min(least, MAX_WIDTH)
        )
    basis = (
        ForecastBasis.NOT_SCORED
        if width is None
        else ForecastBasis.FORECAST
        if (distance or 0) < PROVEN
        else ForecastBasis.FEW_FAMILIES
    )
    forecast = dataclasses.replace(
        size, basis=basis, reason=None, batch=batch if series.knows_batches else None, distance=distance,
        score=None if distance is None else shipped_scores().at(series.group, distance),
    )  # fmt: skip
    return _with_figures(forecast, series, 1 / time, width, request)


def _width(series: ScalingSeries, group: ScalingKind, fit: Fit, distance: int | None) -> float | None:
    """Half of the interval of log speed: the misses on public series and the scatter of the largest size."""
    if distance is None or departure(series) > MAX_DEPARTURE:
        return None
    half = half_width(shipped_misses(), group=group, fit=fit, distance=distance, without=series.family)
    return None if half is None else hypot(half.width, series.points[-1].scatter)


def _batch(series: ScalingSeries, devices: int, request: SizeRequest) -> float | None:
    """Samples per device at that size; None where neither the series nor the request says it."""
    if request.global_batch is not None and series.knows_batches:
        return request.global_batch / devices
    if series.is_weak:
        return series.batches[0]
    return None if series.total_batch is None else series.total_batch / devices


def _open_size(
    series: ScalingSeries, size: SizeForecast, batch: float | None, request: SizeRequest
) -> tuple[Open | None, tuple[SizePoint, ...]]:
    """Why the rule cannot be used for this size, and the points that show it."""
    used, devices = series.points, size.devices
    assert devices is not None
    largest = used[-1]
    nodes = largest.nodes
    least = min(series.batches)
    size_batch = batch if series.knows_batches else None
    checks = (
        (Open.BATCH_UNKNOWN, request.global_batch is not None and not series.knows_batches),
        (Open.MIXED_BATCH, batch is None),
        (Open.SMALLER, devices < used[0].devices),
        (Open.TOO_FAR, devices > MAX_TIMES * largest.devices),
        (Open.OUT_OF_MEMORY, any(each.devices == devices for each in series.failed(devices, size_batch))),
        (Open.INSIDE_NODE, nodes == 1 and (size.nodes is None or size.nodes > 1)),
        (Open.NODES_NEED_DEVICES, nodes is None and request.switch_nodes is not None),
        (Open.UNKNOWN_NODES, nodes is None and largest.devices <= MAX_NODE and devices > largest.devices),
        (Open.INSIDE_SWITCH, _leaves_switch(nodes, size.nodes, request.switch_nodes)),
        (Open.BATCH_NOT_MEASURED, series.is_weak and not isclose(batch or least, least, rel_tol=SAME_BATCH)),
        (Open.BELOW_SAMPLE, batch is not None and series.knows_batches and batch < 1 - SAME_BATCH <= least),
    )
    return next(((reason, (largest,)) for reason, holds in checks if holds), (None, ()))


def _leaves_switch(measured: int | None, requested: int | None, switch: int | None) -> bool:
    return switch is not None and measured is not None and requested is not None and measured <= switch < requested


def _with_figures(
    size: SizeForecast, series: ScalingSeries, speed: float, width: float | None, request: SizeRequest
) -> SizeForecast:
    """The size with its figures; `width` is half of the interval of log speed."""
    assert size.devices is not None and series.base is not None
    devices = size.devices
    width = None if width is None or width > MAX_WIDTH else width
    low, high = (None, None) if width is None else (speed * exp(-width), speed * exp(width))
    span = Range(value=speed, low=low, high=high)

    def hours(at: float) -> float:
        return node_hours_of_work(size.nodes or devices, at * devices, request.work)

    return dataclasses.replace(
        size,
        half_width=width,
        speed=_scaled(span, size.devices),
        efficiency=_scaled(span, 1 / series.base.speed),
        hours=Range(value=hours(speed), low=high and hours(high), high=low and hours(low)),
    )


def _scaled(span: Range, factor: float) -> Range:
    return Range(
        value=span.value * factor,
        low=None if span.low is None else span.low * factor,
        high=None if span.high is None else span.high * factor,
    )


def _next_size(result: Outlook, request: SizeRequest) -> NextSize | None:
    """The size whose measurement helps the farthest requested one; None where none does."""
    used = result.used
    largest = used[-1].devices if used else 0
    farther = [
        size for size in result.sizes if size.devices is not None and MAX_TIMES * largest >= size.devices > largest > 0
    ]
    if not farther:
        return None
    size = max(farther, key=lambda size: size.devices or 0)
    at, per_node = size.devices or 0, _per_node(request, used)
    double = min(2 * largest, at)
    failed = {each.devices for each in result.series.too_large}
    if size.reason in (Open.SINGLE_POINT, Open.INSIDE_NODE, Open.INSIDE_SWITCH) and double not in failed:
        return _named(double, per_node, at, None, None)
    if size.reason not in (None, Open.TOO_WIDE) or result.fit is None:
        return None
    if size.distance is None:  # the least size from which it has an interval
        double = max(double, -(-at // DISTANCES[-1]))
    fit = Fit.SMOOTH if result.fit is Fit.TWO else result.fit
    series = dataclasses.replace(result.series, points=used)
    group = (
        ScalingKind.WEAK if series.group is ScalingKind.CROSSING else series.group
    )  # with one more size between nodes
    quarter = [-(-at // 4)] if size.reason is Open.TOO_WIDE else []
    candidates = [double, *quarter, *(_third_size(used, per_node or 1) if result.fit is Fit.TWO else ())]
    known = float("inf") if size.half_width is None else size.half_width
    best: NextSize | None = None
    for devices in candidates:
        then = _width(series, group, fit, distance_of(at, max(devices, largest)))
        if devices < at and devices not in failed and then is not None and then < known:
            best, known = _named(devices, per_node, at, size.half_width, then), then
    return best


def _named(devices: int, per_node: int | None, at: int, half: float | None, then: float | None) -> NextSize:
    nodes = -(-devices // per_node) if per_node else None
    return NextSize(
        devices=nodes * per_node if nodes and per_node else devices, nodes=nodes, at=at, half_width=half, then=then
    )


def _third_size(used: Sequence[SizePoint], per_node: int) -> list[int]:
    """A size beside two: between them where there is room, else half of the smaller, in whole nodes."""
    smaller, larger = used[0].devices // per_node, used[-1].devices // per_node
    between = round((smaller * larger) ** 0.5)
    if smaller < between < larger:
        return [between * per_node]
    return [smaller // 2 * per_node] if smaller >= 2 else []
