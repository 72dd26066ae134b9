"""hpc.sweep on this machine: real scripts, real bash, real ranks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.model.trace_file import read_trace, write_trace
from launch.scheduler.lock import FolderLock
from tests.processes import processes
from tests.sweeps import ROOT, begun, outcomes, sweep_argv, with_checkout, without_modules
from tests.waiting import LIMIT_S, until

ENV = with_checkout(os.environ)
TINY = ("--backend", "mpi", "--workload", "delay", "--option", "compute_ms=1", "--steps", "8", "--warmup", "5")
ENDLESS = ("--backend", "mpi", "--workload", "delay", "--option", "compute_ms=100", "--steps", "100000",
           "--warmup", "5")  # fmt: skip
LOCAL = ("--cluster", "local", "--gpus-per-node", "0", "--repeats", "1")


def command(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*argv], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def sweep(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command(tmp_path, *sweep_argv(*LOCAL, *arguments))


def cancel(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command(tmp_path, *sweep_argv("cancel", *LOCAL, *arguments))


def ended(tmp_path: Path) -> list[str]:
    """Outcomes, in order of run and attempt."""
    return list(outcomes(tmp_path).values())


def ranks_of(tmp_path: Path) -> list[int]:
    """Process ids of this test's running ranks and launchers."""
    return [
        process.pid
        for process in processes()
        if "hpc.rank" in process.words and any(str(tmp_path) in argument for argument in process.words)
    ]


@pytest.fixture
def _mpi() -> None:
    from launch.scheduler.local import what_is_missing

    if missing := what_is_missing():
        pytest.skip("; ".join(missing))


pytestmark = pytest.mark.usefixtures("_mpi")


def test_a_missing_framework_is_launch_fail_in_its_rows(tmp_path: Path) -> None:
    env = {**ENV, **without_modules(tmp_path / "hiding", "torch")}
    argv = sweep_argv(*LOCAL, "--nodes", "1,2", *TINY, "--backend", "mpi,torch-ddp")
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 1, done.stdout + done.stderr
    reason = "torch is not installed here: pip install -e '.[torch]'"
    before, _, after = done.stdout.partition("submitted as")
    assert f"backend torch-ddp cannot run: {reason}\n" in before
    assert "2 ok, 2 launch_fail" in after and reason in after

    summary = command(tmp_path, sys.executable, "-m", "parse.summarize", "traces", "--verbose").stdout
    assert re.findall(r"^(\dn1g) .*torch-ddp +0/1 +- ", summary, re.MULTILINE) == ["1n1g", "2n1g"]
    # The two points are one line where the same rank's end came first.
    reasons = " ".join(summary.split()).split("run 1: launch_fail (")[1:]
    assert len(reasons) in (1, 2) and all(reason in each for each in reasons)


@pytest.mark.all
def test_find_max_tries_until_nothing_larger_fits_and_goes_on_where_it_was(tmp_path: Path) -> None:
    workload = f"{ROOT / 'tests' / 'mpi' / 'ranks' / 'user_workloads.py'}:FitsUpToNine"
    argv = sweep_argv("find-max", "batch-size", "--cluster", "local", "--gpus-per-node", "0", "--nodes", "2",
                      "--no-baseline", "--backend", "mpi", "--workload", workload, "--steps", "7", "--warmup",
                      "5")  # fmt: skip
    limited = ["bash", "-c", 'ulimit -v 100000000; exec "$@"', "bash", *argv]
    done = command(tmp_path, *limited)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = re.findall(r"^(\dn1g) batch-size=(\d+): (\w+)$", done.stdout, re.MULTILINE)
    expected = [("4", "ok"), ("8", "ok"), ("16", "oom"), ("12", "oom"), ("10", "oom"), ("9", "ok")]
    assert answers == [("2n1g", *answer) for answer in expected]
    assert f"\n2n1g mpi {workload}: the largest value of batch-size that fits is 9; 10 does not" in done.stdout
    attempts = begun(tmp_path)
    assert len(attempts) == 6
    second = command(tmp_path, *limited)
    assert second.returncode == 0 and begun(tmp_path) == attempts

    summary = command(tmp_path, sys.executable, "-m", "parse.summarize", "traces").stdout
    assert summary.endswith("6 runs of find-max\n")  # which alone says what it found


SCATTERED = """
import time

from tests.mpi.ranks.user_workloads import Line


class Scattered(Line):
    \"\"\"Steps of 100 ms in even runs, of 125 ms in odd ones: the median of six lies 11 % from either.\"\"\"

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.sleep_s = 0.125 if run.repeat % 2 else 0.1

    def forward(self, batch):
        time.sleep(self.sleep_s)
        return super().forward(batch)
"""


@pytest.mark.parametrize("detach", [False, pytest.param(True, marks=pytest.mark.all)])
def test_repeats_are_added_until_the_interval_is_narrow_or_no_more_are_allowed(tmp_path: Path, detach: bool) -> None:
    """The runs scatter by more than any load of this machine takes away, so that the most repeats are needed."""
    workload = tmp_path / "scattered.py"
    workload.write_text(SCATTERED)
    argv = sweep_argv("--cluster", "local", "--gpus-per-node", "0", "--nodes", "1", "--backend", "mpi", "--workload",
                      f"{workload}:Scattered", "--steps", "8", "--warmup", "5", "--repeats", "auto:3%:7")  # fmt: skip
    done = command(tmp_path, *argv, *(["--detach"] if detach else []))
    assert done.returncode == 0, done.stdout + done.stderr
    if detach:
        assert "more repeats are decided on once these have ended, by that process" in done.stdout
        until(lambda: len(outcomes(tmp_path)) == 7, "the detached sweep adds its repeats")
        until(lambda: "no more runs" in (tmp_path / "jobs/logs/detached.out").read_text(), "and says why it ends")
        shown = (tmp_path / "jobs/logs/detached.out").read_text()
    else:
        shown = done.stdout
    assert re.search(
        r"^1n1g: half width [\d.]+ % after 6 runs; between-run scatter [\d.]+ %; 1 more run$", shown, re.MULTILINE
    )
    assert re.search(
        r"^1n1g: half width [\d.]+ % after 7 runs; .*; not 3 %, and no more runs are allowed", shown, re.MULTILINE
    )
    assert ended(tmp_path) == ["ok"] * 7

    attempts = begun(tmp_path)
    second = command(tmp_path, *argv)
    assert second.returncode == 0 and begun(tmp_path) == attempts
    assert "6 ok" in second.stdout and "after 7 runs" in second.stdout


def test_rerunning_a_sweep_skips_final_runs_and_repeats_lost_ones(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--nodes", "1,2", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 1: ok" in done.stdout and "samples/s" in done.stdout
    assert ended(tmp_path) == ["ok", "ok"]

    second = sweep(tmp_path, "--nodes", "1,2", *TINY)
    assert second.returncode == 0
    assert second.stdout.count("every run is final, nothing to submit") == 2
    assert len(list((tmp_path / "traces").glob("*.h5"))) == 2

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    by_hand = command(elsewhere, "bash", str(tmp_path / "jobs" / "2n.sh"))
    assert by_hand.returncode == 0
    assert "is final, passed over" in by_hand.stdout

    for path in (tmp_path / "traces").glob("2n1g*"):
        path.unlink()
    repaired = sweep(tmp_path, "--nodes", "1,2", *TINY)
    assert "1n.sh: every run is final" in repaired.stdout
    assert "2n.sh: submitted" in repaired.stdout and "1 run to do" in repaired.stdout
    [measured] = (tmp_path / "traces").glob("2n1g*.h5")
    assert measured.name.endswith(".2.h5")  # the logs have the first attempt
    assert len(list((tmp_path / "traces").glob("*.h5"))) == 2

    forced = sweep(tmp_path, "--nodes", "1,2", *TINY, "--force")
    assert forced.returncode == 0, forced.stdout + forced.stderr
    assert "attempt 2: ok" in forced.stdout and "attempt 3: ok" in forced.stdout


def test_a_failed_run_does_not_stop_the_next_and_records_its_last_step(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
from tests.mpi.ranks.user_workloads import Line


class Dies(Line):
    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.repeat = run.repeat

    def forward(self, batch):
        if self.repeat == 1 and self.step == 6:
            raise ValueError("the seventh step")
        return super().forward(batch)
"""
    )
    done = sweep(
        tmp_path, "--nodes", "2", "--backend", "mpi", "--workload", "mine.py:Dies", "--steps", "9", "--warmup", "5",
        "--repeats", "2", "--no-baseline",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert ended(tmp_path) == ["rank_fail", "ok"]
    notes = [json.loads(path.read_text()) for path in (tmp_path / "traces").glob("*.rank?.json")]
    assert {(note["exception"], note["message"], note["step"]) for note in notes} == {
        ("ValueError", "the seventh step", 5)
    }
    summary = command(tmp_path, sys.executable, "-m", "parse.summarize", "traces", "--verbose")
    assert "the seventh step" in summary.stdout
    assert "rank_fail" in summary.stdout


def test_an_interrupted_sweep_leaves_nothing_running(tmp_path: Path) -> None:
    argv = sweep_argv(*LOCAL, "--nodes", "1", *ENDLESS)
    process = subprocess.Popen(argv, cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "submitted" in line:
            break
    until(lambda: begun(tmp_path) or process.poll() is not None, "a run has begun")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(timeout=LIMIT_S) == 130, rest
    assert "stopped, and the runs on this machine with it" in rest
    assert ended(tmp_path) == ["cancelled"]
    until(lambda: not ranks_of(tmp_path), "the ranks have ended")


def test_two_concurrent_local_sweeps_run_each_run_once(tmp_path: Path) -> None:
    """Both wait for the lock of this process and start when it is released."""
    (tmp_path / "jobs").mkdir()
    lock = FolderLock(tmp_path / "jobs")
    assert lock.take()
    argv = sweep_argv(*LOCAL, "--nodes", "1,2", *TINY)
    both = [subprocess.Popen(argv, cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        waits = process.stdout.readline()
        assert re.match(rf"waiting for process {os.getpid()} on {socket.gethostname()}, of \w+, since", waits), waits
    lock.release()
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert ended(tmp_path) == ["ok", "ok"]
    assert len(list((tmp_path / "traces").glob("*.begin.json"))) == 2
    assert sorted(text.count("every run is final, nothing to submit") for text in outputs) == [0, 2]


def test_status_and_cancel_reach_a_detached_sweep(tmp_path: Path) -> None:
    endless = ("--nodes", "1,2", *ENDLESS)
    assert sweep(tmp_path, *endless, "--detach").returncode == 0
    until(lambda: begun(tmp_path), "a run has begun")
    shown = command(tmp_path, *sweep_argv("status", "--out", "."))
    assert shown.returncode == 1
    assert re.search(r"^1n1g\S+ +running in job local-", shown.stdout, re.MULTILINE), shown.stdout
    assert "1 begun, 1 never ran" in shown.stdout
    cancelled = cancel(tmp_path, *endless)
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert ended(tmp_path) == ["cancelled"]
    assert not list((tmp_path / "traces").glob("2n1g*.begin.json"))
    after = command(tmp_path, *sweep_argv("status"))
    assert "cancelled, to be done" in after.stdout, after.stdout


def test_the_script_of_a_killed_sweep_keeps_the_lock(tmp_path: Path) -> None:
    """After SIGKILL of the sweep its script continues and holds the lock, so that no second one runs beside it."""
    argv = sweep_argv(*LOCAL, "--nodes", "1", *ENDLESS)
    process = subprocess.Popen(argv, cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL)
    until(lambda: begun(tmp_path), "a run has begun")
    process.kill()
    process.wait()
    assert not FolderLock(tmp_path / "jobs").take()
    cancelled = cancel(tmp_path, "--nodes", "1", *ENDLESS)
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert ended(tmp_path) == ["cancelled"]
    until(FolderLock(tmp_path / "jobs").take, "what the script started has ended, too")


def test_ranks_end_with_their_killed_script(tmp_path: Path) -> None:
    """Surviving ranks would disturb the next script's measurement."""
    argv = sweep_argv(*LOCAL, "--nodes", "1", *ENDLESS)
    process = subprocess.Popen(argv, cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, text=True)
    until(lambda: begun(tmp_path), "a run has begun")
    (record,) = (tmp_path / "traces").glob("*.begin.json")
    script = int(json.loads(record.read_text())["job_id"].split("-")[-2])
    os.kill(script, signal.SIGKILL)
    stdout, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, ended(tmp_path)) == (1, ["lost"]), stdout
    until(lambda: not ranks_of(tmp_path), "the ranks have ended")


@pytest.mark.all
def test_rerun_if_changed_repeats_runs_measured_with_other_packages(tmp_path: Path) -> None:
    assert sweep(tmp_path, "--nodes", "1", *TINY).returncode == 0
    same = sweep(tmp_path, "--nodes", "1", *TINY, "--rerun-if-changed")
    assert "--rerun-if-changed: 0 of 1 runs that ended ok once more" in same.stdout, same.stdout + same.stderr
    assert "not compared: driver, kernel and devices of the nodes: only a run sees them" in same.stdout
    [path] = (tmp_path / "traces").glob("*.h5")
    trace = read_trace(path)
    trace.environment["software"]["numpy"] = "1.0"
    path.unlink()
    write_trace(path, trace)
    changed = sweep(tmp_path, "--nodes", "1", *TINY, "--rerun-if-changed")
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert f": numpy was 1.0, is {importlib.metadata.version('numpy')}\n" in changed.stdout
    assert ended(tmp_path) == ["ok", "ok"]
