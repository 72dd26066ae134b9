"""What killed writers leave beside traces: half-written files and folders being removed, known by their names."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from hpc.model.outcome import EXIT

STALE_S = 600.0
"""A part of an attempt that has ended is stale when it is so old: whoever still wrote it would have renewed it."""
ABANDONED_S = 86400.0
"""The same of an attempt without an exit record."""
_PART = re.compile(
    r"\.?(?P<stem>.+\.\d+)\.(?:h5|(?:exit|begin|hang|rank\d+)\.json|stacks\.txt)(?:\.(?P<host>[^/]+)\.(?P<pid>\d+))?\.part"
    r"|\.(?P<removed>.+\.\d+)\.partial(?:\.(?P<remover_host>[^/]+)\.(?P<remover>\d+))?\.over"
)
"""Names of files of ours in the making, with the process that made them, and of `.partial` folders being removed."""


def name_of_removed(folder: Path) -> Path:
    """What a `.partial` folder is called while it is removed."""
    return folder.with_name(f".{folder.name}.{os.uname().nodename}.{os.getpid()}.over")


def remove_stale_parts(traces: Path, stem: str | None = None) -> list[str]:
    """Removes parts that nobody can be writing any more, of all attempts or of one; returns their names.

    A part stays as long as its process lives on this machine, its attempt has no exit record and it is younger than
    ABANDONED_S, or it is younger than STALE_S. Nothing that has another name is touched. Raises OSError where the
    folder cannot be read or a part cannot be removed.
    """
    parts = [(path, match) for path in sorted(traces.iterdir()) if (match := _PART.fullmatch(path.name))]
    removed = []
    for path, match in parts:
        of_attempt = match["stem"] or match["removed"]
        is_folder = match["stem"] is None
        if stem not in (None, of_attempt) or path.is_symlink() or path.is_dir() != is_folder:
            continue
        ended = (traces / f"{of_attempt}{EXIT}").exists()
        if _may_be_written(path, match, STALE_S if ended else ABANDONED_S):
            continue
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        removed.append(path.name)
    return removed


def _may_be_written(path: Path, match: re.Match[str], stale_s: float) -> bool:
    host, pid = match["host"] or match["remover_host"], match["pid"] or match["remover"]
    if host == os.uname().nodename and Path(f"/proc/{pid}").exists():
        return True
    try:
        changed_s = path.stat().st_mtime
    except FileNotFoundError:  # its writer has just renamed it
        return True
    return server_time_s(path.parent) - changed_s < stale_s


def server_time_s(folder: Path) -> float:
    """The time by the clock that times of files in the folder have: the file server's, where there is one; else this
    machine's."""
    with suppress(OSError), TemporaryFile(dir=folder, prefix=".now.") as file:
        return os.fstat(file.fileno()).st_mtime
    return time.time()
