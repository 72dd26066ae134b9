"""Fake commands: shell scripts of that name, first on PATH."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Fake = Callable[[str, str], None]
"""`fake("sbatch", "exit 1")` makes a command of that name with that shell text."""


def fake_in(folder: Path) -> Fake:
    """Makes fake commands in the folder, which may not exist yet."""
    folder.mkdir(exist_ok=True)

    def fake(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return fake
