"""Moves what the ranks of this node left of an attempt to the traces."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpc.recovery.folders import OF_RANK, PART, PARTIAL, WHOLE, attempt_folders, remove_dead, traces_folder


def collect(traces: Path, stem: str) -> int:
    """Moves what this node's ranks left of an attempt to the traces; returns how many ranks' stamps there were.

    That is stamps and stacks, to a `.partial` folder, and a trace or a note that could not be written before. What is
    moved takes the place of copies. Nodes may do this at once, and so may simulated nodes that share one folder. Raises
    OSError where the traces cannot be written, FolderReplaced where they are not the folder that was there when the
    attempt began; what was not moved stays where it is.
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
    """Copies, flushes, renames: whoever sees the name sees the whole file. False where there is nothing to copy."""
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
