"""Commands of a user without HOME and without an entry in passwd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launch.cluster import local
from tests.homeless import PREFIX, USER, homeless_environ
from tests.unit.commands import DRY_RUN
from tests.unit.sweep_command import NO_SLURM
from tests.unit.traces import make_run, make_trace, put


def command(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    unshare = ("/usr/bin/env", *PREFIX, "env", f"PATH={NO_SLURM}")
    return subprocess.run(
        [*unshare, sys.executable, "-m", *argv], cwd=cwd, env=homeless_environ(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [DRY_RUN, ("parse.summarize", "traces", "--ledger"), ("hpc.sweep", "recover", "traces"), ("hpc.sweep", "list")],
    ids=lambda argv: argv[0],
)
def test_a_command_needs_no_home(argv: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    put(tmp_path / "traces", make_trace(make_run()))
    done = command(*argv, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("action", ["start", "status", "stop", "env"])
def test_the_development_cluster_asks_for_a_folder(action: str, tmp_path: Path) -> None:
    done = command("launch.devcluster", action, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"devcluster: no folder for the cluster: HOME is not set and user {USER} has no entry in passwd; name one with "
        "--root DIR\n"
    )


def test_a_tilde_without_a_home_is_one_line(tmp_path: Path) -> None:
    done = command("launch.devcluster", "status", "--root", "~/cluster", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "devcluster: --root ~/cluster: Could not determine home directory.\n"


def test_ranks_get_a_home_only_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert not any(argument.startswith("HOME=") for argument in local.launcher())

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert f"HOME={local.NO_HOME}" in local.launcher()
