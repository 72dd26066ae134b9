"""Records and traces damaged by power cuts: none is believed, lost, or run again in silence."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hpc.model import evidence
from hpc.model.files import AttemptFiles
from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RecordError, exit_records, is_damaged, read_own_record
from hpc.model.spec import RunSpec
from hpc.model.timestamps import STAMPS
from hpc.model.trace_file import read_trace, visible_defect
from hpc.model.verdict import Evidence, JobEnd
from hpc.recovery.__main__ import main as collecting
from hpc.recovery.folders import BEGUN, attempt_folder
from hpc.recovery.journal import Journal
from hpc.system.job_facts import Job
from launch.follow import write_missing_records
from launch.jobs.script import Folders
from launch.step.claim import Claim
from launch.sweep.run_status import mend_records, pending_runs, planned_sweeps, run_statuses, whole
from launch.sweep.text import describe_runs
from tests.unit import job_scripts as scripts
from tests.unit.dead_ranks import leave
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan

RUN = make_run()
STEM = f"{RUN.run_id}.1"
DAMAGES = {"empty": b"", "zeros": b"\0" * 300, "half": b'{\n "run_id": "x",\n "outcome": "ok",\n', "foreign": b"{}"}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    below = Folders.under(tmp_path)
    for folder in (below.jobs, below.logs, below.traces):
        folder.mkdir(exist_ok=True)
    return below


def mended(folders: Folders) -> list[str]:
    """What mending the records says."""
    messages: list[str] = []
    mend_records(folders, messages.append)
    return messages


def begin(traces: Path, run: RunSpec = RUN, job_id: str = "7") -> Path:
    path = traces / f"{run.run_id}.1.begin.json"
    path.write_text(json.dumps({"run_id": run.run_id, "attempt": 1, "job_id": job_id, "begin_unix_s": 5}) + "\n")
    return path


@contextmanager
def nobody() -> Iterator[None]:
    """As a user who may read nothing of root's."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "changes",
    [{"attempt": "1"}, {"attempt": True}, {"evidence": "text"}, {"evidence": [1]}, {"outcome": ["ok"]},
     {"local_copies": None}, {"begin_unix_s": "now"}, {"run_id": 3}],
)  # fmt: skip
def test_a_value_of_another_type_makes_no_record(tmp_path: Path, changes: dict[str, object]) -> None:
    path = put_exit_record(tmp_path, RUN, Outcome.OK)
    assert not is_damaged(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(RecordError, match=rf"exit\.json: not an exit record \({next(iter(changes))}"):
        read_own_record(path)
    assert is_damaged(path)


def test_a_record_under_the_name_of_another_attempt_is_refused(tmp_path: Path) -> None:
    copy = put_exit_record(tmp_path, RUN, Outcome.OK).rename(tmp_path / "copy_r1.1.exit.json")
    errors: list[RecordError] = []
    assert exit_records(tmp_path, errors) == {}
    assert [error.path for error in errors] == [copy] and STEM in str(errors[0])


def test_a_folder_or_link_in_the_place_of_a_record_is_damaged_and_nothing_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.1.exit.json").mkdir()
    (tmp_path / "b.1.exit.json").symlink_to("nowhere")
    assert [is_damaged(tmp_path / f"{name}.1.exit.json") for name in "abc"] == [True, True, False]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(("has_trace", "outcome"), [(True, Outcome.OK), (False, Outcome.LOST)])
def test_a_damaged_record_is_made_anew_from_other_evidence(
    folders: Folders, damage: bytes, has_trace: bool, outcome: Outcome
) -> None:
    begin(folders.traces)
    (folders.traces / f"{STEM}.exit.json").write_bytes(damage)
    other = make_run(repeat=2)
    put_exit_record(folders.traces, other, Outcome.OK)
    if has_trace:
        trace = put(folders.traces, make_trace(RUN))
        os.utime(trace, (1_700_000_000, 1_700_000_000))
    [before, other_run] = run_statuses([RUN.run_id, other.run_id], folders.traces)
    assert before.state == "begun" and other_run.state == "ok" and not other_run.problems
    assert not whole([before]) and "decides the outcome again" in before.problems[0]
    assert f"{STEM}.exit.json" in [*describe_runs([before], folders)][-1]
    [line] = mended(folders)
    assert f"{STEM}: its exit record cannot be read" in line and f": {outcome}:" in line
    record = read_own_record(folders.traces / f"{STEM}.exit.json")
    assert record.outcome is outcome and f"{STEM}.exit.json.damaged" in record.evidence[-1]
    assert (record.end_unix_s == 1_700_000_000) is has_trace  # when the trace was written, not when somebody looked
    assert (folders.traces / f"{STEM}.exit.json.damaged").read_bytes() == damage
    assert pending_runs([RUN.run_id], folders.traces) == ([] if has_trace else [RUN.run_id])
    assert mended(folders) == []


def test_a_damaged_begin_record_loses_no_whole_trace(folders: Folders) -> None:
    for number, run in enumerate((RUN, make_run(repeat=2))):
        begin(folders.traces, run).write_bytes(b"")
        if number == 0:
            put(folders.traces, make_trace(run))
    mended(folders)
    first, second = run_statuses([RUN.run_id, make_run(repeat=2).run_id], folders.traces)
    assert (first.state, first.final, whole([first])) == ("ok", True, True)
    assert (second.state, second.final) == ("never ran", False)
    assert ".begin.json: cannot be read" in second.problems[0] and "the run is done again" in second.problems[0]


def test_a_record_that_cannot_be_written_is_reported_and_stops_no_other(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in (RUN, make_run(repeat=2)):
        begin(folders.traces, run)
        put(folders.traces, make_trace(run))
        (folders.traces / f"{run.run_id}.1.exit.json").write_bytes(b"")
    real = ExitRecord.write

    def write(record: ExitRecord, folder: Path) -> Path:
        if record.run_id == RUN.run_id:
            raise OSError(28, "No space left on device")
        return real(record, folder)

    monkeypatch.setattr(ExitRecord, "write", write)
    assert sorted("No space left" in line for line in mended(folders)) == [False, True]


def test_a_record_that_cannot_be_opened_holds_back_its_own_run_only() -> None:
    other = make_run(repeat=2)
    with TemporaryDirectory() as place:  # others cannot enter pytest's folders
        Path(place).chmod(0o755)
        traces = Path(place)
        begin(traces)
        put_exit_record(traces, RUN, Outcome.OK).chmod(0)
        with nobody():
            [held, free] = run_statuses([RUN.run_id, other.run_id], traces)
            assert pending_runs([RUN.run_id, other.run_id], traces) == [other.run_id]
            assert evidence.open_attempts(traces, "7") == [] == evidence.damaged_attempts(traces)
    assert (held.state, whole([held]), free.state) == ("held back", False, "never ran")
    assert "Permission denied): it may be whole, so the run is left alone" in held.problems[0]


def closed(folders: Folders) -> list[str]:
    """Closes what job 7 left open, which the scheduler has forgotten; its messages."""
    messages: list[str] = []
    end = JobEnd(state="", source="squeue")
    evidence.close_attempts(folders.traces, folders.logs, "7", end, recover=lambda name: None, say=messages.append)
    return messages


def test_closing_treats_a_damaged_record_as_absent(folders: Folders) -> None:
    begin(folders.traces)
    (folders.traces / f"{STEM}.exit.json").mkdir()
    assert [line.split(": ")[:2] for line in closed(folders)] == [[STEM, "lost"]]
    (folders.traces / f"{STEM}.exit.json").write_text("{")
    (folders.traces / f"{STEM}.exit.json.damaged").rmdir()
    [record] = write_missing_records(
        folders.traces, {"7": JobEnd(state="CANCELLED", source="squeue")}, folders.logs, patience_s=0
    )
    assert record.outcome is Outcome.CANCELLED and "exit.json.damaged" in record.evidence[-1]


def test_one_attempt_that_cannot_be_closed_stops_no_other(folders: Folders) -> None:
    begin(folders.traces)
    begin(folders.traces, make_run(repeat=2))
    part = f".{STEM}.exit.json.{socket.gethostname()}.{os.getpid()}.part"
    (folders.traces / part).mkdir()  # where its record would be written
    failed, other = closed(folders)
    assert f"{STEM}.exit.json" in failed and other.startswith(f"{make_run(repeat=2).run_id}.1: lost: ")


def read_evidence(folders: Folders) -> Evidence:
    output = evidence.AttemptOutput(error=folders.logs / f"{STEM}.err")
    return evidence.read_evidence(AttemptFiles.of_stem(folders.traces, STEM), output)


def test_unreadable_small_files_count_as_absent_and_are_reported(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders.traces / f"{STEM}.signal").write_bytes(b"\0" * 28)
    (folders.traces / f"{STEM}.kept").write_bytes(b"kept: n1:/a\n\0\0\0")
    (folders.traces / f"{STEM}.hang.json").mkdir()
    collected = read_evidence(folders)
    assert (collected.ended_by, collected.reason, collected.local_copies) == (None, "", "n1:/a")
    assert f"{STEM}.hang.json: cannot be read (Is a directory)" in capsys.readouterr().err


def test_standard_error_of_any_size_costs_little(folders: Folders) -> None:
    path = folders.logs / f"{STEM}.err"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"\nsrun: error: " + b"launch failed " * 20_000 + b"\nBus error\n")
    collected = read_evidence(folders)
    assert len(collected.error) < evidence.ERROR_BYTES and collected.error.endswith("Bus error")
    assert max(map(len, collected.error.splitlines())) <= 4096
    path.unlink()
    path.mkdir()
    assert read_evidence(folders).error == ""


def test_plans_that_cannot_be_read_are_named_and_those_beside_them_shown(tmp_path: Path) -> None:
    put_plan(tmp_path, [RUN])
    (tmp_path / "plan.zeros.json").write_bytes(b"\0" * 99)
    (tmp_path / "plan.list.json").write_text("[]")
    (tmp_path / "plan.odd.json").write_text('{"sweep_id": "x", "runs": ["a"]}')
    (tmp_path / "plan.folder.json").mkdir()
    errors: list[RecordError] = []
    assert len(planned_sweeps(tmp_path, errors)) == 1
    assert len(errors) == 4 and all("the command that planned it writes it again" in str(each) for each in errors)


@pytest.mark.parametrize(("keep", "damage"), [(0, "is empty"), (7, "not an HDF5"), (3000, "cut off"), (None, "")])
def test_an_incomplete_trace_is_recognised_without_reading_it(folders: Folders, keep: int | None, damage: str) -> None:
    path = put(folders.traces, make_trace(RUN))
    put_exit_record(folders.traces, RUN, Outcome.OK)
    path.write_bytes(path.read_bytes()[:keep])
    assert damage in visible_defect(path) and bool(visible_defect(path)) is bool(damage)
    [run] = run_statuses([RUN.run_id], folders.traces)
    assert run.state == ("ok, trace damaged" if damage else "ok")
    assert run.final and whole([run]) is not bool(damage)  # nothing is measured again unasked
    assert [f"{STEM}.rerun" in problem and str(path) in problem for problem in run.problems] == [True] * bool(damage)


ENDED = f"local-{socket.gethostname()}-4194305-1"  # no process has that number


@pytest.mark.parametrize(
    ("job_id", "files", "says"),
    [
        pytest.param(ENDED, {}, "{}.1: ok", id="died between the trace and its record"),
        pytest.param("local-h-1-1", {"begin.json": b""}, "recorded now from what else it left: ok", id="begin"),
        *(
            pytest.param(
                "4711", {"exit.json": damage}, "{}.1: ok", id=name,
                marks=() if name == "half" else pytest.mark.all,
            )
            for name, damage in DAMAGES.items()
        ),
    ],
)  # fmt: skip
def test_a_job_script_measures_nothing_again_for_a_record_that_is_damaged_or_was_never_written(
    tmp_path: Path, job_id: str, files: dict[str, bytes], says: str
) -> None:
    traces, run = tmp_path / "traces", scripts.RUN
    scripts.begun(tmp_path, job_id)
    put(traces, make_trace(run))
    for name, damage in files.items():
        (traces / f"{run.run_id}.1.{name}").write_bytes(damage)
    restarted = {
        "PATH": scripts.fake_slurm(tmp_path, "echo RUNNING"),
        "SLURM_JOB_ID": job_id,
        "SLURM_RESTART_COUNT": "1",
    }
    life = restarted if "exit.json" in files else {}
    _, printed = scripts.outcome_of(tmp_path, scripts.STEM + 'touch "$stem.h5"', **life)
    assert says.format(run.run_id) in printed and f"{run.run_id} is final, passed over" in printed
    assert not (traces / f"{run.run_id}.2.begin.json").exists()


def test_a_closed_attempt_ends_when_its_trace_was_written(folders: Folders) -> None:
    begun = BeginRecord(run_id=RUN.run_id, attempt=1, job_id="7", begin_unix_s=1_700_000_000)
    trace = put(folders.traces, make_trace(RUN))
    for written_unix_s, took_s in ((1_700_000_060, 60), (1_600_000_000, 0)):  # the second by a clock that was set back
        os.utime(trace, (written_unix_s,) * 2)
        record = evidence.close_attempt(begun, folders.logs, folders.traces, None)
        assert record.end_unix_s - record.begin_unix_s == took_s


def test_a_folder_without_its_begin_file_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hpc.recovery.folders._bases", lambda: [tmp_path / "node"])
    traces = tmp_path / "traces"
    traces.mkdir()
    journal = Journal(traces, STEM, 0, 3)
    (journal.folder / BEGUN).unlink()
    assert collecting(["collect", "--stem", STEM, "--to", str(traces)]) == 0
    assert "collected the journals of 1 ranks" in capsys.readouterr().out


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place of this node for files of ranks."""
    monkeypatch.setattr("hpc.recovery.folders._bases", lambda: [tmp_path / "node"])
    return tmp_path / "node"


def lose_begin(traces: Path, damage: bytes | None, age_s: int = 3600) -> None:
    """The begin record of the attempt as a power cut left it: with this content, or not there."""
    if damage is not None:
        path = begin(traces)
        path.write_bytes(damage)
        os.utime(path, (time.time() - age_s,) * 2)


BEGINS = {**DAMAGES, "gone": None}


@pytest.mark.parametrize("damage", BEGINS.values(), ids=BEGINS)
def test_a_trace_on_the_node_comes_home_without_a_begin_record(
    folders: Folders, node: Path, damage: bytes | None
) -> None:
    trace = put(attempt_folder(folders.traces, STEM), make_trace(RUN))
    lose_begin(folders.traces, damage)
    messages = mended(folders)
    assert not trace.exists() and read_trace(folders.traces / f"{STEM}.h5").outcome is Outcome.OK
    record = read_own_record(folders.traces / f"{STEM}.exit.json")
    assert record.outcome is Outcome.OK and f"{STEM}.begin.json" in record.evidence[-1]
    assert pending_runs([RUN.run_id], folders.traces) == []
    [line] = messages
    assert f"{STEM}.begin.json" in line and "recorded now from what else it left: ok" in line
    assert mended(folders) == []


@pytest.mark.parametrize("damage", BEGINS.values(), ids=BEGINS)
@pytest.mark.parametrize("copied", [True, False], ids=["copies", "journals on this node"])
def test_what_ranks_left_is_recovered_without_a_begin_record(
    folders: Folders, node: Path, copied: bool, damage: bytes | None
) -> None:
    if copied:
        leave(folders.traces, 0, completed=3, points=1, run=RUN, whole=False)
    else:
        journal = Journal(folders.traces, STEM, 0, RUN.steps)
        journal.note(**dead_header())
        journal.samples[:3] = array("q", [4] * 3)
        journal.stamps[: 3 * len(STAMPS)] = array("q", range(3 * len(STAMPS)))
        die(journal)
    lose_begin(folders.traces, damage)
    messages = mended(folders)
    assert read_trace(folders.traces / f"{STEM}.h5").steps_completed.max() == 3
    record = read_own_record(folders.traces / f"{STEM}.exit.json")
    assert (record.outcome is not Outcome.OK and not record.is_final) or record.outcome is Outcome.RANK_FAIL
    assert any("recovered" in line for line in messages) and any("recorded now" in line for line in messages)


def die(journal: Journal) -> None:
    """Its lock goes with the process of its rank."""
    fcntl.flock(journal._file, fcntl.LOCK_UN)


def dead_header() -> dict[str, object]:
    """What a rank notes beside its stamps before the first step."""
    with TemporaryDirectory() as place:
        leave(Path(place), 0, completed=3, points=1, run=RUN)
        header: dict[str, object] = json.loads((Path(place) / f"{STEM}.partial" / "rank0.json").read_text())
    return header


def test_an_attempt_that_may_still_run_is_left_alone_without_a_begin_record(folders: Folders, node: Path) -> None:
    lose_begin(folders.traces, b"")
    journal = Journal(folders.traces, STEM, 0, RUN.steps)  # its lock is held by this process
    messages = mended(folders)
    assert journal.folder.is_dir() and not (folders.traces / f"{STEM}.exit.json").exists()
    [line] = messages
    assert "left alone" in line and "ranks of it are alive" in line
    die(journal)
    mended(folders)
    assert (folders.traces / f"{STEM}.exit.json").exists()


def test_an_attempt_that_has_just_begun_is_left_alone_and_an_old_one_is_lost(folders: Folders, node: Path) -> None:
    lose_begin(folders.traces, b"", age_s=5)
    assert "left alone" in mended(folders)[0] and not (folders.traces / f"{STEM}.exit.json").exists()
    lose_begin(folders.traces, b"")
    mended(folders)
    assert read_own_record(folders.traces / f"{STEM}.exit.json").outcome is Outcome.LOST


def test_files_on_the_node_of_a_folder_that_was_replaced_are_no_attempt_of_the_new_one(
    folders: Folders, node: Path
) -> None:
    journal = Journal(folders.traces, STEM, 0, RUN.steps)
    die(journal)
    folders.traces.rename(folders.traces.with_name("old"))
    folders.traces.mkdir()
    mend_records(folders, pytest.fail)
    assert journal.folder.is_dir() and [*folders.traces.iterdir()] == []


def test_a_trace_without_records_that_a_job_script_logged_is_not_measured_again(folders: Folders, node: Path) -> None:
    put(folders.traces, make_trace(RUN))
    mend_records(folders, pytest.fail)  # brought here by a person: nothing is known of it
    (folders.logs / f"{STEM}.err").touch()
    assert f"{STEM}.begin.json is gone" in mended(folders)[0] and pending_runs([RUN.run_id], folders.traces) == []


def test_a_begin_record_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[str, int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((path.name, path.stat().st_size if path.is_file() else -1))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    begun = BeginRecord(run_id=RUN.run_id, attempt=1, job_id="7", begin_unix_s=5)
    assert begun.take(tmp_path) and not begun.take(tmp_path)
    size = (tmp_path / f"{STEM}.begin.json").stat().st_size
    assert size > 0 and flushed == [(f"{STEM}.begin.json", size), (tmp_path.name, -1)]
    flushed.clear()
    evidence.close_attempt(begun, tmp_path, tmp_path, None)
    assert len(flushed) == 2 and flushed[-1] == (tmp_path.name, -1)


def test_a_begin_record_that_cannot_be_flushed_takes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        BeginRecord(run_id=RUN.run_id, attempt=1, job_id="7", begin_unix_s=5).take(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_number_is_taken_by_any_file_of_an_attempt(tmp_path: Path, node: Path) -> None:
    folders = Folders.under(tmp_path)
    folders.logs.mkdir(parents=True)
    claim = Claim(
        RUN.run_id, folders.traces, folders.logs, Job(job_id="7"), force=False, say=print,
        close=lambda job_id, end: None, pause=lambda seconds: None,
    )  # fmt: skip
    assert claim.next_attempt() == 1
    folders.traces.mkdir()
    attempt_folder(folders.traces, f"{RUN.run_id}.1")
    assert claim.next_attempt() == 2
    (folders.logs / f"{RUN.run_id}.3.err").touch()
    assert claim.next_attempt() == 4
    (folders.traces / f"{RUN.run_id}.9.partial").mkdir()
    (folders.traces / f"{RUN.run_id}0.77.begin.json").touch()
    assert claim.next_attempt() == 10
