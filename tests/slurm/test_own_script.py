"""An unchanged training script on a real Slurm: two nodes with clocks of their own, two ranks on each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from hpc.model.trace_file import read_trace
from tests.slurm.conftest import Command
from tests.sweeps import outcomes

LATE_LOADER = Path(__file__).resolve().parents[1] / "observe_scripts" / "late_loader.py"


def test_a_sweep_measures_a_script_and_names_the_late_rank(sweep: Command, command: Command, tmp_path: Path) -> None:
    if missing := missing_modules(SCRIPT):
        pytest.skip("; ".join(missing))
    script = tmp_path / 'my "own" script\'s.py'
    script.write_text(LATE_LOADER.read_text())
    words = ["--truth", str(tmp_path / 'it\'s $(true) "so"'), "--late-rank", "3", "--sleep-ms", "60", "--steps", "70"]
    done = sweep("--nodes", "2", "--ranks-per-node", "2", "--no-baseline", "--repeats", "1", "--gpus-per-node", "0",
                 "--cpus-per-rank", "1", "--warmup", "10", "--script", script.name, "--", *words)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(outcomes(tmp_path).values()) == ["ok"]
    (path,) = (tmp_path / "traces").glob("*.h5")
    trace = read_trace(path)
    assert trace.stamps.shape == (4, 70, 6)
    assert [rank["hostname"] for rank in trace.ranks] == ["node1", "node1", "node2", "node2"]
    for rank in range(4):
        truth = json.loads((Path(words[1]) / f"rank{rank}.json").read_text())
        assert truth["arguments"] == words
        assert truth["variables"] == {
            "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
        }  # fmt: skip
    shown = command(sys.executable, "-m", "parse.summarize", str(tmp_path / "traces"), "--ledger", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    (ledger,) = json.loads(shown.stdout)["ledgers"]
    cause = ledger["verdict"]["cause"]
    assert (ledger["verdict"]["ranks"], max(cause, key=lambda name: cause[name])) == ([3], "data")
