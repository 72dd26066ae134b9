"""Summaries of whole trainings, AI-Rank's files of them, what is refused before one is submitted."""

from __future__ import annotations

import dataclasses
import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from hpc.backends.refusals import refuse_invalid
from hpc.model.options import OptionError
from hpc.model.spec import SpecError
from hpc.model.trace_file import read_trace, write_trace
from hpc.model.training import INFORMATION
from hpc.recovery.journal import Journal, median_step_s, read_progress
from parse.airank import main as airank
from parse.report.summary import Summary
from parse.report.trainings import trainings, trainings_blocks
from parse.summarize import main as summarize
from parse.text import Page, block_lines
from tests.unit.test_data_request import planned
from tests.unit.test_training import S, epoch, history
from tests.unit.traces import judged, make_run, make_trace

WHOLE: dict[str, Any] = {"workload": "resnet50", "data": "imagefolder:/x", "epochs": 4, "target_accuracy": 75.0}


def trained(devices: int, speed: float, *, repeat: int = 1, **changes: Any) -> Any:
    """A trace whose training reached the target in its third epoch, so many times as fast as ten seconds an epoch."""
    run = make_run(**WHOLE, ranks_per_node=devices, backend="torch-ddp", repeat=repeat)
    course = history(epoch(1, 1, 40), epoch(1, 14, 74), epoch(1, 27, 75), stop_s=39, **changes)
    start = course.start_ns

    def sooner(ns: int) -> int:
        return start + round((ns - start) / speed) if ns else 0

    epochs = [
        dataclasses.replace(
            each, begin_ns=sooner(each.begin_ns), trained_ns=sooner(each.trained_ns),
            evaluated_ns=sooner(each.evaluated_ns),
        )
        for each in course.epochs
    ]  # fmt: skip
    return make_trace(run, history=dataclasses.replace(course, epochs=epochs, stop_ns=sooner(course.stop_ns)))


def test_time_to_train_is_the_median_and_its_speedup_that_of_times() -> None:
    results = judged([trained(1, 1), *(trained(8, speed, repeat=at) for at, speed in enumerate((4, 6, 7.8), start=1))])
    single, eight = trainings(results)
    assert (single.time_to_train_s, single.speedup, single.epochs, single.accuracy) == (39.0, 1.0, 3, 75.0)
    assert (eight.reached, eight.runs, eight.time_to_train_s) == (3, 3, pytest.approx(6.5))
    assert eight.speedup == pytest.approx(6) and eight.throughput == pytest.approx(3000 / 6.5)


def test_without_1n1g_the_time_to_train_is_against_the_smallest_case() -> None:
    results = judged([trained(8, 4), trained(16, 6), trained(32, 10)])
    assert [(row.base, row.speedup) for row in trainings(results)] == [
        ("1n8g", 1.0), ("1n8g", pytest.approx(1.5)), ("1n8g", pytest.approx(2.5)),
    ]  # fmt: skip
    heads, units = block_lines(trainings_blocks(Summary(results=results)), Page(width=200))[1:3]
    assert "speedup" in heads and "against 1n8g" in units
    (single,) = trainings(judged([trained(8, 4)]))
    assert (single.speedup, single.base) == (None, None)
    assert single.no_speedup == "no training of another case with all else equal is here"


def test_a_training_without_its_target_has_no_time_and_says_so() -> None:
    run = make_run(**WHOLE)
    course = history(*[epoch(1, 13 * at, 10 + at) for at in range(4)], checkpoint_errors=("after epoch 2: full",))
    (row,) = trainings(judged([make_trace(run, history=course)]))
    assert (row.reached, row.time_to_train_s, row.speedup, row.accuracy) == (0, None, None, 13.0)
    assert row.problems == (
        "1 of 1 trainings ended without 75 % after 4 epochs; the best was 13.00 %",
        "no checkpoint after epoch 2: full",
    )


def test_without_a_target_nothing_reached_one() -> None:
    run = make_run(**WHOLE | {"target_accuracy": 0.0})
    course = dataclasses.replace(history(*[epoch(1, 13 * at, 10 + at) for at in range(3)]), target=0.0)
    results = judged([make_trace(run, history=course)])
    (row,) = trainings(results)
    assert (row.reached, row.runs, row.time_to_train_s, row.speedup) == (None, 1, None, None)
    lines = block_lines(trainings_blocks(Summary(results=results)), Page(width=200))
    heads, cells = (line.split() for line in lines if line.startswith(("case ", "1n1g  ")))
    assert cells[heads.index("target") :][:6] == ["-", "-", "of", "1", "-", "3.00"]


def test_a_trace_keeps_the_history(tmp_path: Path) -> None:
    trace = trained(8, 2)
    write_trace(tmp_path / "t.h5", trace)
    assert read_trace(tmp_path / "t.h5").history == dataclasses.replace(
        trace.history, epochs=tuple(trace.history.epochs)
    )


def traces_in(folder: Path, *devices: int) -> Path:
    folder.mkdir()
    for count in devices:
        trace = trained(count, count)
        write_trace(folder / f"{trace.run.run_id}.1.h5", trace)
    return folder


def test_airank_finds_nothing_wrong_with_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, out = traces_in(tmp_path / "traces", 1, 8, 32), tmp_path / "log"
    assert summarize([str(traces), "--format", "ai-rank", "--out", str(out)]) == 0
    assert "to be filled in: " in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["GPUx1.log", "GPUx32.log", "GPUx8.log", INFORMATION]
    assert json.loads((out / INFORMATION).read_text())["accelerators_per_node"] == 32
    assert airank([str(out), "--target", "75"]) == 0
    printed = capsys.readouterr().out
    assert "no rule is broken" in printed
    (row,) = (line.split() for line in printed.splitlines() if line.strip().startswith("GPUx32.log "))
    assert (row[1], row[2]) == ("32", "1.22") and float(row[5]) == pytest.approx(32, rel=1e-3), row


def test_airank_files_need_a_training_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    trace = make_trace(make_run())
    write_trace(folder / f"{trace.run.run_id}.1.h5", trace)
    assert summarize([str(folder), "--format", "ai-rank", "--out", str(tmp_path / "log")]) == 1
    assert "no run here is a whole training" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        summarize([str(folder), "--format", "ai-rank"])
    assert "takes a folder to write to, --out DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"epochs": 3}, "data is synthetic: name images by --data"),
        ({"epochs": 3, "data": "imagefolder:/x", "backend": "paddle-fleet"}, "it has no whole trainings"),
        ({"target_accuracy": 50}, "--epochs N says how many one may take"),
        ({"epochs": 3, "data": "imagefolder:/x", "target_accuracy": "0.759"}, "for a share, write 75.9"),
        ({"epochs": 3, "data": "imagefolder:/x", "target_accuracy": "lots"}, "is no percentage"),
        ({"epochs": 3, "data": "imagefolder:/x", "data_cache": "device"}, "a whole training reads all of its images"),
        ({"data": "imagefolder:/x", "option": {"warmup_epochs": "2"}}, "option warmup_epochs is of whole trainings"),
        (
            {"epochs": 3, "data": "imagefolder:/x", "option": {"learning_rate": "-1"}},
            "neither auto nor a number above 0",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_at_planning(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises((SpecError, OptionError), match=reason):
        planned(**request_)


def test_a_search_for_the_largest_value_trains_nothing_to_its_end() -> None:
    with pytest.raises(SpecError, match="find-max batch-size tries values by a few steps each: leave out --epochs"):
        refuse_invalid([make_run(**WHOLE, backend="torch-ddp", search="batch-size")])


def test_a_no_sync_run_beside_a_whole_training_is_none() -> None:
    runs = planned(epochs=3, data="imagefolder:/x", nodes="2", no_sync=True)
    assert {(run.reduction, run.epochs) for run in runs} == {("on", 3), ("off", 0)}


def test_progress_counts_the_steps_after_the_measured_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r.1", 0, 3, unmeasured=10)
    try:
        for step in range(3):
            journal.stamps[step * 6 : step * 6 + 6] = array("q", [step * S + at for at in range(6)])
            journal.samples[step] = 4
        journal.unmeasured[0] += 4
        (progress,) = read_progress(journal.folder).values()
        assert (progress.completed, progress.steps, progress.stamped) == (7, 13, 3)
        assert median_step_s(progress) == pytest.approx(5e-9)
    finally:
        journal.remove()
    assert not journal.folder.exists()
