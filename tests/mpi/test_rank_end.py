"""How ranks end, on real ranks: whatever is raised ends all with a note, and nothing but a step costs a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.verdict import cause
from hpc.recovery.collect import collect
from tests.mpi.attempts import HERE, STEPS, Attempt, Ranks, spec

FILE = HERE / "user_ends.py"


@pytest.fixture
def attempt(ranks: Ranks, tmp_path: Path) -> Callable[..., Attempt]:
    def make(workload: str, *words: str, check: bool = False, telemetry: str = "off") -> Attempt:
        run = spec(workload=f"{FILE}:{workload}", telemetry=telemetry)
        return Attempt(ranks, tmp_path, run, *words, check=check)

    return make


@pytest.mark.parametrize(
    ("workload", "exception", "message"),
    [
        ("RaisesKeyboardInterrupt", "KeyboardInterrupt", ""),
        pytest.param("RaisesTheirOwn", "TheirOwn", "not an Exception", marks=pytest.mark.all),
        ("RaisesUnspeakable", "Unspeakable", "(its text cannot be shown: __str__ raised TheirOwn)"),
        ("UsesUpFiles", "OSError", "[Errno 24] Too many open files: '/dev/null'"),
    ],
)
def test_whatever_is_raised_leaves_a_note_and_ends_all_ranks(
    attempt: Callable[..., Attempt], workload: str, exception: str, message: str
) -> None:
    made = attempt(workload)
    assert made.done.returncode != 0
    note = cause(made.notes())
    assert note is not None, made.done.stderr
    assert (note.rank, note.outcome, note.step) == (1, Outcome.RANK_FAIL, 6)
    assert (note.exception, note.message) == (exception, message)
    assert "rank 1: rank_fail after step 6" in made.done.stderr
    collect(made.traces, made.stem)


@pytest.mark.parametrize("end", ["RemovesItsScript", "HasSomethingInjected"])
def test_what_happens_to_the_script_and_foreign_names_cost_nothing(attempt: Callable[..., Attempt], end: str) -> None:
    made = attempt(end, check=True)
    trace = made.trace()
    assert (trace.outcome, trace.evidence, trace.injected_ns) == (Outcome.OK, "", None)
    assert "NCCL_DEBUG=WARN" in trace.script
    assert made.left_nothing_but_its_trace()


def test_a_script_that_cannot_be_read_is_missing_with_a_remark(ranks: Ranks, tmp_path: Path) -> None:
    missing = tmp_path / "spool" / "slurm_script"
    made = Attempt(ranks, tmp_path, spec(), "--script", str(missing))
    trace = made.trace()
    assert (trace.outcome, trace.script) == (Outcome.OK, "")
    reason = f"FileNotFoundError: [Errno 2] No such file or directory: '{missing}'"
    assert trace.evidence == f"script missing on rank 0 ({reason})"
    assert (trace.ranks[0]["problems"], "problems" in trace.ranks[1]) == ({"script": reason}, False)
    assert f"script: {reason}" in made.done.stderr
    assert made.left_nothing_but_its_trace()


def test_losses_that_cannot_be_had_cost_no_trace(attempt: Callable[..., Attempt]) -> None:
    made = attempt("LosesItsLosses", check=True)
    trace = made.trace()
    assert (
        trace.evidence == "losses missing on rank 1 (Unspeakable: (its text cannot be shown: __str__ raised TheirOwn))"
    )
    assert np.isfinite(trace.losses[0]).all() and np.isnan(trace.losses[1]).all()
    assert trace.steps_completed.tolist() == [STEPS, STEPS]
    assert made.left_nothing_but_its_trace()


def test_what_describes_a_run_costs_no_trace(attempt: Callable[..., Attempt]) -> None:
    made = attempt("BreaksWhatDescribes", telemetry="on", check=True)
    trace = made.trace()
    reason = "RuntimeError: out of order"
    assert trace.ranks[0]["problems"] == {"telemetry": reason, "copies": reason}
    assert trace.environment["problems"] == {"environment": reason, "job": reason, "project": reason}
    for what in ("telemetry", "copies", "environment", "job", "project"):
        assert f"{what} missing on rank 0 ({reason})" in trace.evidence
    assert trace.telemetry is None and np.isfinite(trace.losses).all()


def test_what_cannot_be_stored_costs_no_measurement(attempt: Callable[..., Attempt]) -> None:
    trace = attempt("CannotBeStored", check=True).trace()
    assert "telemetry and script missing (RuntimeError: can't write this)" in trace.evidence
    assert (trace.environment, trace.script, trace.ranks) == ({}, "", [{"rank": 0}, {"rank": 1}])
    assert (np.diff(trace.stamps, axis=2) >= 0).all()


def test_a_journal_whose_header_cannot_be_renewed_costs_no_trace(attempt: Callable[..., Attempt]) -> None:
    trace = attempt("FillsItsNode", check=True).trace()
    assert "the journal's latest clock missing on ranks 0-1 (OSError: [Errno 28] No space left" in trace.evidence
    assert trace.clock_local_ns.shape == (2, 3)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("LeavesAThread", marks=pytest.mark.all),
        "HangsInAnExitHandler",
        pytest.param("HangsInFinalize", marks=pytest.mark.all),
    ],
)
def test_a_rank_that_does_not_end_is_ended_once_its_trace_is_written(attempt: Callable[..., Attempt], end: str) -> None:
    made = attempt(end)
    assert made.trace().outcome is Outcome.OK
    assert not made.notes()
    assert made.done.stderr.count("Timeout (0:00:20)!") == 2
    assert made.left_nothing_but_its_trace()


def test_a_backend_that_cannot_leave_its_group_is_named_and_no_failure(attempt: Callable[..., Attempt]) -> None:
    made = attempt("CannotLeave", check=True)
    assert "leaving the group of ranks: RuntimeError: group is gone" in made.done.stderr
    assert made.left_nothing_but_its_trace()
