"""The note of a rank that fails: beside those of others, where files are used up, where the folder is gone."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpc.backends import InvalidRun
from hpc.model.files import TracesFolder
from hpc.model.outcome import Outcome, RankNote, read_rank_note
from hpc.model.verdict import Evidence, cause, decide
from hpc.recovery import folders
from hpc.run.rank_state import (
    EXIT_STATUS,
    MAX_NOTES,
    MAX_SECONDARY_NOTES,
    Rank,
    RankArguments,
    ReservedFiles,
    attempted,
)
from tests.unit.traces import make_run

STEM = "1n2g_mpi_delay_r1.1"


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TracesFolder:
    monkeypatch.setattr(folders, "_bases", lambda: [tmp_path / "rankwise-7"])
    (tmp_path / "traces").mkdir()
    return TracesFolder.at_start(tmp_path / "traces", STEM)


def rank_of(traces: TracesFolder, number: int, step: int = 6) -> Rank:
    arguments = RankArguments(run=None, attempt=1, traces=traces.path, script=None, simulate_nodes=False)
    rank = Rank(arguments, make_run())
    rank.number, rank.folder, rank.training = number, traces, True
    rank.journal = Mock(steps_completed=step + 1, unmeasured=[0])
    return rank


def notes(traces: TracesFolder) -> list[RankNote]:
    return [read_rank_note(path) for path in sorted(traces.path.glob(f"{STEM}.rank*.json"))]


def test_the_cause_is_named_though_a_rank_that_lost_it_was_first(traces: TracesFolder) -> None:
    rank_of(traces, 0, step=5).fail(ConnectionResetError("Connection reset by peer"))
    rank_of(traces, 1).fail(ValueError("my own fault"))
    assert [(note.rank, note.notes_before) for note in notes(traces)] == [(0, 0), (1, 1)]
    outcome, sentences = decide(Evidence(exit_status=1, trace=False, steps=6, notes=notes(traces)))
    assert outcome is Outcome.RANK_FAIL
    assert sentences[0].startswith("rank 1 ") and "my own fault" in sentences[0]


def test_the_first_note_counts_among_ranks_that_failed_by_themselves(traces: TracesFolder) -> None:
    """What a library raises on a rank whose peer is gone may read like a failure of its own."""
    rank_of(traces, 1).fail(ValueError("the cause"))
    rank_of(traces, 0).fail(RuntimeError("a collective failed"))
    first = cause(notes(traces))
    assert first is not None and first.rank == 1


def test_only_some_of_many_failing_ranks_leave_a_note(traces: TracesFolder) -> None:
    for rank in range(MAX_SECONDARY_NOTES + 3):
        rank_of(traces, rank).fail(ConnectionResetError())
    assert len(notes(traces)) == MAX_SECONDARY_NOTES
    for rank in range(100, 100 + MAX_NOTES):
        rank_of(traces, rank).fail(ValueError("all alike"))
    assert len(notes(traces)) == MAX_NOTES
    first = cause(notes(traces))
    assert first is not None and first.rank == 100


def test_a_note_is_left_when_all_file_descriptors_are_used(traces: TracesFolder) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved, files = ReservedFiles(), []
    max_files = (
        max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 16
    )  # other tests may have left many open
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        reserved.release()
        rank_of(traces, 1).fail(caught.value)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for file in files:
            os.close(file)
    (note,) = notes(traces)
    assert (note.rank, note.exception) == (1, "OSError")


def test_an_endless_message_is_cut(traces: TracesFolder, capsys: pytest.CaptureFixture[str]) -> None:
    rank_of(traces, 1).fail(ValueError("a tensor of " + "0." * (1 << 22)))
    (note,) = notes(traces)  # whoever reads notes reads none of more than 4 MiB
    assert note.message.startswith("a tensor of 0.0.")
    assert capsys.readouterr().err.endswith("rank 1: rank_fail after step 6\n")


@pytest.mark.parametrize("another", [False, True])
def test_the_note_stays_on_the_node_when_the_folder_is_gone(
    traces: TracesFolder, tmp_path: Path, another: bool
) -> None:
    traces.path.rename(tmp_path / "away")
    if another:
        traces.path.mkdir()
    rank_of(traces, 1).fail(ValueError("no folder"))
    assert not list(tmp_path.glob("traces/*"))
    (path,) = (tmp_path / "rankwise-7").glob(f"*/{STEM}.rank1.json")
    assert read_rank_note(path).message == "no folder"


def test_all_ranks_end_when_the_report_fails(traces: TracesFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    rank = rank_of(traces, 1)
    rank.comm = Mock(Abort=ended.append)
    monkeypatch.setattr(Rank, "report", Mock(side_effect=RuntimeError("cannot report")))
    assert rank.fail(MemoryError()) == EXIT_STATUS[Outcome.OOM]
    assert ended == [EXIT_STATUS[Outcome.OOM]]


def test_a_missing_optional_part_is_a_problem_unless_the_run_is_invalid() -> None:
    problems: dict[str, str] = {}
    assert attempted(problems, "number", lambda: int("x"), 7) == 7
    assert problems == {"number": "ValueError: invalid literal for int() with base 10: 'x'"}

    def refuse() -> int:
        raise InvalidRun("another transport")

    with pytest.raises(InvalidRun):
        attempted(problems, "preflight", refuse, 7)
