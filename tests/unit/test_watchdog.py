"""The watchdog and stacks with real journals and real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc.recovery.folders import attempt_folder
from hpc.recovery.journal import Journal, median_step_s, read_progress
from hpc.recovery.stacks import STACK_SIGNAL, merge, merged
from launch.jobs.options import RunLimits
from launch.step import watch
from launch.step.watch import Hang, Launcher, RunPhase, Watchdog
from tests.unit.journals import complete
from tests.waiting import until

STEM = "1n2g_mpi_delay_r1.1"

pytestmark = pytest.mark.usefixtures("places")


def write_journal(traces: Path, rank: int, *, steps: int, completed: int, step_s: int = 2) -> Journal:
    journal = Journal(traces, STEM, rank, steps)
    complete(journal, range(completed), step_s)
    return journal


def counts(traces: Path) -> Mapping[int, int]:
    return {rank: progress.completed for rank, progress in read_progress(attempt_folder(traces, STEM)).items()}


def test_progress_is_read_from_journals(traces: Path) -> None:
    journals = [write_journal(traces, rank, steps=3000, completed=done) for rank, done in enumerate((0, 1, 2999, 3000))]
    assert counts(traces) == {0: 0, 1: 1, 2: 2999, 3: 3000}
    known = read_progress(attempt_folder(traces, STEM))
    assert median_step_s(known[0]) is None
    assert median_step_s(known[2]) == 2.0
    complete(journals[0], range(0, 2000))
    complete(journals[1], range(1, 5))
    updated = read_progress(attempt_folder(traces, STEM), known)
    # Reading ends at the first rank that went on.
    assert {rank: progress.completed for rank, progress in updated.items()} == {0: 2000, 1: 1, 2: 2999, 3: 3000}
    assert counts(traces)[1] == 5


def test_a_restarted_rank_has_the_steps_of_its_new_journal(traces: Path) -> None:
    write_journal(traces, 0, steps=10, completed=7)
    known = read_progress(attempt_folder(traces, STEM))
    write_journal(traces, 0, steps=10, completed=2)
    assert read_progress(attempt_folder(traces, STEM), known)[0].completed == 2


def test_incomplete_journals_are_skipped(traces: Path) -> None:
    folder = attempt_folder(traces, STEM)
    (folder / "rank0.stamps").write_bytes(b"")
    (folder / "rank1.stamps").write_bytes(b"x" * 57)
    (folder / "rank2.stamps.part").write_bytes(b"x" * 56)
    assert read_progress(folder) == {}
    assert read_progress(folder / "nowhere") == {}


def test_merged_stacks_list_the_ranks_behind_first(tmp_path: Path) -> None:
    wait = 'Current thread 0x00007f{} (most recent call first):\n  File "mpi.py", line 8 in step\n'
    texts = {
        0: wait.format("00"),
        1: wait.format("11"),
        3: wait.format("33"),
        2: 'File "mine.py", line 4 in batch\n',
        4: "",
    }
    text = merged(texts, {0: 13, 1: 13, 2: 12, 3: 13, 4: 13})
    blocks = text.split("\n\n")
    assert blocks[0].splitlines() == ["rank 2, 12 steps completed:", 'File "mine.py", line 4 in batch']
    assert blocks[1].splitlines()[0] == "ranks 0-1, 3, 13 steps completed:"
    assert blocks[2] == "rank 4, 13 steps completed: wrote no stack (stopped or dead)\n"


def test_among_equal_ranks_the_minority_stack_comes_first() -> None:
    text = merged({0: "waits", 1: "hangs", 2: "waits"}, {0: 7, 1: 7, 2: 7})
    assert text.splitlines()[:2] == ["rank 1, 7 steps completed:", "hangs"]
    assert merged({0: "waits", 1: "hangs", 2: "waits"}, {}).startswith("rank 1, before the first step:")


def test_stacks_are_merged_into_one_file(traces: Path) -> None:
    partial = traces / f"{STEM}.partial"
    partial.mkdir()
    (partial / "rank0.stacks").write_text('  File "a\x1b[31m.py", line 1 in f\n')
    (partial / "rank1.stacks").write_text("")
    target = merge(partial)
    assert target == traces / f"{STEM}.stacks.txt"
    assert "\x1b" not in target.read_text() and "line 1 in f" in target.read_text()
    assert "rank 1, before the first step: wrote no stack" in target.read_text()
    assert list(partial.iterdir()) == []
    (partial / "rank2.stacks").write_text("later\n")
    merge(partial)
    assert "line 1 in f" in target.read_text() and "later" in target.read_text()


def test_no_stacks_leave_no_file(traces: Path) -> None:
    partial = traces / f"{STEM}.partial"
    partial.mkdir()
    (partial / "rank0.stacks").write_text("")
    assert merge(partial) is None
    assert list(traces.rglob("*stacks*")) == []


WITH_STACKS = """
import ctypes, sys, time
from pathlib import Path
from hpc.recovery import folders
folders._bases = lambda: [Path(sys.argv[1]) / "shm" / "rankwise-7"]
from hpc.recovery.stacks import Stacks
stacks = Stacks(Path(sys.argv[1]) / "traces", sys.argv[2], 0)
"""
HANGS = f"""{WITH_STACKS}
def here_it_hangs():
    print("ready", flush=True)
    while True:
        time.sleep(1)
here_it_hangs()
"""
CRASHES = f"""{WITH_STACKS}
def here_it_crashes():
    ctypes.string_at(0)
stacks.catch_crashes()
here_it_crashes()
"""
HANDLES_NO_SIGNAL = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(*argv)`: a Python with these arguments, once it has printed that it is ready."""
    started: list[subprocess.Popen[str]] = []

    def begin(*argv: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen([sys.executable, "-c", *argv], stdout=subprocess.PIPE, text=True, process_group=0)
        )
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield begin
    for process in started:
        subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True, check=False)
        process.wait()


def has_stack(traces: Path) -> bool:
    """Whether the rank has written where it hangs, to the end."""
    stack = (attempt_folder(traces, STEM) / "rank0.stacks").read_text()
    return "in here_it_hangs" in stack and "in <module>" in stack


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_rank_writes_its_stack_also_behind_a_wrapper(
    tmp_path: Path, traces: Path, start: Callable[..., subprocess.Popen[str]], wrapped: bool
) -> None:
    argv = (HANGS, str(tmp_path), STEM)
    process = start(HANDLES_NO_SIGNAL, *argv) if wrapped else start(*argv)
    assert Launcher(process).forward(STACK_SIGNAL)
    until(lambda: has_stack(traces), "the stack is written")
    assert process.poll() is None


def test_a_crashed_rank_leaves_its_stack(tmp_path: Path, traces: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CRASHES, str(tmp_path), STEM], capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    text = (attempt_folder(traces, STEM) / "rank0.stacks").read_text()
    assert "Segmentation fault" in text and "in here_it_crashes" in text


def test_a_launcher_without_a_handler_gets_no_signal(start: Callable[..., subprocess.Popen[str]]) -> None:
    launcher = Launcher(start("import time; print('ready', flush=True); time.sleep(600)"))
    assert launcher.is_alive
    assert not launcher.forward(STACK_SIGNAL)  # it would die of the signal
    assert not launcher.end(300)
    assert not launcher.is_alive and launcher.exit_status == 128 + signal.SIGTERM
    launcher.send(signal.SIGTERM)  # to nobody


def test_a_launcher_that_ignores_sigterm_is_killed(start: Callable[..., subprocess.Popen[str]]) -> None:
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)"
    launcher = Launcher(start(f"{ignores}; time.sleep(600)"))
    assert launcher.end(0.2)
    assert launcher.exit_status == 128 + signal.SIGKILL


@dataclass(frozen=True, kw_only=True)
class Hanging:
    """A run that makes no step after the fourth; a watchdog that believes at once that it hangs."""

    process: subprocess.Popen[str]
    journal: Journal
    dog: Watchdog
    messages: list[str]

    def watch(self) -> None:
        """As launch.step does, until the process has ended."""
        while self.process.poll() is None:
            self.dog.look()
            time.sleep(0.05)


@pytest.fixture
def hanging(
    tmp_path: Path, traces: Path, start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> Hanging:
    """Stacks have as long as they take, instead of some seconds."""
    process = start(HANGS, str(tmp_path), STEM)
    ask = Launcher.forward

    def ask_and_wait(launcher: Launcher, number: signal.Signals) -> bool:
        listens = ask(launcher, number)
        if listens:
            until(lambda: has_stack(traces), "the stack is written")
        return listens

    monkeypatch.setattr(Launcher, "forward", ask_and_wait)
    monkeypatch.setattr(watch, "_SLICE_S", 0.05)
    monkeypatch.setattr(watch, "_STACKS_S", 0.05)
    messages: list[str] = []
    at_once = RunLimits(start_limit_s=0, hang_steps=0, hang_extra_s=0, copy_s=0)
    return Hanging(
        process=process,
        journal=write_journal(traces, 0, steps=10, completed=4, step_s=0),
        dog=Watchdog(traces, STEM, Launcher(process), at_once, messages.append),
        messages=messages,
    )


def test_a_hanging_run_is_ended_and_its_reason_written(traces: Path, hanging: Hanging) -> None:
    hanging.watch()
    assert hanging.process.wait() == -signal.SIGTERM
    reason = json.loads((traces / f"{STEM}.hang.json").read_text())
    assert reason["phase"] == "steps" and reason["completed"] == {"4": "rank 0"} and reason["steps"] == 10
    message, _, stacks = reason["text"].partition("; the stacks of all ranks are in ")
    assert message in hanging.messages and stacks == f"{STEM}.stacks.txt"
    assert has_stack(traces)


def test_a_run_that_makes_progress_is_left_alone(
    traces: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the stacks are written a step is completed; later the launcher ends by itself."""
    ask = Launcher.forward

    def ask_and_go_on(launcher: Launcher, number: signal.Signals) -> bool:
        if hanging.journal.steps_completed == 5:
            hanging.process.kill()
            hanging.process.wait()
        complete(hanging.journal, range(4, 5), 0)
        return ask(launcher, number)

    monkeypatch.setattr(Launcher, "forward", ask_and_go_on)
    hanging.watch()
    assert hanging.process.returncode == -signal.SIGKILL
    assert any("has made progress meanwhile" in line for line in hanging.messages)
    assert list(traces.glob("*.hang.json")) == []


def test_a_run_whose_hang_cannot_be_written_is_not_ended_and_that_is_shown_once(traces: Path, hanging: Hanging) -> None:
    (traces / f"{STEM}.hang.json").mkdir()  # in the way
    for _ in range(4):
        hanging.dog.look()
    assert hanging.process.poll() is None
    assert [line.partition(" ")[0] for line in hanging.messages] == ["the", str(traces / f"{STEM}.hang.json")]
    assert "cannot be written" in hanging.messages[1]
    (traces / f"{STEM}.hang.json").rmdir()
    hanging.dog.look()
    assert hanging.process.wait() == -signal.SIGTERM
    assert len(hanging.messages) == 2


def test_a_run_whose_step_is_not_created_is_not_ended(
    traces: Path, start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_STACKS_S", 0.0)
    process = start("print('ready', flush=True); import time; time.sleep(600)")
    messages: list[str] = []
    reasons = ["no step", "no step", "slurmctld is away", ""]
    limits = RunLimits(start_limit_s=-1, copy_s=0.5)
    dog = Watchdog(traces, STEM, Launcher(process), limits, messages.append, why_absent=lambda: reasons.pop(0))
    for _ in range(3):
        dog.look()
    assert process.poll() is None
    assert messages == [f"{reason}: no rank has begun, and time does not count against the run"
                        for reason in ("no step", "slurmctld is away")]  # fmt: skip
    dog.look()
    assert process.wait() == -signal.SIGTERM


def test_the_launchers_words_are_read_only_before_a_rank_is_there(traces: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        message = "Job 7 step creation temporarily disabled"
        dog = Watchdog(traces, STEM, Launcher(ended), RunLimits(), print, awaited=lambda: message)
    assert dog.see().awaited.startswith("Job 7") and not dog.has_ranks
    write_journal(traces, 0, steps=10, completed=0)
    assert dog.see().awaited == "" and dog.has_ranks


def test_a_missing_traces_folder_is_no_hang(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        dog = Watchdog(traces, STEM, Launcher(ended), RunLimits(), print)
    assert dog.see().unreadable == ""
    traces.rmdir()
    assert "No such file or directory" in dog.see().unreadable


def test_a_replaced_traces_folder_is_no_hang_and_gets_no_file(traces: Path, hanging: Hanging, tmp_path: Path) -> None:
    """A lost mount: its mount point is there, and empty."""
    hang = Hang(
        phase=RunPhase.STEPS, waited_s=1.0, limit_s=0.5, median_step_s=None, completed={0: 4}, steps=10, silent_nodes=()
    )
    traces.rename(tmp_path / "away")
    traces.mkdir()
    assert "not the folder that was there when the attempt began" in hanging.dog.see().unreadable
    assert not hanging.dog._write(hang)
    assert list(traces.iterdir()) == []
    traces.rmdir()
    (tmp_path / "away").rename(traces)
    assert hanging.dog.see().unreadable == ""
    assert hanging.dog._write(hang)
    hanging.process.kill()
