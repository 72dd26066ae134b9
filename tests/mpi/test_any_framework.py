"""Scripts that train without torch, on two real ranks by mpiexec: steps and data by lines or hooks, and who is late."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, GRADS_READY, REDUCED
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from parse.ledger.breakdown import step_breakdown
from parse.ledger.verdict import CANNOT_TELL, Merged
from parse.ledger.verdicts import point_verdicts
from tests.mpi.conftest import further
from tests.mpi.script_runs import ROOT, SCRIPTS
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.skipif(shutil.which("mpiexec") is None, reason="mpiexec is not here")
LATE_MS = 60


def launched(folder: Path, script: Path, *arguments: object, ranks: int = 2) -> Trace:
    """Its trace; the ranks are connected by TCP, because MPI is the script's."""
    words = [sys.executable, "-m", "hpc.observe", "--warmup", "10", "--", script, *arguments]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["mpiexec", "--oversubscribe", "-n", str(ranks), *map(str, words)], cwd=folder, env=environment,
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "traces").glob("*.h5")
    return read_trace(path)


def test_two_lines_show_who_waits_for_its_data(tmp_path: Path) -> None:
    trace = launched(tmp_path, SCRIPTS / "any_framework.py", "data", LATE_MS)
    assert trace.stamps.shape == (2, 60, 6) and (trace.samples == 4).all()
    assert (trace.stamps[:, :, [BEGIN, BATCH_READY, END]] != ABSENT).all()
    data_ms = (trace.stamps[..., BATCH_READY] - trace.stamps[..., BEGIN]) / 1e6
    assert (data_ms[1] >= LATE_MS).all()
    assert trace.reports[0].extra["connections"] == "tcp"
    late = point_verdicts([step_breakdown(trace)]).verdict
    assert late.ranks == (1,) and max(late.cause, key=lambda name: late.cause[name]) == "data"
    assert LATE_MS / 2 < late.costs < 2 * LATE_MS


def test_ranks_that_never_meet_are_not_compared(tmp_path: Path) -> None:
    breakdown = step_breakdown(launched(tmp_path, SCRIPTS / "any_framework.py", "alone", LATE_MS))
    assert breakdown.merged is not None and breakdown.merged.ends_early > 40
    late = point_verdicts([breakdown]).verdict
    assert late.kind is CANNOT_TELL and isinstance(late.because, Merged)
    assert np.ptp(breakdown.rank_ns.sum(axis=1)) > LATE_MS / 2 * 1e6


@pytest.mark.all
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not here")
def test_fit_of_keras_is_measured_without_a_line(tmp_path: Path) -> None:
    """84 batches of 8, the last of each epoch of 2; the evaluation is a pause."""
    trace = launched(tmp_path, SCRIPTS / "keras_fit.py", ranks=1)
    assert trace.stamps.shape == (1, 84, 6)
    assert trace.samples[0].tolist() == [*[8] * 41, 2] * 2
    begins_ms = (trace.stamps[0, 10:, BATCH_READY] - trace.stamps[0, 10:, BEGIN]) / 1e6
    assert (begins_ms >= 20).all()
    (pause,) = trace.reports[0].extra["script"]["pauses"]
    assert "evaluation" in pause["kind"] and pause["step"] == 42


@pytest.mark.skipif(bool(missing_modules("torch-horovod")), reason="Horovod is not here")
def test_horovods_optimizer_shows_who_is_waited_for(tmp_path: Path) -> None:
    trace = launched(tmp_path, SCRIPTS / "horovod_torch.py", LATE_MS)
    assert trace.stamps.shape == (2, 60, 6) and (trace.stamps[:, 10:] != ABSENT).all()
    assert not step_breakdown(trace).problems
    computes_ms, waits_ms = (
        (trace.stamps[:, 10:, after] - trace.stamps[:, 10:, before]) / 1e6
        for before, after in ((BATCH_READY, GRADS_READY), (GRADS_READY, REDUCED))
    )
    assert (computes_ms[1] >= LATE_MS).all()
    assert np.median(waits_ms[0]) > LATE_MS / 4


@pytest.mark.parametrize("how", [*further("compiled", "calls", "by hand")])
def test_loops_that_reduce_by_horovod_in_tensorflow_need_no_line(tmp_path: Path, how: str) -> None:
    """Compiled, a step is a call of the function that reduces inside; the first batch came before any reduction."""
    trace = launched(tmp_path, SCRIPTS / "horovod_tensorflow.py", how, ranks=1)
    assert trace.stamps.shape == (1, 60, 6) and (trace.samples[0, 1:] == 4).all()
    assert (trace.stamps[0, 1:, [BEGIN, BATCH_READY, END]] != ABSENT).all()
