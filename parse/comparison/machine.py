"""A machine held against its reference: speeds, nodes, checks and collectives together, and the next reference."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hpc.model.collective_plan import bus_factor
from hpc.model.findings import CheckFinding, Severity, State, as_text
from hpc.model.reference import Reference, ReferencePoint
from hpc.model.spec import USUAL
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace
from hpc.system.sanitize import plain
from hpc.system.text import first_of, grouped, plural
from parse.alarms.nodes import NodeAlarm, missing_text, node_alarm_text, per_node
from parse.comparison.pairs import distinct_labels, side_of, without_speed
from parse.comparison.text import as_text as comparison_text
from parse.comparison.types import Comparison, ComparisonError, ComparisonVerdict, Side, single_interval
from parse.ledger.standalone import curves
from parse.report.summary import identifying_values
from parse.runs.attempt import facts_of
from parse.runs.result import Result
from parse.text import wrapped

NODE = "node "
"""How the names of findings about one node begin."""
MAX_NAMED = 10
NOT_CHOSEN = (
    "nodes", "ranks_per_node", "devices", "unit", "site", "container", "code_digest", "folder", "date",
)  # fmt: skip
"""Settings of a measured point that the case implies, or that follow from the machine or the measurement."""
COMMENTS = (
    "# Expected speeds of a machine: rankwise sweep accept --reference FILE measures these points again. A point",
    "# fails where it is certainly slower than its speed less its tolerance, which is to be larger than what speeds of",
    "# one machine scatter by. docs/compare.md#accepting-a-machine, docs/compare.md#references",
)
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that TOML takes without quotes."""
LABELS: Mapping[str, Mapping[str, str]] = {
    "nodes": {"fatal": "SLOW", "alarm": "slower"},
    "doctor": {"fatal": "CHANGE", "alarm": "CHANGE"},
    "checks": {},
}
"""How the labels of findings are shown."""


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """`doctor` and `checks` are the findings of the doctor and of the checks at the start of runs; they judge no speed.
    `nodes` has a finding for each node, fatal if it is certainly slower than the tolerance. `collectives` are lines."""

    comparison: Comparison
    doctor: tuple[CheckFinding, ...] = ()
    checks: tuple[CheckFinding, ...] = ()
    nodes: tuple[CheckFinding, ...] = ()
    collectives: tuple[str, ...] = ()

    @property
    def slow_nodes(self) -> tuple[CheckFinding, ...]:
        return tuple(finding for finding in self.nodes if finding.fatal)

    @property
    def status(self) -> int:
        """The exit status: 1 where a point or a node is slower than its tolerance, else that of the comparison."""
        return 1 if self.slow_nodes else self.comparison.status

    @property
    def findings(self) -> tuple[CheckFinding, ...]:
        """All of them, each named after its source."""
        named = [(f"doctor {finding.name}", finding) for finding in self.doctor]
        named += [(f"check {finding.name}", finding) for finding in self.checks]
        without_failure = [
            CheckFinding(
                name=name, text=each.text, state=each.state, severity=Severity.ALARM if each.fatal else each.severity
            )
            for name, each in named
        ]
        return (*without_failure, *self.nodes)


def node_findings(results: Sequence[Result], expected: Sequence[str], tolerance: float, day: str) -> list[CheckFinding]:
    """A finding for each node by the one-node runs, slow ones first, and one for those of `expected` (Slurm's names)
    without such runs. `tolerance` is a share, `day` is part of the reason for draining."""
    findings: list[CheckFinding] = []
    measured: set[str] = set()
    for site in per_node(results):
        alarms = {alarm.node: alarm for alarm in site.alarms}
        for node in site.nodes:
            measured.add(node.node)
            alarm = alarms.get(node.node)
            text = f"{node.relative:+.1%} against the median node ({plural(node.runs, 'run')})"
            its = CheckFinding(name=f"{NODE}{node.node}", state=State.OK, severity=Severity.NOTE, text=text)
            if alarm is not None and alarm.relative < 0:
                its = _slow(alarm, expected, tolerance, day)
            elif site.scatter is None:
                its = dataclasses.replace(its, state=State.UNKNOWN, text=f"{text}; {missing_text(site)}")
            else:
                its = dataclasses.replace(its, figures={"relative": node.relative, "runs": node.runs})
            findings.append(its)
    missing = [
        name for name in expected if name not in measured and name not in {n.partition(".")[0] for n in measured}
    ]
    if missing:
        text = f"no ok run of one node on {first_of(missing, MAX_NAMED)}: not compared"
        findings.append(CheckFinding(name="nodes", state=State.UNKNOWN, severity=Severity.NOTE, text=text))
    return findings


def _slow(alarm: NodeAlarm, expected: Sequence[str], tolerance: float, day: str) -> CheckFinding:
    """Fatal where the node is slower than the tolerance, whatever the scatter of the runs leaves open."""
    beyond = f"beyond the tolerance of {100 * tolerance:.3g} %"
    certain = (1 + alarm.relative) * (1 + alarm.margin) < 1 - tolerance
    name = next((name for name in expected if name in (alarm.node, alarm.node.partition(".")[0])), alarm.node)
    reason = f"rankwise accept {day}: {-alarm.relative:.1%} slower than the other nodes"
    return CheckFinding(
        name=f"{NODE}{alarm.node}",
        text=f"{node_alarm_text(alarm)}; {'' if certain else 'not '}certainly {beyond}",
        severity=Severity.FATAL if certain else Severity.ALARM,
        figures={"relative": alarm.relative, "margin": alarm.margin, "runs": alarm.runs},
        fix=f"scontrol update nodename={shlex.quote(name)} state=drain reason={shlex.quote(reason)}" if certain else "",
    )  # fmt: skip


def check_findings(results: Sequence[Result]) -> tuple[CheckFinding, ...]:
    """The findings of the checks at the start of the runs: the first one of each check, with the number of runs
    that have one."""
    machines = [machine for result in results for machine in result.machines]
    failed = grouped(
        pair
        for machine in machines
        for pair in {each.name: each for each in machine.findings if each.state is State.FAILED}.items()
    )
    return tuple(
        dataclasses.replace(first, text=f"in {len(findings)} of {plural(len(machines), 'run')}; first: {first.text}")
        for findings in failed.values()
        for first in findings[:1]
    )


def collective_lines(diagnostics: Sequence[Result]) -> tuple[str, ...]:
    """The bus bandwidth of every operation at the largest size that was measured, a line each."""
    lines: list[str] = []
    for result in diagnostics:
        for run in result.ok:
            if run.trace is None:
                continue
            try:
                by_operation = curves(read_trace(run.trace))
            except TraceError as error:
                lines.append(str(error))
                continue
            for operation, curve in by_operation.items():
                size, ms = curve.sizes[-1], curve.ms[-1]
                speed = size / (ms * 1e6) * bus_factor(operation, result.devices)
                lines.append(f"{result.requested.case} {operation}: {speed:.4g} GB/s bus bandwidth at {size} bytes")
    return tuple(lines)


def verdict_line(acceptance: Acceptance) -> str:
    """The result in one line."""
    slow = acceptance.comparison.with_verdict(ComparisonVerdict.SLOWER)
    if acceptance.status == 0:
        return f"passed: {plural(len(acceptance.comparison.points), 'point')} within the tolerance"
    if acceptance.status == 1:
        parts = [f"{plural(len(slow), 'point')} slower than the tolerance"] if slow else []
        nodes = [finding.name.removeprefix(NODE) for finding in acceptance.slow_nodes]
        parts += [f"slow {'node' if len(nodes) == 1 else 'nodes'} {first_of(nodes, MAX_NAMED)}"] if nodes else []
        return f"not accepted: {', '.join(parts)}"
    unknown = [point.name for point in acceptance.comparison.with_verdict(ComparisonVerdict.CANNOT_TELL)]
    return f"could not be measured: {first_of(unknown, MAX_NAMED) or 'no point'}"


def acceptance_text(acceptance: Acceptance, width: int) -> str:
    """Verdict first, then what to do, then the figures."""
    lines = wrapped([verdict_line(acceptance)], width)
    lines += [finding.fix for finding in acceptance.slow_nodes]  # not wrapped: to be copied
    lines += ["", *comparison_text(acceptance.comparison, width).splitlines()]
    for title, findings in (("nodes", acceptance.nodes), ("doctor", acceptance.doctor), ("checks", acceptance.checks)):
        if findings:
            shown = [each for each in findings if each.state is not State.OK or title == "nodes"]
            without_fix = [dataclasses.replace(each, fix="") if each.fatal else each for each in shown]
            passed = f": {len(findings) - len(shown)} of {len(findings)} ok" if title == "doctor" else ""
            lines += ["", f"{title}{passed}", *as_text(without_fix, LABELS[title], width)]
    if acceptance.collectives:
        lines += ["", "collectives alone", *acceptance.collectives]
    return "\n".join(lines) + "\n"


def first_reference(results: Sequence[Result], tolerance: float, when: datetime) -> tuple[Reference, tuple[str, ...]]:
    """A reference of the measured medians; and for each of its points what speaks against its tolerance, or nothing.

    Its settings are those that a sweep chooses. Raises ComparisonError, which names the points without a speed and
    those that are equal in these settings.
    """
    names = distinct_labels(results)
    sides = [side_of(result) for result in results]
    lacking = [
        f"{name}: {reason.value} ({detail})"
        for name, side in zip(names, sides, strict=True)
        if (problem := without_speed(side)) is not None
        for reason, detail in [problem]
    ]
    if lacking:
        raise ComparisonError(f"points without a speed: {first_of(lacking, MAX_NAMED, '; ')}")
    alike = grouped(
        ((frozenset(_settings(result).items()), result.unit), name) for result, name in zip(results, names, strict=True)
    )
    if several := [of for of in alike.values() if len(of) > 1]:
        raise ComparisonError(f"these differ in nothing that a sweep chooses: {first_of(several[0], MAX_NAMED, '; ')}")
    points = [
        ReferencePoint(
            settings=_settings(result), speed=float(_significant(side.median or 0.0)), unit=result.unit,
            tolerance=tolerance, source=f"median of {plural(len(side.speeds), 'run')}, written {when:%Y-%m-%d}",
        )
        for result, side in zip(results, sides, strict=True)
    ]  # fmt: skip
    facts = facts_of(machine for result in results for machine in result.machines)
    devices = sorted({*facts.get("device", ())} - {"cpu"}) or sorted(facts.get("cpu", ()))
    reference = Reference(title=_title(results), points=tuple(points), devices=" and ".join(devices))
    remarks = [_remark(result, side, tolerance) for result, side in zip(results, sides, strict=True)]
    return reference, tuple(remarks)


def _title(results: Sequence[Result]) -> str:
    works = dict.fromkeys(f"{result.run.backend} {result.run.workload_name}" for result in results)
    cases = dict.fromkeys(result.requested.case for result in results)
    return f"{first_of([*works], MAX_NAMED)} on {first_of([*cases], MAX_NAMED)}"


def _settings(result: Result) -> dict[str, str]:
    """The settings of the point that a sweep chooses, but for those that are as usual."""
    return {
        name: value
        for name, value in identifying_values(result).items()
        if name not in NOT_CHOSEN and USUAL.get(name) != value
    }


def _remark(result: Result, side: Side, tolerance: float) -> str:
    """What speaks against the expected speed and its tolerance; empty where nothing does."""
    assert side.median is not None
    interval = single_interval(side.speeds, side.median)
    if result.no_scaling:
        return f"no speed of a real machine: {result.no_scaling}"
    if interval is None:
        return f"{plural(len(side.speeds), 'run')}, too few for an interval: measure with --repeats 5 or more"
    if max(1 - interval.low, interval.high - 1) < tolerance:
        return ""
    ends = f"[{100 * (interval.low - 1):+.1f}, {100 * (interval.high - 1):+.1f}] % (95 %)"
    return f"its median is known to {ends} only, which the tolerance does not cover: raise it, or measure more runs"


def environment_of(results: Sequence[Result], who: str, when: datetime) -> dict[str, str]:
    """Who wrote the figures and when, and on what software and devices they were measured."""
    facts = facts_of(machine for result in results for machine in result.machines)
    named = {name: " and ".join(sorted(values)) for name, values in sorted(facts.items())}
    return {"measured": _measured(who, when), **named}


def next_reference(
    reference: Reference, comparison: Comparison, results: Sequence[Result], who: str, when: datetime
) -> str:
    """The reference with the measured speeds in place of the expected ones, as TOML. Every point of the comparison must
    have a speed."""
    points = []
    for point, compared in zip(reference.points, comparison.points, strict=True):
        assert compared.new.median is not None
        runs = plural(len(compared.new.speeds), "run")
        source = f"measured {_measured(who, when)}, median of {runs}; expected before: {point.speed:g}"
        points.append(dataclasses.replace(point, speed=compared.new.median, source=source))
    return reference_text(dataclasses.replace(reference, points=tuple(points)), environment_of(results, who, when))


def _measured(who: str, when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC by {who}"


def reference_text(reference: Reference, environment: Mapping[str, str], remarks: Sequence[str] = ()) -> str:
    """The reference as TOML with the comments that explain it; each of the `remarks` is one about its point."""
    first, *others = (point.settings for point in reference.points)
    common = {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}
    common = common if others else {name: value for name, value in first.items() if name != "case"}
    lines = [*COMMENTS, f"title = {_toml(reference.title)}"]
    lines += [f"devices = {_toml(reference.devices)}"] if reference.devices else []
    lines += ["", "[settings]  # of all points"] if common else []
    lines += [f"{_key(name)} = {_toml(value)}" for name, value in common.items()]
    lines += ["", "[environment]  # what it was measured on; nothing is judged by it"]
    lines += [f"{_key(name)} = {_toml(value)}" for name, value in environment.items()]
    for at, point in enumerate(reference.points):
        rest = {name: value for name, value in point.settings.items() if name not in common}
        lines += ["", "[[point]]", *(f"# {plain(remark)}" for remark in remarks[at : at + 1] if remark)]
        lines += [f"speed = {_significant(point.speed)}", f"unit = {_toml(point.unit)}"]
        lines += [f"tolerance = {_toml(f'{100 * point.tolerance:g}%')}", f"source = {_toml(point.source)}"]
        lines += [f"settings = {_inline(rest)}"]
    return "\n".join(lines) + "\n"


def _significant(speed: float) -> str:
    """Six digits, as a TOML float."""
    return f"{speed:.{max(1, 5 - math.floor(math.log10(speed)))}f}"


def _inline(settings: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{_key(name)} = {_toml(value)}" for name, value in settings.items()) + " }"


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _toml(name)


def _toml(text: str) -> str:
    """A basic string: TOML has the escapes of JSON, and besides wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
