"""Forecasts as text, in Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import expm1

from hpc.system.sanitize import plain
from hpc.system.text import first_of, grouped, plural
from parse.extrapolation.outlook import (
    MAX_DEPARTURE,
    MAX_HALF,
    MAX_NODE,
    MAX_TIMES,
    ForecastBasis,
    Outlook,
    Range,
    SizeForecast,
    SizeRequest,
)
from parse.extrapolation.rule import DISTANCES, NOMINAL, Fit, Refusal, ScalingKind, SizePoint
from parse.text import TableData, TextBlock, json_value, markdown_of, text_of

SCHEMA, SCHEMA_VERSION = "rankwise-forecast", 2
MAX_LISTED = 10
KINDS = {ScalingKind.WEAK: "weak scaling", ScalingKind.STRONG: "strong and mixed scaling"}
RULES = {
    ScalingKind.WEAK: "w + c·log₂ devices, c not below 0",
    ScalingKind.STRONG: "w + f / batch per device + c·log₂ devices, no term below 0",
}
BASIS = {
    ForecastBasis.MEASURED: "measured", ForecastBasis.FORECAST: "forecast",
    ForecastBasis.NOT_SCORED: "no interval", ForecastBasis.REFUSED: "cannot tell",
}  # fmt: skip


def as_text(outlooks: Sequence[Outlook], request: SizeRequest, width: int) -> str:
    """A table for each series, and under it what it rests on."""
    return text_of(blocks(outlooks, request), width)


def as_markdown(outlooks: Sequence[Outlook], request: SizeRequest) -> str:
    """The same in Markdown."""
    return markdown_of(blocks(outlooks, request))


def as_json(outlooks: Sequence[Outlook], request: SizeRequest) -> str:
    """All figures; refusals by their names, with the sentence."""
    content = {
        "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "work": request.work, "nominal_coverage": NOMINAL,
        "series": [
            {
                "name": plain(each.series.name), "unit": each.series.unit, "used": json_value(each.used.points),
                "omitted": [*map(plain, each.series.omitted)], "fit": each.fit and each.fit.value,
                "sizes": [{**json_value(size), "text": plain(refusal_text(size, each))} for size in each.sizes],
            }
            for each in outlooks
        ],
    }  # fmt: skip
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def blocks(outlooks: Sequence[Outlook], request: SizeRequest) -> list[TextBlock]:
    """A table for each series, and under it what it rests on."""
    parts: list[TextBlock] = []
    for each in outlooks:
        parts += [""] if parts else []
        parts += [f"{each.series.name}, from {_names(each.used.points) or 'no size'}", ""]
        parts += [table(each), "", [*notes(each, request)]]
    return parts


def table(each: Outlook) -> TableData:
    """A row for each requested size."""
    known = all(size.nodes for size in each.sizes if size.hours)
    heads = [("nodes", ""), ("devices", ""), ("speed", each.series.unit), ("efficiency", "%"),
             ("node hours" if known else "device hours", ""), ("basis", "")]  # fmt: skip
    rows = [
        [
            str(size.nodes or "-"), str(size.devices or "-"), range_text(size.speed), range_text(size.efficiency, 100),
            range_text(size.hours), BASIS[size.basis],
        ]
        for size in each.sizes
    ]  # fmt: skip
    return TableData(heads=heads, rows=rows, label_columns=0, keys=2)


def notes(each: Outlook, request: SizeRequest) -> Iterator[str]:
    """What the figures rest on, and what cannot be told and why."""
    texts = grouped((refusal_text(size, each), _size_name(size)) for size in each.sizes if size.reason)
    yield from (f"{', '.join(names)}: cannot tell. {text}" for text, names in texts.items())
    used = each.used.points
    forecasts = [size for size in each.sizes if size.basis not in (ForecastBasis.MEASURED, ForecastBasis.REFUSED)]
    if forecasts:
        checked = "; nothing checks two sizes" if each.fit is Fit.TWO else ""
        yield f"time per sample and device = {RULES[each.used.kind]}, fitted to the measured sizes{checked}"
        if used[-1].nodes is None and used[0].devices <= MAX_NODE:
            yield (
                f"no input says which sizes are inside one node: {used[0].name} may be, and is no measure of the "
                "network then; --devices-per-node N leaves such sizes out"
            )
    yield from dict.fromkeys(score_text(size) for size in forecasts)
    if each.series.base and each.has_figures:
        unit = each.series.unit.removesuffix("/s")
        yield (
            f"efficiency is speed per device against {each.series.base.name}; hours are for {count_text(request.work)} "
            f"{unit}, training alone"
        )
    tried = min(each.series.out_of_memory, default=None)
    if tried is not None and any(size.devices and size.devices > tried for size in forecasts):
        yield "a smaller size ran out of memory: whether larger ones fit is not known"
    if each.series.omitted:
        yield f"left out: {first_of(each.series.omitted, MAX_LISTED, '; ')}"
    if unused := [point.name for point in each.series.points if point not in each.series.comparable.points]:
        yield f"not used: {', '.join(unused)}, as they have other devices per node than {used[-1].name}"
    if each.series.simulated and forecasts:
        yield f"nodes are simulated ({each.series.simulated}): no network between machines was measured"


def score_text(size: SizeForecast) -> str:
    """How the rule did at this distance on the public series."""
    if (score := size.score) is None or size.half_width is None:
        return (
            f"beyond {DISTANCES[-1]} × the largest size there is no interval, as no forecast so far was ever scored: "
            "the figure is the rule's alone"
        )
    return (
        f"up to {score.distance} × the largest size: interval of {_share(NOMINAL)}: {_half(size.half_width)}; on "
        f"public series of {KINDS[ScalingKind(score.kind)]} the rule erred by {_percent(score.median)} in the median, "
        f"p90 {_percent(score.p90)}, intervals held {_share(score.held)} over {score.family_count} families, "
        f"{score.forecasts} forecasts (docs/forecast.md)"
    )


def refusal_text(size: SizeForecast, each: Outlook) -> str:
    """Why the size cannot be told, and what to do; empty where it can be."""
    if size.reason in (Refusal.RISING, Refusal.CONTRADICTORY):
        return _wrong_points(size, each)
    if size.reason is Refusal.FEW_SIZES and not each.used.points:
        return "No size of this series has a speed."
    largest = size.points[-1].name if size.points else ""
    texts = {
        Refusal.FEW_SIZES: (
            f"Only {_names(each.used.points)} was measured: two sizes with as many devices per node are "
            "needed. Measure another one, better two."
        ),
        Refusal.INSIDE_NODE: (
            f"The network between nodes was not measured{' at two sizes' * (each.used.kind is ScalingKind.WEAK)} "
            f"({_names(each.used.points)}). Measure 2 and 4 nodes."
            f"{'' if all(point.nodes for point in each.used.points) else ' --devices-per-node N says the nodes.'}"
        ),
        Refusal.UNKNOWN_NODES: (
            "No input says how many devices a node has, and so which sizes are inside one node. --devices-per-node N "
            "says it."
        ),
        Refusal.OUT_OF_MEMORY: "This size was tried, and ran out of memory. Try fewer samples per device.",
        Refusal.BELOW_SAMPLE: "The global batch is below one sample per device at this size.",
        Refusal.DEPARTS: (
            f"The measured sizes depart from the rule's fit by more than {_share(MAX_DEPARTURE)}: it does not describe "
            "them. Measure them again, or more of them."
        ),
        Refusal.TOO_FAR: (
            f"It is more than {MAX_TIMES} times the largest measured size, {largest}: no rule was ever held against a "
            "truth so far away. Measure larger sizes."
        ),
        Refusal.TOO_WIDE: (
            f"Its interval of {_share(NOMINAL)} would be {'' if size.score else 'at least '}"
            f"{_half(size.half_width or 0.0)}, and beyond ± {_share(MAX_HALF)} a forecast says nothing. Measure a size "
            "nearer to it."
        ),
        Refusal.SMALLER: (
            f"Nothing is forecast below the smallest size used, {_names(each.used.points[:1])}. Measure it."
        ),
    }
    return texts[size.reason] if size.reason else ""


def _wrong_points(size: SizeForecast, each: Outlook) -> str:
    first, second = size.points
    speeds = f"{short_number(first.speed)} and {short_number(second.speed)} {each.series.unit} per device"
    if size.reason is Refusal.CONTRADICTORY:
        return f"{first.devices} devices have two speeds, {speeds}. Choose one by --where, or by other files."
    return (
        f"Speed per device rises by {_percent(second.speed / first.speed - 1)} from {first.name} to {second.name} "
        f"({speeds}): one of them is wrong, or they differ in more than size. A rise is not extrapolated. Measure both "
        "again."
    )


def _names(points: Sequence[SizePoint]) -> str:
    return first_of([point.name for point in points], MAX_LISTED)


def _size_name(size: SizeForecast) -> str:
    return plural(size.nodes, "node") if size.nodes else plural(size.devices or 0, "device")


def range_text(figure: Range | None, factor: float = 1) -> str:
    """`91.8 [82.03, 102.7]`, without an interval the figure alone."""
    if figure is None:
        return "-"
    if figure.low is None or figure.high is None:
        return short_number(figure.value * factor)
    value, low, high = (short_number(each * factor) for each in (figure.value, figure.low, figure.high))
    return f"{value} [{low}, {high}]"


def short_number(value: float) -> str:
    """Four digits; large numbers whole."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def count_text(value: float) -> str:
    return f"{value:,.0f}" if 1 <= value < 1e15 else f"{value:.4g}"


def _half(width: float) -> str:
    """Both ends of an interval of log speed, as shares of the speed."""
    return f"-{100 * -expm1(-width):.1f} to +{100 * expm1(width):.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"
