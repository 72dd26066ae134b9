from __future__ import annotations

import dataclasses
import io
import json
import time
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path

import pytest

from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RankNote, read_exit_record
from hpc.model.spec import RunSpec
from hpc.model.verdict import JobEnd
from launch.follow import Follower, follow, write_missing_records
from launch.jobs.plan import WrittenJob, plan_jobs
from launch.jobs.site import Site
from launch.scheduler.protocol import JobState, StateError
from tests.unit.traces import make_run

Seen = tuple[dict[str, JobState], str]
RUN = make_run(ranks_per_node=2)
RUNS = tuple(dataclasses.replace(RUN, repeat=repeat) for repeat in (1, 2, 3))


class Terminal(io.StringIO):
    """A mock file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class ScriptedCluster:
    """A mock queue: each poll plays the next scene and returns that scene's state of the job."""

    def __init__(self, scenes: list[tuple[JobState, list[tuple[str, RunSpec, int, Outcome | None]]]], traces: Path):
        self.scenes, self.traces = scenes, traces

    def poll(self) -> Seen:
        state, events = self.scenes.pop(0) if len(self.scenes) > 1 else self.scenes[0]
        for kind, run, attempt, outcome in events:
            stem = f"{run.run_id}.{attempt}"
            if kind == "begin":
                began = {"run_id": run.run_id, "attempt": attempt, "job_id": "7", "begin_unix_s": 1}
                (self.traces / f"{stem}.begin.json").write_text(json.dumps(began))
            elif outcome is not None:
                record(run, attempt, outcome).write(self.traces)
        return {"7": state}, "squeue: \x1b[31mno"


def record(run: RunSpec, attempt: int, outcome: Outcome) -> ExitRecord:
    return ExitRecord(
        run_id=run.run_id, attempt=attempt, outcome=outcome, exit_status=0, job_id="7", restart_count=0, nodelist="n",
        begin_unix_s=1, end_unix_s=2,
    )  # fmt: skip


def job(tmp_path: Path) -> WrittenJob:
    [plan] = plan_jobs(RUNS, Site(name="s"), 10, None)
    return WrittenJob(plan=plan, script=tmp_path / "1n.sh", text="")


def watched(tmp_path: Path, scenes: list, to_do: dict[str, int], terminal: bool = False) -> str:
    """What was printed on the way."""
    cluster = ScriptedCluster(scenes, tmp_path)
    file = Terminal() if terminal else io.StringIO()
    follower = Follower({"7": job(tmp_path)}, tmp_path, lambda path: 12.5, to_do)
    with redirect_stdout(file):
        follow(cluster.poll, follower, 0.0)
    heading, _, printed = file.getvalue().partition("\n")
    assert heading.strip() == (
        f"following 3 runs in 1 job ({len(to_do)} to do); an interrupt (Ctrl-C) leaves them to the scheduler"
    )
    return printed


ALL = dict.fromkeys((run.run_id for run in RUNS), 0)


@pytest.mark.parametrize("terminal", [False, True])
def test_runs_are_followed_to_their_ends(tmp_path: Path, terminal: bool) -> None:
    run_a, run_b, run_c = RUNS
    scenes = [
        (JobState.PENDING, []),
        (JobState.RUNNING, [("begin", run_a, 1, None)]),
        (JobState.RUNNING, [("exit", run_a, 1, Outcome.OK), ("begin", run_b, 1, None)]),
        (JobState.RUNNING, [("exit", run_b, 1, Outcome.OOM), ("begin", run_c, 1, None)]),
        (JobState.ENDED, []),
    ]
    printed = watched(tmp_path, scenes, ALL, terminal)
    assert printed.splitlines() == [
        f"{run_a.run_id} attempt 1: began",
        f"{run_a.run_id} attempt 1: ok, 12.50 samples/s (1 of 3)",
        f"{run_b.run_id} attempt 1: began",
        f"{run_b.run_id} attempt 1: oom (2 of 3)",
        f"{run_c.run_id} attempt 1: began",
    ]


def test_earlier_attempts_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    run_a, run_b, _ = RUNS
    record(run_a, 1, Outcome.OK).write(tmp_path)
    record(run_b, 1, Outcome.LAUNCH_FAIL).write(tmp_path)
    forced = {run_a.run_id: 1, run_b.run_id: 1}
    assert watched(tmp_path, [(JobState.RUNNING, []), (JobState.ENDED, [])], forced) == ""
    scenes = [(JobState.RUNNING, [("exit", run_a, 2, Outcome.OK)]), (JobState.ENDED, [])]
    assert watched(tmp_path, scenes, forced) == f"{run_a.run_id} attempt 2: ok, 12.50 samples/s (1 of 3)\n"


def test_final_runs_count_and_are_not_printed(tmp_path: Path) -> None:
    run_a, run_b, run_c = RUNS
    record(run_a, 1, Outcome.OK).write(tmp_path)
    scenes = [
        (JobState.RUNNING, []),
        (JobState.RUNNING, [("exit", run_b, 1, Outcome.OK), ("exit", run_c, 1, Outcome.OK)]),
    ]
    printed = watched(tmp_path, [*scenes, (JobState.ENDED, [])], {run_b.run_id: 0, run_c.run_id: 0})
    assert [line.rpartition("(")[2] for line in printed.splitlines()] == ["2 of 3)", "3 of 3)"]
    assert run_a.run_id not in printed


def test_every_attempt_of_a_requeued_run_is_printed(tmp_path: Path) -> None:
    run_a, _, _ = RUNS
    scenes = [
        (JobState.RUNNING, [("begin", run_a, 1, None)]),
        (JobState.PENDING, [("exit", run_a, 1, Outcome.PREEMPTED)]),
        (JobState.RUNNING, [("begin", run_a, 2, None)]),
        (JobState.RUNNING, [("exit", run_a, 2, Outcome.OK)]),
        (JobState.ENDED, []),
    ]
    printed = watched(tmp_path, scenes, {run_a.run_id: 0})
    assert [line.split(" attempt ")[1] for line in printed.splitlines()] == [
        "1: began", "1: preempted (1 of 3)", "2: began", "2: ok, 12.50 samples/s (1 of 3)",
    ]  # fmt: skip


def test_an_interrupt_ends_what_waits_in_no_queue(tmp_path: Path) -> None:
    to_do = {RUNS[0].run_id: 0, "other": 0}
    follower = Follower({"7": job(tmp_path)}, tmp_path, lambda path: None, to_do, queued=False)
    assert follower.describe() == "following 3 runs in 1 job (1 to do); an interrupt (Ctrl-C) ends them"


def test_an_outage_is_reported_and_ends_no_job(tmp_path: Path) -> None:
    run_a, run_b, run_c = RUNS
    scenes = [
        (JobState.RUNNING, [("begin", run_a, 1, None)]),
        (JobState.UNREACHABLE, []),
        (JobState.UNREACHABLE, [("exit", run_a, 1, Outcome.OK), ("begin", run_b, 1, None)]),
        (JobState.UNREACHABLE, [("exit", run_b, 1, Outcome.OK)]),
        (JobState.UNREACHABLE, [("begin", run_c, 1, None)]),
        (JobState.RUNNING, [("exit", run_c, 1, Outcome.OK)]),
        (JobState.ENDED, []),
    ]
    printed = watched(tmp_path, scenes, ALL)
    lines = printed.splitlines()
    assert len(lines) == 6
    assert "has not answered since" in lines[1] and "squeue: \\x1b[31mno" in lines[1]
    assert lines[4] == "the scheduler answers again"


class VanishingFolder(ScriptedCluster):
    """A mock queue that takes the folder of traces away at its second poll and brings it back at its fourth."""

    queries = 0

    def poll(self) -> Seen:
        self.queries += 1
        away = self.traces.with_name("away")
        if self.queries == 2:
            self.traces.rename(away)
        if self.queries == 4:
            away.rename(self.traces)
        return super().poll()


def test_a_missing_traces_folder_is_reported_and_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    scenes = [
        (JobState.RUNNING, [("exit", run, 1, Outcome.OK) for run in RUNS[:2]]),
        (JobState.RUNNING, []),
        (JobState.ENDED, []),
        (JobState.ENDED, [("exit", RUNS[2], 1, Outcome.OK)]),
    ]
    follower = Follower({"7": job(tmp_path)}, traces, lambda path: 12.5, ALL)
    follow(VanishingFolder(scenes, traces).poll, follower, 0.0)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[2].startswith("the traces could not be read or written since") and "No such file" in lines[2]
    assert lines[3] == "the traces can be read and written again"
    assert len(lines) == 5


class FullFolder(ScriptedCluster):
    """A mock queue whose events cannot be handled at its second poll."""

    queries = 0
    problem: Exception = OSError(28, "No space left on device")

    def poll(self) -> Seen:
        self.queries += 1
        if self.queries == 2:
            raise self.problem
        return super().poll()


def test_an_event_that_a_full_folder_cannot_record_is_an_outage_and_any_other_error_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenes = [(JobState.RUNNING, [("exit", run, 1, Outcome.OK) for run in RUNS]), (JobState.ENDED, [])]
    follower = Follower({"7": job(tmp_path)}, tmp_path, lambda path: 12.5, ALL)
    queue = FullFolder(scenes, tmp_path)
    follow(queue.poll, follower, 0.0)
    assert queue.queries == 4
    lines = capsys.readouterr().out.splitlines()[4:]
    assert "could not be read or written since" in lines[0] and lines[0].endswith("[Errno 28] No space left on device")
    assert lines[1:] == ["the traces can be read and written again"]
    queue = FullFolder([(JobState.ENDED, [])], tmp_path)
    queue.problem, queue.queries = ValueError("a bug"), 1
    with pytest.raises(ValueError, match="a bug"):
        follow(queue.poll, follower, 0.0)


class Day:
    """A fake clock, and a queue that counts its queries: a job that runs for a day, or ends its runs at `ends_at_s`."""

    def __init__(self, traces: Path, ends_at_s: float) -> None:
        self.time_s, self.queries, self.traces, self.ends_at_s = 0.0, list[float](), traces, ends_at_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        if self.time_s >= self.ends_at_s > self.time_s - seconds:
            for run in RUNS:
                record(run, 1, Outcome.OK).write(self.traces)

    def poll(self) -> Seen:
        self.queries.append(self.time_s)
        ended = self.time_s >= self.ends_at_s
        return {"7": JobState.ENDED if ended else JobState.RUNNING}, ""


def test_a_day_without_a_change_costs_the_controller_a_query_a_minute(tmp_path: Path) -> None:
    day = Day(tmp_path, 86_400.0)
    follower = Follower({"7": job(tmp_path)}, tmp_path, lambda path: None, ALL)
    follow(day.poll, follower, 3.0, 60.0, now_s=lambda: day.time_s, sleep=day.sleep)
    assert day.queries[:4] == [0, 3, 9, 18] and max(b - a for a, b in pairwise(day.queries)) == 60
    assert 1440 <= len(day.queries) <= 1460  # 28,800 at one in 3 s
    assert day.queries[-1] <= 86_400 + 9  # quick again once a record is there


def test_a_long_outage_ends_following(tmp_path: Path) -> None:
    cluster = ScriptedCluster([(JobState.UNREACHABLE, [])], tmp_path)
    follower = Follower({"7": job(tmp_path)}, tmp_path, lambda path: None, ALL)
    with pytest.raises(StateError, match=r"has not answered since \d{4}-.* \(0 s\), .* not known: squeue: .*no"):
        follow(cluster.poll, follower, 0.0, patience_s=0)


@pytest.mark.parametrize("terminal", [False, True])
def test_control_characters_are_escaped(tmp_path: Path, terminal: bool) -> None:
    hostile = dataclasses.replace(record(RUNS[0], 1, Outcome.OOM), evidence=("rank 0: \x1b]0;owned\x07\nrank 1",))
    hostile.write(tmp_path)
    printed = watched(tmp_path, [(JobState.ENDED, [])], ALL, terminal)
    assert "\\x1b]0;owned" in printed and "\x1b]0" not in printed


def ended(state: str, restarts: int = 0, name: str = "") -> JobEnd:
    return JobEnd(state=state, source="squeue", name=name, nodelist="n7", restarts=restarts)


def began(folder: Path, run: RunSpec, attempt: int = 1, job_id: str = "7", job_name: str = "") -> None:
    begin = BeginRecord(run_id=run.run_id, attempt=attempt, job_id=job_id, begin_unix_s=1, job_name=job_name)
    assert begin.take(folder)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("CANCELLED", "cancelled"), ("TIMEOUT", "timeout"), ("NODE_FAIL", "node_fail"), ("FAILED", "lost"), ("", "lost")],
)
def test_missing_records_come_from_the_end_of_the_job(tmp_path: Path, state: str, outcome: str) -> None:
    run_a, run_b, run_c = RUNS
    began(tmp_path, run_a)
    began(tmp_path, run_b, attempt=2)
    record(run_b, 2, Outcome.OK).write(tmp_path)
    began(tmp_path, run_c, job_id="8")
    (tmp_path / "broken.1.begin.json").write_text("{")
    recovered: list[str] = []
    [written] = write_missing_records(tmp_path, {"7": ended(state)}, tmp_path, recovered.append, patience_s=0)
    assert (written.run_id, written.outcome, written.exit_status) == (run_a.run_id, outcome, -1)
    assert written.nodelist == "n7"
    assert state in " ".join(written.evidence) and "squeue" in " ".join(written.evidence)
    assert recovered == [f"{run_a.run_id}.1"]
    assert read_exit_record(tmp_path / f"{run_a.run_id}.1.exit.json") == written
    assert read_exit_record(tmp_path / f"{run_b.run_id}.2.exit.json").outcome is Outcome.OK
    assert not (tmp_path / f"{run_c.run_id}.1.exit.json").exists()


def test_missing_records_use_standard_error_and_notes(tmp_path: Path) -> None:
    run_a, run_b, _ = RUNS
    began(tmp_path, run_a)
    (tmp_path / f"{run_a.run_id}.1.err").write_text(
        "slurmstepd: error: Job 7 exceeded memory limit (9 > 8), being killed"
    )
    began(tmp_path, run_b)
    RankNote(rank=1, outcome=Outcome.RANK_FAIL, exception="ValueError", message="no", step=3, hostname="n2").write(
        tmp_path, f"{run_b.run_id}.1"
    )
    written = write_missing_records(tmp_path, {"7": ended("FAILED")}, tmp_path, patience_s=0)
    records = {record.run_id: record for record in written}
    assert records[run_a.run_id].outcome is Outcome.OOM
    assert "exceeded memory limit" in records[run_a.run_id].evidence[0]
    assert records[run_b.run_id].outcome is Outcome.RANK_FAIL
    assert "ValueError" in records[run_b.run_id].evidence[0]


@pytest.mark.parametrize(("name", "closed"), [("ours", [0, 2]), ("of-another", [1, 2]), ("", [0, 1, 2])])
def test_attempts_of_a_job_of_another_name_stay_open(tmp_path: Path, name: str, closed: list[int]) -> None:
    """The controller lost its state and gave number 7 again: one of the two jobs may be running. A record of an earlier
    version has no name."""
    for run, job_name in zip(RUNS, ("ours", "of-another", ""), strict=True):
        began(tmp_path, run, job_name=job_name)
    written = write_missing_records(tmp_path, {"7": ended("", name=name)}, tmp_path, patience_s=0)
    assert [record.run_id for record in written] == [RUNS[at].run_id for at in closed]


def test_a_late_record_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began(tmp_path, RUNS[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: record(RUNS[0], 1, Outcome.OK).write(tmp_path))
    assert write_missing_records(tmp_path, {"7": ended("")}, tmp_path) == []
    assert read_exit_record(tmp_path / f"{RUNS[0].run_id}.1.exit.json").outcome is Outcome.OK
