"""What is left when a rank, a whole job or a node dies under a run: every step, else all up to the last copy."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc.outcome import Outcome
from hpc.stamps import ABSENT
from hpc.trace import Trace
from hpc.trace_file import read_trace
from launch.devcluster.cluster import DevCluster
from launch.devcluster.config import Shape
from parse.recover import main as recover

ROOT = Path(__file__).resolve().parents[2]
FILE, DONE = ROOT / "tests/mpi/ranks/user_stops.py", 7


def wait_until(what: Callable[[], object]) -> None:
    """Polls; the limit is there for a test that fails."""
    limit = time.monotonic() + 120
    while not what():
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def two_nodes(slurm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Two nodes with storage of their own, which die in these tests."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))  # short: sockets lie below it
    with DevCluster(folder, Shape(nodes=2)) as running:
        yield running
    shutil.rmtree(folder)


class Job:
    """A job of one run on both nodes, two ranks each, all of which come to a stop after seven steps."""

    def __init__(self, cluster: DevCluster, folder: Path, workload: str) -> None:
        self.cluster, self.folder, self.traces = cluster, folder, folder / "traces"
        argv = [
            sys.executable, "-m", "hpc.sweep", "--site", str(cluster.site_file), "--nodes", "2", "--ranks-per-node",
            "2", "--cpus-per-rank", "1", "--no-baseline", "--repeats", "1", "--backend", "mpi", "--workload",
            f"{FILE}:{workload}", "--steps", "20", "--warmup", "5", "--dry-run",
        ]  # fmt: skip
        env = {**cluster.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        script = folder / "jobs" / "2n.sh"
        text, found = re.subn(r"(?m)^copy_s=.*$", "copy_s=0.2", script.read_text())
        assert found == 1
        script.write_text(text)
        self.id = cluster.run("sbatch", "--parsable", str(script), cwd=folder).strip()
        wait_until(lambda: len(list(folder.glob("stopped.*"))) == 4 or self.has_ended())
        assert not self.has_ended(), self.told()
        (begun,) = self.traces.glob("*.begin.json")
        self.stem = begun.name.removesuffix(".begin.json")
        self.batch_node = cluster.run("squeue", "-h", "-j", self.id, "-o", "%B").strip()

    def rank(self, number: int) -> int:
        """A rank's process."""
        return int((self.folder / f"stopped.{number}").read_text())

    def processes(self) -> list[Path]:
        """All that lives of the job, on any node."""
        mark = f"SLURM_JOB_ID={self.id}".encode()
        return [path for path in Path("/proc").glob("[0-9]*") if mark in _environment(path).split(b"\0")]

    def has_ended(self) -> bool:
        return self.cluster.run("squeue", "-h", "-j", self.id, "-t", "all", "-o", "%T").strip() not in (
            "PENDING", "CONFIGURING", "RUNNING", "COMPLETING",
        )  # fmt: skip

    def told(self) -> str:
        """All that the job and its run printed."""
        return "\n".join(path.read_text() for path in sorted((self.folder / "jobs" / "logs").iterdir()))

    def outcome(self) -> str | None:
        """What the exit record says."""
        record = self.traces / f"{self.stem}.exit.json"
        return json.loads(record.read_text())["outcome"] if record.exists() else None

    def trace(self) -> Trace:
        return read_trace(self.traces / f"{self.stem}.h5")


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def check_all_steps(trace: Trace) -> None:
    assert trace.recovered
    assert trace.steps_completed.tolist() == [DONE] * 4
    assert (trace.stamps[:, :DONE] != ABSENT).all() and (trace.stamps[:, DONE:] == ABSENT).all()
    assert trace.clock_local_ns.shape[1] >= 1


def test_of_a_killed_rank_and_its_peers_every_step_is_there(two_nodes: DevCluster, tmp_path: Path) -> None:
    job = Job(two_nodes, tmp_path, "Stops")
    os.kill(job.rank(3), signal.SIGKILL)
    wait_until(job.has_ended)
    assert job.outcome() == Outcome.RANK_FAIL, job.told()
    check_all_steps(job.trace())
    assert "copied last" not in job.trace().evidence
    assert not list(job.traces.glob("*.partial"))


def test_of_a_job_killed_as_a_whole_what_was_copied_is_there(
    two_nodes: DevCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(two_nodes, tmp_path, "StopsWhenCopied")
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that nobody sees another one go
        for process in job.processes():
            os.kill(int(process.name), number)
    wait_until(job.has_ended)
    wait_until(lambda: not job.processes())
    assert job.outcome() is None, job.told()
    assert recover([str(tmp_path)]) == 0  # whoever looks at it at once cannot know that it does not run
    assert "left alone, it may still run" in capsys.readouterr().out
    assert recover([str(tmp_path), "--stem", job.stem]) == 0
    check_all_steps(job.trace())
    assert job.trace().outcome is Outcome.LOST
    assert "of ranks 0-3 there is what was copied last" in job.trace().evidence
    assert not list(job.traces.glob("*.partial"))


def test_of_a_lost_node_what_was_copied_is_there(two_nodes: DevCluster, tmp_path: Path) -> None:
    """Its power is cut: all its processes are gone from one moment to the next, and what they kept on the node."""
    job = Job(two_nodes, tmp_path, "StopsWhenCopied")
    (lost,) = {"node1", "node2"} - {job.batch_node}
    two_nodes.kill_node(lost)
    if two_nodes.host.own_storage:
        assert Path(f"/proc/{job.rank(3 if lost == 'node2' else 0)}") not in job.processes()
    two_nodes.run("scancel", job.id)
    wait_until(lambda: not job.processes())
    if not (job.traces / f"{job.stem}.h5").exists():
        assert recover([str(tmp_path), "--stem", job.stem]) == 0
    check_all_steps(job.trace())
    assert job.outcome() in (None, Outcome.CANCELLED), job.told()
    if two_nodes.host.own_storage:
        lost_ranks = "ranks 2-3" if lost == "node2" else "ranks 0-1"
        assert f"of {lost_ranks} there is what was copied last" in job.trace().evidence or (
            "of ranks 0-3 there is" in job.trace().evidence
        )
    two_nodes.start_node(lost)
