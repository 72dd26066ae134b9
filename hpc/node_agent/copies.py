"""Copies of the journals of a node's ranks in the traces, brought up to date every few seconds (docs/outcomes.md)."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event

from hpc.model.timestamps import ABSENT, BEGIN, END, STAMPS
from hpc.recovery.folders import BEAT, PARTIAL, lives, traces_folder
from hpc.recovery.journal import ROW_BYTES, UNMEASURED, completed_steps, journal_bytes, read_int64
from hpc.system.atomic import write_atomic

_CHUNK_STEPS = 8192


class RankCopy:
    """The copy of one rank's journal in the `.partial` folder, which a look brings up to date."""

    def __init__(self, folder: Path, partial: Path, rank: int) -> None:
        self._header, self._stamps = folder / f"rank{rank}.json", folder / f"rank{rank}.stamps"
        self._partial, self._copied_stamps = partial, partial / self._stamps.name
        self._copied_header, self._beside = partial / self._header.name, partial / f".{self._header.name}.new"
        self._traces = traces_folder(folder, partial.parent, partial.name.removesuffix(PARTIAL))
        self._source = self._target = -1
        self._steps = 0
        self._identity: tuple[int, int] | None = None
        self._header_seen: tuple[int, int] | None = None
        self._rows = self._samples = 0  # number of steps on the disk
        self._unmeasured = b""
        self._over = False

    def look(self) -> None:
        """Copies new steps: first their rows, then the marks of completion, so that no half step shows.

        Stops copying once the journal has been collected. Raises OSError; the next call retries steps that could not
        be copied.
        """
        if self._over or not self._opened():
            return
        try:
            if not self._made():
                self._close()
                return
            self._copy_header()
            completed = completed_steps(self._source, self._steps, self._samples)
            rows = self._resolved(completed)
            if rows > self._rows:
                self._copy(self._rows * ROW_BYTES, rows * ROW_BYTES)
                self._rows = rows
            if completed > self._samples:
                start = self._steps * ROW_BYTES
                self._copy(start + 8 * self._samples, start + 8 * completed)
                self._samples = completed
            self._copy_unmeasured()
        except OSError:
            if os.fstat(self._source).st_nlink == 0:  # collected meanwhile, and the copies are gone
                self._close()
                return
            if self._target >= 0:
                with suppress(OSError):
                    os.close(self._target)
                self._target = -1
            raise

    @property
    def is_current(self) -> bool:
        """Whether there is a copy, and the last look succeeded."""
        return self._target >= 0

    def remove(self) -> None:
        """Removes the copy."""
        progress = self._copied_stamps.with_suffix(UNMEASURED)
        for path in (self._copied_stamps, self._copied_header, self._beside, progress):
            path.unlink(missing_ok=True)

    def _opened(self) -> bool:
        """Whether there is a journal to copy."""
        if self._source < 0:
            try:
                self._source = os.open(self._stamps, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
            self._steps = os.fstat(self._source).st_size // journal_bytes(1)
        if os.fstat(self._source).st_nlink == 0:
            self._close()
        return not self._over

    def _made(self) -> bool:
        """Whether the copy's file is there and ours: one that was collected in the meantime is better than any copy."""
        if self._target >= 0:
            return True
        self._traces.make(self._partial.name)
        if self._identity is None:
            if self._copied_stamps.exists():
                return False
            self._copy_header()  # first: time stamps never exist without a header, whenever this process is killed
            if self._header_seen is None:
                return False
            try:
                target = os.open(self._copied_stamps, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                return False
            try:
                _fill(target, self._steps)
            except OSError:
                os.close(target)
                self._copied_stamps.unlink(missing_ok=True)
                raise
        else:
            target = os.open(self._copied_stamps, os.O_RDWR | os.O_CLOEXEC)
        status = os.fstat(target)
        if self._identity not in (None, (status.st_dev, status.st_ino)):
            os.close(target)
            return False
        self._identity, self._target = (status.st_dev, status.st_ino), target
        return True

    def _copy_header(self) -> None:
        try:
            status = self._header.stat()
            seen = status.st_ino, status.st_mtime_ns
            if seen == self._header_seen:
                return
            content = self._header.read_bytes()
        except FileNotFoundError:  # collected just now
            return
        with self._beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._beside.replace(self._copied_header)
        self._header_seen = seen

    def _copy_unmeasured(self) -> None:
        """The progress of a whole training after its measured steps: 16 bytes, where there are any."""
        try:
            content = self._stamps.with_suffix(UNMEASURED).read_bytes()
        except FileNotFoundError:
            return
        if content != self._unmeasured:
            write_atomic(self._copied_stamps.with_suffix(UNMEASURED), content)
            self._unmeasured = content

    def _resolved(self, completed: int) -> int:
        """The number of completed steps that have their time stamps: a device's come only at the end of a segment."""
        done, width = self._rows, len(STAMPS)
        while done < completed:
            rows = read_int64(self._source, done * ROW_BYTES, min(_CHUNK_STEPS, completed - done) * width)
            ends = [column.index(ABSENT) for column in (rows[BEGIN::width], rows[END::width]) if ABSENT in column]
            if ends:
                return done + min(ends)
            done += len(rows) // width
        return done

    def _copy(self, offset: int, stop: int) -> None:
        while offset < stop:
            content = os.pread(self._source, min(stop - offset, _CHUNK_STEPS * ROW_BYTES), offset)
            _write(self._target, content, offset)
            offset += len(content)
        os.fdatasync(self._target)

    def _close(self) -> None:
        self._over = True
        for file in (self._source, self._target):
            if file >= 0:
                with suppress(OSError):  # of a copy that is not needed any more
                    os.close(file)
        self._source = self._target = -1


class Copies:
    """The copies of a node's ranks in the folder `partial`, looked after every `interval_s`.

    `folders` has each rank's journal folder, by rank; `report` takes facts for the trace.
    """

    def __init__(
        self, folders: Mapping[int, Path], partial: Path, interval_s: float, report: Callable[..., None] | None = None
    ) -> None:
        self._folders, self._partial, self._interval_s, self._report = folders, partial, interval_s, report
        self._copies = [RankCopy(folder, partial, rank) for rank, folder in folders.items()]
        self._beat = partial / f"{os.uname().nodename}{BEAT}"
        self._reported: set[str] = set()
        self._due, self._done, self._ending, self._remove = Event(), Event(), False, False

    def run(self) -> None:
        """Looks every interval and after `look_now`, until `end`."""
        ending = False
        try:
            while not ending:
                self._due.wait(self._interval_s)
                self._due.clear()
                ending = self._ending
                if ending and self._remove:
                    self.remove()
                else:
                    self.look()
        finally:
            self._done.set()

    def look_now(self) -> None:
        """Makes `run` look at once."""
        self._due.set()

    def end(self, *, remove: bool) -> None:
        """Makes `run` end, after it has removed the copies or looked a last time, and waits for that."""
        self._remove, self._ending = remove, True
        self._due.set()
        self._done.wait()

    def look(self) -> None:
        """Brings all copies up to date. A failure is reported once per reason and tried again by the next look."""
        failed = False
        for copy in self._copies:
            try:
                copy.look()
            except OSError as error:
                failed = True
                self._complain(error)
        try:
            if not failed and any(copy.is_current for copy in self._copies):
                self._beat.write_text(f"{self._interval_s:g}\n")
        except OSError as error:
            self._complain(error)

    def remove(self) -> None:
        """Removes the copies, and their folder unless another node's copies are still in it."""
        try:
            for copy in self._copies:
                copy.remove()
            self._beat.unlink(missing_ok=True)
        except OSError as error:
            self._complain(error)
        with suppress(OSError):
            self._partial.rmdir()

    def ranks_live(self) -> bool:
        """Whether any of the ranks is alive."""
        return any(lives(folder, rank) for rank, folder in self._folders.items())

    def _complain(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason in self._reported:
            return
        self._reported.add(reason)
        text = f"{error.filename or self._partial}: {reason}"
        print(f"stamps cannot be copied to the traces, tried again ({text})", file=sys.stderr, flush=True)
        if self._report is not None:
            self._report(failed=text)


def _fill(file: int, steps: int) -> None:
    """Writes the first copy of a journal in its full size, so that later copies have room."""
    empty = array("q", [ABSENT]) * (_CHUNK_STEPS * (len(STAMPS) + 1))
    size = journal_bytes(steps)
    for offset in range(0, size, journal_bytes(_CHUNK_STEPS)):
        _write(file, empty.tobytes()[: size - offset], offset)
    os.fsync(file)


def _write(file: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
