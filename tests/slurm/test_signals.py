"""Signals of Slurm to unchanged scripts that make a checkpoint on one: by hand, requeued, and in a sweep, preempted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import exit_records
from hpc.model.spec import SCRIPT
from hpc.model.trace_file import read_trace
from tests.slurm.jobs import new_cluster, state, submit
from tests.sweeps import sweep_argv, with_checkout
from tests.waiting import until
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

ROOT = Path(__file__).resolve().parents[2]
SAVES = ROOT / "tests" / "observe_scripts" / "saves.py"

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))


@pytest.fixture(scope="module")
def one_node(slurm_installed: None) -> Iterator[DevCluster]:
    """A node whose jobs have an hour to end, preempted or not."""
    with new_cluster(Shape(nodes=1, cpus=4, gpus=0, kill_wait_s=3600, grace_s=3600)) as running:
        yield running
        running.run("scancel", "-u", str(os.getuid()), "--signal=KILL", "--full")
        running.run("scancel", "-u", str(os.getuid()))


def await_files(cluster: DevCluster, job: str, folder: Path, ending: str) -> None:
    paths = [folder / f"rank{rank}.{ending}" for rank in range(2)]
    logs = lambda: "".join(path.read_text() for path in folder.rglob("*") if path.suffix in (".out", ".err"))  # noqa: E731

    def have_come() -> bool:
        assert state(cluster, job) not in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), logs()
        return all(path.exists() for path in paths)

    until(have_come, f"{ending} of both ranks", logs)


def test_two_ranks_save_on_a_signal_and_the_job_is_put_back(one_node: DevCluster, tmp_path: Path) -> None:
    """As Lightning and submitit do it: the handler saves, then requeues the job. The signal comes to every process."""
    script = tmp_path / "job.sh"
    script.write_text(
        f"#!/bin/bash\ncd {tmp_path}\nexport PYTHONPATH={ROOT} OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo\n"
        f"srun --mpi=none -n2 {sys.executable} -m hpc.observe --warmup 10 -- {SAVES} {tmp_path} once requeue\n"
    )
    options = ("--requeue", "-n2", f"--output={tmp_path}/job.out", "--open-mode=append", "--signal=USR1@10")
    job = one_node.run("sbatch", "--parsable", *options, str(script), cwd=one_node.root).strip()
    await_files(one_node, job, tmp_path, "runs")
    one_node.run("scancel", "--signal=USR1", job)
    await_files(one_node, job, tmp_path, "got")
    (tmp_path / "go").touch()
    await_files(one_node, job, tmp_path, "saved")
    assert (tmp_path / "rank0.got").read_text().split()[0] == "SIGUSR1"
    restarts = lambda: one_node.run("scontrol", "-o", "show", "job", job)  # noqa: E731
    until(lambda: "Restarts=1" in restarts(), "the job is put back", restarts)
    one_node.run("scancel", job)


def test_a_sweeps_script_saves_in_the_grace_of_a_preemption(one_node: DevCluster, tmp_path: Path) -> None:
    words = ("--nodes", "1", "--ranks-per-node", "2", "--cpus-per-rank", "1", "--gpus-per-node", "0", "--no-baseline")
    argv = sweep_argv(
        "--site", str(one_node.site_file), *words, "--repeats", "1", "--warmup", "10", "--dry-run",
        "--script", str(SAVES), "--", str(tmp_path), "once",
    )  # fmt: skip
    subprocess.run(argv, cwd=tmp_path, env=with_checkout(one_node.environ), check=True)
    job = submit(one_node, tmp_path / "jobs" / "1n.sh")
    await_files(one_node, job, tmp_path, "runs")
    wants_all = ("--partition=high", "--exclusive", "-N1", "--output=/dev/null", "--wrap=true")
    high = one_node.run("sbatch", "--parsable", *wants_all, cwd=one_node.root).strip()
    await_files(one_node, job, tmp_path, "got")
    (tmp_path / "go").touch()
    until(lambda: exit_records(tmp_path / "traces"), "the run is recorded")
    assert all((tmp_path / f"rank{rank}.saved").exists() for rank in range(2))
    ((record,),) = exit_records(tmp_path / "traces").values()
    assert record.outcome == "ok", record
    (trace,) = (tmp_path / "traces").glob("*.h5")
    assert "by SIGUSR1" in read_trace(trace).evidence
    one_node.run("scancel", high, job)
