"""Files of a real sweep: no secret in any byte, none world-writable."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.model.trace_file import read_trace
from launch.scheduler.local import what_is_missing
from tests.mpi.attempts import HERE
from tests.mpi.file_checks import holding, node_local, written_by_everybody
from tests.secret_forms import SECRET_FORMS
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


@pytest.mark.parametrize("fails", [False, True])
def test_an_observed_script_gets_its_secrets_and_no_file_or_output_has_them(tmp_path: Path, fails: bool) -> None:
    pytest.importorskip("torch")
    secret = f"hush{secrets.token_hex(8)}"
    given = [argument.replace("hush", secret) for form in SECRET_FORMS for argument in form]
    script, folder = tmp_path / "login.py", tmp_path / "out"
    script.write_text(LOGIN.format(expected=sum(secret in argument for argument in given), fails=fails))
    folder.mkdir()

    def run(module: str, *words: str) -> str:
        done = subprocess.run([sys.executable, "-m", module, *words], cwd=folder, env=env, capture_output=True,
                              text=True, check=False, timeout=LIMIT_S)  # fmt: skip
        return done.stdout + done.stderr

    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [*given, "--num-tokens", "4096"]
    printed = run("hpc.observe", "--gpus-per-node", "0", "--warmup", "5", "--", str(script), *arguments)
    assert "the script has them all" in printed
    assert "stored as --password (left out), --password=(left out)" in printed
    if fails:
        assert "ValueError: refused: --password (left out)" in printed
        (copies,) = (folder / "traces").glob("*.partial")
        stem = copies.name.removesuffix(".partial")
        printed += run("hpc.recovery", "recover", "traces", "--stem", stem)
    (trace,) = (folder / "traces").glob("*.h5")
    stored = read_trace(trace).run.arguments
    assert list(stored[-2:]) == ["--num-tokens", "4096"] and "(left out)" in stored
    printed += run("parse.summarize", "traces", "--format", "json")
    if not fails:
        printed += run("parse.summarize", "traces", "--ledger", "--out", "summary.csv")
        printed += run("parse.report", "traces", "--out", "page.html")
        assert (folder / "page.html").exists()
    assert secret not in printed
    assert holding(secret, folder, *node_local()) == []


LOGIN = """
import os, sys
import torch
assert sum("hush" in argument for argument in sys.argv) == {expected}
print("the script has them all", flush=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(400, 4))
for step, (batch,) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if {fails} and step == 60:
        hook, sys.excepthook = sys.excepthook, lambda kind, error, trace: hook(kind, error, trace)
        sys.stderr = open(os.devnull, "w")  # what a script prints by itself is its own
        raise ValueError("refused: --password " + sys.argv[2])
"""
"""A script that checks its secrets and trains."""


def test_a_variable_of_a_launch_is_refused_where_it_is_a_secret(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_TOKEN": "hush"}
    (tmp_path / "train.py").touch()
    argv = [sys.executable, "-m", "hpc.observe", "--env", "HF_TOKEN", "--", "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 2 and "leave it out of --env, the ranks inherit it" in done.stderr
    assert "hush" not in done.stdout + done.stderr and holding("hush", tmp_path / "traces") == []


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
