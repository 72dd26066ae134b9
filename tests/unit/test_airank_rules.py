"""AI-Rank's rules: a log that keeps them, and each of them broken alone."""

from __future__ import annotations

import json

import pytest

from parse.published.airank_report import read
from parse.published.airank_rules import RULES, judge, judge_folder
from parse.published.training import read_training
from parse.published.training_result import RuleSettings, training_results
from tests.unit.airank_logs import BEGIN_S, INFORMATION, SAMPLES, marks, submission, text


def broken(tmp_path, told, *, terms=None, name="GPUx8.log", **header):
    """The rules that a log of these marks breaks, and how."""
    terms = terms or RuleSettings()
    path = tmp_path / name
    path.write_text(text(told, **header))
    (case,) = training_results([read_training(path)], terms)
    return {one.name: one.text for one in judge(case)}


def changed(**texts):
    """The marks of a training that keeps the rules, some of them with another text; None leaves one out."""
    told = marks()
    for name, said in texts.items():
        if said is None:
            del told[name]
        else:
            told[name] = (told[name][0], said)
    return told


def test_a_log_to_the_rules_breaks_none(tmp_path):
    assert broken(tmp_path, marks()) == {}


def test_a_submission_to_the_rules_breaks_none(tmp_path):
    report = read([submission(tmp_path)], [], RuleSettings())
    assert (list(report.violations), list(report.refusals)) == ([], [])
    assert [round(case.speedup, 2) for case in report.results] == [1.0, 8.0, 26.67]


def test_marks_that_are_missing(tmp_path):
    found = broken(tmp_path, changed(test_finish=None, avg_ips=None))
    assert found == {"marks": "missing: test_finish, avg_ips"}


def test_no_marks_at_all(tmp_path):
    path = tmp_path / "GPUx1.log"
    path.write_text(':::MLLOG {"key": "run_start", "time_ms": 1593154759901}\n')
    (case,) = training_results([read_training(path)], RuleSettings())
    found = {one.name: one.text for one in judge(case)}
    assert found["marks"] == "there is none; its numbers come from nowhere: nothing is evaluated"
    assert set(found) == {"marks", "evaluation every epoch", "seed"}


def test_a_mark_printed_twice(tmp_path):
    told = marks()
    again = {name: told[name] for name in ("load_data", "test_begin")} | {"again": told["test_begin"]} | told
    assert broken(tmp_path, again)["marks"] == "more than once: test_begin (2 times)"


def test_a_mark_spelt_otherwise(tmp_path):
    assert broken(tmp_path, changed(test_begin="test begin")) == {"marks": "spelt otherwise: test begin for test_begin"}


def test_marks_without_a_time_stamp(tmp_path):
    path = tmp_path / "GPUx8.log"
    path.write_text(text(marks()).replace(f"AI-Rank-log {BEGIN_S - 1:.3f}", "AI-Rank-log"))
    (case,) = training_results([read_training(path)], RuleSettings())
    assert [one.text for one in judge(case)] == ["1 of 10 have no time stamp"]


def test_marks_out_of_order(tmp_path):
    told = marks()
    first = {"test_begin": (BEGIN_S, "test_begin"), "load_data": (BEGIN_S, told["load_data"][1])}
    found = broken(tmp_path, first | {name: mark for name, mark in told.items() if name not in first})
    assert list(found) == ["order"]
    assert found["order"].startswith("load_data (byte ") and "stands behind test_begin (byte " in found["order"]


def test_time_that_runs_backwards(tmp_path):
    told = marks()
    told["total_use_time"] = (told["total_use_time"][0] - 4, told["total_use_time"][1])
    found = broken(tmp_path, told)
    assert found == {"time stamps": "total_use_time is stamped 4.000 s before test_finish, which stands in front of it"}


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("load_data", "load_data has none"),
        ("load_data, checksum:234584", "'234584' is no checksum (8 hexadecimal digits at least)"),
        ("load_data, checksum:xxxxxxxxxx", "'xxxxxxxxxx' is no checksum (8 hexadecimal digits at least)"),
    ],
)
def test_no_checksum(tmp_path, said, how):
    assert broken(tmp_path, changed(load_data=said)) == {"checksum": how}


def test_an_epoch_without_evaluation(tmp_path):
    found = broken(tmp_path, changed(**{"eval 2": None}))
    assert found == {"evaluation every epoch": "evaluation 2 comes after epoch 3, the one before it after 1"}


def test_an_evaluation_that_does_not_say_when(tmp_path):
    found = broken(tmp_path, changed(**{"eval 4": "eval_accuracy:0.7700"}))
    assert found["evaluation every epoch"] == "1 of 4 evaluations do not say after how many epochs"


def test_epochs_counted_from_0(tmp_path):
    told = changed(**{f"eval {n}": marks()[f"eval {n}"][1].replace(f"cnt:{n}", f"cnt:{n - 1}") for n in range(1, 5)})
    assert list(broken(tmp_path, told)) == ["total_epoch_cnt"]


def test_a_target_that_is_not_reached(tmp_path):
    found = broken(tmp_path, marks(accuracies=(0.3, 0.7589)))
    assert found == {"target": "75.9 % is not reached in 2 evaluations: 75.890 % at best"}


def test_the_target_itself_is_enough(tmp_path):
    assert broken(tmp_path, marks(accuracies=(0.3, 0.7590))) == {}


def test_a_time_to_train_that_is_not_what_the_stamps_say(tmp_path):
    """The rules' own example is such a one: 8.03 s where 6.00 s pass."""
    found = broken(tmp_path, changed(target_quality_time="target_quality_time:302.03sec"))
    assert found == {
        "target_quality_time": "302.03 s is printed, 300.00 s pass from test_begin to the first evaluation at or above "
        "75.9 % (75.900 %, epoch 3)"
    }


def test_a_time_to_train_without_the_target(tmp_path):
    told = marks() | {"target_quality_time": (BEGIN_S + 300, "target_quality_time:300.00sec")}
    found = broken(tmp_path, told, terms=RuleSettings(target=78))
    assert "but there is no such time: the target of 78 % is not reached" in found["target_quality_time"]


def test_a_time_to_train_that_runs_to_the_last_epoch(tmp_path):
    found = broken(tmp_path, changed(target_quality_time="target_quality_time:400.00sec"))
    assert found == {
        "time to train": "target_quality_time 400.00 s runs to test_finish: 300.00 s pass to the first evaluation at "
        "or above 75.9 % (75.900 %, epoch 3)"
    }


def test_a_total_in_the_place_of_a_time_to_train(tmp_path):
    found = broken(tmp_path, changed(target_quality_time=None))
    assert list(found) == ["marks", "time to train"]
    assert "total_use_time 400.00 s runs to test_finish and there is no target_quality_time" in found["time to train"]


def test_a_total_that_is_not_what_the_stamps_say(tmp_path):
    found = broken(tmp_path, changed(total_use_time="total_use_time:398.50sec"))
    assert found == {"total_use_time": "398.50 s is printed, 400.00 s pass from test_begin to test_finish"}


def test_a_throughput_that_is_not_what_the_stamps_say(tmp_path):
    found = broken(tmp_path, changed(avg_ips="avg_ips:701images/sec"))
    assert found == {
        "avg_ips": "701.00 samples/s is printed, 4 epochs of 64,000 samples make 640.00 "
        "(+9.5%; 0 warm-up epochs, the nearest)"
    }


def test_a_throughput_after_any_number_of_warmup_epochs_is_right_unless_told(tmp_path):
    told = marks()
    late = {name: (time_s + (50 if time_s > BEGIN_S else 0), said) for name, (time_s, said) in told.items()}
    late["target_quality_time"] = (late["eval 3"][0], "target_quality_time:350.00sec")
    late["total_use_time"] = (late["test_finish"][0], "total_use_time:450.00sec")
    assert broken(tmp_path, late) == {}
    found = broken(tmp_path, late, terms=RuleSettings(warmup_epochs=0))
    assert found["avg_ips"].endswith(
        f"4 epochs of {SAMPLES:,} samples make 568.89 (+12.5%; 0 warm-up epochs, as asked)"
    )


@pytest.mark.parametrize(
    ("seed", "how"), [(None, "no seed is printed"), ("None", "the seed is None, which fixes nothing")]
)
def test_no_seed(tmp_path, seed, how):
    assert broken(tmp_path, marks(), seed=seed) == {"seed": how}


def test_a_name_that_says_otherwise_than_the_log(tmp_path):
    path = tmp_path / "GPUx8.log"
    path.write_text(text(marks(), devices=4))
    (case,) = training_results([read_training(path, "ngc-pytorch")], RuleSettings())
    assert [one.text for one in judge(case) if one.name == "devices"] == ["its name says 8, the log says 4"]


def test_every_rule_of_a_log_has_been_broken_here():
    tested = {
        "marks", "order", "time stamps", "checksum", "evaluation every epoch", "total_epoch_cnt", "target",
        "target_quality_time", "time to train", "total_use_time", "avg_ips", "seed", "devices",
    }  # fmt: skip
    assert set(RULES) == tested


def around(folder):
    """The rules that what lies around the logs of a folder breaks, and how."""
    found = training_results([read_training(path) for path in sorted(folder.glob("*.log"))], RuleSettings())
    return {one.name: one.text for one in judge_folder(found)}


def test_a_log_with_another_name(tmp_path):
    folder = submission(tmp_path)
    (folder / "GPUx1.log").rename(folder / "GPUx1_FP32.log")
    assert around(folder) == {"log names": "not GPUx1.log, GPUx8.log or GPUx32.log: GPUx1_FP32.log"}


def test_a_case_that_is_missing(tmp_path):
    folder = submission(tmp_path)
    (folder / "GPUx32.log").unlink()
    assert around(folder) == {"cases": "no log of 32 devices (there are logs of 1, 8)"}


def test_no_system_information(tmp_path):
    folder = submission(tmp_path)
    (tmp_path / "linux" / "system_information.json").unlink()
    found = around(folder)
    assert (
        list(found) == ["system_information.json"]
        and "nor in the 3 folders above it" in found["system_information.json"]
    )


@pytest.mark.parametrize(
    ("written", "how"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "holds no object"),
        (json.dumps({name: told for name, told in INFORMATION.items() if name != "submitter"}), "lacks submitter"),
        (json.dumps(INFORMATION | {"hardware_name": ""}), "says nothing in hardware_name"),
        (
            json.dumps(INFORMATION | {"number_of_nodes": 1}),
            "has 1 nodes of 8 accelerators = 8, but a log is of 32",
        ),
    ],
)  # fmt: skip
def test_system_information_that_lacks_something(tmp_path, written, how):
    folder = submission(tmp_path)
    (tmp_path / "linux" / "system_information.json").write_text(written)
    found = around(folder)
    assert list(found) == ["system_information.json"] and how in found["system_information.json"]
