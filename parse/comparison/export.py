"""A comparison as JSON and as JUnit XML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree

from hpc.model.findings import CheckFinding
from hpc.system.sanitize import plain
from parse.comparison.text import conclusion, difference_text, point_text, reason_text
from parse.comparison.types import ComparedPoint, Comparison, ComparisonVerdict
from parse.text import json_value

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
