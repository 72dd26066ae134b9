"""hpc.node_agent: the helper of a node, seen from the rank that starts it; the helper is a real process each time."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc.measure.world import World
from hpc.node_agent import agent as module
from hpc.node_agent.agent import Copying, NodeAgent, Recording, TelemetryRequest, start_agent
from hpc.node_agent.sources import RankProcess
from hpc.node_agent.telemetry import spare_core, stand_aside
from hpc.recovery.collect import collect
from hpc.recovery.folders import BEAT
from hpc.recovery.journal import Journal, read_journals
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
STEM, STEPS = "1n2g_mpi_delay_r1.1", 6
PATIENCE_S = 300  # for what must come; no test asks how soon it does


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper runs where nothing else wants to: on a busy machine it takes longer than a rank would wait."""
    monkeypatch.setattr(module, "START_S", PATIENCE_S)
    monkeypatch.setattr(module, "STOP_S", PATIENCE_S)


@pytest.fixture
def partial(traces: Path) -> Path:
    return traces / f"{STEM}.partial"


@pytest.fixture
def journal(places: list[Path], partial: Path) -> Iterator[Journal]:
    journal = Journal(partial.parent, STEM, 0, STEPS)
    yield journal
    journal.remove()


def started(
    interval_s: Any = 0.02, copying: Copying | None = None, *, telemetry: bool = True, cores: tuple[int, ...] = ()
) -> NodeAgent:
    rank = RankProcess.this_process()
    if cores:
        rank = RankProcess(pid=rank.pid, cores=cores, pid_namespace=rank.pid_namespace)
    agent = NodeAgent([rank], telemetry=TelemetryRequest(interval_s=interval_s) if telemetry else None, copying=copying)
    agent.start()
    return agent


def recorded(agent: NodeAgent) -> Recording:
    recording = agent.stop_telemetry()
    agent.end()
    assert recording is not None
    return recording


def pid_of(agent: NodeAgent) -> int:
    assert agent._process is not None
    return agent._process.pid


def ended(pidfd: int) -> bool:
    """Waits for the end of that process."""
    return bool(select.select([pidfd], [], [], PATIENCE_S)[0])


def copies_of(journal: Journal, partial: Path, interval_s: float = 3600) -> Copying:
    return Copying(folders={0: journal.folder}, partial=partial, interval_s=interval_s)


def copied_steps(partial: Path) -> list[int]:
    return [journal.steps_completed for journal in read_journals(partial)]


def beat(partial: Path) -> Path:
    return partial / f"{os.uname().nodename}{BEAT}"


@pytest.fixture
def agent() -> Iterator[NodeAgent]:
    agent = started()
    yield agent
    agent.end()


def test_samples_are_on_the_clock_of_the_rank_and_about_it() -> None:
    before_ns, before = time.perf_counter_ns(), Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    recording = recorded(started())
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
    for always in ("cpu.busy_s", "memory.swapped_out_bytes", "net.tcp_retransmitted_segments", "telemetry.cpu_s"):
        assert np.isfinite(recording.values[:, recording.series.index(always)]).all()


def test_a_sample_is_taken_at_once_where_one_is_due() -> None:
    agent = started(interval_s=3600)
    row_bytes = 8 * (1 + len(agent._facts["telemetry"]["series"]))
    for rows in (1, 2, 3):
        until(lambda rows=rows: os.fstat(agent._samples).st_size >= rows * row_bytes, f"sample {rows}")  # type: ignore[misc]
        agent.sample()
    until(lambda: os.fstat(agent._samples).st_size >= 4 * row_bytes, "the last sample")
    assert len(recorded(agent).local_ns) == 5


def threads_of(agent: NodeAgent) -> list[int]:
    return [int(task.name) for task in Path(f"/proc/{pid_of(agent)}/task").iterdir()]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this test may use one core only")
def test_all_threads_of_the_helper_keep_to_a_core_that_no_rank_uses(journal: Journal, partial: Path) -> None:
    of_rank, *_ = sorted(os.sched_getaffinity(0))
    agent = started(copying=copies_of(journal, partial), cores=(of_rank,))
    cores = set().union(*(os.sched_getaffinity(thread) for thread in threads_of(agent)))
    priorities = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads_of(agent)}
    assert len(threads_of(agent)) == 3
    placed = agent.copy_facts()["placed"]
    assert recorded(agent).facts["placed"] == placed
    (core,) = cores
    assert core != of_rank
    assert placed.startswith(f"on core {core}, which no rank uses")
    assert priorities == {19}


def test_where_every_core_is_a_ranks_the_helper_runs_when_they_are_idle() -> None:
    agent = started(cores=tuple(range(os.sysconf("SC_NPROCESSORS_CONF"))))
    policies = {os.sched_getscheduler(thread) for thread in threads_of(agent)}
    priorities = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads_of(agent)}
    assert "on the ranks' cores" in recorded(agent).facts["placed"]
    assert (policies, priorities) == ({os.SCHED_IDLE}, {19})


def test_where_it_may_not_choose_a_core_it_reads_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_core_is_the_last_whose_hardware_threads_are_free(
    usable: set[int], of_ranks: set[int], core: int | None
) -> None:
    # Threads 0 and 2 are one core, 1 and 3, 8 and 9.
    siblings = {0: {0, 2}, 2: {0, 2}, 1: {1, 3}, 3: {1, 3}, 8: {8, 9}}
    assert spare_core(usable, of_ranks, siblings.__getitem__) == core


@pytest.mark.parametrize("each", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_to_all_of_a_job_do_not_end_it(agent: NodeAgent, each: int) -> None:
    os.kill(pid_of(agent), each)
    assert "problem" not in recorded(agent).facts


def test_a_killed_helper_costs_its_facts_and_nothing_else(journal: Journal, partial: Path) -> None:
    agent = started(copying=copies_of(journal, partial))
    until(lambda: os.fstat(agent._samples).st_size, "a sample")
    pidfd = os.pidfd_open(pid_of(agent))
    os.kill(pid_of(agent), signal.SIGKILL)
    assert ended(pidfd)
    os.write(agent._samples, b"half a row")
    assert agent.copy_facts()["problem"] == "ended early: signal 9"
    recording = recorded(agent)
    assert recording.facts["problem"] == "ended early: signal 9"
    assert len(recording.local_ns) >= 1
    assert (recording.values[:, recording.series.index("cpu.busy_s")] > 0).all()


def test_copies_go_on_where_telemetry_fails(journal: Journal, partial: Path) -> None:
    agent = started(interval_s="soon", copying=copies_of(journal, partial, 0.05))
    journal.samples[0] = 4
    until(beat(partial).exists, "a look")
    until(lambda: copied_steps(partial) == [1], "the step")
    assert "problem" not in agent.copy_facts()
    assert "ended early: TypeError: " in recorded(agent).facts["problem"]
    assert not partial.exists()


def test_telemetry_goes_on_where_copies_fail(journal: Journal, partial: Path) -> None:
    agent = started(copying=Copying(folders={0: journal.folder}, partial=partial, interval_s="soon"))  # type: ignore[arg-type]
    until(lambda: "ended early: TypeError: " in agent.copy_facts().get("problem", ""), "the failure")
    size = os.fstat(agent._samples).st_size
    until(lambda: os.fstat(agent._samples).st_size > size, "a sample after it")
    assert "problem" not in recorded(agent).facts


@pytest.mark.parametrize(
    ("interpreter", "problem"),
    [("/nowhere/python", "No such file"), ("/bin/false", "ended early: exit status 1"), ("", "did not start")],
)
def test_a_helper_that_cannot_start_is_a_fact(
    monkeypatch: pytest.MonkeyPatch, journal: Journal, partial: Path, interpreter: str, problem: str
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    agent = started(copying=copies_of(journal, partial))
    assert problem in agent.copy_facts()["problem"]
    recording = recorded(agent)
    assert "did not start: " in recording.facts["problem"]
    assert problem in recording.facts["problem"]
    assert recording.local_ns.shape == (0,)
    assert recording.values.shape == (0, 0)


def test_telemetry_that_never_replies_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(module, "START_S", 0.05)
    monkeypatch.setattr(module, "STOP_S", 0.05)
    assert recorded(started()).facts["problem"] == "did not start: no reply within 0.05 s"


def test_a_helper_that_does_not_end_is_killed(agent: NodeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)
    pidfd = os.pidfd_open(pid_of(agent))
    os.kill(pid_of(agent), signal.SIGSTOP)
    assert recorded(agent).facts["problem"] == "did not end within 0.05 s"
    assert ended(pidfd)


def test_copies_are_made_every_interval_and_removed_at_the_end(journal: Journal, partial: Path) -> None:
    agent = started(telemetry=False, copying=copies_of(journal, partial, 0.05))
    process = agent._process
    assert process is not None
    journal.samples[0] = 4
    until(beat(partial).exists, "a look")
    until(lambda: copied_steps(partial) == [1], "the step")
    facts = agent.copy_facts()
    assert facts["interval_s"] == 0.05 and facts["placed"] and "problem" not in facts
    assert agent.stop_telemetry() is None
    agent.end()
    assert process.returncode == 0
    assert not partial.exists()


def test_sigterm_makes_it_copy_at_once_and_other_signals_do_nothing(journal: Journal, partial: Path) -> None:
    agent = started(telemetry=False, copying=copies_of(journal, partial))
    until(lambda: "placed" in agent.copy_facts(), "signals are caught")
    for number, each in enumerate((signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)):
        journal.samples[number] = 4
        os.kill(pid_of(agent), each)
    assert not partial.exists()
    for steps in (4, 5):
        journal.samples[steps - 1] = 4
        os.kill(pid_of(agent), signal.SIGTERM)
        until(beat(partial).exists, "a look")
        assert copied_steps(partial) == [steps]
        beat(partial).unlink()
    agent.end()


RANK = """
import os, sys, time
from pathlib import Path
from hpc.node_agent.agent import Copying, NodeAgent, TelemetryRequest
from hpc.node_agent.sources import RankProcess
from hpc.recovery import folders
from hpc.recovery.journal import Journal
base, partial, stem, telemetry, copies, child = sys.argv[1:]
folders._bases = lambda: [Path(base)]
copying = None
if copies:
    made = Journal(Path(partial).parent, stem, 0, 6)
    made.samples[0] = made.samples[1] = 4
    copying = Copying(folders={0: made.folder, 1: made.folder}, partial=Path(partial), interval_s=3600)
agent = NodeAgent([RankProcess.this_process()], telemetry=TelemetryRequest() if telemetry else None, copying=copying)
agent.start()
while "placed" not in agent._facts["agent"]:
    agent._receive(lambda: False, 0.01)
if child and os.fork() == 0:
    time.sleep(1000)
print(agent._process.pid, flush=True)
time.sleep(1000)
"""


def rank_with_agent(base: Path, partial: Path, *parts: str) -> tuple[subprocess.Popen[str], int]:
    """A process that stands for rank 0, and its helper's number."""
    flags = [part if part in parts else "" for part in ("telemetry", "copies", "child")]
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, str(base), str(partial), STEM, *flags],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        start_new_session=True,
    )
    assert rank.stdout is not None
    return rank, int(rank.stdout.readline())


@pytest.mark.parametrize("parts", [("telemetry",), ("telemetry", "child")])
def test_without_copies_the_helper_ends_with_its_rank(
    places: list[Path], partial: Path, parts: tuple[str, ...]
) -> None:
    """A child of the rank, such as a data loader, keeps the pipe open that the helper reads."""
    rank, process = rank_with_agent(places[0], partial, *parts)
    pidfd = os.pidfd_open(process)
    rank.kill()
    rank.wait()
    try:
        assert ended(pidfd)
    finally:
        if "child" in parts:
            os.killpg(rank.pid, signal.SIGKILL)
        assert rank.stdout is not None
        rank.stdout.close()


@pytest.mark.parametrize("parts", [("copies",), ("copies", "telemetry")])
def test_with_copies_it_outlives_its_rank_copies_a_last_time_and_ends(
    places: list[Path], partial: Path, parts: tuple[str, ...]
) -> None:
    rank, process = rank_with_agent(places[0], partial, *parts)
    pidfd = os.pidfd_open(process)
    other = Journal(partial.parent, STEM, 1, STEPS)  # a rank that lives on; this process stands for it
    rank.kill()
    rank.wait()
    assert rank.stdout is not None
    rank.stdout.close()
    for _ in range(5):  # it goes on
        os.kill(process, signal.SIGTERM)
        until(beat(partial).exists, "a look")
        beat(partial).unlink()
    other.samples[0] = 4
    fcntl.flock(other._file, fcntl.LOCK_UN)  # and now that one is gone, too
    assert ended(pidfd)
    assert copied_steps(partial) == [2, 1]
    assert collect(partial.parent, STEM) == 2


def test_none_is_started_without_telemetry_and_copies(partial: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = World(rank=0, size=1, local_rank=0, local_size=1, node_rank=0, nodes=1, hostname="n1")
    comm: Any = SimpleNamespace(rank=0, gather=lambda each: [each], scatter=lambda values: values[0])
    run: Any = SimpleNamespace(telemetry="off", gpus_per_node=0)
    assert start_agent(comm, world, run, [], partial, partial, 0) is None
    assert "copies are off" in capfd.readouterr().err
