"""parse.alarms.nodes: speeds of nodes and the course of a job, against known effects; and their text."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import RunSpec
from parse.alarms.nodes import Drift, PerNode, drifts, per_node
from parse.alarms.table import judge
from parse.report.notices import warnings
from parse.report.sections import drift_alarm_text, missing_text, node_alarm_text
from parse.report.summary import Summary
from parse.report.table import FORMATS
from parse.report.table import text as table_text
from parse.runs.load import Loaded
from parse.runs.result import Result, results
from parse.text import Page
from tests.unit.traces import attempt, judged, make_ranks, make_run, make_trace, repeats, requested_run

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


@pytest.mark.parametrize(("nodes", "runs"), [(2, 2), (3, 2), (8, 2), (4, 5)])
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


# The course of a job


def course(
    speeds: Sequence[float], runs: Sequence[RunSpec], job: str = "17", every_s: int = 60, nodes: Sequence[str] = ("n0",)
) -> tuple[Result, ...]:
    """Runs one after the other in a job, on these nodes in turn."""
    attempts = [
        dataclasses.replace(
            attempt(make_trace(run, speed=speed, ranks=make_ranks(run, hostname=nodes[at % len(nodes)]))),
            record=ExitRecord(
                run_id=run.run_id, attempt=1, outcome=Outcome.OK, exit_status=0, job_id=job, restart_count=0,
                nodelist="n0", begin_unix_s=1_700_000_000 + every_s * at, end_unix_s=1_700_000_050 + every_s * at,
            ),
        )
        for at, (run, speed) in enumerate(zip(runs, speeds, strict=True))
    ]  # fmt: skip
    requested = tuple(map(requested_run, runs))
    loaded = Loaded(attempts=tuple(attempts), requested=requested, reduced=(), refusals=(), remarks=())
    return judge(results(loaded))


SMALL, LARGE = make_run(), make_run(ranks_per_node=4)
MIXED = [run for pair in zip(repeats(SMALL, 6), repeats(LARGE, 6), strict=True) for run in pair]


def speeds(slope: float, noise: float = 0.002, seed: int = 0) -> list[float]:
    """Of MIXED, with so much change from the first run to the last."""
    generator = np.random.default_rng(seed)
    return [
        100 * run.ranks * math.exp(math.log1p(slope) * at / 11 + generator.normal(0, noise))
        for at, run in enumerate(MIXED)
    ]


def test_a_job_that_slows_down_raises_an_alarm() -> None:
    (drift,) = drifts(course(speeds(-0.10), MIXED))
    assert (drift.job, drift.runs, drift.minutes) == ("17", 12, 11.0)
    assert drift.change == pytest.approx(-0.10, abs=0.01)
    assert drift.is_beyond
    alarm = drift_alarm_text(drift)
    assert alarm.startswith("job 17: speeds change by -") and "11.0 min later" in alarm
    assert alarm in table_text(Summary(results=course(speeds(-0.10), MIXED)), WIDE)


def test_a_steady_job_raises_no_alarm_and_is_shown_only_if_nested() -> None:
    steady = course(speeds(0.0), MIXED)
    (drift,) = drifts(steady)
    assert not drift.is_beyond and abs(drift.change) < drift.margin
    assert "from the first to the last" not in FORMATS["table"](Summary(results=steady))
    nested = [dataclasses.replace(run, placement="nested") for run in MIXED]
    assert "job 17: 12 runs in 11.0 min" in FORMATS["table"](Summary(results=course(speeds(0.0), nested)))


def test_noise_alone_is_drift_in_at_most_one_job_of_twenty() -> None:
    drifts_of_seeds = [drift for seed in range(60) for drift in drifts(course(speeds(0.0, seed=seed), MIXED))]
    assert sum(drift.is_beyond for drift in drifts_of_seeds) <= 8


def test_a_slow_node_is_no_drift() -> None:
    """The slow one comes late: to a line over all runs of a point that would be a job that slows down."""
    runs, nodes = repeats(SMALL, 12), ["a"] * 6 + ["slow"] * 6
    generator = np.random.default_rng(0)
    measured = [(80 if node == "slow" else 100) * math.exp(generator.normal(0, 0.002)) for node in nodes]
    (drift,) = drifts(course(measured, runs, nodes=nodes))
    assert not drift.is_beyond and abs(drift.change) < 0.05


def test_few_runs_say_nothing_of_drift() -> None:
    nothing: tuple[Drift, ...] = ()
    assert drifts(course(speeds(-0.5)[:5], MIXED[:5])) == nothing
    assert drifts(course(speeds(-0.5), MIXED, every_s=0)) == nothing
