"""Copies of living ranks' journals: what they hold after each look, and what happens when they cannot be written."""

from __future__ import annotations

import os
import shutil
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, STAMPS
from hpc.node_agent import copies as module
from hpc.node_agent.copies import Copies, RankCopy
from hpc.recovery.collect import collect
from hpc.recovery.folders import BEAT
from hpc.recovery.journal import Journal, RankJournal, read_journals

STEM = "1n2g_mpi_delay_r1.1"
STEPS, WIDTH = 6, len(STAMPS)


pytestmark = pytest.mark.usefixtures("places")


@pytest.fixture
def partial(traces: Path) -> Path:
    return traces / f"{STEM}.partial"


@pytest.fixture
def rank(traces: Path) -> Iterator[Journal]:
    made = Journal(traces, STEM, 0, STEPS)
    yield made
    made.remove()


def step(made: Journal, number: int) -> None:
    """One step as a rank records it: its stamps, the next step's beginning, then that it is complete."""
    made.stamps[WIDTH * number : WIDTH * number + WIDTH] = array("q", range(10 * number + 1, 10 * number + 1 + WIDTH))
    if number + 1 < STEPS:
        made.stamps[WIDTH * (number + 1)] = 10 * number + WIDTH
    made.samples[number] = 4


def copied(partial: Path) -> RankJournal:
    (journal,) = read_journals(partial)
    return journal


def test_each_look_copies_the_steps_completed_since_the_last(rank: Journal, partial: Path) -> None:
    copy = RankCopy(rank.folder, partial, 0)
    step(rank, 0)
    copy.look()
    first = copied(partial)
    assert (first.steps_completed, first.whole) == (1, False)
    assert first.stamps.tolist() == [*range(1, 7), *[ABSENT] * 30]  # not the beginning of the step it is in
    for number in (1, 2):
        step(rank, number)
    copy.look()
    later = copied(partial)
    assert later.steps_completed == 3
    assert later.stamps.tolist()[: 3 * WIDTH] == list(rank.stamps[: 3 * WIDTH])
    assert later.samples.tolist() == [4] * 3 + [ABSENT] * 3
    copy.look()
    assert copied(partial) == later
    for number in (3, 4, 5):
        step(rank, number)
    copy.look()
    assert copied(partial).stamps.tolist() == list(rank.stamps)


def test_rows_are_on_the_disk_before_they_count_as_complete(
    rank: Journal, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RankCopy(rank.folder, partial, 0)
    copy.look()
    events: list[str] = []
    real_pwrite, real_sync = os.pwrite, os.fdatasync

    def pwrite(file: int, content: bytes, offset: int) -> int:
        events.append("rows" if offset < STEPS * WIDTH * 8 else "complete")
        return real_pwrite(file, content, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", lambda file: (events.append("flushed"), real_sync(file)))
    step(rank, 0)
    copy.look()
    assert events == ["rows", "flushed", "complete", "flushed"]


def test_a_copy_of_a_rank_that_goes_on_is_whole_at_any_moment(traces: Path, partial: Path) -> None:
    steps = 3000
    made = Journal(traces, STEM, 0, steps)

    def train() -> None:
        for number in range(steps):
            for column in range(WIDTH):
                made.stamps[WIDTH * number + column] = 10 * number + column + 1
            made.samples[number] = 4

    copy, training = RankCopy(made.folder, partial, 0), threading.Thread(target=train)
    copy.look()
    training.start()
    seen = [0]
    while seen[-1] < steps:
        copy.look()
        journal = copied(partial)
        seen.append(journal.steps_completed)
        begun, done = seen[-2] * WIDTH, seen[-1] * WIDTH
        expected = [10 * number + column + 1 for number in range(seen[-2], seen[-1]) for column in range(WIDTH)]
        assert journal.stamps[begun:done].tolist() == expected
        assert set(journal.samples[seen[-1] :]) <= {ABSENT}
    training.join()
    assert seen == sorted(seen)
    made.remove()


def test_stamps_resolved_later_by_a_device_are_copied_later(rank: Journal, partial: Path) -> None:
    copy = RankCopy(rank.folder, partial, 0)
    rank.samples[0] = rank.samples[1] = 4
    copy.look()
    assert copied(partial).steps_completed == 2
    assert set(copied(partial).stamps) == {ABSENT}
    for row in (0, WIDTH):  # as a timer on a device stores them: inner and last ones of all rows first
        rank.stamps[row + BATCH_READY], rank.stamps[row + END] = 7, 8
    rank.stamps[BEGIN] = 6
    copy.look()
    assert copied(partial).stamps.tolist()[: 2 * WIDTH : WIDTH] == [6, ABSENT]
    rank.stamps[WIDTH + BEGIN] = 8
    copy.look()
    assert copied(partial).stamps.tolist() == list(rank.stamps)


def test_a_helper_killed_while_it_begins_a_copy_leaves_no_stamps_without_a_header(
    rank: Journal, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_fill", killed)
    step(rank, 0)
    with pytest.raises(KeyboardInterrupt):
        RankCopy(rank.folder, partial, 0).look()
    (journal,) = read_journals(partial)
    assert journal.steps_completed == 0


def test_the_header_is_copied_again_when_it_has_changed(rank: Journal, partial: Path) -> None:
    copy = RankCopy(rank.folder, partial, 0)
    rank.note(clock=[1])
    copy.look()
    assert copied(partial).facts["clock"] == [1]
    rank.note(clock=[1, 2])
    copy.look()
    assert copied(partial).facts["clock"] == [1, 2]


def test_a_rank_without_a_journal_is_waited_for(traces: Path, partial: Path) -> None:
    copies = Copies({0: traces / "nothing"}, partial, 10.0)
    copies.look()
    assert not partial.exists()


def test_copies_never_replace_collected_journals(traces: Path, rank: Journal, partial: Path) -> None:
    early, late = RankCopy(rank.folder, partial, 0), RankCopy(rank.folder, partial, 0)
    step(rank, 0)
    early.look()
    step(rank, 1)
    assert late._opened()
    os.link(rank.folder / "rank0.stamps", rank.folder / "seen")  # as if they looked just before the removal
    assert collect(traces, STEM) == 1
    rank.samples[1] = ABSENT  # what they would copy now is less
    early.look()
    late.look()
    assert (copied(partial).steps_completed, copied(partial).whole) == (2, True)


def test_nothing_is_copied_after_collection_and_recovery(traces: Path, rank: Journal, partial: Path) -> None:
    late = RankCopy(rank.folder, partial, 0)
    assert late._opened()
    step(rank, 0)
    collect(traces, STEM)
    shutil.rmtree(partial)
    late.look()
    assert not partial.exists()


def test_a_failed_copy_is_reported_once_and_tried_again(
    rank: Journal, partial: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    partial.write_text("a file where the folder should be")
    reports: list[dict[str, object]] = []
    copies = Copies({0: rank.folder}, partial, 10.0, lambda **facts: reports.append(facts))
    step(rank, 0)
    copies.look()
    copies.look()
    stderr = capfd.readouterr().err
    assert stderr.count("cannot be copied to the traces, tried again") == 1
    assert "File exists" in stderr
    assert reports == [{"failed": f"{partial}: File exists"}]
    partial.unlink()
    copies.look()
    assert copied(partial).steps_completed == 1
    assert (partial / f"{os.uname().nodename}{BEAT}").read_text() == "10\n"


def test_two_simulated_nodes_share_a_folder_and_a_node_name(traces: Path, partial: Path) -> None:
    journals = [Journal(traces, STEM, number, STEPS) for number in (0, 1)]
    first, second = (Copies({number: journals[0].folder}, partial, 10.0) for number in (0, 1))
    for journal in journals:
        step(journal, 0)
    first.look()
    second.look()
    assert [journal.steps_completed for journal in read_journals(partial)] == [1, 1]
    first.remove()
    assert [journal.facts["rank"] for journal in read_journals(partial)] == [1]
    second.remove()
    assert not partial.exists()
    for journal in journals:
        journal.remove()


@pytest.mark.parametrize("remove", [False, True])
def test_the_end_waits_for_a_last_look_or_the_removal(rank: Journal, partial: Path, remove: bool) -> None:
    copies = Copies({0: rank.folder}, partial, 3600)
    thread = threading.Thread(target=copies.run)
    thread.start()
    step(rank, 0)
    copies.end(remove=remove)
    assert partial.exists() != remove
    assert remove or copied(partial).steps_completed == 1
    thread.join()
