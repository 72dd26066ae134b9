"""The contract of every backend across nodes: 2 nodes × 2 ranks of a real Slurm, each node with a name of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc.backends import TRAINERS, missing_modules
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "tests" / "mpi" / "ranks" / "contract.py"
ON_CPUS = [name for name, entry in TRAINERS.items() if not entry.one_rank_per_node]


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=() if name == "mpi" else pytest.mark.all) for name in ON_CPUS],
)
def test_ranks_of_two_nodes_learn_what_one_process_learns(slurm_env: dict[str, str], backend: str) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    srun = ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=1", "--mpi=pmix",
            "--kill-on-bad-exit=1"]  # fmt: skip
    done = subprocess.run(
        [*srun, sys.executable, str(CONTRACT), backend, "joined:3:fp32"], cwd=ROOT, capture_output=True,
        env={**slurm_env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "joined:3:fp32 holds on 4 ranks" in done.stdout
