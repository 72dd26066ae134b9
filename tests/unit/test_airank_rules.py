"""AI-Rank's four rules: a log that keeps them, and each of them broken alone."""

from __future__ import annotations

import json

import pytest

from parse.airank import judge, judge_folder, read_training, training_results
from tests.unit.airank_logs import INFORMATION, marks, submission, text


def judged(tmp_path, written, target=None):
    """The broken rules of a log with that text, and the log of 1 device beside it."""
    (tmp_path / "GPUx1.log").write_text(text(marks()))
    path = tmp_path / "GPUx8.log"
    path.write_text(written)
    _, result = training_results([read_training(tmp_path / "GPUx1.log"), read_training(path)], target)
    return list(judge(result))


def changed(**texts):
    """The marks of a training that keeps the rules, some of them with another text; None leaves one out."""
    usual = marks()
    new = {name: (usual[name][0], mark_text) for name, mark_text in texts.items() if mark_text is not None}
    return {name: mark for name, mark in (usual | new).items() if texts.get(name, "") is not None}


USUAL = marks()
BROKEN = [
    # The rules' own example is such a one: 8.03 s where 6.00 s pass.
    ("time to train", changed(target_quality_time="target_quality_time:302.03sec"),
     {"printed_s": 302.03, "time_s": 300},
     "302.03 s is printed, 300.00 s pass until the first evaluation at 75.9 %"),
    ("time to train", changed(target_quality_time="target_quality_time:400.00sec"), {"printed_s": 400, "time_s": 300},
     "400.00 s is printed, 300.00 s pass until the first evaluation at 75.9 %: it runs to test_finish"),
    ("time to train", changed(target_quality_time=None), {"time_s": 300},
     "no target_quality_time is printed, 300.00 s pass by its time stamps"),
    ("accuracy", marks(accuracies=(0.3, 0.7589)), {"best": 75.89, "evaluations": 2},
     "75.9 % is not reached in 2 evaluations: 75.890 % at best"),
    ("accuracy", changed(**{f"eval {n}": None for n in range(1, 5)}, target_quality_time=None), {},
     "nothing is evaluated"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "log_marks", "figures", "message"), BROKEN)
def test_one_broken_rule(tmp_path, rule, log_marks, figures, message):
    broken = {item.name: item for item in judged(tmp_path, text(log_marks))}
    assert set(broken) == {rule}
    assert broken[rule].text == message
    for name, value in figures.items():
        assert broken[rule].figures[name] == (pytest.approx(value) if isinstance(value, float) else value)


def test_a_log_that_breaks_no_rule(tmp_path):
    assert judged(tmp_path, text(USUAL)) == []


def test_devices_in_a_name_and_in_its_log(tmp_path):
    (path := tmp_path / "GPUx8.log").write_text(
        "DLL 2021-03-23 09:00:00.000000 - PARAMETER arch : resnet50  batch_size : 256  world_size : 4\n"
        "DLL 2021-03-23 09:01:00.000000 - Epoch: 0 Iteration: 10  train.loss : 7.0  train.total_ips : 800.00 img/s\n"
    )
    broken = {item.name: item.figures for item in judge(*training_results([read_training(path)]))}
    assert broken["files"] == {"named": 8, "in_log": 4}


def of_folder(folder):
    """How the logs of a folder together break the rule of files."""
    trainings = [read_training(path) for path in sorted(folder.glob("*.log"))]
    items = list(judge_folder(training_results(trainings)))
    assert {item.name for item in items} <= {"files"}
    return [item.text for item in items]


def test_log_names_and_cases(tmp_path):
    folder = submission(tmp_path)
    (folder / "GPUx1.log").rename(folder / "GPUx1_FP32.log")
    assert of_folder(folder) == ["not GPUx1.log, GPUx8.log or GPUx32.log: GPUx1_FP32.log"]
    (folder / "GPUx1_FP32.log").rename(folder / "GPUx1.log")
    (folder / "GPUx32.log").unlink()
    assert of_folder(folder) == ["no log of 32 devices (there are logs of 1, 8)"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (None, "nor in the 3 folders above it"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "holds no object"),
        (json.dumps({name: value for name, value in INFORMATION.items() if name != "submitter"}), "lacks submitter"),
        (json.dumps(INFORMATION | {"hardware_name": ""}), "says nothing in hardware_name"),
        (json.dumps(INFORMATION | {"number_of_nodes": 1}), "has 1 nodes of 8 accelerators = 8, but a log is of 32"),
    ],
)  # fmt: skip
def test_incomplete_system_information(tmp_path, written, message):
    folder, path = submission(tmp_path), tmp_path / "linux" / "system_information.json"
    path.unlink() if written is None else path.write_text(written)
    (broken,) = of_folder(folder)
    assert "system_information.json" in broken and message in broken


def test_a_speedup_needs_a_log_of_one_device(tmp_path):
    path = tmp_path / "GPUx8.log"
    path.write_text(text(USUAL))
    (item,) = judge(*training_results([read_training(path)]))
    assert (item.name, item.text) == ("speedup", "there is no log of 1 device beside it")
