"""hpc.node_agent: the helper process beside the ranks, seen from the rank; the helper is a real one each time."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpc.node_agent import recorder as module
from hpc.node_agent.__main__ import Readings
from hpc.node_agent.cores import cores_in, spare_core, stand_aside
from hpc.node_agent.recorder import Recorder
from hpc.node_agent.sources import Beside, Reading, Unread
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300  # for what must come; no test asks how soon it does


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The helper runs where nothing else wants to: on a busy machine it takes longer than a rank would wait."""
    monkeypatch.setattr(module, "START_S", PATIENCE_S)
    monkeypatch.setattr(module, "STOP_S", PATIENCE_S)


def here(**changes: object) -> Beside:
    own = Beside.this_process()
    return Beside(**{"pid": own.pid, "cores": own.cores, "pid_namespace": own.pid_namespace, **changes})


def helper_of(recorder: Recorder) -> int:
    assert recorder._helper is not None
    return recorder._helper.pid


def ended(pidfd: int) -> bool:
    """Waits for the end of that process."""
    return bool(select.select([pidfd], [], [], PATIENCE_S)[0])


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder([here()], interval_s=0.02)
    made.start()
    yield made
    made.stop()


def test_what_the_helper_reads_is_on_the_clock_of_its_rank_and_of_that_rank():
    before_ns, before = time.perf_counter_ns(), Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    recorder = Recorder([here()], interval_s=0.02)
    recorder.start()
    recording = recorder.stop()
    after_ns, after = time.perf_counter_ns(), Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert len(recording.local_ns) >= 2
    assert before_ns < recording.local_ns[0]
    assert (np.diff(recording.local_ns) > 0).all()
    assert recording.local_ns[-1] < after_ns
    assert recording.values.shape == (len(recording.local_ns), len(recording.series))
    faults = recording.values[:, recording.series.index("local_rank0.minor_faults")]
    assert int(before[7]) <= faults[0] <= faults[-1] <= int(after[7])
    assert "problem" not in recording.facts
    assert recording.facts["interval_s"] == 0.02
    for always in ("cpu.busy_s", "memory.available_bytes", "net.tcp_retransmitted_segments", "telemetry.cpu_s"):
        assert np.isfinite(recording.values[:, recording.series.index(always)]).all()


def test_samples_keep_coming_until_it_is_stopped(recorder):
    row_bytes = 8 * (1 + len(recorder._series))
    until(lambda: os.fstat(recorder._samples).st_size > 11 * row_bytes, "eleven samples")
    recording = recorder.stop()
    assert len(recording.local_ns) > 10
    assert (np.diff(recording.values[:, recording.series.index("cpu.context_switches")]) >= 0).all()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this test may use one core only")
def test_the_helper_keeps_to_a_core_that_no_rank_uses():
    of_rank, *_ = sorted(os.sched_getaffinity(0))
    recorder = Recorder([here(cores=(of_rank,))])
    recorder.start()
    helper = helper_of(recorder)
    (core,) = os.sched_getaffinity(helper)
    priority = os.getpriority(os.PRIO_PROCESS, helper)
    placed = recorder.stop().facts["placed"]
    assert core != of_rank
    assert placed.startswith(f"on core {core}, which no rank uses")
    assert priority == 19


def test_where_every_core_is_a_ranks_the_helper_runs_when_they_are_idle():
    recorder = Recorder([here(cores=tuple(range(os.sysconf("SC_NPROCESSORS_CONF"))))])
    recorder.start()
    policy, priority = os.sched_getscheduler(helper_of(recorder)), os.getpriority(os.PRIO_PROCESS, helper_of(recorder))
    assert "on the ranks' cores" in recorder.stop().facts["placed"]
    assert (policy, priority) == (os.SCHED_IDLE, 19)


def test_where_it_may_not_choose_a_core_it_reads_all_the_same(monkeypatch):
    def refused(pid: int, cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    monkeypatch.setattr(os, "setpriority", lambda *_: None)  # of this test's own process: it could not go back
    assert stand_aside({0}).endswith("it may not choose a core (Operation not permitted)")


@pytest.mark.parametrize(
    ("usable", "of_ranks", "core"),
    [
        ({0, 1, 2, 3}, {0}, 3),
        ({0, 1, 2, 3}, {0, 3}, 2),  # none is quite free
        ({0, 1, 2, 3, 8}, {0, 3}, 8),
        ({0, 1, 2, 3}, {0, 1, 2, 3}, None),
        ({0, 1}, {0, 1, 2, 3}, None),
    ],
)
def test_the_core_is_the_last_whose_hardware_threads_are_free(usable, of_ranks, core):
    # Threads 0 and 2 are one core, 1 and 3, 8 and 9.
    siblings = {0: {0, 2}, 2: {0, 2}, 1: {1, 3}, 3: {1, 3}, 8: {8, 9}}
    assert spare_core(usable, of_ranks, siblings.__getitem__) == core


def test_the_kernels_lists_of_cores_are_understood():
    assert cores_in("0-2,8\n") == {0, 1, 2, 8}
    assert cores_in("5") == {5}
    with pytest.raises(ValueError, match="invalid literal"):
        cores_in("a-b")


@pytest.mark.parametrize("each", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_to_all_of_a_job_do_not_end_it(recorder, each):
    os.kill(helper_of(recorder), each)
    assert "problem" not in recorder.stop().facts


def test_a_helper_that_is_killed_costs_telemetry_and_nothing_else(recorder):
    until(lambda: os.fstat(recorder._samples).st_size, "a sample")
    pidfd = os.pidfd_open(helper_of(recorder))
    os.kill(helper_of(recorder), signal.SIGKILL)
    assert ended(pidfd)
    os.write(recorder._samples, b"half a row")
    recording = recorder.stop()
    assert recording.facts["problem"] == "ended early: signal 9"
    assert len(recording.local_ns) >= 1
    assert (recording.values[:, recording.series.index("cpu.busy_s")] > 0).all()


def test_a_helper_that_fails_says_why():
    recorder = Recorder([here()], interval_s="soon")
    recorder.start()
    assert "ended early: exit status 1 TypeError: " in recorder.stop().facts["problem"]


@pytest.mark.parametrize(
    ("interpreter", "why"),
    [("/nowhere/python", "No such file"), ("/bin/false", "ended at once"), ("", "did not start")],
)
def test_a_helper_that_cannot_start_is_a_fact(monkeypatch, interpreter, why):
    monkeypatch.setattr(sys, "executable", interpreter)
    recorder = Recorder([here()])
    recorder.start()
    recording = recorder.stop()
    assert why in recording.facts["problem"]
    assert recording.local_ns.shape == (0,)
    assert recording.values.shape == (0, 0)


def test_a_helper_that_says_nothing_is_given_up(monkeypatch, tmp_path):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(module, "START_S", 0.05)
    recorder = Recorder([here()])
    recorder.start()
    assert recorder.stop().facts["problem"] == "did not start: said nothing within 0.05 s"


def test_a_helper_that_does_not_end_is_killed(recorder, monkeypatch):
    monkeypatch.setattr(module, "STOP_S", 0.05)
    helper = helper_of(recorder)
    pidfd = os.pidfd_open(helper)
    os.kill(helper, signal.SIGSTOP)
    assert recorder.stop().facts["problem"] == "did not end within 0.05 s"
    assert ended(pidfd)


RANK = """
import os, sys, time
from hpc.node_agent.recorder import Recorder
from hpc.node_agent.sources import Beside
recorder = Recorder([Beside.this_process()])
recorder.start()
if sys.argv[1] == "with a child" and os.fork() == 0:
    time.sleep(1000)
print(recorder._helper.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["alone", "with a child"])
def test_the_helper_dies_with_its_rank(how):
    """A child of the rank, as loaders of data are, keeps the pipe open that the helper listens to."""
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, how], stdout=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True
    )
    assert rank.stdout is not None
    pidfd = os.pidfd_open(int(rank.stdout.readline()))
    rank.kill()
    rank.wait()
    try:
        assert ended(pidfd)
    finally:
        os.killpg(rank.pid, signal.SIGKILL) if how == "with a child" else None
        rank.stdout.close()


def test_what_fails_at_first_is_absent_and_what_fails_later_is_nan():
    state = {"fails": False}

    def later() -> list[float]:
        if state["fails"]:
            raise OSError(5, "Input/output error")
        return [1.0, 2.0]

    def never() -> list[float]:
        raise Unread("Not Supported")

    def sources() -> Iterator[Reading]:
        yield Reading(["a.x_s", "a.y_s"], later)
        yield Reading(["b.z_s"], never)
        yield Reading(["c.w_s"], lambda: [3.0])
        raise Unread("no more of it")

    readings = Readings({"some": sources()})
    assert readings.series == ["a.x_s", "a.y_s", "c.w_s"]
    assert readings.absent == {"b.z_s": "Not Supported", "some": "no more of it"}
    assert readings.read() == [1.0, 2.0, 3.0]
    state["fails"] = True
    np.testing.assert_equal(readings.read(), [np.nan, np.nan, 3.0])
    assert readings.failed == {"a.x_s": "Input/output error"}
