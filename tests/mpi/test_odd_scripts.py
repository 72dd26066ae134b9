"""Scripts that do what scripts should not: each ends with the right outcome and one plain message, and none hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT
from hpc.recovery.folders import attempt_folders
from hpc.recovery.stacks import STACK_SIGNAL
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.script_runs import ROOT, SCRIPTS, by_hand, script_spec
from tests.waiting import until

ODD = SCRIPTS / "odd.py"

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))


def test_a_script_of_many_bad_habits_is_measured(ranks: Ranks, tmp_path: Path) -> None:
    """It closes all files, leaves its folder, takes all rights off new files, gives its children another PYTHONPATH,
    sends its output away, ignores signals, reduces in groups of its own and leaves by os._exit(0)."""
    words = "torchrun+closes+moves+path+redirects+ignores+groups+leaves"
    trace = Attempt(ranks, tmp_path, script_spec(tmp_path, words, script=ODD, telemetry="off")).trace()
    assert trace.outcome is Outcome.OK
    assert trace.stamps.shape == (2, 50, 6)
    assert (trace.samples == 4).all()
    assert (trace.stamps[:, trace.blocks[0, 0] :] != ABSENT).all()


def test_a_script_that_catches_everything_is_ended_with_the_rank_that_failed(ranks: Ranks, tmp_path: Path) -> None:
    """Rank 0 catches the lost connection and SIGTERM does not end it: SIGKILL does."""
    attempt = Attempt(ranks, tmp_path, script_spec(tmp_path, "fails+catches+ignores", script=ODD), check=False)
    assert attempt.done.returncode != 0
    notes = [note for note in attempt.notes() if note.rank == 1]
    assert [note.outcome for note in notes] == [Outcome.RANK_FAIL]
    assert notes[0].message == "the script ended with exit status 7"


@pytest.mark.all
def test_a_process_that_another_replaces_is_measured(tmp_path: Path) -> None:
    done = by_hand(tmp_path, "--warmup", "5", "--", str(SCRIPTS / "processes.py"), "replaced")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.all
def test_a_step_that_is_compiled_whole_is_not_measured(tmp_path: Path) -> None:
    done = by_hand(tmp_path, "--warmup", "5", "--", str(ODD), "compiled")
    assert done.returncode == 3, done.stderr
    assert "nothing was measured: rank 0: no backward was seen" in done.stderr


def test_the_stacks_of_a_script_that_hangs_are_among_its_ranks(tmp_path: Path) -> None:
    """As the watchdog requests them, once the run makes no step."""
    (tmp_path / "hangs.py").write_text(
        "import time, torch\nfrom pathlib import Path\n"
        "def stuck_here():\n    Path('ready').touch()\n    time.sleep(7200)\nstuck_here()\n"
    )
    argv = [sys.executable, "-m", "hpc.observe", "--", "hangs.py"]
    process = subprocess.Popen(argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    try:
        until(lambda: (tmp_path / "ready").exists() or process.poll() is not None, "the script starts")
        assert process.poll() is None
        process.send_signal(STACK_SIGNAL)
        traces = tmp_path / "traces"
        until(lambda: "stuck_here" in written(traces) or process.poll() is not None, "its stacks are written")
        of_rank, _, script = written(traces).partition("its script:")
        assert "script.py" in of_rank and "stuck_here" in script
    finally:
        process.terminate()
        process.communicate()


def written(traces: Path) -> str:
    """The stacks of the only rank of the only attempt, so far."""
    stems = {path.name.removesuffix(".partial") for path in traces.glob("*.partial")}
    return "".join((at / "rank0.stacks").read_text() for stem in stems for at in attempt_folders(traces, stem))


@pytest.mark.all
def test_a_script_that_fails_at_once_blames_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import torch\nraise ValueError('no data at /data')\n")
    done = by_hand(tmp_path, "--", "fails.py")
    assert done.returncode == 5
    lines = [line for line in done.stderr.splitlines() if line.startswith("rank 0: ")]
    text = "the script ended with exit status 1: ValueError: no data at /data; it had made no step"
    assert lines == [f"rank 0: launch_fail: {text}"]
