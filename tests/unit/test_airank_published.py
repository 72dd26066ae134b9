"""Published figures of trainings: read from tables, put beside logs, held against each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.published.claims import check, compare, read_document
from parse.published.files import DocumentError
from parse.published.training import read_training
from parse.published.training_result import RuleSettings, training_results
from tests.unit.airank_logs import SAMPLES, submission

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "004_533964936d688f9e.txt"
HEAD = """\
| | Time2train(sec) | 吞吐(images/sec) | 准确率(%) | 加速比 |
|---|---|---|---|---|
"""


def document(tmp_path, *rows, before="", head=HEAD):
    path = tmp_path / "README.md"
    path.write_text(f"{before}\n\n{head}" + "".join(f"| {row} |\n" for row in rows))
    return read_document(path)


def beside(tmp_path, *rows, but=()):
    """What is published, beside the logs of a submission; `but` are logs that it lacks."""
    folder = submission(tmp_path)
    for name in but:
        (folder / name).unlink()
    told = training_results([read_training(path) for path in sorted(folder.glob("*.log"))], RuleSettings())
    return {(one.claim.devices, one.what): one for one in compare(document(tmp_path, *rows), told)}


def test_rows_are_read_and_empty_ones_say_nothing(tmp_path):
    told = document(tmp_path, "1卡 | 148,720 | 1149.207 | 76.81 | -", "8卡 | - | - | - | -")
    (claim,) = [claim for claim in told.claims if claim.time2train_s]
    assert (claim.line, claim.devices, claim.speed, claim.accuracy, claim.speedup) == (5, 1, 1149.207, 76.81, None)


def test_a_document_without_such_a_table(tmp_path):
    with pytest.raises(DocumentError, match="no table in it has times to train"):
        document(tmp_path, "1卡 | 148720", head="| | seconds |\n|---|---|\n")
    with pytest.raises(DocumentError, match="cannot be read"):
        read_document(tmp_path / "missing.md")


def test_figures_that_agree(tmp_path):
    found = beside(tmp_path, "1卡 | 2400 | 80 | 77.00 | -", "8卡 | 300 | 640 | 77.00 | 8.00")
    assert len(found) == 7
    assert all(abs(one.difference) < 1e-9 and not one.note for one in found.values())


def test_a_time_to_train_that_runs_to_the_end(tmp_path):
    one = beside(tmp_path, "8卡 | 399 | 640 | 77.00 | -")[8, "time to train (s)"]
    assert (one.recomputed, one.note) == (pytest.approx(300), "it runs to test_finish (400.00 s)")
    assert one.difference == pytest.approx(0.33)


def test_a_throughput_of_other_epochs(tmp_path):
    """Of 3 epochs in the time of 4, as where epochs are counted from 0."""
    one = beside(tmp_path, f"8卡 | 300 | {3 * SAMPLES / 400} | 77.00 | -")[8, "throughput (samples/s)"]
    assert one.note == "it is that of 3 epochs in the 400.00 s of 4"


def test_an_accuracy_that_no_log_has(tmp_path):
    one = beside(tmp_path, "8卡 | 300 | 640 | 77.02 | -")[8, "accuracy (%)"]
    assert (one.recomputed, one.note) == (77, "")


def test_the_accuracy_of_another_log(tmp_path):
    folder = submission(tmp_path)
    other = folder / "GPUx8_accuracy.log"
    other.write_text((folder / "GPUx8.log").read_text().replace("0.7700", "0.7812"))
    told = training_results([read_training(path) for path in sorted(folder.glob("*.log"))], RuleSettings())
    found = compare(document(tmp_path, "8卡 | 300 | 640 | 78.12 | -", "1卡 | 2400 | 80 | 77 | -"), told)
    (one,) = [one for one in found if one.what == "accuracy (%)" and one.claim.devices == 8]
    assert (one.recomputed, one.note) == (77, "it is that of GPUx8_accuracy.log")


def test_a_speedup_without_a_log_of_one_device(tmp_path):
    one = beside(tmp_path, "8卡 | 300 | 640 | 77.00 | 8.00", but=["GPUx1.log"])[8, "speedup"]
    assert (one.recomputed, one.difference) == (None, None)


def rules(told, **terms):
    return {one.name: one.text for one in check(told, RuleSettings(**terms))}


def test_figures_that_contradict_nothing(tmp_path):
    told = document(tmp_path, "1卡 | 2400 | 80 | 77 | -", "8卡 | 300 | 800 | 77 | 8.00", before="ResNet50")
    assert rules(told) == {}


def test_a_speedup_that_is_a_ratio_of_throughputs(tmp_path):
    told = document(tmp_path, "1卡 | 2400 | 80 | 77 | -", "8卡 | 300 | 600 | 77 | 7.50")
    assert rules(told) == {
        "published speedup": "line 6: speedup 7.5 is printed (a ratio of throughputs), the times to train give 8.00"
    }


def test_a_speedup_that_is_none(tmp_path):
    told = document(tmp_path, "1卡 | 2400 | 80 | 77 | -", "8卡 | 300 | 600 | 77 | 9.10")
    assert rules(told)["published speedup"] == "line 6: speedup 9.1 is printed, the times to train give 8.00"


def test_a_speedup_without_times_to_train(tmp_path):
    told = document(tmp_path, "1卡 | - | 80 | 77 | -", "8卡 | 300 | 600 | 77 | 7.50")
    assert rules(told) == {
        "published speedup": "line 6: speedup 7.5 is printed, but not the times to train that it is of"
    }


@pytest.mark.parametrize(
    "text",
    ["经过3,000秒的训练完成了10个epoch的训练", "It took long: 10 epochs in 3,000 s.", "10 epochs took 3000 seconds"],
)
def test_a_throughput_that_the_text_contradicts(tmp_path, text):
    told = document(tmp_path, "1卡 | 3,000 | 90 | 77 | -", before=text)
    assert rules(told, samples_per_epoch=24_000) == {
        "published throughput": "line 5: 10 epochs of 24,000 samples in 3,000 s are 80.00 samples/s by wall clock, "
        "90 is printed (+12.5%)"
    }
    assert rules(told, samples_per_epoch=27_000) == {}
    assert rules(told) == {}  # of what data the epochs are nobody says


def test_no_epochs_are_no_throughput(tmp_path):
    told = document(tmp_path, "1卡 | 3,000 | 90 | 77 | -", before="0 epochs in 3,000 s")
    assert rules(told, samples_per_epoch=24_000) == {}


@pytest.mark.skipif(not REFERENCE.is_file(), reason="needs ../shared/reference")
def test_reference_004():
    (how,) = rules(read_document(REFERENCE)).values()
    assert how == (
        "line 108: 120 epochs of 1,281,167 samples in 148,720 s are 1033.75 samples/s by wall clock, "
        "1149.207 is printed (+11.2%)"
    )
