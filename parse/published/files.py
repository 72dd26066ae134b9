"""Finds and reads the files that a command names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


class DocumentError(ValueError):
    """A file has no results or cannot be read; the text has the path and the reason."""


def files_of(paths: Iterable[Path], wanted: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields the named files, and the wanted files in named folders, each file once."""
    seen: set[Path] = set()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if (file == path or (wanted(file) and file.is_file())) and (real := file.resolve()) not in seen:
                seen.add(real)
                yield file


def read_bytes(path: Path, limit: int) -> bytes:
    """Returns the first `limit` bytes of a document. Raises DocumentError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror or error})") from None
