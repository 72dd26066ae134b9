"""What runs cost: node hours, of failed attempts too."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import Plan, RunSpec, Target
from parse.report.costs import cost_line
from parse.report.export import as_json
from parse.report.summary import Summary, read_summary
from parse.runs.cost import Spent, node_hours_per_million, nodes_held, spent
from tests.unit.traces import make_run, make_trace, put


def put_planned(folder: Path, runs: list[RunSpec]) -> None:
    plan = Plan(target=Target(site="here", gpus_per_node=0), runs=tuple(runs))
    (folder / f"plan.{plan.sweep_id}.json").write_text(json.dumps(plan.to_json()))


def put_attempt(folder: Path, run: RunSpec, hours: float, outcome: Outcome = Outcome.OK, **changes: Any) -> None:
    record = ExitRecord(
        run_id=run.run_id, attempt=1, outcome=outcome, exit_status=0, job_id="7", begin_unix_s=1_700_000_000,
        end_unix_s=1_700_000_000 + round(3600 * hours), duration_ms=round(3.6e6 * hours),
    )  # fmt: skip
    dataclasses.replace(record, **changes).write(folder)


def summary_of(folder: Path) -> Summary:
    return read_summary([folder])[0]


def test_a_sweep_costs_what_all_its_attempts_took(tmp_path: Path) -> None:
    small, large = make_run(), make_run(nodes=4)
    put_planned(tmp_path, [small, large])
    put(tmp_path, make_trace(small, speed=1000))
    put(tmp_path, dataclasses.replace(make_trace(large, speed=2000), attempt=2))
    put_attempt(tmp_path, small, 0.5, job_id="6")
    put_attempt(tmp_path, large, 0.25, Outcome.PREEMPTED)
    put_attempt(tmp_path, large, 1, attempt=2)
    summary = summary_of(tmp_path)
    assert spent(summary.everything) == Spent(node_hours=5.5, attempts=3, failed_node_hours=1, failed=1)
    assert cost_line(summary) == ("cost: 5.50 node hours of 3 attempts; 1.00 of them by 1 attempt that did not end ok")
    assert node_hours_per_million(summary.results[1]) == pytest.approx(4e6 / 2000 / 3600)
    page = json.loads(as_json(summary))
    assert [result["cost"]["spent"]["node_hours"] for result in page["results"]] == [0.5, 5]


def test_a_clock_that_is_set_costs_nothing_and_rings(tmp_path: Path) -> None:
    """25 s by the monotonic clock; the wall clock was set forward by an hour in it."""
    put(tmp_path, make_trace(make_run()))
    put_attempt(tmp_path, make_run(), 0, end_unix_s=1_700_003_625, duration_ms=25_200)
    summary = summary_of(tmp_path)
    assert spent(summary.results) == Spent(node_hours=0.007, attempts=1)
    (alarm,) = (alarm for alarm in summary.results[0].alarms if alarm.name == "wall_clock_set")
    assert alarm.figures["shift_s"] == pytest.approx(3599.8)


def test_an_old_record_says_that_its_duration_is_by_the_wall_clock_alone(tmp_path: Path) -> None:
    put(tmp_path, make_trace(make_run()))
    put_attempt(tmp_path, make_run(), 1, duration_ms=-1)
    (record,) = tmp_path.glob("*.exit.json")
    values = json.loads(record.read_text())
    del values["duration_ms"]
    record.write_text(json.dumps(values))
    summary = summary_of(tmp_path)
    assert (its := spent(summary.results)).by_wall_clock == its.attempts == 1 and its.node_hours == 1
    assert "1 attempt by the wall clock alone: had it been set, nothing would show it" in (cost_line(summary) or "")


def test_nested_points_hold_the_nodes_of_the_largest(tmp_path: Path) -> None:
    small, large = make_run(placement="nested"), make_run(nodes=4, placement="nested")
    for run in (small, large):
        put(tmp_path, make_trace(run))
        put_attempt(tmp_path, run, 1)
    first, _ = summary_of(tmp_path).results
    assert spent(summary_of(tmp_path).results).node_hours == 8
    assert spent([first], nodes_held(summary_of(tmp_path).results)).node_hours == 4


def test_simulated_nodes_are_the_one_machine(tmp_path: Path) -> None:
    run = make_run(nodes=4, site="local")
    put_attempt(tmp_path, run, 1, Outcome.OOM)
    put_planned(tmp_path, [run])
    assert spent(summary_of(tmp_path).results).node_hours == 1


def test_what_has_no_record_is_said(tmp_path: Path) -> None:
    run = make_run()
    put_planned(tmp_path, [run, make_run(repeat=2)])
    put(tmp_path, make_trace(run))
    put(tmp_path, make_trace(make_run(repeat=2)))
    assert cost_line(summary_of(tmp_path)) == ""  # nothing says how long an attempt took
    put_attempt(tmp_path, run, 0.01)
    summary = summary_of(tmp_path)
    assert cost_line(summary) == (
        "cost: 0.01 node hours of 1 attempt; 1 attempt without a recorded duration not counted"
    )
