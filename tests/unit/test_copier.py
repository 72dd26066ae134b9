"""Copies of living ranks' journals: what they hold after each look, and what happens when they cannot be written."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc.measure.world import World
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, STAMPS
from hpc.node_agent import copier, copying
from hpc.node_agent.copier import Copies, RankCopy
from hpc.node_agent.copying import Copier, start_copier
from hpc.recovery import folders
from hpc.recovery.collect import collect
from hpc.recovery.folders import BEAT
from hpc.recovery.journal import Journal
from hpc.recovery.journal_reader import RankJournal, read_journals

STEM = "1n2g_mpi_delay_r1.1"
STEPS, WIDTH = 6, len(STAMPS)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Journals of these tests lie in a folder of their own."""
    base = tmp_path / "shm" / "rankwise-7"
    base.parent.mkdir()
    monkeypatch.setattr(folders, "_bases", lambda: [base])
    return base


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


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


def wait_until(what: Callable[[], object]) -> None:
    """Polls; the limit is there for a test that fails."""
    limit = time.monotonic() + 60
    while not what():
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.01)


def copied(partial: Path) -> RankJournal:
    (found,) = read_journals(partial)
    return found


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


def test_rows_are_on_the_disk_before_they_are_said_to_be_complete(
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
        found = copied(partial)
        seen.append(found.steps_completed)
        begun, done = seen[-2] * WIDTH, seen[-1] * WIDTH
        wanted = [10 * number + column + 1 for number in range(seen[-2], seen[-1]) for column in range(WIDTH)]
        assert found.stamps[begun:done].tolist() == wanted
        assert set(found.samples[seen[-1] :]) <= {ABSENT}
    training.join()
    assert seen == sorted(seen)
    made.remove()


def test_before_the_first_step_there_is_an_empty_journal(rank: Journal, partial: Path) -> None:
    RankCopy(rank.folder, partial, 0).look()
    assert copied(partial).steps_completed == 0
    assert set(copied(partial).stamps) == {ABSENT}


def test_stamps_that_a_device_resolves_later_are_copied_later(rank: Journal, partial: Path) -> None:
    copy = RankCopy(rank.folder, partial, 0)
    rank.samples[0] = rank.samples[1] = 4
    copy.look()
    assert copied(partial).steps_completed == 2
    assert set(copied(partial).stamps) == {ABSENT}
    for row in (0, WIDTH):  # as DeviceTimer.resolve stores them: inner and last ones of all rows first
        rank.stamps[row + BATCH_READY], rank.stamps[row + END] = 7, 8
    rank.stamps[BEGIN] = 6
    copy.look()
    assert copied(partial).stamps.tolist()[: 2 * WIDTH : WIDTH] == [6, ABSENT]
    rank.stamps[WIDTH + BEGIN] = 8
    copy.look()
    assert copied(partial).stamps.tolist() == list(rank.stamps)


def test_many_steps_are_copied_in_pieces(traces: Path, partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "_CHUNK_STEPS", 4)
    made = Journal(traces, STEM, 0, 11)
    made.stamps[:] = array("q", range(1, 11 * WIDTH + 1))
    made.samples[:10] = array("q", [4] * 10)
    RankCopy(made.folder, partial, 0).look()
    assert copied(partial).steps_completed == 10
    assert copied(partial).stamps.tolist() == [*range(1, 10 * WIDTH + 1), *[ABSENT] * WIDTH]
    made.remove()


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


def test_collected_journals_are_better_than_copies_and_stay(traces: Path, rank: Journal, partial: Path) -> None:
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


def test_a_late_copier_makes_nothing_of_what_was_collected_and_recovered(
    traces: Path, rank: Journal, partial: Path
) -> None:
    late = RankCopy(rank.folder, partial, 0)
    assert late._opened()
    step(rank, 0)
    collect(traces, STEM)
    shutil.rmtree(partial)
    late.look()
    assert not partial.exists()


def test_what_cannot_be_written_is_said_once_and_tried_again(
    rank: Journal, partial: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    partial.write_text("a file where the folder should be")
    copies = Copies({0: rank.folder}, partial, 10.0)
    step(rank, 0)
    copies.look()
    copies.look()
    said = capfd.readouterr()
    assert said.err.count("cannot be copied to the traces, tried again") == 1
    assert "File exists" in said.err
    assert [json.loads(line)["failed"] for line in said.out.splitlines()] == [f"{partial}: File exists"]
    partial.unlink()
    copies.look()
    assert copied(partial).steps_completed == 1
    assert (partial / f"{os.uname().nodename}{BEAT}").read_text() == "10\n"


def test_a_copy_whose_file_system_came_back_is_gone_on_with(
    rank: Journal, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RankCopy(rank.folder, partial, 0)
    step(rank, 0)
    copy.look()
    step(rank, 1)
    os.close(copy._target)  # as a stale handle: the next write fails
    with pytest.raises(OSError, match="Bad file descriptor"):
        copy.look()
    copy.look()
    assert copied(partial).steps_completed == 2


def test_two_copiers_share_a_folder_and_a_node_name(traces: Path, partial: Path) -> None:
    made = [Journal(traces, STEM, number, STEPS) for number in (0, 1)]
    first, second = (Copies({number: made[0].folder}, partial, 10.0) for number in (0, 1))
    for one in made:
        step(one, 0)
    first.look()
    second.look()
    assert [found.steps_completed for found in read_journals(partial)] == [1, 1]
    first.remove()
    assert [found.facts["rank"] for found in read_journals(partial)] == [1]
    second.remove()
    assert not partial.exists()
    for one in made:
        one.remove()


def test_a_life(rank: Journal, partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process: looks now and then, gone with its copies when told, however long a busy machine takes for it."""
    monkeypatch.setattr(copying, "STOP_S", 300.0)
    step(rank, 0)
    made = Copier({0: rank.folder}, partial, [], interval_s=0.05)
    made.start()
    process = made._process
    assert process is not None
    wait_until(lambda: list(partial.glob(f"*{BEAT}")))
    assert copied(partial).steps_completed == 1
    facts = made.facts()
    assert facts["interval_s"] == 0.05 and facts["placed"] and "problem" not in facts
    made.end()
    assert process.returncode == 0
    assert not partial.exists()


def test_a_signal_before_the_end_has_it_copy_at_once_and_others_do_nothing(rank: Journal, partial: Path) -> None:
    made = Copier({0: rank.folder}, partial, [], interval_s=3600)
    made.start()
    process = made._process
    assert process is not None
    wait_until(lambda: "placed" in made.facts())  # it hears signals by then
    for number, each in enumerate((signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)):
        step(rank, number)
        process.send_signal(each)
    assert not partial.exists()
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: list(partial.glob(f"*{BEAT}")))
    assert copied(partial).steps_completed == 4
    step(rank, 4)
    (found,) = partial.glob(f"*{BEAT}")
    found.unlink()
    process.send_signal(signal.SIGTERM)
    wait_until(found.exists)
    assert copied(partial).steps_completed == 5
    made.end()


def test_it_outlives_its_rank_copies_a_last_time_and_ends(traces: Path, place: Path, partial: Path) -> None:
    program = f"""
import os, sys, time
from pathlib import Path
from hpc.recovery import folders
from hpc.node_agent.copying import Copier
from hpc.recovery.journal import Journal
folders._bases = lambda: [Path({str(place)!r})]
made = Journal(Path({str(traces)!r}), {STEM!r}, 0, {STEPS})
copier = Copier({{0: made.folder, 1: made.folder}}, Path({str(partial)!r}), [], interval_s=3600)
copier.start()
made.samples[0] = made.samples[1] = 4
while "placed" not in copier.facts():
    time.sleep(0.01)
print(copier._process.pid, flush=True)
time.sleep(600)
"""
    first = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    process = int(first.stdout.readline())
    other = Journal(traces, STEM, 1, STEPS)  # a rank that lives on; this process stands for it
    first.kill()
    first.wait()
    first.stdout.close()
    beat = partial / f"{os.uname().nodename}{BEAT}"
    for _ in range(5):  # it goes on
        os.kill(process, signal.SIGTERM)
        wait_until(beat.exists)
        beat.unlink()
    other.samples[0] = 4
    fcntl.flock(other._file, fcntl.LOCK_UN)  # and now that one is gone, too
    wait_until(lambda: _is_zombie(process))
    assert [found.steps_completed for found in read_journals(partial)] == [2, 1]
    assert collect(traces, STEM) == 2


def _is_zombie(process: int) -> bool:
    """Whether it has ended, and whoever inherited it has not asked for it yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it goes while the file is open
        return True


def test_one_that_died_is_a_fact(rank: Journal, partial: Path) -> None:
    made = Copier({0: rank.folder}, partial, [], interval_s=60)
    made.start()
    process = made._process
    assert process is not None
    process.kill()
    process.wait()
    assert made.facts()["problem"] == "ended early with -9"
    made.end()


def test_one_that_cannot_start_is_a_fact(
    rank: Journal, partial: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    made = Copier({0: rank.folder}, partial, [], interval_s=60)
    made.start()
    assert "did not start" in made.facts()["problem"]
    assert "not copied while the run goes on" in capfd.readouterr().err
    made.end()


def test_none_is_started_where_nobody_wants_copies(traces: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Alone:
        rank = 0

    world = World(rank=0, size=1, local_rank=0, local_size=1, node_rank=0, nodes=1, hostname="n1")
    comm: object = Alone()
    assert start_copier(comm, world, traces, traces, STEM, 0) is None  # type: ignore[arg-type]
    assert "copies are off" in capfd.readouterr().err
