from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from hpc.outcome import ExitRecord, Outcome, read_exit_record
from hpc.spec import RunSpec
from launch.follow import Follower, follow, write_missing_records
from launch.plan import WrittenJob, plan_jobs
from launch.site import Site
from launch.state import JobState

RUN = RunSpec(
    nodes=1, ranks_per_node=2, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=8,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=5, repeat=1, seed=0, site="s",
)  # fmt: skip
RUNS = tuple(dataclasses.replace(RUN, repeat=repeat) for repeat in (1, 2, 3))


class ScriptedCluster:
    """A mock scheduler: at each question it plays the next scene, then tells that scene's state of the job."""

    poll_s = 0.0

    def __init__(self, scenes: list[tuple[JobState, list[tuple[str, RunSpec, int, Outcome | None]]]], traces: Path):
        self.scenes, self.traces = scenes, traces

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        state, events = self.scenes.pop(0) if len(self.scenes) > 1 else self.scenes[0]
        for kind, run, attempt, outcome in events:
            stem = f"{run.run_id}.{attempt}"
            if kind == "begin":
                began = {"run_id": run.run_id, "attempt": attempt, "job_id": "7", "begin_unix_s": 1}
                (self.traces / f"{stem}.begin.json").write_text(json.dumps(began))
            elif outcome is not None:
                record(run, attempt, outcome).write(self.traces)
        return dict.fromkeys(job_ids, state)


def record(run: RunSpec, attempt: int, outcome: Outcome) -> ExitRecord:
    return ExitRecord(
        run_id=run.run_id, attempt=attempt, outcome=outcome, exit_status=0, job_id="7", restart_count=0, nodelist="n",
        begin_unix_s=1, end_unix_s=2,
    )  # fmt: skip


def job(tmp_path: Path) -> WrittenJob:
    [plan] = plan_jobs(RUNS, Site(name="s"), 10, None)
    return WrittenJob(plan=plan, script=tmp_path / "1n.sh", text="")


def watched(tmp_path: Path, scenes: list, to_do: dict[str, int], terminal: bool = False) -> tuple[list[str], str]:
    """The states of the three runs at the end, and what was printed on the way."""
    cluster = ScriptedCluster(scenes, tmp_path)
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    follower = Follower(cluster, {"7": job(tmp_path)}, tmp_path, lambda path: 12.5, to_do)
    rows = follow(follower, console)
    assert isinstance(console.file, io.StringIO)
    return [row.state for row in rows], console.file.getvalue()


ALL = dict.fromkeys((run.run_id for run in RUNS), 0)


@pytest.mark.parametrize("terminal", [False, True])
def test_runs_are_followed_to_their_ends(tmp_path: Path, terminal: bool) -> None:
    one, two, three = RUNS
    scenes = [
        (JobState.PENDING, []),
        (JobState.RUNNING, [("begin", one, 1, None)]),
        (JobState.RUNNING, [("exit", one, 1, Outcome.OK), ("begin", two, 1, None)]),
        (JobState.RUNNING, [("exit", two, 1, Outcome.OOM), ("begin", three, 1, None)]),
        (JobState.ENDED, []),
    ]
    states, printed = watched(tmp_path, scenes, ALL, terminal)
    assert states == ["ok", "oom", "no record"]
    assert "12.50" in printed
    if not terminal:
        assert printed.splitlines() == [
            f"{one.run_id} attempt 1: ok, 12.50 samples/s (1 of 3)",
            f"{two.run_id} attempt 1: oom (2 of 3)",
        ]


def test_attempts_of_before_are_not_taken_for_those_of_now(tmp_path: Path) -> None:
    one, two, _ = RUNS
    record(one, 1, Outcome.OK).write(tmp_path)
    record(two, 1, Outcome.LAUNCH_FAIL).write(tmp_path)
    forced = {one.run_id: 1, two.run_id: 1}
    states, printed = watched(tmp_path, [(JobState.RUNNING, []), (JobState.ENDED, [])], forced)
    assert states == ["never began"] * 3
    assert printed == ""
    again = [(JobState.RUNNING, [("exit", one, 2, Outcome.OK)]), (JobState.ENDED, [])]
    assert watched(tmp_path, again, forced)[0] == ["ok", "never began", "never began"]


def test_settled_runs_are_shown_as_they_are(tmp_path: Path) -> None:
    record(RUNS[0], 3, Outcome.OK).write(tmp_path)
    assert watched(tmp_path, [(JobState.ENDED, [])], {})[0][0] == "ok"


def test_a_job_that_nobody_knows_is_waited_for_a_little_and_not_for_ever(tmp_path: Path) -> None:
    assert watched(tmp_path, [(JobState.UNKNOWN, [])], ALL)[0] == ["never began"] * 3


@pytest.mark.parametrize(
    ("word", "outcome"),
    [("CANCELLED", "cancelled"), ("TIMEOUT", "timeout"), ("NODE_FAIL", "node_fail"), ("FAILED", "lost"), ("", "lost")],
)
def test_attempts_without_a_record_get_one_from_the_schedulers_word(tmp_path: Path, word: str, outcome: str) -> None:
    one, two, three = RUNS
    cluster = ScriptedCluster(
        [(JobState.ENDED, [("begin", one, 1, None), ("begin", two, 2, None), ("exit", two, 2, Outcome.OK)])], tmp_path
    )
    cluster.states(["7"])
    other = {"run_id": three.run_id, "attempt": 1, "job_id": "8", "begin_unix_s": 1}
    (tmp_path / f"{three.run_id}.1.begin.json").write_text(json.dumps(other))
    (tmp_path / "broken.1.begin.json").write_text("{")
    [written] = write_missing_records(tmp_path, {"7": word})
    assert (written.run_id, written.outcome, written.exit_status) == (one.run_id, outcome, -1)
    assert read_exit_record(tmp_path / f"{one.run_id}.1.exit.json") == written
    assert read_exit_record(tmp_path / f"{two.run_id}.2.exit.json").outcome is Outcome.OK
    assert not (tmp_path / f"{three.run_id}.1.exit.json").exists()
