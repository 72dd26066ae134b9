"""`summarize --airank`: its text, its JSON, its exit status."""

from __future__ import annotations

import json

import pytest

from parse.airank import main
from tests.unit.airank_logs import marks, submission, text


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
        "GPUx1.log": ["GPUx1.log", "1", "2400.00", "3", "77.00", "1.00", "100.0%"],
        "GPUx8.log": ["GPUx8.log", "8", "300.00", "3", "77.00", "8.00", "100.0%"],
        "GPUx32.log": ["GPUx32.log", "32", "90.00", "3", "77.00", "26.67", "83.3%"],
    }
    assert out.endswith("\nno rule is broken\n")


def test_broken_rules_have_a_line_each(tmp_path, capsys):
    folder = submission(tmp_path)
    (folder / "GPUx8.log").write_text(text(marks(accuracies=(0.3, 0.5))))
    _, out, _ = run(capsys, folder)
    assert out[out.index("broken rules:") :].splitlines() == [
        "broken rules:",
        "  GPUx8.log: accuracy: 75.9 % is not reached in 2 evaluations: 50.000 % at best",
    ]
    assert "  GPUx8.log: no time to train: the target of 75.9 % is not reached" in out


def test_json_has_the_reasons_of_absent_numbers(tmp_path, capsys):
    (tmp_path / "GPUx8.log").write_text(text(marks(accuracies=(0.3, 0.5))))
    content = json.loads(run(capsys, tmp_path, tmp_path / "GPUx8.log", "--format", "json")[1])
    (log,) = content["results"]  # a file named twice counts once
    assert (log["time_to_train_s"], log["speedup"]) == (None, None)
    assert set(log["reasons"]) == {"time to train", "speedup"}
    figures = {item["rule"]: item["figures"] for item in content["violations"]}
    assert figures["accuracy"] == {"target": 75.9, "evaluations": 2, "best": 50}


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
    assert [(log["target"], log["time_to_train_s"]) for log in report["results"]] == [
        (76.5, 3200), (76.5, 400), (76.5, 120),
    ]  # fmt: skip
