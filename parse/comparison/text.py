"""A comparison as text for a terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import first_of, plural
from parse.comparison.types import (
    MAX_RUNS,
    ComparedPoint,
    Comparison,
    ComparisonVerdict,
    Difference,
    Reason,
    Side,
    least_runs,
    order_chance,
)
from parse.faults import unread
from parse.text import TableData, TextBlock, markdown_of, markdown_text, number, text_of, unitless

NAME_WIDTH = 40
MAX_LISTED = 10
"""At most this many points of one side are named."""
HEADS = ("verdict", "point", "BASE", "NEW", "unit", "ratio", "interval", "coverage", "runs")
REFERENCE_HEADS = ("verdict", "point", "expected", "measured", *HEADS[4:])


def as_text(comparison: Comparison, width: int) -> str:
    """Verdict first, then differences of environment, then the points; lines of `width` cells where words allow it."""
    blocks: list[TextBlock] = [conclusion(comparison), [*_sides(comparison)]]
    if comparison.differences:
        differences = [difference_text(each) for each in comparison.differences]
        blocks += ["", "differences of environment (BASE → NEW)", differences]
    elif not comparison.is_reference and comparison.points:
        blocks += ["", "no difference of environment is known"]
    if comparison.points:
        blocks += ["", points_table(comparison).shortened(1, min(NAME_WIDTH, width // 2))]
    if notes := [*_notes(comparison)]:
        blocks += ["", notes]
    return text_of(blocks, width)


def as_markdown(comparison: Comparison) -> str:
    """The same in Markdown: a table of differences of environment and one of points."""
    blocks: list[TextBlock] = [[*_sides(comparison)]]
    if comparison.differences:
        rows = [(each.name, *_values(each), _of_points(each)) for each in comparison.differences]
        blocks.append(TableData(heads=unitless(("differs", "BASE", "NEW", "points")), rows=rows))
    blocks += [points_table(comparison)] if comparison.points else []
    return f"**{markdown_text(conclusion(comparison))}**\n\n{markdown_of([*blocks, [*_notes(comparison)]])}"


def points_table(comparison: Comparison) -> TableData:
    """A row per point."""
    heads = unitless(REFERENCE_HEADS if comparison.is_reference else HEADS)
    return TableData(heads=heads, rows=[*map(_row, comparison.points)], label_columns=2, keys=2)


def conclusion(comparison: Comparison) -> str:
    """The result in one line."""
    if not comparison.points:
        return "nothing could be compared: no point is in both"
    counts = [(verdict, len(comparison.with_verdict(verdict))) for verdict in ComparisonVerdict]
    parts = [f"{count} {verdict}" for verdict, count in counts if count]
    return f"{plural(len(comparison.points), 'point')} compared: {', '.join(parts)}"


def difference_text(difference: Difference) -> str:
    """A difference in one line."""
    base, new = _values(difference)
    where = _of_points(difference)
    return f"{difference.name}: {base} → {new}{f' ({where})' if where else ''}"


def point_text(point: ComparedPoint) -> str:
    """The verdict on a point in a sentence, with its figures."""
    if point.reason is not None:
        return f"{point.verdict}: {reason_text(point)}"
    assert point.interval is not None
    return (
        f"{point.verdict}: {number(point.new.median)} against {number(point.base.median)} {point.unit}, ratio "
        f"{point.interval.ratio:.4f} [{point.interval.low:.4f}, {point.interval.high:.4f}] "
        f"({point.interval.coverage:.1%}), threshold {100 * point.threshold:.3g} %"
    )


def reason_text(point: ComparedPoint) -> str:
    """Why a point has no verdict, and how many runs would give one."""
    text = point.reason.value if point.reason else ""
    if point.detail:
        text += f" ({point.detail})"
    if point.reason not in (Reason.SCATTER, Reason.FEW_RUNS):
        return text
    runs = f"{len(point.base.speeds)} and {len(point.new.speeds)}" if point.base.speeds else str(len(point.new.speeds))
    side = "a side " if point.base.speeds else ""
    share = f"{100 * (point.difference or point.threshold):.3g} %"
    text = f"{text}: {runs} here{_order_text(point)}"
    if point.runs_needed is None:
        return f"{text}; more than {MAX_RUNS} runs {side}would be needed to decide a difference of {share}"
    known = "" if len(point.base.speeds) > 1 or len(point.new.speeds) > 1 else "at least "
    return f"{text}; {known}{point.runs_needed} runs {side}would decide a difference of {share} in 9 of 10 cases"


def _order_text(point: ComparedPoint) -> str:
    """`; all 3 new runs are below all 3 old ones (30 % slower), and chance makes such an order in 10 % of the cases: as
    clear an order of 4 a side would decide`; empty where the runs overlap, or there is one a side."""
    base, new = point.base.speeds, point.new.speeds
    chance = order_chance(base, new) if base and new else None
    if chance is None or chance > 0.5 or point.ratio is None:
        return ""
    way, place = ("slower", "below") if point.ratio < 1 else ("faster", "above")
    order = f"all {len(new)} new runs are {place} all {len(base)} old ones ({100 * abs(point.ratio - 1):.3g} % {way})"
    chance_text = f"chance makes such an order in {100 * chance:.3g} % of the cases"
    return f"; {order}, and {chance_text}: as clear an order of {least_runs()} a side would decide"


def _sides(comparison: Comparison) -> Iterator[str]:
    if comparison.is_reference:
        yield f"reference: {comparison.base}"
        yield f"measured: {comparison.new}"
    else:
        yield f"BASE: {comparison.base}"
        yield f"NEW: {comparison.new}"


def _values(difference: Difference) -> tuple[str, str]:
    return " and ".join(difference.base) or "unknown", " and ".join(difference.new) or "unknown"


def _of_points(difference: Difference) -> str:
    return first_of([*difference.points], MAX_LISTED, ", ")


def _row(point: ComparedPoint) -> tuple[str, ...]:
    interval = point.interval
    runs = "/".join(str(len(side.speeds)) for side in (point.base, point.new) if side.speeds) or "-"
    return (
        str(point.verdict), point.name, number(point.base.median), number(point.new.median), point.unit,
        number(point.ratio, decimals=4), "-" if interval is None else f"[{interval.low:.4f}, {interval.high:.4f}]",
        "-" if interval is None else f"{interval.coverage:.1%}", runs,
    )  # fmt: skip


def _notes(comparison: Comparison) -> Iterator[str]:
    for point in comparison.points:
        if point.reason is not None:
            yield f"{point.name}: {reason_text(point)}"
        for title, side in (("BASE", point.base), ("NEW", point.new)):
            if side.outlying:
                yield f"{point.name}: {_outlying(title, side)}"
    if comparison.is_reference:
        for source in dict.fromkeys(point.source for point in comparison.points):
            yield f"expected by {source}"
    base, compared = (
        ("not measured", "not in the reference") if comparison.is_reference else ("only in BASE", "only in NEW")
    )
    for title, names in ((base, comparison.only_base), (compared, comparison.only_new)):
        if names:
            yield f"{title}: {first_of([*names], MAX_LISTED, ', ')}"
    for miss in comparison.near_misses:
        yield f"{miss.new} would be the point {miss.base} of BASE but for {', '.join(miss.settings)} (BASE, NEW)"
    for name in dict.fromkeys(miss.ignorable for miss in comparison.near_misses if miss.ignorable):
        yield f"to compare points that differ in {name} alone: --ignore {name}"
    yield from comparison.remarks
    yield from map(unread, comparison.refusals)


def _outlying(title: str, side: Side) -> str:
    runs = [f"{repeat} ({number(side.speeds[side.repeats.index(repeat)])})" for repeat in side.outlying]
    return f"outlying in {title}, and counted: run {', '.join(runs)}, median {number(side.median)}"
