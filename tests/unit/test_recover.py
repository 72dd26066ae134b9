"""Traces of what dead ranks left: missing ranks, missing clocks, what cannot be recovered."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpc.model import files
from hpc.model.evidence import AttemptOutput, judge_ended
from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RankNote
from hpc.model.timestamps import ABSENT
from hpc.model.trace_file import read_trace
from hpc.recovery import recover as recover_module
from hpc.recovery.collect import collect
from hpc.recovery.folders import BEAT
from hpc.recovery.journal import Journal
from hpc.recovery.recover import main
from hpc.system.job_facts import Job
from launch.scheduler.slurm_jobs import read_job_now
from tests.unit.dead_ranks import RUN, STEM, leave, recovered


def test_ranks_that_left_nothing_completed_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=3, points=2)
    leave(tmp_path, 2, completed=4, points=1)
    (tmp_path / f".{STEM}.h5.n1.77.part").write_text("rank 0 died in the middle of it")
    assert main([str(tmp_path)]) == 0
    stdout = capsys.readouterr().out
    assert "ranks completed 0 to 4 of 7 steps (0: rank 1; 3: rank 0; 4: rank 2); nothing is left of rank 1" in stdout
    trace = read_trace(tmp_path / f"{STEM}.h5")
    assert (trace.run, trace.attempt, trace.outcome, trace.recovered) == (RUN, 1, Outcome.RANK_FAIL, True)
    assert trace.steps_completed.tolist() == [3, 0, 4]
    assert (trace.stamps != ABSENT).all(axis=2).sum(axis=1).tolist() == [3, 0, 4]
    assert (trace.stamps != ABSENT).any(axis=2).sum(axis=1).tolist() == [3, 0, 4]  # no half step
    assert trace.samples.sum(axis=1).tolist() == [12, 0, 16]
    assert trace.clock_local_ns.tolist() == [[0]] * 3  # what all ranks have
    assert trace.barrier_exits_ns.tolist() == [[0, 1]] * 3
    assert trace.clock_domains == ["a clock", "unknown", "a clock"]
    assert trace.ranks[1] == {"rank": 1}
    assert [path.name for path in tmp_path.iterdir()] == [f"{STEM}.h5"]


def test_a_run_in_blocks_has_them_again(tmp_path: Path) -> None:
    run = dataclasses.replace(RUN, measured_steps=5, block_steps=2)
    leave(tmp_path, 0, completed=8, points=2, run=run)
    assert main([str(tmp_path)]) == 0
    trace = read_trace(tmp_path / f"{run.run_id}.1.h5")
    assert (trace.run, trace.blocks.tolist()) == (run, [[5, 7], [12, 14], [19, 20]])
    assert trace.steps_completed.tolist() == [8, 0, 0]


def test_unix_time_beside_the_synchronisations_is_there_again(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=3, points=2)
    leave(tmp_path, 2, completed=4, points=3)
    trace = recovered(tmp_path)
    assert trace.unix_offset_ns is not None and trace.unix_bound_ns is not None
    assert trace.unix_offset_ns.tolist() == [[10**18, 10**18 + 1]] * 3
    assert trace.unix_bound_ns.tolist() == [[0, 1]] * 3


def test_a_rank_that_never_synchronised_leaves_no_clock(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=1, points=0)
    assert recovered(tmp_path).clock_local_ns.shape == (3, 0)


@pytest.mark.parametrize(("step", "when"), [(1, "after step 1"), (-1, "before the first step")])
def test_the_outcome_is_that_of_the_rank_that_noted_why(tmp_path: Path, step: int, when: str) -> None:
    leave(tmp_path, 0, completed=3, points=1)
    late = RankNote(rank=0, outcome=Outcome.RANK_FAIL, exception="E", message="peer gone", step=2, hostname="n1")
    cause = RankNote(rank=2, outcome=Outcome.OOM, exception="MemoryError", message="no room", step=step, hostname="n2")
    late.write(tmp_path, STEM)
    cause.write(tmp_path, STEM)
    RankNote(rank=1, outcome=Outcome.INVALID, exception="E", message="", step=-1, hostname="n").write(
        tmp_path, f"{RUN.run_id}.2"
    )
    assert main([str(tmp_path), "--stem", STEM]) == 0
    trace = read_trace(tmp_path / f"{STEM}.h5")
    assert trace.outcome is Outcome.OOM
    assert f"rank 2 on n2 {when}: MemoryError: no room" in trace.evidence


def test_a_rank_that_died_before_training_completed_nothing(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=2, points=1)
    Journal(tmp_path, STEM, 1, RUN.steps)
    assert collect(tmp_path, STEM) == 1
    assert recovered(tmp_path).steps_completed.tolist() == [2, 0, 0]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("typo", "No such file"), ("file", "Not a directory"), ("long" * 100, "File name too long")):
        assert main([str(tmp_path / name)]) == 1
        assert f"{name}: cannot be read: {reason}" in capsys.readouterr().err


def test_no_trace_is_written_without_a_completed_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=0, points=1)
    assert main([str(tmp_path)]) == 0
    assert "no rank completed a step" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main([str(tmp_path)]) == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_an_unreadable_attempt_is_named_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=2, points=1)
    leave(tmp_path, 1, completed=2, points=1)
    header = tmp_path / f"{STEM}.partial" / "rank1.json"
    header.write_text(header.read_text().replace('"seed": 0', '"seed": 8'))
    assert main([str(tmp_path)]) == 1
    assert "its journals describe different runs, and as many ranks one as the other" in capsys.readouterr().err
    leave(tmp_path, 1, completed=2, points=1)
    (tmp_path / f"{STEM}.h5").write_text("there already")
    assert main([str(tmp_path)]) == 1
    assert f"{STEM}.h5: not an HDF5 file" in capsys.readouterr().err
    assert len(list((tmp_path / f"{STEM}.partial").iterdir())) == 6


def test_of_a_node_that_was_lost_there_is_what_was_copied(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    leave(tmp_path, 1, completed=3, points=1, whole=False)
    trace = recovered(tmp_path)
    assert (trace.outcome, trace.recovered) == (Outcome.LOST, True)  # nobody says how it ended
    assert trace.steps_completed.tolist() == [4, 3, 0]
    assert "nothing is left of rank 2; of rank 1 there is what was copied last" in trace.evidence


def test_the_outcome_is_that_of_the_record_where_there_is_one(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    traces = sweep / "traces"
    traces.mkdir(parents=True)
    leave(traces, 0, completed=4, points=1, whole=False)
    ExitRecord(
        run_id=RUN.run_id, attempt=1, outcome=Outcome.NODE_FAIL, exit_status=-1, job_id="7", restart_count=0,
        nodelist="n1", begin_unix_s=1, end_unix_s=2,
    ).write(traces)  # fmt: skip
    assert main([str(sweep)]) == 0  # a sweep's folder will do
    assert read_trace(traces / f"{STEM}.h5").outcome is Outcome.NODE_FAIL


def test_a_leftover_beside_a_whole_trace_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    assert main([str(tmp_path)]) == 0
    before = (tmp_path / f"{STEM}.h5").read_bytes()
    leave(tmp_path, 0, completed=4, points=1)
    assert main([str(tmp_path)]) == 0
    assert "its trace is whole; journals beside it: removed" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [f"{STEM}.h5"]
    assert (tmp_path / f"{STEM}.h5").read_bytes() == before


def test_what_came_later_is_not_removed_beside_a_trace_that_lacks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    assert main([str(tmp_path)]) == 0
    leave(tmp_path, 1, completed=2, points=1)
    assert main([str(tmp_path)]) == 1
    assert "recovered before more of it came" in capsys.readouterr().err
    assert (tmp_path / f"{STEM}.partial").is_dir()


def test_an_attempt_that_may_still_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=4, points=1, whole=False)
    beat = tmp_path / f"{STEM}.partial" / f"n1{BEAT}"
    beat.write_text("10\n")
    assert main([str(tmp_path)]) == 0
    assert "left alone, it may still run" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.h5"))
    (beat.parent / f"n2{BEAT}").symlink_to("gone")
    os.utime(beat, (1, 1))
    assert main([str(tmp_path)]) == 0
    assert list(tmp_path.glob("*.h5"))


def test_what_was_collected_from_dead_ranks_is_recovered_however_young_its_last_copy(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    (tmp_path / f"{STEM}.partial" / f"n1{BEAT}").write_text("10\n")
    assert main([str(tmp_path)]) == 0
    assert list(tmp_path.glob("*.h5"))


def test_whether_an_attempt_lives_is_judged_by_the_clock_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This machine's clock is a day ahead of the file server's, by which a copy was made just now."""
    leave(tmp_path, 0, completed=3, points=1, whole=False)
    (tmp_path / f"{STEM}.partial" / f"n1{BEAT}").touch()
    monkeypatch.setattr(files.time, "time", lambda: tmp_path.stat().st_mtime + 86400)
    assert main([str(tmp_path)]) == 0
    assert "left alone, it may still run" in capsys.readouterr().out


@pytest.mark.parametrize("after", ["read_journals", "write_trace"])
def test_what_another_process_recovers_at_the_same_time_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], after: str
) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    real = getattr(recover_module, after)

    def overtaken(*args: Any) -> Any:
        """The other one does all of it before this call of ours."""
        monkeypatch.setattr(recover_module, after, real)
        recover_module.recover(tmp_path / f"{STEM}.partial")
        return real(*args)

    monkeypatch.setattr(recover_module, after, overtaken)
    assert main([str(tmp_path)]) == 0
    assert "another process has recovered it just now" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [f"{STEM}.h5"]


def test_folders_of_other_things_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=3, points=1)
    for name in ("film.partial", "thesis.2.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chapter").write_text("mine")
    mixed = tmp_path / f"{RUN.run_id}.2.partial"
    (mixed / "rank0.stamps").mkdir(parents=True)
    assert main([str(tmp_path)]) == 1
    stdout = capsys.readouterr()
    assert STEM in stdout.out and "film" not in stdout.out + stdout.err
    assert "thesis.2.partial: left alone, chapter in it is nothing that ranks leave" in stdout.err
    assert {path.name for path in tmp_path.rglob("chapter")} == {"chapter"}
    assert len(list(tmp_path.rglob("chapter"))) == 2 and mixed.is_dir()
    assert main([str(tmp_path), "--stem", "thesis.2"]) == 1
    assert (tmp_path / "thesis.2.partial" / "chapter").read_text() == "mine"


def test_a_trace_that_was_recovered_while_the_attempt_still_ran_makes_it_no_ok(tmp_path: Path) -> None:
    """Somebody named it by --stem; then the time limit came."""
    leave(tmp_path, 0, completed=3, points=1, whole=False)
    assert main([str(tmp_path), "--stem", STEM]) == 0
    (tmp_path / f"{STEM}.signal").write_text("SIGUSR1 at noon")
    begin = BeginRecord(run_id=STEM.rpartition(".")[0], attempt=1, job_id="7", begin_unix_s=5)
    soon = time.strftime("%FT%T", time.localtime(time.time() + 30))
    record = judge_ended(
        begin, tmp_path, AttemptOutput(error=tmp_path / "none"), exit_status=137,
        job=read_job_now(f"JobState=RUNNING EndTime={soon}", Job(job_id="7")),
    )  # fmt: skip
    assert record is not None
    assert (record.outcome, record.is_final) == (Outcome.TIMEOUT, False)
