"""Journals: what a rank leaves, whoever ends it, and what becomes of that."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpc.model.files import AttemptFiles
from hpc.model.outcome import Outcome, RankNote
from hpc.model.timestamps import ABSENT
from hpc.recovery import folders, stacks
from hpc.recovery.__main__ import main
from hpc.recovery.collect import bring_home, collect
from hpc.recovery.folders import JournalError, attempt_folder, clean, remove_dead
from hpc.recovery.journal import Journal, read_journals
from tests.unit.journals import STEM, written
from tests.unit.traces import make_run, make_trace, put

pytestmark = pytest.mark.usefixtures("places")


def test_collected_journals_hold_what_was_recorded(traces: Path) -> None:
    ranks = [written(traces, rank, completed=rank) for rank in (0, 1, 2)]
    assert [rank.steps_completed for rank in ranks] == [0, 1, 2]
    assert collect(traces, STEM) == 3
    journals = read_journals(traces / f"{STEM}.partial")
    assert [journal.facts["world"] for journal in journals] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert [journal.steps_completed for journal in journals] == [0, 1, 2]
    assert journals[2].stamps.tolist() == [*range(12), *[ABSENT] * 6]
    assert journals[2].samples.tolist() == [4, 4, ABSENT]
    assert collect(traces, STEM) == 0


def test_the_same_attempt_of_another_sweep_is_left_alone(traces: Path, tmp_path: Path) -> None:
    written(traces, 0)
    assert collect(tmp_path / "others", STEM) == 0
    assert collect(traces, STEM) == 1


def test_the_folder_has_the_age_of_the_first_rank(traces: Path) -> None:
    folder = attempt_folder(traces, STEM)
    os.utime(folder / "begun", (1, 1))
    assert attempt_folder(traces, STEM) == folder
    assert (folder / "begun").stat().st_mtime == 1


def test_stacks_are_collected_and_a_trace_and_a_note_that_could_not_be_written(traces: Path) -> None:
    folder = attempt_folder(traces, STEM)
    for name in ("rank0.stacks", "rank1.stacks", f"{STEM}.h5", f"{STEM}.rank0.json", "nccl.n1.77"):
        (folder / name).write_text(name)
    (traces / f"{STEM}.rank0.json").write_text("the first one")
    assert collect(traces, STEM) == 0
    assert (traces / f"{STEM}.partial" / "rank1.stacks").read_text() == "rank1.stacks"
    assert (traces / f"{STEM}.h5").read_text() == f"{STEM}.h5"
    assert (traces / f"{STEM}.rank0.json").read_text() == "the first one"
    assert not folder.exists()


@pytest.mark.parametrize("note_kept", [True, False], ids=["note on the node", "note in the traces"])
def test_the_note_that_names_the_place_of_a_trace_goes_when_the_trace_is_home(traces: Path, note_kept: bool) -> None:
    trace = make_trace(make_run(ranks_per_node=2))
    stem = f"{trace.run_id}.{trace.attempt}"
    folder = attempt_folder(traces, stem)
    path = put(folder, trace)
    note = RankNote(rank=0, outcome=Outcome.RANK_FAIL, exception="TraceKept", message="no room", step=9, hostname="n1",
                    local_copies=f"n1:{path}")  # fmt: skip
    note.write(folder if note_kept else traces, stem)
    replace(note, rank=1, exception="ValueError", local_copies="").write(traces, stem)
    assert collect(traces, stem) == 0
    assert [path.name for path in AttemptFiles.of_stem(traces, stem).rank_notes()] == [f"{stem}.rank1.json"]


def test_a_note_that_cannot_be_removed_makes_no_failure_of_a_trace_that_is_home(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = make_trace(make_run())
    stem = f"{trace.run_id}.{trace.attempt}"
    folder = attempt_folder(traces, stem)
    note = RankNote(rank=0, outcome=Outcome.RANK_FAIL, exception="TraceKept", message="no room", step=9, hostname="n1",
                    local_copies=f"n1:{put(folder, trace)}")  # fmt: skip
    note.write(traces, stem)
    AttemptFiles.of_stem(traces, stem).exit_record.touch()
    unlink = Path.unlink

    def keeping_notes(path: Path, *, missing_ok: bool = False) -> None:
        if path.name.endswith(".rank0.json") and path.parent == traces:
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", keeping_notes)
    [line] = bring_home(traces)
    assert "has been brought to the traces" in line and (traces / f"{stem}.h5").exists()


def test_the_note_stays_as_long_as_the_trace_is_not_whole(traces: Path) -> None:
    folder = attempt_folder(traces, STEM)
    (folder / f"{STEM}.h5").write_text("cut short")
    note = RankNote(rank=0, outcome=Outcome.RANK_FAIL, exception="TraceKept", message="no room", step=9, hostname="n1",
                    local_copies=f"n1:{folder}")  # fmt: skip
    note.write(traces, STEM)
    collect(traces, STEM)
    assert (traces / f"{STEM}.rank0.json").exists()


def test_a_trace_that_was_recovered_before_the_whole_one_came_is_not_overwritten(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace_path = attempt_folder(traces, STEM) / f"{STEM}.h5"
    trace_path.write_text("whole")
    (traces / trace_path.name).write_text("recovered")
    assert main(["collect", "--stem", STEM, "--to", str(traces)]) == 0
    assert f"another trace of it is there; kept: {socket.gethostname()}:{trace_path}" in capsys.readouterr().err
    assert (traces / trace_path.name).read_text() == "recovered"


def test_files_that_cannot_be_moved_stay_and_are_named(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = written(traces, 0)
    (traces / f"{STEM}.partial").write_text("in the way")
    assert main(["collect", "--stem", STEM, "--to", str(traces)]) == 1
    line = f"kept: {socket.gethostname()}:{made.folder}"
    assert line in capsys.readouterr().err
    assert (traces / f"{STEM}.kept").read_text() == f"{line}\n"
    (traces / f"{STEM}.partial").unlink()
    assert collect(traces, STEM) == 1


def test_a_rank_that_ends_well_leaves_nothing(traces: Path, places: list[Path]) -> None:
    first, second = written(traces, 0), written(traces, 1)
    first.remove()
    assert first.samples[0] == 4  # the mapping outlives the file
    assert len(list(places[0].iterdir())) == 1
    second.remove()
    assert list(places[0].iterdir()) == []


def test_a_rank_whose_journal_lies_elsewhere_than_its_stacks_leaves_nothing(
    traces: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node-local memory takes an empty file of stacks, and has no room for stamps."""
    stack_file = stacks.Stacks(traces, STEM, 0)
    monkeypatch.setattr(folders, "_bases", lambda: places[::-1])
    journal = Journal(traces, STEM, 0, 4)
    assert journal.folder.parent == places[1] and len(list(places[0].iterdir())) == 1
    journal.remove()
    assert [path for place in places for path in place.iterdir()] == []
    del stack_file


def test_clean_removes_the_dead_and_leaves_the_living(
    traces: Path, places: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    alive = written(traces, 0)
    program = f"""
from pathlib import Path
from hpc.recovery import folders
from hpc.recovery.journal import Journal
folders._bases = lambda: [Path({str(places[0])!r})]
Journal(Path({str(traces)!r}), {STEM!r}, 1, 3).note()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert clean() == 1
    assert main(["clean"]) == 0
    assert "0 dead ranks" in capsys.readouterr().out
    assert alive.steps_completed == 2
    assert collect(traces, STEM) == 1


def test_a_rank_that_begins_is_not_cleaned_away(
    traces: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrappers see who holds the node's folder while a rank makes its first file, and while ranks are removed."""
    refused = []

    def is_refused(kind: int) -> None:
        descriptor = os.open(places[0], os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        os.close(descriptor)
        refused.append(kind)

    def making(path: Path) -> int:
        is_refused(fcntl.LOCK_EX)
        return locked_file(path)

    def removing(folder: Path) -> int:
        is_refused(fcntl.LOCK_SH)
        return remove_dead(folder)

    locked_file = stacks._locked_file
    monkeypatch.setattr(stacks, "_locked_file", making)
    monkeypatch.setattr(folders, "remove_dead", removing)
    alive = stacks.Stacks(traces, STEM, 0)
    assert clean() == 0
    assert refused == [fcntl.LOCK_EX, fcntl.LOCK_SH]
    assert (attempt_folder(traces, STEM) / "rank0.stacks").exists(), alive


def test_what_was_forgotten_on_the_node_goes_when_the_next_attempt_begins(traces: Path) -> None:
    old, young, trace_path = (attempt_folder(traces, stem) for stem in ("old.1", "young.1", "kept.1"))
    for folder, days in ((old, 8), (young, 6), (trace_path, 8)):
        for name in ("rank0.json", "rank0.stamps"):
            (folder / name).write_text("")
        os.utime(folder / "begun", (time.time() - days * 86400,) * 2)
    (trace_path / "kept.1.h5").write_text("")
    attempt_folder(traces, "young.1")
    assert old.exists()  # nothing begins there
    attempt_folder(traces, STEM)
    assert not old.exists()
    assert (young / "rank0.stamps").exists()
    assert [path.name for path in trace_path.iterdir() if path.name != "begun"] == ["kept.1.h5"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "rank0.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "rank0.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "rank0.json").write_text("{}"), "no journal known here"),
        (lambda folder: os.truncate(folder / "rank0.stamps", 3 * 7 * 8 + 1), "169 bytes are more than 3 steps make"),
    ],
)
def test_a_broken_journal_is_named(traces: Path, spoil: object, says: str) -> None:
    written(traces, 0)
    collect(traces, STEM)
    folder = traces / f"{STEM}.partial"
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(JournalError, match=f"rank0.stamps: .*{says}"):
        read_journals(folder)


def test_collect_prints_the_number_of_journals_and_names_a_folder_without_any(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(traces, 0)
    elsewhere = traces.with_name("traecs")
    nothing = f"0 ranks: {socket.gethostname()} keeps none of it for {elsewhere}"
    for folder, line in ((elsewhere, nothing), (traces, "1 ranks")):
        assert main(["collect", "--stem", STEM, "--to", str(folder)]) == 0
        assert capsys.readouterr().out == f"{STEM}: collected the journals of {line}\n"
    assert not elsewhere.exists()
