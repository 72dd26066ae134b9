"""Commands in processes of their own, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.sweeps import ROOT, with_checkout

DRY_RUN = ("hpc.sweep", "--cluster", "local", "--nodes", "1", "--ranks-per-node", "1", "--repeats", "1", "--dry-run")


SLURM_DRY_RUN = ("hpc.sweep", "--site", "example", "--nodes", "1", "--gpus-per-node", "1", "--dry-run")


def command(
    module: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None, options: tuple[str, ...] = (),
    stdout: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """`python -m module` in this folder."""
    return process([sys.executable, *options, "-m", module, *arguments], cwd, env, stdout=stdout)


def process(
    argv: list[str], cwd: Path, env: dict[str, str] | None = None, *, stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """The process of this command line, at its end."""
    environ = {**with_checkout(os.environ), "PYTHONUNBUFFERED": "", **(env or {})}
    return subprocess.run(
        argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True,
        encoding="utf-8", errors="surrogateescape", check=False,
    )  # fmt: skip


def sitecustomize(folder: Path, text: str) -> dict[str, str]:
    """The environment in which Python runs this text when it starts."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def when_imported(folder: Path, module: str, statement: str) -> dict[str, str]:
    """The environment in which Python runs the statement when somebody imports the module."""
    return sitecustomize(
        folder,
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            {statement}\n"
        "sys.meta_path.insert(0, Finder())\n",
    )


ASCII = {"PYTHONIOENCODING": "ascii"}
"""The environment of a terminal that shows nothing else."""
