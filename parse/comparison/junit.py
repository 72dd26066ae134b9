"""A comparison as JUnit XML, as continuous integration reads it.

A regression is a failure, a point without a verdict an error, a point of one side alone is skipped. The elements and
attributes are those of the schema of Ant's JUnit task (github.com/windyroad/JUnit-Schema).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from hpc.model.findings import Finding
from hpc.system.sanitize import plain
from parse.comparison.text import conclusion, difference_text, point_text
from parse.comparison.types import ComparedPoint, Comparison
from parse.comparison.verdict import Verdict

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
        failures=str(len(comparison.with_verdict(Verdict.SLOWER)) + len(fatal)),
        errors=str(len(comparison.with_verdict(Verdict.CANNOT_TELL)) + bool(problem)),
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
    kind = {Verdict.SLOWER: "failure", Verdict.CANNOT_TELL: "error"}.get(point.verdict)
    if kind is not None:
        text = plain(point_text(point))
        element = ElementTree.SubElement(case, kind, type=str(point.verdict), message=text)
        element.text = f"{text}\n{plain(point.source)}".strip()
