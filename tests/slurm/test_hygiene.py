"""Clean hands on a cluster: what Slurm, the job script and the ranks write, by somebody whose umask is 0."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.attempts import HERE
from tests.mpi.file_checks import holding, node_local, written_by_everybody
from tests.mpi.test_hygiene import planted
from tests.slurm.conftest import NewRoot
from tests.waiting import LIMIT_S
from tools.devcluster.cluster import DevCluster

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = HERE / "user_secrets.py"

pytestmark = pytest.mark.all


def command(env: dict[str, str], cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**env, "PYTHONPATH": str(ROOT)}
    argv = (sys.executable, "-m", *argv)
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S, umask=0)


def test_no_secret_and_nothing_for_everybody_to_write_is_left(tmp_path: Path, new_root: NewRoot) -> None:
    root = new_root()
    started = command(dict(os.environ), tmp_path, "launch.devcluster", "start", "--nodes", "2", "--root", str(root))
    assert started.returncode == 0, started.stderr
    cluster = DevCluster.running(root)
    secret = f"hush{secrets.token_hex(8)}"
    environ = {name: value for name, value in planted(secret).items() if name != "SLURM_JWT"}  # Slurm would use it
    done = command(
        {**cluster.environ, **environ}, tmp_path, "hpc.sweep", "--site", str(cluster.site_file), "--nodes", "2",
        "--no-baseline", "--ranks-per-node", "1", "--cpus-per-rank", "1", "--repeats", "1", "--backend", "mpi",
        "--steps", "8", "--warmup", "5", "--workload", f"{WORKLOADS}:Discreet,{WORKLOADS}:Talkative",
    )  # fmt: skip
    outcomes = [json.loads(path.read_text())["outcome"] for path in (tmp_path / "traces").glob("*.exit.json")]
    assert sorted(outcomes) == ["ok", "rank_fail"], done.stdout + done.stderr

    # The job inherited the secret (Discreet trained), and nothing of it was kept.
    storage = [cluster.local_storage(name) for name in cluster.shape.node_names]
    assert holding(secret, tmp_path, *storage, *node_local()) == []
    assert secret not in done.stdout + done.stderr
    local = [path for folder in storage for path in folder.glob("rankwise*")]
    assert written_by_everybody(tmp_path, root, *local, *node_local()) == []
