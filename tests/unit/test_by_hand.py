"""Which run of its point a launch makes that a person started: a new repeat, or a new attempt of one that failed."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc import script
from hpc.by_hand import _this_launch, claim
from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RankNote
from hpc.model.spec import SCRIPT, UNKNOWN
from tests.unit.traces import cut_short, make_run, make_trace, put

RUN = make_run(backend=SCRIPT, workload="/home/me/train.py", precision=UNKNOWN)
HERE = BeginRecord(run_id="", attempt=0, job_id=f"local-{socket.gethostname()}-{os.getpid()}-0", begin_unix_s=1)
NOBODY = 2**22 + 1
"""No process has this number: it is above the kernel's largest."""
ENDED = dataclasses.replace(HERE, job_id=f"local-{socket.gethostname()}-{NOBODY}-0")
ELSEWHERE = dataclasses.replace(HERE, job_id="local-another-host-7-0")


def taken(traces: Path, here: BeginRecord = HERE, repeat: int | None = None) -> tuple[int, int]:
    record = claim(traces, RUN, here, repeat)
    assert record.files(traces).begin_record.exists()
    return int(record.run_id.removeprefix(f"{RUN.point_id}_r")), record.attempt


def ended_ok(traces: Path, repeat: int, attempt: int = 1) -> None:
    put(traces, make_trace(RUN.repeated(repeat), attempt=attempt))


def note(traces: Path, repeat: int, attempt: int = 1) -> None:
    failed = RankNote(rank=0, outcome=Outcome.RANK_FAIL, exception="E", message="m", step=3, hostname="h")
    failed.write(traces, f"{RUN.repeated(repeat).run_id}.{attempt}")


def test_launches_that_end_ok_are_runs_of_a_point(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        assert taken(tmp_path / "traces") == (repeat, 1)
        ended_ok(tmp_path / "traces", repeat)


def test_a_launch_that_failed_is_attempted_again(tmp_path: Path) -> None:
    assert taken(tmp_path) == (1, 1)
    note(tmp_path, 1)
    assert taken(tmp_path) == (1, 2)
    ended_ok(tmp_path, 1, attempt=2)
    assert taken(tmp_path) == (2, 1)


def test_a_run_that_once_ended_ok_is_never_attempted_again(tmp_path: Path) -> None:
    ended_ok(tmp_path, 1, attempt=1)
    note(tmp_path, 1, attempt=2)
    assert taken(tmp_path) == (2, 1)


def test_a_folder_of_an_earlier_version_goes_on_with_the_next_run(tmp_path: Path) -> None:
    for attempt in (1, 2, 3):
        ended_ok(tmp_path, 1, attempt)
    assert taken(tmp_path) == (2, 1)


def test_a_trace_that_cannot_be_read_is_not_measured_again(tmp_path: Path) -> None:
    (tmp_path / f"{RUN.run_id}.1.h5").write_bytes(b"cut off")
    assert taken(tmp_path) == (2, 1)


def test_a_recovered_trace_of_a_failed_launch_is_no_measurement(tmp_path: Path) -> None:
    put(tmp_path, cut_short(make_trace(RUN), 3, Outcome.RANK_FAIL))
    assert taken(tmp_path) == (1, 2)


@pytest.mark.parametrize(("outcome", "next_one"), [(Outcome.OK, (2, 1)), (Outcome.TIMEOUT, (1, 2))])
def test_an_exit_record_counts(tmp_path: Path, outcome: Outcome, next_one: tuple[int, int]) -> None:
    ExitRecord(
        run_id=RUN.run_id, attempt=1, outcome=outcome, exit_status=0, job_id="7", begin_unix_s=1, end_unix_s=2
    ).write(tmp_path)
    assert taken(tmp_path) == next_one


@pytest.mark.parametrize(
    ("begun", "next_one"),
    [
        (HERE, (2, 1)),  # it runs
        (ENDED, (1, 2)),  # it was killed, and left nothing
        (ELSEWHERE, (2, 1)),  # nobody knows
    ],
)
def test_a_launch_that_may_be_running_keeps_its_number(
    tmp_path: Path, begun: BeginRecord, next_one: tuple[int, int]
) -> None:
    assert taken(tmp_path, begun) == (1, 1)
    assert taken(tmp_path) == next_one


def test_a_restart_by_the_launcher_resumes_its_own_run(tmp_path: Path) -> None:
    first = dataclasses.replace(ELSEWHERE, launch="torchrun abc")
    assert taken(tmp_path, first) == (1, 1)
    assert taken(tmp_path, dataclasses.replace(HERE, launch="torchrun other", restart_count=1)) == (2, 1)
    assert taken(tmp_path, dataclasses.replace(HERE, launch="torchrun abc", restart_count=1)) == (1, 2)


def test_repeat_makes_the_requested_run_again(tmp_path: Path) -> None:
    ended_ok(tmp_path, 1)
    assert taken(tmp_path, repeat=1) == (1, 2)
    assert taken(tmp_path, repeat=5) == (5, 1)


def test_launches_at_the_same_moment_take_different_numbers(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def launch(_: int) -> tuple[int, int]:
        together.wait()
        return taken(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(launch, range(8))) == [(repeat, 1) for repeat in range(1, 9)]


@pytest.mark.parametrize(
    ("environ", "launch", "restarts"),
    [
        ({}, "", 0),
        ({"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "2"}, "torchrun abc", 2),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7", "TORCHELASTIC_RESTART_COUNT": "2"}, "", 2),
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURM_RESTART_COUNT": "1"}, "job c 7", 1),
    ],
)
def test_a_launch_is_known_by_its_launcher(environ: dict[str, str], launch: str, restarts: int) -> None:
    here = _this_launch(environ)
    assert (here.launch, here.restart_count) == (launch, restarts)


def test_an_option_behind_the_script_without_dashes_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(SystemExit) as ended:
        script.main(["train.py", "--lr", "0.1", "--steps=100"])
    assert ended.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "--steps=100 behind train.py: its own, or of rankwise observe?" in error
    assert "rankwise observe -- train.py --lr 0.1 --steps=100" in error


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        (["train.py", "--lr", "0.1"], ""),
        (["--steps", "5", "--", "train.py", "--steps", "3"], ""),
        (["train.py", "--steps", "3"], "TORCHELASTIC_RUN_ID"),
    ],
)
def test_what_is_clear_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, words: list[str], launcher: str) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if launcher:
        monkeypatch.setenv(launcher, "abc")
    monkeypatch.setattr(script, "run_by_hand", lambda *_, **__: (7, None))
    assert script.main(words) == 7
