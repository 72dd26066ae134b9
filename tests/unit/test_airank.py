"""`summarize --airank`: its text, its JSON, its exit status."""

from __future__ import annotations

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


def test_broken_rules_have_a_line_each(tmp_path, capsys):
    folder = submission(tmp_path)
    (folder / "GPUx8.log").write_text(text(marks(accuracies=(0.3, 0.5))))
    _, out, _ = run(capsys, folder)
    assert out[out.index("broken rules:") :].splitlines() == [
        "broken rules:",
        "  GPUx8.log: accuracy: 75.9 % is not reached in 2 evaluations: 50.000 % at best",
    ]
    assert "  GPUx8.log: no time to train: the target of 75.9 % is not reached" in out


def test_a_file_that_is_no_log_has_a_line(tmp_path, capsys):
    folder = submission(tmp_path)
    (folder / "notes.txt").write_text("nothing of the kind\n")
    (folder / "README.md").write_text("not even looked at\n")
    code, out, _ = run(capsys, folder)
    assert code == 0
    assert out.count("not read: ") == 1
    assert "notes.txt: no step line of a known system" in " ".join(out.split())
