"""A sweep's jobs on their way: joined, submitted, throttled, refused, forgotten; the scheduler here is a mock."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from hpc.model.spec import RunSpec
from launch import queue
from launch.cluster.lock import FolderLock
from launch.cluster.query import JobState
from launch.cluster.slurm import SubmitError, TransientSubmitError
from launch.jobs.plan import JobPlan, WrittenJob
from launch.queue import MEMORY, Queue, recall, remember

RUN = RunSpec(
    nodes=1, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=8,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=5, repeat=1, seed=0, site="s",
)  # fmt: skip
LIVE, OVER = JobState.PENDING, JobState.ENDED


class MockScheduler:
    """Jobs are numbered from 1; `queue` is what it holds, `refusals` what it answers instead, in order."""

    poll_s = 0.0
    error = ""

    def __init__(self, max_jobs: int | None = None) -> None:
        self.max_jobs = max_jobs
        self.reasons: dict[str, str] = {}
        self.queue: dict[str, str] = {}
        self.held: dict[str, str] = {}
        self.forgotten: set[str] = set()
        self.refusals: list[Exception] = []
        self.lost_answers = 0
        self.silent = False
        self.count = 0

    def name_of(self, job: WrittenJob) -> str:
        return f"rankwise-{job.plan.name}"

    def submit(self, job: WrittenJob) -> str:
        if self.refusals:
            raise self.refusals.pop(0)
        self.count += 1
        self.queue[str(self.count)] = self.name_of(job)
        if self.lost_answers:
            self.lost_answers -= 1
            raise TransientSubmitError("Socket timed out on send/recv operation")
        return str(self.count)

    def active_jobs(self, names: Iterable[str]) -> dict[str, str]:
        if self.silent:
            raise TransientSubmitError("Unable to contact slurm controller")
        wanted = set(names)
        return {job_id: name for job_id, name in self.queue.items() if name in wanted}

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        unknown = dict.fromkeys(self.forgotten, JobState.UNKNOWN)
        return {job_id: unknown.get(job_id, LIVE if job_id in self.queue else OVER) for job_id in job_ids}

    def release_held(self, job_ids: Sequence[str]) -> dict[str, str]:
        return {job_id: self.held[job_id] for job_id in job_ids if job_id in self.held}


class Sweep:
    """The owner of the jobs: the remaining runs of each, and whether to submit an ended one again."""

    def __init__(self) -> None:
        self.settled: set[str] = set()
        self.again: set[str] = set()
        self.has_ended: list[tuple[str, ...]] = []
        self.is_cancelled = False
        self.lines: list[str] = []

    def remaining_runs(self, job: WrittenJob) -> list[str]:
        return [run.run_id for run in job.plan.runs if job.plan.name not in self.settled]

    def ended(self, job: WrittenJob, job_ids: Sequence[str]) -> bool:
        self.has_ended.append(tuple(job_ids))
        return job.plan.name in self.again

    def cancelled(self) -> bool:
        return self.is_cancelled

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PAUSES_S", (0.0, 0.0))


def jobs(folder: Path, count: int) -> list[WrittenJob]:
    made = []
    for k in range(1, count + 1):
        plan = JobPlan(name=f"{k}n", nodes=k, time_min=1, request={}, runs=(dataclasses.replace(RUN, nodes=k),))
        made.append(WrittenJob(plan=plan, script=folder / f"{k}n.sh", text=""))
    return made


def make(folder: Path, scheduler: MockScheduler, sweep: Sweep, count: int = 3) -> tuple[Queue, list[str]]:
    made = jobs(folder, count)
    return Queue(scheduler, made, sweep, FolderLock(folder)), [job.script.name for job in made]


def test_what_is_settled_is_passed_over_what_is_there_joined_the_rest_submitted(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    sweep.settled = {"1n"}
    scheduler.queue["77"] = "rankwise-2n"
    made, _ = make(tmp_path, scheduler, sweep)
    made.advance()
    assert sweep.lines == [
        "1n.sh: every run is final, nothing to submit",
        "2n.sh: job 77 is there already, joined",
        "3n.sh: submitted as 1, 1 run to do",
    ]
    assert made.job_ids == {"2n.sh": ("77",), "3n.sh": ("1",)}
    assert not made.waiting
    again, _ = make(tmp_path, scheduler, sweep)
    again.advance()
    assert again.job_ids == made.job_ids


def test_runs_that_another_sweeps_job_holds_are_left_to_it(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    [job] = jobs(tmp_path, 1)
    remember(dataclasses.replace(job, script=tmp_path / "other.sh"), "rankwise-other", ["5"])
    scheduler.queue["5"] = "rankwise-other"
    made, _ = make(tmp_path, scheduler, sweep, 1)
    made.advance()
    assert (made.job_ids, scheduler.count) == ({"1n.sh": ("5",)}, 0)
    del scheduler.queue["5"]
    later, _ = make(tmp_path, scheduler, sweep, 1)
    later.advance()
    assert later.job_ids == {"1n.sh": ("1",)}


def test_a_submission_whose_answer_was_lost_is_found_and_not_made_twice(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    scheduler.lost_answers = 1
    made, scripts = make(tmp_path, scheduler, sweep, 1)
    assert made.states(scripts) == {"1n.sh": LIVE}
    assert (made.waiting, made.refusal) == (["1n.sh"], "Socket timed out on send/recv operation")
    assert made.states(scripts) == {"1n.sh": LIVE}
    assert (made.waiting, made.refusal, made.job_ids, scheduler.count) == ([], "", {"1n.sh": ("1",)}, 1)


def test_a_refusal_that_passes_is_waited_for_and_said(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    scheduler.refusals = [
        TransientSubmitError("sbatch: QOSMaxSubmitJobPerUserLimit"),
        TransientSubmitError("sbatch: QOSMaxSubmitJobPerUserLimit"),
    ]
    made, scripts = make(tmp_path, scheduler, sweep)
    for waiting in (3, 3, 0):
        made.states(scripts)
        assert len(made.waiting) == waiting
    assert sweep.lines[0] == "3 jobs wait: sbatch: QOSMaxSubmitJobPerUserLimit; asked again in 0 s"
    assert sorted(made.job_ids) == scripts


def test_a_refusal_that_does_not_pass_ends_the_submission(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    scheduler.refusals = [SubmitError("sbatch refused 1n.sh: invalid partition specified: nowhere")]
    made, _ = make(tmp_path, scheduler, sweep)
    with pytest.raises(SubmitError, match="nowhere"):
        made.advance()
    assert FolderLock(tmp_path).take()


def test_the_pause_after_refusals_grows_to_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake clock."""
    now_s = [0.0]
    monkeypatch.setattr(queue, "PAUSES_S", (5.0, 60.0))
    monkeypatch.setattr(queue.time, "monotonic", lambda: now_s[0])
    scheduler, sweep = MockScheduler(), Sweep()
    scheduler.silent = True
    made, scripts = make(tmp_path, scheduler, sweep)
    asked_at_s = []
    for second in range(200):
        now_s[0] = float(second)
        before = len(sweep.lines)
        assert made.states(scripts) == dict.fromkeys(scripts, JobState.UNREACHABLE)
        if len(sweep.lines) > before:
            asked_at_s.append(second)
    assert asked_at_s == [0, 5, 15, 35, 75, 135, 195]


def test_at_most_so_many_jobs_of_this_sweep_are_in_the_queue(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(max_jobs=2), Sweep()
    scheduler.queue["500"] = "rankwise-of-somebody"
    made, scripts = make(tmp_path, scheduler, sweep, 4)
    made.advance()
    assert made.waiting == ["3n.sh", "4n.sh"]
    assert made.states(scripts)["4n.sh"] is LIVE
    del scheduler.queue["1"]
    sweep.settled = {"1n"}
    made.states(scripts)
    assert made.waiting == ["4n.sh"]


def test_a_job_that_has_ended_is_closed_once_and_submitted_again_where_wanted(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    sweep.again = {"2n"}
    made, scripts = make(tmp_path, scheduler, sweep, 2)
    made.advance()
    scheduler.queue.clear()
    assert made.states(scripts) == {"1n.sh": OVER, "2n.sh": LIVE}
    assert made.states(scripts) == {"1n.sh": OVER, "2n.sh": LIVE}
    assert sweep.has_ended == [("1",), ("2",)]
    assert made.job_ids["2n.sh"] == ("3",)
    sweep.again = set()
    scheduler.queue.clear()
    assert made.states(scripts) == {"1n.sh": OVER, "2n.sh": OVER}
    memory = {memory.job_name: memory.job_ids for memory in recall(tmp_path)}
    assert memory == {"rankwise-1n": ("1",), "rankwise-2n": ("2", "3")}


def test_a_job_is_forgotten_for_good_after_three_times(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    made, scripts = make(tmp_path, scheduler, sweep, 1)
    made.advance()
    scheduler.queue.clear()
    scheduler.forgotten = {"1"}
    for closed in (0, 0, 1, 1):
        assert made.states(scripts) == {"1n.sh": JobState.UNKNOWN}
        assert len(sweep.has_ended) == closed


def test_after_a_cancel_from_elsewhere_nothing_more_is_submitted(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(max_jobs=1), Sweep()
    made, scripts = make(tmp_path, scheduler, sweep, 2)
    made.advance()
    scheduler.queue.clear()
    sweep.is_cancelled = True
    made.states(scripts)
    assert (made.waiting, scheduler.count) == ([], 1)
    assert sweep.lines[-1] == "2n.sh: not submitted, because its sweep was cancelled meanwhile"


@pytest.mark.parametrize("text", ["", "[]", '{"job_id": "7"}', '{"job_name": "a", "job_ids": 3, "runs": []}'])
def test_what_another_version_remembered_is_no_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / f"1n{MEMORY}").write_text(text)
    assert recall(tmp_path) == []
    [job] = jobs(tmp_path, 1)
    assert recall(tmp_path) == [] and remember(job, "n", ["1"]) == recall(tmp_path)[0]
    assert json.loads((tmp_path / f"1n{MEMORY}").read_text())["runs"] == [job.plan.runs[0].run_id]


def test_why_a_job_is_pending_is_said_once_unless_it_waits_its_turn(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    made, scripts = make(tmp_path, scheduler, sweep, 2)
    made.states(scripts)
    sweep.lines.clear()
    for reason in ("Resources", "JobHeldAdmin", "JobHeldAdmin", "Priority", "QOSMaxJobsPerUserLimit", "JobHeldAdmin"):
        scheduler.reasons = {"2": reason}
        made.states(scripts)
        assert made.reasons == {"2n.sh": reason}
    assert sweep.lines == ["job 2 is pending: JobHeldAdmin", "job 2 is pending: QOSMaxJobsPerUserLimit"]


def test_a_held_job_that_cannot_be_released_is_not_called_released(tmp_path: Path) -> None:
    scheduler, sweep = MockScheduler(), Sweep()
    made, scripts = make(tmp_path, scheduler, sweep, 2)
    made.states(scripts)
    sweep.lines.clear()
    for problem, told in (("", "released"), ("scontrol: denied", "not released: scontrol: denied")):
        scheduler.held = {"2": problem}
        made.states(scripts)
        assert sweep.lines.pop() == f"job 2 was put back and held because its launch failed: {told}"
