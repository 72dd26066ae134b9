"""Moves the files of an attempt's ranks on this node to the traces."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpc.recovery.folders import OF_RANK, PART, PARTIAL, WHOLE, attempt_folders, remove_dead, traces_folder


def collect(traces: Path, stem: str) -> int:
    """Moves the files of an attempt's ranks on this node to the traces; returns the number of ranks with time stamps.

    The files are time stamps and stacks, moved to a `.partial` folder, and a trace or a note that could not be written
    before. They replace copies. Nodes may do this at once, and so may simulated nodes that share one folder. Raises
    OSError if the traces cannot be written, FolderReplaced if they are not the folder that existed when the attempt
    began; files that were not moved stay in place.
    """
    moved = 0
    for folder in attempt_folders(traces, stem):
        target = traces_folder(folder, traces, stem)
        for path in sorted(folder.iterdir()):
            if path.name.startswith(f"{stem}."):  # a trace, a note
                target.require()
                if not (traces / path.name).exists():
                    _move([path], [traces / path.name])
                elif path.suffix == ".json":
                    path.unlink()  # the note that was there first stands
            elif path.suffix in (".stamps", ".stacks") and OF_RANK.fullmatch(path.name):
                partial = target.make(f"{stem}{PARTIAL}")
                together = [path.with_suffix(".json"), path] if path.suffix == ".stamps" else [path]
                if _move(together, [partial / each.name for each in together]) and path.suffix == ".stamps":
                    (partial / f"{path.stem}{WHOLE}").touch()
                    moved += 1
        remove_dead(folder)
    return moved


def _move(paths: Sequence[Path], targets: Sequence[Path]) -> bool:
    """Copies all of them, then removes them; False where another was quicker."""
    if not all(_copied(path, target) for path, target in zip(paths, targets, strict=True)):
        return False
    try:
        for path in paths:
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def _copied(path: Path, target: Path) -> bool:
    """Copies, flushes and renames, so that the name always has the whole file. False if there is nothing to copy."""
    beside = target.with_name(f".{target.name}.{os.uname().nodename}.{os.getpid()}{PART}")
    try:
        with path.open("rb") as source, beside.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        beside.replace(target)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, FileNotFoundError) and not path.exists():
            return False
        raise
    return True
