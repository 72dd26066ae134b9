from __future__ import annotations

from io import BufferedReader
from pathlib import Path

import pytest

from hpc.recovery import journal as journal_file
from hpc.recovery.folders import PARTIAL, attempt_folder
from hpc.recovery.journal import Journal
from launch.follow.follower import ProgressReader
from launch.follow.view import StepCount
from tests.unit.journals import complete

STEM = "1n2g_mpi_delay_r1.1"
FORTY = StepCount(completed=40, planned=100, median_step_s=2.0)

pytestmark = pytest.mark.usefixtures("places")


def journal(traces: Path, rank: int, completed: int) -> Journal:
    opened = Journal(traces, STEM, rank, 100)
    complete(opened, range(completed))
    return opened


def move_to_copies(traces: Path) -> None:
    """Makes the journals copies of a node that is not this one."""
    attempt_folder(traces, STEM).rename(traces / f"{STEM}{PARTIAL}")


def test_steps_come_from_this_nodes_journal(traces: Path) -> None:
    reader, first = ProgressReader(traces), journal(traces, 0, 3)
    assert reader.read(STEM) == StepCount(completed=3, planned=100)
    complete(first, range(40))
    assert reader.read(STEM) == FORTY


def test_steps_come_from_copies_of_another_node(traces: Path) -> None:
    journal(traces, 3, 40)
    move_to_copies(traces)
    assert ProgressReader(traces).read(STEM) == FORTY


def test_an_attempt_without_files_has_no_step_count(traces: Path) -> None:
    assert ProgressReader(traces).read(STEM) is None


def test_the_last_count_remains_after_the_files_are_removed(traces: Path) -> None:
    reader, first = ProgressReader(traces), journal(traces, 0, 100)
    assert reader.read(STEM) is not None
    first.remove()
    assert reader.read(STEM) == StepCount(completed=100, planned=100)
    reader.forget(STEM)
    assert reader.read(STEM) is None


def test_each_look_opens_the_file_of_one_rank(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(20):
        journal(traces, rank, 5)
    move_to_copies(traces)
    opened: list[str] = []
    really_open = journal_file.open_regular

    def counting(path: Path) -> BufferedReader:
        file = really_open(path)
        opened.append(path.name)
        return file

    monkeypatch.setattr(journal_file, "open_regular", counting)
    reader = ProgressReader(traces)
    for _ in range(3):
        reader.read(STEM)
    assert opened == ["rank0.stamps"] * 3


def test_an_unreadable_file_is_no_error(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ProgressReader(traces)
    journal(traces, 0, 30)
    move_to_copies(traces)
    assert reader.read(STEM) is not None

    def stale(path: Path) -> BufferedReader:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(journal_file, "open_regular", stale)
        assert reader.read(STEM) is None
    assert reader.read(STEM) == StepCount(completed=30, planned=100, median_step_s=2.0)
