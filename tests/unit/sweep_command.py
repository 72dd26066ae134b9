"""The command line of a sweep, in a folder of the test, as far as it goes without a scheduler."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

from hpc.sweep import main
from tests.sweeps import sweep_argv, with_checkout

NO_SLURM = "/nonexistent"
"""A PATH on which there is nothing."""
Completed = subprocess.CompletedProcess[str]


def sweep(tmp_path: Path, *arguments: str, path: str | None = None, env: dict[str, str] | None = None) -> Completed:
    """`rankwise sweep` in this folder, `path` replaces PATH; with `env` in a process."""
    variables = {} if path is None else {"PATH": path}
    if env is not None:
        environment = {**with_checkout(os.environ), **env, **variables}
        argv = sweep_argv(*arguments)
        return subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    with (
        contextlib.chdir(tmp_path),
        mock.patch.dict(os.environ, variables),
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        contextlib.redirect_stderr(io.StringIO()) as stderr,
    ):
        try:
            status = main(arguments)
        except SystemExit as exit:
            status = int(exit.code or 0)
    return subprocess.CompletedProcess(arguments, status, stdout.getvalue(), stderr.getvalue())


def plan_of(folder: Path) -> dict[str, Any]:
    """The only plan that a sweep has left there, a dry run with its scripts."""
    (path,) = folder.glob("*/plan.*.json")
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan
