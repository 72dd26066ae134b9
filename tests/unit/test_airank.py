"""`summarize --airank`: its text, its JSON, its exit status."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from parse.airank import main
from tests.unit.airank_logs import marks, submission, text

LOGS = Path(__file__).parents[3] / "shared" / "logs"
DOCUMENT = """\
| | Time2train(sec) | images/sec | accuracy(%) | speedup |
|---|---|---|---|---|
| 1 GPU | 3200 | 80 | 77.00 | - |
| 8 GPUs | 300 | 640 | 77.00 | 8.00 |
"""


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    """Room for the lines that these tests look for."""
    monkeypatch.setenv("COLUMNS", "120")


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_a_submission_to_the_rules(tmp_path, capsys):
    code, out, err = run(capsys, submission(tmp_path))
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("  GPUx") and ":" not in line}
    assert rows == {
        "GPUx1.log": ["GPUx1.log", "1", "2400.00", "3", "80.00", "77.00", "1.00", "100.0%"],
        "GPUx8.log": ["GPUx8.log", "8", "300.00", "3", "640.00", "77.00", "8.00", "100.0%"],
        "GPUx32.log": ["GPUx32.log", "32", "90.00", "3", "2133.33", "77.00", "26.67", "83.3%"],
    }
    assert out.endswith("\nno rule is broken\n")


def test_broken_rules_have_a_line_each(tmp_path, capsys):
    folder = submission(tmp_path)
    (folder / "GPUx8.log").write_text(text(marks(accuracies=(0.3, 0.5)), seed=None))
    _, out, _ = run(capsys, folder)
    assert out[out.index("broken rules:") :].splitlines() == [
        "broken rules:",
        "  GPUx8.log: target: 75.9 % is not reached in 2 evaluations: 50.000 % at best",
        "  GPUx8.log: seed: no seed is printed",
    ]
    assert "  GPUx8.log: no time to train: the target of 75.9 % is not reached" in out


def test_published_figures_are_compared(tmp_path, capsys):
    folder, document = submission(tmp_path), tmp_path / "README.md"
    document.write_text(DOCUMENT)
    _, out, _ = run(capsys, folder, "--published", document)
    assert "3200.00     2400.00     +33.33%  it runs to test_finish (3200.00 s)" in out
    assert all(len(line) <= 120 for line in out.splitlines())
    assert "speedup 8 is printed (a ratio of throughputs), the times to train give 10.67" in out


def test_json_has_the_same(tmp_path, capsys):
    folder, document = submission(tmp_path), tmp_path / "README.md"
    document.write_text(DOCUMENT)
    code, out, _ = run(capsys, folder, "--published", document, "--target", "76.5", "--format", "json")
    report = json.loads(out)
    assert (code, report["target"]) == (0, 76.5)
    assert [(log["devices"], log["time_to_train_s"], log["speedup"]) for log in report["logs"]] == [
        (1, 3200, 1), (8, 400, 8), (32, 120, pytest.approx(80 / 3)),
    ]  # fmt: skip
    assert [figure["what"] for figure in report["published"] if figure["devices"] == 1] == [
        "time to train (s)", "throughput (samples/s)", "accuracy (%)",
    ]  # fmt: skip
    assert {item["rule"] for item in report["broken_rules"]} >= {"target_quality_time", "published speedup"}


def test_json_has_the_reasons_of_absent_numbers(tmp_path, capsys):
    (tmp_path / "GPUx8.log").write_text(text(marks(accuracies=(0.3, 0.5))))
    content = json.loads(run(capsys, tmp_path, tmp_path / "GPUx8.log", "--format", "json")[1])
    (log,) = content["logs"]  # a file named twice counts once
    assert (log["time_to_train_s"], log["speedup"]) == (None, None)
    assert set(log["reasons"]) == {"time to train", "speedup"}
    figures = {item["rule"]: item["figures"] for item in content["broken_rules"]}
    assert figures["target"] == {"target": 75.9, "evaluations": 2, "best": 50}


def test_a_file_that_is_no_log_has_a_line(tmp_path, capsys):
    folder = submission(tmp_path)
    (folder / "notes.txt").write_text("nothing of the kind\n")
    (folder / "README.md").write_text("not even looked at\n")
    code, out, _ = run(capsys, folder)
    assert code == 0
    assert out.count("not read: ") == 1
    assert "notes.txt: no step line of a known system" in " ".join(out.split())


@pytest.mark.parametrize("target", ["0.765", "76.5"])
def test_a_target_as_a_fraction_or_in_percent(tmp_path, capsys, target):
    report = json.loads(run(capsys, submission(tmp_path), "--target", target, "--format", "json")[1])
    assert [(log["target"]["value"], log["time_to_train_s"]) for log in report["logs"]] == [
        (76.5, 3200), (76.5, 400), (76.5, 120),
    ]  # fmt: skip


def test_pipes_devices_and_sockets_are_refused(tmp_path, capsys):
    folder = submission(tmp_path)
    os.mkfifo(folder / "GPUx2.log")
    (folder / "GPUx4.log").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "doc.md")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket.log"))
        code, out, _ = run(capsys, folder, tmp_path / "socket.log", "--published", tmp_path / "doc.md")
    words = " ".join(out.split())
    assert code == 0
    for name in ("GPUx2.log", "GPUx4.log", "socket.log", "doc.md"):
        assert f"{name}: cannot be read (no regular file)" in words
    assert run(capsys, folder / "GPUx2.log")[0] == 1


def test_names_of_files_cannot_steer_the_terminal(tmp_path, capsys):
    folder = tmp_path / "\x1b[31mred"
    folder.mkdir()
    (folder / "GPUx8\x1b]0;title\x07\nno rule is broken.log").write_text(text(marks(accuracies=(0.3, 0.5)), seed=None))
    (folder / "empty\x1b[2J.log").write_text("nothing of the kind\n")
    os.mkfifo(folder / "pipe\x9b2J.log")
    document = folder / "\x1b[1m.md"
    document.write_text(DOCUMENT)
    results = [run(capsys, folder, "--published", document), run(capsys, folder / "empty\x1b[2J.log")]
    results.append(run(capsys, folder, "--published", folder / "missing\x1b[2J.md", "--format", "json"))
    for _, out, err in results:
        assert not {"\x1b", "\x07", "\x9b"} & {*out, *err}
    assert "no rule is broken" not in results[0][1].splitlines()
    assert "\\x1b]0;title" in results[0][1]


def test_nothing_to_read_ends_with_1(tmp_path, capsys):
    code, out, err = run(capsys, tmp_path / "missing.log", "--published", tmp_path / "missing.md")
    assert (code, out) == (1, "")
    assert "missing.log: no such file or folder" in err and "missing.md: cannot be read" in err
    assert "nothing to judge" in err
    (tmp_path / "empty").mkdir()
    assert run(capsys, tmp_path / "empty")[0] == 1


@pytest.mark.parametrize(
    "words",
    [[], ["x", "--target", "0"], ["x", "--target", "101"], ["x", "--target", "nan"], ["x", "--warmup-epochs", "-1"],
     ["x", "--samples-per-epoch", "0"], ["x", "--format", "xml"]],
)  # fmt: skip
def test_wrong_usage_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: python -m parse.summarize --airank" in capsys.readouterr().err


def test_help_defines_the_numbers(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    for words in ("never a ratio of throughputs", "The clock never pauses", "system_information.json", "example:"):
        assert words in out


@pytest.mark.skipif(not LOGS.is_dir(), reason="needs ../shared/logs")
def test_the_published_figures_of_real_logs(tmp_path, capsys):
    document = tmp_path / "published.md"
    document.write_text(
        "| | Time2train(sec) | 吞吐(images/sec) | 准确率(%) | 加速比 |\n|---|---|---|---|---|\n"
        "| 1卡 | 137,335 | 859.24 | 77.90 | - |\n| 32卡 | 5237 | 22710.21 | 75.90 | 26.43 |\n"
    )
    logs = sorted(LOGS.glob("ngc-pytorch-resnet50_airank_*.log"))
    report = json.loads(run(capsys, *logs, "--published", document, "--format", "json")[1])
    notes = {
        (figure["devices"], figure["what"]): (round(figure["recomputed"], 2), figure["note"])
        for figure in report["published"]
    }
    assert notes == {
        (1, "time to train (s)"): (126731.68, "it runs to the last evaluation (137369.04 s)"),
        (1, "throughput (samples/s)"): (839.38, "it is the train.compute_ips that the log sums up with"),
        (1, "accuracy (%)"): (76.63, ""),
        (32, "time to train (s)"): (5142.55, "it runs to the last evaluation (5259.13 s)"),
        (32, "throughput (samples/s)"): (21924.73, "it is the train.total_ips that the log sums up with"),
        (32, "accuracy (%)"): (75.9, ""),
        (32, "speedup"): (24.64, ""),
    }
    (message,) = [item["how"] for item in report["broken_rules"] if item["rule"] == "published speedup"]
    assert message == "line 4: speedup 26.43 is printed (a ratio of throughputs), the times to train give 26.22"
