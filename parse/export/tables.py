"""Tables as files: CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc.system.atomic import write_output
from hpc.system.text import plural
from parse.export.content import ExportContent, ExportError
from parse.report.export import csv_of


def write(content: ExportContent, out: str) -> list[str]:
    """Writes a file for each table that has rows. Raises ExportError where one is there already, and OSError."""
    files = {name: Path(out) / f"{name}.csv" for name, rows in content.tables.items() if rows}
    require_free([*files.values()])
    Path(out).mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        write_output(path, csv_of(content.tables[name]))
    return [f"{path}: {plural(len(content.tables[name]), 'row')}" for name, path in files.items()]


def require_free(paths: Sequence[Path]) -> None:
    """Raises ExportError where one of these is there."""
    if present := [str(path) for path in paths if path.exists() or path.is_symlink()]:
        raise ExportError(f"{', '.join(present)} already there: name another place with --out, or remove it first")
