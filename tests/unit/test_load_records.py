"""parse.runs.load: what records say of attempts that did not end well, and what lies beside traces."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpc.model.outcome import ExitRecord, Outcome, RankNote
from parse.runs.load import load
from tests.unit.traces import cut_short, make_run, make_trace, put, put_plan, repeats

RUN = make_run()
STEM = f"{RUN.run_id}.1"


def put_record(folder: Path, outcome: Outcome, **facts: object) -> None:
    usual = {"run_id": RUN.run_id, "attempt": 1, "outcome": outcome, "exit_status": 1, "job_id": "7", "nodelist": "n1",
             "restart_count": 0, "begin_unix_s": 1, "end_unix_s": 2}  # fmt: skip
    ExitRecord(**{**usual, **facts}).write(folder)  # type: ignore[arg-type]


def evidence(folder: Path) -> str:
    (attempt,) = load([folder]).attempts
    return attempt.evidence


def test_evidence_is_the_first_sentence_and_where_files_are_kept(tmp_path: Path) -> None:
    sentences = ("its job was preempted (scontrol)", "rank 1 on a after 7 steps: peer gone")
    RankNote(rank=1, outcome=Outcome.RANK_FAIL, exception="E", message="peer gone", step=6, hostname="a").write(
        tmp_path, STEM
    )
    put_record(tmp_path, Outcome.PREEMPTED, evidence=sentences)
    assert evidence(tmp_path) == sentences[0]
    put_record(tmp_path, Outcome.PREEMPTED, evidence=sentences, local_copies="n1:/dev/shm/x.h5")
    assert evidence(tmp_path) == f"{sentences[0]}; kept at n1:/dev/shm/x.h5"


def test_evidence_of_an_ok_attempt_is_that_of_its_trace(tmp_path: Path) -> None:
    put(tmp_path, dataclasses.replace(make_trace(RUN), evidence="the loss is not finite"))
    put_record(tmp_path, Outcome.OK, evidence=("exit status 0 and a whole trace",), exit_status=0)
    assert evidence(tmp_path) == "the loss is not finite"


@pytest.mark.parametrize(("recovered", "remarks"), [(True, 0), (False, 1)])
def test_a_record_written_after_recovery_is_not_remarked(tmp_path: Path, recovered: bool, remarks: int) -> None:
    trace = dataclasses.replace(cut_short(make_trace(RUN), 7, Outcome.LOST), recovered=recovered)
    put(tmp_path, trace)
    put_record(tmp_path, Outcome.NODE_FAIL)
    put_plan(tmp_path, repeats(RUN, 1))
    loaded = load([tmp_path])
    assert loaded.attempts[0].outcome is Outcome.NODE_FAIL
    assert len([line for line in loaded.remarks if "which counts" in line]) == remarks


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        ("", "of a run that goes on, or whose job was lost"),
        (".exit.json", "unrecovered timestamps of terminated ranks"),
        (".h5", "left over beside its trace"),
    ],
)
def test_unrecovered_stamps_are_remarked(tmp_path: Path, beside: str, reason: str) -> None:
    partial = tmp_path / f"{STEM}.partial"
    partial.mkdir()
    (partial / "rank0.json").write_text("{}")
    if beside == ".h5":
        put(tmp_path, make_trace(RUN))
    elif beside:
        put_record(tmp_path, Outcome.RANK_FAIL)
    loaded = load([tmp_path])
    [remark] = [line for line in loaded.remarks if ".partial" in line]
    assert remark.startswith(f"{partial}: ") and reason in remark
    assert f"rankwise sweep recover {tmp_path}" in remark
    assert loaded.refusals == ()


def test_stacks_are_no_log(tmp_path: Path) -> None:
    put_record(tmp_path, Outcome.RANK_FAIL)
    without = load([tmp_path])
    (tmp_path / f"{STEM}.stacks.txt").write_text("rank 0, 7 steps completed:\n")
    assert load([tmp_path]) == without
