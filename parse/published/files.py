"""Finds and reads the files that a command names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hpc.system.regular_file import open_regular

MAX_BYTES, MAX_LINES = 4 << 20, 50_000
"""A larger text is a log or data, no document."""


class DocumentError(ValueError):
    """A file has no results or cannot be read; the text has the path and the reason."""


def files_of(paths: Iterable[Path], wanted: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields the named files, and the wanted files in named folders, each file once; these may be pipes or devices."""
    seen: set[Path] = set()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if (file == path or (wanted(file) and not file.is_dir())) and (real := file.resolve()) not in seen:
                seen.add(real)
                yield file


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a document. Raises DocumentError if it cannot be read, is too large or no text."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(content) > MAX_BYTES:
        raise DocumentError(f"{path}: more than {MAX_BYTES >> 20} MiB, too large for a document")
    if b"\0" in content:
        raise DocumentError(f"{path}: not a text (it has zero bytes)")
    lines = content.decode("utf-8-sig", errors="replace").splitlines()
    if len(lines) > MAX_LINES:
        raise DocumentError(f"{path}: {len(lines)} lines, more than the {MAX_LINES} of a document")
    return lines
