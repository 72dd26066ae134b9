"""hpc.system.command_line: errors of usage, as commands print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.system.command_parser import CommandParser
from tests.unit.commands import command


def test_an_unknown_option_is_answered_with_the_nearest(tmp_path: Path) -> None:
    done = command("hpc.sweep", "--nodes", "1", "--batchsize=3", "--repaets", "5", "--zzzz", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "error: unrecognized arguments: --batchsize=3 --repaets 5 --zzzz; did you mean --batch-size instead of "
        "--batchsize?; did you mean --repeats instead of --repaets?\n"
    )


def test_an_unknown_option_of_a_sub_command_too(tmp_path: Path) -> None:
    done = command("launch.devcluster", "start", "--gpsu", "2", "--root", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean --gpus instead of --gpsu?" in done.stderr


def test_other_errors_of_usage_are_those_of_argparse(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser(prog="x")
    parser.add_argument("--format", choices=("a", "b"))
    with pytest.raises(SystemExit):
        parser.parse_args(["--format", "--c"])
    assert capsys.readouterr().err.endswith("error: argument --format: expected one argument\n")
