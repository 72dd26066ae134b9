"""Shows something again whenever the files that it is made of have changed, until it is interrupted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpc.system.regular_file import existing

INTERVAL_S = 5.0
"""How often folders are looked at."""

State = frozenset[tuple[str, int, int]]


def watch(
    paths: Sequence[Path],
    show: Callable[[], int],
    clear: Callable[[], object],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Calls `show` at once and whenever a file below `paths` is new, gone or changed, each time after `clear`.

    Returns what `show` returned last, when interrupted (Ctrl-C).
    """
    code, shown = 0, None
    try:
        while True:
            state = _state(paths)
            if state != shown:
                clear()
                code, shown = show(), state
            sleep(INTERVAL_S)
    except KeyboardInterrupt:
        return code


def _state(paths: Sequence[Path]) -> State:
    """The files with their sizes and the times of their last change. What is gone or cannot be looked at is left out;
    what is shown says so."""
    return frozenset(state for path in existing(paths)[0] for state in _files(path))


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    names = [path] if not path.is_dir() else [Path(at) / name for at, _, files in os.walk(path) for name in files]
    for name in names:
        try:
            status = name.stat()
        except OSError:
            continue
        yield str(name), status.st_size, status.st_mtime_ns
