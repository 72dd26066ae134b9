"""Which traces tests.truth.fault_run takes for the runs of a point."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpc.model.trace_file import write_trace
from tests.truth.fault_run import runs_in
from tests.truth.run import TruthError
from tests.unit.ledger_traces import run_of, trace_of

pytestmark = pytest.mark.all


def test_of_a_run_made_again_the_last_attempt_counts(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for repeat, attempts in ((2, 1), (1, 12)):  # 12: by number, not by name
        trace = trace_of(run_of(measured_steps=10, repeat=repeat))
        for attempt in range(1, attempts + 1):
            its = dataclasses.replace(trace, attempt=attempt)
            write_trace(tmp_path / "traces" / f"{trace.run_id}_{attempt}.h5", its)
    assert [(trace.run.repeat, trace.attempt) for trace in runs_in(tmp_path)] == [(1, 12), (2, 1)]


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TruthError, match="holds no traces"):
        runs_in(tmp_path)
