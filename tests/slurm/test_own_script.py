"""An unchanged training script on a real Slurm: two nodes with clocks of their own, two ranks on each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from hpc.model.trace_file import read_trace
from parse.ledger.verdict import PERSISTENT
from tests.slurm.conftest import Command
from tests.sweeps import outcomes
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import CLOCK_DISTANCE_S

LATE_LOADER = Path(__file__).resolve().parents[1] / "observe_scripts" / "late_loader.py"


def persistent_straggler(summary: str) -> dict[str, Any]:
    """Who is late all the time at the only point. Single steps that load made late may cost more."""
    (ledger,) = json.loads(summary)["ledgers"]
    named: list[dict[str, Any]] = [finding["what"] for finding in ledger["findings"] if finding["kind"] == "straggler"]
    (verdict,) = (each for each in named if each["kind"] == PERSISTENT)
    return verdict


def test_a_sweep_measures_a_script_and_names_the_late_rank(sweep: Command, command: Command, tmp_path: Path) -> None:
    if missing := missing_modules(SCRIPT):
        pytest.skip("; ".join(missing))
    script = tmp_path / 'my "own" script\'s.py'
    script.write_text(LATE_LOADER.read_text())
    words = ["--truth", str(tmp_path / 'it\'s $(true) "so"'), "--late-rank", "3", "--sleep-ms", "200", "--steps", "50"]
    done = sweep("--nodes", "2", "--ranks-per-node", "2", "--no-baseline", "--repeats", "1", "--gpus-per-node", "0",
                 "--cpus-per-rank", "1", "--warmup", "10", "--script", script.name, "--", *words)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(outcomes(tmp_path).values()) == ["ok"]
    (path,) = (tmp_path / "traces").glob("*.h5")
    trace = read_trace(path)
    assert trace.stamps.shape == (4, 50, 6)
    assert [rank["hostname"] for rank in trace.ranks] == ["node1", "node1", "node2", "node2"]
    for rank in range(4):
        truth = json.loads((Path(words[1]) / f"rank{rank}.json").read_text())
        assert truth["arguments"] == words
        assert truth["variables"] == {
            "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
        }  # fmt: skip
    shown = command(sys.executable, "-m", "parse.summarize", str(tmp_path / "traces"), "--ledger", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    straggler = persistent_straggler(shown.stdout)
    cause = straggler["cause"]
    assert (straggler["ranks"], max(cause, key=lambda name: cause[name])) == ([3], "data")


def test_ranks_that_no_mpi_connects_are_measured_on_one_time_axis(cluster: DevCluster, command: Command,
                                                                  tmp_path: Path) -> None:  # fmt: skip
    if missing := missing_modules(SCRIPT):
        pytest.skip("; ".join(missing))
    done = command(
        "srun", "--mpi=none", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "env", "OMP_NUM_THREADS=1",
        "GLOO_SOCKET_IFNAME=lo",
        sys.executable, "-m", "hpc.observe", "--warmup", "10", "--", str(LATE_LOADER), "--truth", "truth",
        "--late-rank", "3", "--sleep-ms", "200", "--steps", "50",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "traces").glob("*.h5")
    trace = read_trace(path)
    assert trace.stamps.shape == (4, 50, 6)
    assert [rank["connections"] for rank in trace.ranks] == ["tcp"] * 4
    assert [rank["hostname"] for rank in trace.ranks] == ["node1", "node1", "node2", "node2"]
    apart_s = -CLOCK_DISTANCE_S if cluster.shape.clocks else 0
    for rank, truth_s in enumerate((0, 0, apart_s, apart_s)):
        error_ns, bound_ns = trace.clock_offset_ns[rank] - truth_s * 1e9, trace.clock_bound_ns[rank]
        assert (np.abs(error_ns) <= bound_ns).all()
        assert (bound_ns > 0).all() == (truth_s != 0)
    shown = command(sys.executable, "-m", "parse.summarize", str(tmp_path / "traces"), "--ledger", "--format", "json")
    assert persistent_straggler(shown.stdout)["ranks"] == [3]
