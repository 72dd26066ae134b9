"""parse.alarms.nodes: speeds of nodes against known effects; and their text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from parse.alarms.nodes import PerNode, missing_text, node_alarm_text, per_node
from parse.report.notices import warnings
from parse.report.summary import Summary
from parse.report.table import FORMATS
from parse.report.table import text as table_text
from parse.runs.result import Result
from parse.text import Page
from tests.unit.traces import judged, make_ranks, make_run, make_trace, repeats

WIDE = Page(width=300)

TWO_EACH = {"a": (100.0, 101.0), "b": (100.5, 100.0), "slow": (80.0, 80.5), "c": (101.0, 100.5)}


def on_nodes(speeds: Mapping[str, Sequence[float]], **changes: object) -> tuple[Result, ...]:
    """A one-node point with these speeds on these nodes."""
    pairs = [(node, speed) for node, of_node in speeds.items() for speed in of_node]
    runs = repeats(make_run(**changes), len(pairs))
    return judged([
        make_trace(run, speed=speed, ranks=make_ranks(run, hostname=node))
        for run, (node, speed) in zip(runs, pairs, strict=True)
    ])  # fmt: skip


def sites(*points: tuple[Result, ...]) -> tuple[PerNode, ...]:
    return per_node([result for point in points for result in point])


def test_a_slow_node_is_named_with_its_size_and_no_healthy_one() -> None:
    (site,) = sites(on_nodes(TWO_EACH))
    assert (site.nodes[0].node, site.nodes[0].runs) == ("slow", 2)
    assert site.nodes[0].relative == pytest.approx(-0.2, abs=0.01)
    assert site.scatter == pytest.approx(0.005, abs=0.002)
    (alarm,) = site.alarms
    assert (alarm.node, alarm.runs, alarm.other_runs) == ("slow", 2, 6)
    assert alarm.relative == pytest.approx(-0.2, abs=0.01) and 0 < alarm.margin < 0.1


@pytest.mark.parametrize("nodes", [("a", "b", "slow"), ("a", "slow")])
def test_one_slow_node_makes_no_other_look_fast(nodes: tuple[str, ...]) -> None:
    (site,) = sites(on_nodes({name: TWO_EACH[name] for name in nodes}))
    assert [alarm.node for alarm in site.alarms] == ["slow"]


def test_nodes_within_their_runs_scatter_raise_nothing() -> None:
    (site,) = sites(on_nodes({"a": (100.0, 110.0), "b": (104.0, 92.0), "c": (97.0, 107.0)}))
    assert site.alarms == () and site.scatter is not None


def test_without_two_runs_on_a_node_there_is_no_scatter() -> None:
    (site,) = sites(on_nodes({"a": (100.0,), "b": (50.0,)}))
    assert (site.scatter, site.alarms) == (None, ())
    assert missing_text(site).startswith("no node has two runs of one point")
    assert [node.relative for node in site.nodes] == pytest.approx([1 / math.sqrt(2) - 1, math.sqrt(2) - 1])


def test_points_of_different_speeds_are_compared_each_with_itself() -> None:
    """Half of the runs on each node are of a point ten times as fast: that is no scatter, and no effect of nodes."""
    fast = {node: [10 * speed for speed in speeds] for node, speeds in TWO_EACH.items()}
    (site,) = sites(on_nodes(TWO_EACH), on_nodes(fast, ranks_per_node=8))
    assert (site.points, [node.runs for node in site.nodes]) == (2, [4] * 4)
    assert site.nodes[0].relative == pytest.approx(-0.2, abs=0.01)


def test_only_one_node_runs_on_several_nodes_tell_nodes_apart() -> None:
    assert sites(on_nodes({"a": (100.0, 50.0)})) == ()
    runs = repeats(make_run(nodes=2), 4)
    assert per_node(judged([make_trace(run, speed=100.0 + run.repeat) for run in runs])) == ()


def test_sites_make_different_points() -> None:
    by_site = sites(on_nodes(TWO_EACH), on_nodes({"a": (5.0, 5.1), "b": (5.0, 5.1)}, site="there"))
    assert [(site.site, len(site.nodes), len(site.alarms)) for site in by_site] == [("here", 4, 1), ("there", 2, 0)]


@pytest.mark.parametrize(
    ("nodes", "runs"), [(2, 2), (8, 2), *(pytest.param(*each, marks=pytest.mark.all) for each in ((3, 2), (4, 5)))]
)
def test_noise_alone_names_a_node_in_at_most_one_summary_of_twenty(nodes: int, runs: int) -> None:
    generator = np.random.default_rng(nodes * runs)
    raised = 0
    for _ in range(60):
        noise = 100 * np.exp(generator.normal(0, 0.01, (nodes, runs)))
        raised += bool(sites(on_nodes({f"n{at}": row.tolist() for at, row in enumerate(noise)}))[0].alarms)
    assert raised <= 8  # of 60 at 5 %: more than 8 come once in three hundred times, and this seed's are fewer


def test_all_formats_have_the_nodes() -> None:
    summary = Summary(results=on_nodes(TWO_EACH))
    alarm = node_alarm_text(per_node(summary.results)[0].alarms[0])
    assert alarm.startswith("slow is 20.") and "slower than the other nodes" in alarm and "2 runs on it, 6 on" in alarm
    text = table_text(summary, WIDE)
    assert "speed by node of here: one-node runs of 1 point" in text
    assert any(line.split() == ["slow", "2", "-20.05"] for line in text.splitlines())
    assert f"nodes of here: {alarm}" in text
    assert "| slow | 2 | -20.05 |" in FORMATS["markdown"](summary)
    content = json.loads(FORMATS["json"](summary))
    assert content["nodes"][0]["nodes"][0]["node"] == "slow" and content["nodes"][0]["alarms"][0]["text"] == alarm
    assert content["results"][0]["runs"][4]["hosts"] == ["slow"]
    assert "4 b; 5 slow; 6 slow" in FORMATS["csv"](summary)
    assert f"nodes of here: {alarm}" in warnings(summary)  # what CSV has no place for


def test_of_many_nodes_the_ends_are_shown_and_the_rest_counted() -> None:
    many = {f"n{at:03}": (100.0 + at, 100.5 + at) for at in range(100)}
    text = FORMATS["table"](Summary(results=on_nodes(many)))
    assert "n000" in text and "n011" in text and "n096" in text
    assert not any(line.startswith("n012") for line in text.splitlines())
    assert "more differ; --format json names them all" in text
    assert "and 84 nodes between" in text


def test_names_of_nodes_cannot_steer_a_terminal() -> None:
    odd = on_nodes({"a\x1b[2J": (1.0, 1.01), "b": (2.0, 2.01)})
    for form in ("table", "markdown"):
        assert "\x1b" not in FORMATS[form](Summary(results=odd))
