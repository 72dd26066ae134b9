"""Fake commands: shell scripts of that name, first on PATH."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Fake = Callable[[str, str], object]
"""`fake("sbatch", "exit 1")` makes a command of that name with that shell text."""


def write_program(folder: Path, name: str, body: str, mode: int = 0o755) -> Path:
    """Writes a shell script into the folder, which may not exist yet."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(mode)
    return path


def fake_in(folder: Path) -> Fake:
    """Makes fake commands in the folder."""
    folder.mkdir(exist_ok=True)
    return lambda name, body: write_program(folder, name, body)
