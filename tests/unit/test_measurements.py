"""One sweep measured twice: kept apart by folder and date, nowhere pooled; copies and folders of one measurement."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import BeginRecord, ExitRecord, Outcome
from hpc.model.spec import RunSpec
from parse.alarms.nodes import per_node
from parse.alarms.table import judge
from parse.ledger.point import ledgers
from parse.report.summary import Summary
from parse.report.table import text
from parse.runs.load import load
from parse.runs.measurements import days
from parse.runs.result import Result, results
from parse.summarize import main
from tests.unit.traces import cut_short, make_ranks, make_run, make_trace, put, put_plan, repeats

DAY_S = 86_400
MAY, JUNE = 1_778_760_000, 1_781_352_000
"""2026-05-14 and 2026-06-13, noon (UTC)."""


def record(run: RunSpec, begin_unix_s: int, outcome: Outcome = Outcome.OK, attempt: int = 1) -> ExitRecord:
    return ExitRecord(
        run_id=run.run_id, attempt=attempt, outcome=outcome, exit_status=0, job_id="17", begin_unix_s=begin_unix_s,
        end_unix_s=begin_unix_s + 60,
    )  # fmt: skip


def sweep(folder: Path, begin_unix_s: int, speed: float, *, count: int = 2, **facts: Any) -> Path:
    """1n1g and 2n1g, so many runs of each, with plan and records; twice as fast on two nodes."""
    folder.mkdir(parents=True)
    runs = [run for nodes in (1, 2) for run in repeats(make_run(nodes=nodes, workload="resnet50"), count)]
    put_plan(folder, runs)
    for run in runs:
        put(folder, make_trace(run, speed=speed * run.nodes + run.repeat / 100, ranks=make_ranks(run, **facts)))
        record(run, begin_unix_s).write(folder)
    return folder


@pytest.fixture
def may(tmp_path: Path) -> Path:
    return sweep(tmp_path / "traces_may", MAY, 40.0)


@pytest.fixture
def june(tmp_path: Path) -> Path:
    return sweep(tmp_path / "traces_june", JUNE, 50.0, nvidia_driver="580.2")


def points(*paths: Path) -> tuple[Result, ...]:
    return judge(results(load(paths)))


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


# Two measurements


def test_each_has_its_own_runs_and_baselines(may: Path, june: Path) -> None:
    read = [(each.requested.measurement, each.requested.case, len(each.ok)) for each in points(may, june)]
    assert [(of and (of.folder, of.date), case, ok) for of, case, ok in read] == [
        (("traces_may", "2026-05-14"), "1n1g", 2),
        (("traces_may", "2026-05-14"), "2n1g", 2),
        (("traces_june", "2026-06-13"), "1n1g", 2),
        (("traces_june", "2026-06-13"), "2n1g", 2),
    ]
    assert load([may, june]).remarks == ()
    medians = [each.median_speed for each in points(may, june)]
    assert medians == pytest.approx([40.015, 80.015, 50.015, 100.015])
    assert [each.speedup for each in points(may, june)] == pytest.approx([1, 80.015 / 40.015, 1, 100.015 / 50.015])


def test_a_point_without_its_own_baseline_has_no_speedup(may: Path, june: Path) -> None:
    for path in june.glob("1n1g*"):
        path.unlink()
    first = make_run(nodes=2, workload="resnet50")
    for plan in june.glob("plan.*"):
        plan.unlink()
    put_plan(june, repeats(first, 2))
    (single,) = [each for each in points(may, june) if each.requested.measurement.folder == "traces_june"]
    assert single.speedup is None and single.no_speedup is not None


def test_the_ledger_takes_the_baseline_of_its_own_measurement(may: Path, june: Path) -> None:
    read = ledgers(points(may, june))
    steps = [4 / 40.015, 8 / 80.015, 4 / 50.015, 8 / 100.015]
    assert [each.step.value for each in read] == pytest.approx([1e3 * step for step in steps], rel=1e-3)
    losses = [each.loss.value for each in read if each.loss]
    assert losses == pytest.approx([1e3 * (steps[1] - steps[0]), 1e3 * (steps[3] - steps[2])], abs=1e-3)


def test_collectives_of_another_day_explain_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from parse.ledger.standalone import matching

    run = make_run(nodes=2)
    for name, begin in (("may", MAY), ("june", JUNE)):
        (tmp_path / name).mkdir()
        put(tmp_path / name, make_trace(run, speed=begin % 89 + 1.0))
    put(tmp_path / "june", make_trace(make_run(nodes=2, workload="collectives")))
    read = points(tmp_path / "may", tmp_path / "june")
    collectives = [each for each in read if each.run.diagnostic]
    named = {
        each.requested.measurement.folder: len(matching(each, collectives)) for each in read if not each.run.diagnostic
    }
    assert named == {"may": 0, "june": 1}


def test_nodes_of_two_measurements_are_apart(tmp_path: Path) -> None:
    """n1 is slow in May and fast in June."""
    for name, begin, slow in (("may", MAY, 0.9), ("june", JUNE, 1.1)):
        (tmp_path / name).mkdir()
        for run in repeats(make_run(), 8):
            host = f"n{run.repeat % 2}"
            speed = (40 if name == "may" else 50) * (slow if host == "n1" else 1) * (1 + run.repeat / 1e4)
            put(tmp_path / name, make_trace(run, speed=speed, ranks=make_ranks(run, hostname=host)))
            record(run, begin + 60 * run.repeat).write(tmp_path / name)
    read = points(tmp_path / "may", tmp_path / "june")
    assert [(site.folder, site.nodes[0].node) for site in per_node(read)] == [("may", "n1"), ("june", "n0")]


def test_every_format_tells_them_apart(may: Path, june: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, may, june, "--format", "csv"))))
    assert [(row["case"], row["folder"], row["date"]) for row in rows] == [
        ("1n1g", "traces_may", "2026-05-14"), ("2n1g", "traces_may", "2026-05-14"),
        ("1n1g", "traces_june", "2026-06-13"), ("2n1g", "traces_june", "2026-06-13"),
    ]  # fmt: skip
    page = json.loads(printed(capsys, may, june, "--format", "json", "--ledger"))
    assert {run["date"] for each in page["results"] for run in each["runs"]} == {"2026-05-14", "2026-06-13"}
    assert len(page["ledgers"]) == 4
    markdown = printed(capsys, may, june, "--format", "markdown")
    assert markdown.count("| traces_june | 2026-06-13 |") == 2
    assert main([str(may), str(june), "--format", "dlperf"]) == 1
    assert "--where folder=traces_may --where date=2026-05-14" in capsys.readouterr().err
    chosen = printed(capsys, may, june, "--format", "dlperf", "--where", "folder=traces_june")
    assert json.loads(chosen)["r50"]["1n1g"]["median_speed"] == 50.01


def test_days_from_the_first_attempt_to_the_last(tmp_path: Path, june: Path) -> None:
    may = sweep(tmp_path / "may", MAY, 40.0)
    run = make_run(workload="resnet50")
    record(run, MAY + 2 * DAY_S, Outcome.PREEMPTED, attempt=2).write(may)
    assert points(may, june)[0].requested.measurement.date == "2026-05-14 to 2026-05-16"


def test_days_by_begin_records_and_none_by_nothing(tmp_path: Path) -> None:
    run = make_run()
    for name, speed in (("a", 40.0), ("b", 50.0)):
        (tmp_path / name).mkdir()
        put(tmp_path / name, make_trace(run, speed=speed))
    assert [each.requested.measurement.date for each in points(tmp_path / "a", tmp_path / "b")] == ["", ""]
    BeginRecord(run_id=run.run_id, attempt=1, job_id="1", begin_unix_s=MAY).take(tmp_path / "a")
    first, second = points(tmp_path / "a", tmp_path / "b")
    assert (first.requested.measurement.date, second.requested.measurement.date) == ("", "2026-05-14")
    assert "date" not in {name for line in text(Summary(results=(first,))).splitlines() for name in line.split()}


@pytest.mark.parametrize(
    ("times", "text_of"),
    [
        ([], ""), ([None], ""), ([MAY, None], "2026-05-14"), ([MAY + DAY_S, MAY], "2026-05-14 to 2026-05-15"),
        ([10**30, -(10**30)], ""), ([0], "1970-01-01"),
    ],
)  # fmt: skip
def test_days(times: list[int | None], text_of: str) -> None:
    assert days(times) == text_of


def test_a_missing_run_is_missing_in_its_own_measurement(may: Path, june: Path) -> None:
    for path in june.glob(f"{repeats(make_run(workload='resnet50'), 2)[1].run_id}.1.*"):
        path.unlink()
    read = {(each.requested.measurement.folder, each.requested.case): each for each in points(may, june)}
    assert [run.outcome_text for run in read["traces_june", "1n1g"].runs] == ["ok", "missing"]
    assert [run.outcome_text for run in read["traces_may", "1n1g"].runs] == ["ok", "ok"]


def test_a_measurement_without_a_plan_says_so(may: Path, june: Path) -> None:
    for plan in june.glob("plan.*"):
        plan.unlink()
    loaded = load([may, june])
    assert loaded.remarks == ("traces_june: no plan (plan.*.json) is here: whether runs are missing is not known",)
    assert [each.planned_runs for each in results(loaded)] == [2, 2, None, None]


def test_runs_that_versions_name_otherwise_are_the_same_runs(tmp_path: Path) -> None:
    run = make_run()
    for name, trace in (("a", make_trace(run)), ("b", dataclasses.replace(make_trace(run, speed=9), run_id="old_r1"))):
        (tmp_path / name).mkdir()
        put(tmp_path / name, trace)
    assert [each.median_speed for each in points(tmp_path / "a", tmp_path / "b")] == pytest.approx([40, 9])


# One measurement


def test_a_copy_of_a_folder_is_counted_once(may: Path, tmp_path: Path) -> None:
    single = points(may)
    shutil.copytree(may, tmp_path / "copy")
    read = points(may, tmp_path / "copy")
    assert [each.requested.measurement for each in read] == [None, None]
    assert [(each.median_speed, len(each.runs)) for each in read] == [
        (each.median_speed, len(each.runs)) for each in single
    ]


def test_a_sweep_continued_in_a_copy_has_there_what_it_measured_there(may: Path, tmp_path: Path) -> None:
    copy = tmp_path / "traces_then"
    shutil.copytree(may, copy)
    first, second = repeats(make_run(workload="resnet50"), 2)
    (copy / f"{second.run_id}.1.h5").unlink()
    put(copy, make_trace(second, speed=10))
    record(second, JUNE).write(copy)
    read = {(each.requested.measurement.folder, each.requested.case): each for each in points(may, copy)}
    assert {*read} == {("traces_may", "1n1g"), ("traces_may", "2n1g"), ("traces_then", "1n1g")}
    assert read["traces_then", "1n1g"].median_speed == pytest.approx(10)
    assert [run.requested.run_id for run in read["traces_then", "1n1g"].runs] == [second.run_id]
    assert first.run_id in {run.requested.run_id for run in read["traces_may", "1n1g"].runs}


def test_folders_that_have_no_run_in_common_are_one(tmp_path: Path) -> None:
    for nodes in (1, 2):
        (tmp_path / str(nodes)).mkdir()
        run = make_run(nodes=nodes)
        put_plan(tmp_path / str(nodes), [run])
        put(tmp_path / str(nodes), make_trace(run))
        record(run, MAY * nodes // nodes).write(tmp_path / str(nodes))
    first, second = points(tmp_path / "1", tmp_path / "2")
    assert (first.requested.measurement, second.requested.measurement, second.speedup) == (None, None, pytest.approx(2))


def test_a_retried_sweep_in_one_folder_is_one(may: Path) -> None:
    run = make_run(workload="resnet50")
    put(may, dataclasses.replace(make_trace(run, speed=60), attempt=2))
    record(run, JUNE, attempt=2).write(may)
    first = points(may)[0]
    assert (first.requested.measurement, len(first.runs)) == (None, 2)
    assert first.runs[0].attempt.number == 2 and [alarm.name for alarm in first.alarms] == ["repeated"]


def test_a_folder_below_the_plan_belongs_to_it(may: Path) -> None:
    (may / "old").mkdir()
    run = make_run(workload="resnet50")
    (may / f"{run.run_id}.1.h5").rename(may / "old" / f"{run.run_id}.1.h5")
    put(may, cut_short(make_trace(run), 7, Outcome.LOST))
    remarks = load([may]).remarks
    assert any("neither is counted; if they are two measurements, name each folder" in x for x in remarks)
    assert {each.requested.measurement for each in points(may)} == {None}
