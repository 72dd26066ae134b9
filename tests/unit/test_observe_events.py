"""The file of events: written in place, readable at any time, bounded."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hpc.observe import events as e
from hpc.observe import recording
from hpc.observe.events import EventFileError, HookEvent, Recorder, read_events, steps_counted
from hpc.observe.remarks import remarks_on_process

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_written_is_read_while_the_process_lives(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    which = recorder.name("all-reduce")
    assert recorder.name("all-reduce") == which
    assert recorder.name("all-reduce", 0) != which
    recorder.state(rank=1, size=2)
    recorder.state(rank=3)
    first = recorder.note(5, e.FETCH_IN, 7)
    recorder.note(6, e.FETCH_OUT, 0xFFFF, (1 << e.NUMBER_BITS) - 1)
    recorded = read_events(recorder.path)
    assert first == 0
    assert recorded.process == os.getpid()
    assert recorded.events == [
        HookEvent(5, e.FETCH_IN, 7, 0), HookEvent(6, e.FETCH_OUT, 0xFFFF, (1 << e.NUMBER_BITS) - 1),
    ]  # fmt: skip
    assert recorded.facts == {"rank": 3, "size": 2}
    assert recorded.names == [("all-reduce", e.NO_ROOT, None), ("all-reduce", 0, None)]
    recorder.note(7, e.FETCH_OUT)
    assert len(read_events(recorder.path).events) == 3


def test_a_record_that_was_not_completed_keeps_its_place(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.cells[recorder.place() + 1] = e.FETCH_IN
    recorder.cells[recorder.place()] = 9
    place = recorder.note(10, e.UPDATE_OUT)
    recorder.cells[recorder.place() + 1] = e.FETCH_IN
    events = read_events(recorder.path).events
    assert place == 2
    assert [event.kind for event in events] == [e.NOTHING, e.NOTHING, e.UPDATE_OUT]


def test_past_the_last_record_nothing_is_kept_and_nothing_raised(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), capacity=3)
    for ns in (1, 2, 3):
        assert "full" not in read_events(recorder.path).facts
        recorder.note(ns, e.UPDATE_IN)
    size = recorder.path.stat().st_size
    for ns in (4, 5):
        recorder.note(ns, e.UPDATE_IN)
    assert not recorder.make_room(1)
    recorder.note(6, e.UPDATE_IN)
    assert recorder.path.stat().st_size == size
    recorded = read_events(recorder.path)
    assert [event.ns for event in recorded.events] == [1, 2, 3] and recorded.facts == {"full": True}


@pytest.mark.parametrize(("records", "steps"), [(20, 200), (100, 160), (119, 134)])
def test_how_many_steps_are_recorded_follows_from_what_one_takes(tmp_path: Path, records: int, steps: int) -> None:
    """The last as FSDP2 with 81 groups and 16 micro-batches, in a file of 4,000 records instead of 2^20."""
    recorder = Recorder(str(tmp_path), capacity=4000)
    count = 0
    while recorder.make_room(count):
        for ns in range(1, records + 1):
            at = recorder.place()
            recorder.cells[at + 1], recorder.cells[at] = e.UPDATE_IN, ns
        count += 1
    assert abs(count - steps) <= 1


def test_a_full_file_ends_no_hooks_and_steps_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e, "Recorder", partial(Recorder, capacity=40))
    monkeypatch.setattr(gc, "callbacks", [])
    o = recording.ProcessRecording(str(tmp_path))
    try:
        for _ in range(100):
            for kind in (e.FETCH_IN, e.FORWARD_IN, e.BACKWARD_IN, e.UPDATE_OUT):
                o.note(kind)
            o.step_completed()
        assert not o.off
    finally:
        o.remove()
    recorded = read_events(o.recorder.path)
    assert len(recorded.events) == 4 * 40 and steps_counted(o.recorder.path) == 100
    assert "the file was full; hooks went on" in remarks_on_process(recorded)[-1]


def test_texts_are_bounded(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), capacity=3)
    recorder.state(first=1)
    with pytest.raises(OverflowError, match="texts of"):
        recorder.state(large="x" * (1 << 16))
    recorder.note(1, e.UPDATE_IN)
    recorded = read_events(recorder.path)
    assert recorded.facts == {"first": 1}
    assert len(recorded.events) == 1


def test_room_is_reserved_for_a_process_that_trains(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    before = recorder.path.stat().st_blocks
    recorder.reserve()
    assert recorder.path.stat().st_blocks * 512 >= e.CAPACITY * 16 > before * 512


def test_a_process_that_replaces_itself_has_a_second_file(tmp_path: Path) -> None:
    assert Recorder(str(tmp_path)).path != Recorder(str(tmp_path)).path


def test_steps_are_counted_without_reading_events(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.cells[e.STEPS_CELL] = 12
    assert steps_counted(recorder.path) == 12


@pytest.mark.parametrize("content", [b"", b"RWEVENT", b"x" * (1 << 17)])
def test_what_is_no_file_of_events_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "1.events"
    path.write_bytes(content)
    with pytest.raises(EventFileError, match="no file of events"):
        read_events(path)


def test_damaged_texts_are_refused(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.state(rank=1)
    content = bytearray(recorder.path.read_bytes())
    content[64:66] = b"[]"
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(EventFileError, match="cannot be read"):
        read_events(tmp_path / "damaged")


def test_collectives_without_a_name_are_refused(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.note(1, e.COLLECTIVE_IN, which=2)
    with pytest.raises(EventFileError, match="without a name"):
        read_events(recorder.path)


def test_events_survive_the_death_of_their_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from hpc.observe.events import Recorder; r = Recorder(sys.argv[1]);"
        "r.state(rank=0); [r.note(ns, 3) for ns in range(1, 1001)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.glob("*.events")
    recorded = read_events(path)
    assert [event.ns for event in recorded.events] == list(range(1, 1001))
    assert recorded.facts == {"rank": 0}


def test_a_group_is_written_once_for_all_that_is_called_in_it(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    pair, many = e.GroupRecord((3, 1), "tp"), e.GroupRecord(tuple(range(0, 4096, 4)), "dp")
    for name, root, group in [("all-reduce", e.NO_ROOT, pair), ("broadcast", 3, pair), ("all-reduce", e.NO_ROOT, many)]:
        assert recorder.name(name, root, group) == recorder.name(name, root, group)
    assert recorder.path.read_bytes().count(b'"group"') == 2
    names = read_events(recorder.path).names
    assert names == [("all-reduce", e.NO_ROOT, pair), ("broadcast", 3, pair), ("all-reduce", e.NO_ROOT, many)]


def test_where_there_is_no_room_for_another_group_its_collectives_share_a_name(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.note(1, e.FETCH_IN)
    whiches = [recorder.name("message", 0, e.GroupRecord((0, 1), "messages", tag)) for tag in range(5000)]
    assert whiches[:3] == [0, 1, 2] and len({*whiches[-1000:]}) == 1
    recorder.state(rank=1, text="x" * 4000)  # for which there still is room
    recorded = read_events(recorder.path)
    assert recorded.names[whiches[-1]] == (e.FURTHER, e.UNCLEAR, None)
    assert recorded.names[whiches[7]] == ("message", 0, e.GroupRecord((0, 1), "messages", 7))
    assert recorded.facts["rank"] == 1
