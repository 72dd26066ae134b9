"""Moves the files of an attempt's ranks on this node to the traces."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpc.model.evidence import look_at_trace
from hpc.model.files import AttemptFiles, host_path
from hpc.model.outcome import read_rank_notes
from hpc.recovery.folders import (
    OF_RANK,
    PART,
    PARTIAL,
    WHOLE,
    attempt_folders,
    kept_traces,
    remove_dead,
    traces_folder,
)
from hpc.system.regular_file import open_regular, read_text


def collect(traces: Path, stem: str) -> int:
    """Moves the files of an attempt's ranks on this node to the traces; returns the number of ranks with time stamps.

    The files are time stamps and stacks, moved to a `.partial` folder, and a trace or a note that could not be written
    before. They replace copies, and rank 0's own trace one that was recovered. Nodes may do this at once, and so may
    simulated nodes that share one folder. Raises OSError if the traces cannot be written, FolderReplaced if they are
    not the folder that existed when the attempt began; files that were not moved stay in place.
    """
    moved = 0
    for folder in attempt_folders(traces, stem):
        target = traces_folder(folder, traces, stem)
        for path in sorted(folder.iterdir(), key=lambda path: (path.suffix != ".json", path.name)):  # small ones first
            if path.name.startswith(f"{stem}."):  # a trace, a note
                target.require()
                target_path = traces / path.name
                if not target_path.exists() or (path.suffix == ".h5" and _holds_more(path, target_path)):
                    _move([path], [target_path])
                elif path.suffix == ".json":
                    path.unlink()  # the note that was there first counts
            elif path.suffix in (".stamps", ".stacks") and OF_RANK.fullmatch(path.name):
                partial = target.make(f"{stem}{PARTIAL}")
                together = [path.with_suffix(".json"), path] if path.suffix == ".stamps" else [path]
                if _move(together, [partial / each.name for each in together]) and path.suffix == ".stamps":
                    (partial / f"{path.stem}{WHOLE}").touch()
                    moved += 1
        remove_dead(folder)
    _forget_places(AttemptFiles.of_stem(traces, stem).local_copies)
    _remove_outdated_notes(AttemptFiles.of_stem(traces, stem))
    return moved


def bring_home(traces: Path) -> list[str]:
    """Moves to the traces what recorded attempts had to leave on this node; returns a line for each."""
    lines = []
    for path in kept_traces(traces):
        stem = path.stem
        if not AttemptFiles.of_stem(traces, stem).exit_record.exists():
            continue  # its job may run still; who records its end collects it
        try:
            collect(traces, stem)
        except OSError as error:
            lines.append(f"{stem}: its trace stays at {host_path(path)}: {traces} cannot be written ({error})")
        else:
            what = "stays there: another one is in the traces" if path.exists() else "has been brought to the traces"
            lines.append(f"{stem}: its trace, kept at {host_path(path)}, {what}")
    return lines


def _holds_more(local: Path, target: Path) -> bool:
    """Whether the trace on this node is rank 0's own, and the one in the traces was recovered from journals."""
    other = look_at_trace(target)
    return other.steps >= 0 and not other.whole and look_at_trace(local).whole


def _forget_places(path: Path) -> None:
    """Removes from the list of places those on this node that are gone, and the list where it is empty then."""
    with suppress(OSError):  # there is none, or it can be neither read nor written: it names a place too many
        lines = read_text(path, errors="replace").splitlines()
        here = f"kept: {host_path(Path('/'))}"
        remaining = [line for line in lines if not line.startswith(here) or Path(line[len(here) - 1 :]).exists()]
        if not remaining:
            path.unlink()
        elif remaining != lines:
            path.write_text("".join(f"{line}\n" for line in remaining))


def _remove_outdated_notes(files: AttemptFiles) -> None:
    """Removes the notes that name the place of a trace on a node, once the whole trace is in the traces."""
    with suppress(OSError):  # a note that stays names a place too many; what was collected is there all the same
        notes = [note for note in read_rank_notes(files, []) if note.local_copies]
        if notes and look_at_trace(files.trace).whole:
            for note in notes:
                files.rank_note(note.rank).unlink(missing_ok=True)


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
        with open_regular(path) as source, beside.open("xb") as copy:
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
