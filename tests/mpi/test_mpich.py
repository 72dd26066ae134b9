"""MPICH from its wheel: a sweep under it, and singletons when its launcher starts ranks of another MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--cluster", "local", "--gpus-per-node", "0", "--nodes", "1", "--ranks-per-node", "2", "--no-baseline",
         "--repeats", "1", "--backend", "mpi", "--workload", "delay", "--steps", "8", "--warmup", "5")  # fmt: skip


@pytest.fixture(scope="module")
def mpich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of a virtual environment with only the MPICH wheel."""
    if (Path(sys.executable).absolute().parent / "mpiexec").exists():
        pytest.skip("the Open MPI wheel's mpiexec lies beside this interpreter and would be taken first")
    prefix = tmp_path_factory.mktemp("mpich")
    venv.create(prefix, with_pip=True)
    argv = [str(prefix / "bin" / "pip"), "install", "--quiet", "mpich>=4.3"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the MPICH wheel cannot be had here: {done.stderr.strip().splitlines()[-1]}")
    return prefix


def sweep(tmp_path: Path, mpich: Path, **env: str) -> tuple[subprocess.CompletedProcess[str], str, str]:
    """Runs one run under MPICH's mpiexec; returns the finished command, the outcome and the ranks' stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{mpich}/bin:{os.environ['PATH']}", **env}
    done = subprocess.run(
        [sys.executable, "-m", "hpc.sweep", *OPTIONS], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False, timeout=LIMIT_S,
    )  # fmt: skip
    [record] = (tmp_path / "traces").glob("*.exit.json")
    [errors] = (tmp_path / "jobs" / "logs").glob("*.err")
    return done, json.loads(record.read_text())["outcome"], errors.read_text()


def test_a_sweep_under_mpich(tmp_path: Path, mpich: Path) -> None:
    done, outcome, errors = sweep(tmp_path, mpich, MPI4PY_LIBMPI=f"{mpich}/lib/libmpi.so.12")
    assert (done.returncode, outcome) == (0, "ok"), done.stdout + errors
    # The script names the library too: by hand, from a shell that knows nothing of it, it does the same.
    script = tmp_path / "jobs" / "1n.sh"
    forced = subprocess.run(["bash", str(script), "--force"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert forced.returncode == 0, forced.stdout + forced.stderr
    assert "MPICH" in json_of_newest_trace(tmp_path)


def json_of_newest_trace(tmp_path: Path) -> str:
    code = (
        "import pathlib, sys; from hpc.model.trace_file import read_trace; "
        "print(read_trace(pathlib.Path(sys.argv[1])).environment['software']['mpi'])"
    )
    newest = max((tmp_path / "traces").glob("*.h5"))
    done = subprocess.run(
        [sys.executable, "-c", code, str(newest)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_launcher_of_another_mpi_starts_singletons_and_the_run_is_invalid(tmp_path: Path, mpich: Path) -> None:
    done, outcome, errors = sweep(tmp_path, mpich)
    assert (done.returncode, outcome) == (1, "invalid"), done.stdout + errors
    assert "2 ranks requested, MPI sees 1" in errors
    assert "MPI4PY_LIBMPI" in errors
