"""Trainings whose ranks also meet where no hook sees it: that nobody is late is never assured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.conftest import RANKS_ENV, ROOT, mpiexec

pytest.importorskip("torch")

SCRIPT = ROOT / "tests" / "observe_scripts" / "unseen_meeting.py"
TIMEOUT_S = 300


def verdict_of(folder: Path, way: str, *options: str) -> dict[str, Any]:
    """The verdict on two ranks that also meet in this way, before which rank 1 is 20 ms late in each step."""
    command, meets = mpiexec(), folder / "meets"
    assert command is not None
    meets.mkdir()
    observe = [sys.executable, "-m", "hpc.observe", "--traces", str(folder / "traces"), "--", str(SCRIPT)]
    argv = [*([] if "--spawn" in options else [command, "-n", "2"]), *observe, "--way", way, "--folder", str(meets)]
    kwargs: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": TIMEOUT_S}
    ended = subprocess.run([*argv, *options], check=False, env={**os.environ, **RANKS_ENV}, **kwargs)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = [sys.executable, "-m", "parse.summarize", str(folder / "traces"), "--ledger", "--format", "json"]
    (ledger,) = json.loads(subprocess.run(summary, check=False, **kwargs).stdout)["ledgers"]
    return dict(ledger["verdict"])


@pytest.mark.parametrize(
    ("way", "options", "text"),
    [
        ("named memory", (), "shared memory (/dev/shm/"),
        ("graph", (), "a step of compiled graphs or C++ (by torch's own record)"),
        pytest.param("polled store", (), "a store of torch.distributed", marks=pytest.mark.all),
        pytest.param("anonymous memory", ("--spawn",), "shared memory (/dev/zero)", marks=pytest.mark.all),
        pytest.param("mpi", (), "mpi4py", marks=pytest.mark.all),
    ],
)
def test_where_ranks_also_meet_is_said_and_nobody_is_assured_to_be_on_time(
    tmp_path: Path, way: str, options: tuple[str, ...], text: str
) -> None:
    verdict = verdict_of(tmp_path, way, *options)
    assert verdict["kind"] != "none"
    if verdict["kind"] != "cannot tell" or verdict["because"] != "in some steps":  # of busy cores
        assert text in verdict["because"]


@pytest.mark.all
def test_sleep_that_no_hook_explains_takes_the_assurance_away(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, "socket", "--burn")
    assert verdict["kind"] != "none"
    if verdict["kind"] == "cannot tell" and verdict["because"] != "in some steps":
        assert "sleeps" in verdict["because"]


def test_a_training_that_meets_nowhere_else_says_so(tmp_path: Path) -> None:
    assert "also meet" not in verdict_of(tmp_path, "none")["because"]
