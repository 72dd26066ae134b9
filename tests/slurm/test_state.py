"""States of jobs from Slurm's commands, also where these answer late, wrongly or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpc.system.tool import Answer, run_tool
from launch.scheduler import slurm_jobs as state
from launch.scheduler.protocol import JobState
from launch.scheduler.slurm import Slurm
from launch.scheduler.slurm_jobs import ends, look
from tests.slurm.jobs import new_cluster, save_state
from tests.waiting import until
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape
from tools.devcluster.daemons import missing_programs


@pytest.fixture(scope="module")
def accounted() -> Iterator[DevCluster]:
    """A node with real accounts, whose controller forgets jobs soon."""
    if missing := missing_programs(accounting=True):
        pytest.skip(missing)
    shape = Shape(nodes=1, cpus=8, gpus=0, min_job_age_s=20, message_timeout_s=12, accounting=True)
    with new_cluster(shape) as running:
        yield running


@pytest.fixture
def cluster(accounted: DevCluster, monkeypatch: pytest.MonkeyPatch) -> DevCluster:
    """The same, as this process sees it."""
    for name, value in accounted.environ.items():
        monkeypatch.setenv(name, value)
    return accounted


def submit(cluster: DevCluster) -> str:
    """A job that runs, and that the accounts know to run."""
    job = cluster.run("sbatch", "--parsable", "-n1", "--mem=10M", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    until(lambda: in_accounts(cluster, job) == "RUNNING", "the accounts know the job")
    return job


def in_accounts(cluster: DevCluster, job: str) -> str:
    """The first word that sacct has for the job."""
    return (cluster.run("sacct", "-X", "-n", "-P", "-o", "State", "-j", job).split() or [""])[0]


def forgotten(cluster: DevCluster, job: str) -> bool:
    """Whether the controller has forgotten the job."""
    return job not in cluster.run("squeue", "-h", "-t", "all", "-o", "%i").split()


def impatient(run: Callable[..., Answer], program: str, argv: Sequence[str], **how: Any) -> Answer:
    """`run_tool` that waits five seconds for this program, and for others as long as it is asked to."""
    return run(argv, **{**how, **({"timeout_s": 5} if argv[0] == program else {})})


def without(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with all of Slurm's clients but this one."""
    for name in {"squeue", "scontrol", "sacct"} - {program}:
        path = shutil.which(name)
        assert path is not None
        (tmp_path / name).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.all
def test_accounts_that_lag_hang_or_are_missing(
    cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cancelled = submit(cluster), submit(cluster)
    cluster.freeze("slurmdbd")
    cluster.run("scancel", cancelled)
    until(lambda: look([cancelled])[cancelled].state is JobState.ENDED, "the controller says that it has ended")
    assert ends([cancelled])[cancelled].state == "CANCELLED"

    # The controller has forgotten it, and sacct hangs: it has ended, and nobody says how.
    until(lambda: forgotten(cluster, cancelled), "the controller has forgotten it")
    with monkeypatch.context() as patience:
        patience.setattr(state, "run_tool", partial(impatient, run_tool, "sacct"))
        slurm = look([running, cancelled])
    assert (slurm[running].state, slurm[cancelled].state) == (JobState.RUNNING, JobState.UNKNOWN)
    assert "sacct: no answer within 5 s" in slurm[cancelled].error

    # The controller dies before its news has come to the accounts: they say that the job runs still.
    save_state(cluster, running)
    cluster.kill("slurmctld")
    cluster.thaw("slurmdbd")
    assert in_accounts(cluster, running) == "RUNNING"
    unreachable = look([running, cancelled])
    assert unreachable[running].state is JobState.UNREACHABLE
    assert "Unable to contact slurm controller" in unreachable[running].error
    assert set(ends([running, cancelled])) <= {cancelled}
    cluster.start_controller()
    assert look([running])[running].state is JobState.RUNNING

    # With sacct gone from the path the controller's word is all there is.
    without(tmp_path, "sacct", monkeypatch)
    slurm = look([running, cancelled])
    assert (slurm[running].state, slurm[cancelled].state) == (JobState.RUNNING, JobState.UNKNOWN)
    end = ends([running, cancelled])[cancelled]
    assert (end.state, end.source) == ("", "squeue")
    assert "sacct is not installed here" in end.reason and "MinJobAge=20 sec" in end.reason


def test_the_accounts_answer_for_forgotten_jobs(
    cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(cluster)
    cluster.run("scontrol", "requeue", job)
    until(lambda: look([job])[job].state is JobState.RUNNING and len(state.lives(job)) == 2, "it runs again")
    cluster.run("scancel", job)
    until(lambda: forgotten(cluster, job) and in_accounts(cluster, job) == "CANCELLED", "the accounts alone know it")
    end = ends([job])[job]
    assert (end.state, end.source, end.nodelist, end.restarts) == ("CANCELLED", "sacct", "node1", 1)
    assert f"by {os.getuid()}" in end.reason
    assert [life.requeued for life in state.lives(job)] == [True, False]
    without(tmp_path, "squeue", monkeypatch)
    assert ends([job])[job].state == "CANCELLED"

    cluster.kill("slurmdbd")  # the last test that needs it
    refused = look([job])[job]
    assert refused.state is JobState.UNKNOWN
    assert "Connection refused" in refused.error


def test_why_a_job_is_pending(cluster: DevCluster, tmp_path: Path) -> None:
    submission = ("sbatch", "--parsable", "-n1", "--mem=10M", "-o", "/dev/null", "--wrap", "true")
    held, later = (cluster.run(*submission, option).strip() for option in ("--hold", "--begin=now+1day"))
    slurm = Slurm()
    until(lambda: set(slurm.states([held, later]).values()) == {JobState.PENDING}, "both jobs are pending")
    until(lambda: slurm.states([held, later]) and slurm.reasons == {held: "JobHeldUser", later: "BeginTime"}, "reasons")
    cluster.run("scancel", held, later)
