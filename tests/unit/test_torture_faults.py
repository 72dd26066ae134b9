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
from tests.torture.fault_checks import Truth, check_attempt, check_local_trace, path_on, processes_of, read_truth
from tests.torture.fault_run import fault_table, plan_trials
from tests.torture.fault_trials import KINDS, TWENTY, Result
from tests.torture.injector import Fault, Injection, build, counts, every_call, injections
from tests.torture.truth import too_many
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


def test_calls_are_counted_by_module(library: Path, tmp_path: Path) -> None:
    env = {**os.environ, **every_call([f"{tmp_path}/"]).variables(library, tmp_path / "state")}
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "a.json").write_text("{}")
    argv = [sys.executable, "-m", "json.tool", str(tmp_path / "place" / "a.json")]
    subprocess.run(argv, env=env, capture_output=True, check=True)
    subprocess.run(["cat", str(tmp_path / "place" / "a.json")], env=env, capture_output=True, check=True)
    calls = counts(injections(tmp_path / "state"), {"place": f"{tmp_path}/place", "other": "/elsewhere"})
    assert (calls["json.tool", "open", "place"], calls["cat", "open", "place"]) == (1, 1)
    assert {area for _, _, area in calls} == {"place"}
    assert int.from_bytes((tmp_path / "state").read_bytes(), sys.byteorder) >= sum(calls.values())


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


def test_a_node_local_trace_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths: list[Path] = []
    monkeypatch.setattr(fault_checks, "is_whole", lambda path, truth: bool(paths.append(path)) or len(paths) == 1)
    assert check_local_trace("box:/dev/shm/x.h5", COMPLETE, 1, path_on(None)) == []
    assert check_local_trace("box:/dev/shm/x.h5", COMPLETE, 1, path_on(None)) == [
        "attempt 1 lost: no whole trace is at box:/dev/shm/x.h5"
    ]
    assert paths == [Path("/dev/shm/x.h5")] * 2


def test_the_ranks_account_is_read(tmp_path: Path) -> None:
    for name, steps in {"1.10.0": 16, "1.11.1": 16, "2.12.0": 16, "2.13.1": 3}.items():
        (tmp_path / f"{name}.steps").write_bytes(b"." * steps)
    truth = read_truth(tmp_path, ranks=2, planned=16)
    assert (truth.complete, truth.is_complete(2), truth.is_complete(3)) == ([1], False, False)
    assert too_many({0: 16, 1: 4}, truth.completed(2)) == [1]


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


def test_twenty_trials_have_all_kinds_and_a_seed_repeats_them() -> None:
    planned = plan_trials(40, 3, None, None)
    assert (
        sorted(trial.kind for trial in planned[:20]) == sorted(trial.kind for trial in planned[20:]) == sorted(TWENTY)
    )
    assert planned == plan_trials(40, 3, None, None) != plan_trials(40, 4, None, None)
    (repeated,) = plan_trials(1, 9, planned[7].kind, planned[7].seed)
    assert repeated == planned[7]


def test_the_table_counts_faults_met_and_wrong() -> None:
    usual = Result(number=1, kind="script", seed=1, what="x", fired=1, outcomes=["ok"], wrong=[], took_s=1.0)
    results = [usual, replace(usual, fired=0, outcomes=["rank_fail"], wrong=["lost"]), replace(usual, kind="hang")]
    rows = {row.split()[0]: row.split()[1:] for row in fault_table(results).splitlines()[1:]}
    assert rows == {"script": ["2", "1", "1", "1"], "hang": ["1", "1", "1", "0"]}
    assert "again: --fault-seed 1 --only-fault script" in str(results[1])
    assert set(rows) <= set(KINDS)


def test_calls_are_counted_by_process_call_and_area() -> None:
    made = [Injection(process="p", call="open", path="/a/x")] * 2 + [Injection(process="p", call="open", path="/b")]
    assert counts(made, {"a": "/a", "b": "/b"}) == {("p", "open", "a"): 2, ("p", "open", "b"): 1}
