"""The same sweep again, twice at once, cut off, throttled, cancelled: on a real Slurm of two nodes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.queue import recall
from tests.slurm.jobs import new_cluster, save_state
from tests.sweeps import begun, outcomes, sweep_argv, with_checkout
from tests.waiting import LIMIT_S, until
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

BASE = ("--no-baseline", "--backend", "mpi", "--warmup", "5", "--ranks-per-node", "1", "--cpus-per-rank", "1",
        "--telemetry", "off")  # fmt: skip
TINY = (*BASE, "--workload", "delay", "--option", "compute_ms=1", "--steps", "8")
ENDLESS = (*BASE, "--workload", "delay", "--option", "compute_ms=50", "--steps", "1000000", "--repeats", "1")
# One job for each run.
SPLIT = ("--nodes", "1", "--time", "30", "--minutes-per-run", "30")

Started = subprocess.Popen[str]


@pytest.fixture(scope="module")
def cluster(slurm_installed: None) -> Iterator[DevCluster]:
    """Two nodes; clients give up on a controller that is away after fifteen seconds."""
    with new_cluster(Shape(nodes=2, gpus=0, message_timeout_s=15, kill_wait_s=60)) as running:
        yield running


class Person:
    """Somebody logged in to a cluster, in a folder of the test."""

    def __init__(self, cluster: DevCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.env = with_checkout(cluster.environ)
        self._started: list[Started] = []

    def start(self, *arguments: str, out: str = ".", env: dict[str, str] | None = None) -> Started:
        """A sweep that goes on; what it prints goes to a file that `output` reads."""
        subcommands = int(not arguments[0].startswith("-"))
        where: tuple[str, ...] = ("--site", str(self.cluster.site_file), "--out", out)
        if len(arguments) == subcommands:  # words about the folder
            where = ("--out", out)
        argv = sweep_argv(*arguments[:subcommands], *where, *arguments[subcommands:])
        with (self.folder / f"output{len(self._started)}").open("w") as file:
            process = subprocess.Popen(argv, cwd=self.folder, env=env or self.env, stdout=file, stderr=file, text=True)
        self._started.append(process)
        return process

    def output(self, process: Started) -> str:
        return (self.folder / f"output{self._started.index(process)}").read_text()

    def sweep(self, *arguments: str, out: str = ".", env: dict[str, str] | None = None) -> tuple[int, str]:
        process = self.start(*arguments, out=out, env=env)
        return process.wait(timeout=LIMIT_S), self.output(process)

    def command(self, *argv: str) -> str:
        return subprocess.run(
            argv, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=LIMIT_S
        ).stdout

    def jobs(self, *more: str) -> list[list[str]]:
        """Id and state of the jobs in the queue."""
        return [line.split() for line in self.command("squeue", "-h", "-o", "%i %T", *more).splitlines()]

    def leave(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        self.command("scancel", "-u", str(os.getuid()))
        until(lambda: self.cluster.run("squeue", "-h") == "", "no job is left")


@pytest.fixture
def person(cluster: DevCluster, tmp_path: Path) -> Iterator[Person]:
    somebody = Person(cluster, tmp_path)
    yield somebody
    somebody.leave()


def ended(folder: Path) -> Counter[str]:
    """The number of attempts by outcome."""
    return Counter(outcomes(folder).values())


def test_two_sweeps_at_once_run_everything_once(person: Person, tmp_path: Path) -> None:
    options = ("--nodes", "1,2", "--repeats", "2", *TINY)
    both = [person.start(*options), person.start(*options)]
    assert [process.wait(timeout=LIMIT_S) for process in both] == [0, 0], [person.output(process) for process in both]
    assert ended(tmp_path) == {"ok": 4}
    assert [name.rpartition(".")[2] for name in begun(tmp_path)] == ["1"] * 4
    assert [len(submission.job_ids) for submission in recall(tmp_path / "jobs").values()] == [1, 1]


CLOSED = """
from pathlib import Path

from tests.mpi.ranks.user_workloads import Line


class Closed(Line):
    def batch(self, step):
        assert (Path(__file__).parent / "open").exists(), "closed"
        return super().batch(step)
"""


def test_retry_runs_what_ended_so_and_nothing_else(person: Person, tmp_path: Path) -> None:
    """By the command that planned it, from a folder in which its words mean nothing."""
    (tmp_path / "closed.py").write_text(CLOSED)
    closed = (*BASE, "--workload", "closed.py:Closed", "--steps", "8", "--repeats", "1")
    assert person.sweep("--nodes", "1", *TINY, "--repeats", "2")[0] == 0
    assert person.sweep("--nodes", "2", *closed)[0] == 1
    assert ended(tmp_path) == {"ok": 2, "rank_fail": 1}
    (tmp_path / "open").touch()
    (tmp_path / "elsewhere").mkdir()
    argv = sweep_argv("retry", "rank_fail", "--out", "..")
    output = person.command("env", "-C", "elsewhere", *argv)
    assert "retry rank_fail: 1 run once more" in output and "1n.sh" not in output, output
    assert ended(tmp_path) == {"ok": 3, "rank_fail": 1}, output
    assert sorted(name.rpartition(".")[2] for name in begun(tmp_path)) == ["1", "1", "1", "2"]


def test_a_sweep_killed_behind_sbatch_finds_its_job_again(person: Person, tmp_path: Path) -> None:
    real = shutil.which("sbatch", path=person.env["PATH"])
    (tmp_path / "bin").mkdir()
    killing = tmp_path / "bin" / "sbatch"  # submits, then kills the sweep that is waiting for the answer
    killing.write_text(f'#!/bin/sh\n{real} "$@" >&2\nkill -9 "$(ps -o ppid= -p $PPID)"\n')
    killing.chmod(0o755)
    dying = {**person.env, "PATH": f"{tmp_path / 'bin'}:{person.env['PATH']}"}
    status, _ = person.sweep("--nodes", "1", *ENDLESS, "--detach", env=dying)
    assert status == -9
    [[job_id, _]] = person.jobs()
    assert recall(tmp_path / "jobs")["1n.sh"].job_ids == ()
    status, output = person.sweep("--nodes", "1", *ENDLESS, "--detach")
    assert (status, f"1n.sh: job {job_id} is queued or running already: followed" in output) == (0, True), output
    assert len(person.jobs()) == 1


GATED = """
import time
from pathlib import Path

from tests.mpi.ranks.user_workloads import Line


class Gated(Line):
    def batch(self, step):
        here = Path(__file__).parent
        while step == 6 and not (here / "gate").exists():
            time.sleep(0.05)
        return super().batch(step)
"""


def gated(folder: Path) -> tuple[tuple[str, ...], Path]:
    """A workload that goes on where the file is there."""
    (folder / "gated.py").write_text(GATED)
    return (*BASE, "--workload", "gated.py:Gated", "--steps", "8"), folder / "gate"


def test_a_sweep_ends_complete_though_the_controller_dies_in_the_middle(
    person: Person, cluster: DevCluster, tmp_path: Path
) -> None:
    """Two jobs run, two wait in the queue, two are not submitted yet; the running ones end while it is away."""
    workload, gate = gated(tmp_path)
    sweep = person.start("--repeats", "6", *SPLIT, *workload, "--max-jobs", "4")
    until(lambda: (len(begun(tmp_path)), len(person.jobs())) == (2, 4), "two jobs run, two wait")
    save_state(cluster, person.jobs()[0][0])
    cluster.kill("slurmctld")
    gate.touch()
    until(lambda: ended(tmp_path)["ok"] == 2, "both runs end")
    until(lambda: "the scheduler has not answered since" in person.output(sweep), "the outage is printed")
    cluster.start_controller()
    assert sweep.wait(timeout=LIMIT_S) == 0, person.output(sweep)
    assert "the scheduler answers again" in person.output(sweep)
    assert ended(tmp_path)["ok"] == 6
    status, output = person.sweep("--repeats", "6", *SPLIT, *workload)
    assert (status, output.count("nothing to submit")) == (0, 6)


def test_cancel_ends_the_jobs_of_its_sweep_and_no_others(person: Person, tmp_path: Path) -> None:
    """One that is followed and throttled, and one of its scripts by hand; another sweep, and a job of nobody's."""
    other = person.start("--nodes", "1", *ENDLESS, out="other")
    sweep = person.start("--nodes", "1,2", *ENDLESS, "--max-jobs", "1")
    until(lambda: begun(tmp_path) and begun(tmp_path / "other"), "both sweeps have begun a run")
    by_hand = person.command("sbatch", "--parsable", "jobs/2n.sh").strip()
    foreign = person.command("sbatch", "--parsable", "--hold", "--job-name", "rankwise-1n", "--wrap", "true").strip()
    [theirs] = recall(tmp_path / "other" / "jobs")["1n.sh"].job_ids
    assert len(person.jobs()) == 4

    status, output = person.sweep("status", "--nodes", "1,2", *ENDLESS)
    assert (status, "running in job" in output, "1 begun, 1 never ran" in output) == (1, True, True), output
    status, output = person.sweep("cancel", "--nodes", "1,2", *ENDLESS)
    assert (status, f"job {by_hand}: ended" in output) == (0, True), output
    assert {job_id for job_id, state in person.jobs()} == {theirs, foreign}
    assert sweep.wait(timeout=LIMIT_S) == 1
    output = person.output(sweep)  # which may have seen the job made by hand before the cancel
    assert "2n.sh: submitted" not in output
    joined = f"2n.sh: job {by_hand} is queued or running already"
    assert "not submitted, because its sweep was cancelled" in output or joined in output
    assert ended(tmp_path) == {"cancelled": 1}
    status, output = person.sweep("status")  # whatever was planned in the folder
    assert (status, "cancelled, to be done" in output) == (1, True), output

    status, output = person.sweep("cancel", out="other")
    assert (status, other.wait(timeout=LIMIT_S)) == (0, 1), output
    assert {job_id for job_id, state in person.jobs()} == {foreign}


@pytest.mark.all
def test_a_full_controller_is_waited_for(slurm_installed: None, tmp_path: Path) -> None:
    with new_cluster(Shape(nodes=1, gpus=0, max_job_count=2, min_job_age_s=2)) as cluster:
        person = Person(cluster, tmp_path)
        status, output = person.sweep("--repeats", "4", *SPLIT, *TINY)
    assert (status, ended(tmp_path)) == (0, {"ok": 4}), output
