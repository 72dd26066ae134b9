"""The journal of one rank: its time stamps in a memory-mapped file of its node."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from hpc.model.spec import SCRIPT_STEPS
from hpc.model.timestamps import ABSENT, BEGIN, END, STAMPS
from hpc.recovery.folders import WHOLE, JournalError, attempt_folders, in_attempt_folder, remove_if_empty, remove_rank
from hpc.system.regular_file import open_regular, parse_json, read_whole
from hpc.system.text import inflect, ranges

SCHEMA, SCHEMA_VERSION = "rankwise-journal", 1
ROW_BYTES = len(STAMPS) * 8
"""Bytes of one step's time stamps in a journal: rows of all steps first, then an int64 of samples for each step."""
UNMEASURED = ".unmeasured"
"""Suffix of the file beside a journal with the progress after its steps."""
HEADER_ROOM_BYTES = 1 << 18
"""A place with less room than this beside the time stamps counts as full."""


class Journal:
    """One rank's journal: `stamps` [steps × 6] and `samples` [steps] are int64 in a shared mapping of a file.

    Stored values outlive the process, whatever ends it, without a system call per step. `samples` of a step is stored
    last: a step is complete where it is not ABSENT. A whole training goes on after these: `unmeasured` has how many
    further steps, of training and of evaluation, are completed and how many are planned.
    """

    def __init__(self, traces: Path, stem: str, rank: int, steps: int, *, unmeasured: int = 0) -> None:
        self._facts: dict[str, Any] = {
            "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "rank": rank, "steps": steps, "byteorder": sys.byteorder
        }  # fmt: skip
        self._name, self._attempt = f"rank{rank}.stamps", (traces, stem)
        size_bytes = journal_bytes(steps)
        self.passed_over: list[str] = []
        """Why the places of the node that come first were not taken."""
        content = f"{size_bytes} bytes of stamps of rank {rank}"
        self._file = in_attempt_folder(traces, stem, content, partial(self._make, size_bytes), self.passed_over)
        if self.passed_over:
            print(f"stamps are in {self.folder}: {'; '.join(self.passed_over)}", file=sys.stderr, flush=True)
        everything = memoryview(mmap.mmap(self._file, size_bytes)).cast("q")
        everything[:] = array("q", [ABSENT]) * len(everything)
        self.stamps = everything[: steps * len(STAMPS)]
        self.samples = everything[steps * len(STAMPS) :]
        self.unmeasured = self._map_unmeasured(unmeasured)

    def _map_unmeasured(self, planned: int) -> memoryview:
        """Two int64, completed and planned, in a file of their own where any are planned."""
        if not planned:
            return memoryview(array("q", [0, 0]))
        with self._path.with_suffix(UNMEASURED).open("wb+") as file:
            file.write(array("q", [0, planned]).tobytes())
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), 16)).cast("q")

    def _make(self, size_bytes: int, folder: Path) -> int:
        """Makes the files in the folder; returns the locked descriptor. Raises OSError, and then leaves no file."""
        self.folder, self._path = folder, folder / self._name
        file = -1
        try:
            self.note()  # time stamps never exist without a header
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(file, fcntl.LOCK_SH)  # held until this process ends: `clean` leaves the living alone
            # A full /dev/shm is an error here, not a SIGBUS in a step. The headers that follow need room, too.
            os.posix_fallocate(file, 0, size_bytes + HEADER_ROOM_BYTES)
            os.ftruncate(file, size_bytes)
        except OSError as error:
            for path in (self._path, self._path.with_suffix(".json"), self._path.with_suffix(".json.new")):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            if file >= 0:
                os.close(file)
            remove_if_empty(folder)
            raise OSError(error.errno, error.strerror, str(folder)) from error
        return file

    @property
    def steps_completed(self) -> int:
        """The number of steps that this rank has completed."""
        return completed_in(self.samples)

    def note(self, **facts: Any) -> None:
        """Stores these facts (JSON values) beside the time stamps; the file is renamed into place, always whole."""
        self._facts |= facts
        path = self._path.with_suffix(".json")
        beside = path.with_suffix(".json.new")
        beside.write_text(json.dumps(self._facts))
        beside.replace(path)

    def remove(self) -> None:
        """Removes the files, and what else the rank has on this node; the mapping stays usable."""
        remove_rank(self._path)
        for folder in attempt_folders(*self._attempt):  # its stacks may have had room where the time stamps had none
            remove_rank(folder / self._name)
        os.close(self._file)


def journal_bytes(steps: int) -> int:
    """The size of a journal's file of time stamps in bytes."""
    return steps * (ROW_BYTES + 8)


def completed_in(samples: Sequence[int]) -> int:
    """The number of completed steps: a step is complete where its samples are not ABSENT."""
    return next((step for step, count in enumerate(samples) if count == ABSENT), len(samples))


# Reads the journals in the `.partial` folder of an attempt: collected ones, or copies of them.

_HEADER_BYTES = 1 << 24
_MAX_SAMPLES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RankJournal:
    """A rank's facts, `stamps` [steps × 6] and `samples` [steps], ABSENT where not reached; shorter where the file is.

    `whole` is False for a copy made while the rank lived: it may have completed more steps. `first` is the step with
    which both begin.
    """

    facts: dict[str, Any]
    stamps: array[int]
    samples: array[int]
    whole: bool = True
    first: int = 0

    @property
    def steps_completed(self) -> int:
        """The number of steps that this rank completed, from the first on."""
        return completed_in(self.samples)


def read_journals(partial: Path, broken: list[str] | None = None) -> list[RankJournal]:
    """The journals in a `.partial` folder, by rank.

    A power cut can leave half of a copy: a file that is cut short is read as far as it goes. The error of an unreadable
    journal is added to `broken`; without that list JournalError is raised.
    """
    journals = []
    for path in partial.glob("rank*.stamps"):
        try:
            journals.append(_read(path))
        except JournalError as error:
            if broken is None:
                raise
            broken.append(str(error))
    return sorted(journals, key=lambda journal: int(journal.facts["rank"]))


def _read(path: Path) -> RankJournal:
    facts = _header(path)
    steps = facts["steps"]
    try:
        with open_regular(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > journal_bytes(steps):
                raise JournalError(f"{path}: {size_bytes} bytes are more than {steps} steps make")
            # A file that ends before the samples has no completed step, whatever size its header claims.
            stored = file.read(size_bytes) if size_bytes > steps * ROW_BYTES else b""
    except OSError as error:
        raise JournalError(f"{path}: cannot be read ({error.strerror})") from None
    numbers = array("q", stored[: len(stored) // 8 * 8])
    if facts["byteorder"] != sys.byteorder:
        numbers.byteswap()
    at = steps * len(STAMPS)
    samples = _without_holes(numbers[:at], numbers[at:])
    return RankJournal(facts=facts, stamps=numbers[:at], samples=samples, whole=path.with_suffix(WHOLE).exists())


def _header(path: Path) -> dict[str, Any]:
    header = path.with_suffix(".json")
    try:
        facts = parse_json(read_whole(header, _HEADER_BYTES))
    except OSError as error:
        raise JournalError(f"{path}: its header {header.name} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise JournalError(f"{path}: its header {header.name} cannot be read ({error})") from None
    ours = isinstance(facts, dict) and (facts.get("schema"), facts.get("schema_version")) == (SCHEMA, SCHEMA_VERSION)
    if not isinstance(facts, dict) or not ours or not facts.keys() >= {"rank", "steps", "byteorder"}:
        raise JournalError(f"{path}: its header is of no journal known here")
    whole = type(facts["steps"]) is type(facts["rank"]) is int
    if facts["byteorder"] not in ("little", "big"):
        raise JournalError(f"{path}: its header has the byte order {facts['byteorder']!r:.20}")
    if not whole or facts["steps"] < 0 or path.stem != f"rank{facts['rank']}":
        raise JournalError(f"{path}: its header is of rank {facts['rank']!r:.20} with {facts['steps']!r:.20} steps")
    return facts


def _without_holes(stamps: array[int], samples: array[int]) -> array[int]:
    """The samples up to the first step that a power cut has zeroed, or whose values are impossible."""
    width, done = len(STAMPS), completed_in(samples)
    counts = samples[:done]
    if 0 not in stamps and (not counts or (min(counts) > 0 and max(counts) <= _MAX_SAMPLES)):
        return samples
    rows = (stamps[width * step : width * step + width] for step in range(done))
    hole = next((step for step, row in enumerate(rows) if _is_hole(row, counts[step])), done)
    return samples[:hole] + array("q", [ABSENT]) * (len(samples) - hole)


def _is_hole(row: array[int], count: int) -> bool:
    unwritten = not any(row) or (count == 0 and row[END] == ABSENT)
    return unwritten or not 0 <= count <= _MAX_SAMPLES


# The progress of an attempt's ranks, read from their journals or from copies of these.

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


def read_window(
    folder: Path, steps: int, known: Mapping[int, RankProgress]
) -> tuple[dict[int, RankProgress], list[RankJournal]]:
    """The progress of every rank whose time stamps are in the folder, and its journal of the last `steps` steps of
    which all ranks have stamps; `known` is the progress read before. For thousands of steps a few rows are read.

    Raises OSError where the folder cannot be read, JournalError where a journal cannot.
    """
    progress = {rank: now for rank, path in sorted(_files(folder).items()) if (now := _look(path, known.get(rank)))}
    stop = min(map(_resolved, progress.values()), default=0)
    return progress, [_rows(its.path, max(0, stop - steps), stop) for its in progress.values()]


def _resolved(progress: RankProgress) -> int:
    """How many of its steps have their stamps: a device's come only at the end of a segment."""
    with open_regular(progress.path) as file:
        ends = range(progress.stamped)
        return bisect_left(
            ends, True, key=lambda step: ABSENT in read_int64(file.fileno(), step * ROW_BYTES + 8 * END, 1)
        )


def _rows(path: Path, first: int, stop: int) -> RankJournal:
    facts = _header(path)
    if facts["byteorder"] != sys.byteorder:
        raise JournalError(f"{path}: written on a machine of another byte order, which is read once the run has ended")
    with open_regular(path) as file:
        stamps = read_int64(file.fileno(), first * ROW_BYTES, (stop - first) * len(STAMPS))
        samples = read_int64(file.fileno(), facts["steps"] * ROW_BYTES + 8 * first, stop - first)
    if len(stamps) != (stop - first) * len(STAMPS) or len(samples) != stop - first:
        raise JournalError(f"{path}: ends before its last step")
    return RankJournal(facts=facts, stamps=stamps, samples=samples, whole=False, first=first)


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
