"""The files of attempts: their names, and the removal of parts that killed writers left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc.model.files import ABANDONED_S, STALE_S, AttemptFiles, remove_stale_parts
from hpc.model.outcome import ExitRecord, Outcome
from hpc.recovery.folders import BEAT
from hpc.recovery.recover import main, tidy
from tests.unit.dead_ranks import RUN, STEM, leave

HERE = os.uname().nodename
STALE = (
    f".{STEM}.h5.n1.77.part", f".{STEM}.exit.json.part", f"{STEM}.exit.json.part", f".{STEM}.rank3.json.part",
    f".{STEM}.hang.json.part", f".{STEM}.stacks.txt.part", f".{STEM}.rank0.json.node-1.cluster.org.5.part",
)  # fmt: skip
FOREIGN = (
    f"{STEM}.h5", f"{STEM}.exit.json", f"{STEM}.h5.bak", f".{STEM}.notes.part", "mine.part", ".mine.part", "plan.part",
    f"{STEM}.partial.over", f".{STEM}.partial", ".x.h5.n1.77.part",
)  # fmt: skip


def make(traces: Path, names: tuple[str, ...], age_s: float) -> None:
    for name in names:
        (traces / name).write_text("half")
        os.utime(traces / name, (time.time() - age_s,) * 2)


def has_ended(traces: Path) -> None:
    ExitRecord(
        run_id=RUN.run_id, attempt=1, outcome=Outcome.OK, exit_status=0, job_id="7", restart_count=0, nodelist="n1",
        begin_unix_s=1, end_unix_s=2,
    ).write(traces)  # fmt: skip


def test_parts_of_an_attempt_that_has_ended_go_and_nothing_foreign(tmp_path: Path) -> None:
    has_ended(tmp_path)
    make(tmp_path, STALE, 2 * STALE_S)
    make(tmp_path, FOREIGN, 2 * ABANDONED_S)
    (tmp_path / f".{STEM}.partial.n1.77.over").mkdir()
    (tmp_path / f".{STEM}.partial.n1.77.over" / "rank0.json").write_text("{}")
    os.utime(tmp_path / f".{STEM}.partial.n1.77.over", (1, 1))
    (tmp_path / f".{STEM}.h5.n9.9.part").symlink_to(tmp_path / "mine.part")
    assert sorted(remove_stale_parts(tmp_path)) == sorted([*STALE, f".{STEM}.partial.n1.77.over"])
    remaining = {path.name for path in tmp_path.iterdir()}
    assert remaining == {*FOREIGN, f".{STEM}.h5.n9.9.part"}


@pytest.mark.parametrize(
    ("ended", "age_s", "goes"),
    [
        (True, STALE_S / 2, False),
        (True, STALE_S * 2, True),
        (False, STALE_S * 2, False),
        (False, ABANDONED_S * 2, True),
    ],
)
def test_a_part_that_somebody_may_still_write_stays(tmp_path: Path, ended: bool, age_s: float, goes: bool) -> None:
    if ended:
        has_ended(tmp_path)
    make(tmp_path, STALE, age_s)
    assert (sorted(remove_stale_parts(tmp_path)) == sorted(STALE)) is goes
    assert all((tmp_path / name).exists() is not goes for name in STALE)


def test_a_part_of_a_process_that_lives_here_stays_however_old(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = (f".{STEM}.h5.{HERE}.{os.getpid()}.part", f".{STEM}.h5.{HERE}.{dead.pid}.part")
    make(tmp_path, names, 2 * ABANDONED_S)
    assert remove_stale_parts(tmp_path) == [names[1]]


def test_only_the_attempt_that_was_named(tmp_path: Path) -> None:
    make(tmp_path, STALE, 2 * ABANDONED_S)
    assert remove_stale_parts(tmp_path, f"{RUN.run_id}.2") == []
    assert len(remove_stale_parts(tmp_path, STEM)) == len(STALE)


def test_recovering_removes_and_lists_stale_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, STALE[:1], 2 * ABANDONED_S)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{STALE[0]}: removed; its writer was killed\n"
    assert list(tmp_path.iterdir()) == []


def test_a_removal_that_was_killed_does_not_keep_the_next_from_it(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    half = tmp_path / f".{STEM}.partial.over"  # as versions before this one called it
    half.mkdir()
    (half / "rank9.json").write_text("{}")
    assert main([str(tmp_path)]) == 0
    assert not list(tmp_path.glob("*.partial"))
    os.utime(half, (1, 1))
    assert main([str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{STEM}.h5"]


def test_copies_beside_a_whole_trace_go_once_nobody_lives(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    assert main([str(tmp_path)]) == 0
    leave(tmp_path, 0, completed=4, points=1, whole=False)  # a copier that was killed before it removed its copies
    beat = tmp_path / f"{STEM}.partial" / f"n1{BEAT}"
    beat.write_text("10\n")
    assert tidy(tmp_path) == []  # its run may not have ended
    has_ended(tmp_path)
    assert tidy(tmp_path) == [f"{STEM}: its trace is whole; journals beside it: removed"]
    assert not list(tmp_path.glob("*.partial"))


def test_tidying_leaves_copies_without_a_trace(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=4, points=1)
    assert tidy(tmp_path) == []
    assert (tmp_path / f"{STEM}.partial").is_dir()


def test_a_stem_names_run_and_attempt() -> None:
    files = AttemptFiles.of_stem(Path("traces"), "2n1g_a.py_r1.12")
    assert (files.run_id, files.attempt, files.stem) == ("2n1g_a.py_r1", 12, "2n1g_a.py_r1.12")
    assert files.trace == Path("traces/2n1g_a.py_r1.12.h5")
    with pytest.raises(ValueError, match="not of the form"):
        AttemptFiles.of_stem(Path("traces"), "plan")
