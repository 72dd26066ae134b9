"""The command line of a sweep, in a folder of the test, as far as it goes without a scheduler."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.sweeps import sweep_argv, with_checkout

NO_SLURM = "/nonexistent"
"""A PATH on which there is nothing."""


def sweep(
    tmp_path: Path, *arguments: str, path: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python -m hpc.sweep` in this folder; `path` replaces PATH."""
    environment = {**with_checkout(os.environ), **(env or {})}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        sweep_argv(*arguments), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )


def plan_of(folder: Path) -> dict[str, Any]:
    """The only plan that a sweep has left there, a dry run with its scripts."""
    (path,) = folder.glob("*/plan.*.json")
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan
