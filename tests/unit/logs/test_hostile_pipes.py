"""No command waits for a pipe, whichever way it is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parse.summarize", *map(str, arguments)], capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    (folder := tmp_path / "logs").mkdir()
    os.mkfifo(folder / "train.log")
    return folder / "train.log"


@pytest.mark.parametrize("arguments", [["{pipe}"], ["{folder}"], ["--explain", "{pipe}"], ["--kind", "table", "{pipe}"],
                                   ["--kind", "table", "{folder}"], ["--kind", "logs", "{folder}"],
                                   ["--kind", "traces", "{pipe}"]])  # fmt: skip
def test_nothing_waits_for_a_pipe(pipe, arguments):
    ended = run(*(argument.format(pipe=pipe, folder=pipe.parent) for argument in arguments))
    assert ended.returncode in (1, 2)
    assert "train.log" in ended.stderr or arguments == ["--kind", "table", "{folder}"]  # which reads documents alone
    assert "Traceback" not in ended.stderr
