"""A history as JSON, and as CSV with a row for each measurement of a point."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hpc.system.sanitize import plain
from parse.comparison.text import difference_text
from parse.text import csv_text
from parse.trend.text import change_text, conclusion
from parse.trend.types import MIN_MEASUREMENTS, DatedChange, History, Sample, Series

SCHEMA, SCHEMA_VERSION = "rankwise-history", 1
COLUMNS = (
    "point", "unit", "begin", "folder", "median", "low", "high", "coverage", "runs", "change_percent", "p_value",
    "verdict",
)  # fmt: skip


def as_json(history: History) -> str:
    """Everything, with the speeds of all runs."""
    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "status": history.status,
        "text": plain(conclusion(history)),
        "metric": "speed",
        "threshold": history.threshold,
        "measurements_needed": MIN_MEASUREMENTS,
        "folders": history.folders,
        "points": [_series(series) for series in history.series],
        "remarks": history.remarks,
        "refusals": history.refusals,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


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
        "median": _rounded(sample.median),
        "low": interval and _rounded(interval.low),
        "high": interval and _rounded(interval.high),
        "coverage": interval and _rounded(interval.coverage),
        "speeds": [_rounded(speed) for speed in sample.speeds],
    }


def _change(change: DatedChange, unit: str) -> dict[str, Any]:
    level, interval = change.change, change.interval
    return {
        "begin": begin_text(change.first),
        "folder": change.first.folder,
        "previous_folder": change.previous.folder,
        "percent": _rounded(100 * level.size),
        "low_percent": interval and _rounded(100 * (interval.low - 1)),
        "high_percent": interval and _rounded(100 * (interval.high - 1)),
        "coverage": interval and _rounded(interval.coverage),
        "before": _rounded(level.before),
        "after": _rounded(level.after),
        "p_value": _rounded(level.p_value),
        "differences": [
            {"name": each.name, "base": each.base, "new": each.new, "text": plain(difference_text(each))}
            for each in change.differences
        ],
        "text": plain(change_text(change, unit)),
    }


def as_csv(history: History) -> str:
    """A row for each measurement of each point, in order of time; the verdict is that of the point."""
    rows: list[tuple[object, ...]] = [COLUMNS]
    for series in history.series:
        changes = {change.first: change.change for change in series.changes}
        for sample in series.samples:
            change, interval = changes.get(sample), sample.interval
            rows.append(
                (
                    series.name, series.unit, begin_text(sample), sample.folder, _rounded(sample.median),
                    *((_rounded(interval.low), _rounded(interval.high), _rounded(interval.coverage)) if interval
                      else ("", "", "")),
                    len(sample.speeds),
                    *((_rounded(100 * change.size), _rounded(change.p_value)) if change else ("", "")),
                    series.verdict.value,
                )
            )  # fmt: skip
    return csv_text(rows)


def begin_text(sample: Sample) -> str:
    """When its first run began, in UTC."""
    return datetime.fromtimestamp(sample.begin_unix_s, UTC).isoformat()


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")
