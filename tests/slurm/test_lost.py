"""What is left when a rank, a whole job or a node dies under a run: every step, else all up to the last copy."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.recovery.recover import main as recover
from tests.mpi.attempts import HERE
from tests.processes import Process, processes, signal_all
from tests.slurm.jobs import TWO_RANKS, has_ended, new_cluster, printed_by, submit, write_scripts
from tests.waiting import until
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

FILE, DONE = HERE / "user_stops.py", 7


@pytest.fixture(scope="module")
def two_nodes(slurm_installed: None) -> Iterator[DevCluster]:
    """Two nodes with storage of their own, which die in these tests."""
    with new_cluster(Shape(nodes=2)) as running:
        yield running


class Job:
    """A job of one run on both nodes, two ranks each, all of which come to a stop after seven steps."""

    def __init__(self, cluster: DevCluster, folder: Path, workload: str) -> None:
        self.cluster, self.folder, self.traces = cluster, folder, folder / "traces"
        script = write_scripts(
            cluster, folder, "--nodes", "2", *TWO_RANKS, "--repeats", "1", "--workload", f"{FILE}:{workload}",
            "--steps", "20", "--warmup", "5", "--copy-s", "0.2",
        ) / "2n.sh"  # fmt: skip
        self.id = submit(cluster, script)
        until(lambda: len(list(folder.glob("stopped.*"))) == 4 or self.has_ended(), "all ranks have come to a stop")
        assert not self.has_ended(), self.output()
        (begun,) = self.traces.glob("*.begin.json")
        self.stem = begun.name.removesuffix(".begin.json")
        self.batch_node = cluster.run("squeue", "-h", "-j", self.id, "-o", "%B").strip()

    def rank(self, number: int) -> int:
        """A rank's process."""
        return int((self.folder / f"stopped.{number}").read_text())

    def processes(self) -> list[Process]:
        """All that lives of the job, on any node."""
        return [process for process in processes() if f"SLURM_JOB_ID={self.id}" in process.environ]

    def has_ended(self) -> bool:
        return has_ended(self.cluster, self.id)

    def wait_for_end(self) -> None:
        """Returns when the job has ended."""
        until(self.has_ended, f"job {self.id} ends", self.output)

    def output(self) -> str:
        """All that the job and its run printed."""
        return printed_by(self.folder)

    def outcome(self) -> str | None:
        """What the exit record says."""
        record = self.traces / f"{self.stem}.exit.json"
        return json.loads(record.read_text())["outcome"] if record.exists() else None

    def trace(self) -> Trace:
        return read_trace(self.traces / f"{self.stem}.h5")


def check_all_steps(trace: Trace) -> None:
    assert trace.recovered
    assert trace.steps_completed.tolist() == [DONE] * 4
    assert (trace.stamps[:, :DONE] != ABSENT).all() and (trace.stamps[:, DONE:] == ABSENT).all()
    assert trace.clock_local_ns.shape[1] >= 1


def test_a_killed_rank_loses_no_step(two_nodes: DevCluster, tmp_path: Path) -> None:
    job = Job(two_nodes, tmp_path, "Stops")
    os.kill(job.rank(3), signal.SIGKILL)
    job.wait_for_end()
    assert job.outcome() == Outcome.RANK_FAIL, job.output()
    check_all_steps(job.trace())
    assert "copied last" not in job.trace().evidence
    assert not list(job.traces.glob("*.partial"))


def test_a_killed_job_keeps_its_copied_steps(
    two_nodes: DevCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(two_nodes, tmp_path, "StopsWhenCopied")
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that nobody sees another one go
        assert signal_all(job.processes, number)
    job.wait_for_end()
    until(lambda: not job.processes(), "nothing of the job lives")
    assert job.outcome() is None, job.output()
    assert recover([str(tmp_path)]) == 0  # whoever looks at it at once cannot know that it does not run
    assert "left alone, it may still run" in capsys.readouterr().out
    assert recover([str(tmp_path), "--stem", job.stem]) == 0
    check_all_steps(job.trace())
    assert job.trace().outcome is Outcome.LOST
    assert "of ranks 0-3 there is what was copied last" in job.trace().evidence
    assert not list(job.traces.glob("*.partial"))


def test_a_lost_node_keeps_its_copied_steps(two_nodes: DevCluster, tmp_path: Path) -> None:
    """Its power is cut: all its processes are gone from one moment to the next, and what they kept on the node."""
    job = Job(two_nodes, tmp_path, "StopsWhenCopied")
    (lost,) = {"node1", "node2"} - {job.batch_node}
    two_nodes.kill_node(lost)
    if two_nodes.host.own_storage:
        assert job.rank(3 if lost == "node2" else 0) not in [process.pid for process in job.processes()]
    two_nodes.run("scancel", job.id)
    until(lambda: not job.processes(), "nothing of the job lives")
    if not (job.traces / f"{job.stem}.h5").exists():
        assert recover([str(tmp_path), "--stem", job.stem]) == 0
    check_all_steps(job.trace())
    assert job.outcome() in (None, Outcome.CANCELLED), job.output()
    if two_nodes.host.own_storage:
        lost_ranks = "ranks 2-3" if lost == "node2" else "ranks 0-1"
        assert f"of {lost_ranks} there is what was copied last" in job.trace().evidence or (
            "of ranks 0-3 there is" in job.trace().evidence
        )
    two_nodes.start_node(lost)
