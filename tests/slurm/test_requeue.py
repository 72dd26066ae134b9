"""Job scripts by themselves, nobody following: put back into the queue, shot, cancelled, submitted twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.model.outcome import ExitRecord, exit_records
from hpc.model.trace_file import read_trace
from hpc.recovery.journal import read_progress
from tests.slurm.jobs import TWO_RANKS, kill_script, new_cluster, state, submit, write_scripts
from tests.waiting import until
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

WORKLOAD = '''
import time
from pathlib import Path

from tests.mpi.ranks.user_workloads import Line


class Holds(Line):
    """The second repeat holds in step 8 for as long as the file `hold` is there."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.repeat, self.here = run.repeat, Path(__file__).parent

    def batch(self, step):
        time.sleep(0.002)
        while self.repeat == 2 and step == 8 and (self.here / "hold").exists():
            (self.here / "holding").touch()
            time.sleep(0.01)
        return super().batch(step)
'''


HOLDS_AT = 8


class Script:
    """The script of a job of two runs, of which the second holds, and the jobs that were made of it."""

    def __init__(self, cluster: DevCluster, folder: Path) -> None:
        self.cluster, self.folder, self.traces = cluster, folder, folder / "traces"
        (folder / "holds.py").write_text(WORKLOAD)
        (folder / "hold").touch()
        write_scripts(
            cluster, folder, "--nodes", "1", *TWO_RANKS, "--repeats", "2", "--workload", f"{folder}/holds.py:Holds",
            "--steps", "12", "--warmup", "5", "--copy-s", "1", "--hang-extra-s", "3600",
        )  # fmt: skip

    def submit(self, *arguments: str) -> str:
        """The id of the job."""
        return submit(self.cluster, self.folder / "jobs" / "1n.sh", *arguments)

    def wait_for_hold(self) -> None:
        """Returns when the second run holds, and its first steps are copied, of both ranks."""
        until((self.folder / "holding").exists, "the second run holds")
        until(lambda: self.copied() == [HOLDS_AT] * 2, "its steps are copied", lambda: f"copied are {self.copied()}")

    def copied(self) -> list[int]:
        """How many steps of each rank of the second run the copies hold."""
        return [its.completed for path in self.traces.glob("*_r2.*.partial") for its in read_progress(path).values()]

    def let_go(self) -> None:
        """The second run goes on, and those after it."""
        (self.folder / "hold").unlink(missing_ok=True)

    def wait_for_end(self, job_id: str, expected: str) -> None:
        """Returns when the job has ended so."""
        until(
            lambda: state(self.cluster, job_id) == expected, f"job {job_id} is {expected}", lambda: self.printed(job_id)
        )

    def shoot(self, job_id: str) -> None:
        """Ends the job's script and launch.step by SIGKILL: they record nothing. Returns when the job has ended."""
        kill_script(self.cluster, job_id)
        self.wait_for_end(job_id, "FAILED")

    def printed(self, job_id: str) -> str:
        """The output of the job."""
        return (self.folder / "jobs" / "logs" / f"1n.{job_id}.out").read_text()

    @property
    def records(self) -> dict[str, ExitRecord]:
        """By repeat and attempt, as `r2.1`."""
        every = [record for records in exit_records(self.traces).values() for record in records]
        return {f"{record.run_id.rpartition('_')[2]}.{record.attempt}": record for record in every}

    @property
    def outcomes(self) -> dict[str, str]:
        """Theirs."""
        return {name: str(record.outcome) for name, record in self.records.items()}

    def steps_kept(self, name: str) -> list[int]:
        """The steps by rank that a recovered trace holds."""
        (path,) = self.traces.glob(f"*_{name}.h5")
        trace = read_trace(path)
        assert trace.recovered
        return [int(steps) for steps in trace.steps_completed]


Scripts = dict[str, tuple[Script, str]]


@pytest.fixture(scope="module")
def small(slurm_installed: None) -> Iterator[DevCluster]:
    """A node for each job, which has a minute to record that it was ended."""
    with new_cluster(Shape(nodes=4, cpus=4, gpus=0, kill_wait_s=60)) as running:
        yield running


@pytest.fixture(scope="module")
def scripts(small: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    """A script for each test and its job, whose second run holds; two of them back in the queue, to wait together."""
    made = {name: Script(small, tmp_path_factory.mktemp(name)) for name in ("requeued", "lost", "twice", "left")}
    jobs = {name: script.submit(*(["--force"] if name == "requeued" else [])) for name, script in made.items()}
    for script in made.values():
        script.wait_for_hold()
    small.run("scontrol", "requeue", jobs["requeued"])
    for name in ("lost", "left"):
        made[name].shoot(jobs[name])
    assert made["lost"].outcomes == {"r1.1": "ok"}
    small.run("scontrol", "requeue", jobs["lost"])
    yield {name: (script, jobs[name]) for name, script in made.items()}
    for script in made.values():
        script.let_go()
    small.run("scancel", "-u", str(os.getuid()))


def test_two_jobs_of_one_script_run_nothing_twice(scripts: Scripts) -> None:
    script, first = scripts["twice"]
    second = script.submit()
    script.wait_for_end(second, "FAILED")
    assert f"_r2 is left to job {first}, which began it" in script.printed(second)
    script.cluster.run("scancel", first)
    script.wait_for_end(first, "CANCELLED")
    assert script.outcomes == {"r1.1": "ok", "r2.1": "cancelled"}
    assert "SIGTERM" in script.records["r2.1"].evidence[0]
    assert script.steps_kept("r2.1") == [HOLDS_AT] * 2


def test_an_open_attempt_of_an_ended_job_is_closed_and_the_run_done(scripts: Scripts) -> None:
    script, first = scripts["left"]
    script.let_go()
    second = script.submit()
    script.wait_for_end(second, "COMPLETED")
    assert script.outcomes == {"r1.1": "ok", "r2.1": "lost", "r2.2": "ok"}
    assert "FAILED" in script.records["r2.1"].evidence[0]
    assert (script.records["r2.1"].job_id, script.records["r2.2"].job_id) == (first, second)


def test_a_requeued_job_continues_with_the_first_pending_run(scripts: Scripts) -> None:
    """With --force, which asks for all runs, but not for those that this very job has settled before."""
    script, job_id = scripts["requeued"]
    until(lambda: "r2.1" in script.outcomes, "the script records the end of the interrupted run")
    script.let_go()
    script.wait_for_end(job_id, "COMPLETED")
    assert script.outcomes == {"r1.1": "ok", "r2.1": "preempted", "r2.2": "ok"}
    assert {record.job_id for record in script.records.values()} == {job_id}
    assert [record.restart_count for record in script.records.values()] == [0, 0, 1]
    assert "job requeue" in script.records["r2.1"].evidence[0]
    assert "_r1 is final, passed over" in script.printed(job_id)
    assert script.steps_kept("r2.1") == [HOLDS_AT] * 2
    assert {path.suffix for path in script.traces.iterdir() if path.is_file()} == {".h5", ".json"}


def test_a_requeued_job_closes_its_open_attempt(scripts: Scripts) -> None:
    script, job_id = scripts["lost"]
    script.let_go()
    script.wait_for_end(job_id, "COMPLETED")
    assert script.outcomes == {"r1.1": "ok", "r2.1": "node_fail", "r2.2": "ok"}
    closed = script.records["r2.1"]
    assert (closed.restart_count, closed.exit_status) == (0, -1)
    assert closed.nodelist in script.cluster.shape.node_names
    assert "left no record" in closed.evidence[0]
    assert script.steps_kept("r2.1") == [HOLDS_AT] * 2
