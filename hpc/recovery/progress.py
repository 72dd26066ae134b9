"""The progress of an attempt's ranks, read from their journals or from copies of these."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hpc.model.spec import SCRIPT_STEPS
from hpc.model.timestamps import ABSENT, BEGIN, END, STAMPS
from hpc.recovery.journal import ROW_BYTES, UNMEASURED, journal_bytes
from hpc.system.regular_file import open_regular, read_whole
from hpc.system.text import inflect, ranges

_FILE = re.compile(r"rank(\d+)\.stamps")
_CHUNK_STEPS = 1024
_RECENT = 256


@dataclass(frozen=True, kw_only=True)
class RankProgress:
    """Steps that a rank has completed, of how many, and the journal or copy that was read.

    Both count a whole training's steps after the measured ones, too; `stamped` are those completed that have a row.
    """

    completed: int
    steps: int
    stamped: int
    path: Path


def planned_steps(steps: int) -> int | None:
    """The steps of a rank's progress; None where they are those of a script that runs to its end."""
    return None if steps == SCRIPT_STEPS + 1 else steps


def read_progress(folder: Path, known: Mapping[int, RankProgress] | None = None) -> dict[int, RankProgress]:
    """Every rank whose time stamps are in the folder, by rank; empty without such a folder.

    With `known`, the progress read before, no file is read twice, and reading ends at the first rank that has advanced:
    for thousands of ranks on a shared file system one file is opened. Raises OSError where the folder cannot be read.
    """
    progress = dict(known or {})
    for rank, path in sorted(_files(folder).items()):
        before = progress.get(rank)
        if (now := _look(path, before)) is None:
            continue
        progress[rank] = now
        if before is not None and now.completed > before.completed:
            break
    return progress


def read_one_rank(folder: Path, known: RankProgress | None = None) -> RankProgress | None:
    """Progress of one rank whose time stamps are in the folder: that of `known` while its file exists, else the lowest.

    Opens one file, so it is cheap enough for a display. None where no file is complete. Raises OSError where the folder
    or the file cannot be read.
    """
    if known is not None and known.path.parent == folder and (progress := _look(known.path, known)) is not None:
        return progress
    files = _files(folder)
    return _look(files[min(files)], None) if files else None


def median_step_s(progress: RankProgress) -> float | None:
    """Median duration in seconds of the rank's last 256 steps that have stamps; None where none has, as while a
    device's events are not resolved. Raises OSError where the file cannot be read."""
    first = max(0, progress.stamped - _RECENT)
    with open_regular(progress.path) as file:
        rows = read_int64(file.fileno(), first * ROW_BYTES, (progress.stamped - first) * len(STAMPS))
    begins, ends = rows[BEGIN :: len(STAMPS)], rows[END :: len(STAMPS)]
    durations = [end - begin for begin, end in zip(begins, ends, strict=False) if ABSENT not in (begin, end)]
    return median(durations) / 1e9 if durations else None


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2-7`."""
    return f"{inflect(len(ranks), 'rank')} {ranges(ranks)}"


def _files(folder: Path) -> dict[int, Path]:
    try:
        return {int(match[1]): path for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))}
    except FileNotFoundError:
        return {}


def _look(path: Path, before: RankProgress | None) -> RankProgress | None:
    """None where the file has gone, or is not whole yet."""
    try:
        with open_regular(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if not size_bytes or size_bytes % journal_bytes(1):
                return None
            steps = size_bytes // journal_bytes(1)
            at = min(before.stamped, steps) if before is not None else 0
            stamped = completed_steps(file.fileno(), steps, at)
            completed, planned = _unmeasured(path)
            return RankProgress(completed=stamped + completed, steps=steps + planned, stamped=stamped, path=path)
    except FileNotFoundError:
        return None


def _unmeasured(path: Path) -> tuple[int, int]:
    """Steps after the measured ones, completed and planned; both 0 for a run without any."""
    try:
        counts = array("q", read_whole(path.with_suffix(UNMEASURED))[:16])
    except (FileNotFoundError, ValueError):  # a copy that is not whole yet
        return 0, 0
    return (counts[0], counts[1]) if len(counts) == 2 else (0, 0)


def completed_steps(file: int, steps: int, at: int = 0) -> int:
    """The number of completed steps in a journal's file. `at` is the count to start from; if too high, 0."""
    if at and read_int64(file, steps * ROW_BYTES + 8 * (at - 1), 1)[:1] in (array("q", [ABSENT]), array("q")):
        at = 0
    while at < steps:
        counts = read_int64(file, steps * ROW_BYTES + 8 * at, min(_CHUNK_STEPS, steps - at))
        if ABSENT in counts:
            return at + counts.index(ABSENT)
        if not counts:
            return at
        at += len(counts)
    return at


def read_int64(file: int, offset: int, count: int) -> array[int]:
    """Up to `count` numbers of the file; fewer where it ends before."""
    content = os.pread(file, 8 * count, offset)
    return array("q", content[: len(content) // 8 * 8])
