"""PyPI has packages called `launch` and `parse`: none of them may be taken for this project's."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


class ForeignPackageError(RuntimeError):
    """Python finds another package under one of our names."""


def refuse_foreign_packages() -> None:
    """Raises ForeignPackageError where a foreign package hides one of ours; prints a note where it does not hide it."""
    for name in ("launch", "parse"):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or CHECKOUT not in origin.parents:
            raise ForeignPackageError(
                f"Python finds a foreign package `{name}` at {origin}: it hides this project's; "
                f"run from {CHECKOUT}, or pip uninstall {name}"
            )
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        print(
            f"hpc.sweep: note: PyPI's package `{name}` {version} is installed too; this project's {origin} is used",
            file=sys.stderr,
        )
