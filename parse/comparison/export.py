"""A comparison as JSON, as OpenMetrics text, and as JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from hpc.model.findings import Finding
from hpc.system.sanitize import plain
from parse.comparison.text import conclusion, difference_text, point_text, reason_text
from parse.comparison.types import ComparedPoint, Comparison, ComparisonVerdict
from parse.text import json_value

SCHEMA, SCHEMA_VERSION = "rankwise-comparison", 1
PREFIX = "rankwise_compare"
UNIT_NAMES = {"samples/s": "samples_per_second", "tokens/s": "tokens_per_second"}
"""Units as names of metrics have them."""


def as_json(comparison: Comparison) -> str:
    """Everything, with the speeds of all runs; numbers that are not finite are null."""
    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "status": comparison.status,
        **json_value(comparison),
    }
    content["points"] = [
        {**json_value(point), "reason": point.reason and point.reason.name.lower(), "text": plain(reason_text(point))}
        for point in comparison.points
    ]
    content["differences"] = [
        {**json_value(each), "text": plain(difference_text(each))} for each in comparison.differences
    ]
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def as_openmetrics(comparison: Comparison) -> str:
    """Gauges of every point in the text format of OpenMetrics 1.0; figures that are not known are absent."""
    lines = [*_speeds(comparison), *_ratios(comparison), *_verdicts(comparison), *_runs_needed(comparison)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _speeds(comparison: Comparison) -> Iterator[str]:
    for unit, unit_name in UNIT_NAMES.items():
        name = f"{PREFIX}_median_speed_{unit_name}"
        samples = [
            _sample(name, {"point": point.name, "side": side_name}, side.median)
            for point in comparison.points
            if point.unit == unit
            for side_name, side in (("base", point.base), ("new", point.new))
            if side.median is not None
        ]
        yield from _family(name, "gauge", unit_name, f"Median speed over the ok runs of a point, in {unit}.", samples)


def _ratios(comparison: Comparison) -> Iterator[str]:
    name = f"{PREFIX}_speed_ratio"
    samples = []
    for point in comparison.points:
        interval = point.interval
        figures = {"median": point.ratio}
        if interval is not None:
            figures |= {"low": interval.low, "high": interval.high, "coverage": interval.coverage}
        samples += [
            _sample(name, {"point": point.name, "figure": figure}, value)
            for figure, value in figures.items()
            if value is not None
        ]
    described = "New over base: ratio of the medians, the ends of its interval, and what share of cases that covers."
    yield from _family(name, "gauge", "ratio", described, samples)


def _verdicts(comparison: Comparison) -> Iterator[str]:
    name = f"{PREFIX}_verdict"
    samples = [
        _sample(name, {"point": point.name, name: verdict.value}, float(point.verdict is verdict))
        for point in comparison.points
        for verdict in ComparisonVerdict
    ]
    yield from _family(name, "stateset", "", "The verdict on a point.", samples)


def _runs_needed(comparison: Comparison) -> Iterator[str]:
    name = f"{PREFIX}_needed_runs"
    samples = [
        _sample(name, {"point": point.name}, float(point.runs_needed))
        for point in comparison.points
        if point.runs_needed is not None
    ]
    yield from _family(name, "gauge", "runs", "Runs of each side needed for a verdict, where it is open.", samples)


def _family(name: str, kind: str, unit: str, text: str, samples: list[str]) -> list[str]:
    if not samples:
        return []
    return [f"# TYPE {name} {kind}", *([f"# UNIT {name} {unit}"] if unit else []), f"# HELP {name} {text}", *samples]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value:.9g}"


def _escaped(text: str) -> str:
    """The value of a label: backslash, quote and newline escaped; control characters as `plain` shows them."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# A comparison as JUnit XML, as continuous integration reads it.
#
# A regression is a failure, a point without a verdict an error, a point of one side alone is skipped. The elements and
# attributes are those of the schema of Ant's JUnit task (github.com/windyroad/JUnit-Schema).

SUITE = "rankwise.compare"
HOST = "localhost"
"""The schema requires a host: this one where none is determined. The comparison belongs to none."""
TIME = "0"
"""The schema requires a duration in s; comparing takes none that is of interest."""


def as_junit(comparison: Comparison, now: datetime, findings: Sequence[Finding] = (), problem: str = "") -> str:
    """The XML; `now` is the time of the comparison. Findings are cases too: fatal ones failures, others that are not ok
    skipped, with their text. `problem` is why nothing could be measured: an error."""
    root = ElementTree.Element("testsuites")
    one_sided = [("BASE", name) for name in comparison.only_base] + [("NEW", name) for name in comparison.only_new]
    fatal, passed = ([finding for finding in findings if finding.label == label] for label in ("fatal", "ok"))
    suite = ElementTree.SubElement(
        root, "testsuite", name=SUITE, package=SUITE, id="0", hostname=HOST, time=TIME,
        timestamp=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        tests=str(len(comparison.points) + len(one_sided) + len(findings) + bool(problem)),
        failures=str(len(comparison.with_verdict(ComparisonVerdict.SLOWER)) + len(fatal)),
        errors=str(len(comparison.with_verdict(ComparisonVerdict.CANNOT_TELL)) + bool(problem)),
        skipped=str(len(one_sided) + len(findings) - len(fatal) - len(passed)),
    )  # fmt: skip
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("base", comparison.base), ("new", comparison.new)):
        ElementTree.SubElement(properties, "property", name=name, value=plain(value))
    for difference in comparison.differences:
        ElementTree.SubElement(
            properties, "property", name=f"differs: {plain(difference.name)}", value=plain(difference_text(difference))
        )
    for point in comparison.points:
        _add_point(suite, point)
    for finding in findings:
        case = _case(suite, finding.name)
        if finding in fatal:
            text = plain(finding.text)
            failure = ElementTree.SubElement(case, "failure", type=finding.label, message=text)
            failure.text = f"{text}\n{plain(finding.fix)}".strip()
        elif finding not in passed:
            ElementTree.SubElement(case, "skipped", message=plain(f"{finding.label}: {finding.text}"))
    if problem:
        case = _case(suite, "measurement")
        ElementTree.SubElement(case, "error", type="not measured", message=plain(problem)).text = plain(problem)
    for side, name in one_sided:
        case = _case(suite, name)
        ElementTree.SubElement(case, "skipped", message=f"only in {side}")
    ElementTree.SubElement(suite, "system-out").text = plain(conclusion(comparison))
    refusals = "\n".join(plain(line) for line in (*comparison.remarks, *comparison.refusals))
    ElementTree.SubElement(suite, "system-err").text = refusals
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n")
    )


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=SUITE, name=plain(name), time=TIME)


def _add_point(suite: ElementTree.Element, point: ComparedPoint) -> None:
    case = _case(suite, point.name)
    kind = {ComparisonVerdict.SLOWER: "failure", ComparisonVerdict.CANNOT_TELL: "error"}.get(point.verdict)
    if kind is not None:
        text = plain(point_text(point))
        element = ElementTree.SubElement(case, kind, type=str(point.verdict), message=text)
        element.text = f"{text}\n{plain(point.source)}".strip()
