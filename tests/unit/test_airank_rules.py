"""AI-Rank's rules: a log that keeps them, and each of them broken alone."""

from __future__ import annotations

import json

import pytest

from parse.published.airank_report import read
from parse.published.airank_rules import FOLDER_RULES, RULES, judge, judge_folder
from parse.published.training import read_training
from parse.published.training_result import RuleSettings, training_results
from tests.unit.airank_logs import BEGIN_S, INFORMATION, marks, submission, text


def judged(tmp_path, written, log_format=None, **settings):
    """The broken rules of a log with that text."""
    path = tmp_path / "GPUx8.log"
    path.write_text(written)
    (result,) = training_results([read_training(path, log_format)], RuleSettings(**settings))
    return judge(result)


def changed(**texts):
    """The marks of a training that keeps the rules, some of them with another text; None leaves one out."""
    usual = marks()
    new = {name: (usual[name][0], mark_text) for name, mark_text in texts.items() if mark_text is not None}
    return {name: mark for name, mark in (usual | new).items() if texts.get(name, "") is not None}


def later(shift_s, *names, texts=None):
    """The marks of `changed(**texts)`, those of these names later by so many seconds; without names all but two."""
    return {
        name: (time_s + (shift_s if name in names or (not names and time_s > BEGIN_S) else 0), mark_text)
        for name, (time_s, mark_text) in changed(**(texts or {})).items()
    }


USUAL = marks()
TWICE = {name: USUAL[name] for name in ("load_data", "test_begin")} | {"again": USUAL["test_begin"]} | USUAL
FROM_0 = changed(**{f"eval {n}": USUAL[f"eval {n}"][1].replace(f"cnt:{n}", f"cnt:{n - 1}") for n in range(1, 5)})
SLOW_START = later(
    50, texts={"target_quality_time": "target_quality_time:350.00sec", "total_use_time": "total_use_time:450.00sec"}
)
UNORDERED = {"test_begin": USUAL["test_begin"], "load_data": (BEGIN_S, USUAL["load_data"][1])}
UNORDERED |= {name: mark for name, mark in USUAL.items() if name not in UNORDERED}
REACHED = "the first evaluation at or above 75.9 % (75.900 %, epoch 3)"
NO_CHECKSUM = "'{}' is no checksum (8 hexadecimal digits at least)"

BROKEN = [
    ("marks", changed(test_finish=None, avg_ips=None), {"names": ["test_finish", "avg_ips"]},
     "missing: test_finish, avg_ips"),
    ("marks", TWICE, {}, "more than once: test_begin (2 times)"),
    ("marks", changed(test_begin="test begin"), {}, "spelt otherwise: test begin for test_begin"),
    ("time stamps", later(-4, "total_use_time"), {"early_s": 4},
     "total_use_time is stamped 4.000 s before test_finish, which precedes it"),
    ("checksum", changed(load_data="load_data"), {}, "load_data has none"),
    ("checksum", changed(load_data="load_data, checksum:234584"), {"checksum": "234584"}, NO_CHECKSUM.format(234584)),
    ("checksum", changed(load_data="load_data, checksum:xxxxxxxxxx"), {}, NO_CHECKSUM.format("xxxxxxxxxx")),
    ("evaluation every epoch", changed(**{"eval 2": None}), {"nth": 2, "epoch": 3, "before": 1},
     "evaluation 2 comes after epoch 3, the one before it after 1"),
    ("evaluation every epoch", changed(**{"eval 4": "eval_accuracy:0.7700"}), {"lacking": 1},
     "1 of 4 evaluations do not say after how many epochs"),
    ("total_epoch_cnt", FROM_0, {}, "total_epoch_cnt is 0 after the first epoch: it counts from 0, one too few"),
    ("target", marks(accuracies=(0.3, 0.7589)), {"best": 75.89, "evaluations": 2},
     "75.9 % is not reached in 2 evaluations: 75.890 % at best"),
    # The rules' own example is such a one: 8.03 s where 6.00 s pass.
    ("target_quality_time", changed(target_quality_time="target_quality_time:302.03sec"),
     {"printed_s": 302.03, "time_s": 300}, f"302.03 s is printed, 300.00 s pass from test_begin to {REACHED}"),
    ("time to train", changed(target_quality_time="target_quality_time:400.00sec"), {"printed_s": 400, "time_s": 300},
     f"target_quality_time 400.00 s runs to test_finish: 300.00 s pass to {REACHED}"),
    ("total_use_time", changed(total_use_time="total_use_time:398.50sec"), {"printed_s": 398.5, "time_s": 400},
     "398.50 s is printed, 400.00 s pass from test_begin to test_finish"),
    ("avg_ips", changed(avg_ips="avg_ips:701images/sec"), {"printed": 701, "computed": 640},
     "701.00 samples/s is printed, 4 epochs of 64,000 samples make 640.00 (+9.5%; 0 warm-up epochs, the nearest)"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "log_marks", "figures", "message"), BROKEN)
def test_one_broken_rule(tmp_path, rule, log_marks, figures, message):
    broken = {item.name: item for item in judged(tmp_path, text(log_marks))}
    assert set(broken) == {rule}
    assert broken[rule].text == message
    for name, value in figures.items():
        assert broken[rule].figures[name] == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("seed", "message"), [(None, "no seed is printed"), ("None", "the seed is None, which fixes nothing")]
)
def test_no_seed(tmp_path, seed, message):
    assert [(item.name, item.text) for item in judged(tmp_path, text(USUAL, seed=seed))] == [("seed", message)]


@pytest.mark.parametrize("log_marks", [USUAL, marks(accuracies=(0.3, 0.7590)), SLOW_START])
def test_logs_that_break_no_rule(tmp_path, log_marks):
    """`SLOW_START` prints its throughput after one warm-up epoch: any number of them is right unless requested."""
    assert judged(tmp_path, text(log_marks)) == []


def test_a_submission_that_breaks_no_rule(tmp_path):
    report = read([submission(tmp_path)], [], RuleSettings())
    assert (list(report.violations), list(report.refusals)) == ([], [])
    assert [round(result.speedup, 2) for result in report.results] == [1.0, 8.0, 26.67]


def test_a_log_without_marks(tmp_path):
    first, *others = judged(tmp_path, ':::MLLOG {"key": "run_start", "time_ms": 1593154759901}\n')
    assert (first.name, first.text) == (
        "marks", "there is none; its numbers come from nowhere: nothing is evaluated"
    )  # fmt: skip
    assert {item.name for item in others} == {"evaluation every epoch", "seed"}


def test_marks_without_a_time_stamp(tmp_path):
    (item,) = judged(tmp_path, text(USUAL).replace(f"AI-Rank-log {BEGIN_S - 1:.3f}", "AI-Rank-log"))
    assert item.figures == {"untimed": 1, "marks": 10}


def test_marks_out_of_order(tmp_path):
    (item,) = judged(tmp_path, text(UNORDERED))
    assert (item.name, item.figures["mark"], item.figures["before"]) == ("order", "load_data", "test_begin")


def test_a_time_to_train_without_the_target(tmp_path):
    early = USUAL | {"target_quality_time": (BEGIN_S + 300, "target_quality_time:300.00sec")}
    broken = {item.name: item.text for item in judged(tmp_path, text(early), target=78)}
    assert "but there is no such time: the target of 78 % is not reached" in broken["target_quality_time"]


def test_a_total_in_the_place_of_a_time_to_train(tmp_path):
    first, second = judged(tmp_path, text(changed(target_quality_time=None)))
    assert (first.name, second.name, second.figures["printed_s"]) == ("marks", "time to train", 400)
    assert "total_use_time 400.00 s runs to test_finish and there is no target_quality_time" in second.text


def test_a_throughput_is_compared_after_the_requested_warmup_epochs(tmp_path):
    (item,) = judged(tmp_path, text(SLOW_START), warmup_epochs=0)
    assert item.figures["computed"] == pytest.approx(568.89, abs=0.01)
    assert item.text.endswith("make 568.89 (+12.5%; 0 warm-up epochs, as requested)")


def test_devices_in_a_name_and_in_its_log(tmp_path):
    broken = {item.name: item.figures for item in judged(tmp_path, text(USUAL, devices=4), "ngc-pytorch")}
    assert broken["devices"] == {"named": 8, "in_log": 4}


def test_every_rule_has_a_test():
    others = {"order", "seed", "devices"}
    assert {rule for rule, *_ in BROKEN} | others == set(RULES)
    assert set(FOLDER_RULES) == {"log names", "cases", "system_information.json"}


def of_folder(folder):
    """The rules that the logs of a folder break together."""
    trainings = [read_training(path) for path in sorted(folder.glob("*.log"))]
    return {item.name: item.text for item in judge_folder(training_results(trainings, RuleSettings()))}


def test_log_names_and_cases(tmp_path):
    folder = submission(tmp_path)
    (folder / "GPUx1.log").rename(folder / "GPUx1_FP32.log")
    assert of_folder(folder) == {"log names": "not GPUx1.log, GPUx8.log or GPUx32.log: GPUx1_FP32.log"}
    (folder / "GPUx1_FP32.log").rename(folder / "GPUx1.log")
    (folder / "GPUx32.log").unlink()
    assert of_folder(folder) == {"cases": "no log of 32 devices (there are logs of 1, 8)"}


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
    broken = of_folder(folder)
    assert list(broken) == ["system_information.json"] and message in broken["system_information.json"]
