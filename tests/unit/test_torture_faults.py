"""Whether the trials with faults would notice: the library that makes calls fail, and each of their checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpc.model.outcome import BeginRecord, ExitRecord, Outcome
from tests.torture import fault_checks
from tests.torture.checks import Attempt
from tests.torture.fault_checks import Truth, check_attempt, processes_of
from tests.torture.injector import Fault, build, injections
from tests.waiting import until

pytestmark = pytest.mark.all

RUN = "1n2g_mpi_faulted_r1"
COMPLETE = Truth(steps={1: {(10, 0): 16, (11, 1): 16}}, ranks=2, planned=16)
SHORT = Truth(steps={1: {(10, 0): 16, (11, 1): 15}}, ranks=2, planned=16)

CALLS = """
import os, sys
from pathlib import Path

folder = Path(sys.argv[1])
failed = []
for name, call in {
    "open": lambda path: path.open("w").close(),
    "write": lambda path: path.write_text("x"),
    "rename": lambda path: path.replace(folder / "renamed"),
    "stat": lambda path: path.with_name("renamed").stat(),
    "fsync": lambda path: os.fsync(os.open(folder / "renamed", os.O_WRONLY)),
    "unlink": lambda path: path.with_name("renamed").unlink(),
    "mkdir": lambda path: path.with_name("made").mkdir(),
    "fallocate": lambda path: os.posix_fallocate(os.open(path, os.O_RDWR | os.O_CREAT), 0, 4096),
    "close": lambda path: os.close(os.open(path, os.O_RDWR | os.O_CREAT)),
}.items():
    try:
        call(folder / "file")
    except OSError as error:
        failed.append(f"{name}:{error.errno}")
        if name == "rename":
            (folder / "renamed").touch()
print(*failed)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    return build(tmp_path_factory.mktemp("library"))


def failed(library: Path, folder: Path, fault: Fault) -> list[str]:
    """Which calls of CALLS fail, with their errno."""
    script, place = folder / "calls.py", folder / "place"
    script.write_text(CALLS)
    place.mkdir()
    env = {**os.environ, **fault.variables(library, folder / "state")}
    argv = [sys.executable, str(script), str(place)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("call", ["open", "write", "rename", "stat", "fsync", "unlink", "mkdir", "fallocate", "close"])
def test_a_call_fails_once_and_is_recorded(library: Path, tmp_path: Path, call: str) -> None:
    fault = Fault(call=call, error="EIO", process="calls.py", paths=[f"{tmp_path}/place"])
    assert failed(library, tmp_path, fault) == [f"{call if call != 'close' else 'open'}:5"]
    (injection,) = injections(tmp_path / "state")
    assert (injection.process, injection.call) == ("calls.py", call)
    assert injection.path.startswith(f"{tmp_path}/place/")


def test_only_the_chosen_calls_fail(library: Path, tmp_path: Path) -> None:
    usual = Fault(call="open", error="ESTALE", process="calls.py", paths=[f"{tmp_path}/place"], n=2, times=2)
    for number, (fault, expected) in enumerate([
        (usual, ["write:116", "fsync:116"]),  # the second and the third open
        (replace(usual, times=0), ["write:116", "fsync:116", "fallocate:116", "close:116"]),
        (replace(usual, process="other.py"), []),
        (replace(usual, paths=["/elsewhere"]), []),
        (replace(usual, n=100), []),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        chosen = replace(fault, paths=[path.replace(str(tmp_path), str(folder)) for path in fault.paths])
        assert failed(library, folder, chosen) == expected, chosen


def attempt(outcome: Outcome | None, *steps: int, evidence: tuple[str, ...] = ("seen",), at: str = "") -> Attempt:
    record = None
    if outcome is not None:
        record = ExitRecord(
            run_id=RUN, attempt=1, outcome=outcome, exit_status=1, job_id="7", restart_count=0, nodelist="",
            begin_unix_s=1, end_unix_s=2, evidence=evidence, local_copies=at,
        )  # fmt: skip
    begin = BeginRecord(run_id=RUN, attempt=1, job_id="7", begin_unix_s=1)
    return Attempt(begin=begin, record=record, steps=dict(enumerate(steps)), recovered=True)


@pytest.mark.parametrize(
    ("made", "truth", "whole", "met", "wrong"),
    [
        (attempt(Outcome.OK, 16, 16), COMPLETE, True, False, []),
        (attempt(Outcome.RANK_FAIL, 16, 15), SHORT, False, True, []),
        (attempt(Outcome.RANK_FAIL, 16, 16), COMPLETE, True, True, []),  # recovered: a rank could not write it
        (attempt(None), COMPLETE, True, False, ["no exit record"]),
        (attempt(Outcome.OK, evidence=()), COMPLETE, True, False, ["without evidence"]),
        (attempt(Outcome.LOST), SHORT, False, False, ["nobody ended it"]),
        (attempt(Outcome.OK, 16, 15), SHORT, False, False, ["its ranks completed", "its trace is not whole"]),
        (attempt(Outcome.RANK_FAIL, 16, 16), COMPLETE, True, False, ["all ranks completed all steps"]),
        (attempt(Outcome.RANK_FAIL), COMPLETE, False, True, ["no trace has them, the record names no other"]),
        (attempt(Outcome.RANK_FAIL, 16, 16), SHORT, False, True, ["steps of ranks [1] that were never completed"]),
    ],
)  # fmt: skip
def test_faults_of_an_attempt_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Attempt, truth: Truth, whole: bool, met: bool,
    wrong: Sequence[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(fault_checks, "is_whole", lambda path, truth: whole)
    faults = check_attempt(tmp_path, made, truth, met, Path)
    assert len(faults) == len(wrong), faults
    assert all(part in text for part, text in zip(wrong, faults, strict=True)), faults


def test_a_remaining_process_is_reported(tmp_path: Path) -> None:
    stays = subprocess.Popen(["sleep", "1000"], env={**os.environ, "PLACE": f"{tmp_path}/x"})
    try:
        # Its command line is empty for a moment after Popen has seen it start.
        until(Path(f"/proc/{stays.pid}/cmdline").read_bytes, "the process has its command line")
        assert [text.split()[:2] for text in processes_of(tmp_path)] == [[str(stays.pid), "sleep"]]
    finally:
        stays.kill()
        stays.wait()
    assert processes_of(tmp_path) == []
