"""parse.runs.load: what lies in a folder, what is odd about it, what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome, RankNote
from hpc.model.run_fields import RunFields
from parse.runs.attempt import Attempt
from parse.runs.load import load
from parse.summarize import main
from tests.unit.traces import (
    make_run,
    make_trace,
    put,
    put_exit_record,
    put_plan,
    repeats,
)


def only(loaded) -> Attempt:
    assert len(loaded.attempts) == 1
    return loaded.attempts[0]


def test_a_folder_with_plan_record_and_trace(tmp_path):
    run = make_run()
    put(tmp_path, make_trace(run, step_s=0.1))
    put_exit_record(tmp_path, run, Outcome.OK)
    put_plan(tmp_path, repeats(run, 2))
    loaded = load([tmp_path])
    attempt = only(loaded)
    assert attempt.counts
    assert attempt.measured.throughput == pytest.approx(40)
    assert attempt.steps_completed == 15
    assert [requested.run.repeat for requested in loaded.requested] == [1, 2]
    assert (loaded.refusals, loaded.remarks) == ((), ())


def test_stamps_are_freed(tmp_path):
    put(tmp_path, make_trace(make_run(nodes=3, measured_steps=500)))
    measured = only(load([tmp_path])).measured
    assert measured.step_s.nbytes == 500 * 8
    assert measured.step_s.base is None


def test_files_and_folders_that_overlap_are_read_once(tmp_path):
    path = put(tmp_path, make_trace())
    (tmp_path / "link.h5").symlink_to(path)
    loaded = load([tmp_path, path, tmp_path / "." / path.name])
    assert only(loaded).counts


# Refusals


def test_a_broken_file_is_one_line_with_its_name(tmp_path, cases):
    put(tmp_path, make_trace())

    def outcomes(lines: list[str]) -> Iterator[str]:
        path = tmp_path / lines[0]
        path.write_text("\n".join(lines[1:]), encoding="latin-1")
        loaded = load([tmp_path])
        path.unlink()
        assert only(loaded).counts
        for refusal in loaded.refusals:
            yield refusal.replace(f"{tmp_path}/", "")

    cases("records.txt", outcomes)


def test_paths_that_lead_nowhere_are_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    refusals = load([tmp_path / "no", tmp_path / "other.json"]).refusals
    assert refusals == (
        f"{tmp_path / 'no'}: no such file or folder",
        f"{tmp_path / 'other.json'}: by its name neither a plan nor a record of an attempt, and no summary",
    )


def test_paths_that_cannot_be_looked_at_are_refused_and_the_others_read(tmp_path):
    loop, endless = tmp_path / "loop", tmp_path / ("x" * 5000)
    loop.symlink_to(loop)
    (tmp_path / "there").mkdir()
    put(tmp_path / "there", make_trace())
    loaded = load([endless, loop, tmp_path / "there"])
    assert loaded.refusals == (
        f"{endless}: cannot be read (File name too long)",
        f"{loop}: cannot be read (Too many levels of symbolic links)",
    )
    assert only(loaded).counts


@pytest.mark.parametrize(
    "words",
    [
        ["summarize"], ["summarize", "--kind", "logs"], ["summarize", "--kind", "table"], ["compare", "y" * 5000],
        ["compare", "--reference", "machine.toml"], ["history"], ["airank"], ["timeline", "--out", "t.json"],
        ["collective_trace"],
    ],
)  # fmt: skip
def test_every_command_refuses_a_path_that_is_too_long_in_words(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    command, *options = words
    assert import_module(f"parse.{command}").main([*options, "x" * 5000]) in (1, 2)
    printed = capsys.readouterr()
    assert "File name too long" in printed.out + printed.err


def test_a_folder_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def walk(path: Path, onerror):
        onerror(PermissionError(13, "Permission denied", str(path)))
        return iter(())

    monkeypatch.setattr("parse.runs.load.os.walk", walk)
    assert load([tmp_path]).refusals == (f"{tmp_path}: cannot be read (Permission denied)",)


# Two traces of one attempt


def test_the_same_trace_twice_counts_once(tmp_path):
    path = put(tmp_path, make_trace())
    shutil.copy(path, tmp_path / "copy.h5")
    loaded = load([tmp_path])
    assert only(loaded).counts
    assert any("byte for byte; counted once" in remark for remark in loaded.remarks)


def test_two_different_traces_of_one_attempt_are_both_set_aside(tmp_path):
    first = put(tmp_path, make_trace(step_s=0.1))
    (tmp_path / "again").mkdir()
    second = put(tmp_path / "again", make_trace(step_s=0.2))
    loaded = load([tmp_path])
    attempt = only(loaded)
    assert attempt.measured is None
    assert not attempt.counts
    remarks = [remark for remark in loaded.remarks if "neither is counted" in remark]
    assert len(remarks) == 1
    assert str(first) in remarks[0]
    assert str(second) in remarks[0]


def test_a_file_named_like_another_run_counts_as_what_it_holds(tmp_path):
    put(tmp_path, make_trace()).rename(tmp_path / "other_r9.4.h5")
    loaded = load([tmp_path])
    assert only(loaded).number == 1
    assert "other_r9.4.h5: holds run" in loaded.remarks[0]


# What an attempt ended as


def test_the_exit_record_stands_over_the_trace(tmp_path):
    run = make_run()
    put(tmp_path, make_trace(run))
    put_exit_record(tmp_path, run, Outcome.TIMEOUT)
    loaded = load([tmp_path])
    assert only(loaded).outcome is Outcome.TIMEOUT
    assert not only(loaded).counts
    assert any("says ok; its exit record, written later, says timeout" in remark for remark in loaded.remarks)


def test_a_contradicting_second_exit_record_is_remarked(tmp_path):
    run = make_run()
    put(tmp_path, make_trace(run))
    put_exit_record(tmp_path, run, Outcome.OK)
    (tmp_path / "z").mkdir()
    put_exit_record(tmp_path / "z", run, Outcome.OOM)
    loaded = load([tmp_path])
    assert only(loaded).outcome is Outcome.OK
    assert any("a second exit record" in remark for remark in loaded.remarks)


def test_ok_without_a_readable_trace_is_a_problem(tmp_path):
    run = make_run()
    put_plan(tmp_path, [run])
    put_exit_record(tmp_path, run, Outcome.OK)
    (tmp_path / f"{run.run_id}.1.h5").write_text("broken")
    loaded = load([tmp_path])
    assert only(loaded).problem == "ended ok, but no readable trace of it is here"
    assert len(loaded.refusals) == 1


def test_the_first_rank_to_fail_is_the_evidence(tmp_path):
    run = make_run(nodes=2)
    put_plan(tmp_path, [run])
    put_exit_record(tmp_path, run, Outcome.OOM)
    for rank, step in ((0, 7), (1, 6)):
        note = RankNote(
            rank=rank, outcome=Outcome.OOM, exception="OutOfMemoryError", message="no", step=step, hostname="a"
        )
        note.write(tmp_path, f"{run.run_id}.1")
    assert only(load([tmp_path])).evidence == "rank 1 on a after step 6: OutOfMemoryError: no"


def test_a_rank_that_lost_another_is_not_the_evidence(tmp_path):
    run = make_run(nodes=2)
    put_plan(tmp_path, [run])
    lost = RankNote(
        rank=0, outcome=Outcome.RANK_FAIL, exception="RuntimeError", message="Connection closed by peer", step=6,
        hostname="a",
    )  # fmt: skip
    failed = dataclasses.replace(lost, rank=1, outcome=Outcome.OOM, exception="MemoryError", message="no", step=7)
    for note in (lost, failed):
        note.write(tmp_path, f"{run.run_id}.1")
    attempt = only(load([tmp_path]))
    assert (attempt.outcome, attempt.evidence) == (Outcome.OOM, "rank 1 on a after step 7: MemoryError: no")


def test_records_of_unknown_runs_are_remarked(tmp_path):
    put_exit_record(tmp_path, make_run(), Outcome.OK)
    loaded = load([tmp_path])
    assert only(loaded).requested is None
    assert any("no plan and no trace here describes this run" in remark for remark in loaded.remarks)


def test_a_refused_script_is_summarised_by_the_reason_that_it_printed(tmp_path, capsys):
    """Its note is all that it leaves: its run is described nowhere."""
    note = RankNote(
        rank=0, outcome=Outcome.INVALID, exception="NothingMeasured", message="nothing was measured: no backward",
        step=-1, hostname="a",
    )  # fmt: skip
    stem = f"{make_run().run_id}.1"
    note.write(tmp_path, stem)
    (tmp_path / f"{stem}.partial").mkdir()
    assert main([str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert f"{make_run().run_id}: invalid: rank 0 on a" in err and "nothing was measured: no backward;" in err
    assert "unrecovered timestamps of terminated ranks" in err and "of a run that goes on" not in err


# Schemas of another age


def test_a_plan_with_unknown_fields_and_ids_of_its_own_is_read(tmp_path):
    path = put_plan(tmp_path, [make_run()])
    plan = json.loads(path.read_text())
    plan["runs"][0] |= {"fabric": "ib", "run_id": "old_name_r1"}
    path.write_text(json.dumps(plan))
    (requested,) = load([tmp_path]).requested
    assert (requested.run, requested.run_id, requested.extra) == (
        RunFields.of(make_run()),
        "old_name_r1",
        {"fabric": "ib"},
    )
