"""Unchanged training scripts on two real ranks: what is measured is held against what the script wrote down itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.options import LOADER_FIGURES
from hpc.model.outcome import Outcome
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.recovery.collect import collect
from hpc.recovery.recover import main as recover
from parse.ledger.breakdown import names, step_breakdown
from parse.ledger.verdict import PERSISTENT
from parse.term_kinds import TERMS
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.script_runs import ROOT, SCRIPTS, WARMUP, by_hand, script_spec

SPAWNED = SCRIPTS / "spawned.py"
pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))


def truth_of(folder: Path, rank: int) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((folder / "truth" / f"rank{rank}.json").read_text())
    return truth


def recovered(attempt: Attempt) -> Trace:
    assert collect(attempt.traces, attempt.stem) == 2
    assert recover([str(attempt.traces)]) == 0
    return attempt.trace()


def test_a_script_is_measured_as_it_is_and_the_late_rank_is_named(ranks: Ranks, tmp_path: Path) -> None:
    run = script_spec(tmp_path, "--late-rank", "1", "--sleep-ms", "60", "--steps", "70", telemetry="off")
    attempt = Attempt(ranks, tmp_path, run)
    trace = attempt.trace()
    assert attempt.left_nothing_but_its_trace()
    assert trace.outcome is Outcome.OK
    assert trace.stamps.shape == (2, 70, 6)
    assert trace.blocks.tolist() == [[WARMUP, 70]]
    assert (trace.samples == 4).all()
    assert (trace.stamps[:, WARMUP:] != ABSENT).all()
    for rank in range(2):
        truth = truth_of(tmp_path, rank)
        assert truth["arguments"] == list(run.arguments)
        assert truth["variables"] == {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
        }  # fmt: skip
        data_ns = trace.stamps[rank, :, BATCH_READY] - trace.stamps[rank, :, BEGIN]
        slept_ns = np.array(truth["slept_ns"][:70])
        assert (data_ns[WARMUP:] >= slept_ns[WARMUP:]).all()
        assert trace.input is not None and list(trace.input_names) == [*LOADER_FIGURES]
        loaders_ns = trace.input[rank, WARMUP:, 0]
        assert (slept_ns[WARMUP:] <= loaders_ns).all() and (loaders_ns <= data_ns[WARMUP:]).all()
    verdict = persistent_straggler(attempt.traces)
    assert verdict["ranks"] == [1]
    assert max(verdict["cause"], key=lambda name: verdict["cause"][name]) == "data"
    assert verdict["cause"]["data"] > 30


@pytest.mark.all
def test_a_collective_in_every_fifth_step_is_a_meeting_of_these_steps(ranks: Ranks, tmp_path: Path) -> None:
    words = ("--epochs", "1", "--samples", "640", "--metric-every", "5")
    run = script_spec(tmp_path, *words, script=SCRIPTS / "ddp_loop.py", telemetry="off")
    trace = Attempt(ranks, tmp_path, run).trace()
    assert list(trace.meeting_names) == ["broadcast of buffers", "all-reduce"]
    assert trace.meetings is not None
    measured = np.arange(WARMUP, trace.stamps.shape[1])
    has = trace.meetings[:, WARMUP:, :, 0] != ABSENT
    assert has[:, :, 0].all()
    assert (has[:, :, 1] == (measured % 5 == 4)).all()
    breakdown = step_breakdown(trace)
    assert names(breakdown.borders) == TERMS
    assert breakdown.unmatched == ()


def persistent_straggler(traces: Path) -> dict[str, Any]:
    """Who is late all the time at the only point. Single steps that load made late may cost more."""
    argv = [sys.executable, "-m", "parse.summarize", str(traces), "--ledger", "--format", "json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (ledger,) = json.loads(done.stdout)["ledgers"]
    named: list[dict[str, Any]] = [finding["what"] for finding in ledger["findings"] if finding["kind"] == "straggler"]
    (verdict,) = (each for each in named if each["kind"] == PERSISTENT)
    return verdict


@pytest.mark.parametrize(
    ("end", "outcome", "message"),
    [
        pytest.param("exit", Outcome.RANK_FAIL, "exit status 7", marks=pytest.mark.all),
        ("kill", Outcome.RANK_FAIL, "signal 9 (SIGKILL)"),
        pytest.param("memory", Outcome.OOM, "MemoryError: no room for this batch", marks=pytest.mark.all),
        pytest.param(
            "abort", Outcome.RANK_FAIL, "signal 6 (SIGABRT) after its last step, at its very end", marks=pytest.mark.all
        ),
    ],
)
def test_a_script_that_dies_leaves_its_steps_and_the_reason(
    ranks: Ranks, tmp_path: Path, end: str, outcome: Outcome, message: str
) -> None:
    run = script_spec(tmp_path, "--end", end, *(("--steps", "30") if end == "abort" else ()))
    attempt = Attempt(ranks, tmp_path, run, check=False)
    assert attempt.done.returncode != 0
    assert "MPI_ABORT" not in attempt.done.stderr
    notes = [note for note in attempt.notes() if note.rank == 1]
    assert [(note.outcome, note.rank) for note in notes] == [(outcome, 1)]
    assert message in notes[0].message
    trace = recovered(attempt)
    assert trace.outcome is outcome
    assert trace.steps_completed.tolist() == [30, 30]
    assert trace.blocks.tolist() == [[WARMUP, 30]]


def test_of_a_script_that_never_steps_nothing_is_measured(ranks: Ranks, tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("import torch\nprint(torch.ones(1).item())\n")
    attempt = Attempt(ranks, tmp_path, script_spec(tmp_path, script=script), check=False)
    assert {note.outcome for note in attempt.notes()} == {Outcome.INVALID}
    assert "nothing was measured: ranks 0-1: no backward was seen" in attempt.notes()[0].message
    assert attempt.done.stderr.count("nothing was measured") == 1
    assert "MPI_ABORT" not in attempt.done.stderr


def test_steps_end_a_script_that_would_go_on(ranks: Ranks, tmp_path: Path) -> None:
    run = script_spec(tmp_path, "--steps", "1000000", measured_steps=15, telemetry="off")
    trace = Attempt(ranks, tmp_path, run).trace()
    assert trace.stamps.shape[1] == 25
    assert trace.blocks.tolist() == [[WARMUP, 25]]


@pytest.mark.parametrize(("options", "steps"), [((), 60), pytest.param(("--steps", "58"), 58, marks=pytest.mark.all)])
def test_ranks_that_the_script_starts_itself_are_those_of_the_trace(
    tmp_path: Path, options: tuple[str, ...], steps: int
) -> None:
    words = (str(tmp_path / "group"), "--sleep-ms", "40")
    done = by_hand(tmp_path, "--warmup", "10", "--cpus-per-rank", "1", *options, "--", str(SPAWNED), *words)
    assert done.returncode == 0, done.stderr
    (path,), (begin,) = (tmp_path / "traces").glob("*.h5"), (tmp_path / "traces").glob("*.begin.json")
    assert path.name.startswith("1n2g_script_spawned.py") and begin.name.startswith("1n2g_script_spawned.py")
    trace = read_trace(path)
    assert trace.stamps.shape[1] == steps
    assert (trace.samples == 4).all() and (trace.stamps[:, 10:] != ABSENT).all()
    assert [report.local_rank for report in trace.reports] == [0, 1]
    assert "counters of the rank's process missing on ranks 0-1" in trace.evidence
    verdict = persistent_straggler(tmp_path / "traces")
    assert (verdict["ranks"], verdict["cause"]["data"] > 30) == ([1], True)


@pytest.mark.all
def test_of_ranks_that_the_script_starts_itself_a_failure_is_of_their_run(tmp_path: Path) -> None:
    words = (str(tmp_path / "group"), "--sleep-ms", "0", "--steps", "4")
    done = by_hand(tmp_path, "--warmup", "10", "--", str(SPAWNED), *words)
    assert done.returncode == 3 and "the script made 4 steps" in done.stderr
    begun, note = sorted((tmp_path / "traces").glob("*.json"))
    assert begun.name.startswith("1n2g_script_spawned.py")
    assert note.name == begun.name.replace(".begin.", ".rank0.")


@pytest.mark.all
def test_a_script_whose_own_ranks_fail_says_how_far_they_were(tmp_path: Path) -> None:
    words = (str(tmp_path / "group"), "--sleep-ms", "0", "--fails-at", "30")
    done = by_hand(tmp_path, "--warmup", "10", "--", str(SPAWNED), *words)
    assert done.returncode == 1
    assert "of which no trace is made" in done.stderr and "ValueError: no more" in done.stderr
