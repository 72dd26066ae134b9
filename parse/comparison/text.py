"""A comparison as text for a terminal, in Markdown, as JSON and as JUnit XML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree

from hpc.model.findings import CheckFinding
from hpc.system.sanitize import plain
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
from parse.text import TableData, TextBlock, json_value, markdown_of, markdown_text, number, text_of, unitless

NAME_WIDTH = 40
MAX_LISTED = 10
"""At most this many points of one side are named."""
HEADS = ("verdict", "point", "BASE", "NEW", "unit", "ratio", "interval", "coverage", "runs")
REFERENCE_HEADS = ("verdict", "point", "expected", "measured", *HEADS[4:])


def as_text(comparison: Comparison, width: int) -> str:
    """Verdict first, then differences of environment, then the points; lines of `width` cells where words allow it."""
    blocks: list[TextBlock] = [conclusion(comparison), _sides(comparison)]
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
    blocks: list[TextBlock] = [_sides(comparison)]
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


def _sides(comparison: Comparison) -> list[str]:
    names = ("reference", "measured") if comparison.is_reference else ("BASE", "NEW")
    return [f"{name}: {side}" for name, side in zip(names, (comparison.base, comparison.new), strict=True)]


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


# A comparison as JSON and as JUnit XML.


SCHEMA, SCHEMA_VERSION = "rankwise-comparison", 1


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


# JUnit XML, as continuous integration reads it.
#
# The elements and attributes are those of the schema of Ant's JUnit task (github.com/windyroad/JUnit-Schema).

HOST = "localhost"
"""The schema requires a host: this one where none is determined. A comparison belongs to none."""
TIME = "0"
"""The schema requires a duration in s; comparing takes none that is of interest."""


@dataclass(frozen=True, kw_only=True)
class JUnitCase:
    """A case: `kind` is `failure`, `error` or `skipped`, empty where it passed; `more` follows the text inside."""

    name: str
    kind: str = ""
    type: str = ""
    text: str = ""
    more: str = ""


def junit(
    suite_name: str, cases: Sequence[JUnitCase], properties: Sequence[tuple[str, str]], now: datetime, out: str,
    remarks: Sequence[str],
) -> str:  # fmt: skip
    """The XML of a suite; `now` is its time, `out` and `remarks` are its outputs."""
    root = ElementTree.Element("testsuites")
    count = Counter(case.kind for case in cases)
    suite = ElementTree.SubElement(
        root, "testsuite", name=suite_name, package=suite_name, id="0", hostname=HOST, time=TIME,
        timestamp=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"), tests=str(len(cases)),
        failures=str(count["failure"]), errors=str(count["error"]), skipped=str(count["skipped"]),
    )  # fmt: skip
    of_suite = ElementTree.SubElement(suite, "properties")
    for name, value in properties:
        ElementTree.SubElement(of_suite, "property", name=plain(name), value=plain(value))
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", classname=suite_name, name=plain(case.name), time=TIME)
        if case.kind == "skipped":
            ElementTree.SubElement(element, "skipped", message=plain(case.text))
        elif case.kind:
            text = plain(case.text)
            inside = ElementTree.SubElement(element, case.kind, type=case.type, message=text)
            inside.text = f"{text}\n{plain(case.more)}".strip()
    ElementTree.SubElement(suite, "system-out").text = plain(out)
    ElementTree.SubElement(suite, "system-err").text = "\n".join(map(plain, remarks))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n")
    )


def as_junit(comparison: Comparison, now: datetime, findings: Sequence[CheckFinding] = (), problem: str = "") -> str:
    """The XML of a comparison: a regression is a failure, a point without a verdict an error, a point of one side alone
    skipped. Findings are cases too: fatal ones failures, others that are not ok skipped. `problem` is why nothing could
    be measured: an error."""
    properties = [("base", comparison.base), ("new", comparison.new)]
    properties += [(f"differs: {each.name}", difference_text(each)) for each in comparison.differences]
    cases = [*map(_case_of_point, comparison.points), *map(_case_of_finding, findings)]
    if problem:
        cases.append(JUnitCase(name="measurement", kind="error", type="not measured", text=problem))
    for side, names in (("BASE", comparison.only_base), ("NEW", comparison.only_new)):
        cases += [JUnitCase(name=name, kind="skipped", text=f"only in {side}") for name in names]
    remarks = (*comparison.remarks, *comparison.refusals)
    return junit("rankwise.compare", cases, properties, now, conclusion(comparison), remarks)


def _case_of_finding(finding: CheckFinding) -> JUnitCase:
    if finding.label == "fatal":
        return JUnitCase(name=finding.name, kind="failure", type="fatal", text=finding.text, more=finding.fix)
    skipped = "" if finding.label == "ok" else "skipped"
    return JUnitCase(name=finding.name, kind=skipped, text=f"{finding.label}: {finding.text}")


def _case_of_point(point: ComparedPoint) -> JUnitCase:
    kind = {ComparisonVerdict.SLOWER: "failure", ComparisonVerdict.CANNOT_TELL: "error"}.get(point.verdict, "")
    text = point_text(point) if kind else ""
    return JUnitCase(name=point.name, kind=kind, type=str(point.verdict), text=text, more=point.source)
