"""Runs of unchanged scripts of tests/observe_scripts: as a planned run, and by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpc.model.spec import SCRIPT, SCRIPT_STEPS, UNKNOWN, RunSpec
from tests.mpi.attempts import spec

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "observe_scripts"
LATE_LOADER = SCRIPTS / "late_loader.py"
WARMUP = 10


def script_spec(folder: Path, *arguments: str, script: Path = LATE_LOADER, **changes: Any) -> RunSpec:
    usual = {"backend": SCRIPT, "batch_size": 0, "precision": UNKNOWN, "warmup_steps": WARMUP}
    steps = {"measured_steps": SCRIPT_STEPS - WARMUP}
    truth = ("--truth", str(folder / "truth")) if script == LATE_LOADER else ()
    return spec(**{**usual, **steps, "workload": str(script), "arguments": (*truth, *arguments), **changes})


def by_hand(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpc.observe", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
