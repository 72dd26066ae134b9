"""Attempts whose file system, job script, launcher or scheduler fails: what was measured is kept and rightly named."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc.model import evidence
from hpc.model.evidence import LOOK_PAUSES_S, look_at_trace
from hpc.model.outcome import (
    BeginRecord,
    ExitRecord,
    Outcome,
    exit_records,
    read_exit_record,
    read_own_record,
)
from hpc.model.spec import RunSpec
from hpc.recovery import collect
from hpc.recovery.folders import attempt_folder
from hpc.system.job_facts import Job
from launch.jobs.options import RunLimits
from launch.jobs.script import Folders
from launch.jobs.site import Site
from launch.scheduler.local import ended_here
from launch.scheduler.slurm import Slurm
from launch.step import attempt as step
from launch.step import watch
from launch.step.attempt import DONE, NOT_OK, Step, StepError, StepOptions
from launch.sweep.run_status import close_ended, mend_records
from tests.unit.fake_commands import fake_in
from tests.unit.job_scripts import RUN, STEM, begun, fake_slurm, in_queue, outcome_of, whole_trace, write_job
from tests.unit.traces import cut_short, make_run, make_trace, put, put_exit_record
from tests.waiting import until

pytestmark = pytest.mark.slow

WHOLE = make_run()


def failing(error: int, times: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The first looks at a trace fail so; returns the pauses between looks, which take no time."""
    real, pauses, failures = evidence._look_once, list[float](), [times]

    def look_once(path: Path, trusted: bool) -> evidence.TraceLook:
        if failures[0]:
            failures[0] -= 1
            raise OSError(error, os.strerror(error))
        return real(path, trusted)

    monkeypatch.setattr(evidence, "_look_once", look_once)
    return pauses


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_trace_is_read_after_one_failed_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    path = put(tmp_path, make_trace(WHOLE))
    pauses = failing(error, 1, monkeypatch)
    assert look_at_trace(path, sleep=pauses.append).whole


def test_an_expected_trace_is_waited_for(tmp_path: Path) -> None:
    path, pauses = tmp_path / f"{WHOLE.run_id}.1.h5", list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            put(tmp_path, make_trace(WHOLE))

    assert look_at_trace(path, expected=True, sleep=sleep).whole
    assert pauses == [0.0, *LOOK_PAUSES_S[:3]]
    path.unlink()
    pauses.clear()
    assert not look_at_trace(path, sleep=pauses.append).whole and pauses == [0.0]


def test_an_unreadable_trace_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = failing(errno.ESTALE, 99, monkeypatch)
    look = look_at_trace(tmp_path / "x.h5", expected=True, sleep=pauses.append)
    assert (look.whole, look.unreadable) == (False, f"{tmp_path}/x.h5: Stale file handle")


@pytest.mark.parametrize("outcome", [Outcome.RANK_FAIL, Outcome.LOST, Outcome.LAUNCH_FAIL])
def test_the_next_command_corrects_a_record_that_a_whole_trace_contradicts(tmp_path: Path, outcome: Outcome) -> None:
    folders = Folders.under(tmp_path)
    folders.traces.mkdir()
    died = make_run(repeat=2)
    put(folders.traces, make_trace(WHOLE))
    put(folders.traces, cut_short(make_trace(died, recovered=True), 6, Outcome.RANK_FAIL))
    for run in (WHOLE, died):
        put_exit_record(folders.traces, run, outcome)
    messages: list[str] = []
    mend_records(folders, messages.append)
    records = exit_records(folders.traces)
    assert [records[run.run_id][0].outcome for run in (WHOLE, died)] == [Outcome.OK, outcome]
    assert len(messages) == 1 and f"recorded before as {outcome}" in messages[0]
    mend_records(folders, messages.append)
    assert len(messages) == 1


def test_a_recovered_trace_is_not_whole_even_with_exit_status_0(tmp_path: Path) -> None:
    """As srun does where a node fails: what was recovered meanwhile must not make the attempt ok."""
    traces = tmp_path / "traces"
    recovered = tmp_path / "recovered.h5"
    traces.mkdir()
    put(tmp_path, cut_short(make_trace(RUN, recovered=True), 6, Outcome.RANK_FAIL)).rename(recovered)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/bash\ncase "$*" in *hpc.recovery\\ recover*) cp {recovered} {traces}/{RUN.run_id}.1.h5;; esac\n'
    )
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step.sys, "executable", str(python))
        assert make_step(tmp_path, "exit 0", Signals()).run() == NOT_OK
    record = read_exit_record(traces / f"{RUN.run_id}.1.exit.json")
    assert (record.outcome, record.exit_status) == (Outcome.RANK_FAIL, 0)


class Signals:
    """In place of SignalLog: no signal comes; `on_sleep` is what happens meanwhile."""

    first = last = ""
    orphaned = False

    def __init__(self, on_sleep: Callable[[], None] = lambda: None) -> None:
        self.sleep = lambda seconds: on_sleep()

    def note_in(self, path: Path) -> None:
        """There is none to note."""

    def pause(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))


HERE = Job(job_id="local-here-1-1", nodelist="here")


def make_step(tmp_path: Path, body: str, signals: Signals, job: Job = HERE) -> Step:
    """A step in this process, whose launcher does `body`."""
    for name in ("traces", "logs"):
        (tmp_path / name).mkdir(exist_ok=True)
    command = ("bash", "-c", f"{STEM}{body}", "bash", "--traces", str(tmp_path / "traces"))
    options = StepOptions(
        run=RUN.run_id, traces=tmp_path / "traces", logs=tmp_path / "logs", command=command, launcher="local", nodes=1,
        nodelist="here", container=(), code=tmp_path, force=False, hand_on=False, signal="", unready="", warning_s=60,
        limits=RunLimits(copy_s=0),
    )  # fmt: skip
    return Step(options, job, signals, b"script\n")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def same_niceness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step lowers its own priority, which would stay lowered in this process."""
    monkeypatch.setattr(step.os, "nice", lambda by: 0)


def test_missing_traces_are_waited_for(tmp_path: Path) -> None:
    traces, away = tmp_path / "traces", tmp_path / "away"
    body = f"{whole_trace(tmp_path)} mv {traces} {away}"
    assert make_step(tmp_path, body, Signals(lambda: away.exists() and away.rename(traces))).run() == DONE  # type: ignore[arg-type, func-returns-value]
    assert read_exit_record(traces / f"{RUN.run_id}.1.exit.json").outcome is Outcome.OK


def test_nothing_is_written_into_a_replaced_traces_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "AWAY_PATIENCE_S", 0.0)
    traces = tmp_path / "traces"
    body = f"{whole_trace(tmp_path)} mv {traces} {tmp_path}/away && mkdir {traces}"
    with pytest.raises(StepError, match="is not the folder that"):
        make_step(tmp_path, body, Signals()).run()
    assert list(traces.iterdir()) == []


@pytest.mark.parametrize(("times", "status"), [(2, DONE), (999, NOT_OK)])
def test_writing_a_record_is_retried_and_in_the_end_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], times: int, status: int
) -> None:
    real, failures = ExitRecord.write, [times]

    def write(record: ExitRecord, folder: Path) -> Path:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(record, folder)

    monkeypatch.setattr(ExitRecord, "write", write)
    assert make_step(tmp_path, whole_trace(tmp_path), Signals()).run() == status
    assert ("who follows the sweep, or the next job, will" in capsys.readouterr().out) is (status == NOT_OK)


@pytest.mark.parametrize("times", [2, 99])
def test_an_attempt_runs_without_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], times: int
) -> None:
    real, failures = Path.open, [times]

    def opened(path: Path, *args: Any, **more: Any) -> Any:
        if path.parent.name == "logs" and failures[0]:
            failures[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "open", opened)
    assert make_step(tmp_path, f"{whole_trace(tmp_path)} echo printed", Signals()).run() == DONE
    assert ("printed" in capfd.readouterr().out) is (times == 99)


def kept_on_this_node(traces: Path, run: RunSpec) -> Path:
    """Leaves a whole trace of the first attempt of this run where rank 0 leaves one that it cannot write."""
    folder = attempt_folder(traces, f"{run.run_id}.1")
    return put(folder, make_trace(run))


def test_a_trace_kept_on_the_node_is_named_where_the_logs_are_full_too(
    tmp_path: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake Python finds the traces full when it collects, and no log takes a byte."""
    (tmp_path / "traces").mkdir()
    place = f"there:/dev/shm/rankwise-7/{RUN.run_id}.1-0123abcd/{RUN.run_id}.1.h5"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\ncase "$*" in *" collect "*) echo "kept: {place}" >&2; exit 1;; esac\n')
    python.chmod(0o755)
    monkeypatch.setattr(step.sys, "executable", str(python))
    monkeypatch.setattr(step, "_add", lambda log, content: None)
    assert make_step(tmp_path, "exit 1", Signals()).run() == NOT_OK
    record = read_exit_record(tmp_path / "traces" / f"{RUN.run_id}.1.exit.json")
    assert (record.outcome, record.local_copies) == (Outcome.RANK_FAIL, place)


@pytest.mark.parametrize(("failures", "starts"), [(0, 1), (2, 3), (99, step.MAX_STARTS)])
def test_collecting_that_found_the_controller_away_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, starts: int
) -> None:
    """A fake srun that starts nothing; the launcher is another one, whose ranks failed."""
    away = "srun: error: Unable to confirm allocation for job 4711: Unable to contact slurm controller (send failure)"
    fake = fake_in(tmp_path / "bin")
    count = f"echo >>{tmp_path}/starts; n=$(wc -l <{tmp_path}/starts)"
    fake("srun", f"{count}; [ $n -gt {failures} ] && exit 0; echo '{away}' >&2; exit 1")
    fake("squeue", "echo 4711.batch")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    attempt = make_step(tmp_path, "exit 1", Signals(), Job(job_id="4711", scheduler="Slurm"))
    attempt._options = replace(attempt._options, launcher="srun")
    assert attempt.run() == NOT_OK
    assert len((tmp_path / "starts").read_text().splitlines()) == starts


def test_a_full_log_ends_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog has something to say while the logs are full; the launcher goes on once it has."""

    def look(watchdog: watch.Watchdog) -> None:
        watchdog._say("waits")
        (tmp_path / "said").touch()

    monkeypatch.setattr(Step, "_log", lambda attempt, name, kind: Path("/dev/full"))
    monkeypatch.setattr(watch.Watchdog, "look", look)
    body = f"{whole_trace(tmp_path)} until [ -e {tmp_path}/said ]; do sleep 0.05; done"
    assert make_step(tmp_path, body, Signals()).run() == DONE


def test_the_next_command_brings_home_what_a_node_kept(tmp_path: Path, places: list[Path]) -> None:
    folders = Folders.under(tmp_path)
    folders.traces.mkdir()
    put_exit_record(folders.traces, WHOLE, Outcome.RANK_FAIL)
    path = kept_on_this_node(folders.traces, WHOLE)
    places_file = folders.traces / f"{WHOLE.run_id}.1.kept"
    places_file.write_text(f"kept: {os.uname().nodename}:{path}\n")
    messages: list[str] = []
    mend_records(folders, messages.append)
    [record] = exit_records(folders.traces)[WHOLE.run_id]
    assert (record.outcome, record.local_copies) == (Outcome.OK, "")
    assert (
        messages[0]
        == f"{WHOLE.run_id}.1: its trace, kept at {os.uname().nodename}:{path}, has been brought to the traces"
    )
    assert look_at_trace(folders.traces / path.name).whole
    assert not path.parent.exists() and not places_file.exists()


def test_a_trace_that_another_node_keeps_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    folders = Folders.under(tmp_path / "two words")
    folders.traces.mkdir(parents=True)
    put_exit_record(folders.traces, WHOLE, Outcome.RANK_FAIL)
    path, stem = folders.traces / f"{WHOLE.run_id}.1.exit.json", f"{WHOLE.run_id}.1"
    place = f"node7:/dev/shm/rankwise-7/{stem}-0123abcd/{stem}.h5"
    replace(read_own_record(path), local_copies=f"{place}, node8:/dev/shm/rankwise-7/x").write(folders.traces)
    messages: list[str] = []
    mend_records(folders, messages.append)
    fetch = f"-m rankwise hpc.recovery collect --stem {stem} --to '{folders.traces}'"
    assert len(messages) == 1
    assert f"is kept at {place}; this on node7 brings it home, and the same sweep again: " in messages[0]
    assert messages[0].endswith(fetch)
    for problem in ("srun: error: Unable to allocate resources: Requested nodes are busy", ""):
        mend_records(folders, messages.append, lambda node, program, problem=problem: problem)  # type: ignore[misc]
    assert f"is kept at {place} (srun: error: Unable to allocate" in messages[1]
    assert messages[2].endswith(f"{place}: fetched by a job on it")


def test_a_trace_is_fetched_from_another_node_by_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake srun that writes down its words; a job's variables, in which it would start a step, are gone."""
    fake_in(tmp_path / "bin")("srun", f'echo "$*" "[$SLURM_JOB_ID]" >{tmp_path}/words')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    site = Site(name="here", partition="gpu", account="p42")
    assert Slurm().run_on_node("node7", ["python", "-m", "x"], site) == ""
    words = (tmp_path / "words").read_text().split()
    assert words[-4:] == ["python", "-m", "x", "[]"]
    assert {"--nodelist=node7", "--immediate=30", "--partition=gpu", "--account=p42"} <= set(words)


def test_what_a_node_keeps_is_left_there_while_the_traces_are_full(
    tmp_path: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders.under(tmp_path)
    folders.traces.mkdir()
    put_exit_record(folders.traces, WHOLE, Outcome.RANK_FAIL)
    path = kept_on_this_node(folders.traces, WHOLE)
    messages: list[str] = []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(collect.shutil, "copyfileobj", full)
        mend_records(folders, messages.append)
    assert messages == [
        f"{WHOLE.run_id}.1: its trace stays at {os.uname().nodename}:{path}: {folders.traces} cannot be written "
        "([Errno 28] No space left on device)"
    ]
    assert exit_records(folders.traces)[WHOLE.run_id][0].outcome is Outcome.RANK_FAIL
    assert path.exists()


def test_a_whole_trace_replaces_one_that_was_recovered_meanwhile(tmp_path: Path, places: list[Path]) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    recovered = put(traces, cut_short(make_trace(WHOLE, recovered=True), 6, Outcome.RANK_FAIL))
    kept_on_this_node(traces, WHOLE)
    collect.collect(traces, f"{WHOLE.run_id}.1")
    assert look_at_trace(recovered).whole
    other = kept_on_this_node(traces, WHOLE)
    collect.collect(traces, f"{WHOLE.run_id}.1")
    assert other.exists()  # a whole one is never overwritten


def test_a_follower_says_once_what_it_cannot_write(
    tmp_path: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries every half second to close an attempt whose traces are full."""
    folders = Folders.under(tmp_path)
    folders.traces.mkdir()
    begin = BeginRecord(run_id=WHOLE.run_id, attempt=1, job_id="local-h-1-1", begin_unix_s=5)
    assert begin.take(folders.traces)
    kept_on_this_node(folders.traces, WHOLE)
    messages: list[str] = []
    last_lines: dict[str, str] = {}
    ends = {"local-h-1-1": ended_here("FAILED")}

    def failing_with(number: int) -> None:
        def fails(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(collect.shutil, "copyfileobj", fails)
            patched.setattr(ExitRecord, "write", fails)
            for _ in range(3):
                with pytest.raises(OSError, match=os.strerror(number)):
                    close_ended(ends, folders, messages.append, last_lines)

    failing_with(errno.ENOSPC)
    failing_with(errno.EROFS)
    assert ["No space left on device" in each for each in messages] == [True, False]
    close_ended(ends, folders, messages.append, last_lines)
    assert exit_records(folders.traces)[WHOLE.run_id][0].outcome is Outcome.OK
    assert len(messages) == 2


def test_the_error_of_a_missing_launcher_is_quoted(tmp_path: Path) -> None:
    job = write_job(tmp_path, "true")
    (tmp_path / "launcher").unlink()
    subprocess.run(["bash", str(job)], check=False, capture_output=True)
    record = read_exit_record(tmp_path / "traces" / f"{RUN.run_id}.1.exit.json")
    assert (record.outcome, record.exit_status) == (Outcome.LAUNCH_FAIL, 127)
    assert "launcher: No such file or directory" in record.evidence[0] or "launcher’: No such" in record.evidence[0]


def test_the_script_is_kept_in_the_traces_and_may_be_renamed_while_it_runs(tmp_path: Path) -> None:
    body = f"{STEM} mv {tmp_path}/job.sh {tmp_path}/renamed.sh; {whole_trace(tmp_path)}"
    record, _ = outcome_of(tmp_path, body)
    [copy] = (tmp_path / "traces" / "scripts").iterdir()
    assert copy.read_text() == (tmp_path / "renamed.sh").read_text()
    assert record["outcome"] == "ok"


@pytest.mark.parametrize(("recorded", "present", "runs"), [("a", "a", False), ("a", "b", True), ("", "b", False)])
def test_a_job_of_another_name_holds_no_run(tmp_path: Path, recorded: str, present: str, runs: bool) -> None:
    begun(tmp_path, "4711")
    path = tmp_path / "traces" / f"{RUN.run_id}.1.begin.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "job_name": recorded}))
    outcome_of(tmp_path, STEM + whole_trace(tmp_path), PATH=fake_slurm(tmp_path, in_queue("RUNNING", present)))
    records = exit_records(tmp_path / "traces").get(RUN.run_id, [])
    assert [record.outcome for record in records] == (["lost", "ok"] if runs else [])


@pytest.mark.parametrize("job_id", ["--version", "1,2", "$(id)", ""])
def test_a_damaged_job_id_reaches_no_command(tmp_path: Path, job_id: str) -> None:
    begun(tmp_path, job_id)
    path = fake_slurm(tmp_path, f'echo "$*" >>{tmp_path}/called; echo RUNNING')
    record, _ = outcome_of(tmp_path, STEM + whole_trace(tmp_path), PATH=path)
    assert record["outcome"] == "ok" and not (tmp_path / "called").exists()


def running(tmp_path: Path) -> tuple[subprocess.Popen[Any], int, int]:
    """A script whose launcher sleeps; with the process of launch.step, and the launcher's."""
    job = write_job(
        tmp_path, f"echo $PPID $$ >{tmp_path}/pids.part; mv {tmp_path}/pids.part {tmp_path}/pids; exec sleep 600"
    )
    script = subprocess.Popen(["bash", str(job)], stdout=subprocess.DEVNULL, start_new_session=True)
    until((tmp_path / "pids").exists, "the launcher runs")
    step_pid, launcher_pid = map(int, (tmp_path / "pids").read_text().split())
    return script, step_pid, launcher_pid


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("killed", ["script", "step"])
def test_a_killed_script_or_step_leaves_no_process_and_an_open_attempt(tmp_path: Path, killed: str) -> None:
    script, step_pid, launcher_pid = running(tmp_path)
    os.kill(script.pid if killed == "script" else step_pid, signal.SIGKILL)
    assert script.wait() == (-signal.SIGKILL if killed == "script" else 1)
    until(lambda: has_ended(step_pid) and has_ended(launcher_pid), "both have ended")
    files = [path.name for path in (tmp_path / "traces").iterdir() if path.is_file()]
    assert files == [f"{RUN.run_id}.1.begin.json"]  # no signal is noted: no signal ended the job


@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_script_that_cannot_be_copied_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    attempt = object.__new__(Step)
    attempt._options, attempt._script = SimpleNamespace(traces=tmp_path), b"#!/bin/bash\n"  # type: ignore[assignment]

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Path, call, fails)
        attempt._keep_script()
    assert "the job script cannot be kept in" in capsys.readouterr().out
    assert list((tmp_path / "scripts").iterdir()) == []
    assert attempt._keep_script().read_bytes() == b"#!/bin/bash\n"
