"""A history as text for a terminal, in Markdown, as JSON and as JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from hpc.system.sanitize import plain
from hpc.system.text import first_of, plural
from parse.comparison.text import JUnitCase, difference_text, junit
from parse.faults import unread
from parse.text import TableData, TextBlock, json_value, markdown_of, markdown_text, number, text_of, unitless
from parse.trend.series import MIN_MEASUREMENTS, DatedChange, History, Sample, Series, Trend

NAME_WIDTH = 40
NO_SAMPLES = "no measurement of it has a speed and a date"
MAX_LISTED = 10
"""At most this many gaps of a point are named."""
LEAST_P_VALUE = 1e-12
"""Smaller ones are not distinguished."""
HEADS = ("latest change", "point", "measurements", "on", "size", "p-value", "latest median", "unit")
SAMPLE_HEADS = ("date", "folder", "median", "interval", "runs", "change")


def as_text(history: History, width: int) -> str:
    """Conclusion, a row per point, every change with what differs at it, then the medians over time."""
    room = min(NAME_WIDTH, width // 2)
    blocks: list[TextBlock] = [conclusion(history), "", points_table(history.series).shortened(1, room)]
    if notes := [*_notes(history)]:
        blocks += ["", notes]
    for series in history.series:
        blocks += ["", f"{series.name}, {series.unit}"]
        blocks.append(samples_table(series).shortened(1, room) if series.samples else NO_SAMPLES)
    return text_of(blocks, width)


def as_markdown(history: History) -> str:
    """The same in Markdown."""
    blocks: list[TextBlock] = [points_table(history.series), [*_notes(history)]]
    for series in history.series:
        blocks += [f"{series.name}, {series.unit}", samples_table(series)] if series.samples else []
    return f"**{markdown_text(conclusion(history))}**\n\n{markdown_of(blocks)}"


def points_table(points: Sequence[Series]) -> TableData:
    """A row per point."""
    return TableData(heads=unitless(HEADS), rows=[*map(_point_row, points)], label_columns=2, keys=2)


def samples_table(series: Series) -> TableData:
    """A row per measurement of a point."""
    rows = [_sample_row(series, sample) for sample in series.samples]
    return TableData(heads=unitless(SAMPLE_HEADS), rows=rows, label_columns=2, keys=2)


def conclusion(history: History) -> str:
    """The result in one line."""
    samples = [sample for series in history.series for sample in series.samples]
    dates = sorted({sample.date for sample in samples})
    span = f", {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    counts = [(verdict, len(history.with_verdict(verdict))) for verdict in Trend]
    parts = [f"{count} {verdict}" for verdict, count in counts if count]
    read = f"{plural(len(history.series), 'point')} over {plural(len(history.folders), 'measurement')}{span}"
    return f"{read}: {', '.join(parts) or 'nothing to compare'}"


def change_text(change: DatedChange, unit: str) -> str:
    """A change in a sentence, with what differs between the measurements on both sides of it."""
    level = change.change
    differences = "; ".join(map(difference_text, change.differences)) or "no difference of environment is known"
    return (
        f"{size_text(change)} at {change.first.folder} ({change.first.date}), from {number(level.before)} to "
        f"{number(level.after)} {unit}, p {p_text(level.p_value)}; since {change.previous.folder} "
        f"({change.previous.date}): {differences}"
    )


def size_text(change: DatedChange) -> str:
    """The size in percent, with its sign."""
    return f"{100 * change.change.size:+.2f} %"


def p_text(p_value: float) -> str:
    """The p-value behind its sign."""
    return f"< {LEAST_P_VALUE:.0e}" if p_value < LEAST_P_VALUE else f"= {p_value:.1e}"


def _point_row(series: Series) -> tuple[str, ...]:
    latest = series.changes[-1] if series.changes else None
    return (
        str(series.verdict), series.name, str(len(series.samples)), latest.first.date if latest else "-",
        size_text(latest) if latest else "-", p_text(latest.change.p_value).removeprefix("= ") if latest else "-",
        number(series.samples[-1].median if series.samples else None), series.unit,
    )  # fmt: skip


def _sample_row(series: Series, sample: Sample) -> tuple[str, ...]:
    change = next((each for each in series.changes if each.first is sample), None)
    interval = sample.interval
    return (
        sample.date, sample.folder, number(sample.median),
        f"[{number(interval.low)}, {number(interval.high)}]" if interval else "-",
        str(len(sample.speeds)), size_text(change) if change else "",
    )  # fmt: skip


def _notes(history: History) -> Iterator[str]:
    for series in history.series:
        for change in reversed(series.changes):
            yield f"{series.name}: {change_text(change, series.unit)}"
        if series.verdict is Trend.TOO_FEW:
            yield (
                f"{series.name}: {plural(len(series.samples), 'measurement')} with a speed and a date; a verdict needs "
                f"{MIN_MEASUREMENTS}"
            )
        if series.gaps:
            gaps = [f"{gap.folder}: {gap.reason}" for gap in series.gaps]
            yield f"{series.name}: left out {first_of(gaps, MAX_LISTED, '; ')}"
    yield from history.remarks
    yield from map(unread, history.refusals)


# A history as JSON.

SCHEMA, SCHEMA_VERSION = "rankwise-history", 2


def as_json(history: History) -> str:
    """Everything, with the speeds of all runs."""
    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "status": history.status,
        "text": plain(conclusion(history)),
        "threshold": history.threshold,
        "measurements_needed": MIN_MEASUREMENTS,
        "folders": history.folders,
        "points": [_series(series) for series in history.series],
        "remarks": history.remarks,
        "refusals": history.refusals,
    }
    return json.dumps(json_value(content), indent=1, allow_nan=False) + "\n"


def _series(series: Series) -> dict[str, Any]:
    return {
        "name": series.name,
        "unit": series.unit,
        "verdict": series.verdict.value,
        "measurements": [_sample(sample) for sample in series.samples],
        "changes": [_change(change, series.unit) for change in series.changes],
        "left_out": [{"folder": gap.folder, "reason": plain(gap.reason)} for gap in series.gaps],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    interval = sample.interval
    return {
        "begin": begin_text(sample),
        "folder": sample.folder,
        "median": sample.median,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "coverage": interval and interval.coverage,
        "speeds": sample.speeds,
    }


def _change(change: DatedChange, unit: str) -> dict[str, Any]:
    level, interval = change.change, change.interval
    return {
        "begin": begin_text(change.first),
        "folder": change.first.folder,
        "previous_folder": change.previous.folder,
        "percent": 100 * level.size,
        "low_percent": interval and 100 * (interval.low - 1),
        "high_percent": interval and 100 * (interval.high - 1),
        "coverage": interval and interval.coverage,
        "before": level.before,
        "after": level.after,
        "p_value": level.p_value,
        "differences": [
            {"name": each.name, "base": each.base, "new": each.new, "text": plain(difference_text(each))}
            for each in change.differences
        ],
        "text": plain(change_text(change, unit)),
    }


def as_junit(history: History, now: datetime) -> str:
    """JUnit XML as continuous integration reads it: a slowdown is a failure, a point without enough measurements is
    skipped."""
    cases = [_case(series) for series in history.series]
    properties = [("measurements", str(len(history.folders))), ("threshold", f"{100 * history.threshold:.3g} %")]
    return junit("rankwise.history", cases, properties, now, conclusion(history), (*history.remarks, *history.refusals))


def _case(series: Series) -> JUnitCase:
    kind = {Trend.SLOWER: "failure", Trend.TOO_FEW: "skipped"}.get(series.verdict, "")
    text = f"{plural(len(series.samples), 'measurement')} with a speed and a date; a verdict needs {MIN_MEASUREMENTS}"
    if series.changes:
        text = change_text(series.changes[-1], series.unit)
    return JUnitCase(name=series.name, kind=kind, type=str(series.verdict), text=text)


def begin_text(sample: Sample) -> str:
    """When its first run began, in UTC."""
    return datetime.fromtimestamp(sample.begin_unix_s, UTC).isoformat()
