"""Runs that hang on real nodes: detected, output with every rank's stacks, ended; the runs after them go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpc.model.trace_file import read_trace
from tests.mpi.file_checks import below
from tests.slurm.jobs import TWO_RANKS, has_ended, printed_by, submit, write_scripts
from tests.waiting import until
from tools.devcluster.cluster import DevCluster

WORKLOAD = """
import os
import signal
import time

from tests.mpi.ranks.user_workloads import Line


class Hangs(Line):
    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.does = run.env.get("DOES", "nothing") if rank == run.ranks - 1 and run.repeat == 1 else "nothing"
        if self.does == "hang at start":
            self.hang_in_the_constructor()

    def hang_in_the_constructor(self):
        while True:
            time.sleep(1)

    def hang_in_a_step(self):
        while True:
            time.sleep(1)

    def batch(self, step):
        time.sleep(0.01)
        if self.does == "hang in a step" and step == 20:
            self.hang_in_a_step()
        if self.does == "stop" and step == 20:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().batch(step)
"""


class Job:
    """A job of runs, of which the last rank of the first hangs."""

    def __init__(
        self, cluster: DevCluster, folder: Path, *words: str, does: str, nodes: int = 2, mpirun: bool = False
    ) -> None:
        folder.mkdir()
        (folder / "hangs.py").write_text(WORKLOAD)
        site = folder / "site.toml"
        text = cluster.site_file.read_text()
        if mpirun:
            text = text.replace('launcher = "srun"', 'launcher = "mpirun"').replace('"pmix"', '"openmpi"')
        site.write_text(text)
        self.traces, self._cluster, self._folder = folder / "traces", cluster, folder
        scripts = write_scripts(
            cluster, folder, "--nodes", str(nodes), *TWO_RANKS, "--repeats", "2", "--workload",
            f"{folder}/hangs.py:Hangs", "--steps", "30", "--warmup", "10", "--env", f"DOES={does}", "--copy-s", "1",
            "--hang-steps", "10", "--hang-extra-s", "30", *words, site=site,
        )  # fmt: skip
        self._id = submit(cluster, scripts / f"{nodes}n.sh")

    def wait(self) -> None:
        """Returns when the job has ended."""
        until(lambda: has_ended(self._cluster, self._id), f"job {self._id} ends", lambda: self.output)

    @property
    def output(self) -> str:
        """What Slurm says of the job, and all that it and its runs printed."""
        return self._cluster.run("scontrol", "-o", "show", "job", self._id) + printed_by(self._folder)

    @property
    def records(self) -> list[Mapping[str, Any]]:
        """The exit records, the first run's first."""
        return [json.loads(path.read_text()) for path in sorted(self.traces.glob("*.exit.json"))]

    @property
    def hang(self) -> Mapping[str, Any]:
        """The watchdog's reason."""
        (path,) = self.traces.glob("*.hang.json")
        hang: Mapping[str, Any] = json.loads(path.read_text())
        return hang

    @property
    def stacks(self) -> list[str]:
        """The stacks that ranks wrote, one entry for equal stacks."""
        (path,) = self.traces.glob("*.stacks.txt")
        return path.read_text().split("\n\n")


Jobs = Mapping[str, Job]


@pytest.fixture(scope="module")
def jobs(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """All jobs of these tests, at the same time; most of it is waiting."""
    folder = tmp_path_factory.mktemp("hang")
    jobs = {
        # Another run would have to start within the same limit.
        "start": Job(cluster, folder / "start", *("--repeats=1", "--start-limit-s=60"), does="hang at start", nodes=1),
        "mpirun": Job(cluster, folder / "mpirun", does="hang in a step", nodes=1, mpirun=True),
        "step": Job(cluster, folder / "step", does="hang in a step"),
        "stopped": Job(cluster, folder / "stopped", does="stop"),
    }
    for job in jobs.values():
        job.wait()
    return jobs


def recovered_steps(job: Job) -> list[int]:
    """By rank, of the first run."""
    (path,) = job.traces.glob("*_r1.1.h5")
    steps: list[int] = read_trace(path).steps_completed.tolist()
    return steps


def test_a_rank_that_hangs_in_a_step_is_named_with_its_line(jobs: Jobs) -> None:
    job = jobs["step"]
    hung, _ = job.records
    assert [record["outcome"] for record in job.records] == ["rank_fail", "ok"], job.output
    assert job.hang["phase"] == "steps" and job.hang["text"] in " ".join(hung["evidence"])
    assert job.hang["completed"] == {"20": "ranks 0-3"}
    straggler, others = job.stacks
    assert straggler.startswith("rank 3, 20 steps completed:") and "in hang_in_a_step" in straggler
    assert others.startswith("ranks 0-2, 20 steps completed:") and "in _average" in others
    assert recovered_steps(job) == [20] * 4


def test_a_stopped_rank_has_no_stack(jobs: Jobs) -> None:
    job = jobs["stopped"]
    assert [record["outcome"] for record in job.records] == ["rank_fail", "ok"]
    assert job.hang["phase"] == "steps"
    others, stopped = job.stacks
    assert others.startswith("ranks 0-2, 20 steps completed:") and "in _average" in others
    assert stopped.startswith("rank 3, 20 steps completed: wrote no stack")
    assert recovered_steps(job) == [20] * 4


def test_a_hang_before_the_first_step_is_a_launch_fail(jobs: Jobs) -> None:
    job = jobs["start"]
    (hung,) = job.records
    assert hung["outcome"] == "launch_fail", job.output
    assert job.hang["phase"] == "start" and job.hang["text"] in " ".join(hung["evidence"])
    assert any(e.startswith("rank 1, before the first step:") and "hang_in_the_constructor" in e for e in job.stacks)
    assert not list(job.traces.glob("*_r1.1.h5"))


def test_mpirun_forwards_the_signal_for_stacks(jobs: Jobs) -> None:
    job = jobs["mpirun"]
    assert [record["outcome"] for record in job.records] == ["rank_fail", "ok"]
    waiting, straggler = sorted(job.stacks)
    assert straggler.startswith("rank 1, 20 steps completed:") and "in hang_in_a_step" in straggler
    assert waiting.startswith("rank 0, 20 steps completed:") and "in _average" in waiting


def test_a_hanging_run_leaves_no_files(jobs: Jobs, cluster: DevCluster) -> None:
    for job in jobs.values():
        names = {path.name for path in job.traces.iterdir()}
        assert not [name for name in names if ".partial" in name or name.endswith((".part", ".new", ".stacks"))]
        run = next(name.removesuffix(".hang.json") for name in names if name.endswith(".hang.json"))
        for node in cluster.shape.node_names:
            paths = [path for path in below(cluster.local_storage(node)) if run in str(path)]
            assert paths == []
