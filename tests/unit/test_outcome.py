from __future__ import annotations

from pathlib import Path

import pytest

from hpc.model.outcome import (
    ExitRecord,
    Outcome,
    RankNote,
    RecordError,
    exit_records,
    final_record,
    read_exit_record,
    read_rank_note,
)


def record(attempt: int, outcome: Outcome) -> ExitRecord:
    return ExitRecord(
        run_id="run_r1", attempt=attempt, outcome=outcome, exit_status=0, job_id="7", restart_count=0, nodelist="n1",
        begin_unix_s=1, end_unix_s=2,
    )  # fmt: skip


def test_records_are_read_back(tmp_path: Path) -> None:
    for attempt in (2, 10, 1):
        record(attempt, Outcome.TIMEOUT).write(tmp_path)
    assert [r.attempt for r in exit_records(tmp_path)["run_r1"]] == [1, 2, 10]
    assert read_exit_record(tmp_path / "run_r1.10.exit.json") == record(10, Outcome.TIMEOUT)


def test_notes_are_read_back(tmp_path: Path) -> None:
    note = RankNote(rank=3, outcome=Outcome.OOM, exception="MemoryError", message="no", step=7, hostname="n1")
    path = note.write(tmp_path, "run_r1.1")
    assert path.name == "run_r1.1.rank3.json"
    assert read_rank_note(path) == note
    assert '\n "outcome": "oom",\n' in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"outcome": "ok"}', '{"outcome": "splendid"}', "\x00"])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run_r1.1.exit.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"run_r1\.1\.exit\.json"):
        read_exit_record(path)
    with pytest.raises(RecordError, match=r"run_r1\.1\.exit\.json"):
        read_rank_note(path)


def test_the_latest_ok_attempt_is_the_final_one() -> None:
    assert final_record([]) is None
    pending = [record(1, Outcome.PREEMPTED), record(2, Outcome.TIMEOUT), record(3, Outcome.LAUNCH_FAIL)]
    assert final_record(pending) is None
    failed = record(4, Outcome.RANK_FAIL)
    assert final_record([*pending, failed]) == failed
    ok = record(5, Outcome.OK)
    assert final_record([failed, ok, record(6, Outcome.OOM)]) == ok
    assert final_record([ok, record(7, Outcome.OK)]) == record(7, Outcome.OK)
