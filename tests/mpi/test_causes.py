"""Real causes of a late rank: each leaves its own record in the telemetry of an unchanged script, and no other's name.

What a busy machine does to the ranks beside may hide a cause; it must not make it another one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from parse.ledger.causes import Cause, evidence_of, run_rates
from parse.ledger.symptoms import places
from tests.mpi.conftest import RANKS_ENV, mpiexec
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT_OF_CAUSES = ROOT / "tests" / "observe_scripts" / "causes.py"
LATE, USUAL = 1, 0
BY_LOAD = {Cause.QUEUED, Cause.OTHERS}
"""What load of others on the machine may be named for."""

pytestmark = [
    pytest.mark.all,
    pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT))),
]


def traced(folder: Path, how: str, amount: float = 1, *more: str) -> Trace:
    """A run of two ranks of which the second has a fault of the script's, in all steps."""
    command = mpiexec()
    if command is None:
        pytest.skip("no mpiexec here")
    argv = [command, "-n", "2", sys.executable, "-m", "hpc.observe", "--traces", str(folder), "--cpus-per-rank", "1"]
    argv += ["--warmup", "20", "--", str(SCRIPT_OF_CAUSES), "--marks", str(folder / "marks"), "--work", "burn"]
    argv += ["--faults", f"{how}:compute:{amount}@{LATE}", "--steps", "160", *more]
    done = subprocess.run(
        argv, env={**os.environ, **RANKS_ENV}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.h5")
    return read_trace(path)


def growth(trace: Trace, name: str) -> tuple[float, float]:
    """How much a counter of the late rank has grown over the run, and that of the other."""
    telemetry = trace.telemetry
    assert telemetry is not None
    late, usual = (
        telemetry.values[0, :, list(telemetry.series).index(f"local_rank{rank}.{name}")] for rank in (LATE, USUAL)
    )
    return float(np.nanmax(late) - np.nanmin(late)), float(np.nanmax(usual) - np.nanmin(usual))


def named(trace: Trace) -> set[Cause]:
    assert trace.telemetry is not None
    rates = run_rates(trace, [LATE], [USUAL], places(trace, trace.telemetry))
    return {each.cause for each in evidence_of([] if rates is None else [rates], 10.0)}


def test_a_python_thread_that_computes(tmp_path: Path) -> None:
    trace = traced(tmp_path, "gil")
    (process, of_usual), (main, main_of_usual) = growth(trace, "cpu_s"), growth(trace, "main_thread_cpu_s")
    assert process - main > of_usual - main_of_usual
    assert "spinner" in trace.reports[LATE].extra["script"]["facts"]["python_threads"].values()
    assert named(trace) <= {Cause.PYTHON_THREADS, *BY_LOAD}


@pytest.mark.all
def test_two_compute_threads_on_one_core(tmp_path: Path) -> None:
    trace = traced(tmp_path, "threads", 2, "--work", "matmul")
    (process, of_usual), (main, main_of_usual) = growth(trace, "cpu_s"), growth(trace, "main_thread_cpu_s")
    assert process - main > of_usual - main_of_usual
    assert [report.extra["script"]["facts"]["compute_threads"] for report in trace.reports] == [1, 2]
    assert named(trace) <= {Cause.COMPUTE_THREADS, *BY_LOAD}


def test_a_rank_that_is_stopped_now_and_then(tmp_path: Path) -> None:
    trace = traced(tmp_path, "stop", 5)
    late, usual = growth(trace, "main_thread_stopped_looks")
    assert late > usual == 0
    assert named(trace) <= {Cause.STOPPED, *BY_LOAD}


@pytest.mark.all
def test_a_rank_that_writes_to_the_disk_in_each_step(tmp_path: Path) -> None:
    trace = traced(tmp_path, "fsync", 0.25)
    late, usual = growth(trace, "written_bytes")
    assert late > usual
    assert named(trace) <= {Cause.STORAGE, Cause.SLEEPS, *BY_LOAD}  # a disk of a network is waited for otherwise


@contextmanager
def group_with_quota() -> Iterator[Path]:
    """A control group of version 1 or 2 that may run a quarter of a core; skips where none can be made."""
    for root, quota, text in (
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "25000"),
        ("/sys/fs/cgroup", "cpu.max", "25000 100000"),
    ):
        folder = Path(root) / f"rankwise-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / quota).write_text(text)
        except OSError:
            folder.rmdir()
            continue
        try:
            yield folder
        finally:
            folder.rmdir()
        return
    pytest.skip("no control group with a CPU quota can be made here")


def test_a_rank_with_a_cpu_quota(tmp_path: Path) -> None:
    with group_with_quota() as group:
        trace = traced(tmp_path, "quota", 1, "--cgroup", str(group))
    late, usual = growth(trace, "throttled_s")
    assert late > usual
    assert named(trace) <= {Cause.QUOTA, *BY_LOAD}
