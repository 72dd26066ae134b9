"""Ten runs killed at random steps, and ten that meet faults; `make torture` kills a hundred and faults two hundred."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.all


def test_ten_killed_runs_lose_only_what_is_promised(slurm_installed: None) -> None:
    """On a cluster of its own, because a node loses its power. The output has the seed that repeats the kills."""
    argv = [sys.executable, "-m", "tests.torture.run", "--kills", "10"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ten_runs_with_faults_are_recorded_right(slurm_installed: None) -> None:
    """The output has the seed of each trial, with which it can be repeated."""
    argv = [sys.executable, "-m", "tests.torture.run", "--kills", "0", "--faults", "10"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
