"""parse.alarms.placement: nested runs were nested, or it is said that they were not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from parse.alarms.placement import nested_summary
from parse.report.summary import Summary
from parse.report.table import FORMATS, text
from parse.result import Result
from parse.text import Page
from tests.unit.traces import judged, make_ranks, make_run, make_trace

Blocks = Mapping[int, tuple[str, ...]]
"""By repeat the letters of the nodes, for each number of nodes: `{1: ("a", "ab", "abcd")}`."""

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


def rung(found: tuple[Result, ...], name: str) -> list[tuple[str, str]]:
    return [(result.requested.case, alarm.text) for result in found for alarm in result.alarms if alarm.name == name]


def test_nested_runs_ring_nothing_and_the_head_says_so() -> None:
    found = swept(NESTED)
    assert rung(found, "not_nested") == rung(found, "other_nodes") == []
    said = nested_summary(found)
    assert said.startswith("placement nested (same nodes): in 3 blocks") and said.endswith("4 nodes in all")
    assert said in FORMATS["markdown"](Summary(results=found))
    assert said in text(Summary(results=found), Page(width=200))


def test_a_smaller_case_elsewhere_rings_and_the_head_does_not_claim_it() -> None:
    found = swept({**NESTED, 2: ("e", "cd", "abcd")})
    assert rung(found, "not_nested") == [
        ("2n1g", "asked to be nested, and is not: run 2: 1n1g on e, not among c d: "
                 "a difference between nodes may pass for scaling"),
        ("4n1g", "asked to be nested, and is not: run 2: 1n1g on e, not among a b c d: "
                 "a difference between nodes may pass for scaling"),
    ]  # fmt: skip
    assert nested_summary(found) == ""
    assert "same nodes" not in FORMATS["table"](Summary(results=found))


def test_cases_on_as_many_nodes_must_be_on_the_same() -> None:
    one, two = make_run(placement="nested"), make_run(ranks_per_node=2, placement="nested")
    assert rung(judged([on(one, "a"), on(two, "aa")]), "not_nested") == []
    assert [case for case, _ in rung(judged([on(one, "a"), on(two, "bb")]), "not_nested")] == ["1n2g"]


def test_separate_runs_may_be_anywhere() -> None:
    found = swept({1: ("a", "bc", "defg"), 2: ("h", "ij", "klmn")}, placement="separate")
    assert rung(found, "not_nested") == rung(found, "other_nodes") == []
    assert nested_summary(found) == ""


def test_blocks_of_other_allocations_are_told_apart() -> None:
    found = swept({1: ("a", "ab", "abcd"), 2: ("e", "ef", "efgh"), 3: ("b", "bc", "abcd")})
    assert rung(found, "not_nested") == []
    assert rung(found, "other_nodes") == [
        ("4n1g", "its blocks had different allocations, so runs differ by their nodes, too: "
                 "a b c d (run 1, 3); e f g h (run 2)"),
    ]  # fmt: skip


def test_runs_that_are_missing_break_no_block() -> None:
    found = swept({1: ("a", "ab", "abcd"), 2: ("c", "cd"), 3: ("b",)})
    assert rung(found, "not_nested") == []
    assert nested_summary(found).startswith("placement nested (same nodes): in 2 blocks")


def test_nodes_without_names_of_their_own_show_nothing() -> None:
    runs = [make_run(nodes=nodes, placement="nested") for nodes in (1, 2)]
    found = judged([on(run, "a" * run.nodes) for run in runs])
    assert rung(found, "not_nested") == []
    assert "no names of their own" in nested_summary(found)


def test_one_case_alone_proves_nothing() -> None:
    assert "nobody can say" in nested_summary(swept({1: ("a",), 2: ("b",)}))


def test_nested_and_separate_are_different_points_with_baselines_of_their_own() -> None:
    nested = swept({1: ("a", "ab")})
    separate = swept({1: ("a", "ab")}, placement="separate")
    assert {one.requested.point for one in nested}.isdisjoint(one.requested.point for one in separate)
    alone = dataclasses.replace(nested[1].run, placement="separate").baseline()
    assert alone.key({}) != nested[0].run.key({}) == nested[1].run.baseline().key({})
