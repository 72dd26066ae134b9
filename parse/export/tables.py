"""Tables as files: CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpc.system.atomic import write_output
from hpc.system.text import plural
from parse.export.content import ExportContent, ExportError
from parse.report.export import csv_of


def write(content: ExportContent, out: str) -> list[str]:
    """Writes a file for each table that has rows. Raises ExportError where one is there already, and OSError."""
    files = {name: Path(out) / f"{name}.csv" for name, rows in content.tables.items() if rows}
    with all_or_none([*files.values()]):
        for name, path in files.items():
            write_output(path, csv_of(content.tables[name]))
    return [f"{path}: {plural(len(content.tables[name]), 'row')}" for name, path in files.items()]


@contextmanager
def all_or_none(paths: Sequence[Path]) -> Iterator[None]:
    """Makes their folders, for all of these files to be written inside; where one cannot be, none is left. Raises
    ExportError where one is there already."""
    require_free(paths)
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise


def require_free(paths: Sequence[Path]) -> None:
    """Raises ExportError where one of these is there."""
    if present := [str(path) for path in paths if path.exists() or path.is_symlink()]:
        raise ExportError(f"{', '.join(present)} already there: name another place with --out, or remove it first")
