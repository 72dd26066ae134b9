"""Whether the torture would notice: each of its checks against what it must find, and against what it must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpc.model.outcome import BeginRecord, ExitRecord, Outcome
from tests.torture.checks import COPY_S, LATE_S, Attempt, check_killed, check_saved, half_files
from tests.torture.kills import KINDS
from tests.torture.truth import Life

pytestmark = pytest.mark.all

NOW_S = 1000.0
RUN = "2n2g_mpi_tortured_r1"


def life(*steps: int, pace_s: float = 0.01) -> Life:
    """Each rank has just completed so many steps."""
    return Life(
        pids={},
        completed={rank: [NOW_S - pace_s * (n - 1 - i) for i in range(n)] for rank, n in enumerate(steps)},
    )


def attempt(outcome: Outcome, *steps: int, evidence: tuple[str, ...] = ("seen",), recovered: bool = True) -> Attempt:
    record = ExitRecord(
        run_id=RUN, attempt=1, outcome=outcome, exit_status=1, job_id="7", restart_count=0, nodelist="",
        begin_unix_s=1, end_unix_s=2, evidence=evidence,
    )  # fmt: skip
    begin = BeginRecord(run_id=RUN, attempt=1, job_id="7", begin_unix_s=1)
    return Attempt(begin=begin, record=record, steps=dict(enumerate(steps)), recovered=recovered)


def test_a_harmless_kill_has_no_faults() -> None:
    assert check_killed(KINDS["rank"], attempt(Outcome.RANK_FAIL, 9, 10), life(10, 10), NOW_S, {})[1] == []
    assert check_killed(KINDS["job"], attempt(Outcome.LOST, 500, 500), life(600, 600), NOW_S, {})[1] == []
    assert check_killed(KINDS["job"], attempt(Outcome.LOST), life(600, 600, pace_s=0.001), NOW_S, {})[1] == []


@pytest.mark.parametrize(
    ("kind", "killed", "of_ranks", "message"),
    [
        ("rank", attempt(Outcome.RANK_FAIL, 8, 10), life(10, 10), "2 steps lost, though the nodes live"),
        ("rank", attempt(Outcome.LAUNCH_FAIL, 10, 10), life(10, 10), "outcome launch_fail, not rank_fail"),
        ("rank", attempt(Outcome.RANK_FAIL, 10, 10, evidence=()), life(10, 10), "without evidence"),
        ("rank", attempt(Outcome.RANK_FAIL, 10, 11), life(10, 10), "never completed"),
        ("rank", attempt(Outcome.RANK_FAIL, 10, 10, recovered=False), life(10, 10), "not say that it was recovered"),
        ("job", attempt(Outcome.LOST), life(2, 2, pace_s=COPY_S + LATE_S + 1), "completed 12.0 s before"),
        ("node", attempt(Outcome.RANK_FAIL, 10, 10), life(10, 10), "outcome rank_fail, not node_fail"),
    ],
)
def test_faults_of_a_killed_attempt_are_reported(kind: str, killed: Attempt, of_ranks: Life, message: str) -> None:
    _, wrong = check_killed(KINDS[kind], killed, of_ranks, NOW_S, {})
    assert len(wrong) == 1 and message in wrong[0]


def test_a_signalled_script_has_a_checkpoint_each_signal_once_and_a_whole_trace(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"7.0.{rank}.got").write_text("SIGHUP\n")
        (tmp_path / f"7.0.{rank}.saved").write_text("10")
    ended = replace(attempt(Outcome.OK, 10, 10, recovered=False), evidence="ended early at step 10 by SIGHUP")
    assert check_saved(ended, life(10, 10), tmp_path) == []
    assert len(check_saved(replace(ended, recovered=True), life(10, 10), tmp_path)) == 1
    assert len(check_saved(replace(ended, evidence=""), life(10, 10), tmp_path)) == 2
    assert len(check_saved(ended, life(10, 11), tmp_path)) == 1
    (tmp_path / "7.0.1.got").write_text("SIGHUP\nSIGHUP\n")
    assert check_saved(ended, life(10, 10), tmp_path) == ["rank 1 got SIGHUP SIGHUP"]
    (tmp_path / "7.0.0.saved").unlink()
    assert len(check_saved(ended, life(10, 10), tmp_path)) == 2


def test_copied_steps_must_be_in_the_trace() -> None:
    killed = attempt(Outcome.LOST, 500, 499)
    assert check_killed(KINDS["job"], killed, life(600, 600), NOW_S, {0: 500, 1: 499})[1] == []
    (wrong,) = check_killed(KINDS["job"], killed, life(600, 600), NOW_S, {0: 500, 1: 500})[1]
    assert wrong == "of ranks [1] more had been copied than the trace knows"


def test_incomplete_files_are_reported(tmp_path: Path) -> None:
    for name in (f"{RUN}.1.h5", f"{RUN}.1.begin.json", f"{RUN}.1.exit.json", f"{RUN}.1.rank3.json", "plan.0.json"):
        (tmp_path / name).touch()
    assert half_files(tmp_path) == []
    (tmp_path / f"{RUN}.1.partial").mkdir()
    (tmp_path / f"{RUN}.1.partial" / "rank0.stamps").touch()
    (tmp_path / f".{RUN}.1.h5.part").touch()
    (tmp_path / f"{RUN}.1.signal").touch()
    assert len(set(half_files(tmp_path))) == 4
