"""Forecasts and scores as text, in Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from math import expm1, inf
from typing import Any

from hpc.system.sanitize import plain
from hpc.system.text import first_of, grouped, plural
from parse.extrapolation.intervals import DISTANCES, MAX_DEPARTURE, NOMINAL, Fit, departure
from parse.extrapolation.outlook import (
    MAX_HALF,
    MAX_NODE,
    MAX_TIMES,
    ForecastBasis,
    NextSize,
    Open,
    Outlook,
    Range,
    SizeForecast,
    SizeRequest,
)
from parse.extrapolation.score import DistanceScore, Scores
from parse.extrapolation.series import ScalingKind, SizePoint
from parse.text import TableData, TextBlock, json_value, markdown_of, text_of, unitless

SCHEMA, SCHEMA_VERSION = "rankwise-forecast", 1
MAX_LISTED = 10
GROUPS = {
    ScalingKind.WEAK: "weak scaling", ScalingKind.CROSSING: "weak scaling, one size between nodes",
    ScalingKind.INSIDE: "weak scaling inside a node", ScalingKind.STRONG: "strong and mixed scaling",
}  # fmt: skip
BASIS = {
    ForecastBasis.MEASURED: "measured", ForecastBasis.FORECAST: "forecast", ForecastBasis.FEW_FAMILIES: "not proven",
    ForecastBasis.NOT_SCORED: "no interval", ForecastBasis.OPEN: "cannot tell",
}  # fmt: skip
FITS = {Fit.TWO: "two sizes", Fit.SMOOTH: "a smooth series", Fit.ROUGH: "a rough series"}


def as_text(outlooks: Sequence[Outlook], request: SizeRequest, width: int) -> str:
    """A table for each series, and under it what it rests on."""
    return text_of(blocks(outlooks, request), width)


def as_markdown(outlooks: Sequence[Outlook], request: SizeRequest) -> str:
    """The same in Markdown."""
    return markdown_of(blocks(outlooks, request))


def as_json(outlooks: Sequence[Outlook], request: SizeRequest) -> str:
    """All figures; open verdicts by their names, with the sentence."""
    content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **members(outlooks, request)}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def members(outlooks: Sequence[Outlook], request: SizeRequest) -> dict[str, Any]:
    """The same as values."""
    return {
        "work": request.work, "nominal_coverage": NOMINAL,
        "series": [
            {
                "name": plain(each.series.name), "unit": each.series.unit, "used": json_value(each.used),
                "omitted": [*map(plain, each.series.omitted)], "fit": each.fit and each.fit.value,
                "unknowns": each.unknowns, "decided": each.deciding,
                "sizes": [
                    {**json_value(size), "text": plain(open_text(size, each, request)) if size.reason else ""}
                    for size in each.sizes
                ],
                "next_size": json_value(each.next_size) if each.next_size else None,
            }
            for each in outlooks
        ],
    }  # fmt: skip


def blocks(outlooks: Sequence[Outlook], request: SizeRequest) -> list[TextBlock]:
    """A table for each series, and under it what it rests on."""
    parts: list[TextBlock] = []
    for each in outlooks:
        parts += [""] if parts else []
        parts += [f"{each.series.name}, from {_sizes_text(each.used)}", ""]
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
    """What the figures rest on, what cannot be told and why, and what to measure next."""
    texts = grouped((open_text(size, each, request), _size_name(size)) for size in each.sizes if size.reason)
    yield from (f"{', '.join(names)}: cannot tell. {text}" for text, names in texts.items())
    forecasts = [size for size in each.sizes if size.basis not in (ForecastBasis.MEASURED, ForecastBasis.OPEN)]
    if forecasts:
        yield rule_text(each)
        if each.used[-1].nodes is None and each.used[0].devices <= MAX_NODE:
            yield (
                f"nobody says which sizes are inside one node: {each.used[0].name} may be, and is no measure of the "
                "network then; --devices-per-node N leaves such sizes out"
            )
    failed = grouped(
        (", ".join(its.name for its in too_large), _size_name(size))
        for size in forecasts
        if size.devices and (too_large := each.series.failed(size.devices, size.batch))
    )
    for names, beyond in failed.items():
        yield (
            f"{names} ran out of memory: whether {first_of(beyond, MAX_LISTED)} would fit, with as many samples per "
            "device, is not known; the figures are for a run that does"
        )
    for distance in sorted({size.distance for size in forecasts}, key=lambda distance: distance or inf):
        yield score_text(next(size for size in forecasts if size.distance == distance))
    if each.series.base and each.has_figures:
        unit = each.series.unit.removesuffix("/s")
        yield (
            f"efficiency is speed per device against {each.series.base.name}; hours are for {count_text(request.work)} "
            f"{unit}, training alone"
        )
    if each.series.omitted:
        yield f"left out: {first_of(each.series.omitted, MAX_LISTED, '; ')}"
    if unused := [point.name for point in each.series.points if point not in each.used]:
        yield f"not used: {', '.join(unused)}, as they have other devices per node than {each.used[-1].name}"
    if each.series.simulated and forecasts:
        yield f"nodes are simulated ({each.series.simulated}): no network between machines was measured"
    if each.next_size:
        yield next_text(each.next_size)
    elif forecasts and all(size.reason is not Open.TOO_FAR for size in each.sizes):
        yield "worth measuring next: the largest requested size itself; no smaller size would narrow its interval"


def rule_text(each: Outlook) -> str:
    """The rule that the figures come from."""
    known = dataclasses.replace(each.series, points=each.used).merged
    if (group := known.group) is ScalingKind.CROSSING:
        return (
            "time per sample and device = w + c·(1 - 1/nodes), as of a ring over the nodes, c not below 0; one size "
            "tells of the network between nodes, so nothing checks it"
        )
    if group is not ScalingKind.STRONG:
        rule = "time per sample and device = w + c·log₂ devices, fitted to the measured sizes, c not below 0"
    else:
        rule = "time per sample and device = w + f / batch per device + c·log₂ devices, no term below 0"
    if each.deciding < each.unknowns:
        return f"{rule}; {plural(len(known.points), 'size')} for {each.unknowns} unknowns, so c is taken as 0"
    if len(known.points) == each.unknowns:
        return f"{rule}; as many sizes as unknowns, so nothing checks it"
    if (apart := departure(known)) > MAX_DEPARTURE:
        return f"{rule}; they depart from it by {_percent(apart)}, more than it is scored on: its figures are doubtful"
    return rule


def score_text(size: SizeForecast) -> str:
    """How the rule did at this distance on the public series."""
    score, distance = size.score, size.distance
    if distance is not None and (score is None or size.half_width is None):
        return (
            f"up to {distance} × the largest size: no interval, as too few public series have such a forecast to score "
            "it by"
        )
    if distance is None:
        return (
            f"beyond {DISTANCES[-1]} × the largest size there is no interval, as no forecast so far was ever scored: "
            "the figure is the rule's alone"
        )
    assert score is not None and size.half_width is not None
    half = f"interval of {_share(NOMINAL)}: {_half(size.half_width)}"
    proven = ", few families, not proven" if size.basis is ForecastBasis.FEW_FAMILIES else ""
    ours = score.of_forecast
    return (
        f"up to {distance} × the largest size: {half}{proven}; on public series of {_kind(score)} the "
        f"rule erred by {_percent(ours.median)} in the median, p90 {_percent(ours.p90)}, intervals held "
        f"{_coverage(score)} (docs/forecast.md)"
    )


def _coverage(score: DistanceScore) -> str:
    if score.family_coverage is None:
        return "an unknown share"
    number, count = score.families_scored, score.of_forecast.count
    return f"{_share(score.family_coverage)} over {number} {'family' if number == 1 else 'families'}, {count} forecasts"


def next_text(size: NextSize) -> str:
    """What to measure next, and what that would do."""
    name = plural(size.nodes, "node") if size.nodes else plural(size.devices, "device")
    if size.then is None:
        return f"worth measuring next: {name}; without it {size.at} devices cannot be told"
    if size.half_width is None:
        return f"worth measuring next: {name}; then {size.at} devices have an interval, {_half(size.then)}"
    return (
        f"worth measuring next: {name}; if the series stays as smooth, the interval at {size.at} devices becomes "
        f"{_half(size.then)} in place of {_half(size.half_width)}"
    )


def open_text(size: SizeForecast, each: Outlook, request: SizeRequest) -> str:
    """Why the size cannot be told, and what to do; empty where it can be."""
    if size.reason in (Open.RISING, Open.CONTRADICTORY):
        return _wrong_points(size, each)
    largest = size.points[-1].name if size.points else ""
    texts = {
        Open.NO_POINT: "No size of this series has a speed.",
        Open.SINGLE_POINT: f"Only {largest} was measured: one size shows no scaling. Measure another one, better two.",
        Open.INSIDE_NODE: (
            f"Only sizes inside one node were measured ({_names(each.used)}): the network between nodes was not. "
            "Measure 2 and 4 nodes. If the size fits one node, --devices-per-node N says so."
        ),
        Open.INSIDE_SWITCH: (
            f"Sizes up to {largest} are behind one switch of {request.switch_nodes} nodes: the network between "
            "switches was not measured. Measure a size that spans two."
        ),
        Open.UNKNOWN_NODES: (
            f"The largest size, {largest}, may be inside one node, and nobody says. --devices-per-node N says what a "
            "node has."
        ),
        Open.NODES_NEED_DEVICES: (
            "Nobody says how many devices a node has: give --devices-per-node N, or request --devices without "
            "--nodes and --switch-nodes."
        ),
        Open.MIXED_BATCH: (
            "The batch per device differs between sizes, and so does the global batch: the time depends on it. "
            "--global-batch-size N says which one is meant."
        ),
        Open.BATCH_NOT_MEASURED: (
            f"All sizes have {_number(min(each.series.batches, default=0))} samples per device; what a step costs with "
            "another batch was not measured. Measure a size with that batch."
        ),
        Open.BATCH_UNKNOWN: "Its sizes state no batch that --global-batch-size could be compared with: leave it out.",
        Open.BELOW_SAMPLE: "The global batch is below one sample per device at this size.",
        Open.OUT_OF_MEMORY: "This size was tried, and ran out of memory. Try fewer samples per device.",
        Open.TOO_FAR: (
            f"It is more than {MAX_TIMES} times the largest measured size, {largest}: no rule was ever held against a "
            "truth so far away. Measure larger sizes."
        ),
        Open.TOO_WIDE: (
            f"Its interval of {_share(NOMINAL)} would be {'' if size.distance else 'at least '}"
            f"{_half(size.half_width or 0.0)}, and beyond ± {_share(MAX_HALF)} a forecast says nothing. Measure a size "
            "nearer to it, or more sizes."
        ),
        Open.SMALLER: f"Nothing is forecast below the smallest size used, {_names(each.used[:1])}. Measure it.",
    }
    return texts[size.reason] if size.reason else ""


def _wrong_points(size: SizeForecast, each: Outlook) -> str:
    first, second = size.points
    speeds = f"{_number(first.speed)} and {_number(second.speed)} {each.series.unit} per device"
    if size.reason is Open.CONTRADICTORY:
        return f"{first.devices} devices have two speeds, {speeds}. Choose one by --where, or by other files."
    return (
        f"Speed per device rises by {_percent(second.speed / first.speed - 1)} from {first.name} to {second.name} "
        f"({speeds}): one of them is wrong, or they differ in more than size. A rise is not extrapolated. Measure both "
        "again."
    )


def score_blocks(scores: Scores, name: str) -> list[TextBlock]:
    """For weak series, and for strong and mixed ones, the errors of all rules by distance, and how intervals did."""
    blocks: list[TextBlock] = [f"{name}: {scores.series_scored} series scored"]
    for group in ScalingKind:
        if of_kind := [each for each in scores.distances if each.group is group]:
            blocks += ["", errors_table(of_kind), "", coverage_table(of_kind)]
    lines = [
        "errors are shares of the measured speed in %, median / 90th percentile; ×4 is more than 2 and up to 4 times "
        "the largest size that a forecast was given, and all rules were given the same",
        f"intervals are of {_share(NOMINAL)}, made from the public series without the family that is scored",
        "no forecast changed when the speeds that it is scored on were changed",
    ]
    if scores.rising:
        lines.append(
            f"not forecast from sizes where speed per device rises: {first_of(scores.rising, MAX_LISTED, '; ')}"
        )
    if scores.too_short:
        lines.append(
            f"of fewer than three sizes with as many devices per node: {first_of(scores.too_short, MAX_LISTED, '; ')}"
        )
    return [*blocks, "", lines]


def errors_table(scores: Sequence[DistanceScore]) -> TableData:
    """A row per rule, a column per distance: median / p90."""
    heads = ["rule", *(f"×{each.distance}" for each in scores)]
    rows = [
        [rule.rule, *(f"{100 * its.rules[at].median:.2f} / {100 * its.rules[at].p90:.1f}" for its in scores)]
        for at, rule in enumerate(scores[0].rules)
    ]
    return TableData(heads=unitless(heads), rows=rows, caption=f"{_kind(scores[0])}, error", keys=1)


def coverage_table(scores: Sequence[DistanceScore]) -> TableData:
    """How many measured speeds were inside the intervals."""
    figures = (
        ("mean over families", [_share(each.family_coverage) for each in scores]),
        *(
            (f"that, from {name}", [_share(each.fit_coverage.get(fit.value)) for each in scores])
            for fit, name in FITS.items()
            if any(fit.value in each.fit_coverage for each in scores)
        ),
        ("over all forecasts", [_share(each.coverage) for each in scores]),
        ("families", [str(each.families_scored) for each in scores]),
        ("forecasts", [str(each.rules[0].count) for each in scores]),
    )
    return TableData(
        heads=unitless(["inside intervals", *(f"×{each.distance}" for each in scores)]),
        rows=[[name, *values] for name, values in figures], caption=f"{_kind(scores[0])}, intervals", keys=1,
    )  # fmt: skip


def _kind(score: DistanceScore) -> str:
    return GROUPS[score.group]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def scores_as_text(scores: Scores, name: str, width: int) -> str:
    """The scores for a terminal."""
    return text_of(score_blocks(scores, name), width)


def scores_as_markdown(scores: Scores, name: str) -> str:
    """The scores in Markdown."""
    return markdown_of(score_blocks(scores, name))


def scores_as_json(scores: Scores, name: str) -> str:
    """The scores as JSON; errors and coverages as shares."""
    content = {
        "schema": "rankwise-forecast-score", "schema_version": SCHEMA_VERSION, "scored": plain(name),
        "nominal_coverage": NOMINAL, **json_value(scores),
    }  # fmt: skip
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _names(points: Sequence[SizePoint]) -> str:
    return first_of([point.name for point in points], MAX_LISTED)


def _sizes_text(used: Sequence[SizePoint]) -> str:
    return _names(used) or "no size"


def _size_name(size: SizeForecast) -> str:
    return plural(size.nodes, "node") if size.nodes else plural(size.devices or 0, "device")


def range_text(figure: Range | None, factor: float = 1) -> str:
    """`91.8 [82.03, 102.7]`, without an interval the figure alone."""
    if figure is None:
        return "-"
    if figure.low is None or figure.high is None:
        return _number(figure.value * factor)
    return f"{_number(figure.value * factor)} [{_number(figure.low * factor)}, {_number(figure.high * factor)}]"


def _number(value: float) -> str:
    """Four digits; large numbers whole."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def count_text(value: float) -> str:
    return f"{value:,.0f}" if 1 <= value < 1e15 else f"{value:.4g}"


def _half(width: float) -> str:
    """Both ends of an interval of log speed, as shares of the speed."""
    return f"-{100 * -expm1(-width):.1f} to +{100 * expm1(width):.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
