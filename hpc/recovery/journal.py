"""The journal of one rank: its time stamps in a memory-mapped file of its node."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hpc.model.timestamps import ABSENT, STAMPS
from hpc.recovery.folders import attempt_folders, in_attempt_folder, remove_if_empty, remove_rank

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
            print(f"stamps lie in {self.folder}: {'; '.join(self.passed_over)}", file=sys.stderr, flush=True)
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
