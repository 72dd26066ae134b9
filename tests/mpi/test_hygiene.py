"""Files of a real sweep: no secret in any byte, none world-writable."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from hpc.model.trace_file import read_trace
from launch.cluster.local import what_is_missing
from tests.mpi.attempts import HERE
from tests.mpi.file_checks import holding, node_local, written_by_everybody
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = HERE / "user_secrets.py"


def sweep(folder: Path, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """A sweep on this machine with umask 0."""
    argv = [sys.executable, "-m", "hpc.sweep", "--cluster", "local", "--gpus-per-node", "0", "--repeats", "1",
            "--nodes", "2", "--no-baseline", "--backend", "mpi", "--steps", "8", "--warmup", "5", *words]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S, umask=0
    )


def planted(secret: str) -> dict[str, str]:
    """An environment with the secret in many variables."""
    names = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "SSH_AUTH_SOCK", "GITHUB_PAT",
             "SLURM_JWT", "NCCL_API_KEY", "TORCH_HUB_TOKEN", "UCX_PASSWORD", "SENTRY_DSN", "Authorization")  # fmt: skip
    by_value = {"NCCL_PROXY": f"http://me:{secret}@proxy:3128", "TRACKING_URI": f"https://me:{secret}@host/x"}
    return {**dict.fromkeys(names, secret), **by_value}


def test_a_sweep_leaves_no_secret_and_no_world_writable_file(tmp_path: Path) -> None:
    if missing := what_is_missing():
        pytest.skip("; ".join(missing))
    secret = f"hush{secrets.token_hex(8)}"
    done = sweep(tmp_path, planted(secret), "--workload", f"{WORKLOADS}:Discreet,{WORKLOADS}:Talkative")
    outcomes = [json.loads(path.read_text())["outcome"] for path in (tmp_path / "traces").glob("*.exit.json")]
    assert sorted(outcomes) == ["ok", "rank_fail"], done.stdout + done.stderr

    assert holding(secret, tmp_path, *node_local()) == []
    assert secret not in done.stdout + done.stderr
    assert written_by_everybody(tmp_path, *node_local()) == []

    # Redaction is marked, and the failure is still reported.
    note = next((tmp_path / "traces").glob("*Talkative*.rank*.json"))
    message = json.loads(note.read_text())["message"]
    assert message.startswith("WANDB_API_KEY=(left out) is refused") and "'steps': 3" in message
    assert "https://(left out)@host/artifacts" in next((tmp_path / "jobs" / "logs").glob("*Talkative*.err")).read_text()
    trace = read_trace(next((tmp_path / "traces").glob("*Discreet*.h5")))
    variables = trace.environment["variables"]
    assert (variables["NCCL_API_KEY"], variables["NCCL_PROXY"]) == ("(left out)", "(left out)")


def test_a_script_run_by_hand_leaves_no_world_writable_file(tmp_path: Path) -> None:
    if missing := what_is_missing():
        pytest.skip("; ".join(missing))
    written = sweep(tmp_path, {}, "--workload", "delay", "--option", "compute_ms=1", "--dry-run")
    assert written.returncode == 0, written.stderr
    script = tmp_path / "jobs" / "2n.sh"
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, umask=0, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "traces").glob("*.h5"))
    assert written_by_everybody(tmp_path, *node_local()) == []


def test_a_secret_for_the_runs_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = sweep(tmp_path, {}, "--workload", "delay", "--env", "WANDB_API_KEY=hush")
    assert done.returncode == 2
    assert "export it where you start the sweep instead" in done.stderr and "hush" not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
    site = tmp_path / "site.toml"
    site.write_text('[env]\nTRACKING_URI = "https://me:hush@host/x"\n')
    done = sweep(tmp_path, {}, "--workload", "delay", "--cluster", "slurm", "--site", str(site))
    assert done.returncode == 2
    assert "env TRACKING_URI looks like a secret" in done.stderr and "hush" not in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["site.toml"]


def test_the_checks_of_this_file_can_fail(tmp_path: Path) -> None:
    """A secret in a plain file, in compressed HDF5, in an attribute, and a world-writable file are detected."""
    (tmp_path / "plain.txt").write_text("x hush1 x")
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file.create_dataset("script", data=[b"a" * 64 + b"hush2"] * 99, compression="gzip")
        file.attrs["facts"] = "hush3"
    assert [Path(path).name for path in holding("hush1", tmp_path)] == ["plain.txt"]
    for secret in ("hush2", "hush3"):
        assert [Path(path).name for path in holding(secret, tmp_path)] == ["packed.h5"]
    (tmp_path / "plain.txt").chmod(0o666)
    assert len(written_by_everybody(tmp_path)) == 1
