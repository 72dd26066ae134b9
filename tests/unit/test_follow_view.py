from __future__ import annotations

import dataclasses
import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from hpc.model.outcome import Outcome
from launch.follow.view import (
    NEVER_BEGAN,
    PENDING,
    Outage,
    Row,
    SweepTable,
    SweepTimeLeft,
    Unavailable,
    choose_rows,
    format_clock,
    format_time_left,
    open_view,
    short_names,
)
from tests.unit.follow_rows import RUN, Terminal, over, pending, running, runs, sweep

ROOT = Path(__file__).resolve().parents[2]
OUTAGE = Outage(
    what=Unavailable.SCHEDULER, since_unix_s=0.0, lasts_s=300.0, error="squeue: error: Unable to contact controller"
)
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def drawn(rows: list[Row], width: int, height: int, outage: Outage | None = None) -> list[str]:
    """The table as a terminal of this size shows it; one that wraps long lines, as the sweep's console lets it."""
    common, names = short_names([row.run for row in rows])
    time_left = SweepTimeLeft(seconds=720.0, queue_wait=True)
    table = SweepTable(rows=rows, outage=outage, time_left=time_left, names=names, common=common)
    console = Console(file=Terminal(), width=width, height=height, soft_wrap=True, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().removesuffix("\n").split("\n")


@pytest.mark.parametrize("outage", [None, OUTAGE])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (40, 10), (200, 24), (20, 6)])
@pytest.mark.parametrize("count", [1, 6, 50, 500])
def test_the_table_fits_the_terminal_and_has_the_running_run(
    count: int, width: int, height: int, outage: Outage | None
) -> None:
    rows = sweep(count, count // 2, count // 2 + 1)
    lines = drawn(rows, width, height, outage)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert sum("running" in line and not line.startswith((str(count // 2), "…")) for line in lines) >= (height > 6)
    assert f"{count // 2} of {count} runs" in " ".join(lines)


@pytest.mark.parametrize("width", [80, 118, 200])
def test_columns_keep_their_places(width: int) -> None:
    """Between two runs of a job none is running."""
    run_a, run_b, run_c = runs(3)
    between = drawn([over(run_a), pending(run_b), pending(run_c)], width, 24)
    meanwhile = drawn([over(run_a), running(run_b), pending(run_c)], width, 24)
    names = [line.partition("  ")[0] for line in between[-3:]]
    assert sorted(names) == sorted(line.partition("  ")[0] for line in meanwhile[-3:])
    assert all("step" in lines[-4] and "left" in lines[-4] for lines in (between, meanwhile))
    at_the_end = drawn([over(run_a), over(run_b), over(run_c)], width, 24)
    assert "step" not in at_the_end[-4] and "elapsed" in at_the_end[-4]


def test_failures_and_the_latest_ends_are_shown_first() -> None:
    run_a, run_b, run_c, run_d, run_e = runs(5)
    rows = [
        over(run_a, Outcome.OOM, 1), over(run_b, Outcome.OK, 2), over(run_c, Outcome.LAUNCH_FAIL, 3),
        over(run_d, Outcome.OK, 4), Row(run=run_e, state=NEVER_BEGAN),
    ]  # fmt: skip
    shown, rest = choose_rows(rows, 4)
    assert [row.state for row in shown] == ["launch_fail", "oom", "never began"]
    assert rest == "2 more: 2 ok"


@pytest.mark.parametrize("room", range(1, 30))
@pytest.mark.parametrize(("running_from", "running_to"), [(0, 0), (0, 1), (20, 21), (20, 40), (39, 40), (40, 40)])
def test_no_row_is_lost_or_shown_twice(room: int, running_from: int, running_to: int) -> None:
    rows = sweep(40, running_from, running_to)
    shown, rest = choose_rows(rows, room)
    assert len(shown) + (rest is not None) <= max(2, room)
    ids = [row.run.run_id for row in shown]
    assert len(set(ids)) == len(ids)
    assert rest is not None and rest.startswith(f"{40 - len(ids)} more: ")
    states = [row.state for row in shown]
    if running_to > running_from:
        assert states[0] == "running"
    if room > 3:
        assert (PENDING in states) is (running_to < 40)
        assert ({"ok", "oom"} & set(states) != set()) is (running_from > 0)


def test_short_names_hold_what_differs() -> None:
    specs = runs(5)
    assert short_names(specs)[0] == "torch-ddp resnet50 b128 fp32"
    assert list(short_names(specs)[1].values()) == ["1n2g r1", "2n2g r1", "4n2g r1", "8n2g r1", "1n2g r2"]
    batches = [RUN, dataclasses.replace(RUN, batch_size=64)]
    assert list(short_names(batches)[1].values()) == ["1n2g b128 r1", "1n2g b64 r1"]
    assert short_names([])[1] == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.0, "0:00"), (59.9, "0:59"), (760.0, "12:40"), (3850.0, "1:04:10"), (363_600.0, "4d 05h")],
)
def test_clock(seconds: float | None, text: str) -> None:
    assert format_clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40.4, "about 40 s left"), (700.0, "about 12 min left"), (11_900.0, "about 3 h 18 min left")],
)
def test_time_left_in_words(seconds: float, text: str) -> None:
    assert format_time_left(SweepTimeLeft(seconds=seconds)) == text
    assert format_time_left(SweepTimeLeft(seconds=seconds, queue_wait=True)) == f"{text} plus queue time"


def shown_on(console: Console) -> str:
    """The output as a run begins, and as it ends."""
    with open_view(console, "following 1 run") as view:
        for row in (running(RUN), over(RUN)):
            view.show([row], None, None)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


EVENTS = [
    "following 1 run", f"{RUN.run_id} attempt 1: began", f"{RUN.run_id} attempt 1: ok, 1234.50 samples/s (1 of 1)",
]  # fmt: skip


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_without_cursor_control_gets_a_line_per_event(term: str) -> None:
    assert shown_on(Console(file=Terminal(), _environ={"TERM": term})).splitlines() == EVENTS


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}])
def test_a_pipe_gets_a_line_per_event(variables: dict[str, str]) -> None:
    console = Console(file=io.StringIO(), _environ={"TERM": "xterm-256color", **variables})
    assert shown_on(console).splitlines() == EVENTS


def test_a_terminal_gets_a_table_and_its_cursor_is_restored() -> None:
    printed = shown_on(Console(file=Terminal(), _environ={"TERM": "xterm-256color"}))
    assert "began" not in printed and "412/1000" in printed
    assert printed.rindex(SHOW_CURSOR) > printed.rindex(HIDE_CURSOR)


@pytest.mark.parametrize("moment", ["start", "start hidden", "show"])
def test_an_interrupt_restores_the_cursor(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=Terminal(), _environ={"TERM": "xterm-256color"})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if moment == "start":
        monkeypatch.setattr(Live, "start", interrupt)
    if moment == "start hidden":
        monkeypatch.setattr(Live, "_enable_redirect_io", interrupt)
    with pytest.raises(KeyboardInterrupt), open_view(console, "") as view:
        view.show([running(RUN)], None, None)
        interrupt()
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert printed.rindex(SHOW_CURSOR) > printed.rfind(HIDE_CURSOR)


FOLLOW_UNTIL_INTERRUPTED = """
import signal, time
from rich.console import Console
from launch.follow.view import open_view
from tests.unit.follow_rows import RUN, running

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with open_view(Console(soft_wrap=True), "following") as view:
    view.show([running(RUN)], None, None)
    time.sleep(300)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_a_follower_restores_the_cursor_and_its_exit_status(number: signal.Signals) -> None:
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOW_UNTIL_INTERRUPTED], stdin=its, stdout=its, stderr=subprocess.DEVNULL, cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(its)
    try:
        printed = read_until(ours, b"412/1000")
        assert HIDE_CURSOR.encode() in printed and SHOW_CURSOR.encode() not in printed
        process.send_signal(number)
        read_until(ours, SHOW_CURSOR.encode())
        assert process.wait() == -number
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, text: bytes) -> bytes:
    """The output up to this text. Raises OSError if the process ends before."""
    printed = b""
    while text not in printed:
        printed += os.read(terminal, 4096)
    return printed
