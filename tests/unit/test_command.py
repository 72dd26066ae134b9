"""`run_tool` with real programs: one that answers, is absent, forbidden, hangs, fails, sits behind a closed folder."""

import os
import sys
import time
from pathlib import Path

import pytest

from hpc.command import Failure, run_tool


def script(folder: Path, name: str, body: str, mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def test_an_answer_has_both_streams_and_the_status(tmp_path: Path) -> None:
    answer = run_tool([str(script(tmp_path, "tool", "echo out; echo err >&2"))])
    assert (answer.ok, answer.stdout, answer.stderr, answer.exit_status) == (True, "out\n", "err\n", 0)
    assert answer.describe() == ""


def test_an_absent_tool_is_absent() -> None:
    answer = run_tool(["no-such-tool-anywhere"])
    assert answer.failure is Failure.ABSENT
    assert answer.describe() == "no-such-tool-anywhere is not installed here"


def test_a_tool_that_may_not_be_executed_is_forbidden(tmp_path: Path) -> None:
    tool = script(tmp_path, "tool", "true", mode=0o644)
    answer = run_tool([str(tool)])
    assert answer.failure is Failure.FORBIDDEN
    assert str(tool) in answer.describe()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every folder")
def test_a_folder_of_path_that_is_closed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{closed}:{tmp_path}")
    answer = run_tool(["tool"])
    closed.chmod(0o700)
    assert answer.failure is Failure.FORBIDDEN
    assert str(closed) in answer.describe()


def test_a_failing_tool_is_quoted_by_its_last_line() -> None:
    answer = run_tool([sys.executable, "-c", "import sys; print('first\\nlast', file=sys.stderr); sys.exit(18)"])
    assert (answer.failure, answer.exit_status) == (Failure.FAILING, 18)
    assert answer.describe().endswith(": last")


def test_a_failing_tool_without_a_word_is_told_by_its_status(tmp_path: Path) -> None:
    assert run_tool([str(script(tmp_path, "tool", "exit 18"))]).describe() == "tool: exit status 18"


def test_a_hanging_tool_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    tool = script(tmp_path, "tool", f"sleep 1000 & echo $! >{child}.new; mv {child}.new {child}; wait")
    timeout_s = 1
    while not child.exists():  # on a busy machine the tool may be killed before it has a child
        timeout_s *= 2
        answer = run_tool([str(tool)], timeout_s=timeout_s)
        assert answer.failure is Failure.HANGING
        assert answer.describe() == f"tool: no answer within {timeout_s} s"
    until_s = time.monotonic() + 300
    while not is_over(child.read_text().strip()):
        assert time.monotonic() < until_s
        time.sleep(0.05)


def is_over(process: str) -> bool:
    """Whether the process has ended, maybe without its parent having asked for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_tool_that_is_no_program_fails(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(b"\x00\x01")
    tool.chmod(0o755)
    answer = run_tool([str(tool)])
    assert answer.failure is Failure.FAILING
    assert "Exec format error" in answer.describe()


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    assert run_tool([str(script(tmp_path, "tool", r"printf '\377'"))]).stdout == "�"
