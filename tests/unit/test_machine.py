"""parse.comparison.machine: findings about nodes, the verdict, and what is shown of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpc.model.findings import CheckFinding, Severity, State
from hpc.model.reference import read_reference
from parse.comparison.machine import (
    Acceptance,
    acceptance_text,
    check_findings,
    next_reference,
    node_findings,
    verdict_line,
)
from parse.comparison.pairs import compare_with_reference
from parse.comparison.text import as_junit
from parse.comparison.types import ComparedPoint, Comparison, ComparisonVerdict, Side
from parse.runs.result import Result
from tests.unit.traces import judged, make_ranks, make_run, make_trace, point, repeats

DAY = "2026-11-23"
HEALTHY = {"n1": (100.0, 101.0, 100.5), "n2": (100.5, 100.0, 101.0), "n3": (101.0, 100.5, 100.0)}


def on_nodes(speeds: Mapping[str, Sequence[float]]) -> tuple[Result, ...]:
    """A point of one node with these speeds on these nodes."""
    pairs = [(node, speed) for node, of_node in speeds.items() for speed in of_node]
    runs = repeats(make_run(), len(pairs))
    return judged([
        make_trace(run, speed=speed, ranks=make_ranks(run, hostname=node))
        for run, (node, speed) in zip(runs, pairs, strict=True)
    ])  # fmt: skip


def test_a_slow_node_is_fatal_and_the_line_that_drains_it_is_shown() -> None:
    findings = node_findings(
        on_nodes({**HEALTHY, "n4.cluster": (88.0, 88.5, 87.5)}), ["n1", "n2", "n3", "n4"], 0.05, DAY
    )
    assert [(each.name, each.label) for each in findings] == [
        ("node n4.cluster", "fatal"), ("node n1", "ok"), ("node n2", "ok"), ("node n3", "ok"),
    ]  # fmt: skip
    assert findings[0].fix == (
        "scontrol update nodename=n4 state=drain reason='rankwise accept 2026-11-23: 12.4% slower than the other nodes'"
    )
    assert "12.4% slower than the other nodes" in findings[0].text and "(3 runs on it, 9 on others)" in findings[0].text


def test_what_the_scatter_leaves_open_is_not_fatal() -> None:
    """4 % slower than nodes whose runs scatter by half a percent: certain, but not that it is more than 3 %."""
    slow = {**HEALTHY, "n4": (96.0, 96.5, 97.0)}
    (worst, *others) = node_findings(on_nodes(slow), list(slow), 0.03, DAY)
    assert (worst.name, worst.label, worst.fix) == ("node n4", "alarm", "")
    assert "not certainly beyond the tolerance of 3 %" in worst.text and {each.label for each in others} == {"ok"}
    assert [each.label for each in node_findings(on_nodes(slow), list(slow), 0.01, DAY)].count("fatal") == 1


def test_a_fast_node_is_no_fault() -> None:
    fast = {**HEALTHY, "n4": (112.0, 112.5, 113.0)}
    assert {each.label for each in node_findings(on_nodes(fast), list(fast), 0.03, DAY)} == {"ok"}


def test_nodes_that_were_not_measured_are_named() -> None:
    findings = node_findings(on_nodes(HEALTHY), [*HEALTHY, "n7", "n8"], 0.03, DAY)
    assert findings[-1] == CheckFinding(
        name="nodes", state=State.UNKNOWN, severity=Severity.NOTE,
        text="no ok run of one node on n7, n8: not compared",
    )  # fmt: skip
    single = node_findings(on_nodes({"n1": (100.0,), "n2": (80.0,)}), ["n1", "n2"], 0.03, DAY)
    assert {each.label for each in single} == {"unknown"} and "no node has two runs" in single[0].text
    assert node_findings((), [], 0.03, DAY) == []


def test_a_host_name_from_a_trace_stays_one_word_of_the_shell() -> None:
    hostile = {**HEALTHY, "n4; reboot $(id)": (50.0, 50.5, 50.2)}
    (worst, *_) = node_findings(on_nodes(hostile), [], 0.03, DAY)
    assert worst.fix.startswith("scontrol update nodename='n4; reboot $(id)' state=drain reason='")


def compared(name: str, verdict: ComparisonVerdict) -> ComparedPoint:
    return ComparedPoint(
        name=name, unit="samples/s", threshold=0.03, base=Side(median=100.0), new=Side(median=97.0), verdict=verdict
    )


SLOW_NODE = CheckFinding(
    name="node n4", text="slow", severity=Severity.FATAL, fix="scontrol update nodename=n4 state=drain"
)
FATAL_DOCTOR = CheckFinding(name="modules", text="none", severity=Severity.FATAL)


@pytest.mark.parametrize(
    ("verdicts", "nodes", "status", "line"),
    [
        ((ComparisonVerdict.SAME, ComparisonVerdict.FASTER), (), 0, "passed: 2 points within the tolerance"),
        ((ComparisonVerdict.SAME, ComparisonVerdict.SLOWER), (), 1, "not accepted: 1 point slower than the tolerance"),
        ((ComparisonVerdict.SAME,), (SLOW_NODE,), 1, "not accepted: slow node n4"),
        ((ComparisonVerdict.SLOWER,), (SLOW_NODE,), 1, "not accepted: 1 point slower than the tolerance, slow node n4"),
        ((ComparisonVerdict.CANNOT_TELL, ComparisonVerdict.SAME), (), 2, "could not be measured: p0"),
        (
            (ComparisonVerdict.CANNOT_TELL, ComparisonVerdict.SLOWER),
            (),
            1,
            "not accepted: 1 point slower than the tolerance",
        ),
        ((ComparisonVerdict.CANNOT_TELL,), (SLOW_NODE,), 1, "not accepted: slow node n4"),
        ((), (), 2, "could not be measured: no point"),
    ],
)
def test_the_verdict_follows_from_points_and_nodes(
    verdicts: tuple[ComparisonVerdict, ...], nodes: tuple[CheckFinding, ...], status: int, line: str
) -> None:
    points = tuple(compared(f"p{at}", verdict) for at, verdict in enumerate(verdicts))
    comparison = Comparison(base="reference", new="here", is_reference=True, points=points)
    acceptance = Acceptance(comparison=comparison, nodes=nodes, doctor=(FATAL_DOCTOR,))
    assert (acceptance.status, verdict_line(acceptance)) == (status, line)
    text = acceptance_text(acceptance, 100)
    assert text.startswith(f"{line}\n") and (SLOW_NODE.fix in text) is bool(nodes)
    assert [finding.label for finding in acceptance.findings] == ["alarm", *("fatal" for _ in nodes)]


REFERENCE = """\
title = "four nodes, after installation"
devices = "Xeon, 64 cores per node"
tolerance = "5%"
source = "acceptance of 2026-10-01"

[settings]
backend = "mpi"

[[point]]
speed = 100.0
settings = { case = "1n1g" }

[[point]]
speed = 400.0
settings = { case = "4n1g" }
"""


def test_an_acceptance_as_it_is_shown(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """Four nodes, the last of them 12 % slow, so that runs of all four are slow as well."""
    path = tmp_path / "machine.toml"
    path.write_text(REFERENCE)
    slow = {**HEALTHY, "n4": (88.0, 88.5, 87.5)}
    large = judged(point(make_run(nodes=4), (352.0, 353.0, 354.0, 351.0, 352.5)))
    results = (*on_nodes(slow), *large)
    comparison = compare_with_reference(str(path), results, "traces, 2 points, 17 runs ok, 2026-11-23", 0.03)
    acceptance = Acceptance(
        comparison=comparison,
        nodes=tuple(node_findings(results, [*slow, "n5"], 0.03, DAY)),
        doctor=(CheckFinding(name="shared folder", text="n3 sees it 2 s late", fix="mount with actimeo=1"),),
        checks=(CheckFinding(name="load", text="n4: 3 of 64 cores are busy"),),
        collectives=("4n1g all-reduce: 11.3 GB/s bus bandwidth at 16777216 bytes",),
    )
    golden("acceptance.txt", acceptance_text(acceptance, 100))
    golden("acceptance.xml", as_junit(comparison, datetime(2026, 11, 23, 4, 5, 6, tzinfo=UTC), acceptance.findings))
    reference = read_reference(path, 0.03)
    when = datetime(2026, 11, 23, 4, 5, 6, tzinfo=UTC)
    golden("acceptance-next.toml", next_reference(reference, comparison, results, "ann on login1", when))


def test_a_check_that_failed_in_many_runs_is_one_finding() -> None:
    busy = [f"{at} cores are busy" for at in (3, 5)]
    runs = repeats(make_run(), 3)
    checked = [{"load": CheckFinding(name="load", text=text).to_json()} for text in busy] + [{}]
    traces = [make_trace(run, environment={"preflight": checks}) for run, checks in zip(runs, checked, strict=True)]
    (finding,) = check_findings(judged(traces))
    assert (finding.name, finding.text) == ("load", "in 2 of 3 runs; first: 3 cores are busy")
