"""parse.alarms.scaling: whether nested runs were nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from parse.alarms.scaling import nested_summary
from parse.report.summary import Summary
from parse.report.table import FORMATS, text
from parse.runs.result import Result
from parse.text import Page
from tests.unit.traces import judged, make_ranks, make_run, make_trace

Blocks = Mapping[int, tuple[str, ...]]
"""Names of nodes, a letter each, by repeat and number of nodes: `{1: ("a", "ab", "abcd")}`."""

NESTED: Blocks = {1: ("a", "ab", "abcd"), 2: ("c", "cd", "abcd"), 3: ("b", "bc", "abcd")}


def on(run: RunSpec, hosts: str) -> Trace:
    ranks = make_ranks(run)
    return make_trace(
        run, ranks=[fact | {"hostname": host, "boot_id": host} for fact, host in zip(ranks, hosts, strict=True)]
    )


def swept(blocks: Blocks, placement: str = "nested") -> tuple[Result, ...]:
    return judged([
        on(make_run(nodes=len(hosts), placement=placement, repeat=repeat), hosts)
        for repeat, cases in blocks.items()
        for hosts in cases
    ])  # fmt: skip


def figures(results: tuple[Result, ...], name: str) -> list[tuple[str, Any]]:
    """The case and the only figure of each alarm of that name."""
    alarms = [(result.requested.case, alarm) for result in results for alarm in result.alarms]
    return [(case, *alarm.figures.values()) for case, alarm in alarms if alarm.name == name]


def test_nested_runs_have_no_alarm_and_a_line_in_the_head() -> None:
    results = swept(NESTED)
    assert figures(results, "not_nested") == figures(results, "other_nodes") == []
    line = nested_summary(results)
    assert line.startswith("placement nested (same nodes): in 3 blocks") and line.endswith("4 nodes in all")
    assert line in FORMATS["markdown"](Summary(results=results))
    assert line in text(Summary(results=results), Page(width=200))


def test_a_smaller_case_elsewhere() -> None:
    results = swept({**NESTED, 2: ("e", "cd", "abcd")})
    outside = {"run": 2, "case": "1n1g", "outside": ["e"]}
    assert figures(results, "not_nested") == [
        ("2n1g", [outside | {"nodes": ["c", "d"]}]), ("4n1g", [outside | {"nodes": ["a", "b", "c", "d"]}])
    ]  # fmt: skip
    (alarm, *_) = results[1].alarms
    assert alarm.text == "not nested, so nodes may differ: run 2: 1n1g on e, not among c d"
    assert nested_summary(results) == ""
    assert "same nodes" not in FORMATS["table"](Summary(results=results))


def test_cases_on_as_many_nodes_must_be_on_the_same() -> None:
    single, double = make_run(placement="nested"), make_run(ranks_per_node=2, placement="nested")
    assert figures(judged([on(single, "a"), on(double, "aa")]), "not_nested") == []
    assert [case for case, _ in figures(judged([on(single, "a"), on(double, "bb")]), "not_nested")] == ["1n2g"]


def test_separate_runs_may_be_anywhere() -> None:
    results = swept({1: ("a", "bc", "defg"), 2: ("h", "ij", "klmn")}, placement="separate")
    assert figures(results, "not_nested") == figures(results, "other_nodes") == []
    assert nested_summary(results) == ""


def test_blocks_of_different_allocations() -> None:
    results = swept({1: ("a", "ab", "abcd"), 2: ("e", "ef", "efgh"), 3: ("b", "bc", "abcd")})
    assert figures(results, "not_nested") == []
    assert figures(results, "other_nodes") == [("4n1g", {"a b c d": [1, 3], "e f g h": [2]})]
    (alarm,) = results[-1].alarms
    assert alarm.text == "runs differ by their nodes, too: a b c d (run 1, 3); e f g h (run 2)"


def test_missing_runs_break_no_block() -> None:
    results = swept({1: ("a", "ab", "abcd"), 2: ("c", "cd"), 3: ("b",)})
    assert figures(results, "not_nested") == []
    assert nested_summary(results).startswith("placement nested (same nodes): in 2 blocks")


def test_nodes_without_names_of_their_own_show_nothing() -> None:
    runs = [make_run(nodes=nodes, placement="nested") for nodes in (1, 2)]
    results = judged([on(run, "a" * run.nodes) for run in runs])
    assert figures(results, "not_nested") == []
    assert "no names of their own" in nested_summary(results)


def test_one_case_alone_proves_nothing() -> None:
    assert "cannot be checked" in nested_summary(swept({1: ("a",), 2: ("b",)}))
