"""Published figures of trainings: read from tables, compared with logs and with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.published.airank_report import check, compare, read_document
from parse.published.columns import TrainingClaim
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


def comparisons(tmp_path, *rows, without=None, added=None):
    """The published figures by devices and name; a log may be left out of the submission or added to it."""
    folder = submission(tmp_path)
    if without:
        (folder / without).unlink()
    if added:
        (folder / added).write_text((folder / "GPUx8.log").read_text().replace("0.7700", "0.7812"))
    results = training_results([read_training(path) for path in sorted(folder.glob("*.log"))], RuleSettings())
    return {(item.claim.devices, item.what): item for item in compare(document(tmp_path, *rows), results)}


def test_rows_of_times_to_train(tmp_path):
    first, second = document(tmp_path, "1卡 | 148,720 | 1149.207 | 76.81 | -", "8卡 | - | - | - | 7.5").claims
    assert first == TrainingClaim(5, 1, 148720, 1149.207, 76.81, None)
    assert second == TrainingClaim(6, 8, None, None, None, 7.5)


def test_a_document_without_such_a_table(tmp_path):
    with pytest.raises(DocumentError, match="no table in it has times to train"):
        document(tmp_path, "1卡 | 148720", head="| | seconds |\n|---|---|\n")
    for path in (tmp_path / "missing.md", tmp_path):
        with pytest.raises(DocumentError, match="cannot be read"):
            read_document(path)


def test_figures_that_agree(tmp_path):
    items = comparisons(tmp_path, "1卡 | 2400 | 80 | 77.00 | -", "8卡 | 300 | 640 | 77.00 | 8.00")
    assert len(items) == 7
    assert all(abs(item.difference) < 1e-9 and not item.note for item in items.values())


OTHER_LOG = {"added": "GPUx8_accuracy.log"}
# A throughput of 3 epochs in the time of 4, as where epochs are counted from 0.
THREE_EPOCHS = 3 * SAMPLES / 400


@pytest.mark.parametrize(
    ("row", "what", "logs", "recomputed", "note"),
    [
        ("8卡 | 399 | 640 | 77.00 | -", "time to train (s)", {}, 300, "it runs to test_finish (400.00 s)"),
        (f"8卡 | 300 | {THREE_EPOCHS} | 77.00 | -", "throughput (samples/s)", {}, 640,
         "it is that of 3 epochs in the 400.00 s of 4"),
        ("8卡 | 300 | 640 | 77.02 | -", "accuracy (%)", {}, 77, ""),
        ("8卡 | 300 | 640 | 78.12 | -", "accuracy (%)", OTHER_LOG, 77, "it is that of GPUx8_accuracy.log"),
        ("8卡 | 300 | 640 | 77.00 | 8.00", "speedup", {"without": "GPUx1.log"}, None, ""),
    ],
)  # fmt: skip
def test_a_published_figure_that_is_not_the_recomputed_one(tmp_path, row, what, logs, recomputed, note):
    rows = (row, "1卡 | 2400 | 80 | 77 | -") if logs == OTHER_LOG else (row,)
    item = comparisons(tmp_path, *rows, **logs)[8, what]
    assert (item.recomputed, item.note) == (recomputed and pytest.approx(recomputed), note)
    assert item.difference == (recomputed and pytest.approx(item.published / recomputed - 1))


def broken(read, **settings):
    return {item.name: (item.text, item.figures) for item in check(read, RuleSettings(**settings))}


def test_figures_that_contradict_nothing(tmp_path):
    rows = ("1卡 | 2400 | 80 | 77 | -", "8卡 | 300 | 800 | 77 | 8.00")
    assert broken(document(tmp_path, *rows, before="ResNet50")) == {}


@pytest.mark.parametrize(
    ("single", "speedup", "message"),
    [
        ("2400", "7.50", "speedup 7.5 is printed (a ratio of throughputs), the times to train give 8.00"),
        ("2400", "9.10", "speedup 9.1 is printed, the times to train give 8.00"),
        ("-", "7.50", "speedup 7.5 is printed, but not the times to train that it is of"),
    ],
)
def test_a_speedup_that_contradicts_the_times_to_train(tmp_path, single, speedup, message):
    read = document(tmp_path, f"1卡 | {single} | 80 | 77 | -", f"8卡 | 300 | 600 | 77 | {speedup}")
    ((name, (text, figures)),) = broken(read).items()
    assert (name, text) == ("published speedup", f"line 6: {message}")
    assert figures == {"line": 6, "speedup": float(speedup)} | ({"computed": 8} if single == "2400" else {})


@pytest.mark.parametrize(
    "text",
    ["经过3,000秒的训练完成了10个epoch的训练", "It took long: 10 epochs in 3,000 s.", "10 epochs took 3000 seconds"],
)
def test_a_throughput_that_the_text_contradicts(tmp_path, text):
    read = document(tmp_path, "1卡 | 3,000 | 90 | 77 | -", before=text)
    message, figures = broken(read, samples_per_epoch=24_000)["published throughput"]
    assert message == (
        "line 5: 10 epochs of 24,000 samples in 3,000 s are 80.00 samples/s by wall clock, 90 is printed (+12.5%)"
    )
    assert (figures["speed"], figures["claimed"], figures["difference"]) == (80, 90, 0.125)
    assert broken(read, samples_per_epoch=27_000) == {}
    assert broken(read) == {}  # the data of the epochs is unknown


def test_no_epochs_are_no_throughput(tmp_path):
    read = document(tmp_path, "1卡 | 3,000 | 90 | 77 | -", before="0 epochs in 3,000 s")
    assert broken(read, samples_per_epoch=24_000) == {}


@pytest.mark.skipif(not REFERENCE.is_file(), reason="needs ../shared/reference")
def test_reference_004():
    ((_, figures),) = broken(read_document(REFERENCE)).values()
    assert (figures["line"], figures["epochs"], figures["seconds"], figures["claimed"]) == (108, 120, 148_720, 1149.207)
    assert figures["speed"] == pytest.approx(1033.75, abs=0.005)
