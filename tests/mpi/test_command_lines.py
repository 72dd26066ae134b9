"""Commands that start ranks, where the machine lacks something."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cluster.local import what_is_missing
from tests.homeless import PREFIX, homeless_environ
from tests.sweeps import outcomes, with_checkout
from tests.unit.traces import make_run
from tests.waiting import LIMIT_S

if missing := what_is_missing():
    pytest.skip("; ".join(missing), allow_module_level=True)

TINY = ("--backend", "mpi", "--workload", "delay", "--option", "compute_ms=1", "--steps", "8", "--warmup", "5",
        "--nodes", "1", "--ranks-per-node", "2", "--repeats", "1", "--gpus-per-node", "0")  # fmt: skip


@pytest.mark.parametrize("argv", [("hpc.sweep", "--cluster", "local", *TINY), ("launch.doctor", "--cluster", "local")])
def test_ranks_need_no_home(argv: tuple[str, ...], tmp_path: Path) -> None:
    """PMIx 4 reads the home folder of an entry in passwd that is not there, where HOME is not set."""
    done = subprocess.run(
        [*PREFIX, sys.executable, "-m", *argv], cwd=tmp_path, env=homeless_environ(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert set(outcomes(tmp_path).values()) == ({"ok"} if argv[0] == "hpc.sweep" else set())


def test_the_checks_name_the_file_that_they_cannot_write(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    run.write_text(json.dumps(make_run().to_json()))
    out = tmp_path / "missing" / "report.json"
    argv = [sys.executable, "-m", "hpc.preflight", "--run", str(run), "--out", str(out)]
    done = subprocess.run(
        argv, env=with_checkout(os.environ), capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 1
    assert done.stderr == f"hpc.preflight: {out}: cannot be written ({os.strerror(errno.ENOENT)})\n"
