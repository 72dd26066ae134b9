"""A machine held against its reference: speeds, nodes, checks and collectives together, and the next reference."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hpc.model.collective_plan import bus_factor
from hpc.model.findings import Finding, Severity, State, as_text
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace
from hpc.system.groups import grouped
from hpc.system.text import first_of, plural
from parse.alarms.nodes import NodeAlarm, per_node
from parse.attempt import facts_of
from parse.comparison.reference import Reference, ReferencePoint
from parse.comparison.text import as_text as comparison_text
from parse.comparison.types import ComparedPoint, Comparison
from parse.comparison.verdict import Verdict
from parse.ledger.standalone import curves
from parse.report.nodes import missing_text, node_alarm_text
from parse.result import Result
from parse.text import wrapped

NODE = "node "
"""How the names of findings about one node begin."""
MAX_NAMED = 10
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
    doctor: tuple[Finding, ...] = ()
    checks: tuple[Finding, ...] = ()
    nodes: tuple[Finding, ...] = ()
    collectives: tuple[str, ...] = ()

    @property
    def slow_nodes(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.nodes if finding.fatal)

    @property
    def status(self) -> int:
        """The exit status: 1 where a point or a node is slower than its tolerance, else that of the comparison."""
        return 1 if self.slow_nodes else self.comparison.status

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, each named after its source."""
        named = [(f"doctor {finding.name}", finding) for finding in self.doctor]
        named += [(f"check {finding.name}", finding) for finding in self.checks]
        without_failure = [
            Finding(
                name=name, text=each.text, state=each.state, severity=Severity.ALARM if each.fatal else each.severity
            )
            for name, each in named
        ]
        return (*without_failure, *self.nodes)


def node_findings(results: Sequence[Result], expected: Sequence[str], tolerance: float, day: str) -> list[Finding]:
    """A finding for each node by the one-node runs, slow ones first, and one for those of `expected` (Slurm's names)
    without such runs. `tolerance` is a share, `day` stands in the reason for draining."""
    findings: list[Finding] = []
    measured: set[str] = set()
    for site in per_node(results):
        alarms = {alarm.node: alarm for alarm in site.alarms}
        for node in site.nodes:
            measured.add(node.node)
            alarm = alarms.get(node.node)
            text = f"{node.relative:+.1%} against the median node ({plural(node.runs, 'run')})"
            if alarm is not None and alarm.relative < 0:
                findings.append(_slow(alarm, expected, tolerance, day))
            elif site.scatter is None:
                findings.append(
                    Finding(name=f"{NODE}{node.node}", state=State.UNKNOWN, severity=Severity.NOTE,
                            text=f"{text}; {missing_text(site)}")
                )  # fmt: skip
            else:
                findings.append(
                    Finding(name=f"{NODE}{node.node}", state=State.OK, severity=Severity.NOTE, text=text,
                            figures={"relative": node.relative, "runs": node.runs})
                )  # fmt: skip
    missing = [
        name for name in expected if name not in measured and name not in {n.partition(".")[0] for n in measured}
    ]
    if missing:
        text = f"no ok run of one node on {first_of(missing, MAX_NAMED)}: not compared"
        findings.append(Finding(name="nodes", state=State.UNKNOWN, severity=Severity.NOTE, text=text))
    return findings


def _slow(alarm: NodeAlarm, expected: Sequence[str], tolerance: float, day: str) -> Finding:
    """Fatal where the node is slower than the tolerance, whatever the scatter of the runs leaves open."""
    beyond = f"beyond the tolerance of {100 * tolerance:.3g} %"
    certain = (1 + alarm.relative) * (1 + alarm.margin) < 1 - tolerance
    name = next((name for name in expected if name in (alarm.node, alarm.node.partition(".")[0])), alarm.node)
    reason = f"rankwise accept {day}: {-alarm.relative:.1%} slower than the other nodes"
    return Finding(
        name=f"{NODE}{alarm.node}",
        text=f"{node_alarm_text(alarm)}; {'' if certain else 'not '}certainly {beyond}",
        severity=Severity.FATAL if certain else Severity.ALARM,
        figures={"relative": alarm.relative, "margin": alarm.margin, "runs": alarm.runs},
        fix=f"scontrol update nodename={shlex.quote(name)} state=drain reason={shlex.quote(reason)}" if certain else "",
    )  # fmt: skip


def check_findings(results: Sequence[Result]) -> tuple[Finding, ...]:
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
                speed = size / (ms * 1e6) * bus_factor(operation, run.requested.run.devices)
                lines.append(f"{result.requested.case} {operation}: {speed:.4g} GB/s bus bandwidth at {size} bytes")
    return tuple(lines)


def verdict_line(acceptance: Acceptance) -> str:
    """The result in one line."""
    slow = acceptance.comparison.with_verdict(Verdict.SLOWER)
    if acceptance.status == 0:
        return f"passed: {plural(len(acceptance.comparison.points), 'point')} within the tolerance"
    if acceptance.status == 1:
        parts = [f"{plural(len(slow), 'point')} slower than the tolerance"] if slow else []
        nodes = [finding.name.removeprefix(NODE) for finding in acceptance.slow_nodes]
        parts += [f"slow {'node' if len(nodes) == 1 else 'nodes'} {first_of(nodes, MAX_NAMED)}"] if nodes else []
        return f"not accepted: {', '.join(parts)}"
    unknown = [point.name for point in acceptance.comparison.with_verdict(Verdict.CANNOT_TELL)]
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
            lines += ["", f"{title}{passed}", *as_text(without_fix, LABELS[title])]
    if acceptance.collectives:
        lines += ["", "collectives alone", *acceptance.collectives]
    return "\n".join(lines) + "\n"


def next_reference(
    reference: Reference, comparison: Comparison, results: Sequence[Result], who: str, when: datetime
) -> str:
    """The reference with the measured speeds in place of the expected ones, as TOML; who measured, when, and on what
    software and devices is its environment. Every point of the comparison must have a speed."""
    facts = facts_of(machine for result in results for machine in result.machines)
    measured = f"{when:%Y-%m-%d %H:%M} UTC by {who}"
    devices = [f"devices = {_toml(reference.devices)}"] if reference.devices else []
    lines = [f"title = {_toml(reference.title)}", *devices, "", "[environment]", f"measured = {_toml(measured)}"]
    lines += [f"{_toml(name)} = {_toml(' and '.join(sorted(values)))}" for name, values in sorted(facts.items())]
    for point, compared in zip(reference.points, comparison.points, strict=True):
        lines += ["", "[[point]]", *_point_lines(point, compared, f"measured {measured}")]
    return "\n".join(lines) + "\n"


def _point_lines(point: ReferencePoint, compared: ComparedPoint, source: str) -> Iterator[str]:
    assert compared.new.median is not None
    runs = plural(len(compared.new.speeds), "run")
    before = f"expected before: {point.speed:g}"
    yield f"speed = {_significant(compared.new.median)}"
    yield f"unit = {_toml(point.unit)}"
    yield f"tolerance = {_toml(f'{100 * point.tolerance:g}%')}"
    yield f"source = {_toml(f'{source}, median of {runs}; {before}')}"
    yield f"settings = {_inline(point.settings)}"


def _significant(speed: float) -> str:
    """Six digits, as a TOML float."""
    return f"{speed:.{max(1, 5 - math.floor(math.log10(speed)))}f}"


def _inline(settings: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{_toml(name)} = {_toml(value)}" for name, value in settings.items()) + " }"


def _toml(text: str) -> str:
    """A basic string: TOML has the escapes of JSON, and besides wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
