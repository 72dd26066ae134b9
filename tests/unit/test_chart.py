"""The speedup as bars in a terminal, and a table that is shown again while a sweep runs."""

from __future__ import annotations

import dataclasses
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from parse.command_options import watch
from parse.report.table import IDEAL, speedup_chart
from parse.runs.load import load
from parse.runs.result import Result
from parse.runs.result import results as results_of
from parse.text import Page
from tests.unit.traces import make_run, make_trace, put

ROOT = Path(__file__).resolve().parents[2]


def results(tmp_path: Path, speedups: dict[int, float]) -> tuple[Result, ...]:
    """Points of so many nodes of one rank with these speedups."""
    for nodes in speedups:
        put(tmp_path, make_trace(make_run(nodes=nodes, ranks_per_node=1)))
    points = results_of(load([tmp_path]))
    return tuple(dataclasses.replace(point, speedup=speedups[point.run.devices]) for point in points)


def test_a_bar_is_as_long_as_its_speedup_and_the_ideal_is_marked(tmp_path: Path) -> None:
    lines = speedup_chart(results(tmp_path, {1: 1.0, 2: 1.5, 4: 4.0}), Page(width=60))
    assert lines[0] == f"speedup against 1n1g; {IDEAL} ideal: the number of devices"
    bars = {line.split()[0]: line.partition(line.split()[1])[2].strip() for line in lines[1:]}
    room = 60 - len("1n1g") - len("1.00") - 4
    assert bars["4n1g"] == "█" * room
    first, second = bars["1n1g"], bars["2n1g"]
    assert first == "█" * (room // 4)
    assert second.count("█") == room * 3 // 8 and second.endswith(IDEAL) and len(second) == room // 2


def test_a_table_is_shown_again_only_when_a_file_changes(tmp_path: Path) -> None:
    log = tmp_path / "deeper" / "log"
    shown: list[str] = []

    def change() -> None:
        log.parent.mkdir()
        log.write_text("one")

    actions = iter([lambda: None, change, lambda: None, lambda: log.write_text("three"), log.unlink])

    def sleep(seconds: float) -> None:
        try:
            next(actions)()
        except StopIteration:
            raise KeyboardInterrupt from None

    def show() -> int:
        shown.append(log.read_text() if log.exists() else "nothing")
        return len(shown)

    clears: list[None] = []
    assert watch([tmp_path, tmp_path / "absent"], show, lambda: clears.append(None), sleep) == 4
    assert shown == ["nothing", "one", "three", "nothing"] and len(clears) == 4


def test_a_terminal_gets_the_chart_and_a_pipe_does_not(tmp_path: Path) -> None:
    results(tmp_path, {1: 1.0, 2: 1.5})
    argv = [sys.executable, "-m", "parse.summarize", str(tmp_path)]
    env = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    piped = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    assert "speedup against 1n1g;" not in piped
    master, slave = pty.openpty()
    with subprocess.Popen(argv, env=env, stdout=slave, stderr=subprocess.PIPE, text=True) as command:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # Linux ends a terminal whose other side is closed with EIO
                break
            if not part:
                break
            shown += part
        assert command.wait() == 0
    os.close(master)
    text = shown.decode()
    assert "speedup against 1n1g;" in text and all(cell_len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("options", [["--format", "json"], ["--out", "t.txt"], []])
def test_watching_needs_a_terminal(tmp_path: Path, options: list[str]) -> None:
    argv = [sys.executable, "-m", "parse.summarize", str(tmp_path), "--watch", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--watch: the format table on a terminal" in done.stderr
