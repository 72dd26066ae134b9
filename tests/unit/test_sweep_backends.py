"""Messages about backends that cannot run on the target, before anything is submitted."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpc import backends
from tests.sweeps import ROOT, without_modules
from tests.unit.fake_commands import write_program
from tests.unit.sweep_command import NO_SLURM, plan_of, sweep

TORCH_LINE = "backend torch-ddp cannot run: torch is not installed here: pip install -e '.[torch]'\n"
PADDLE_LINE = "backend paddle-fleet cannot run: paddle is not installed here: pip install -e '.[paddle]'\n"
HOROVOD_LINE = (
    "backend tensorflow-horovod cannot run: tensorflow is not installed here: pip install -e '.[tensorflow]'; "
    "horovod is not installed here: make horovod\n"
)


def test_backends_that_cannot_run_here_are_named_with_the_fix_and_stay_in_the_plan(tmp_path: Path) -> None:
    env = without_modules(tmp_path / "hiding", "torch", "tensorflow", "horovod")
    argv = ["--nodes", "1,2", "--backend", "torch-ddp,paddle-fleet,tensorflow-horovod", "--cluster", "local"]
    done = sweep(tmp_path, *argv, "--dry-run", env=env)
    assert done.returncode == 0, done.stderr
    advice = "their runs end as launch_fail; the same command runs them once they can\n"
    assert TORCH_LINE + HOROVOD_LINE + advice in done.stdout.replace(PADDLE_LINE, "")
    plan = plan_of(tmp_path)
    assert {run["backend"] for run in plan["runs"]} == {"torch-ddp", "paddle-fleet", "tensorflow-horovod"}


def test_nothing_is_written_where_none_of_the_backends_can_run(tmp_path: Path) -> None:
    write_program(tmp_path, "mpiexec", "")
    env = without_modules(tmp_path / "hiding", "torch", "tensorflow", "horovod")
    argv = ["--nodes", "1", "--backend", "torch-ddp,tensorflow-horovod", "--cluster", "local"]
    done = sweep(tmp_path, *argv, env=env, path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 1
    assert done.stderr == f"rankwise sweep: {TORCH_LINE.strip()}; {HOROVOD_LINE}"
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize(
    ("site", "reported"),
    [
        ("", True),
        ('interpreter = {torch = "/opt/python"}', False),
        ('interpreter = {default = "/opt/python"}', False),
        ('interpreter = {paddle = "/opt/python"}', True),
        ('container = "pyxis"\nimages = {default = "x.sqsh"}', False),
        ('modules = ["PyTorch"]', False),
        ('env = {PYTHONPATH = "/opt/packages"}', False),
    ],
)
def test_packages_are_judged_where_this_interpreter_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str, reported: bool
) -> None:
    (tmp_path / "site.toml").write_text(f"gpus_per_node = 4\ncpus_per_node = 4\n{site}\n")
    argv = ["--nodes", "1", "--site", "site.toml", "--backend", "torch-ddp"]
    monkeypatch.setattr(backends, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    assert (TORCH_LINE in sweep(tmp_path, *argv, "--dry-run", path=NO_SLURM).stdout) == reported
    done = sweep(tmp_path, *argv, path=NO_SLURM)
    assert done.returncode == 1
    hint = f"{TORCH_LINE.strip()}; if the nodes have it, name their Python in [interpreter] of the site file\n"
    assert (hint in done.stderr) == reported
    assert ("no Slurm controller answers here" in done.stderr) != reported


def test_a_horovod_built_for_another_framework_is_reported(tmp_path: Path) -> None:
    horovod = tmp_path / "packages" / "horovod"
    horovod.mkdir(parents=True)
    (horovod / "__init__.py").write_text("")
    (horovod / "metadata.json").write_text('{"pytorch": "1.0"}')
    argv = ["--nodes", "1", "--backend", "torch-horovod", "--cluster", "local", "--dry-run"]
    done = sweep(tmp_path, *argv, env={"PYTHONPATH": f"{horovod.parent}:{ROOT}"})
    assert done.returncode == 0, done.stderr
    assert "backend torch-horovod: Horovod was built against torch 1.0, installed is torch 2." in done.stdout
    assert "cannot run" not in done.stdout


def test_list_shows_what_is_installed_and_imports_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys, launch.catalog\n"
        "try: launch.catalog.main(['backends'])\n"
        "finally: print('loaded', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    env = {**os.environ, **without_modules(tmp_path / "hiding", "tensorflow", "horovod")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert "mpi (numpy): installed here\n" in done.stdout
    assert (
        HOROVOD_LINE.replace("backend tensorflow-horovod cannot run", "tensorflow-horovod (tensorflow)") in done.stdout
    )
    loaded = set(done.stdout.rpartition("loaded")[2].split())
    assert "argparse" in loaded
    assert not loaded & {"torch", "tensorflow", "paddle", "horovod", "numpy", "mpi4py"}
