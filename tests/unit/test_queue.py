"""The queue of a sweep's jobs: joined, submitted, throttled, refused, forgotten; the scheduler is a mock."""

from __future__ import annotations

import contextlib
import dataclasses
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from launch import queue as queue_module
from launch.jobs.plan import JobPlan, WrittenJob
from launch.queue import (
    SUBMITTED,
    Ended,
    Event,
    FolderLocked,
    Joined,
    NothingToDo,
    NotSubmitted,
    Pending,
    Queue,
    Refused,
    Released,
    SubmissionRecord,
    SubmissionRecords,
    Submitted,
    Unlisted,
    recall,
)
from launch.scheduler.lock import FolderLock
from launch.scheduler.protocol import JobState, SubmitError, TransientSubmitError
from launch.sweep.text import describe_event
from tests.unit.traces import make_run

LIVE, OVER = JobState.PENDING, JobState.ENDED


class MockScheduler:
    """Jobs are numbered from 1; `queue` is what it holds, `refusals` what it answers instead, in order."""

    poll_s = slow_poll_s = 0.0
    queued = True
    error = ""

    def __init__(self) -> None:
        self.max_jobs: int | None = None
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

    def active_jobs(self, names: Iterable[str], recorded: Mapping[str, str]) -> dict[str, str]:
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
    """A scheduler and the runs of jobs in a folder, which scripts to submit again, and the events of the queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scheduler = MockScheduler()
        self.final: set[str] = set()
        self.resubmitted: set[str] = set()
        self.is_cancelled = False
        self.now_s, self.sign = 0.0, ""
        self.events: list[Event] = []

    def queue(self, count: int) -> Queue:
        """A queue of so many jobs of 1, 2, … nodes."""
        return Queue(self.scheduler, jobs(self.folder, count), self, FolderLock(self.folder), lambda: self.now_s)

    def life_sign(self, job_ids: Sequence[str]) -> str:
        return self.sign

    def to_do(self, jobs: Sequence[WrittenJob]) -> dict[str, list[str]]:
        return {job.script.name: self._remaining(job) for job in jobs}

    def _remaining(self, job: WrittenJob) -> list[str]:
        return [run.run_id for run in job.plan.runs if job.script.name not in self.final]

    def cancelled(self) -> bool:
        return self.is_cancelled

    def poll(self, queue: Queue) -> dict[str, JobState]:
        """The states of the jobs; only the events of this poll remain."""
        self.events.clear()
        for event in queue.poll():
            self.events.append(event)
            if isinstance(event, Ended) and event.script in self.resubmitted:
                queue.submit_again(event.script)
        return queue.job_states


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(queue_module, "PAUSES_S", (0.0, 0.0))
    return Sweep(tmp_path)


def jobs(folder: Path, count: int) -> list[WrittenJob]:
    written = []
    for nodes in range(1, count + 1):
        plan = JobPlan(name=f"{nodes}n", nodes=nodes, time_min=1, request={}, runs=(make_run(nodes=nodes),))
        written.append(WrittenJob(plan=plan, script=folder / f"{nodes}n.sh", text=""))
    return written


def test_final_scripts_are_passed_over_existing_jobs_joined_the_rest_submitted(sweep: Sweep) -> None:
    sweep.final = {"1n.sh"}
    sweep.scheduler.queue["77"] = "rankwise-2n"
    queue = sweep.queue(3)
    events = list(queue.advance())
    assert events == [
        NothingToDo(script="1n.sh"),
        Joined(script="2n.sh", job_ids=("77",)),
        Submitted(script="3n.sh", job_id="1", runs=1),
    ]
    assert [describe_event(event) for event in events] == [
        "1n.sh: every run is final, nothing to submit",
        "2n.sh: job 77 is queued or running already: followed",
        "3n.sh: submitted as 1, 1 run to do",
    ]
    assert queue.job_ids == {"2n.sh": ("77",), "3n.sh": ("1",)}
    assert not queue.waiting
    second = sweep.queue(3)
    assert not [event for event in second.advance() if isinstance(event, Submitted)]
    assert second.job_ids == queue.job_ids


def test_runs_held_by_the_job_of_another_sweep_are_left_to_it(sweep: Sweep, tmp_path: Path) -> None:
    [job] = jobs(tmp_path, 1)
    add(tmp_path, record(job, "other.sh", "5"))
    sweep.scheduler.queue["5"] = "rankwise-other.sh"
    assert list(sweep.queue(1).advance()) == [Joined(script="1n.sh", job_ids=("5",))]
    del sweep.scheduler.queue["5"]
    assert list(sweep.queue(1).advance()) == [Submitted(script="1n.sh", job_id="1", runs=1)]


def test_a_submission_whose_answer_was_lost_is_joined_not_repeated(sweep: Sweep) -> None:
    sweep.scheduler.lost_answers = 1
    queue = sweep.queue(1)
    assert sweep.poll(queue) == {"1n.sh": LIVE}
    assert (queue.waiting, queue.refusal) == (["1n.sh"], "Socket timed out on send/recv operation")
    assert sweep.poll(queue) == {"1n.sh": LIVE}
    assert (queue.waiting, queue.refusal, queue.job_ids, sweep.scheduler.count) == ([], "", {"1n.sh": ("1",)}, 1)


def test_a_transient_refusal_is_waited_for_and_shown_once_until_it_changes(sweep: Sweep) -> None:
    limit, busy = "sbatch: QOSMaxSubmitJobPerUserLimit", "sbatch: Resource temporarily unavailable"
    sweep.scheduler.refusals = [TransientSubmitError(text) for text in (limit, limit, busy, limit)]
    queue = sweep.queue(3)
    for waiting, shown in ((3, limit), (3, ""), (3, busy), (3, limit), (0, "")):
        sweep.poll(queue)
        assert len(queue.waiting) == waiting
        refused = [event for event in sweep.events if isinstance(event, Refused)]
        assert refused == ([Refused(scripts=3, reason=shown, retry_s=0.0)] if shown else [])
    assert sorted(queue.job_ids) == ["1n.sh", "2n.sh", "3n.sh"]


def test_another_refusal_ends_the_submission(sweep: Sweep, tmp_path: Path) -> None:
    sweep.scheduler.refusals = [SubmitError("sbatch refused 1n.sh: invalid partition specified: nowhere")]
    with pytest.raises(SubmitError, match="nowhere"):
        list(sweep.queue(3).advance())
    assert FolderLock(tmp_path).take()


def test_the_process_that_is_submitting_is_named_and_waited_for(sweep: Sweep, tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert lock.take()
    events = sweep.queue(1).advance()
    assert next(events) == FolderLocked(holder=lock.holder())
    lock.release()
    assert list(events) == [Submitted(script="1n.sh", job_id="1", runs=1)]


def test_the_pause_after_refusals_grows_to_a_minute(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake clock."""
    now_s = [0.0]
    monkeypatch.setattr(queue_module, "PAUSES_S", (5.0, 60.0))
    monkeypatch.setattr(queue_module.time, "monotonic", lambda: now_s[0])
    sweep.scheduler.silent = True
    queue = sweep.queue(3)
    tried_at_s: list[float] = []
    active_jobs = sweep.scheduler.active_jobs

    def tried(names: Iterable[str], recorded: Mapping[str, str]) -> dict[str, str]:
        tried_at_s.append(now_s[0])
        return active_jobs(names, recorded)

    monkeypatch.setattr(sweep.scheduler, "active_jobs", tried)
    for second in range(200):
        now_s[0] = float(second)
        assert set(sweep.poll(queue).values()) == {JobState.UNREACHABLE}
    assert tried_at_s == [0, 5, 15, 35, 75, 135, 195]


def test_max_jobs_counts_the_jobs_of_this_sweep(sweep: Sweep) -> None:
    sweep.scheduler.max_jobs = 2
    sweep.scheduler.queue["500"] = "rankwise-of-somebody"
    queue = sweep.queue(4)
    assert sweep.poll(queue)["4n.sh"] is LIVE
    assert queue.waiting == ["3n.sh", "4n.sh"]
    del sweep.scheduler.queue["1"]
    sweep.final = {"1n.sh"}
    sweep.poll(queue)
    assert queue.waiting == ["4n.sh"]


def test_ended_jobs_are_reported_once_and_submitted_again_on_request(sweep: Sweep, tmp_path: Path) -> None:
    sweep.resubmitted = {"2n.sh"}
    queue = sweep.queue(2)
    sweep.poll(queue)
    sweep.scheduler.queue.clear()
    assert sweep.poll(queue) == {"1n.sh": OVER, "2n.sh": LIVE}
    assert sweep.events == [Ended(script="1n.sh", job_ids=("1",)), Ended(script="2n.sh", job_ids=("2",))]
    assert sweep.poll(queue) == {"1n.sh": OVER, "2n.sh": LIVE}
    assert sweep.events == [Submitted(script="2n.sh", job_id="3", runs=1)]
    sweep.resubmitted = set()
    sweep.scheduler.queue.clear()
    assert sweep.poll(queue) == {"1n.sh": OVER, "2n.sh": OVER}
    assert {record.job_name: record.job_ids for record in recall(tmp_path).values()} == {
        "rankwise-1n": ("1",), "rankwise-2n": ("2", "3"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("accounts", "sign", "ends_at_s"),
    [("", "", 60), ("sacct still says RUNNING", "", 600), ("", "its time stamps were copied 3 s ago", None)],
)
def test_a_job_is_forgotten_where_all_sources_agree_for_long_enough(
    sweep: Sweep, accounts: str, sign: str, ends_at_s: float | None
) -> None:
    """A fake clock: ten minutes of a squeue that answers without the job."""
    queue = sweep.queue(1)
    sweep.poll(queue)
    sweep.scheduler.queue.clear()
    sweep.scheduler.forgotten, sweep.scheduler.reasons, sweep.sign = {"1"}, {"1": accounts} if accounts else {}, sign
    ended_at_s, lines = [], []
    for sweep.now_s in range(0, 700, 5):
        sweep.poll(queue)
        ended_at_s += [sweep.now_s] * (Ended(script="1n.sh", job_ids=("1",)) in sweep.events)
        lines += [describe_event(event) for event in sweep.events if isinstance(event, Unlisted)]
    assert ended_at_s == ([] if ends_at_s is None else [ends_at_s])
    expected = f"the scheduler does not list job 1, which counts as active: {accounts or sign}"
    assert lines == ([expected] if accounts or sign else [])
    assert queue.job_states == {"1n.sh": LIVE if ends_at_s is None else OVER}


def test_a_sweep_joins_a_job_with_a_life_sign_that_the_scheduler_does_not_list(sweep: Sweep) -> None:
    sweep.poll(sweep.queue(1))
    sweep.scheduler.queue.clear()
    sweep.sign = "rank 0 is alive on n1"
    assert list(sweep.queue(1).advance()) == [Joined(script="1n.sh", job_ids=("1",))]
    assert sweep.scheduler.count == 1


def test_an_end_whose_handling_failed_is_reported_again(sweep: Sweep) -> None:
    queue = sweep.queue(1)
    sweep.poll(queue)
    sweep.scheduler.queue.clear()
    with pytest.raises(OSError), contextlib.closing(queue.poll()) as events:
        assert isinstance(next(events), Ended)
        raise OSError
    sweep.poll(queue)
    assert sweep.events == [Ended(script="1n.sh", job_ids=("1",))]


def test_nothing_is_submitted_after_a_cancel(sweep: Sweep) -> None:
    sweep.scheduler.max_jobs = 1
    queue = sweep.queue(2)
    sweep.poll(queue)
    sweep.scheduler.queue.clear()
    sweep.is_cancelled = True
    sweep.poll(queue)
    assert (queue.waiting, sweep.scheduler.count) == ([], 1)
    assert sweep.events[0] == NotSubmitted(script="2n.sh")


def record(job: WrittenJob, script: str, *job_ids: str) -> SubmissionRecord:
    runs = tuple(run.run_id for run in job.plan.runs)
    return SubmissionRecord(script=script, job_name=f"rankwise-{script}", job_ids=job_ids, runs=runs)


def add(folder: Path, *records: SubmissionRecord) -> None:
    """Each by a change of its own."""
    with contextlib.closing(SubmissionRecords(folder)) as memory:
        for each in records:
            memory.add([each])


@pytest.mark.parametrize("text", ["", "[]", '{"job_id": "7"}', '{"job_name": "a", "job_ids": 3, "runs": []}', "\0\0"])
def test_lines_of_other_versions_are_skipped(tmp_path: Path, text: str) -> None:
    (tmp_path / SUBMITTED).write_text(text)
    assert recall(tmp_path) == {}
    [job] = jobs(tmp_path, 1)
    first, second = record(job, "1n.sh"), record(job, "2n.sh")
    add(tmp_path, first, second, dataclasses.replace(first, job_ids=("1",)))
    assert list(recall(tmp_path).values()) == [second, dataclasses.replace(first, job_ids=("1",))]


@pytest.mark.parametrize("lost_bytes", [1, 2, 30])
def test_a_line_that_a_crash_cut_off_loses_no_other(tmp_path: Path, lost_bytes: int) -> None:
    """Nor does it spoil the next one; the file of another user is replaced."""
    [job] = jobs(tmp_path, 1)
    first = record(job, "1n.sh", "1")
    add(tmp_path, first, record(job, "2n.sh", "2"))
    path = tmp_path / SUBMITTED
    path.write_bytes(path.read_bytes()[:-lost_bytes])
    assert recall(tmp_path).get("1n.sh") == first
    path.chmod(0o444)
    add(tmp_path, third := record(job, "3n.sh", "3"))
    assert list(recall(tmp_path)) == (["1n.sh", "3n.sh"] if lost_bytes > 1 else ["1n.sh", "2n.sh", "3n.sh"])
    assert recall(tmp_path)["3n.sh"] == third and path.stat().st_mode & 0o200


def test_the_id_of_a_job_is_in_the_file_before_the_next_is_submitted(sweep: Sweep) -> None:
    """And the names of all jobs before the first."""
    seen = []
    for event in sweep.queue(3).advance():
        assert isinstance(event, Submitted)
        seen.append([record.job_ids for record in recall(sweep.folder).values()])
    assert seen == [[(), (), ("1",)], [(), ("1",), ("2",)], [("1",), ("2",), ("3",)]]


def test_a_disk_that_takes_a_part_of_a_line_is_no_silent_loss(tmp_path: Path) -> None:
    first = SubmissionRecord(script="1n.sh", job_name="a", job_ids=(), runs=("r",))
    records = SubmissionRecords(tmp_path)
    records.add([first])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / SUBMITTED).stat().st_size + 20, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            records.add([dataclasses.replace(first, job_ids=("1",))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert recall(tmp_path) == {"1n.sh": first}
    later = SubmissionRecords(tmp_path)  # what the next sweep writes is whole
    later.add([second := dataclasses.replace(first, job_ids=("2",))])
    later.close()
    assert recall(tmp_path) == {"1n.sh": second}


def test_the_reason_why_a_job_is_pending_is_reported_once_unless_it_is_its_turn(sweep: Sweep) -> None:
    queue = sweep.queue(2)
    sweep.poll(queue)
    reported = []
    for reason in ("Resources", "JobHeldAdmin", "JobHeldAdmin", "Priority", "QOSMaxJobsPerUserLimit", "JobHeldAdmin"):
        sweep.scheduler.reasons = {"2": reason}
        sweep.poll(queue)
        reported += sweep.events
    assert reported == [Pending(job_id="2", reason=reason) for reason in ("JobHeldAdmin", "QOSMaxJobsPerUserLimit")]


@pytest.mark.parametrize(("problem", "done"), [("", "released"), ("scontrol: no", "not released: scontrol: no")])
def test_a_held_job_is_released_or_the_problem_named(sweep: Sweep, problem: str, done: str) -> None:
    queue = sweep.queue(2)
    sweep.poll(queue)
    sweep.scheduler.held = {"2": problem}
    sweep.poll(queue)
    assert sweep.events == [Released(job_id="2", problem=problem)]
    assert describe_event(sweep.events[0]) == f"job 2 was put back and held because its launch failed: {done}"
