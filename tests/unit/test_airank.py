"""`summarize --airank`: its text, its JSON, its exit status."""

from __future__ import annotations

import os

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


def test_names_of_files_cannot_steer_the_terminal(tmp_path, capsys):
    folder = tmp_path / "\x1b[31mred"
    folder.mkdir()
    (folder / "GPUx8\x1b]0;title\x07\nno rule is broken.log").write_text(text(marks(accuracies=(0.3, 0.5))))
    (folder / "empty\x1b[2J.log").write_text("nothing of the kind\n")
    os.mkfifo(folder / "pipe\x9b2J.log")
    results = [run(capsys, folder), run(capsys, folder / "empty\x1b[2J.log")]
    results.append(run(capsys, folder, folder / "missing\x1b[2J.log", "--format", "json"))
    for _, out, err in results:
        assert not {"\x1b", "\x07", "\x9b"} & {*out, *err}
    assert "no rule is broken" not in results[0][1].splitlines()
    assert "\\x1b]0;title" in results[0][1]
